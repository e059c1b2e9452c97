"""The scheduler's decisions in simulated time: real batcher, real latency model, an imaginary machine, no sleeping."""

import heapq
import math
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

from leafbeam.engine.batcher import Batcher, BatchSize, Capacity, RequestSize
from leafbeam.engine.latency_model import LatencyModel
from leafbeam.errors import OverloadedError

SLO = 0.2


@dataclass
class Outcome:
    answered: list[float] = field(default_factory=list)  # seconds from arrival to answer
    when: list[float] = field(default_factory=list)  # the time of each answer
    refused: int = 0
    shed: int = 0
    batches: list[int] = field(default_factory=list)

    @property
    def good(self) -> int:
        return sum(seconds <= SLO for seconds in self.answered)

    @property
    def p99(self) -> float:
        return float(np.percentile(self.answered, 99))


@dataclass
class Machine:
    """Seconds of a batch: launching, tokens, rows."""

    launch: float = 0.004
    token: float = 8e-6
    row: float = 2e-5
    noise: float = 0.08

    def seconds(self, size: BatchSize, rng: np.random.Generator) -> float:
        return (self.launch + self.token * size.tokens + self.row * size.beam_rows) * rng.lognormal(0, self.noise)


def simulate(
    rates: list[tuple[float, float]], machine: Machine, *, workers: int = 1, wait_s: float = 0.0, seed: int = 0
) -> Outcome:
    """Poisson arrivals at each (rate, seconds) in turn, beams and lengths mixed; every request is accounted for."""
    rng = np.random.default_rng(seed)
    time = LatencyModel()
    for requests in (1, 2, 4, 8, 1, 4):
        for tokens in (50, 600):
            size = BatchSize.of(requests, tokens, 50)
            time.observe(size, machine.seconds(size, rng))
    capacity = Capacity(requests=16, tokens=16_384, beam_rows=4096)
    queue: Batcher[float] = Batcher(capacity, max_queue=500, max_batch_s=SLO / 2, p95=time.p95)
    events: list[tuple[float, int, str, object]] = []
    numbers, now = count(), 0.0
    for rate, seconds in rates:
        over = now + seconds
        while (now := now + rng.exponential(1 / rate)) < over:
            heapq.heappush(events, (now, next(numbers), "arrival", None))
        now = over
    asked = len(events)
    busy: dict[int, float] = {}
    found = Outcome()

    def dispatch(now: float) -> None:
        while len(busy) < workers:
            batch, late = queue.next_batch(now)
            found.shed += len(late)
            if batch is None:
                closes_at = queue.closes_at(now)
                if closes_at < math.inf:
                    heapq.heappush(events, (max(closes_at, now + 1e-6), next(numbers), "look", None))
                return
            took = machine.seconds(batch.size, rng)
            worker = min(set(range(workers)) - set(busy))
            busy[worker] = now + batch.p95_s
            found.batches.append(len(batch.requests))
            heapq.heappush(events, (now + took, next(numbers), "done", (worker, batch, took)))

    while events:
        now, _, kind, what = heapq.heappop(events)
        found.shed += len(queue.drop_expired(now))
        if kind == "arrival":
            tokens = int(min(1500, 20 + rng.pareto(1.5) * 100))
            num_beams = int(rng.choice([50, 128], p=[0.8, 0.2]))
            free_in = 0.0 if len(busy) < workers else max(0.0, min(busy.values()) - now)
            try:
                size = RequestSize(key=num_beams, tokens=tokens, num_beams=num_beams, arrived=now, deadline=now + SLO)
                queue.admit(size, now, free_in_s=free_in, workers=workers)
                queue.enqueue(now, size)
            except OverloadedError:
                found.refused += 1
        elif kind == "done":
            worker, batch, took = what  # type: ignore[misc]
            del busy[worker]
            time.observe(batch.size, took)
            found.answered += [now - arrived for arrived in batch.requests]
            found.when += [now] * len(batch.requests)
        dispatch(now)
    assert len(found.answered) + found.refused + found.shed == asked
    assert len(queue) == 0
    return found


@pytest.mark.parametrize(
    ("machine", "workers", "capacity"),
    [(Machine(), 1, 300), (Machine(launch=0.04, token=1e-6, row=1e-5), 1, 180), (Machine(), 2, 600)],
    ids=["busy with rows", "busy with launching", "two workers"],
)
def test_three_times_the_capacity_keeps_goodput_and_the_objective(machine, workers, capacity):
    peak = max(simulate([(capacity * share, 4)], machine, workers=workers).good for share in (0.8, 1.0)) / 4
    flooded = simulate([(3 * capacity, 4)], machine, workers=workers)
    assert flooded.good / 4 >= 0.9 * peak
    assert flooded.p99 <= SLO * 1.02
    assert flooded.refused > flooded.shed  # most are told at the gate


def test_below_capacity_no_request_is_rejected():
    found = simulate([(150, 6)], Machine())
    assert (found.refused, found.shed) == (0, 0)
    assert found.p99 < SLO


def test_after_a_flood_everything_is_as_before_within_two_seconds():
    found = simulate([(150, 4), (1000, 2), (150, 6)], Machine())
    late = [seconds for seconds, when in zip(found.answered, found.when, strict=True) if when > 8]
    early = [seconds for seconds, when in zip(found.answered, found.when, strict=True) if when < 4]
    assert len(late) / 4 == pytest.approx(len(early) / 4, rel=0.2)
    assert np.median(late) < 2 * np.median(early)


def test_a_slower_machine_rejects_more_but_keeps_answering():
    machine = Machine()
    found = simulate([(150, 3)], machine)
    assert found.good > 0
    machine.launch, machine.token, machine.row = 0.1, 8e-5, 2e-4  # ten times and more
    slow = simulate([(150, 6)], machine)
    assert slow.good > 20
    assert slow.p99 <= SLO * 1.25


def test_batches_grow_with_the_load():
    sizes = [np.mean(simulate([(rate, 4)], Machine()).batches) for rate in (20, 150, 400)]
    assert sizes[0] < 1.3 < sizes[1] < 4 < sizes[2]
