"""Faults over real HTTP, with metrics."""

import http.client
import json
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest

from benchmarks.resident import resident_bytes
from leafbeam.engine import Settings
from tests.serve.metric_of import metric
from tests.serve.running import PATIENCE, URL, post, process, serving, until
from tests.waiting import busy, held, interrupted


def test_a_client_that_disconnects_cancels_its_queued_request(first_shop):
    engine = first_shop.engine()
    with serving(engine) as (server, client), busy(engine.model, lambda: post(server.port)) as running:
        waiting = post(server.port)
        until(lambda: engine.scheduler.load.waiting == 1)
        waiting.close()
        until(lambda: engine.scheduler.load.waiting == 0)
        assert metric(client, 'leafbeam_cancelled_total{while="waiting"}') == 1
        running.close()
        until(lambda: metric(client, 'leafbeam_cancelled_total{while="running"}') == 1)
        until(lambda: metric(client, 'leafbeam_requests_total{outcome="cancelled"}') == 2)
    assert engine.counts.of("batch_faults")["abandoned"] == 1


def test_deadlines_are_met_or_rejected_with_a_message_and_a_metric(first_shop):
    engine = first_shop.engine(settings=Settings(predict=False))  # or a busy machine refuses 50 ms at the gate
    with serving(engine) as (_, client):
        assert client.post(URL, json={"deadline_ms": 20_000}).status_code == 200
        for deadline_ms, shown in ((0, "0"), (-20.5, "-20.5"), (60_001, "60,001")):
            response = client.post(URL, json={"deadline_ms": deadline_ms})
            message = f"deadline_ms must be above 0 and at most 60,000, not {shown}"
            assert (response.status_code, response.json()["error"]["message"]) == (422, message)
        assert client.post(URL, json={"deadline_ms": "soon"}).status_code == 422
        with busy(engine.model, lambda: post(client.base_url.port)) as running:
            response = client.post(URL, json={"deadline_ms": 50})
            assert response.status_code == 429
            assert response.headers["Retry-After"] == "1"
            error = response.json()["error"]
            assert (error["type"], error["reason"]) == ("OverloadedError", "late")
            assert "not started within its deadline of 0.05 s" in error["message"]
        assert running.recv(12).startswith(b"HTTP/1.1 200")
        running.close()
        assert metric(client, 'leafbeam_refused_total{reason="deadline_past"}') == 2
        assert metric(client, 'leafbeam_refused_total{reason="over_a_limit"}') == 1
        assert metric(client, 'leafbeam_refused_total{reason="body"}') == 1
        assert metric(client, 'leafbeam_shed_total{reason="late"}') == 1
        assert metric(client, 'leafbeam_requests_total{outcome="overloaded"}') == 1


def test_a_hung_device_is_reported_by_readyz_and_answers_503(first_shop):
    engine = first_shop.engine(settings=Settings(watchdog_s=1))
    with serving(engine) as (_, client):
        assert client.get("/readyz").json()["reason"] is None
        with held(engine.model):
            response = client.post(URL, json={})
            assert (response.status_code, response.json()["error"]["reason"]) == (503, "wedged")
            ready = client.get("/readyz")
            assert ready.status_code == 503
            assert "worker 0 has been in one batch for" in ready.json()["reason"]
            assert client.get("/healthz").status_code == 200
            assert client.post(URL, json={}).status_code == 503
            assert metric(client, "leafbeam_ready") == 0
            assert metric(client, "leafbeam_busy_workers") == 1
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post(URL, json={}).status_code == 200
        assert metric(client, 'leafbeam_batch_faults_total{kind="wedged"}') == 1
        assert metric(client, 'leafbeam_requests_total{outcome="unavailable"}') == 2


def test_no_memory_is_503_and_the_next_is_answered(first_shop):
    engine = first_shop.engine()

    def none(requests: int) -> None:
        raise MemoryError

    with serving(engine) as (_, client):
        with interrupted(engine.model, none):
            response = client.post(URL, json={})
        assert (response.status_code, response.json()["error"]["reason"]) == (503, "out_of_memory")
        assert response.headers["Retry-After"]
        assert client.post(URL, json={}).status_code == 200
        assert metric(client, 'leafbeam_failed_total{reason="out_of_memory"}') == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the size of this process is read from /proc")
def test_a_body_of_a_hundred_megabytes_is_refused_before_it_was_read(first_shop):
    chunk, sent = b" " * (1 << 16), 0
    with serving(first_shop.engine()) as (server, client):
        before, _ = resident_bytes()
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        try:
            while sent < 100_000_000:
                connection.sendall(b"10000\r\n" + chunk + b"\r\n")
                sent += len(chunk)
        except OSError:  # the server closed the connection
            pass
        try:
            answer = connection.recv(1000)
        except OSError:  # what the server said was lost with what it did not read
            answer = b"HTTP/1.1 413 "
        connection.close()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert sent < 20_000_000  # what sockets hold, not what was to come
        assert resident_bytes()[0] - before < 20_000_000
        assert metric(client, 'leafbeam_refused_total{reason="body_too_long"}') == 1
        assert client.post(URL, json={}).status_code == 200


def test_shutdown_fails_requests_that_exceed_the_grace_period_with_a_message(first_shop):
    engine = first_shop.engine()
    answers: list[tuple[int, bytes]] = []

    def ask(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", URL, b"{}", {"Content-Type": "application/json"})
        response = connection.getresponse()
        answers.append((response.status, response.read()))

    engine.warm_up()
    with held(engine.model) as began, serving(engine, grace_s=0.3) as (server, _):
        threads = [threading.Thread(target=ask, args=(server.port,)) for _ in range(4)]
        threads[0].start()
        assert began.wait(PATIENCE)
        for thread in threads[1:]:
            thread.start()
        until(lambda: engine.scheduler.load.waiting == 3)
        server.stop()
        for thread in threads:
            thread.join(PATIENCE)
    assert [status for status, _ in answers] == [503] * 4
    assert {json.loads(body)["error"]["reason"] for _, body in answers} == {"draining"}
    assert engine.counts.of("shed")["draining"] == 4


@pytest.mark.slow
def test_a_sighup_while_loading_reloads_once_it_serves(shop):
    with process(shop, while_it_loads=signal.SIGHUP) as server:
        until(lambda: 'leafbeam_rule_reloads_total{outcome="ok"} 1.0' in httpx.get(server.url + "/metrics").text)
        server.child.send_signal(signal.SIGTERM)
        assert server.child.wait(PATIENCE) == 0
