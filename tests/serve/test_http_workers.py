"""HTTP in processes of its own: changes, keys and limits, and what is left when one of them is killed, stopped or hangs."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.client import HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any

import httpx
import pytest

from leafbeam.errors import ArgumentError, UnavailableError
from leafbeam.serve import Access, ConnectionLimits, Exposure, KeyFile, Server, ServerConfig, http_workers
from leafbeam.serve.frames import FrameReader, FromCore, Head, Open
from leafbeam.serve.keys import add_key
from leafbeam.serve.worker_link import WorkerLink
from leafbeam.text import TextService
from tests.serve.metric_of import metric
from tests.serve.running import PATIENCE, URL, end_under_load, live, post, process, thread, until
from tests.text.conftest import save_model
from tests.text.gate import Gate
from tests.waiting import busy, held

JSON = {"content-type": "application/json"}


def is_running(number: int) -> bool:
    """Whether a process that is not ours to wait for runs."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def workers_of(server: Server) -> list[int]:
    assert server.http_workers is not None
    return [worker.process.pid for _, worker in sorted(server.http_workers._workers.items())]


def ready_workers(url: str) -> int:
    with suppress(httpx.TransportError):
        return httpx.get(url + "/readyz", timeout=PATIENCE).json()["http_workers"]
    return -1


def test_changes_are_seen_by_the_next_request_of_any_worker(shop: Any) -> None:
    with live(shop, http_workers=2) as url:
        for price in (5, 50, 5):
            row = json.dumps({"item_id": 1, "price": price, "codes": [1, 2]})
            headers = {"content-type": "application/x-ndjson"}
            assert httpx.put(url + "/v1/items", content=row, headers=headers).status_code == 200
            for _ in range(4):  # connections of their own, so that both workers are asked
                answer = httpx.post(url + URL, json={"rules": ["cheap"], "num_items": 200, "num_beams": 200}).json()
                assert (1 in answer["item_ids"]) == (price < 20)


def test_keys_scopes_and_rates_are_those_of_the_core(first_shop: Any, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    reader, slow = add_key(path, "reader", "read"), add_key(path, "slow", "read", rate=0.001)
    with thread(first_shop.engine(), access=Access(keys=KeyFile(path)), http_workers=2) as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for content in (b"{}", b"{x", b'{"num_items": "many"}'):
                assert client.post(URL, content=content, headers=JSON).status_code == 401
            assert client.post(URL, json={}, headers={"authorization": f"Bearer {reader}"}).status_code == 200
            assert client.get("/v1/rules", headers={"authorization": f"Bearer {reader}"}).status_code == 403
        asked = [httpx.post(server.url + URL, json={}, headers={"authorization": f"Bearer {slow}"}) for _ in range(4)]
        assert [answer.status_code for answer in asked] == [200, 429, 429, 429]  # one rate, whichever worker was asked
        assert asked[-1].json()["error"]["reason"] == "key_rate"
        page = httpx.get(server.url + "/metrics", headers={"authorization": f"Bearer {reader}"}).text
        assert 'leafbeam_access_refused_total{reason="unauthorized"} 3.0' in page


def test_clients_beyond_the_limits_are_refused_by_a_worker_and_counted(first_shop: Any) -> None:
    limits = ConnectionLimits(header_s=0.3, max_header_bytes=2000)
    with thread(first_shop.engine(), connections=limits, http_workers=1) as server:
        sent = {
            b"GET / HTTP/1.1\r\nx: " + b"a" * 3000 + b"\r\n\r\n": (431, "headers_too_long"),
            b"GET / HTTP/1.1\r\nx: ": (408, "headers_too_slow"),
            b"\x16\x03\x01 nonsense\r\n\r\n": (400, "not_http"),
        }
        for data, (status, _) in sent.items():
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
                client.sendall(data)
                assert client.recv(100).startswith(b"HTTP/1.1 %d " % status)
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for _, reason in sent.values():
                until(lambda reason=reason: metric(client, f'leafbeam_connections_refused_total{{reason="{reason}"}}') == 1)


def test_answers_come_over_tls_of_a_worker(first_shop: Any, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    exposure = Exposure(certificate=chain, private_key=key)
    context = ssl.create_default_context(cafile=str(chain))
    with thread(first_shop.engine(), exposure=exposure, http_workers=1) as server, httpx.Client(verify=context) as client:
        assert client.post(server.url + URL, json={}).json()["num_valid"] == 10


# Clients that leave, and streams.


def test_a_client_that_leaves_a_worker_cancels_its_request(first_shop: Any) -> None:
    engine = first_shop.engine()
    with thread(engine, http_workers=1) as server, busy(engine.model, lambda: post(server.port)) as running:
        waiting = post(server.port)
        until(lambda: engine.scheduler.load.waiting == 1)
        waiting.close()
        until(lambda: engine.scheduler.load.waiting == 0)
        running.close()
        until(lambda: engine.counts.of("cancelled") == {"waiting": 1, "running": 1})


def test_a_deadline_counts_from_when_the_body_was_there(first_shop: Any) -> None:
    engine = first_shop.engine()
    with thread(engine, http_workers=1) as server, busy(engine.model, lambda: post(server.port)) as running:
        answer = httpx.post(server.url + URL, json={"deadline_ms": 50}, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["error"]["reason"]) in [(429, "late"), (429, "deadline_unreachable")]
        running.close()


def test_texts_stream_through_a_worker_and_end_with_their_client(tmp_path: Path, monkeypatch: Any) -> None:
    text = TextService.load(save_model(tmp_path / "tiny-lm"))
    body = {"model": "tiny-lm", "prompt": "A ", "stream": True, "max_tokens": 30, "seed": 1, "guided_regex": "[a-z]{20,30}"}
    with thread(None, text=text, http_workers=1) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        whole = client.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]["text"]
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        assert len(events) > 2
        assert "".join(event["choices"][0]["text"] for event in events) == whole
        assert client.post("/v1/completions", json={**body, "prompt": []}).json()["error"]["type"] == "invalid_request_error"
        gate = Gate(monkeypatch)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as leaving:
            content = json.dumps(body).encode()
            head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
                content
            )
            leaving.sendall(head + content)
            assert gate.waiting.wait(30)
        gate.open.set()
        until(lambda: text.worker.num_running == 0)


