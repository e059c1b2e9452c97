"""A catalog over HTTP: a change is visible in the next request and after a restart, or an error that says why it is not."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from leafbeam.catalog import Catalog
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.engine import Engine
from leafbeam.errors import ConflictError, DataError, LockedError, RuleError
from leafbeam.index import Trie
from leafbeam.ingest import CatalogWriter
from leafbeam.live import disk
from leafbeam.serve import Access
from leafbeam.serve.app import MAX_PENDING
from tests.fixtures.servers import served
from tests.serve.running import opened, thread

NDJSON = {"content-type": "application/x-ndjson"}
RECOMMEND = "/v1/recommend"


def lines(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"content": "\n".join(map(json.dumps, rows)), "headers": NDJSON}


def answered(client: TestClient, **body: Any) -> set[int]:
    answer = client.post(RECOMMEND, json={"num_items": 200, "num_beams": 200, **body})
    assert answer.status_code == 200, answer.text
    return set(answer.json()["item_ids"])


def test_a_change_is_visible_in_the_next_request_and_after_a_restart(shop):
    every = set(shop.item_ids)
    with served(shop) as client:
        answer = client.put("/v1/items", **lines({"item_id": 7, "codes": [1, 2], "title": "new", "price": 3, "stock": 1}))
        assert answer.json() == {"inserted": 1, "updated": 0, "deleted": 0, "ignored": 0, "number": 1}
        assert answered(client) == every | {7}
        assert 7 in answered(client, rules=["cheap", "in_stock"])
        assert client.patch("/v1/items", **lines({"item_id": 7, "price": 30})).json()["updated"] == 1
        assert 7 not in answered(client, rules=["cheap"])
        assert client.delete("/v1/items/1000").json()["deleted"] == 1
        found = client.get("/v1/items/7").json()
        assert found["attributes"] == {"title": "new", "price": 30, "stock": 1}
        assert (found["codes"], found["rules"], found["index_version"][-2:]) == ([1, 2], ["in_stock"], "+2")
    with served(shop) as client:
        assert answered(client) == every - {1000} | {7}
        info = client.get("/v1/catalog").json()
        assert (info["num_items"], info["num_changed"], info["writable"]) == (100, 2, True)
        assert info["columns"] == {"title": "string", "price": "int64", "stock": "int64"}
        assert info["reason"] == "there is no encoder here"
        client.put("/v1/items", json=[{"item_id": 8, "codes": [0, 0]}, {"item_id": 9, "codes": [0, 1]}])
        assert {8, 9} <= answered(client)
        body = client.request("DELETE", "/v1/items?missing=ignore", **lines({"item_id": 8}, {"item_id": 55}))
        assert (body.json()["deleted"], body.json()["ignored"]) == (1, 1)
        assert client.post("/v1/catalog/compact").status_code == 200


def test_rows_that_others_wrote_and_rules_of_the_file_are_read_at_a_reload(shop):
    with served(shop) as client:
        assert 1000 in answered(client, rules=["cheap"])
        with duckdb.connect(str(shop.files[2])) as table:
            table.execute("UPDATE items SET price = 99 WHERE item_id = 1000")
        assert 1000 in answered(client, rules=["cheap"])
        reloaded = client.post("/v1/catalog/reload")
        assert {rule["name"]: rule["error"] for rule in reloaded.json()["rules"]} == {
            "cheap": None,
            "in_stock": None,
            "none": None,
        }
        assert 1000 not in answered(client, rules=["cheap"])
        assert 'leafbeam_rule_reloads_total{outcome="ok"} 1.0' in client.get("/metrics").text
        assert client.post("/v1/catalog/reload", headers={"origin": "https://other.example.com"}).status_code == 403


@pytest.mark.parametrize("body_of", [lines, lambda *rows: {"json": rows}, lambda *rows: {"json": rows[0]}])
def test_the_codes_of_an_item_have_one_name_in_and_out(shop, body_of):
    """A14: the answer's field can be sent back as it came, in every type of body; another name is refused with this one."""
    with served(shop) as client:
        item = {"item_id": 1, "codes": [0, 1], "price": 1}
        assert client.put("/v1/items", **body_of(item)).json()["inserted"] == 1
        found = client.get("/v1/items/1").json()
        assert found["codes"] == [0, 1]
        answer = client.post(RECOMMEND, json={"num_items": 200, "num_beams": 200}).json()
        codes = dict(zip(answer["item_ids"], answer["codes"], strict=True))
        assert codes[1] == [0, 1]
        assert client.patch("/v1/items", **body_of({"item_id": 1, "codes": codes[1000]})).json()["updated"] == 1
        assert client.get("/v1/items/1").json()["codes"] == codes[1000]
        for name in ("sid", "sids", "Codes"):
            refused = client.put("/v1/items", **body_of({"item_id": 2, name: [0, 1], "price": 1}))
            (problem,) = refused.json()["error"]["lines"].values()
            assert f"no column {name!r}: the table has" in problem
            assert "a line may also have codes or vector" in problem


