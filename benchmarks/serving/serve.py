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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.failure import failures_of
from benchmarks.peers.hf_generate import HfGenerate, keep_freed_memory
from benchmarks.peers.searches import Prompts, Sizes, answering, kv_bytes_of, searches_of
from benchmarks.rows import interleaved, spread
from benchmarks.serving import load
from benchmarks.serving.load import Answered, Planned
from benchmarks.serving.load_run import BEAMS, LoadRun
from benchmarks.serving.load_server import Served, serving
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.model.cpu.threads import torch_threads

__all__ = [
    "SLO_S",
    "check_same",
    "load_run",
    "measure_capacity",
    "measure_engine",
    "measure_equal_p99",
    "measure_long_prompts",
    "measure_long_prompts_within",
    "memory_of",
    "runs",
    "warm",
]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
SLO_S = 0.2


def runs(quick: bool, data: Path | None = None) -> Runs:
    """(parameters, measured) of each part. data: a directory of interactions, such as Amazon Beauty; None: the made shop."""
    if not quick:
        keep_freed_memory()
    with load_run(quick, data) as run, torch_threads(1):
        for batch_size in (1, 4) if quick else (1, 4, 16):
            yield measure_engine(run, batch_size, repeats=2 if quick else 8)
        yield measure_equal_p99(run, quick)
        tokens = 128 if quick else 512
        for batch_size, workers in ((1, 2),) if quick else ((1, 1), (4, 1), (1, 2), (4, 2)):
            yield measure_long_prompts(run, batch_size, tokens, 2 if quick else 12, workers=workers)
        rates = (1.0, 2.0) if quick else tuple(2.0 ** (half / 2) for half in range(-6, 11))
        for slo_s in (0.3,) if quick else (0.2, 0.3, 0.5):
            yield measure_long_prompts_within(run, tokens, rates, 10 if quick else 100, slo_s=slo_s)
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
    base = {"data": run.path.name, "K": BEAMS, "slo_ms": SLO_S * 1e3, "server": " ".join(options)} | run.shape
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


