"""An HTTP worker refuses what is like a request that the core has just refused, and nothing else."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from leafbeam.engine import Engine, Request
from leafbeam.engine.scheduler import Scheduler
from leafbeam.errors import OverloadedError
from leafbeam.serve.refusals import RecentRefusals
from leafbeam.serve.schema import RecommendBody
from tests.serve.metric_of import metric
from tests.serve.running import PATIENCE, URL, thread, until

BODY = RecommendBody(history=[1, 2], num_beams=20, deadline_ms=200.0)


def refusal(reason: str = "deadline_unreachable", retry_after_s: float = 0.015) -> OverloadedError:
    return OverloadedError("later", reason=reason, retry_after_s=retry_after_s)


def like(**changes: Any) -> RecommendBody:
    return msgspec.structs.replace(BODY, **changes)


def test_the_like_is_refused_until_it_may_come_again() -> None:
    now = [100.0]
    refusals = RecentRefusals(lambda: now[0])
    assert refusals.find(BODY) is None
    refusals.note(BODY, refusal())
    now[0] += 0.01
    for same in (BODY, like(history=[7, 8, 9]), like(rules=["cheap"]), like(user=3)):
        found = refusals.find(same)
        assert found is not None
        assert (str(found), found.reason, round(found.retry_after_s, 6)) == ("later", "deadline_unreachable", 0.005)
    for other in (
        like(history=[1]), like(num_beams=10), like(num_beams=None), like(num_items=5), like(scoring="allowed"),
        like(explain=True), like(deadline_ms=500.0), like(deadline_ms=None), like(channel="memory"),
    ):  # fmt: skip
        assert refusals.find(other) is None
    now[0] += 0.005
    assert refusals.find(BODY) is None


def test_a_refusal_is_kept_for_20_ms_at_most() -> None:
    now = [0.0]
    refusals = RecentRefusals(lambda: now[0])
    refusals.note(BODY, refusal(retry_after_s=60.0))
    now[0] = 0.019
    assert refusals.find(BODY) is not None
    now[0] = 0.0201
    assert refusals.find(BODY) is None


@pytest.mark.parametrize("other", [refusal("queue_full"), refusal("key_rate"), refusal(retry_after_s=0.0)])
def test_other_refusals_are_not_kept(other: OverloadedError) -> None:
    refusals = RecentRefusals(lambda: 0.0)
    refusals.note(BODY, other)
    assert refusals.find(BODY) is None


def test_a_client_that_varies_its_requests_fills_no_memory() -> None:
    refusals = RecentRefusals(lambda: 0.0)
    for beams in range(1000):
        refusals.note(like(num_beams=beams), refusal())
    assert sum(refusals.find(like(num_beams=beams)) is not None for beams in range(1000)) <= 64


def pipelined(url: str, count: int, headers: str = "") -> list[tuple[int, dict[str, Any]]]:
    """(status, body) of requests that are sent at once."""
    place, body = urlsplit(url), b'{"num_items": 3}'
    head = f"host: {place.netloc}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}"
    answers: list[tuple[int, dict[str, Any]]] = []
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE) as client:
        client.sendall((f"POST {URL} HTTP/1.1\r\n{head}\r\n\r\n".encode() + body) * count)
        with client.makefile("rb") as stream:
            for _ in range(count):
                status, length = int(stream.readline().split()[1]), 0
                while (line := stream.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                answers.append((status, json.loads(stream.read(length))))
    return answers


def test_a_worker_spares_the_core_what_it_would_refuse(first_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def check(engine: Engine, request: Request, *, arrived: float) -> None:
        asked.append(request)
        if request.num_items == 3:
            raise OverloadedError("later", reason="deadline_unreachable", retry_after_s=60.0)

    monkeypatch.setattr(Engine, "check_admission", check)
    monkeypatch.setattr(Scheduler, "is_saturated", True)
    count, sent = 8, 0

    def some_are_spared() -> bool:  # a worker that stands still for 20 ms asks the core again
        nonlocal sent
        asked.clear()
        sent += count
        answers = pipelined(server.url, count)
        assert {status for status, _ in answers} == {429}
        assert {answer["error"]["reason"] for _, answer in answers} == {"deadline_unreachable"}
        assert all(answer["error"]["retry_after_ms"] > 0 for _, answer in answers)
        return len(asked) < count

    with thread(first_shop.engine(), http_workers=1) as server:
        until(some_are_spared)
        asked.clear()
        answers = pipelined(server.url, count, headers="origin: http://another.example\r\n")
        assert {status for status, _ in answers} == {429}
        assert len(asked) == count  # the core adds the headers that a page needs
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            assert client.post(URL, json={"num_items": 4}).status_code == 200
            until(lambda: metric(client, 'leafbeam_requests_total{outcome="overloaded"}') == sent + count)