def test_a_batch_with_wrong_lines_changes_nothing_and_names_every_one(shop):
    with served(shop) as client:
        content = '{"item_id": 1, "codes": [0, 0]}\n{"item_id": 2}\n{"item_id": 3, "codes": [9, 9]}\nnonsense\n'
        answer = client.put("/v1/items", content=content, headers=NDJSON)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], list(error["lines"])) == (422, "BatchError", ["2", "3", "4"])
        assert "there is no encoder here" in error["lines"]["2"]
        assert "3 of 4 lines are wrong, so nothing was changed" in error["message"]
        assert client.get("/v1/items/1").status_code == 404
        assert answered(client) == set(shop.item_ids)


@pytest.mark.parametrize(
    ("method", "path", "status", "options"),
    [
        ("PUT", "/v1/items", 415, {"content": b"{}", "headers": {"content-type": "text/plain"}}),
        ("PUT", "/v1/items", 415, {"content": b"{}"}),
        ("PUT", "/v1/items", 422, {"content": b"", "headers": NDJSON}),
        ("PUT", "/v1/items", 400, {"content": b"[", "headers": {"content-type": "application/json"}}),
        ("PUT", "/v1/items", 413, {"content": b" " * (9 << 20), "headers": NDJSON}),
        (
            "PUT",
            "/v1/items",
            422,
            {**lines({"item_id": 1, "codes": [0, 0]}), "headers": {**NDJSON, "idempotency-key": "x" * 256}},
        ),
        ("DELETE", "/v1/items?missing=maybe", 422, lines({"item_id": 1})),
        ("DELETE", "/v1/items/77", 404, {}),
        ("DELETE", "/v1/items/seven", 404, {}),
        ("GET", "/v1/items/77", 404, {}),
        ("GET", "/v1/items/" + "9" * 400, 404, {}),
        ("GET", "/v1/items/--5", 404, {}),
        ("GET", "/v1/items/-" + "9" * 30, 404, {}),
        ("GET", "/v1/items/%D9%A3", 404, {}),
        ("GET", "/v1/rules/none-such", 404, {}),
        ("DELETE", "/v1/rules/none-such", 404, {}),
        ("DELETE", "/v1/rules/cheap", 409, {}),
        ("PUT", "/v1/rules/cheap", 422, {"json": {"where": "no_such_column > 1"}}),
        ("PUT", "/v1/rules/9x", 422, {"json": {"where": "true"}}),
        ("PUT", "/v1/rules/x", 422, {"json": {"where": 3}}),
        ("GET", "/v1/boosts/none-such", 404, {}),
        ("GET", "/v1/boosts/cheap", 404, {}),
        ("DELETE", "/v1/boosts/none-such", 404, {}),
        ("DELETE", "/v1/boosts/cheap", 404, {}),
        ("PUT", "/v1/boosts/cheap", 422, {"json": {"expression": "1"}}),
        ("PUT", "/v1/boosts/x", 422, {"json": {"expression": "price < 3"}}),
        ("PUT", "/v1/boosts/x", 422, {"json": {"expression": "ln(price - price)"}}),
        ("PUT", "/v1/boosts/x", 422, {"json": {"where": "true"}}),
        ("PUT", "/v1/rules/x", 422, {"json": {"where": "true", "refresh": "soon"}}),
        ("POST", "/v1/catalog/rollback", 422, {"json": {}}),
        ("POST", "/v1/catalog/rollback", 422, {"json": {"snapshot": "../../etc"}}),
        ("POST", "/v1/catalog/snapshot", 422, {"json": {"name": "a/b"}}),
        ("DELETE", "/v1/catalog/snapshots/none", 422, {}),
        ("POST", "/v1/items", 405, {}),
    ],
)
def test_a_wrong_request_is_a_named_error(first_changes, method, path, status, options):
    answer = first_changes.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_wrong_method_is_answered_with_those_of_all_routes_at_the_path(first_changes):
    for path, allowed in (("/v1/recommend", "POST"), ("/v1/items", "DELETE, GET, HEAD, PATCH, PUT")):
        answer = first_changes.request("OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json()["error"]["message"] == f"{path} takes {allowed}, not OPTIONS"


@pytest.fixture(scope="module")
def first_changes(first_shop, tmp_path_factory):
    import shutil

    from tests.serve.conftest import Shop

    folder = tmp_path_factory.mktemp("changes")
    shutil.copytree(first_shop.directory, folder / "shop")
    with served(Shop(directory=folder / "shop")) as client:
        yield client


def test_a_retry_with_the_same_key_changes_nothing_also_after_a_restart(shop):
    put = lines({"item_id": 1, "codes": [0, 0], "price": 5})
    put["headers"] = {**NDJSON, "Idempotency-Key": "first"}
    with served(shop) as client:
        first = client.put("/v1/items", **put).json()
        client.delete("/v1/items/1")
        assert client.put("/v1/items", **put).json() == first
        assert client.get("/v1/items/1").status_code == 404
        other = client.put("/v1/items", **{**put, "content": '{"item_id": 2, "codes": [0, 0]}'})
        assert (other.status_code, other.json()["error"]["type"]) == (409, "ConflictError")
    with served(shop) as client:
        assert client.put("/v1/items", **put).json() == first
        assert client.get("/v1/items/1").status_code == 404


def test_a_boost_is_put_listed_counted_and_deleted(shop):
    with served(shop) as client:
        answer = client.put("/v1/boosts/margin", json={"expression": "price / 10", "refresh": "1h"})
        assert answer.status_code == 200
        boost = answer.json()
        assert (boost["name"], boost["expression"], boost["refresh_s"], boost["error"]) == ("margin", "price / 10", 3600, None)
        assert client.put("/v1/items", **lines({"item_id": 1, "codes": [0, 0], "price": 2})).status_code == 200
        assert client.get("/v1/boosts/margin").json()["num_items"] == boost["num_items"] + 1
        assert [found["name"] for found in client.get("/v1/boosts").json()["boosts"]] == ["margin"]
        assert "margin" not in [found["name"] for found in client.get("/v1/rules").json()["rules"]]
        metrics = client.get("/metrics").text
        assert 'leafbeam_boost_failed{boost="margin"} 0.0' in metrics
        assert 'leafbeam_boost_items{boost="margin"}' in metrics
        assert 'rule="margin"' not in metrics
    with served(shop) as client:
        assert client.delete("/v1/boosts/margin").json()["expression"] == "price / 10"
        assert client.get("/v1/boosts/margin").status_code == 404


def test_a_rule_that_new_data_break_keeps_no_server_from_starting(shop):
    with served(shop) as client:
        assert client.put("/v1/rules/big", json={"where": "price * 100000000000000000 % 2 = 0"}).status_code == 200
        assert client.patch("/v1/items", **lines({"item_id": 1001, "price": 1000})).status_code == 200
        assert len(answered(client, rules=["big"])) == 99  # without the changed item
    with served(shop) as client:
        assert answered(client, rules=["cheap"])
        refused = client.post(RECOMMEND, json={"rules": ["big"]})
        assert (refused.status_code, "could not be evaluated" in refused.json()["error"]["message"]) == (422, True)
        assert "Overflow" in client.get("/v1/rules/big").json()["error"]
        assert "big" in [rule["name"] for rule in client.get("/v1/rules").json()["rules"]]
        client.patch("/v1/items", **lines({"item_id": 1001, "price": 1}))
        client.post("/v1/catalog/reload")
        assert len(answered(client, rules=["big"])) == 100
        client.patch("/v1/items", **lines({"item_id": 1001, "price": 1000}))
    with served(shop) as client:
        assert client.delete("/v1/rules/big").status_code == 200
        assert client.get("/v1/rules/big").status_code == 404
    (shop.files[3]).write_text("[rules]\ncheap = 'prize < 20'\n")
    with pytest.raises(RuleError, match="prize"), served(shop):
        pass


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, 200),
        ({"host": "shop.example.com"}, 403),
        ({"host": "10.0.0.7"}, 403),
        ({"host": ""}, 403),
        ({"host": "127.0.0.1:8000", "origin": "http://shop.example.com"}, 403),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_without_keys_changes_come_from_this_machine_alone(first_changes, headers, status):
    before = first_changes.get("/v1/catalog").json()["num_items"]
    answer = first_changes.put("/v1/items", content='{"item_id": 1000, "stock": 1}', headers={**NDJSON, **headers})
    assert answer.status_code == status
    for method, path in (("POST", "/v1/catalog/compact"), ("GET", "/v1/rules"), ("DELETE", "/v1/items/1000")):
        if status == 403:
            assert first_changes.request(method, path, headers=headers).status_code == 403
    assert first_changes.post(RECOMMEND, json={}, headers=headers).status_code == 200
    assert first_changes.get("/v1/catalog").json()["num_items"] == before


