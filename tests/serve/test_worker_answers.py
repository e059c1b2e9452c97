"""HTTP in processes of its own answers as one process does: every route of the OpenAPI document, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from leafbeam.retrieve import ItemMemory
from leafbeam.serve import Exposure
from tests.serve.conftest import Shop
from tests.serve.running import PATIENCE, URL, live

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
LONG = json.dumps({"history": list(range(5000))}).encode()
REQUESTS: list[tuple[str, str, bytes, dict[str, str]]] = [
    ("POST", URL, b"{}", JSON),
    ("POST", URL, b'{"history": [1000, 1001, "x"], "rules": ["cheap"], "num_items": 5}', JSON),
    (
        "POST",
        URL,
        b'{"history": [1000, 1001, 7], "rules": ["cheap"], "num_items": 5, "channel": "model", "explain": true}',
        JSON,
    ),
    ("POST", URL, b'{"filter": "cheap & in_stock", "deny_item_ids": [1004], "scoring": "allowed"}', JSON),
    ("POST", URL, b'{"rules": ["dear"]}', JSON),
    ("POST", URL, b'{"num_items": -1}', JSON),
    ("POST", URL, b'{"num_items": 100000}', JSON),
    ("POST", URL, b'{"num_items": "many"}', JSON),
    ("POST", URL, b'{"items": 3}', JSON),
    ("POST", URL, b'{"history": ["\\ud800"]}', JSON),
    ("POST", URL, b'{"\\ud800": 1}', JSON),
    ("POST", URL, b'{"deadline_ms": 0}', JSON),
    ("POST", URL, b'{"deadline_ms": -1e300}', JSON),
    ("POST", URL, b"[" * 5000, JSON),
    ("POST", URL, b"{x", JSON),
    ("POST", URL, b"\xff\x00", JSON),
    ("POST", URL, b"", JSON),
    ("POST", URL, b"{}", {"content-type": "text/plain"}),
    ("POST", URL, LONG, JSON),
    ("POST", URL, b" " * 70_000, JSON),
    ("POST", URL, b'{"history": [1000]}' + b" " * 50_000, JSON),
    ("GET", URL, b"", {}),
    ("DELETE", URL, b"{}", JSON),
    ("POST", "/v1/%72ecommend", b"{}", JSON),
    ("POST", URL + "?a=%20b", b"{}", {**JSON, "x-request-id": "mine"}),
    ("HEAD", "/healthz", b"", {}),
    ("GET", "/healthz", b"", {}),
    ("GET", "/nothing/%e4%20?q=1", b"", {}),
    ("GET", "/docs", b"", {}),
    ("GET", "/openapi.json", b"", {}),
    ("GET", "/", b"", {}),
    ("GET", "/v1/rules", b"", {}),
    ("GET", "/v1/items/1000", b"", {}),
    ("GET", "/v1/items/1000", b"", {"host": "shop.example.com"}),
    ("GET", "/v1/rules", b"", {"host": "shop.example.com"}),
    ("PUT", "/v1/items", b'{"item_id": 1, "price": 3, "codes": [1, 2]}', LINES),
    ("PUT", "/v1/items", b"{" * 90_000, LINES),
    ("POST", "/v1/recommend", b'{"num_items": 100, "rules": ["cheap"]}', JSON),
    ("POST", "/v1/completions", b'{"model": "items", "prompt": ["1000"]}', JSON),
    ("POST", "/v1/completions", b'{"model": "none", "prompt": "x"}', JSON),
    ("OPTIONS", URL, b"", {"origin": "https://a.example", "access-control-request-method": "POST"}),
    ("GET", "/v1/items?query=thing&limit=3&rule=cheap", b"", {}),
    ("GET", "/v1/items?limit=many", b"", {}),
    ("PATCH", "/v1/items", b'{"item_id": 1, "price": 30}', {**LINES, "idempotency-key": "a"}),
    ("PATCH", "/v1/items", b'{"item_id": 1, "price": 30}', {**LINES, "idempotency-key": "a"}),
    ("PATCH", "/v1/items", b'{"item_id": 1, "price": 31}', {**LINES, "idempotency-key": "a"}),
    ("PATCH", "/v1/items", b'{"item_id": 1, "price": "x"}\n{"item_id": 55}', LINES),
    ("PUT", "/v1/items", b"{}", {"content-type": "text/plain"}),
    ("GET", "/v1/items/1", b"", {}),
    ("GET", "/v1/items/a/b%2Fc", b"", {}),
    ("PUT", "/v1/rules/dear", b'{"where": "price > 30"}', JSON),
    ("PUT", "/v1/rules/wrong", b'{"where": "no_column > 30"}', JSON),
    ("GET", "/v1/rules/dear", b"", {}),
    ("POST", URL, b'{"num_items": 100, "rules": ["dear"]}', JSON),
    ("POST", "/v1/catalog/snapshot", b'{"name": "one"}', JSON),
    ("POST", "/v1/catalog/snapshot", b'{"name": "../one"}', JSON),
    ("DELETE", "/v1/items?missing=ignore", b'{"item_id": 1}\n{"item_id": 55}', LINES),
    ("DELETE", "/v1/rules/dear", b"", {}),
    ("GET", "/v1/boosts", b"", {}),
    ("PUT", "/v1/boosts/margin", b'{"expression": "price / 10"}', JSON),
    ("PUT", "/v1/boosts/wrong", b'{"expression": "price > 10"}', JSON),
    ("GET", "/v1/boosts/margin", b"", {}),
    ("DELETE", "/v1/boosts/margin", b"", {}),
    ("GET", "/v1/rules/dear", b"", {}),
    ("POST", "/v1/catalog/rollback", b'{"snapshot": "one"}', JSON),
    ("POST", "/v1/catalog/rollback", b'{"snapshot": "two"}', JSON),
    ("DELETE", "/v1/items/1", b"", {}),
    ("GET", "/v1/catalog", b"", {}),
    ("DELETE", "/v1/catalog/snapshots/one", b"", {}),
    ("POST", "/v1/catalog/reload", b"", {}),
    ("POST", "/v1/model/reload", b"{}", JSON),
    ("POST", "/v1/model/reload", b'{"directory": "/nothing"}', JSON),
    ("POST", "/v1/model/reload", b"", {}),
    ("POST", "/v1/interactions", b'{"interactions": [{"history": [1005], "item_id": 1042}]}', JSON),
    ("POST", "/v1/interactions", b'{"interactions": 3}', JSON),
    ("POST", URL, b'{"history": [1005], "channel": "memory"}', JSON),
    ("POST", "/v1/chat/completions", b'{"model": "items", "messages": []}', JSON),
    ("GET", "/v1/models", b"", {}),
    ("GET", "/v1/slow-batches", b"", {}),
    ("GET", "/readyz", b"", {}),
]
COMPACT = "POST", "/v1/catalog/compact", b"", {}  # the last, because it runs in the background
IN_PARTS = ((URL, b'{"num_items": 3}'), ("/v1/items", b'{"item_id": 2, "price": 3, "codes": [1, 3]}'))
OF_NOW = re.compile(r'"age_s":[0-9.e-]+|"created":("[^"]+"|[0-9]+)|"id":"cmpl-[^"]+"')
OF_THE_MOMENT = {"timings_ms", "batch_size", "created", "http_workers", "threads", "batches", "seconds"}


def answers(url: str) -> list[Any]:
    """Statuses, headers and contents, without what differs from one moment to the next."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        found = [answer(client, *request) for request in REQUESTS]
        for path, content in IN_PARTS:
            parts = iter([content[:8], content[8:9], content[9:]])
            method, kind = ("PUT", LINES) if path == "/v1/items" else ("POST", JSON)
            found.append(answer(client, method, path, parts, kind))
        found.append(answer(client, *COMPACT)[:3])
        lines = client.get("/metrics").text.splitlines()
    found.append([line.split(" ")[2] for line in lines if line.startswith("# TYPE")])
    counts = re.compile(r"leafbeam_(refused|requests|completions|access_refused|answered)_total")
    return found + [line for line in lines if counts.match(line)]


