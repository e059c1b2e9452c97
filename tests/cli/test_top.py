"""`leafbeam top`: rates between two readings of metrics, and one reading of a real server."""

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from leafbeam.cli import app
from leafbeam.client.readings import Rates, Reading, quantile
from leafbeam.errors import ArgumentError, DataError
from leafbeam.serve.access import Access
from leafbeam.serve.keys import KeyFile, add_key
from tests.client.scripted_server import free_port
from tests.serve.conftest import first_shop  # noqa: F401
from tests.serve.running import thread

PAGE = """# HELP leafbeam_requests_total x
# TYPE leafbeam_requests_total counter
leafbeam_requests_total{{outcome="ok"}} {ok}
leafbeam_requests_total{{outcome="failed"}} {failed}
leafbeam_request_seconds_bucket{{outcome="ok",le="0.01"}} {fast}
leafbeam_request_seconds_bucket{{outcome="ok",le="0.1"}} {ok}
leafbeam_request_seconds_bucket{{outcome="ok",le="+Inf"}} {ok}
leafbeam_request_seconds_bucket{{outcome="refused",le="+Inf"}} 1000
leafbeam_batch_size_sum {ok}
leafbeam_batch_size_count {batches}
leafbeam_refused_total{{reason="queue_full"}} {full}
leafbeam_access_refused_total{{reason="key_rate"}} {full}
leafbeam_index_changes {changes}
leafbeam_index_info{{version="abc+7"}} 1
leafbeam_index_items 100
"""
FIRST = {"ok": 100, "failed": 0, "fast": 50, "batches": 100, "full": 0, "changes": 5}


def reading(at: float, **values: int) -> Reading:
    return Reading.parse(PAGE.format(**{**FIRST, **values}), at)


def test_rates_are_what_grew_between_two_readings():
    after = reading(4.0, ok=300, failed=2, fast=150, batches=150, full=6, changes=9)
    rates = Rates.between(reading(2.0), after)
    assert (rates.requests_per_s, rates.failures_per_s, rates.batch_size, rates.changes_per_s) == (101, 1, 4, 2)
    assert rates.refusals_per_s == {"queue_full": 3, "key_rate": 3}
    assert rates.p50_s == pytest.approx(0.01)  # 100 of 200 took at most 10 ms
    assert rates.p99_s == pytest.approx(0.01 + 0.09 * 0.98)
    assert (rates.now.index_version, rates.now.value("index_items")) == ("abc+7", 100)


def test_a_server_that_started_again_has_counted_from_0():
    rates = Rates.between(reading(0.0), reading(1.0, ok=10, fast=10, batches=5, changes=0))
    assert (rates.requests_per_s, rates.batch_size, rates.changes_per_s) == (10, 2, 0)


def test_an_idle_server_has_no_latency():
    rates = Rates.between(reading(0.0), reading(1.0))
    assert (rates.requests_per_s, rates.p50_s, rates.p99_s, rates.batch_size, rates.refusals_per_s) == (0, None, None, None, {})


def test_readings_in_the_wrong_order_are_refused():
    with pytest.raises(ArgumentError, match="must come after"):
        Rates.between(reading(1.0), reading(1.0))


@given(st.lists(st.floats(0.001, 20), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float):
    bounds = [0.01, 0.1, 1.0, 10.0]
    buckets = {str(bound): float(sum(value <= bound for value in values)) for bound in bounds} | {"+Inf": float(len(values))}
    found = quantile(buckets, share)
    below = [bound for bound in bounds if buckets[str(bound)] < share * len(values)]
    above = [bound for bound in bounds if buckets[str(bound)] >= share * len(values)]
    assert found is not None
    assert (below[-1] if below else 0) <= found + 1e-12
    assert found <= (above[0] if above else bounds[-1]) + 1e-12


@pytest.mark.parametrize("text", ["", "<html>", "other_metric 1\n", "leafbeam_x{ 1\n", 'leafbeam_x{a="b"} y\n', "{} 1\n", "\0"])
def test_what_are_no_metrics_is_refused(text: str):
    with pytest.raises(DataError, match="metrics"):
        Reading.parse(text, 0.0)


def test_one_reading_of_a_server_under_requests(first_shop: Any):  # noqa: F811
    stop = threading.Event()
    with thread(first_shop.engine()) as server:

        def ask() -> None:
            with httpx.Client(base_url=server.url) as client:
                while not stop.is_set():
                    client.post("/v1/recommend", json={})
                    client.post("/v1/recommend", json={"rules": ["nothing"]})

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            done = CliRunner().invoke(app, ["top", "--url", server.url, "--once", "--interval", "1"])
        finally:
            stop.set()
            asking.join()
    assert done.exit_code == 0, done.output
    rows = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", done.stdout, re.MULTILINE))
    assert float(rows["requests/s"].replace(",", "")) > 0
    assert float(rows["refusals/s"].replace(",", "")) > 0
    assert {"p50", "p99", "batch size", "unknown_rule"} <= rows.keys()
    assert re.fullmatch(r"[\d.,]+ ms", rows["p99"])
    assert (rows["items"], rows["changes/s"]) == ("100", "0.0")
    assert len(rows["catalog version"]) == 16


def test_a_server_that_needs_a_key_names_where_it_is_taken_from(first_shop: Any, tmp_path: Path):  # noqa: F811
    key = add_key(tmp_path / "keys.json", "watcher", "read")
    with thread(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json"))) as server:
        words = ["top", "--url", server.url, "--once", "--interval", "0.1"]
        without = CliRunner().invoke(app, words, env={"LEAFBEAM_KEY": None})
        assert (without.exit_code, "LEAFBEAM_KEY" in without.stderr) == (2, True)
        assert CliRunner().invoke(app, words, env={"LEAFBEAM_KEY": key}).exit_code == 0


@pytest.mark.parametrize(
    "words", [["--url", f"http://127.0.0.1:{free_port()}", "--once"], ["--url", "nonsense"], ["--interval", "0"]]
)
def test_what_cannot_be_watched_is_named(words: list[str]):
    done = CliRunner().invoke(app, ["top", *words])
    assert (done.exit_code, "Error:" in done.stderr) == (2, True)
