"""The latency model, and batches above it."""

import logging
import threading
import time

import numpy as np
import pytest

from leafbeam.engine import Engine, Request, Settings, SlowBatch
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.decoder import Decoder
from leafbeam.engine.latency_model import LatencyModel
from leafbeam.engine.worker import SlowBatches, ThreadUse


def seconds(size: BatchSize, speed: float = 1.0) -> float:
    """How long batches take on an imaginary machine."""
    attention = 2e-9 * size.tokens * size.longest + 1e-9 * size.beam_rows * size.longest
    return speed * (0.003 + 6e-6 * size.tokens + 2e-5 * size.beam_rows + attention)


def random_size(rng: np.random.Generator) -> BatchSize:
    requests = int(rng.integers(1, 17))
    lengths = np.minimum(2000, 20 + (100 * rng.pareto(1.3, requests))).astype(int)
    num_beams = int(rng.choice([20, 50, 128]))
    return BatchSize(requests=requests, tokens=int(lengths.sum()), longest=int(lengths.max()), beam_rows=requests * num_beams)


def learnt(batches: int, noise: float = 0.05, stalls: float = 0.0, seed: int = 0) -> tuple[LatencyModel, np.random.Generator]:
    rng = np.random.default_rng(seed)
    time = LatencyModel()
    for _ in range(batches):
        size = random_size(rng)
        stall = 20.0 if rng.random() < stalls else 1.0
        time.observe(size, seconds(size) * rng.lognormal(0, noise) * stall)
    return time, rng


def errors(time: LatencyModel, rng: np.random.Generator, speed: float = 1.0) -> np.ndarray:
    sizes = [random_size(rng) for _ in range(200)]
    return np.array([time.expected(size) / seconds(size, speed) - 1 for size in sizes])


def test_predictions_are_zero_before_enough_observations():
    time = LatencyModel()
    size = BatchSize.of(1, 100, 20)
    for _ in range(4):
        time.observe(size, 1.0)
        assert time.expected(size) == time.p95(size) == 0.0
    time.observe(size, 1.0)
    assert time.expected(size) == pytest.approx(1.0, rel=1e-3)


def test_the_fit_recovers_the_latency_of_the_machine():
    off = errors(*learnt(300))
    assert np.median(np.abs(off)) < 0.03
    assert np.percentile(np.abs(off), 95) < 0.12


def test_rare_stalls_do_not_spoil_the_fit():
    off = errors(*learnt(300, stalls=0.03))
    assert np.median(np.abs(off)) < 0.15


def test_a_machine_that_becomes_three_times_slower_is_learnt_within_sixty_batches():
    time, rng = learnt(300)
    for _ in range(60):
        size = random_size(rng)
        time.observe(size, seconds(size, 3.0) * rng.lognormal(0, 0.05))
    assert np.median(np.abs(errors(time, rng, 3.0))) < 0.15


def test_p95_is_kept_by_nineteen_of_twenty_batches():
    time, rng = learnt(1500, noise=0.2)
    kept = []
    for _ in range(1000):
        size = random_size(rng)
        took = seconds(size) * rng.lognormal(0, 0.2)
        kept.append(took <= time.p95(size))
        time.observe(size, took)
    assert 0.9 <= np.mean(kept) <= 0.98


def test_no_term_is_ever_negative_and_more_work_never_takes_less_time():
    time, rng = learnt(200, noise=0.5)
    assert min(time.fit.seconds.values()) >= 0
    for _ in range(50):
        size = random_size(rng)
        assert time.expected(size.with_request(100, 20)) >= time.expected(size)


SIZE = BatchSize.of(2, 8, 20)
IDLE = ThreadUse(cpu_s=0.0)


def test_a_batch_above_five_medians_is_kept_with_what_explains_it():
    told: list[SlowBatch] = []
    slow = SlowBatches(told.append)
    for n in range(64):
        slow.observe(0, SIZE, 0.009 if n % 2 else 0.011, None, IDLE)
    slow.observe(0, SIZE, 0.049, None, IDLE)
    assert slow.kept == ()
    slow.observe(3, SIZE, 0.7, None, ThreadUse(cpu_s=0.002, waits=1, preempted=40, faults=5))
    (kept,) = slow.kept
    assert told == [kept]
    assert (kept.worker, kept.seconds, kept.median_s, kept.size) == (3, 0.7, pytest.approx(0.01), SIZE)
    assert (kept.use.cpu_s, kept.use.preempted, kept.prefill_s) == (0.002, 40, 0.0)


def test_nothing_is_slow_before_there_is_a_median_and_the_oldest_are_forgotten():
    slow = SlowBatches()
    for seconds in (0.001, 9.0, 0.001):
        slow.observe(0, SIZE, seconds, None, IDLE)
    assert slow.kept == ()
    for _ in range(61):
        slow.observe(0, SIZE, 0.001, None, IDLE)
    for n in range(100):
        slow.observe(n, SIZE, 1.0, None, IDLE)
        slow.observe(0, SIZE, 0.001, None, IDLE)
        slow.observe(0, SIZE, 0.001, None, IDLE)
    assert [one.worker for one in slow.kept] == list(range(36, 100))


def test_what_a_thread_uses_is_its_own():
    stop = threading.Event()
    other = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    other.start()
    before = ThreadUse.now()
    time.sleep(0.2)
    use = ThreadUse.now().since(before)
    stop.set()
    other.join()
    assert use.cpu_s < 0.1
    assert use.waits >= 1


def test_an_engine_keeps_a_batch_that_stalls(shop, monkeypatch, caplog):
    run, stalls = Decoder.run, []

    def stalling(self, requests, on_pass=None):
        output = run(self, requests, on_pass)
        if stalls:
            time.sleep(stalls.pop())
        return output

    with Engine(shop.model, shop.trie, settings=Settings(threads=1)) as engine:
        monkeypatch.setattr(Decoder, "run", stalling)
        started = time.perf_counter()
        for _ in range(40):
            engine.submit(Request(history=("é3",))).result()
        stall_s = max(1.0, 10 * (time.perf_counter() - started) / 40)  # on a busy machine too, far above the median
        stalls.append(stall_s)
        with caplog.at_level(logging.WARNING, "leafbeam.engine"):
            engine.submit(Request(history=("é3",))).result()
        engine.stop()
        slow = [one for one in engine.slow_batches.kept if one.seconds >= stall_s]
    assert len(slow) == 1
    assert slow[0].use.cpu_s < slow[0].seconds / 2
    assert slow[0].rounds_s > 0
    assert engine.counts.of("batch_faults")["slow"] >= 1
    assert any("on a core" in record.message for record in caplog.records)
