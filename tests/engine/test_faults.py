"""What an engine does when something goes wrong: models that raise, run out of memory, hang; clients that disconnect."""

import gc
import threading
import time
from concurrent.futures import CancelledError, wait
from types import SimpleNamespace

import pytest
import torch

from leafbeam.engine import CatalogFiles, Counts, Engine, Limits, Request, Settings
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.latency_model import LatencyModel
from leafbeam.engine.request import PendingRequest
from leafbeam.errors import ArgumentError, OverloadedError, RequestError, UnavailableError
from leafbeam.model import Vocabulary
from leafbeam.model.cpu.workspace import Chunk
from tests.fixtures.static_runs import new_model
from tests.waiting import busy, interrupted

PATIENCE = 60
WATCHDOG_S = 1  # a busy machine may be long over an honest batch


def until(found) -> None:
    give_up = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def num_ended(counts: Counts) -> int:
    """Requests that have ended."""
    return sum(sum(counts.of(kind).values()) for kind in ("refused", "shed", "cancelled", "failed", "answered"))


def one_batch(engine: Engine, number: int, **fields):
    """Requests that run as one batch once the worker is free, in this order: each may take four seconds more than the last."""
    return [engine.submit(Request(num_items=1 + i, deadline_s=36 + 4 * i, **fields)) for i in range(number)]


def test_a_batch_that_raises_fails_its_own_requests_and_no_others(shop, engine, caplog):
    calls = []

    def fail(requests: int) -> None:
        calls.append(requests)
        if 1 < len(calls) < 7:  # the batch of three, its parts of two and one, and each of the two alone
            raise ZeroDivisionError("of the device's own")

    with engine, interrupted(shop.model, fail):
        with busy(shop.model, lambda: engine.submit(Request())) as before:
            doomed = one_batch(engine, 3)
            other = engine.submit(Request(num_beams=10, deadline_s=60))  # it has most time, so it runs last
        for future in doomed:
            with pytest.raises(ZeroDivisionError):
                future.result(PATIENCE)
        assert [future.result(PATIENCE).num_valid for future in (before, other)] == [10, 10]
        assert engine.submit(Request()).result(PATIENCE).num_valid == 10
    assert (engine.counts.of("failed")["error"], engine.counts.of("batch_faults")["error"]) == (3, 5)
    assert calls[:6] == [1, 3, 2, 1, 1, 1]
    assert "a batch of 3 requests failed" in caplog.text
    assert num_ended(engine.counts) == 6


def test_a_model_that_ends_its_thread_does_not_end_the_worker(shop, engine):
    def leave(requests: int) -> None:
        raise SystemExit(1)

    with engine:
        with interrupted(shop.model, leave), pytest.raises(RuntimeError, match=r"SystemExit\(1\)"):
            engine.submit(Request()).result(PATIENCE)
        assert engine.submit(Request()).result(PATIENCE).num_valid == 10


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_batch_out_of_memory_is_retried_in_halves(shop, engine, error):
    seen = []

    def limited(requests: int) -> None:
        seen.append(requests)
        if requests > 3:
            raise error

    with engine, interrupted(shop.model, limited):
        with busy(shop.model, lambda: engine.submit(Request())) as first:
            futures = one_batch(engine, 5, history=("é3",))
        results = [future.result(PATIENCE) for future in futures]
        assert first.result().num_valid == 10
    assert seen == [1, 5, 3, 2]
    assert [result.batch_size for result in results] == [3, 3, 3, 2, 2]
    assert [result.item_ids for result in results] == [
        result.item_ids for result in engine.recommend(Request(num_items=1 + i, history=("é3",)) for i in range(5))
    ]
    faults = engine.counts.of("batch_faults")
    assert (faults["out_of_memory"], faults["split"]) == (1, 1)
    assert num_ended(engine.counts) == engine.counts.of("answered")["in_time"] == 6


