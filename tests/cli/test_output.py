"""The printed answer of `leafbeam recommend`."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from rich.console import Console

from leafbeam.cli.output import show
from leafbeam.engine import Request


@pytest.mark.parametrize(
    ("empty_rules", "line"),
    [
        ((), "0 items: no other items are allowed."),
        (("none",), "0 items: the rule none allows none."),
        (("cheap", "luxury"), "0 items: the rules cheap and luxury allow none together."),
        (("a", "b", "c - d"), "0 items: the rules a, b and c - d allow none together."),
        (("- history",), "0 items: all items are in the history."),
        (("- deny_item_ids", "- history"), "0 items: all items are denied or in the history."),
        (("cheap", "- deny_item_ids"), "0 items: all items that the rule cheap allows are denied."),
        (("a", "b", "- history"), "0 items: all items that the rules a and b allow are in the history."),
    ],
)
def test_an_answer_without_items_names_the_rules_that_left_none(empty_rules, line):
    """A3: on the command line."""
    empty: dict[str, Any] = dict.fromkeys(("item_ids", "codes", "scores", "reasons", "ignored_history", "ignored_deny"), ())
    counts: dict[str, Any] = dict.fromkeys(("num_valid", "num_history_used", "num_history_left_out", "num_beams"), 0)
    timings = SimpleNamespace(total=0.0, model=0.0)
    result = SimpleNamespace(**empty, **counts, empty_rules=empty_rules, index_version="v", timings=timings)
    table = pa.table({"item_id": pa.array([], pa.string())})
    catalog = SimpleNamespace(lookup=lambda ids: table, schema=list)
    console = Console(file=io.StringIO(), width=120)
    show(console, cast("Any", SimpleNamespace(catalog=catalog)), Request(), cast("Any", result))
    assert line in cast("io.StringIO", console.file).getvalue()
