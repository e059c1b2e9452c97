"""The core declines what cannot be answered in time before its application runs, with the application's answer and counts."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from leafbeam.engine import Engine, Request
from leafbeam.engine.scheduler import Scheduler
from leafbeam.errors import OverloadedError, UnavailableError
from leafbeam.serve import Access, Server
from leafbeam.serve.exposure import Exposure
from leafbeam.serve.keys import KeyFile, add_key
from leafbeam.serve.observation import Observation
from tests.serve.metric_of import metric
from tests.serve.running import PATIENCE, URL, thread


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A saturated engine without time for requests of 3 items; the paths for which the application has run."""
    paths: list[str] = []
    run = Starlette.__call__

    def check(engine: Engine, request: Request, *, arrived: float) -> None:
        if request.num_items == 3:
            raise OverloadedError("later", reason="queue_full", retry_after_s=2.5)
        if request.num_items == 5:
            raise UnavailableError("stopping", reason="draining")

    async def counted(app: Starlette, scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope.get("path", ""))
        await run(app, scope, receive, send)

    monkeypatch.setattr(Engine, "check_admission", check)
    monkeypatch.setattr(Scheduler, "is_saturated", True)
    monkeypatch.setattr(Starlette, "__call__", counted)
    return paths


@contextmanager
def served(engine: Engine, workers: int = 1, **options: Any) -> Iterator[httpx.Client]:
    with thread(engine, http_workers=workers, **options) as server, _client(server) as client:
        yield client


def _client(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=PATIENCE, headers={"x-request-id": "mine"})


def _shown(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    headers = {name: answer.headers.get(name, "") for name in ("retry-after", "x-request-id", "content-type")}
    return answer.status_code, answer.json(), headers


def test_what_is_declined_is_answered_and_counted_as_the_application_does_it(first_shop: Any, runs: list[str]) -> None:
    shown: list[Any] = []
    for workers in (0, 1):
        with served(first_shop.engine(), workers) as client:
            runs.clear()
            shown.append(_shown(client.post(URL, json={"num_items": 3})))
            assert runs == ([URL] if workers == 0 else [])
            shown.append(metric(client, 'leafbeam_requests_total{outcome="overloaded"}'))
            shown.append(metric(client, 'leafbeam_refused_total{reason="queue_full"}'))
            shown.append(metric(client, 'leafbeam_request_seconds_count{outcome="overloaded"}'))
    assert shown[:4] == shown[4:]
    assert shown[0][0] == 429
    assert shown[0][1]["error"]["retry_after_ms"] == 2500
    assert shown[0][2]["retry-after"] == "3"
    assert shown[1:4] == [1, 1, 1]


def test_what_is_admitted_or_wrong_gets_its_answer_from_the_application(first_shop: Any, runs: list[str]) -> None:
    with served(first_shop.engine()) as client:
        expected = {
            b"{}": 200, b'{"num_items": 4}': 200, b'{"num_items": 5}': 503, b'{"num_items": -1}': 422,
            b'{"rules": ["no"]}': 422, b"{x": 400, b'{"num_items": "many"}': 422, b'{"history": ["x"], "deadline_ms": -1}': 422,
        }  # fmt: skip
        runs.clear()
        for body, status in expected.items():
            answer = client.post(URL, content=body, headers={"content-type": "application/json"})
            assert (body, answer.status_code) == (body, status)
        assert runs == [URL] * len(expected)
        answer = client.post(URL, json={"num_items": 3}, headers={"origin": "http://another.example"})
        assert (answer.status_code, len(runs)) == (429, len(expected))


@pytest.mark.parametrize("path", [URL, "/v1/completions"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_overloaded_server_asks_for_a_key_first(
    first_shop: Any, runs: list[str], tmp_path: Path, path: str, workers: int
) -> None:
    """A5"""
    key = {"authorization": f"Bearer {add_key(tmp_path / 'keys.json', 'shop', 'read')}"}
    bodies = {
        URL: {"num_items": 3},
        "/v1/completions": {"model": "items", "prompt": "", "n": 3},
    }
    with served(first_shop.engine(), workers, access=Access(keys=KeyFile(tmp_path / "keys.json"))) as client:
        for _ in range(3):  # also after a refusal of the same request
            known = client.post(path, json=bodies[path], headers=key)
            assert known.status_code in (200, 400, 422, 429), known.text
            for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {key['authorization'][7:]}"}):
                assert client.post(path, json=bodies[path], headers=headers).status_code == 401


def test_a_worker_reads_no_body_of_a_client_without_a_key(first_shop: Any, tmp_path: Path) -> None:
    """A5: the answer comes though the body never does."""
    key = add_key(tmp_path / "keys.json", "shop", "read")
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n"
    with thread(first_shop.engine(), http_workers=1, access=Access(keys=KeyFile(tmp_path / "keys.json"))) as server:
        for header in ("", "Authorization: Bearer no\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
                connection.sendall(f"{head}{header}\r\n".encode())
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")
        with _client(server) as client:
            assert client.post(URL, json={}, headers={"authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.parametrize("workers", [0, 1])
def test_pages_of_named_sites_read_errors_too(first_shop: Any, runs: list[str], workers: int) -> None:
    """A9: 429 of an overloaded server, with and without HTTP workers."""
    site = "https://shop.example.com"
    with served(first_shop.engine(), workers, exposure=Exposure(origins=(site,))) as client:
        for body, status in ({"num_items": 3}, 429), ({"num_items": 5}, 503), ({"num_items": -1}, 422), ({}, 200):
            answer = client.post(URL, json=body, headers={"origin": site})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, site)
            other = client.post(URL, json=body, headers={"origin": "https://other.example.com"})
            assert "access-control-allow-origin" not in other.headers


def test_a_server_that_logs_requests_logs_those_that_it_refuses(
    first_shop: Any, runs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "leafbeam.requests")
    with served(first_shop.engine(), observation=Observation(log="on")) as client:
        assert client.post(URL, json={"num_items": 3}).status_code == 429
    lines = [record.getMessage() for record in caplog.records if URL in record.getMessage()]
    assert len(lines) == 1
    assert json.loads(lines[0].partition(" 429 ")[2].replace("'", '"'))["status"] == 429


def test_an_item_memory_alone_needs_no_time_of_the_model(first_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Scheduler, "is_saturated", True)
    monkeypatch.setattr(Scheduler, "check_admission", lambda _, size: asked.append(size))
    engine = first_shop.engine()
    engine.check_admission(Request(channel="memory"), arrived=0.0)
    assert asked == []
    engine.check_admission(Request(channel="model"), arrived=0.0)
    assert len(asked) == 1