def test_changes_can_be_off_or_open(shop):
    with served(shop, changes="off", access=Access(changes="off", reason="not here")) as client:
        answer = client.put("/v1/items", **lines({"item_id": 1, "codes": [0, 0]}))
        assert (answer.status_code, answer.json()["error"]["message"]) == (403, "not here")
        assert client.get("/v1/catalog").json()["writable"] is False
        assert answered(client) == set(shop.item_ids)
    assert not (shop.directory / "live").exists()
    with served(shop, changes="on", access=Access(changes="open")) as client:
        put = lines({"item_id": 1, "codes": [0, 0]})
        put["headers"] = {**NDJSON, "host": "shop.example.com"}
        assert client.put("/v1/items", **put).status_code == 200


@pytest.mark.slow
def test_a_second_server_of_a_run_reads_and_says_so(shop):
    with served(shop) as first:
        first.put("/v1/items", **lines({"item_id": 1, "codes": [0, 0], "price": 1}))
        first.put("/v1/rules/dear", json={"where": "price >= 20"})
        with served(shop) as second:
            assert answered(second) == set(shop.item_ids) | {1}
            assert len(answered(second, rules=["dear"])) == 40
            answer = second.delete("/v1/items/1")
            assert (answer.status_code, "only one may write" in answer.json()["error"]["message"]) == (409, True)
            assert str(shop.directory) not in answer.text + second.get("/v1/catalog").text
        with pytest.raises(LockedError), served(shop, changes="on"):
            pass
    Trie.build(np.zeros((1, 2), np.int64), (8, 16), item_ids=[5]).save(shop.files[1])
    with pytest.raises(ConflictError, match="because it was built again"), served(shop):
        pass


