"""The demo: rules, checks in SQL, tables on the console, and failures of its steps."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import httpx
import pyarrow as pa
import pytest
from rich.console import Console

from leafbeam.datasets import make_shop
from leafbeam.demo import processes, rehearsal
from leafbeam.demo.pipeline import Demo
from leafbeam.demo.processes import COMMAND, Server, run_command, running_server
from leafbeam.demo.rules import SqlChecker, supported_rules, write_rules
from leafbeam.demo.tour import Tour
from leafbeam.errors import ArgumentError, DataError, DemoError
from leafbeam.machine import Machine
from leafbeam.train import load_log
from tests.feeds.followers import wait_for

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


def test_the_checker_counts_violations_nulls_and_unknown_items_included():
    checker = SqlChecker(ITEMS)
    assert checker.count_violations(["price < 20"], ["a", "d"]) == 0
    assert checker.count_violations(["price < 20"], ["a", "b", "c", "unknown"]) == 3
    assert checker.count_violations(["price < 20", "stock > 0"], ["a", "d", "d"]) == 2
    assert checker.count_violations(["price > 20 OR stock > 0"], ["d"]) == 1
    assert checker.count_violations(["price < 20"], []) == 0
    assert checker.count_allowed(["price < 20", "stock > 0"]) == 1


def test_the_checker_follows_a_change_of_stock():
    checker = SqlChecker(ITEMS)
    checker.set_stock("a", 0)
    assert checker.count_violations(["stock > 0"], ["a"]) == 1


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"price": [1.0], "stock": [1], "first_seen": [0]}, ["in_stock", "under_20", "new_this_week"]),
        ({"price": ["12.0"], "first_review": [0]}, ["under_20", "newest"]),
        ({"title": ["x"]}, []),
    ],
)
def test_rules_use_existing_columns_only(columns: dict[str, Any], names: list[str]):
    rules = supported_rules(pa.table({"item_id": ["a"], **columns}))
    assert [rule.name for rule in rules] == names


def test_a_price_that_is_text_is_compared_as_a_number():
    items = pa.table({"item_id": ["a", "b", "c"], "price": ["9.5", "100.0", "no idea"]})
    (rule,) = supported_rules(items)
    assert SqlChecker(items).count_violations([rule.predicate], ["a", "b", "c"]) == 2


def test_the_rules_of_a_shop_select_what_their_names_say(tmp_path: Path):
    items = make_shop(num_items=400, num_users=5, seed=0).items
    names = ("in_stock", "under_20", "new_this_week", "under_50", "new_this_month")
    assert write_rules(tmp_path / "rules.toml", items) == names
    file = tomllib.loads((tmp_path / "rules.toml").read_text())
    written = file["rules"]
    assert SqlChecker(items).count_allowed([f"({file['boosts']['low_price']}) < -ln(1 + 50)"]) == sum(
        row["price"] > 50 for row in items.to_pylist()
    )
    assert SqlChecker(items).count_allowed([written["under_50"]]) == sum(row["price"] < 50 for row in items.to_pylist())
    rules = {rule.name: rule.predicate for rule in supported_rules(items)}
    rows = items.to_pylist()
    newest = max(row["first_seen"] for row in rows)
    checker = SqlChecker(items)
    assert checker.count_allowed([rules["in_stock"]]) == sum(row["stock"] > 0 for row in rows)
    assert checker.count_allowed([rules["under_20"]]) == sum(row["price"] < 20 for row in rows)
    assert checker.count_allowed([rules["new_this_week"]]) == sum((newest - row["first_seen"]).days < 7 for row in rows) == 12
    month = sum((newest - row["first_seen"]).days < 30 for row in rows)
    assert checker.count_allowed([written["new_this_month"]]) == month > 12
    assert checker.count_allowed([f"({file['boosts']['recent']}) = 1"]) == month


def test_a_server_that_breaks_a_rule_is_caught(tmp_path: Path):
    shop = make_shop(num_items=100, num_users=40, seed=0)
    shop.save(tmp_path)
    log = load_log(tmp_path)
    sold_out = next(row["item_id"] for row in shop.items.to_pylist() if row["stock"] == 0)

    class BrokenServer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"item_ids": [sold_out], "index_version": "x", "timings_ms": {}}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), BrokenServer) as broken_server:
        Thread(target=broken_server.serve_forever, daemon=True).start()
        server = Server(address=f"http://127.0.0.1:{broken_server.server_port}", child=None, log=tmp_path / "log")  # type: ignore[arg-type]
        rules = supported_rules(shop.items)
        tour = Tour(log=log, rules=rules, server=server, run=tmp_path, console=console(120), seed=0)
        with pytest.raises(DemoError, match="1 violation of “in stock and under 20” in 1 item"):
            tour.show_answers()
        with pytest.raises(DemoError, match=r"3 violations of .* in 3 items"):
            tour.check_users(3)
        server.transport.close()
        broken_server.shutdown()


def demo(**changes: Any) -> Demo:
    settings = {"data": None, "minutes": 0.1, "num_items": 300, "num_users": 100, "seed": 0, "console": console(120)}
    return Demo(**{**settings, **changes})


def test_the_demo_never_deletes_files_that_it_did_not_make(tmp_path: Path):
    foreign = tmp_path / "demo-shop" / "thesis.txt"
    foreign.parent.mkdir()
    foreign.write_text("years of work")
    with pytest.raises(DemoError, match="did not make"):
        demo(runs=tmp_path).run()
    assert foreign.read_text() == "years of work"


def test_the_demo_refuses_missing_data_and_invalid_minutes(tmp_path: Path):
    with pytest.raises(DataError, match="there is no directory"):
        demo(runs=tmp_path, data=tmp_path / "nothing")
    with pytest.raises(ArgumentError, match="a number of minutes above 0"):
        demo(runs=tmp_path, minutes=0)


def test_the_last_line_leads_to_the_tutorial(tmp_path: Path):
    screen = console(120)
    shop = Demo(data=None, minutes=None, runs=tmp_path, num_items=9, num_users=9, seed=0, console=screen)
    shop._print_next_steps(tmp_path / "demo-shop", 240.0, None)
    last = text_of(screen).strip().splitlines()[-1]
    assert "http://localhost:8000" in text_of(screen)
    assert last.startswith("Next: docs/tutorial.md")
    assert (Path(__file__).parents[2] / "docs" / "tutorial.md").exists()


def test_the_server_takes_the_port_of_the_documents_only_if_it_is_free(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(processes, "USUAL_PORT", port)
        assert processes.usual_port() == 0
    assert processes.usual_port() == port


def test_a_step_that_fails_stops_the_demo(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(DemoError, match="ended with exit code 2"):
        list(run_command(["make-shop", "--out", str(tmp_path), "--items", "1"]))
    assert "at least one item for each of its" in capfd.readouterr().err


@pytest.mark.slow
def test_open_ends_with_the_page_of_the_user_in_a_browser_and_the_server_running(tmp_path: Path):
    opened = tmp_path / "opened.txt"
    browser = tmp_path / "browser"  # writes down what it was told to open
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    words = ["demo", "--runs", str(tmp_path / "runs"), "--items", "300", "--users", "300", "--minutes", "0.02", "--open"]
    out = (tmp_path / "out").open("w")
    with subprocess.Popen([*COMMAND, *words], stdout=out, env={**os.environ, "BROWSER": f"{browser} %s"}) as child, out:
        try:
            while not opened.exists():
                assert child.poll() is None
                time.sleep(0.05)
            page = opened.read_text()
            address, query = page.split("/#")
            state = parse_qs(query)
            assert state["rule"] == ["in_stock", "under_20"]
            body = {"history": state["item"], "rules": state["rule"]}
            assert httpx.post(f"{address}/v1/recommend", json=body).json()["num_valid"] == 10
            assert "playground" in httpx.get(address).text
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert (tmp_path / "out").read_text().splitlines()[-1] == f"Page: {page}"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_server_that_ends_by_itself_is_reported(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as child:
        server = Server(address="http://127.0.0.1:1", child=child, log=tmp_path / "log")
        with pytest.raises(DemoError, match="exit code 3"):
            server.wait()
        server.transport.close()


SLOW_SERVER = """
import pathlib, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

