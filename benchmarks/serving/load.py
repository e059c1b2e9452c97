"""Load for a server: when requests come, how long their histories are, and what became of them. Pure: nothing here waits.

Arrivals are open-loop: they come when they come, whether or not the server has answered the ones before.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

__all__ = ["Answered", "Planned", "arrivals", "burst", "diurnal", "power_law", "read_trace", "served", "steady", "summary"]

Floats = NDArray[np.float64]
Rate = Callable[[Floats], Floats]  # requests a second at these seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A request to be sent `at` seconds after the beginning."""

    at: float
    body: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What came back: the HTTP status (0 for none at all), seconds from when it was due to the last byte, its body.

    Counted from when it was due and not from when it was sent, so that a client that falls behind hides nothing.
    """

    at: float
    late: float
    status: int
    seconds: float
    body: dict[str, Any]


def steady(rate: float) -> Rate:
    """The same rate all the time: Poisson arrivals."""
    return lambda seconds: np.full_like(seconds, rate)


def diurnal(mean: float, period: float, swing: float = 0.8) -> Rate:
    """A day pressed into `period` seconds: from (1 - swing) of the mean at night to (1 + swing) at noon."""
    return lambda seconds: mean * (1 - swing * np.cos(2 * np.pi * seconds / period))


def burst(base: float, peak: float, begin: float, end: float) -> Rate:
    """`base`, but `peak` from begin to end."""
    return lambda seconds: np.where((seconds >= begin) & (seconds < end), peak, base)


def arrivals(rng: np.random.Generator, rate: Rate, seconds: float) -> Floats:
    """Times of a Poisson process of this rate, by thinning one of its highest rate."""
    if seconds <= 0:
        raise ArgumentError(f"seconds={seconds:g} has to be above 0")
    most = float(rate(np.linspace(0, seconds, 1000)).max()) * 1.001
    if most <= 0:
        return np.empty(0)
    times = np.cumsum(rng.exponential(1 / most, int(most * seconds + 10 * (most * seconds) ** 0.5 + 20)))
    times = times[times < seconds]
    return times[rng.random(len(times)) * most < rate(times)]


def power_law(rng: np.random.Generator, least: int, most: int, size: int, exponent: float = 1.5) -> NDArray[np.int64]:
    """Lengths whose density falls as length ** -exponent between two bounds: many short, some very long (xGR, section 7)."""
    if not 1 <= least <= most or exponent <= 1:
        raise ArgumentError(f"least={least}, most={most}, exponent={exponent:g}: expected 1 <= least <= most and exponent > 1")
    power = 1 - exponent
    low, high = float(least) ** power, float(most + 1) ** power
    return ((low + rng.random(size) * (high - low)) ** (1 / power)).astype(np.int64).clip(least, most)


def read_trace(path: Path) -> list[Planned]:
    """A recorded trace, one JSON object a line: `at`, seconds from the beginning, and `body`, what is posted."""
    planned = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        return sorted((Planned(at=float(one["at"]), body=dict(one["body"])) for one in planned), key=lambda one: one.at)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f'{path}: every line has to be {{"at": SECONDS, "body": {{...}}}} ({error!r})') from error


def summary(answers: Sequence[Answered], *, seconds: float, slo_s: float) -> dict[str, Any]:
    """Rates, latencies of what was answered (avg, p50, p99), goodput: answers within the objective each second.

    refused: 429 and 503, with whether each named a time to come again. errors: everything else that is no answer.
    """
    good = [one for one in answers if one.status == 200]
    latencies = np.array([one.seconds for one in good]) * 1e3
    refused = [one for one in answers if one.status in (429, 503)]
    statuses = Counter(str(one.status) for one in answers)
    found: dict[str, Any] = {
        "sent": len(answers),
        "sent_per_s": round(len(answers) / seconds, 2),
        "answered_per_s": round(len(good) / seconds, 2),
        "goodput_per_s": round(sum(one.seconds <= slo_s for one in good) / seconds, 2),
        "refused": len(refused),
        "refused_with_a_time": sum("retry_after_ms" in one.body.get("error", {}) for one in refused),
        "errors": sum(one.status not in (200, 429, 503) for one in answers),
        "statuses": dict(sorted(statuses.items())),
        "client_late_ms_p99": _percentile([one.late * 1e3 for one in answers], 99),
    }
    if len(good):
        found["latency_ms"] = {
            "avg": round(float(latencies.mean()), 2),
            "p50": _percentile(latencies, 50),
            "p90": _percentile(latencies, 90),
            "p99": _percentile(latencies, 99),
        }
        found["refusal_ms_p99"] = _percentile([one.seconds * 1e3 for one in refused], 99) if refused else None
        if own := [one.body for one in good if "batch_size" in one.body]:  # a peer's answers lack it
            found["batch_size_mean"] = round(float(np.mean([body["batch_size"] for body in own])), 2)
            found["stages_ms"] = _stages(body["timings_ms"] for body in own)
    return found


def served(
    run: Callable[[Sequence[Any]], object],
    times: NDArray[np.float64],
    prompts: Sequence[Any],
    *,
    max_batch: int,
    give_up_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Latencies of requests that arrive at these times, on a virtual clock. Stops once the queue is `give_up_s` behind.

    Batches are formed of what has arrived, each is really run, and the clock moves by the seconds that this took. So waiting
    costs nothing, a peer without a server of its own can be served, and all are served alike, in this process.
    """
    now, next_one, latencies = 0.0, 0, []
    while next_one < len(times):
        now = max(now, float(times[next_one]))
        if now - float(times[next_one]) > give_up_s:
            break
        end = min(int(np.searchsorted(times, now, side="right")), next_one + max_batch)
        began = clock()
        run(prompts[next_one:end])
        now += clock() - began
        latencies += [now - float(at) for at in times[next_one:end]]
        next_one = end
    milliseconds = np.array(latencies) * 1e3
    return {
        "served": len(latencies),
        "sent": len(times),
        "gave_up": next_one < len(times),
        "avg_ms": round(float(milliseconds.mean()), 2),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
    }


def _stages(timings: Iterable[dict[str, float]]) -> dict[str, dict[str, float]]:
    """p50 and p99 of each stage."""
    rows = list(timings)
    return {
        name: {"p50": _percentile([row[name] for row in rows], 50), "p99": _percentile([row[name] for row in rows], 99)}
        for name in rows[0]
    }


def _percentile(values: Sequence[float] | Floats, percent: float) -> float:
    return round(float(np.percentile(np.asarray(values), percent)), 3)