# Processes that are killed, stopped, or told to end.


def test_a_killed_worker_loses_its_own_connections_and_is_replaced(first_shop: Any, caplog: Any) -> None:
    with thread(first_shop.engine(), http_workers=2) as server:
        before = workers_of(server)
        for victim in before:
            os.kill(victim, signal.SIGKILL)
            until(lambda victim=victim: victim not in workers_of(server) and ready_workers(server.url) == 2)
            assert httpx.post(server.url + URL, json={}).status_code == 200
        assert set(workers_of(server)).isdisjoint(before)
        with httpx.Client(base_url=server.url) as client:
            assert metric(client, "leafbeam_http_worker_restarts_total") == 2
            assert metric(client, "leafbeam_http_workers") == 2
    assert "ended with status -9 and its connections are lost" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.full)])
def test_under_load_kills_cost_connections_alone(first_shop: Any, monkeypatch: Any, kills: int) -> None:
    monkeypatch.setattr(http_workers, "_PAUSES_S", (0.01, 0.05))
    engine = first_shop.engine()
    over = threading.Event()
    outcomes: list[object] = []

    def ask(url: str) -> None:
        while not over.is_set():
            try:
                with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                    while not over.is_set():
                        outcomes.append(client.post(URL, json={"num_items": 50}).status_code)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                outcomes.append("closed")

    with thread(engine, http_workers=2) as server:
        threads = [threading.Thread(target=ask, args=(server.url,)) for _ in range(6)]
        for one in threads:
            one.start()
        for kill in range(kills):
            victim, seen = workers_of(server)[kill % 2], len(outcomes)
            until(lambda seen=seen: len(outcomes) > seen + 20)
            os.kill(victim, signal.SIGKILL)
            until(lambda victim=victim: victim not in workers_of(server) and ready_workers(server.url) == 2)
        over.set()
        for one in threads:
            one.join(PATIENCE)
        assert set(outcomes) <= {200, "closed"}
        assert outcomes.count("closed") <= 6 * kills
        until(lambda: engine.scheduler.load.waiting == engine.scheduler.load.running == 0)
        assert server.http_workers is not None
        assert server.http_workers.num_running == 0


def test_requests_of_a_killed_worker_leave_the_engine(first_shop: Any) -> None:
    engine = first_shop.engine()
    with thread(engine, http_workers=1) as server, held(engine.model) as began:
        with post(server.port) as connection:
            assert began.wait(PATIENCE)
            os.kill(workers_of(server)[0], signal.SIGKILL)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        until(lambda: engine.counts.of("cancelled")["running"] == 1)


def test_workers_leave_short_processors_to_the_core(first_shop: Any) -> None:
    with thread(first_shop.engine(), http_workers=1) as server:
        own, worker = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, workers_of(server)[0]))
        assert worker == min(19, own + 5)


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(first_shop: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(http_workers, "_HUNG_S", 1.5)
    with thread(first_shop.engine(), http_workers=2) as server:
        stopped = workers_of(server)[0]
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: stopped not in workers_of(server) and ready_workers(server.url) == 2)
        assert httpx.post(server.url + URL, json={}).status_code == 200
    assert "HTTP worker 0 has not run for 1.5 s and is killed" in caplog.text


