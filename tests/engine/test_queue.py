"""Requests that wait: answered, refused, cancelled or failed, and never lost."""

import threading

import pytest

from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import ArgumentError, OverloadedError, UnavailableError
from tests.waiting import busy

HISTORY = ("é3", "é14", "é15")


def test_submit_answers_like_recommend_and_says_where_the_time_went(engine):
    with engine:
        result = engine.submit(Request(history=HISTORY)).result(20)
    assert result.item_ids == engine.recommend([Request(history=HISTORY)])[0].item_ids
    timings = result.timings
    stages = [getattr(timings, name) for name in ("prepare", "queue", "prefill", "rounds", "constrain", "postprocess")]
    assert min(stages) >= 0
    assert min(timings.prefill, timings.rounds) > 0
    assert timings.model == timings.prefill + timings.rounds
    assert timings.total == pytest.approx(sum(stages))


def test_an_engine_that_is_not_running_refuses(engine):
    with pytest.raises(OverloadedError, match="not running"):
        engine.submit(Request())
    with engine:
        assert engine.is_running
        with pytest.raises(ArgumentError, match="started before"):
            engine.start()
    assert not engine.is_running
    with pytest.raises(OverloadedError, match="not running"):
        engine.submit(Request())


def test_a_full_queue_refuses_and_what_waits_is_answered(shop, catalog):
    engine = Engine(shop.model, catalog, settings=Settings(max_queue=2))
    with engine:
        with busy(shop.model, lambda: engine.submit(Request())) as running:
            waiting = [engine.submit(Request()) for _ in range(2)]
            assert engine.scheduler.load.waiting == 2
            with pytest.raises(OverloadedError, match="the queue is full with 2 requests"):
                engine.submit(Request())
        assert [future.result(20).num_valid for future in (running, *waiting)] == [10, 10, 10]
        assert [future.result().batch_size for future in (running, *waiting)] == [1, 2, 2]


def test_stop_answers_queued_requests(shop, engine):
    engine.start()
    with busy(shop.model, lambda: [engine.submit(Request(num_items=1 + i)) for i in range(30)]) as futures:
        stopper = threading.Thread(target=engine.stop)
        stopper.start()
    stopper.join(20)
    assert [future.result(1).num_valid for future in futures] == [1 + i for i in range(30)]


def test_stop_fails_requests_that_exceed_the_grace_period(shop, engine):
    engine.start()
    with busy(shop.model, lambda: engine.submit(Request())) as running:
        waiting = engine.submit(Request())
        engine.stop(grace_s=0.01)
        for future in (running, waiting):
            with pytest.raises(UnavailableError, match="stopped before"):
                future.result(1)
        assert engine.counts.of("shed")["draining"] == 2