def test_halves_out_of_memory_fail_and_the_next_batch_is_answered(shop, engine):
    def too_much(requests: int) -> None:
        if requests > 1:
            torch.empty(10**15)  # torch's own words for no memory on a CPU

    with engine, interrupted(shop.model, too_much):
        with busy(shop.model, lambda: engine.submit(Request())) as first:
            futures = one_batch(engine, 4)
        for future in futures:
            with pytest.raises(UnavailableError, match="out of memory for a batch of 2") as refusal:
                future.result(PATIENCE)
            assert refusal.value.reason == "out_of_memory"
        assert first.result().num_valid == engine.submit(Request()).result(PATIENCE).num_valid == 10
    assert engine.counts.of("failed")["out_of_memory"] == 4
    assert engine.counts.of("batch_faults")["out_of_memory"] == 3
    assert num_ended(engine.counts) == 6


def test_a_request_cancelled_while_it_runs_ends_before_the_next_round(shop, engine):
    rounds, go, began = [], threading.Event(), threading.Event()

    def slow() -> None:
        rounds.append(time.monotonic())
        began.set()
        assert go.wait(PATIENCE)

    with engine:
        with interrupted(shop.model, before_round=slow):
            future = engine.submit(Request())
            assert began.wait(PATIENCE)
            assert future.cancel()
            go.set()
            until(lambda: engine.counts.of("batch_faults")["abandoned"])
        assert len(rounds) == 1
        with pytest.raises(CancelledError):
            future.result(0)
        assert engine.submit(Request()).result(PATIENCE).num_valid == 10
    assert (engine.counts.of("cancelled")["running"], num_ended(engine.counts)) == (1, 2)


def test_cancelling_one_request_of_a_batch_leaves_the_others_alone_and_its_rows_out(shop, engine, monkeypatch):
    go, began, sizes, rows = threading.Event(), threading.Event(), [], []
    load = Chunk.load
    monkeypatch.setattr(
        Chunk, "load", lambda self, embedding, tokens, at: rows.append(len(tokens)) or load(self, embedding, tokens, at)
    )

    def slow() -> None:
        if sizes[-1] == 2:
            began.set()
            assert go.wait(PATIENCE)

    with engine, interrupted(shop.model, sizes.append, before_round=slow):
        with busy(shop.model, lambda: engine.submit(Request())) as first:
            gone, stays = one_batch(engine, 2)
        assert first.result(PATIENCE).num_valid == 10
        assert began.wait(PATIENCE)
        gone.cancel()
        rows.clear()
        go.set()
        assert stays.result(PATIENCE).num_valid == 2
    assert rows[0] == 5 + 1  # beams of the one that stays: two for each of its items and one; and one row of the other
    assert engine.counts.of("batch_faults")["abandoned"] == 0


def test_a_cancelled_request_makes_room_in_the_queue_at_once(shop, catalog):
    engine = Engine(shop.model, catalog, settings=Settings(max_queue=1))
    with engine:
        with busy(shop.model, lambda: engine.submit(Request())) as running:
            gone = engine.submit(Request())
            with pytest.raises(OverloadedError, match="the queue is full"):
                engine.submit(Request())
            gone.cancel()
            assert engine.scheduler.load.waiting == 0
            stays = engine.submit(Request())
        assert [future.result(PATIENCE).num_valid for future in (running, stays)] == [10, 10]
    assert engine.counts.of("cancelled") == {"waiting": 1, "running": 0}
    assert engine.counts.of("refused")["queue_full"] == 1


def test_a_late_request_fails_at_its_deadline_while_the_worker_is_busy(shop):
    engine = Engine(shop.model, shop.trie, settings=Settings(predict=False))  # or a busy machine refuses it at the gate
    with engine, busy(shop.model, lambda: engine.submit(Request())) as running:
        late = engine.submit(Request(deadline_s=0.05))
        with pytest.raises(OverloadedError, match=r"not started within its deadline of 0.05 s") as refusal:
            late.result(PATIENCE)
        assert refusal.value.reason == "late"
        assert not running.done()
        assert engine.counts.of("shed")["late"] == 1