def test_a_worker_that_is_told_to_end_answers_first_and_is_replaced(first_shop: Any) -> None:
    engine = first_shop.engine()
    with thread(engine, http_workers=1) as server:
        before = workers_of(server)
        os.kill(before[0], signal.SIGHUP)  # logged, nothing else
        os.kill(before[0], signal.SIGINT)
        with busy(engine.model, lambda: post(server.port)) as connection:
            os.kill(before[0], signal.SIGTERM)
        with connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: workers_of(server) != before and ready_workers(server.url) == 1)


@pytest.mark.slow
def test_sigterm_answers_what_runs_and_leaves_no_process(shop: Any) -> None:
    with process(shop, http_workers=2) as server:
        server.child.send_signal(signal.SIGHUP)
        until(lambda: httpx.post(server.url + URL, json={"num_items": 1}).json()["rules_generation"] == 2)
        assert len(server.http_workers) == 2
        end_under_load(server)
        assert not any(map(is_running, server.http_workers))
        lines = [json.loads(line) for line in server.log.splitlines()]
        assert not [line for line in lines if line["level"] == "ERROR"]


@pytest.mark.slow
def test_without_its_core_a_worker_answers_503_and_ends(shop: Any) -> None:
    with process(shop, http_workers=2) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert client.post(URL, json={}).status_code == 200
            server.child.send_signal(signal.SIGSTOP)
            running = [post(port) for _ in range(6)]
            time.sleep(0.2)  # so that the workers have sent them; a later one is refused or closed, and passes too
            server.child.send_signal(signal.SIGKILL)
            server.child.wait(PATIENCE)
            for connection in running:
                with connection, suppress(RemoteDisconnected), HTTPResponse(connection) as response:
                    response.begin()
                    assert (response.version, response.status) == (11, 503)
                    assert response.getheader("retry-after") == "1"
                    error = json.loads(response.read())["error"]
                    assert (error["type"], error["reason"]) == ("UnavailableError", "core_gone")
        until(lambda: not any(map(is_running, server.http_workers)))
        assert server.log.count("ends: the core is gone") == 2
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


@pytest.mark.slow
def test_while_its_core_hangs_a_worker_answers_503_after_the_deadline(shop: Any) -> None:
    with process(shop, http_workers=2) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        assert client.post(URL, json={}).status_code == 200
        server.child.send_signal(signal.SIGSTOP)
        try:
            answer = client.post(URL, json={"deadline_ms": 300})
        finally:
            server.child.send_signal(signal.SIGCONT)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "core_silent")
        assert int(answer.headers["retry-after"]) >= 1
        assert len(answer.headers["x-request-id"]) > 2
        assert client.post(URL, json={}).status_code == 200


def test_a_core_that_takes_nothing_gets_a_bounded_queue_and_then_503() -> None:
    async def run() -> list[str]:
        core, ours = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        link = WorkerLink(FrameReader(FromCore, 1000), lambda reason: None)
        await loop.create_unix_connection(lambda: link, sock=ours)
        head = Head("POST", URL, URL.encode(), b"", [], "http", "1.1", None, None)
        gone = asyncio.Event()

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(message)

        async def forward() -> str:
            try:
                await link.forward(Open(0, head, b"x" * (1 << 20), arrived=0.0), receive, send, deadline=loop.time() + 60)
            except UnavailableError as error:
                return error.reason
            return "left"

        tasks = [asyncio.create_task(forward()) for _ in range(12)]
        await asyncio.sleep(0.1)
        gone.set()
        reasons = list(await asyncio.gather(*tasks))
        core.close()
        link.close()
        return reasons

    reasons = asyncio.run(run())
    assert sorted(set(reasons)) == ["core_busy", "left"]
    assert reasons.count("left") in (8, 9, 10)


def test_a_number_of_workers_that_cannot_be_is_refused(first_shop: Any) -> None:
    engine = first_shop.engine()
    for count in (-1, 65):
        with pytest.raises(ArgumentError, match="http_workers must be from 0"):
            Server(engine, config=ServerConfig(port=0, http_workers=count))


def test_a_worker_that_does_not_start_is_a_named_error(first_shop: Any, monkeypatch: Any) -> None:
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: popen([*words[:3], "leafbeam.none"], **options))
    with pytest.raises(UnavailableError, match="HTTP worker 0 did not start"):
        Server(first_shop.engine(), config=ServerConfig(port=0, http_workers=1)).run()


def test_the_process_of_a_worker_loads_no_engine() -> None:
    heavy = ("torch", "numba", "numpy", "duckdb", "pyarrow", "leafbeam.engine", "leafbeam.catalog")
    program = f"import sys, leafbeam.serve.http_process; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
