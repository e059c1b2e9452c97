"""The whole path in miniature, through the command line itself: a log in, recommendations under rules out."""

import io
import json
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from leafbeam.cli.run import Source
from leafbeam.demo.processes import Server, running_server
from leafbeam.demo.rules import supported_rules, write_rules
from leafbeam.demo.tour import Tour
from leafbeam.train import load_log
from tests.fixtures.command_line import call, succeed


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every step has been taken; each step names the next one."""
    run = tmp_path_factory.mktemp("run")
    assert "fit-sids" in last_line(succeed("make-shop", "--out", run, "--items", "300", "--users", "300"))
    sids = succeed("fit-sids", "--data", run, "--run", run, "--codebooks", "16,16")
    assert last_line(sids) == f"Next: leafbeam train --run {run}"
    trained = succeed("train", "--run", run, "--steps", "30", "--layers", "1", "--width", "32")
    assert last_line(trained) == f"Next: leafbeam evaluate --run {run}"
    assert "Recall@10 on a sample of validation users: most popular 0." in trained
    evaluated = succeed("evaluate", "--run", run, "--users", "100", "--unconstrained", "50", "--plot", run / "recall.svg")
    assert "history of 3 to 5" in evaluated
    assert "training interactions of the item" in (run / "recall.svg").read_text()
    assert f"leafbeam train --run {run} --resume --minutes 30\n" in evaluated  # 30 steps are not enough
    assert last_line(evaluated) == f"Next: leafbeam build --run {run}"
    assert last_line(succeed("build", "--run", run)) == f"Next: leafbeam serve --run {run}"
    return run


@pytest.fixture(scope="module")
def server(run: Path) -> Generator[Server]:
    """The real server over that run; it has to end cleanly when it is told to."""
    with running_server(run) as server:
        yield server
    assert server.child.returncode in (0, -signal.SIGTERM)


def items_of(run: Path) -> dict[str, dict[str, object]]:
    return {row["item_id"]: row for row in pq.read_table(run / "items.parquet").to_pylist()}


def test_the_report_says_what_every_step_found(run: Path):
    report = json.loads((run / "report.json").read_text())
    assert set(report) == {"data", "fit-sids", "train", "evaluate", "build"}
    assert report["data"]["items"] == 300
    assert report["train"]["steps"] == 30
    assert report["train"]["valid_recall_10"] is not None
    assert {"popularity", "graph", "graph_text"} <= set(report["train"]["baselines"])
    assert report["evaluate"]["users"] == 100
    assert {"model", "popularity", "text"} <= set(report["evaluate"]["rankings"])
    assert 0 <= report["evaluate"]["unconstrained"]["invalid"]["mean"] <= 1
    rows = items_of(run).values()
    assert report["build"]["rules"]["in_stock"] == sum(row["stock"] > 0 for row in rows)
    assert report["build"]["rules"]["under_20"] == sum(row["price"] < 20 for row in rows)


def test_a_finished_run_is_trained_longer_and_on_validation_items_too(run: Path, tmp_path: Path):
    longer = tmp_path / "run"
    shutil.copytree(run, longer)
    more = succeed("train", "--run", longer, "--steps", "35", "--resume")  # with the layers and the width of the checkpoint
    assert "35 steps" in more
    whole = succeed("train", "--run", longer, "--minutes", "0.001", "--layers", "1", "--width", "32", "--fit-on", "train+valid")
    assert "Recall@10" not in whole
    assert "minutes in place of 0.001: modules" in whole  # L6: a command that cannot end in its minutes says why
    shown = succeed("evaluate", "--run", longer, "--users", "50", "--unconstrained", "0")
    assert "fitted on train and valid, measured on test" in " ".join(shown.split())
    assert json.loads((longer / "report.json").read_text())["evaluate"]["fit_on"] == "train+valid"


def test_recommend_prints_titles_that_obey_the_rules(run: Path):
    words = ("recommend", "--run", run, "--user", "U001", "--items", "5")
    output = " ".join(succeed(*words, "--rules", "in_stock,under_20").split())
    items = items_of(run)
    shown = re.findall(r"│ \d+ │ (P\d+) │", output)  # the reasons name items of the history
    assert len(shown) == 5
    assert all(items[item_id]["stock"] > 0 and items[item_id]["price"] < 20 for item_id in shown)
    assert all(str(items[item_id]["brand"]) in output for item_id in shown)


def test_recommend_tells_of_ids_that_it_does_not_know(run: Path):
    output = succeed("recommend", "--run", run, "--history", "P001,P9999,nothing", "--deny", "P002")
    assert "2 ids of history are not in the index" in output


def test_recommend_refuses_a_rule_that_is_not_there(run: Path):
    words = ["recommend", "--run", str(run), "--history", "P001", "--rules", "on_the_moon"]
    result = call(*words)
    assert result.exit_code == 2
    assert "unknown rule 'on_the_moon'; the rules of this catalog are: in_stock" in result.stderr


def test_inspect_shows_bytes_by_level_and_codebook_use(run: Path):
    assert "300 items" in succeed("inspect", run / "index.leafbeam")
    shown = succeed("inspect", run)
    for words in ("all levels", "boundary", "perplexity", "num_hidden_layers", "30 steps"):
        assert words in shown


def test_building_again_keeps_what_was_changed_in_the_catalog(run: Path):
    before = (run / "catalog.duckdb").read_bytes()
    assert "is kept as it is" in succeed("build", "--run", run)
    assert (run / "catalog.duckdb").read_bytes() == before


def test_the_server_obeys_rules_and_reloads_them(run: Path, server: Server):
    items = items_of(run)
    request = {"history": ["P001", "P002"], "num_items": 8, "rules": ["in_stock", "under_20"]}
    answer = server.request("/v1/recommend", request)
    assert answer.status == 200
    assert len(answer.body["item_ids"]) == 8
    assert all(items[item]["stock"] > 0 and items[item]["price"] < 20 for item in answer.body["item_ids"])

    request["rules"] = ["under_5"]
    assert server.request("/v1/recommend", request).status == 422
    rules = run / "rules.toml"
    rules.write_text(rules.read_text() + 'under_5 = "price < 5"\n')
    server.reload()
    give_up = time.monotonic() + 20
    while (after := server.request("/v1/recommend", request)).status != 200 and time.monotonic() < give_up:
        time.sleep(0.02)
    assert after.status == 200
    assert after.body["item_ids"]
    assert all(items[item]["price"] < 5 for item in after.body["item_ids"])
    assert after.body["index_version"] == answer.body["index_version"]


def test_the_demos_tour_checks_its_answers_on_the_real_server(run: Path, server: Server):
    screen = Console(file=io.StringIO(), width=120, highlight=False)
    log = load_log(run)
    rules = supported_rules(log.items)
    tour = Tour(log=log, rules=rules, server=server, run=run, console=screen, seed=0)
    tour.show_user()
    plain, cheap, new = tour.show_answers()
    checked = tour.check_users(10)
    change = tour.change_a_rule()
    assert (plain["rules"], cheap["rules"], new["rules"]) == ([], ["in_stock", "under_20"], ["new_this_week"])
    assert checked["in stock and under 20"]["broken"] == 0 < checked["in stock and under 20"]["broken_without_rule"]
    assert change["status_before"] == 422
    assert change["index_version"] == plain["index_version"]
    assert change["sold_out"] == cheap["item_ids"][0]
    assert change["answer"]
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert [line for line in shown.splitlines() if len(line) > 120] == []
    assert shown.count("✓") >= 6


@pytest.mark.slow
def test_a_new_item_gets_its_codes_from_its_text_and_outlives_a_restart(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("live"))
    words = {name: value for name, value in items_of(run)["P001"].items() if isinstance(value, str)}
    lines = [{**words, "item_id": "P900", "price": 1.5}, {"item_id": "P901", "price": "dear"}]
    for _ in range(2):
        with running_server(tmp_path / "run") as server, httpx.Client(base_url=server.address) as client:
            wrong = client.put("/v1/items", json=lines)
            assert (wrong.status_code, list(wrong.json()["error"]["lines"])) == (422, ["2"])
            if client.get("/v1/items/P900").status_code == 404:
                assert client.put("/v1/items", json=lines[:1]).json()["inserted"] == 1
            assert client.get("/v1/items/P900").json()["attributes"]["price"] == 1.5
            request = {"history": ["P001"], "num_items": 256, "num_beams": 512, "rules": ["under_20"]}
            assert "P900" in client.post("/v1/recommend", json=request | {"channel": "model"}).json()["item_ids"]
    answer = " ".join(succeed("recommend", "--run", tmp_path / "run", "--history", "P900,P001").split())
    assert "not in the index" not in answer


@pytest.mark.slow
def test_data_without_stock_gets_rules_that_it_can_answer(run: Path, tmp_path: Path):
    shop = pq.read_table(run / "items.parquet")
    prices = pa.array([str(price) for price in shop["price"].to_pylist()])
    items = pa.table({"item_id": shop["item_id"], "title": shop["title"], "price": prices, "first_review": shop["first_seen"]})
    pq.write_table(items, tmp_path / "items.parquet")
    shutil.copyfile(run / "interactions.parquet", tmp_path / "interactions.parquet")
    shutil.copyfile(run / "sids.parquet", tmp_path / "sids.parquet")
    shutil.copytree(run / "model", tmp_path / "model")
    Source(path=tmp_path).save(tmp_path / "source.json")
    write_rules(tmp_path / "rules.toml", items)
    succeed("build", "--run", tmp_path)

    screen = Console(file=io.StringIO(), width=120, highlight=False)
    log = load_log(tmp_path)
    with running_server(tmp_path) as server:
        rules = supported_rules(log.items)
        tour = Tour(log=log, rules=rules, server=server, run=tmp_path, console=screen, seed=0)
        tour.show_user()
        answers = tour.show_answers()
        change = tour.change_a_rule()
    assert [answer["rules"] for answer in answers] == [[], ["under_20"], ["newest"]]
    assert change["sold_out"] is None
    assert all(float(items_of(run)[item]["price"]) < 10 for item in change["answer"])  # type: ignore[arg-type]
    assert "The items have no stock" in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_request_is_lost_behind_the_balancer_when_a_server_ends(run: Path, server: Server, tmp_path: Path, how: int):
    if (haproxy := shutil.which("haproxy")) is None:
        pytest.skip("haproxy is not installed")
    other = tmp_path / "run"
    shutil.copytree(run, other)
    with running_server(other) as second, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        text = (Path(__file__).parents[2] / "deploy" / "haproxy.cfg").read_text()
        for name, at in (("10.0.0.1:8000", server.address), ("10.0.0.2:8000", second.address), (":8080", f"http://{address}")):
            assert name in text
            text = text.replace(name, at.removeprefix("http://"))
        (tmp_path / "haproxy.cfg").write_text(text)
        balancer = subprocess.Popen([haproxy, "-f", str(tmp_path / "haproxy.cfg"), "-db"], stderr=subprocess.DEVNULL)
        try:
            statuses: list[int] = []
            with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
                wait_for(address)
                for number in range(150):
                    if number == 50:
                        second.child.send_signal(how)
                    statuses.append(client.post("/v1/recommend", json={"history": [], "num_items": 3}).status_code)
            assert statuses == [200] * 150
            second.child.wait(60)
        finally:
            balancer.terminate()
            balancer.wait(10)


def wait_for(address: str) -> None:
    """Return once something listens at an address."""
    host, _, port = address.partition(":")
    for _ in range(100):
        with socket.socket() as one:
            if one.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at {address}")
