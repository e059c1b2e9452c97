"""Every function that `Engine.recommend` runs for one request of the demo's model, under the profiler: calls and own time.

The profiler makes Python's calls several times as slow and torch's products not at all, so shares say where calls are, not how
long a request takes: that says `python -m benchmarks latency`.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.latency import BEAMS
from benchmarks.serving.load_run import LoadRun
from leafbeam.engine import Engine, Request, Settings
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["TIMED", "calls_of", "measure", "runs"]

TIMED = False  # the profiler's times are no speeds
Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
_TOP = 40


def runs(quick: bool) -> Runs:
    """One row: the functions with the most own time, and what all of them take."""
    yield measure(LoadRun.demo(quick), repeats=20 if quick else 300)


def measure(run: LoadRun, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a run."""
    engine = Engine(run.model, run.trie, settings=Settings(num_beams=BEAMS, threads=1))
    users_n = np.random.default_rng(0).integers(0, len(run.histories), repeats)
    requests = [Request(history=tuple(run.histories[int(user)].tolist())) for user in users_n]
    with torch_threads(1):
        engine.recommend(requests[:10])
        profiler = cProfile.Profile()
        profiler.enable()
        for request in requests:
            engine.recommend(request)
        profiler.disable()
    calls = calls_of(profiler, repeats)
    total = {"own_us": round(sum(one["own_us"] for one in calls), 1), "calls": round(sum(one["calls"] for one in calls), 1)}
    return {"K": BEAMS, "repeats": repeats}, total | {"top": calls[:_TOP]}


def calls_of(profiler: cProfile.Profile, requests: int) -> list[dict[str, Any]]:
    """Each function, the most own time first: calls a request, and microseconds of its own and with what it calls."""
    stats: Any = pstats.Stats(profiler)
    found = [
        {
            "function": f"{Path(path).name}:{line} {name}" if line else name,
            "calls": round(calls / requests, 2),
            "own_us": round(1e6 * own / requests, 2),
            "all_us": round(1e6 * everything / requests, 2),
        }
        for (path, line, name), (_, calls, own, everything, _) in stats.stats.items()
    ]
    return sorted(found, key=lambda one: -one["own_us"])
