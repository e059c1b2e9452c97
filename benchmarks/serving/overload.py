"""`leafbeam serve` under three times the load that it can answer, in four runs, each on a server of its own.

    capacity  answers each second within the objective, at the best of rising Poisson rates of a few seconds each
    best      the most answers in time each second, at steady shares of that capacity, each before and after the overload
    overload  three times the capacity for a minute, then a third of it: goodput over the best, whether everyone was answered
              or refused, how soon it recovers
    loop      CPU time of the server's event loop for an answer and for a refusal, by least squares over all of these loads

The server has one HTTP worker, as one that meets floods should.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import load
from benchmarks.serving.load import Answered
from benchmarks.serving.load_run import BEAMS, LoadRun
from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.serve import SLO_S, load_run, measure_capacity, memory_of, warm
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["measure", "runs"]

_RUNS = 4
_SHARES = 0.75, 1.0, 1.25
_AFTER_S = 5.0


def runs(quick: bool, data: Path | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each run. data: a directory of interactions; None: the made shop."""
    with load_run(quick, data) as run, torch_threads(1):
        for number in range(1 if quick else _RUNS):
            yield measure(run, number, *((1.0, 2.0, 3.0) if quick else (3.0, 12.0, 60.0)))


def measure(
    run: LoadRun, number: int, rising_s: float, steady_s: float, overload_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of run `number`. Seconds: of each rate up to the capacity, each share of it, the overload."""
    options = ["--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}", "--http-workers", "1"]
    rng = np.random.default_rng((7, number))
    goodput: dict[float, list[float]] = {share: [] for share in _SHARES}
    loads: list[tuple[float, float, float]] = []  # answered, refused, seconds of the event loop

    def send(server: Served, rate: load.Rate, seconds: float) -> list[Answered]:
        began = server.loop_seconds
        answers = server.send(run.planned(rng, load.arrivals(rng, rate, seconds)))
        answered = sum(one.status == 200 for one in answers)
        loads.append((answered, len(answers) - answered, server.loop_seconds - began))
        return answers

    with serving(run.path, *options) as server:
        warm(run, server, rng)
        capacity = measure_capacity(run, server, rng, rising_s)

        def send_shares() -> None:
            for share in _SHARES:
                answers = send(server, load.steady(share * capacity), steady_s)
                goodput[share].append(load.summary(answers, seconds=steady_s, slo_s=SLO_S)["goodput_per_s"])

        send_shares()
        answers = send(server, load.burst(capacity / 3, 3 * capacity, 0, overload_s), overload_s + _AFTER_S)
        found, memory = _summary(answers, overload_s), memory_of(server)
        send_shares()
    best = max(float(np.mean(found)) for found in goodput.values())
    answer_s, refusal_s = np.linalg.lstsq(np.array(loads)[:, :2], np.array(loads)[:, 2])[0]
    measured = found | {
        "memory": memory,
        "capacity_per_s": round(capacity, 2),
        "best_per_s": round(best, 2),
        "goodput_over_best_rate": round(found["goodput_per_s"] / max(best, 1e-9), 3),
        "loop_ms": {"answer": round(float(answer_s) * 1e3, 3), "refusal": round(float(refusal_s) * 1e3, 3)},
    }
    parameters = {"data": run.path.name, "K": BEAMS, "slo_ms": SLO_S * 1e3, "server": " ".join(options), **run.shape}
    return parameters | {"run": number, "seconds": overload_s}, measured


def _summary(answers: list[Answered], seconds: float) -> dict[str, Any]:
    """What the answers to an overload of so many seconds, and to the little after it, were."""
    during = [one for one in answers if one.at < seconds]
    accepted = np.array([one.seconds for one in during if one.status == 200])
    later = sorted((one for one in answers if one.at >= seconds), key=lambda one: one.at)
    bad = [one.at - seconds for one in later if one.status != 200 or one.seconds > SLO_S]
    return load.summary(during, seconds=seconds, slo_s=SLO_S) | {
        "accepted_p99_within_slo": bool(len(accepted)) and float(np.percentile(accepted, 99)) <= SLO_S,
        "unanswered": sum(one.status == 0 for one in answers),
        "recovered_after_s": round(max(bad, default=0.0), 2),
    }