def test_a_late_request_that_was_alone_is_told_how_long_a_batch_takes(engine, monkeypatch):
    errors: list[Exception] = []
    late = SimpleNamespace(size=RequestSize(key=0, arrived=0.0, deadline=0.001), complete=errors.append)
    for seconds, requests in ((0.0, [late]), (0.02, [late]), (0.02, [late, late])):
        monkeypatch.setattr(LatencyModel, "p95", lambda self, size, seconds=seconds: seconds)
        engine.scheduler._fail_expired(requests)
    begin = "the request was not started within its deadline of 0.001 s: "
    ends = ["a batch takes longer: allow more", "a batch takes about 20 ms: allow more"]
    ends += ["the server has more requests than it can answer"] * 2
    assert [str(error) for error in errors] == [begin + end for end in ends]


def test_invalid_deadlines_are_rejected_and_counted(engine):
    with engine:
        for deadline_s in (0, -3.5):
            with pytest.raises(RequestError, match="the deadline passed") as refusal:
                engine.submit(Request(deadline_s=deadline_s))
            assert refusal.value.reason == "deadline_past"
        with pytest.raises(RequestError, match="up to 60 s away"):
            engine.submit(Request(deadline_s=61))
        for wrong in (float("nan"), float("inf"), "1", True):
            with pytest.raises(RequestError, match="deadline_s must be a number of seconds"):
                Request(deadline_s=wrong)
    assert engine.counts.of("refused")["deadline_past"] == 2
    assert engine.counts.of("refused")["over_a_limit"] == 1


def test_a_deadline_that_passes_before_the_queue_is_an_overload_not_a_client_error(engine):
    """The deadline was still ahead when the request arrived."""
    with engine:
        with pytest.raises(OverloadedError, match="the deadline passed before the request was queued") as refusal:
            engine.submit(Request(deadline_s=0.1), arrived=engine.clock() - 1)
        assert (refusal.value.reason, refusal.value.retry_after_s) == ("deadline_unreachable", 0)
    assert engine.counts.of("refused")["deadline_unreachable"] == 1
    assert engine.counts.of("refused")["deadline_past"] == 0


def test_more_tokens_or_beams_than_a_batch_holds_are_refused(shop):
    engine = Engine(
        shop.model,
        shop.trie,
        settings=Settings(max_batch_tokens=16, max_beam_rows=64, max_rows=64),
        limits=Limits(max_beams=64, max_items=64),
    )
    with engine:
        assert engine.submit(Request(history=("é1",) * 5)).result(PATIENCE).num_history_used == 5
        with pytest.raises(
            RequestError, match="the known items of the history, 6, take 19 positions, and a batch holds up to 16"
        ) as refusal:
            engine.submit(Request(history=("é1",) * 6))
        assert refusal.value.reason == "over_capacity"
        with pytest.raises(RequestError, match="num_beams must be from 1 to 64, not 65"):
            engine.submit(Request(num_beams=65))
    assert engine.counts.of("refused")["over_capacity"] == engine.counts.of("refused")["over_a_limit"] == 1
    with pytest.raises(ArgumentError, match="max_beam_rows=100 cannot hold a request of max_beams=512"):
        Engine(shop.model, shop.trie, settings=Settings(max_beam_rows=100))


def test_a_batch_counts_the_items_of_a_model_that_reads_items(shop):
    vocabulary = Vocabulary(codebook_sizes=shop.trie.codebook_sizes)
    model = new_model(1, vocabulary, item_history=True, max_position_embeddings=256)
    settings, limits = Settings(max_batch_tokens=16, max_beam_rows=64, max_rows=64), Limits(max_beams=64, max_items=64)
    with Engine(model, shop.trie, settings=settings, limits=limits) as engine:
        assert engine.submit(Request(history=("é1",) * 15)).result(PATIENCE).num_history_used == 15
        message = "the known items of the history, 16, take 17 positions, and a batch holds up to 16"
        with pytest.raises(RequestError, match=message) as refusal:
            engine.submit(Request(history=("é1",) * 16))
        assert refusal.value.reason == "over_capacity"