run = pathlib.Path(sys.argv[sys.argv.index("--run") + 1])
print("kernels are compiled", flush=True)
while not (run / "compiled").exists():
    time.sleep(0.05)
server = HTTPServer(("127.0.0.1", 0), Ready)
print(f"serves at http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


class Clock:
    """A clock of its own, on which a wait takes 30 s until `run` has its kernels."""

    def __init__(self, run: Path, compiled_after_s: float) -> None:
        self.run, self.compiled_after_s, self.now = run, compiled_after_s, 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        if self.now >= self.compiled_after_s:
            (self.run / "compiled").touch()
            time.sleep(0.05)
        else:
            self.now += 30.0


@pytest.fixture
def slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "COMMAND", (sys.executable, "-c", SLOW_SERVER))


@pytest.mark.usefixtures("slow_server")
def test_a_server_that_takes_five_minutes_to_be_ready_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "time", Clock(tmp_path, compiled_after_s=300.0))
    with running_server(tmp_path) as server:
        assert server.request("/readyz").status == 200


@pytest.mark.usefixtures("slow_server")
def test_a_server_that_never_becomes_ready_leaves_a_run_to_go_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "time", Clock(tmp_path, compiled_after_s=float("inf")))
    with pytest.raises(DemoError, match="not ready after 600 s") as raised, running_server(tmp_path):
        pass
    assert f"`leafbeam serve --run {tmp_path}` starts it again" in str(raised.value)


def test_a_rehearsal_is_for_a_machine_with_two_cores_and_no_compiled_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rehearsal, "kernel_directory", lambda: str(tmp_path / "kernels"))
    for cores, expected in ((1, False), (2, True)):
        monkeypatch.setattr(Machine, "usable_cores", cores)
        assert rehearsal.is_worthwhile() is expected
    compiled = tmp_path / "kernels" / "index" / "radix_sort.nbi"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"")
    assert not rehearsal.is_worthwhile()


def test_a_rehearsal_ends_with_the_demo_and_so_does_its_step(tmp_path: Path):
    with rehearsal.rehearsal(tmp_path / "rehearsal.log") as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        wait_for(lambda: bool(children.read_text()))
    assert child.returncode == -signal.SIGTERM

    def is_over() -> bool:
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(is_over)


@pytest.mark.slow
def test_a_rehearsal_runs_every_step_and_a_server(tmp_path: Path):
    subprocess.run([sys.executable, "-m", "leafbeam.demo.rehearsal", str(tmp_path)], check=True, timeout=600)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "sids.parquet",
        "model",
        "memory.leafbeam",
        "index.leafbeam",
        "server.log",
    }