def test_a_table_in_use_or_a_full_disk_is_a_503_and_nothing_changes(shop, monkeypatch, caplog):
    def check_private(answer: httpx.Response) -> None:
        message = answer.json()["error"]["message"]
        assert "/" not in message
        assert "(PID" not in message
        assert answer.headers["x-request-id"] in message
        assert answer.headers["x-request-id"] in caplog.text

    with served(shop) as client:
        client.put("/v1/items", **lines({"item_id": 1, "codes": [0, 0]}))
        with monkeypatch.context() as patch:
            for name in ("_connected", "_shared"):
                patch.setattr(ItemsTable, name, _raising(duckdb.IOException("held in /x (PID 7)")))
            answer = client.put("/v1/items", **lines({"item_id": 2, "codes": [0, 0]}))
            for path in ("/v1/items?query=x", "/v1/items/1000", "/v1/catalog"):
                found = client.get(path)
                assert found.status_code == 503
                check_private(found)
        check_private(answer)
        assert "held in /x (PID 7)" in caplog.text
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "catalog")
        assert answer.headers["retry-after"] == "1"
        with monkeypatch.context() as patch:
            patch.setattr(disk, "write", _raising(OSError(28, "No space left on device")))
            answer = client.put("/v1/items", **lines({"item_id": 2, "codes": [0, 0]}))
        check_private(answer)
        assert (answer.status_code, "No space left" in answer.json()["error"]["message"]) == (503, True)
        assert answered(client) == set(shop.item_ids) | {1}
        assert client.put("/v1/items", **lines({"item_id": 2, "codes": [0, 0]})).json()["inserted"] == 1


