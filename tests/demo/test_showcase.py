"""What the demo says is true, and fits where it is shown."""

import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from leafbeam.datasets.shop import make_shop
from leafbeam.demo.demo import Demo
from leafbeam.demo.rules import supported_rules, write_rules
from leafbeam.demo.showcase import Shown, facts_of, side_by_side, title_of
from leafbeam.demo.sql_checker import SqlChecker
from leafbeam.demo.steps import Server, run_command
from leafbeam.demo.tour import Visit
from leafbeam.errors import ArgumentError, DataError, DemoError
from leafbeam.train import load_log

ITEMS = pa.table(
    {
        "item_id": ["a", "b", "c", "d"],
        "title": ["Red Mug", "Blue Mug", "Green Mug", None],
        "price": [5.0, 25.0, None, 12.0],
        "stock": [1, 1, 1, 0],
    }
)


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_referee_counts_what_breaks_a_rule_null_and_unknown_items_included():
    referee = SqlChecker(ITEMS)
    assert referee.broken(["price < 20"], ["a", "d"]) == 0
    assert referee.broken(["price < 20"], ["a", "b", "c", "nobody"]) == 3
    assert referee.broken(["price < 20", "stock > 0"], ["a", "d", "d"]) == 2
    assert referee.broken(["price > 20 OR stock > 0"], ["d"]) == 1
    assert referee.broken(["price < 20"], []) == 0
    assert referee.allowed(["price < 20", "stock > 0"]) == 1


def test_the_referee_follows_a_change_of_stock():
    referee = SqlChecker(ITEMS)
    referee.set_stock("a", 0)
    assert referee.broken(["stock > 0"], ["a"]) == 1


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"price": [1.0], "stock": [1], "first_seen": [0]}, ["in_stock", "under_20", "new_this_week"]),
        ({"price": ["12.0"], "first_review": [0]}, ["under_20", "newest"]),
        ({"title": ["x"]}, []),
    ],
)
def test_rules_are_made_of_columns_that_are_there_and_of_no_others(columns: dict[str, Any], names: list[str]):
    rules = supported_rules(pa.table({"item_id": ["a"], **columns}))
    assert [rule.name for rule in rules] == names


def test_a_price_that_is_text_is_compared_as_a_number():
    items = pa.table({"item_id": ["a", "b", "c"], "price": ["9.5", "100.0", "no idea"]})
    (rule,) = supported_rules(items)
    assert SqlChecker(items).broken([rule.predicate], ["a", "b", "c"]) == 2


def test_the_rules_of_a_shop_select_what_their_names_say(tmp_path: Path):
    items = make_shop(num_items=400, num_users=5, seed=0).items
    assert write_rules(tmp_path / "rules.toml", items) == ("in_stock", "under_20", "new_this_week")
    rules = {rule.name: rule.predicate for rule in supported_rules(items)}
    rows = items.to_pylist()
    newest = max(row["first_seen"] for row in rows)
    referee = SqlChecker(items)
    assert referee.allowed([rules["in_stock"]]) == sum(row["stock"] > 0 for row in rows)
    assert referee.allowed([rules["under_20"]]) == sum(row["price"] < 20 for row in rows)
    assert referee.allowed([rules["new_this_week"]]) == sum((newest - row["first_seen"]).days < 7 for row in rows) == 12


def test_three_tables_fit_side_by_side_in_120_columns():
    screen = console(120)
    row = {"item_id": "a", "title": "A " + "very " * 40 + "long title", "brand": "B", "price": 1234.5, "stock": 0}
    answer = Shown(heading="in stock and under 20", note="note", items=[(title_of(row), facts_of(row), False)] * 3)
    side_by_side(screen, [answer, answer, answer])
    lines = text_of(screen).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 120
    assert lines[0].count("╭") == 3
    assert "1,234.50 · SOLD OUT" in text_of(screen)


def test_a_narrow_console_gets_the_tables_below_one_another():
    screen = console(60)
    side_by_side(screen, [Shown(heading=name, note="", items=[("T", "F", False)]) for name in ("one", "two", "three")])
    lines = text_of(screen).splitlines()
    assert max(len(line) for line in lines) <= 60
    assert all(line.count("╭") <= 1 for line in lines)


def test_titles_are_readable_whatever_the_table_holds():
    assert title_of({"item_id": 7, "title": None, "brand": None}) == "item 7"
    assert title_of({"item_id": 7, "title": "Spa Bath", "brand": "Dr. Scholl&#39;s"}) == "Dr. Scholl's Spa Bath"
    assert title_of({"item_id": 7, "title": "OPI Lacquer", "brand": "OPI"}) == "OPI Lacquer"
    assert title_of({"item_id": 7, "title": "Lacquer", "brand": "Unknown"}) == "Lacquer"
    assert facts_of({"price": None, "stock": None}) == "no price · stock unknown"


def test_a_server_that_breaks_a_rule_is_caught(tmp_path: Path):
    shop = make_shop(num_items=100, num_users=40, seed=0)
    shop.save(tmp_path)
    log = load_log(tmp_path)
    sold_out = next(row["item_id"] for row in shop.items.to_pylist() if row["stock"] == 0)

    class Liar(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"item_ids": [sold_out], "index_version": "x", "timings_ms": {}}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Liar) as liar:
        Thread(target=liar.serve_forever, daemon=True).start()
        server = Server(f"http://127.0.0.1:{liar.server_port}", None, tmp_path / "log")  # type: ignore[arg-type]
        rules = supported_rules(shop.items)
        visit = Visit(log=log, rules=rules, server=server, run=tmp_path, console=console(120), seed=0)
        with pytest.raises(DemoError, match="1 of 1 items break “in stock and under 20”"):
            visit.show_answers()
        with pytest.raises(DemoError, match="3 of 3 items break"):
            visit.prove_on_a_crowd(3)
        liar.shutdown()


def demo(**changes: Any) -> Demo:
    settings = {"data": None, "minutes": 0.1, "num_items": 300, "num_users": 100, "seed": 0, "console": console(120)}
    return Demo(**{**settings, **changes})


def test_the_demo_never_deletes_what_it_did_not_make(tmp_path: Path):
    mine = tmp_path / "demo-shop" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    with pytest.raises(DemoError, match="did not make"):
        demo(runs=tmp_path).run()
    assert mine.read_text() == "years of work"


def test_the_demo_refuses_what_it_cannot_walk(tmp_path: Path):
    with pytest.raises(DataError, match="there is no directory"):
        demo(runs=tmp_path, data=tmp_path / "nothing")
    with pytest.raises(ArgumentError, match="positive number of minutes"):
        demo(runs=tmp_path, minutes=0)


def test_a_step_that_fails_stops_the_demo(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(DemoError, match="ended with exit code 2"):
        list(run_command(["make-shop", "--out", str(tmp_path), "--items", "1"]))
    assert "at least one item for each of its" in capfd.readouterr().err