def answer(client: httpx.Client, method: str, path: str, content: Any, headers: dict[str, str]) -> Any:
    came = client.request(method, path, content=content, headers=headers)
    assert len(came.headers["x-request-id"]) > 2
    shown = {name: value for name, value in came.headers.items() if name not in ("date", "x-request-id", "content-length")}
    text: Any = OF_NOW.sub('"now":0', came.text)
    if came.content and came.headers.get("content-type") == "application/json":
        text = {name: value for name, value in json.loads(text).items() if name not in OF_THE_MOMENT}
    return method, path, came.status_code, shown, text


@pytest.mark.slow
def test_answers_and_counts_are_those_of_one_process(shop: Any, tmp_path: Path) -> None:
    ItemMemory.fit(list(shop.item_ids), np.array([0, 2]), np.array([0, 1])).save(shop.memory)
    shutil.copytree(shop.directory, tmp_path / "other")
    options: dict[str, Any] = {
        "exposure": Exposure(origins=("https://a.example",)),
        "max_body_bytes": 60_000,
        "max_batch_bytes": 80_000,
    }
    with live(shop, **options) as url:
        alone = answers(url)
        document = httpx.get(url + "/openapi.json").json()
    asked = {(method, path.partition("?")[0]) for method, path, _, _ in [*REQUESTS, COMPACT]} | {("GET", "/metrics")}
    for path, methods in document["paths"].items():
        template = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
        for method in methods:
            assert any(one == method.upper() and template.fullmatch(place) for one, place in asked), (method, path)
    with live(Shop(directory=tmp_path / "other"), http_workers=2, **options) as url:
        assert httpx.get(url + "/readyz").json()["http_workers"] == 2
        for mine, theirs in zip(answers(url), alone, strict=True):
            assert mine == theirs