def test_a_hung_device_is_detected_its_requests_fail_and_it_may_recover(shop, catalog, caplog):
    engine = Engine(shop.model, catalog, settings=Settings(watchdog_s=WATCHDOG_S))
    with engine:
        assert engine.unhealthy_reason is None
        with busy(shop.model, lambda: engine.submit(Request())) as stuck:
            waiting = engine.submit(Request(num_beams=30))
            for future in (stuck, waiting):
                with pytest.raises(UnavailableError, match=r"has not answered for more than 1 s") as refusal:
                    future.result(PATIENCE)
                assert refusal.value.reason == "wedged"
            assert engine.unhealthy_reason is not None
            assert "worker 0 has been in one batch for" in engine.unhealthy_reason
            with pytest.raises(UnavailableError, match="has not answered"):
                engine.submit(Request())
        until(lambda: engine.unhealthy_reason is None)
        assert engine.submit(Request()).result(PATIENCE).num_valid == 10
    assert engine.counts.of("batch_faults")["wedged"] == 1
    assert (engine.counts.of("shed")["wedged"], engine.counts.of("refused")["wedged"]) == (2, 1)
    assert "came back after" in caplog.text


def test_one_hung_worker_leaves_the_others_working(shop, catalog):
    engine = Engine(shop.model, catalog, settings=Settings(workers=2, watchdog_s=WATCHDOG_S))
    with engine:
        first = threading.Event()
        go = threading.Event()

        def hang_once(requests: int) -> None:
            if not first.is_set():
                first.set()
                assert go.wait(PATIENCE)

        with interrupted(shop.model, hang_once):
            stuck = engine.submit(Request())
            assert first.wait(PATIENCE)
            with pytest.raises(UnavailableError):
                stuck.result(PATIENCE)
            assert engine.unhealthy_reason is not None
            assert [engine.submit(Request()).result(PATIENCE).num_valid for _ in range(3)] == [10] * 3
            go.set()
        until(lambda: engine.unhealthy_reason is None)


def test_two_workers_run_two_batches_at_once_with_the_answers_of_one(shop, catalog):
    engine = Engine(shop.model, catalog, settings=Settings(workers=2))
    requests = [Request(history=(f"é{i}",), num_beams=20 + i % 2, num_items=10) for i in range(40)]
    expected = [result.item_ids for result in engine.recommend(requests)]
    both, inside = threading.Event(), []

    def meet(number: int) -> None:
        inside.append(number)
        if len(inside) >= 2:
            both.set()
        assert both.wait(PATIENCE)

    with engine:
        with interrupted(shop.model, meet):
            futures = [engine.submit(request) for request in requests[:2]]
            assert both.wait(PATIENCE)
            assert [future.result(PATIENCE).item_ids for future in futures] == expected[:2]
        futures = [engine.submit(request) for request in requests]
        assert [future.result(PATIENCE).item_ids for future in futures] == expected


@pytest.mark.slow
def test_nothing_is_kept_of_a_request_that_was_answered_or_cancelled(shop, engine):
    """With the cycle collector off, so that a reference cycle would keep them."""
    gc.collect()
    of_others = [one for one in gc.get_objects() if type(one) is PendingRequest]  # that tests before this one hold
    gc.disable()
    try:
        with engine:
            for _ in range(3):
                engine.submit(Request(history=("é3",), rules=("cheap",))).result(PATIENCE)
            with busy(shop.model, lambda: engine.submit(Request())) as running:
                engine.submit(Request()).cancel()
            running.result(PATIENCE)
            del running
            until(lambda: sum(type(one) is PendingRequest for one in gc.get_objects()) <= len(of_others))
    finally:
        gc.enable()


