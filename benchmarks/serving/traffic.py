"""`python -m benchmarks traffic`: the scheduler under a month of traffic in simulated time, on a device of arithmetic.

lasting    the highest rate of which 99 % are answered in time
steady     rates from half to three times that: goodput, what is refused, fairness between requests of few and many beams
month      30 days of hours: a day's wave, a busier weekend, bursts of three times the rate; some seconds of every hour
replicas   N servers behind a balancer that picks one at random, or the shorter queue of two, at N times one server's rate

Requests a second, goodput and latencies are the simulation's; no such device was at hand. What is real is the batcher, the
admission and the latency model, which do not know the cost model that they are run on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from random import Random
from typing import Any

from benchmarks.serving.cost_model import H200, ONE_REC
from benchmarks.serving.traffic_simulation import Balancer, Clients, Outcome, simulate
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.settings import Settings

__all__ = ["TIMED", "month", "runs"]

TIMED = False  # simulated time does not depend on the machine
SLO_S = 0.2
WARM_S = 2.0  # in which the latency model learns, not counted
_LASTING = 0.99  # of the requests that do not leave
Window = tuple[float, float, bool]


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of the one row."""
    seconds, days, sampled_s = (2.0, 1, 1.0) if quick else (10.0, 30, 1.5)
    settings, clients = Settings(slo_s=SLO_S), Clients()
    best = _lasting_rate(settings, clients, seconds)
    steady = {times: _steady(settings, clients, times * best, seconds) for times in _TIMES}
    measured = {
        "capacity_a_second": round(_capacity(settings, clients), 1),
        "lasting_a_second": round(best, 1),
        "steady": {f"{times:g}": _summary(one) for times, one in steady.items()},
        "flood_goodput_share": round(steady[3.0].goodput / steady[1.0].goodput, 3),
        "month": {
            f"{peak:g}": _summary(_run(settings, clients, month(Random(1), days, sampled_s, peak * best)))
            for peak in (0.8, 1.5)
        },
        "replicas": {
            f"{n} {balancer}": _replicas(settings, clients, n, balancer, 0.9 * best, seconds) for n, balancer in _SETS
        },
    }
    parameters: dict[str, Any] = {
        "device": asdict(H200),
        "model": asdict(ONE_REC),
        "slo_ms": 1e3 * SLO_S,
        "max_batch": settings.max_batch,
        "clients": asdict(clients),
        "seconds": seconds,
        "days": days,
        "seconds_of_an_hour": sampled_s,
    }
    yield parameters, measured


_TIMES = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0)  # the lasting rate
_SETS: tuple[tuple[int, Balancer], ...] = (
    (1, "random"),
    (4, "random"),
    (4, "two choices"),
    (8, "two choices"),
)


def month(random: Random, days: int, sampled_s: float, peak: float) -> Iterator[Window]:
    """Some seconds of each hour: a day's wave between a fifth and all of `peak`, a sixth more at weekends, bursts of 3x."""
    yield WARM_S, peak / 5, False
    for hour in range(24 * days):
        wave = 0.6 - 0.4 * math.cos(2 * math.pi * (hour % 24 - 4) / 24)
        weekend = 7 / 6 if hour // 24 % 7 >= 5 else 1.0
        burst = 3.0 if random.random() < 0.02 else 1.0
        yield sampled_s, peak * wave * weekend * burst, True
        yield 2 * SLO_S, peak / 20, False  # hours are apart: what waits is answered


def _seconds(size: BatchSize) -> float:
    return ONE_REC.seconds(size, H200)


def _capacity(settings: Settings, clients: Clients) -> float:
    """Requests a second if every batch were full of one width, with prompts of the mean length."""
    shortest, longest = clients.tokens
    tokens = round((longest - shortest) / math.log(longest / shortest))
    each = sum(
        share * _seconds(size) / size.requests
        for num_beams, share in clients.widths
        for size in [BatchSize.of(settings.capacity.max_requests(tokens, num_beams), tokens, num_beams)]
    )
    return 1 / each


def _run(
    settings: Settings, clients: Clients, windows: Iterator[Window], replicas: int = 1, balancer: Balancer = "random"
) -> Outcome:
    return simulate(windows, settings, _seconds, clients=clients, replicas=replicas, balancer=balancer)


def _steady(settings: Settings, clients: Clients, rate: float, seconds: float) -> Outcome:
    return _run(settings, clients, iter([(WARM_S, rate / 2, False), (seconds, rate, True)]))


def _lasting_rate(settings: Settings, clients: Clients, seconds: float) -> float:
    """In steps of a fiftieth of the capacity, from a third of it on; padding costs the rest."""
    rate = step = _capacity(settings, clients) / 50
    for n in range(16, 51):
        if _share(_steady(settings, clients, n * step, seconds)) < _LASTING:
            break
        rate = n * step
    return rate


def _replicas(
    settings: Settings, clients: Clients, replicas: int, balancer: Balancer, rate: float, seconds: float
) -> dict[str, Any]:
    windows = iter([(WARM_S, replicas * rate / 2, False), (seconds, replicas * rate, True)])
    return _summary(_run(settings, clients, windows, replicas, balancer))


def _share(outcome: Outcome) -> float:
    return outcome.in_time.total() / max(1, outcome.offered.total() - outcome.left.total())


def _summary(outcome: Outcome) -> dict[str, Any]:
    """Shares of all requests, those in time of the clients who stayed; latencies in ms, from the try that was answered."""
    offered = max(1, outcome.offered.total())
    return {
        "offered_a_second": round(outcome.offered.total() / outcome.seconds, 1),
        "goodput": round(outcome.goodput, 1),
        "in_time": round(_share(outcome), 5),
        "in_time_by_beams": {
            str(width): round(outcome.in_time[width] / max(1, number - outcome.left[width]), 4)
            for width, number in sorted(outcome.offered.items())
        },
        "late": round(outcome.late / offered, 5),
        "gave_up": round(outcome.gave_up / offered, 5),
        "left": round(outcome.left.total() / offered, 5),
        "refused_tries": {reason: round(number / offered, 5) for reason, number in sorted(outcome.refused.items())},
        "latency_ms": {name: round(1e3 * outcome.latency(q), 2) for name, q in (("p50", 0.5), ("p99", 0.99))},
    }
