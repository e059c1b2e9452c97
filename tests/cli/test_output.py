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
    names = ("item_ids", "codes", "scores", "reasons", "boosts", "ignored_history", "ignored_deny")
    empty: dict[str, Any] = dict.fromkeys(names, ())
    counts: dict[str, Any] = dict.fromkeys(("num_valid", "num_history_used", "num_history_left_out", "num_beams"), 0)
    timings = SimpleNamespace(total=0.0, model=0.0)
    result = SimpleNamespace(**empty, **counts, unmet={}, empty_rules=empty_rules, index_version="v", timings=timings)
    table = pa.table({"item_id": pa.array([], pa.string())})
    catalog = SimpleNamespace(lookup=lambda ids: table, schema=list)
    console = Console(file=io.StringIO(), width=120)
    show(console, cast("Any", SimpleNamespace(catalog=catalog)), Request(), cast("Any", result))
    assert line in cast("io.StringIO", console.file).getvalue()


def test_boosts_have_a_column_and_quotas_that_are_not_met_a_line() -> None:
    """What a boost adds to the score of each item is beside it."""
    empty: dict[str, Any] = dict.fromkeys(("reasons", "ignored_history", "ignored_deny", "empty_rules"), ())
    items: dict[str, Any] = {"item_ids": ("a", "b"), "codes": ((0,), (1,)), "scores": (1.5, -0.25), "boosts": (2.0, -0.5)}
    counts: dict[str, Any] = dict.fromkeys(("num_history_used", "num_history_left_out", "num_beams"), 0)
    timings = SimpleNamespace(total=0.0, model=0.0)
    result = SimpleNamespace(**empty, **items, **counts, num_valid=2, unmet={"new": 1}, index_version="v", timings=timings)
    table = pa.table({"item_id": ["a", "b"]})
    catalog = SimpleNamespace(lookup=lambda ids: table, schema=lambda: table.schema)
    console = Console(file=io.StringIO(), width=120)
    request = Request(boosts={"margin": 1.0}, at_least={"new": 1}, num_items=2)
    show(console, cast("Any", SimpleNamespace(catalog=catalog)), request, cast("Any", result))
    text = cast("io.StringIO", console.file).getvalue()
    assert "boosts" in text
    assert "1.50 │  +2.00" in text
    assert "--at-least new: 1 more item of this rule would be needed, and none is allowed." in text