def _raising(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_changes_that_wait_are_bounded(shop, monkeypatch):
    go = threading.Event()
    monkeypatch.setitem(MAX_PENDING, "changes", 2)
    with served(shop) as client:
        patch = CatalogWriter.patch
        monkeypatch.setattr(CatalogWriter, "patch", lambda self, *rest: (go.wait(20), patch(self, *rest))[1])
        statuses: list[int] = []

        def send() -> None:
            statuses.append(client.patch("/v1/items", **lines({"item_id": 1000, "stock": 1})).status_code)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for one in threads:
            one.start()
        while statuses.count(429) < 2:
            assert len(statuses) <= 2
        assert answered(client) == set(shop.item_ids)  # recommendations do not wait
        go.set()
        for one in threads:
            one.join(20)
        assert sorted(statuses) == [200, 200, 429, 429]


def test_look_ups_and_interactions_that_wait_hold_up_no_recommendation(shop, monkeypatch):
    monkeypatch.setitem(MAX_PENDING, "look-ups", 40)  # more than Python's default executor has threads
    go, waiting = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any, **__: Any) -> Any:
        waiting.release()
        go.wait(20)
        raise DataError("the table is in use")

    monkeypatch.setattr(Catalog, "schema", slow)
    monkeypatch.setattr(Engine, "observe", slow)
    with served(shop) as client:
        calls = [lambda: client.get("/v1/items?query=x").status_code] * 40
        calls += [lambda: client.post("/v1/interactions", json={"interactions": []}).status_code] * 40
        with ThreadPoolExecutor(len(calls)) as clients:
            try:
                statuses = [clients.submit(call) for call in calls]
                assert waiting.acquire(timeout=20)
                assert waiting.acquire(timeout=20)
                answer = client.post(RECOMMEND, json={"history": [1000] * 600})  # so many ids are looked up in a thread
                assert answer.status_code == 200, answer.text
                assert not any(status.done() for status in statuses)
            finally:
                go.set()
        assert {status.result() for status in statuses} == {503, 500}


def test_half_a_batch_and_a_batch_that_is_too_long_change_nothing(shop):
    head = b"PUT /v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
    with opened(shop) as (engine, writer), thread(engine, writer=writer) as server:
        for length, answer in ((1000, b""), (10**9, b"HTTP/1.1 413 ")):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(head % length + b'{"item_id": 1, "codes": [0, 0]}\n')
                if answer:
                    assert connection.recv(13) == answer  # before its body is there
        assert httpx.get(f"{server.url}/v1/items/1").status_code == 404
        assert httpx.get(f"{server.url}/v1/catalog").json()["num_items"] == len(shop.item_ids)
