import logging
import threading
import time

import pytest

from leafbeam.engine import Engine, Request, Settings, SlowBatch
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.decoder import Decoder
from leafbeam.engine.worker import SlowBatches, ThreadUse

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

    def stalling(self, requests):
        output = run(self, requests)
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
