"""Threads of workers."""

import logging
import math
import os
import threading
import time

import pytest
import torch

from leafbeam.engine import Engine, Request, Settings, worker
from leafbeam.engine.tuning import measure_threads
from leafbeam.errors import ArgumentError
from leafbeam.model.cpu.threads import torch_threads
from tests.fixtures.clocks import Clock
from tests.openmp_threads import has_ended, needs_openmp, openmp_threads
from tests.waiting import interrupted


class Machine(Clock):
    """A clock that batches advance by the seconds that they take with torch's number of threads."""

    def batch(self, seconds: dict[int, float]):
        def run() -> None:
            self.now += seconds[torch.get_num_threads()]

        return run


@pytest.mark.parametrize(
    ("alone", "full", "count"),
    [
        ({1: 0.004, 2: 0.009, 3: 0.012}, {1: 0.020, 2: 0.021, 3: 0.022}, 1),
        ({1: 0.004, 2: 0.004, 3: 0.004}, {1: 0.040, 2: 0.030, 3: 0.020}, 3),
        ({1: 0.040, 2: 0.020, 3: 0.019}, {1: 0.400, 2: 0.200, 3: 0.195}, 2),  # a third thread gains less than it costs others
        ({1: 1e-3, 2: 2e-3, 3: 0.5e-3}, {1: 1e-3, 2: 2e-3, 3: 0.5e-3}, 3),  # a slow number between does not end the search
    ],
)
def test_the_fewest_threads_that_no_larger_number_clearly_beats(alone, full, count):
    machine, before = Machine(), torch.get_num_threads()
    times = measure_threads(3, [machine.batch(alone), machine.batch(full)], machine)
    assert times.count == count
    assert times.seconds == {n: pytest.approx((alone[n], full[n])) for n in (1, 2, 3)}
    assert torch.get_num_threads() == before


def test_a_large_model_runs_once_with_each_number_and_its_full_batch_never():
    machine, calls = Machine(), []
    alone = machine.batch({1: 8.0, 2: 5.0})
    times = measure_threads(2, [lambda: calls.append("alone") or alone(), lambda: calls.append("full")], machine)
    assert (times.count, calls) == (2, ["alone"] * 2)
    assert times.seconds == {1: (8.0,), 2: (5.0,)}


def test_the_workers_run_on_the_number_that_the_warm_up_chose(shop, monkeypatch, caplog):
    seen = []
    start = shop.model.start
    monkeypatch.setattr(shop.model, "start", lambda *args, **kw: seen.append(torch.get_num_threads()) or start(*args, **kw))
    with torch_threads(2), caplog.at_level(logging.INFO, "leafbeam.engine"):
        with Engine(shop.model, shop.trie) as engine:
            assert engine.threads in (1, 2)
            seen.clear()
            engine.submit(Request(history=("é3",))).result()
            assert set(seen) == {engine.threads}
        assert torch.get_num_threads() == 2
    assert any(f"threads: {engine.threads} (1: " in record.message for record in caplog.records)


@needs_openmp
@pytest.mark.parametrize("is_loaded", [False, True])
def test_threads_have_cores_of_their_own_after_a_pause_and_the_system_places_them_under_load(shop, monkeypatch, is_loaded):
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("one core")
    if is_loaded:
        monkeypatch.setattr(worker, "_PAUSE_S", math.inf)
    seen, start = [], shop.model.start

    def started(*args, **kw):
        seen.append([os.sched_getaffinity(thread) for thread in openmp_threads(2)])
        return start(*args, **kw)

    with Engine(shop.model, shop.trie, settings=Settings(threads=2, predict=False)) as engine:
        monkeypatch.setattr(shop.model, "start", started)
        for _ in range(3):
            time.sleep(0.01)
            engine.submit(Request(history=("é3",))).result()
    assert len(seen) == 3
    for first, second in seen:
        assert first | second == usable
        assert first == second == usable if is_loaded else not first & second


@pytest.mark.parametrize(("setting", "workers", "threads"), [(None, 2, 1), (3, 1, 3), (1, 2, 1)])
def test_a_number_that_is_given_or_that_needs_no_choice_is_not_measured(shop, caplog, setting, workers, threads):
    with torch_threads(2), caplog.at_level(logging.INFO, "leafbeam.engine"):
        engine = Engine(shop.model, shop.trie, settings=Settings(threads=setting, workers=workers))
        engine.warm_up()
    assert engine.threads == threads
    assert not caplog.records


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_threads_that_are_no_number(threads):
    with pytest.raises(ArgumentError, match="threads must be an integer of at least 1"):
        Settings(threads=threads)


@needs_openmp
def test_no_thread_waits_for_the_one_that_started_the_engine(shop):
    waiting = openmp_threads(2)[1]
    with Engine(shop.model, shop.trie):
        assert has_ended(waiting)


PATIENCE = 20


def test_batches_of_two_workers_run_at_once(shop) -> None:
    met, seen = threading.Barrier(2, timeout=PATIENCE), list[str]()

    def note(requests: int) -> None:
        seen.append(threading.current_thread().name)
        met.wait()  # both batches run

    requests = [Request(num_beams=beams, num_items=3) for beams in (5, 6, 7, 8)]  # of other beams: a batch of its own each
    with Engine(shop.model, shop.trie, settings=Settings(workers=2)) as engine:
        alone = [result.item_ids for result in engine.recommend(requests)]
        with interrupted(shop.model, note):
            found = [[engine.submit(request) for request in pair] for pair in (requests[:2], requests[2:])]
            assert [one.result(PATIENCE).item_ids for pair in found for one in pair] == alone
    assert len(seen) == 4
    assert len(set(seen)) == 2
