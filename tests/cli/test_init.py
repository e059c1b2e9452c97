"""`leafbeam init` and `leafbeam` alone: a run from five answers, and where one is."""

import json
import re
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.cli import status
from leafbeam.cli.run import Source
from tests.fixtures.command_line import call, flat, succeed
from tests.fixtures.logs import write_log


def answers(*lines: object) -> str:
    return "".join(f"{line}\n" for line in lines)


def test_five_answers_make_a_run_that_later_commands_read(tmp_path: Path) -> None:
    orders, goods = write_log(tmp_path)
    run = tmp_path / "runs" / "mine"
    words = answers(
        tmp_path / "nothing.csv", orders, "customer sku when", "customer sku at", goods, "name", "cheap@60s=price < 5"
    )
    shown = flat(succeed("init", "--run", run, stdin=words))
    assert "there is no" in shown
    assert "has no column 'when'; it has customer, sku, at" in shown
    assert "60 users, 40 items" in shown
    assert f"leafbeam fit-sids --run {run}" in shown
    source = Source.load(run / "source.json")
    assert (source.user_column, source.item_column, source.time_column, source.id_column) == ("customer", "sku", "at", "code")
    assert (source.time_unit, source.delimiter, source.text_columns) == ("ms", ";", ("name",))
    rules = (run / "rules.toml").read_text()
    assert tomllib.loads(rules) == {"rules": {"cheap": {"where": "price < 5", "refresh": "60s"}}}
    assert "# Columns: item_id, name, price" in rules
    assert "cheap allows" in shown
    assert "of 40 items" in shown
    examples = tomllib.loads(re.sub(r"^# (?=\w+ = |\[)", "", rules, flags=re.MULTILINE))
    assert (set(examples["rules"]), set(examples["boosts"])) == ({"cheap", "fresh"}, {"recent"})
    log = source.read()
    assert (log.num_users, log.num_items) == (60, 40)
    assert "60 users, 40 items" in succeed("fit-sids", "--run", run, "--codebooks", "8,8")


def test_what_the_files_suggest_is_offered(tmp_path: Path) -> None:
    pq.write_table(pa.table({"Item": ["a", "b", "a"], "User": [1, 1, 2], "weight": [1, 2, 3]}), tmp_path / "log.parquet")
    goods = pa.table({"item": ["a", "b"], "title": ["red cup", "blue lamp"], "stock": [0, 3]})
    pq.write_table(goods, tmp_path / "goods.parquet")
    run = tmp_path / "run"
    shown = succeed("init", "--run", run, stdin=answers(tmp_path / "log.parquet", "", tmp_path / "goods.parquet", "", ""))
    assert "[User, Item]" in shown
    assert "[title]" in shown
    source = Source.load(run / "source.json")
    assert (source.order, source.id_column, source.text_columns) == ("file", "item", ("title",))
    assert tomllib.loads((run / "rules.toml").read_text()) == {"rules": {"in_stock": "stock > 0"}}


def test_names_of_columns_may_have_blanks_and_are_offered_by_their_words(tmp_path: Path) -> None:
    rows = ["1;C1;A 1;2026-03-01 10:00;2", "2;C1;A 2;2026-03-02 10:00;1", "3;C2;A 1;2026-03-01 11:00;1"]
    (tmp_path / "orders.csv").write_text("\n".join(["Order;Customer;Product No;Ordered at;Qty", *rows, ""]))
    (tmp_path / "goods.csv").write_text("Product No,Name,Stock\nA 1,red cup,3\nA 2,blue lamp,0\n")
    run = tmp_path / "run"
    rules = "named=Name < 3", "no_such=color = 1", ""  # asked again until the last one, which is none
    words = answers(tmp_path / "orders.csv", "", tmp_path / "goods.csv", "", *rules)
    shown = succeed("init", "--run", run, stdin=words)
    assert "[Customer, Product No, Ordered at]" in shown
    assert "[in_stock=Stock > 0]" in shown
    assert "TRY_CAST(column AS DOUBLE)" in flat(shown)
    assert "color" in shown
    source = Source.load(run / "source.json")
    assert (source.user_column, source.item_column, source.time_column) == ("Customer", "Product No", "Ordered at")
    assert source.id_column == "Product No"


