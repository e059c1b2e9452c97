"""Admission while the engine is saturated: requests are parsed once and rejected before any look-up."""

import random
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from leafbeam.engine import Request, Settings
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.prepare import RequestPreparer
from leafbeam.errors import OverloadedError
from leafbeam.serve import exchange
from leafbeam.serve.app import create_app
from tests.waiting import busy, held

PATIENCE = 20
URL = "/v1/recommend"


@pytest.fixture
def saturated(first_shop):
    """An engine whose one worker is in a batch that does not end, and whose queue of one place is taken."""
    engine = first_shop.engine(settings=Settings(max_batch=1, max_queue=1))
    with TestClient(create_app(engine)) as client, busy(engine.model, lambda: engine.submit(Request())) as running:
        yield client, engine, [running, engine.submit(Request())]


def test_a_full_queue_rejects_before_ids_and_rules_are_looked_up(saturated, monkeypatch):
    client, engine, _ = saturated
    monkeypatch.setattr(RequestPreparer, "prepare", lambda *_: pytest.fail("ids were looked up"))
    answer = client.post(URL, json={"history": [1001], "rules": ["cheap"]})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["reason"]) == (429, "OverloadedError", "queue_full")
    assert error["message"] == "the queue is full with 1 request: try again later"
    assert int(answer.headers["Retry-After"]) >= 1
    assert error["retry_after_ms"] >= 0
    assert (engine.counts.of("refused")["queue_full"], sum(engine.counts.of("refused").values())) == (1, 1)
    assert 'leafbeam_requests_total{outcome="overloaded"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("is_saturated", [True, False])
def test_a_body_is_parsed_once(saturated, monkeypatch, is_saturated):
    client, _, waiting = saturated
    if not is_saturated:
        waiting[1].cancel()
    parsed, decode = [], exchange._RECOMMEND.decode
    decoder = SimpleNamespace(decode=lambda content: parsed.append(content) or decode(content))
    monkeypatch.setattr(exchange, "_RECOMMEND", decoder)
    status = client.post(URL, json={"history": [1001], "rules": ["cheep"]}).status_code
    assert status == (429 if is_saturated else 422)
    assert len(parsed) == 1


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "is not valid JSON"),
        (b'{"colour": 1}', 422, "no such field"),
        (b'{"num_items": 1000000}', 422, "num_items must be from 1 to"),
        (b'{"scoring": "fulll"}', 422, "scoring must be"),
        (b'{"deadline_ms": -1}', 422, "deadline_ms must be above 0 and at most 60,000, not -1"),
        (b"[" * 100_000, 422, "expected a JSON object"),
    ],
)
def test_an_invalid_request_is_rejected_as_such_by_a_full_queue(saturated, body, status, message):
    client, engine, _ = saturated
    answer = client.post(URL, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert engine.counts.of("refused")["queue_full"] == 0


def test_other_paths_are_answered_and_requests_are_while_there_is_room(saturated):
    client, engine, waiting = saturated
    assert client.get("/healthz").status_code == 200
    waiting[1].cancel()
    assert engine.scheduler.is_saturated  # the worker is not idle yet
    assert client.post(URL, json={"rules": ["cheep"]}).json()["error"]["type"] == "UnknownRuleError"


def test_the_early_check_says_what_the_queue_says(first_shop, monkeypatch):
    """Over many queues, deadlines and sizes, at one moment of a clock that stands still."""
    monkeypatch.setattr("leafbeam.engine.warm_up._MAX_CALIBRATION_S", 0)
    engine = first_shop.engine(settings=Settings(max_batch=4, max_queue=9))
    engine.clock = engine.scheduler._clock = lambda: 100.0
    rng, seen = random.Random(3), {"queue_full": 0, "deadline_unreachable": 0, None: 0}

    def error_of(call, argument) -> tuple | None:
        try:
            call(argument)
        except OverloadedError as error:
            return str(error), error.reason, error.retry_after_s
        return None

    with engine, held(engine.model) as began:
        for requests, seconds in ((1, 0.01), (2, 0.018), (4, 0.03)) * 10:  # what the latency model knows
            engine.scheduler.observe(BatchSize.of(requests, 9, 20), seconds)
        waiting = [engine.submit(Request())]
        assert began.wait(PATIENCE)
        for _ in range(300):
            request = Request(
                history=tuple(rng.choices(first_shop.item_ids, k=rng.randrange(12))),
                num_beams=rng.choice([None, 5, 40]),
                deadline_s=rng.choice([None, rng.uniform(0.02, 0.1)]),
            )
            early = error_of(engine.scheduler.check_admission, engine._preparer.size(request, 99.99))
            pending = engine._preparer.prepare(request, 99.99)
            late = error_of(engine.scheduler.enqueue, pending)
            assert early == late
            if late is None:
                waiting.append(pending.future)
            seen[late and late[1]] += 1
            if len(waiting) > rng.randrange(4, 16):
                waiting.pop(rng.randrange(1, len(waiting))).cancel()
    assert min(seen.values()) > 20
