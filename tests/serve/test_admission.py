"""Who comes in vain is told so at the door: the same refusals as those of the engine, sooner."""

import random

import pytest
from fastapi.testclient import TestClient

from leafbeam.engine import Request, Settings
from leafbeam.engine.capacity import BatchSize
from leafbeam.errors import OverloadedError
from leafbeam.serve.app import create_app
from tests.waiting import held

PATIENCE = 20
URL = "/v1/recommend"


@pytest.fixture
def crowded(first_shop):
    """An engine whose one worker is in a batch that does not end, and whose queue of one place is taken."""
    engine = first_shop.engine(settings=Settings(max_batch=1, max_queue=1))
    with TestClient(create_app(engine)) as client, held(engine.model) as began:
        running = engine.submit(Request())
        assert began.wait(PATIENCE)
        yield client, engine, [running, engine.submit(Request())]


def test_a_full_queue_is_said_at_the_door_and_nothing_is_read(crowded, monkeypatch):
    client, engine, _ = crowded
    monkeypatch.setattr(engine, "submit", lambda *_, **__: pytest.fail("the doorman let somebody in"))
    answer = client.post(URL, json={"history": [1001], "rules": ["cheap"]})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["reason"]) == (429, "OverloadedError", "queue_full")
    assert int(answer.headers["Retry-After"]) >= 1
    assert error["retry_after_ms"] >= 0
    assert (engine.counts.of("refused")["queue_full"], engine.counts.total("refused")) == (1, 1)
    assert 'leafbeam_requests_total{outcome="overloaded"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "has to be JSON"),
        (b'{"colour": 1}', 422, "no such field"),
        (b'{"num_items": 1000000}', 422, "num_items has to be from 1 to"),
        (b'{"scoring": "fulll"}', 422, "scoring has to be"),
        (b'{"deadline_ms": -1}', 422, "the deadline passed"),
        (b"[" * 100_000, 400, "parsing the body"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_by_those_inside(crowded, body, status, message):
    client, engine, _ = crowded
    answer = client.post(URL, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert engine.counts.of("refused")["queue_full"] == 0


def test_other_paths_are_open_and_so_is_this_one_when_there_is_room(crowded):
    client, engine, waiting = crowded
    assert client.get("/healthz").status_code == 200
    waiting[1].cancel()
    assert engine.is_crowded  # the worker is not free yet
    assert client.post(URL, json={"rules": ["cheep"]}).json()["error"]["type"] == "UnknownRuleError"


def test_the_doorman_says_what_the_engine_says(first_shop, monkeypatch):
    """Over many queues, deadlines and sizes, at one moment of a clock that stands still."""
    monkeypatch.setattr("leafbeam.engine.engine._CALIBRATION_S", 0)
    engine = first_shop.engine(settings=Settings(max_batch=4, max_queue=9))
    engine.clock = engine._scheduler._clock = lambda: 100.0
    rng, said = random.Random(3), {"queue_full": 0, "deadline_unreachable": 0, None: 0}
    with engine, held(engine.model) as began:
        for requests, seconds in ((1, 0.01), (2, 0.018), (4, 0.03)) * 10:  # what the step-time model knows
            engine._scheduler.observe(BatchSize.of_equal(requests, 9, 20), seconds)
        waiting = [engine.submit(Request())]
        assert began.wait(PATIENCE)
        for _ in range(300):
            request = Request(
                history=tuple(rng.choices(first_shop.item_ids, k=rng.randrange(12))),
                num_beams=rng.choice([None, 5, 40]),
                deadline_s=rng.choice([None, rng.uniform(0.02, 0.1)]),
            )
            early = engine.turned_away(request, arrived=99.99)
            try:
                waiting.append(engine.submit(request, arrived=99.99))
                late = None
            except OverloadedError as error:
                late = error
            assert (early and str(early)) == (late and str(late))
            assert (early and (early.reason, early.retry_after_s)) == (late and (late.reason, late.retry_after_s))
            said[early.reason if early else None] += 1
            if len(waiting) > rng.randrange(4, 16):
                waiting.pop(rng.randrange(1, len(waiting))).cancel()
    assert min(said.values()) > 20