def test_rows_with_gaps_are_left_out_only_after_a_question(tmp_path: Path) -> None:
    rows = "".join(f"{'' if n == 5 else n % 4},{n % 6},{10 + n}\n" for n in range(40))
    (tmp_path / "log.csv").write_text(f"user_id,item_id,timestamp\n{rows}")
    refused = call("init", "--run", tmp_path / "none", stdin=answers(tmp_path / "log.csv", "", "", "n"))
    assert refused.exit_code == 2
    assert "column 'user_id': empty in line 7" in flat(refused.stderr)
    assert not (tmp_path / "none").exists()
    run = tmp_path / "run"
    shown = flat(succeed("init", "--run", run, stdin=answers(tmp_path / "log.csv", "", "", "", "")))
    assert "1 row lacks a user, an item or a time. Leave out such rows? [Y/n]" in shown
    assert "39 interactions" in shown
    assert Source.load(run / "source.json").incomplete == "drop"
    assert "1 incomplete row dropped" in flat(succeed("fit-sids", "--run", run, "--codebooks", "4,4"))


def test_a_log_alone_suffices(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user_id\titem_id\ttimestamp\n1\t7\t10\n1\t8\t11\n2\t7\t12\n")
    run = tmp_path / "run"
    succeed("init", "--run", run, stdin=answers(tmp_path / "log.csv", "", "", ""))
    source = Source.load(run / "source.json")
    assert (source.items, source.delimiter, source.time_unit, source.order) == (None, "\t", "s", "time")
    assert tomllib.loads((run / "rules.toml").read_text()) == {"rules": {}}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["log.csv"], "Aborted"),
        (["log.csv", "", "", "cheap", "cheap=price <", ""], ""),
        (["log.csv", "user_id item_id timestamp", "bad.csv"], "item_id"),
    ],
)
def test_answers_that_lead_nowhere_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("user_id,item_id,timestamp\n1,7,10\n1,8,11\n2,7,12\n")
    Path("bad.csv").write_text("item_id,price\n7,1\n7,2\n")
    result = call("init", "--run", "run", stdin=answers(*lines))
    if says:
        assert result.exit_code != 0
        assert says in flat(result.output)
        assert not Path("run").exists()
    else:  # it asks again until the answer is a rule
        assert "write a rule as NAME=PREDICATE" in flat(result.output)


def test_a_run_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "source.json").write_text("{}")
    result = call("init", "--run", tmp_path, stdin="")
    assert result.exit_code == 2
    assert "has a log or rules already" in result.stderr
    assert (tmp_path / "source.json").read_text() == "{}"


class Ready(BaseHTTPRequestHandler):
    """A server of which the readiness alone is asked."""

    def do_GET(self) -> None:
        fields = {"ready": False, "reason": "it warms up", "index_version": None, "num_items": 3, "rules": {}}
        body = json.dumps({**fields, "threads": None, "text_model": None}).encode()
        self.send_response(503)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    made = HTTPServer(("127.0.0.1", 0), Ready)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    thread.join()
    made.server_close()


def test_leafbeam_alone_shows_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status, "_URL", "http://127.0.0.1:1")
    assert "Next: leafbeam init" in flat(succeed())
    for number in range(7):
        (tmp_path / "runs" / f"r{number}").mkdir(parents=True)
        (tmp_path / "runs" / f"r{number}" / "source.json").write_text("{}")
    newest = tmp_path / "runs" / "r3"
    for name in ("sids.parquet", "model"):
        (newest / name).touch()
    shown = succeed()
    assert shown.index("runs/r3") < min(shown.index(f"runs/r{number}") for number in (4, 5, 6) if f"runs/r{number}" in shown)
    assert "and 2 older" in shown
    assert "No server answers" in shown
    assert "Next: leafbeam build --run runs/r3" in flat(shown)
    (newest / "index.leafbeam").touch()
    assert "Next: leafbeam serve --run runs/r3" in flat(succeed())
    monkeypatch.setattr(status, "_URL", server)
    shown = flat(succeed())
    assert f"A server answers at {server} (not ready: it warms up)" in shown
    assert "Next: leafbeam recommend --run runs/r3 --history ''" in shown
    Source(path=None).save(newest / "source.json")  # as of `import` without --data
    assert "runs/r3 · log ✓ Semantic IDs ✓ model ✓ index" in flat(succeed())
    (newest / "source.json").unlink()  # as for a table of codes, without a log
    shown = flat(succeed())
    assert "runs/r3 · log ✓ Semantic IDs ✓ model ✓ index" in shown
    assert "Next: leafbeam recommend --run runs/r3" in shown
    (newest / "model").unlink()
    assert "Next: leafbeam train --run runs/r3" in flat(succeed())
