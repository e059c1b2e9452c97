import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import duckdb
import httpx
import numpy as np
import pytest
import torch

from leafbeam.engine import CatalogFiles, Engine
from leafbeam.errors import ArgumentError, CheckpointError, LogitsError, RuleError
from leafbeam.serve import Exposure, Server, ServerConfig, serve
from leafbeam.serve.server import SighupReloader, _listen
from tests.serve.running import end_under_load, process, thread, until


def test_while_it_serves_the_cycle_collector_skips_older_objects(first_shop):
    with thread(first_shop.engine()) as server:
        assert gc.get_freeze_count() > 50_000
        assert len(gc.get_objects()) < gc.get_freeze_count() / 5
        assert httpx.post(server.url + "/v1/recommend", json={}).status_code == 200
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_an_open_address_is_warned_of(first_shop, caplog, host, warns):
    with thread(first_shop.engine(), host=host, exposure=Exposure(insecure=True)) as server:
        assert httpx.post(f"http://127.0.0.1:{server.port}/v1/recommend", json={}).status_code == 200
    assert ("there are no keys" in caplog.text) == warns


@pytest.mark.slow
def test_sighup_reloads_rules_without_a_restart_and_sigterm_drops_no_request(shop):
    _, _, catalog_path, rules_path = shop.files
    with process(shop) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        body = {"rules": ["cheap"], "num_items": 100}
        first = client.post("/v1/recommend", json=body).json()
        assert set(first["item_ids"]) == shop.allowed(["cheap"], [])

        # Another process than the server's changes prices and a rule while the server runs.
        with duckdb.connect(str(catalog_path)) as connection:
            connection.execute("UPDATE items SET price = 39 - price")
        rules_path.write_text("[rules]\ncheap = 'price < 20'\ndear = 'price >= 20'\n")
        server.child.send_signal(signal.SIGHUP)
        until(lambda: client.post("/v1/recommend", json=body).json()["rules_generation"] == 2)
        second = client.post("/v1/recommend", json=body).json()
        assert set(second["item_ids"]) == shop.allowed([], []) - shop.allowed(["cheap"], [])
        assert second["index_version"] == first["index_version"]
        dear = client.post("/v1/recommend", json={"rules": ["dear"], "num_items": 100}).json()
        assert set(dear["item_ids"]) == shop.allowed(["cheap"], [])
        assert client.post("/v1/recommend", json={"rules": ["in_stock"]}).status_code == 422

        # A rule that breaks keeps its last good filter, and says so.
        rules_path.write_text("[rules]\ncheap = 'no_such_column > 1'\n")
        server.child.send_signal(signal.SIGHUP)
        until(lambda: 'leafbeam_rule_failed{rule="cheap"} 1.0' in client.get("/metrics").text)
        assert client.post("/v1/recommend", json=body).json()["item_ids"] == second["item_ids"]
        assert "as before: rule 'cheap' cannot be evaluated: no_such_column > 1" in server.log
        assert server.child.poll() is None

        end_under_load(server)
        assert "Traceback" not in server.log
        assert "leaked" not in server.log


@pytest.mark.slow
def test_sigterm_ends_a_server_whose_reload_does_not_end(shop):
    endless = "price IN (WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t)"
    with process(shop) as server:
        shop.files[3].write_text(f'[rules]\ncheap = "{endless}"\n')
        server.child.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        answer = httpx.post(server.url + "/v1/recommend", json={"rules": ["cheap"], "num_items": 100}, timeout=20).json()
        assert set(answer["item_ids"]) == shop.allowed(["cheap"], [])
        assert "reloaded" not in server.log
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(10) == 0
        assert "leaked" not in server.log


