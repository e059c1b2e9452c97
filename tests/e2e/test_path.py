"""The whole path in miniature, through the command line itself: a log in, recommendations under rules out."""

import json
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pleach.cli import app
from pleach.demo.steps import running_server

ENV = {"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}


def call(*words: str | Path):
    result = CliRunner().invoke(app, [str(word) for word in words], env=ENV)
    assert result.exit_code == 0, f"{words}: {result.output}"
    return result.stdout


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every step has been taken; each step names the next one."""
    run = tmp_path_factory.mktemp("run")
    assert "fit-sids" in last_line(call("make-shop", "--out", run, "--items", "300", "--users", "300"))
    sids = call("fit-sids", "--data", run, "--run", run, "--codebooks", "16,16")
    assert last_line(sids) == f"Next: pleach train --run {run}"
    trained = call("train", "--run", run, "--steps", "30", "--layers", "1", "--width", "32")
    assert last_line(trained) == f"Next: pleach evaluate --run {run}"
    evaluated = call("evaluate", "--run", run, "--users", "100", "--unconstrained", "50")
    assert last_line(evaluated) == f"Next: pleach build --run {run}"
    assert last_line(call("build", "--run", run)) == f"Next: pleach serve --run {run}"
    return run


def items_of(run: Path) -> dict[str, dict[str, object]]:
    return {row["item_id"]: row for row in pq.read_table(run / "items.parquet").to_pylist()}


def test_the_report_says_what_every_step_found(run: Path):
    report = json.loads((run / "report.json").read_text())
    assert set(report) == {"data", "fit-sids", "train", "evaluate", "build"}
    assert report["data"]["items"] == 300
    assert report["train"]["steps"] == 30
    assert report["evaluate"]["users"] == 100
    assert report["evaluate"]["popularity"] is not None
    assert report["evaluate"]["text_neighbours"] is not None
    assert 0 <= report["evaluate"]["unconstrained"]["invalid"]["mean"] <= 1
    rows = items_of(run).values()
    assert report["build"]["rules"]["in_stock"] == sum(row["stock"] > 0 for row in rows)
    assert report["build"]["rules"]["under_20"] == sum(row["price"] < 20 for row in rows)


def test_recommend_prints_titles_that_obey_the_rules(run: Path):
    words = ("recommend", "--run", run, "--user", "U001", "--items", "5")
    output = " ".join(call(*words, "--rules", "in_stock,under_20").split())
    items = items_of(run)
    shown = [item_id for item_id in items if f" {item_id} " in output]
    assert len(shown) == 5
    assert all(items[item_id]["stock"] > 0 and items[item_id]["price"] < 20 for item_id in shown)
    assert all(str(items[item_id]["brand"]) in output for item_id in shown)


def test_recommend_tells_of_ids_that_it_does_not_know(run: Path):
    output = call("recommend", "--run", run, "--history", "P001,P9999,nothing", "--deny", "P002")
    assert "2 ids of history are not in the index" in output


def test_recommend_refuses_a_rule_that_is_not_there(run: Path):
    words = ["recommend", "--run", str(run), "--history", "P001", "--rules", "on_the_moon"]
    result = CliRunner().invoke(app, words, env=ENV)
    assert result.exit_code == 2
    assert "unknown rule 'on_the_moon'; the rules of this catalogue are: in_stock" in result.stderr


def test_inspect_shows_bytes_by_level_and_codebook_use(run: Path):
    assert "300 items" in call("inspect", run / "catalogue.pleach")
    shown = call("inspect", run)
    for words in ("all levels", "boundary", "perplexity", "num_hidden_layers", "30 steps"):
        assert words in shown


def test_building_again_keeps_what_was_changed_in_the_catalogue(run: Path):
    before = (run / "catalogue.duckdb").read_bytes()
    assert "is kept as it is" in call("build", "--run", run)
    assert (run / "catalogue.duckdb").read_bytes() == before


def test_the_server_obeys_rules_reloads_them_and_stops(run: Path):
    items = items_of(run)
    with running_server(run) as server:
        request = {"history": ["P001", "P002"], "num_items": 8, "rules": ["in_stock", "under_20"]}
        answer = server.ask("/v1/recommend", request)
        assert answer.status == 200
        assert len(answer.body["item_ids"]) == 8
        assert all(items[item]["stock"] > 0 and items[item]["price"] < 20 for item in answer.body["item_ids"])

        request["rules"] = ["under_5"]
        assert server.ask("/v1/recommend", request).status == 422
        rules = run / "rules.toml"
        rules.write_text(rules.read_text() + 'under_5 = "price < 5"\n')
        server.reload()
        give_up = time.monotonic() + 20
        while (after := server.ask("/v1/recommend", request)).status != 200 and time.monotonic() < give_up:
            time.sleep(0.02)
        assert after.status == 200
        assert after.body["item_ids"]
        assert all(items[item]["price"] < 5 for item in after.body["item_ids"])
        assert after.body["index_version"] == answer.body["index_version"]
        child = server.child
    assert child.returncode in (0, -signal.SIGTERM)
