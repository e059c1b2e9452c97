"""`leafbeam evaluate --boost`: what a policy costs in recall, and what it brings."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.cli import policy
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.engine import Engine, Request
from tests.cli.conftest import IDS
from tests.fixtures.command_line import call

ITEMS = sorted(IDS)


@pytest.fixture
def boosted(run: Path, tmp_path: Path) -> RunDirectory:
    """A run with a boost, and a log of 30 users who each took three items."""
    paths = RunDirectory(run)
    with paths.rules.open("a") as rules:
        rules.write("[boosts]\ndear = 'price'\n")
    folder = tmp_path / "log"
    folder.mkdir()
    users = [user for user in range(30) for _ in range(3)]
    taken = [ITEMS[(user + step) % 6] for user in range(30) for step in range(3)]
    table = pa.table({"user_id": users, "item_id": taken, "timestamp": list(range(90))})
    pq.write_table(table, folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": ITEMS, "title": ITEMS}), folder / "items.parquet")
    Source(path=folder).save(paths.source)
    return paths


def test_the_rows_are_those_of_lists_with_and_without_the_policy(boosted: RunDirectory) -> None:
    request = Request(boosts={"dear": 25.0}, at_most={"price": 1}, at_least={"cheap": 1}, num_items=2, channel="model")
    with Engine.load(boosted.model, boosted.catalog_files(verify=True)) as engine:
        assert engine.catalog is not None
        rows = policy.measure(engine, engine.catalog.rules, [()] * 4, ["i5", "i0", "i5", "i4"], request)
        plain = engine.recommend([Request(num_items=2, channel="model")])[0]
    assert [row.name for row in rows] == ["without", *(f"weights x {scale:g}" for scale in policy.SCALES)]
    hit_U = np.array([item in plain.item_ids for item in ("i5", "i0", "i5", "i4")], np.float64)
    assert (rows[0].recall, rows[0].change) == (hit_U.mean(), 0.0)
    assert rows[0].boosts["dear"] == pytest.approx(np.mean([float(item[1:]) for item in plain.item_ids]))
    dearest = rows[-1]  # i5, and the dearest cheap item: i2
    assert dearest.recall == 0.5
    assert dearest.change == pytest.approx(0.5 - hit_U.mean())
    assert dearest.standard_error == pytest.approx((np.array([1, 0, 1, 0]) - hit_U).std() / 2)
    assert (dearest.boosts, dearest.distinct, dearest.shares) == ({"dear": 3.5}, {"price": 2.0}, {"cheap": 0.5})


def test_the_command_prints_a_table_and_adds_it_to_the_report(boosted: RunDirectory) -> None:
    shown = call(
        *("evaluate", "--run", str(boosted.path), "--users", "12"),
        *("--boost", "dear=0.5", "--at-most", "price=1", "--at-least", "cheap=2"),
        *("--plot", str(boosted.path / "policy.svg")),
    )
    assert shown.exit_code == 0, shown.output
    for words in (
        "What the policy costs and brings",
        "mean dear",
        "values of price",
        "share of cheap",
        "weights x 0.25",
        "12 users",
    ):
        assert words in shown.output
    drawn = (boosted.path / "policy.svg").read_text()
    for words in ("mean dear of an item", "values of price in a list", "share of cheap in the items", "weights x 4", "without"):
        assert f"<!-- {words} -->" in drawn
    report = json.loads(boosted.report.read_text())["policy"]
    assert (report["users"], report["part"], len(report["rows"])) == (12, "test", 6)
    assert report["request"] == {"boosts": {"dear": 0.5}, "at_most": {"price": 1}, "at_least": {"cheap": 2}}
    assert all(row["shares"]["cheap"] > 0 for row in report["rows"][1:])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--boost", "dear"], "--boost 'dear': expected a name and a number"),
        (["--boost", "none-such=1"], "unknown boost 'none-such'; the boosts of this catalog are: dear"),
        (["--at-most", "brand=2"], "unknown column 'brand'"),
        (["--at-least", "none=2"], "unknown rule 'none'"),
        (["--plot", "recall.txt"], "--plot recall.txt: expected a file name that ends in"),
        (["--boost", "dear=1", "--plot", "policy.txt"], "--plot policy.txt: expected a file name that ends in"),
    ],
)
def test_what_a_policy_cannot_name_is_said(boosted: RunDirectory, words: list[str], says: str) -> None:
    shown = call("evaluate", "--run", str(boosted.path), *words)
    assert shown.exit_code != 0
    assert says in " ".join(shown.output.split())


def test_a_rule_that_leaves_a_segment_without_items_is_named(boosted: RunDirectory) -> None:
    """The three cheap items have 20 training interactions each, the others 5."""
    log = Source.load(boosted.source).path
    assert log is not None
    taken = pq.read_table(log / "interactions.parquet")
    more = pa.table({"user_id": list(range(100, 145)), "item_id": ITEMS[:3] * 15, "timestamp": [0] * 45})
    pq.write_table(pa.concat_tables([taken, more]), log / "interactions.parquet")
    with boosted.rules.open("w") as rules:
        rules.write("[rules]\ncheap = 'price < 3'\nnone = 'price < 0'\nall = 'price >= 0'\n")
    shown = call("evaluate", "--run", str(boosted.path), "--unconstrained", "0")
    assert shown.exit_code == 0, shown.output
    assert [line for line in shown.output.splitlines() if line.startswith("Warning")] == [
        "Warning: the rule cheap allows none of the 3 items with 5 to 19 training interactions.",
        "Warning: the rule none allows none of the 3 items with 5 to 19 training interactions.",
        "Warning: the rule none allows none of the 3 items with 20 to 99 training interactions.",
    ]