_STOPPED_AT_THE_END = """
import sys, threading
from leafbeam.engine import CatalogFiles, Engine
from leafbeam.serve import Server, ServerConfig
model, index, catalog, rules, http_workers = sys.argv[1:]
engine = Engine.load(model, CatalogFiles(index=index, catalog=catalog, rules=rules))
ready = threading.Event()
server = Server(engine, config=ServerConfig(port=0, http_workers=int(http_workers)), on_ready=lambda line: ready.set())
threading.Thread(target=server.run).start()
ready.wait()
server.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("http_workers", [0, 1])
def test_a_program_may_end_while_its_server_stops_in_a_thread(first_shop, http_workers):
    words = [sys.executable, "-c", _STOPPED_AT_THE_END, *map(str, first_shop.files), str(http_workers)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


def test_many_clients_each_get_answers_of_their_own_rules(first_shop):
    wrong: list[object] = []
    batches: set[int] = set()
    choices = [[], ["cheap"], ["in_stock"], ["cheap", "in_stock"], ["none"]]

    def ask(url: str, number: int) -> None:
        rng = np.random.default_rng(number)
        with httpx.Client(base_url=url, timeout=30) as client:
            for _ in range(8):
                rules = choices[rng.integers(len(choices))]
                deny = (1000 + rng.integers(0, 100, 30)).tolist()
                num_items = int(rng.integers(1, 64))
                body = {"history": deny[:3], "rules": rules, "deny_item_ids": deny, "num_items": num_items, "num_beams": 64}
                answer = client.post("/v1/recommend", json=body).json()
                allowed = first_shop.allowed(rules, deny)
                if not set(answer["item_ids"]) <= allowed or answer["num_valid"] != min(num_items, len(allowed)):
                    wrong.append((body, answer))
                batches.add(answer["batch_size"])

    with thread(first_shop.engine()) as server:
        threads = [threading.Thread(target=ask, args=(server.url, i)) for i in range(16)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        text = httpx.get(server.url + "/metrics").text
    assert wrong == []
    assert max(batches) > 1
    assert 'leafbeam_requests_total{outcome="ok"} 128.0' in text


def test_reload_without_a_catalog_says_there_is_nothing_to_reload(first_shop, caplog):
    engine = Engine.load(first_shop.files[0], first_shop.files[1])
    with thread(engine) as server:
        assert server.reload() is None
        assert httpx.post(server.url + "/v1/recommend", json={"rules": ["cheap"]}).json()["error"]["type"] == "UnknownRuleError"
    assert "no rules to reload" in caplog.text


def test_a_taken_or_invalid_port_is_a_named_error(first_shop):
    engine = first_shop.engine()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"cannot listen on 127.0.0.1 port {port}: .*; port 0 takes a free one"):
            Server(engine, config=ServerConfig(port=port))
        with pytest.raises(ArgumentError, match="cannot listen"):
            serve("no model", "no index", config=ServerConfig(port=port))  # before anything is loaded
    for port in (-1, 65536):
        with pytest.raises(ArgumentError, match="port must be from 0"):
            Server(engine, config=ServerConfig(port=port))


def test_a_model_that_cannot_answer_never_serves(first_shop):
    engine = first_shop.engine()
    with torch.no_grad():
        engine.model.model.norm.weight.fill_(float("nan"))
    lines: list[str] = []
    with pytest.raises(LogitsError):
        Server(engine, config=ServerConfig(port=0), on_ready=lines.append).run()
    assert lines == []


def test_files_that_cannot_serve_are_named_errors_before_anything_listens(shop):
    model_dir, index_path, catalog_path, _ = shop.files
    with pytest.raises(RuleError, match="'bad'"):
        serve(
            model_dir,
            CatalogFiles(index=index_path, catalog=catalog_path, rules={"bad": "no_such_column"}),
            config=ServerConfig(port=0),
        )
    os.remove(model_dir / "config.json")
    with pytest.raises(CheckpointError):
        serve(model_dir, CatalogFiles(index=index_path, catalog=catalog_path), config=ServerConfig(port=0))


def test_signals_during_a_reload_lead_to_one_more_and_a_failure_to_none_less():
    begun, go, calls = threading.Semaphore(0), threading.Semaphore(0), []

    def reload() -> None:
        calls.append(1)
        begun.release()
        assert go.acquire(timeout=20)
        raise RuntimeError("this reload failed")

    with SighupReloader().installed() as reloader:
        os.kill(os.getpid(), signal.SIGHUP)
        reloader.set_reload(reload)  # the signal was remembered
        assert begun.acquire(timeout=20)
        for _ in range(200):
            os.kill(os.getpid(), signal.SIGHUP)
        go.release()
        assert begun.acquire(timeout=20)
        go.release()
        assert not begun.acquire(timeout=0.2)
    assert len(calls) == 2


def test_a_connection_sends_without_waiting_for_an_acknowledgement():
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
