"""The engine beside its peers, then `leafbeam serve` under load from a second process, over real HTTP.

    engine    in this process, one thread, side by side: leafbeam, generate of transformers, PagedAttention, per-beam copies.
              All find the same items (asserted) before any speed is measured; long prompts on both cores too
    capacity  answers each second within the objective, at the best of rising Poisson rates of a few seconds each
    rates     Poisson arrivals at shares of that capacity, up to 1.25: latencies, goodput under the objective, stages, memory
    diurnal   a day pressed into the run, peaking at 0.9 of the capacity; burst: twice the capacity for a tenth of the time
    lengths   histories of synthetic items, from 250 to 1,250 of them with a power law: prompts of 1,000 to 5,000 tokens

One process and one core each for server and client, so that two cores are what it needs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.hf_generate import keep_freed_memory
from benchmarks.serving import engines, load
from benchmarks.serving.engines import BEAMS, one_thread, shape_of
from benchmarks.serving.load import Answered, Planned
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served, serving

__all__ = ["SLO_S", "load_run", "measure_capacity", "memory_of", "runs", "warm"]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
SLO_S = 0.2


def runs(quick: bool, data: Path | None = None) -> Runs:
    """(parameters, measured) of each part. data: a directory of interactions, such as Amazon Beauty; None: the made shop."""
    if not quick:
        keep_freed_memory()
    with load_run(quick, data) as run, one_thread():
        for batch_size in (1, 4) if quick else (1, 4, 16):
            yield engines.measure_engine(run, batch_size, repeats=2 if quick else 8)
        yield engines.measure_equal_p99(run, quick)
        tokens = 128 if quick else 512
        for batch_size, workers in ((1, 2),) if quick else ((1, 1), (4, 1), (1, 2), (4, 2)):
            yield engines.measure_long_prompts(run, batch_size, tokens, 2 if quick else 12, workers=workers)
        rates = (1.0, 2.0) if quick else tuple(2.0 ** (half / 2) for half in range(-6, 11))
        for slo_s in (0.3,) if quick else (0.2, 0.3, 0.5):
            yield engines.measure_long_prompts_within(run, tokens, rates, 10 if quick else 100, slo_s=slo_s)
        yield from _over_http(run, quick)


@contextmanager
def load_run(quick: bool, data: Path | None) -> Generator[LoadRun]:
    """What is served: kept under runs/ for the next time, or, quick, a small one that is thrown away."""
    if not quick:
        name = "shop" if data is None else data.name
        yield LoadRun.make(Path("runs") / f"bench-{name}", data)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield LoadRun.make(Path(folder), data, items=600, users=300)


def _over_http(run: LoadRun, quick: bool) -> Runs:
    options = ["--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}"]
    seconds = 2.0 if quick else 12.0
    rng = np.random.default_rng(7)
    base = {"data": run.path.name, "K": BEAMS, "slo_ms": SLO_S * 1e3, "server": " ".join(options)} | shape_of(run)
    with serving(run.path, *options) as server:
        warm(run, server, rng)
        capacity = measure_capacity(run, server, rng, 1.0 if quick else 3.0)
        yield base | {"what": "capacity"}, {"answered_per_s": round(capacity, 2), "memory": memory_of(server)}
        for share in (0.5,) if quick else (0.25, 0.5, 0.75, 1.0, 1.25):
            times = load.arrivals(rng, load.steady(share * capacity), seconds)
            yield base | {"what": "rate", "share_of_capacity": share}, _sent(server, run.planned(rng, times), seconds)
        for name, rate in (
            ("diurnal", load.diurnal(0.5 * capacity, seconds)),
            ("burst", load.burst(0.4 * capacity, 2 * capacity, 0.4 * seconds, 0.5 * seconds)),
        ):
            times = load.arrivals(rng, rate, seconds)
            yield base | {"what": name}, _sent(server, run.planned(rng, times), seconds)
    slow = ["--beams", "128", "--threads", "1", "--slo-ms", "2000"]
    with serving(run.path, *slow) as server:
        times = load.arrivals(rng, load.steady(1.0), seconds)
        lengths = load.power_law(rng, 25 if quick else 250, 60 if quick else 1250, len(times))
        measured = _sent(server, run.planned(rng, times, lengths=lengths), seconds, slo_s=2.0)
        tokens = 1 + run.trie.num_levels * lengths
        measured["prompt_tokens"] = {"mean": int(tokens.mean()), "max": int(tokens.max())} if len(tokens) else {}
        yield base | {"what": "lengths", "K": 128, "slo_ms": 2000, "server": " ".join(slow)}, measured


def measure_capacity(run: LoadRun, server: Served, rng: np.random.Generator, seconds: float) -> float:
    """Answers each second within the objective, at the best of rising Poisson rates: by a half, until two of one rate fail."""
    rate, best, failed = 8.0, 0.0, False
    while True:
        times = load.arrivals(rng, load.steady(rate), seconds)
        answers = server.send(run.planned(rng, times))
        good = sum(one.status == 200 and one.seconds <= SLO_S for one in answers) / seconds
        best = max(best, good)
        if good >= 0.75 * rate:
            rate, failed = 1.5 * rate, False
        elif failed or rate > 5000:
            return best
        else:
            failed = True  # a stall of the machine, perhaps


def warm(run: LoadRun, server: Served, rng: np.random.Generator) -> None:
    """Twenty requests in a second, before anything is timed."""
    server.send(run.planned(rng, np.linspace(0, 1, 20)))


def _sent(server: Served, planned: Sequence[Planned], seconds: float, slo_s: float = SLO_S) -> dict[str, Any]:
    """What a load of `seconds` got: answers, latencies, and the server's memory after it."""
    began = time.perf_counter()
    answers: list[Answered] = server.send(planned)
    taken = time.perf_counter() - began
    return load.summary(answers, seconds=seconds, slo_s=slo_s) | {"memory": memory_of(server), "wall_s": round(taken, 1)}


def memory_of(server: Served) -> dict[str, int]:
    """Resident bytes of the server, now and at their peak."""
    now, peak = server.resident_bytes
    return {"resident": now, "resident_peak": peak}