def measure_engine(run: LoadRun, batch_size: int, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Histories of the data, 50 beams: leafbeam, generate and the paged peers, side by side in this process."""
    rng = np.random.default_rng(batch_size)
    batches = [run.prompts(rng, batch_size) for _ in range(repeats)]
    searches, failed = answering(searches_of(run.model, BeamSearch(run.trie, BEAMS, scoring="allowed")), batches[0])
    generate, compared = _generate(run), batches[:2]
    failed |= failures_of(
        {"hf_generate": lambda: [generate(prompts) for prompts in compared]},
        lambda found: [
            check_same(run, searches["leafbeam"](one), *theirs) for one, theirs in zip(compared, found, strict=True)
        ],
    )
    ways: dict[str, Callable[[Prompts], Any]] = searches | ({} if "hf_generate" in failed else {"hf_generate": generate})
    measured = versus(ways, batches, batch_size)
    tokens = int(np.mean([1 + prompt.size for prompts in batches for prompt in prompts]))
    parameters = {"what": "engine", "data": run.path.name, "B": batch_size, "K": BEAMS, "prompt_tokens_mean": tokens}
    same = 0 if "hf_generate" in failed else len(compared) * batch_size
    return parameters | run.shape, {**measured, "failed": failed, "identical_item_sets": same, "repeats": repeats}


def measure_equal_p99(run: LoadRun, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Requests a second of leafbeam, in the largest batches whose p99 is no worse than that of generate, against generate's.

    Of the means of 20 batches; their p99 lies between the two slowest.
    """
    repeats = 3 if quick else 20
    rng = np.random.default_rng(99)
    parameters = {"what": "equal p99", "data": run.path.name, "K": BEAMS} | run.shape
    generate = _generate(run)
    leafbeam = searches_of(run.model, BeamSearch(run.trie, BEAMS, scoring="allowed"))["leafbeam"]
    sizes = {"leafbeam": (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32), "hf_generate": (1,) if quick else (1, 2)}
    batches = {size: [run.prompts(rng, size) for _ in range(repeats)] for size in sizes["leafbeam"]}
    run_of: dict[str, Callable[[Prompts], Any]] = {"leafbeam": leafbeam, "hf_generate": generate}
    first = batches[1][0]
    failed = failures_of({"hf_generate": lambda: generate(first)}, lambda found: check_same(run, leafbeam(first), *found))
    if failed:
        return parameters, {"failed": failed}
    leafbeam(batches[max(batches)][0])
    taken: dict[tuple[str, int], list[float]] = {(name, size): [] for name in sizes for size in sizes[name]}
    for turn in range(repeats):
        for (name, size), seconds in taken.items():
            begin = time.perf_counter()
            run_of[name](batches[size][turn])
            seconds.append(time.perf_counter() - begin)
    p99 = {at: float(np.percentile(seconds, 99)) for at, seconds in taken.items()}
    rate = {at: at[1] / float(np.mean(seconds)) for at, seconds in taken.items()}
    ratios: dict[str, Any] = {}
    for size in sizes["hf_generate"]:
        bound = p99["hf_generate", size]
        as_good = [("leafbeam", mine) for mine in sizes["leafbeam"] if p99["leafbeam", mine] <= bound]
        best = max(as_good, key=lambda at: rate[at], default=None)
        ratios[f"generate in batches of {size}"] = {
            "leafbeam_in_batches_of": None if best is None else best[1],
            "throughput_over_generate": None if best is None else round(rate[best] / rate["hf_generate", size], 2),
        }
    measured = {
        "p99_ms": {f"{name}, {size}": round(value * 1e3, 2) for (name, size), value in p99.items()},
        "requests_per_s": {f"{name}, {size}": round(value, 2) for (name, size), value in rate.items()},
        "at_equal_p99": ratios,
        "repeats": repeats,
    }
    return parameters, measured


def measure_long_prompts(
    run: LoadRun, batch_size: int, tokens: int, repeats: int, *, workers: int = 1, num_beams: int = 128
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prompts of so many tokens: the prompt read once against the paged peer and copies; the same answers, asserted.

    workers: threads, each with a batch and a workspace of its own, that begin together; a turn ends with the last of them.
    """
    seeds = np.arange(repeats * workers).reshape(repeats, workers)
    turns = [[_long(run, int(seed), batch_size, tokens) for seed in turn] for turn in seeds]
    searches = [searches_of(run.model, BeamSearch(run.trie, num_beams, scoring="allowed")) for _ in range(workers)]
    alone, failed = answering(searches[0], turns[0][0])
    with ThreadPoolExecutor(workers) as pool:

        def together(name: str) -> Callable[[Sequence[Prompts]], None]:
            def answer(batches: Sequence[Prompts]) -> None:
                list(pool.map(lambda worker, batch: worker[name](batch), searches, batches))

            return answer

        measured = versus({name: together(name) for name in alone}, turns, workers * batch_size)
    sizes = Sizes(prompt_tokens=tokens, beams=num_beams, rounds=run.trie.num_levels - 1, inflight=workers * batch_size)
    parameters = {"what": "long prompts", "data": run.path.name, "B": batch_size, "K": num_beams, "prompt_tokens": tokens}
    kv_bytes = {name: kv_bytes_of(name, run.model.config, sizes) for name in searches[0]}
    return parameters | run.shape | {"threads": workers}, {**measured, "failed": failed, "kv_bytes": kv_bytes}


def measure_long_prompts_within(
    run: LoadRun, tokens: int, rates: Sequence[float], requests: int, *, num_beams: int = 128, slo_s: float = 0.2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The highest of rising Poisson rates at which p99 stays within the objective, on a virtual clock; batches of up to 4."""
    prompts = [_long(run, seed, 1, tokens)[0] for seed in range(requests)]
    searches, failed = answering(searches_of(run.model, BeamSearch(run.trie, num_beams, scoring="allowed")), prompts[:1])
    lasting: dict[str, float] = {}
    p99: dict[str, dict[str, float]] = {}
    for name, answer in searches.items():
        answer(prompts[:4])
        lasting[name], p99[name] = 0.0, {}
        for rate in rates:
            times = np.cumsum(np.random.default_rng(1).exponential(1 / rate, requests))
            found = load.served(answer, times, prompts, max_batch=4, give_up_s=5 * slo_s)
            p99[name][f"{rate:g}"] = found["p99_ms"]
            if found["gave_up"] or found["p99_ms"] > slo_s * 1e3:
                break
            lasting[name] = rate
    over = {
        name: round(lasting["leafbeam"] / rate, 2) if rate else None for name, rate in lasting.items() if name != "leafbeam"
    }
    parameters = {"what": "long prompts within p99", "data": run.path.name, "K": num_beams, "prompt_tokens": tokens}
    measured = {"lasting_per_s": lasting, "leafbeam_over": over, "p99_ms": p99, "failed": failed, "requests": requests}
    return parameters | {"slo_ms": slo_s * 1e3} | run.shape, measured


def _long(run: LoadRun, seed: int, batch_size: int, tokens: int) -> Prompts:
    """Histories of items drawn at random, so many tokens of each."""
    rng = np.random.default_rng([seed, tokens])
    length = tokens // run.trie.num_levels
    return [run.trie.codes_at(rng.integers(0, run.trie.num_leaves, length)) for _ in range(batch_size)]


def _generate(run: LoadRun) -> Callable[[Prompts], Any]:
    """`generate` of transformers, loaded at its first call."""
    peer = cache(lambda: HfGenerate.of(run.path / "model", run.trie, run.model.vocabulary))
    return lambda prompts: peer().recommend(prompts, BEAMS)


def check_same(run: LoadRun, mine: SearchResult, leaves_BK: NDArray[np.int64], scores_BK: NDArray[np.float32]) -> int:
    """Assert that both found the same SIDs with the same scores; how many requests were compared.

    Scores come from two programs in float32; where the last kept and the first left out are nearer than that, either is right.
    """
    np.testing.assert_allclose(np.sort(mine.scores, 1), np.sort(scores_BK, 1), atol=1e-3)
    for row, leaves in enumerate(leaves_BK):
        theirs = {tuple(sid) for sid in run.trie.codes_at(leaves).tolist()}
        found = {tuple(sid) for sid in mine.codes[row, : mine.num_valid[row]].tolist()}
        if found != theirs:
            edge = float(mine.scores[row, mine.num_valid[row] - 1])
            of_sid = dict(zip(map(tuple, run.trie.codes_at(leaves).tolist()), scores_BK[row].tolist(), strict=True))
            assert all(abs(of_sid[sid] - edge) < 1e-3 for sid in theirs - found), "the peer found other items"
    return len(leaves_BK)


def versus(ways: Mapping[str, Callable[[Any], object]], batches: Sequence[Any], batch_size: int) -> dict[str, Any]:
    """Seconds of each engine on the same batches, interleaved; and ratios of its median to leafbeam's, paired by batch."""
    for run in ways.values():
        run(batches[0])
    at = iter(batches[turn] for turn in range(len(batches)) for _ in ways)
    taken = interleaved({name: lambda run=run: run(next(at)) for name, run in ways.items()}, len(batches))
    leafbeam = np.array(taken["leafbeam"])
    return {
        "batch_ms": {name: spread(seconds, 1e-3) for name, seconds in taken.items()},
        "batch_ms_worst": {name: round(max(seconds) * 1e3, 2) for name, seconds in taken.items()},
        "requests_per_s": {name: round(batch_size / float(np.median(seconds)), 2) for name, seconds in taken.items()},
        "over_leafbeam": {
            name: round(float(np.median(np.array(seconds) / leafbeam)), 2)
            for name, seconds in taken.items()
            if name != "leafbeam"
        },
    }