@pytest.mark.parametrize("switch", ["batching", "overlap", "predict"])
def test_each_switch_of_the_ablation_changes_no_answer(shop, catalog, engine, switch):
    requests = [Request(history=(f"é{i}",), rules=("cheap",)) for i in range(12)]
    expected = [result.item_ids for result in engine.recommend(requests)]
    off = Engine(shop.model, catalog, settings=Settings(**{switch: False}))
    with off:
        with busy(shop.model, lambda: [off.submit(requests[0])]) as futures:
            futures += [off.submit(request) for request in requests[1:]]
        results = [future.result(PATIENCE) for future in futures]
    assert [result.item_ids for result in results] == expected
    assert max(result.batch_size for result in results) == (1 if switch == "batching" else 11)
    assert (off.scheduler.latency_fit.observed > 0) == (off.settings.predict or switch == "predict")


def test_a_batch_waits_for_its_batching_delay(shop):
    engine = Engine(shop.model, shop.trie, settings=Settings(wait_s=1.5, max_batch=3))
    with engine:
        futures = [engine.submit(Request()) for _ in range(3)]
        assert [future.result(PATIENCE).batch_size for future in futures] == [3, 3, 3]
        assert futures[-1].result().timings.queue < 1.5
        futures = [engine.submit(Request()) for _ in range(2)]
        assert [future.result(PATIENCE).batch_size for future in futures] == [2, 2]
        assert futures[0].result().timings.queue >= 1.49
    batches = engine.counts.of("batches")
    assert (batches["full"], batches["quota"]) == (1, 1)


def test_unreachable_deadlines_are_rejected_once_the_latency_model_is_calibrated(shop, catalog, monkeypatch):
    monkeypatch.setattr("leafbeam.engine.warm_up._MAX_CALIBRATION_S", PATIENCE)  # a busy machine runs few shapes in a second
    engine = Engine(shop.model, catalog, settings=Settings(max_batch=1))
    slow = interrupted(shop.model, lambda requests: time.sleep(0.05))
    with slow, engine:  # warming up is slow too, so that the latency model knows
        assert engine.scheduler.latency_fit.observed >= 5
        patient = [engine.submit(Request()) for _ in range(10)]
        hasty, refusals = [], []
        for _ in range(10):
            try:
                hasty.append(engine.submit(Request(deadline_s=0.3)))
            except OverloadedError as error:
                refusals.append(error)
        assert len(refusals) >= 4
        assert {error.reason for error in refusals} == {"deadline_unreachable"}
        assert all("an answer would take about" in str(error) and 0 < error.retry_after_s < 10 for error in refusals)
        wait([*patient, *hasty], PATIENCE)
        assert all(future.result().num_valid == 10 for future in patient)
    counts = engine.counts
    assert counts.of("refused")["deadline_unreachable"] == len(refusals)
    assert num_ended(counts) == 20


def test_the_end_of_a_with_block_closes_the_catalog_that_load_opened(shop, catalog_file, tmp_path):
    shop.model.save_pretrained(tmp_path / "model")
    shop.trie.save(tmp_path / "index.leafbeam")
    rules = {"cheap": "price < 20"}
    files = CatalogFiles(index=tmp_path / "index.leafbeam", catalog=catalog_file, rules=rules, refresh="60s")
    before = set(threading.enumerate())  # of other tests in this process

    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    with Engine.load(tmp_path / "model", files) as engine:
        assert engine.submit(Request(rules=("cheap",))).result(PATIENCE).num_valid == 10
        assert "leafbeam-refresh" in names()
    until(lambda: not any(name.startswith(("leafbeam-refresh", "leafbeam-worker")) for name in names()))
    engine.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"workers": 0},
        {"num_beams": True},
        {"slo_s": 0.0},
        {"slo_s": "x"},
        {"slo_s": float("nan")},
        {"timeout_s": -1.0},
        {"wait_s": 11.0},
        {"watchdog_s": 0},
    ],
)
def test_invalid_settings_are_rejected(fields):
    with pytest.raises(ArgumentError):
        Settings(**fields)
