"""`bench serve`: the engine beside its peers, then `pleach serve` under load from a second process, over real HTTP.

    engine    in this process, one thread, side by side: pleach, generate of transformers, the prompt copied for each beam. All
              find the same items (asserted) before any speed is measured
    capacity  answers each second within the objective, at the best of rising Poisson rates of a few seconds each
    rates     Poisson arrivals at shares of that capacity, up to 1.25: latencies, goodput under the objective, stages, memory
    diurnal   a day pressed into the run, peaking at 0.9 of the capacity; burst: twice the capacity for a tenth of the time
    lengths   histories of synthetic items, from 250 to 1,250 of them with a power law: prompts of 1,000 to 5,000 tokens
    overload  three times the capacity, then a third of it: goodput, whether all were answered or refused, how soon it recovers

One process and one core each for server and client, so that two cores are what it needs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pleach.bench import load
from pleach.bench.load import Answered, Planned
from pleach.bench.load_run import LoadRun
from pleach.bench.load_server import Served, serving
from pleach.bench.peers import per_beam_engine
from pleach.bench.peers.hf_generate import HfGenerate
from pleach.bench.rows import interleaved, spread
from pleach.decode import BeamSearch, SearchResult
from pleach.model import Rounds, Workspace, search_bytes

__all__ = ["load_run", "measure_engine", "measure_long_prompts", "runs", "versus"]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
Prompts = Sequence[NDArray[np.int64]]
BEAMS, SLO_S = 50, 0.2


def runs(quick: bool, data: Path | None = None) -> Runs:
    """(parameters, measured) of each part. data: a directory of interactions, such as Amazon Beauty; None: the made shop."""
    with load_run(quick, data) as run, one_thread():
        for batch_size in (1, 4) if quick else (1, 4, 16):
            yield measure_engine(run, batch_size, repeats=2 if quick else 8)
        yield measure_equal_p99(run, quick)
        for batch_size in (1,) if quick else (1, 4):
            yield measure_long_prompts(run, batch_size, tokens=128 if quick else 512, repeats=2 if quick else 12)
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


@contextmanager
def one_thread() -> Generator[None]:
    """torch on one thread for the time being."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure_engine(run: LoadRun, batch_size: int, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Histories of the data, 50 beams: pleach, generate, copies, side by side in this process."""
    rng = np.random.default_rng(batch_size)
    batches = [run.prompts(rng, batch_size) for _ in range(repeats)]
    peer = HfGenerate.of(run.path / "model", run.trie, run.model.vocabulary)
    search = BeamSearch(run.trie, BEAMS, scoring="allowed")
    pleach, copied = engines(run, search)
    same = 0
    for prompts in batches[:2]:
        mine, theirs = pleach(prompts), peer.recommend(prompts, BEAMS)
        same += check_same(run, mine, *theirs)
        np.testing.assert_allclose(copied(prompts).scores, mine.scores, atol=1e-3)
    ways: dict[str, Callable[[Prompts], Any]] = {
        "pleach": pleach,
        "hf_generate": lambda prompts: peer.recommend(prompts, BEAMS),
        "per_beam_copies": copied,
    }
    measured = versus(ways, batches, batch_size)
    tokens = int(np.mean([1 + prompt.size for prompts in batches for prompt in prompts]))
    parameters = {"what": "engine", "data": run.path.name, "B": batch_size, "K": BEAMS, "prompt_tokens_mean": tokens}
    return parameters | shape_of(run), {**measured, "identical_item_sets": same, "repeats": repeats}


def measure_equal_p99(run: LoadRun, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Requests a second of pleach, in the largest batches whose p99 is no worse than that of generate, against generate's."""
    repeats = 3 if quick else 20
    rng = np.random.default_rng(99)
    peer = HfGenerate.of(run.path / "model", run.trie, run.model.vocabulary)
    pleach, _ = engines(run, BeamSearch(run.trie, BEAMS, scoring="allowed"))
    sizes = {"pleach": (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32), "hf_generate": (1,) if quick else (1, 2)}
    batches = {size: [run.prompts(rng, size) for _ in range(repeats)] for size in sizes["pleach"]}
    run_of: dict[str, Callable[[Prompts], Any]] = {
        "pleach": pleach,
        "hf_generate": lambda prompts: peer.recommend(prompts, BEAMS),
    }
    check_same(run, pleach(batches[1][0]), *peer.recommend(batches[1][0], BEAMS))
    pleach(batches[max(batches)][0])
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
        as_good = [("pleach", mine) for mine in sizes["pleach"] if p99["pleach", mine] <= bound]
        best = max(as_good, key=lambda at: rate[at], default=None)
        ratios[f"generate in batches of {size}"] = {
            "pleach_in_batches_of": None if best is None else best[1],
            "throughput_over_generate": None if best is None else round(rate[best] / rate["hf_generate", size], 2),
        }
    measured = {
        "p99_ms": {f"{name}, {size}": round(value * 1e3, 2) for (name, size), value in p99.items()},
        "requests_per_s": {f"{name}, {size}": round(value, 2) for (name, size), value in rate.items()},
        "at_equal_p99": ratios,
        "repeats": repeats,
    }
    return {"what": "equal p99", "data": run.path.name, "K": BEAMS} | shape_of(run), measured


def measure_long_prompts(
    run: LoadRun, batch_size: int, tokens: int, repeats: int, num_beams: int = 128
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Prompts of so many tokens: the prompt once against a copy for each beam; the same answers, asserted."""
    rng = np.random.default_rng(tokens)
    levels = run.trie.num_levels
    batches = [
        [run.trie.codes_at(rng.integers(0, run.trie.num_leaves, tokens // levels)) for _ in range(batch_size)]
        for _ in range(repeats)
    ]
    pleach, copied = engines(run, BeamSearch(run.trie, num_beams, scoring="allowed"))
    mine, theirs = pleach(batches[0]), copied(batches[0])
    np.testing.assert_allclose(theirs.scores, mine.scores, atol=1e-3)
    check_same_sets(mine.item_ids, theirs.item_ids)
    measured = versus({"pleach": pleach, "per_beam_copies": copied}, batches, batch_size)
    sizes: dict[str, int] = {"prompt_tokens": tokens, "beams": num_beams, "rounds": levels - 1, "inflight": batch_size}
    shared = search_bytes(run.model.config, **sizes)
    per_beam = shared + search_bytes(run.model.config, **sizes | {"beams": 0}) * num_beams
    parameters = {"what": "long prompts", "data": run.path.name, "B": batch_size, "K": num_beams, "prompt_tokens": tokens}
    return parameters | shape_of(run), {**measured, "kv_bytes": {"pleach": shared, "per_beam_copies": per_beam}}


def engines(run: LoadRun, search: BeamSearch) -> tuple[Callable[[Prompts], SearchResult], Callable[[Prompts], SearchResult]]:
    """A whole search from histories: with the prompt once, and with a copy for each beam; each in its own workspace."""

    def searched(start: Callable[[torch.Tensor, torch.Tensor], Rounds]) -> Callable[[Prompts], SearchResult]:
        def answer(prompts: Prompts) -> SearchResult:
            tokens_BT, lengths_B = run.model.vocabulary.prompts(prompts)
            rounds = start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
            return search.run(rounds.step_fn, batch_size=len(prompts))

        return answer

    mine, theirs = Workspace(), Workspace()
    return (
        searched(lambda tokens, lengths: run.model.start(tokens, lengths, workspace=mine)),
        searched(lambda tokens, lengths: per_beam_engine.start(run.model, tokens, lengths, theirs)),
    )


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


def check_same_sets(mine: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    """Assert equal item sets, but for one that is a tie at the last place."""
    for one, other in zip(mine, theirs, strict=True):
        assert len(set(one.tolist()) ^ set(other.tolist())) <= 2


def versus(ways: dict[str, Callable[[Prompts], Any]], batches: Sequence[Prompts], batch_size: int) -> dict[str, Any]:
    """Seconds of each way on the same batches, in turns; and ratios of its median to pleach's, paired by batch."""
    for run in ways.values():
        run(batches[0])
    at = iter(batches[turn] for turn in range(len(batches)) for _ in ways)
    taken = interleaved({name: lambda run=run: run(next(at)) for name, run in ways.items()}, len(batches))
    pleach = np.array(taken["pleach"])
    return {
        "batch_ms": {name: spread(seconds, 1e-3) for name, seconds in taken.items()},
        "batch_ms_worst": {name: round(max(seconds) * 1e3, 2) for name, seconds in taken.items()},
        "requests_per_s": {name: round(batch_size / float(np.median(seconds)), 2) for name, seconds in taken.items()},
        "over_pleach": {
            name: round(float(np.median(np.array(seconds) / pleach)), 2) for name, seconds in taken.items() if name != "pleach"
        },
    }


def shape_of(run: LoadRun) -> dict[str, Any]:
    """The model and the catalogue, for a row."""
    config = run.model.config
    return {
        "num_items": run.trie.num_items,
        "levels": run.trie.num_levels,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "key_heads": config.num_key_value_heads,
        "threads": 1,
    }


def _over_http(run: LoadRun, quick: bool) -> Runs:
    options = ["--beams", str(BEAMS), "--threads", "1", "--slo-ms", f"{SLO_S * 1e3:g}"]
    seconds = 2.0 if quick else 12.0
    rng = np.random.default_rng(7)
    base = {"data": run.path.name, "K": BEAMS, "slo_ms": SLO_S * 1e3, "server": " ".join(options)} | shape_of(run)
    with serving(run.path, *options) as server:
        _warm(run, server, rng)
        capacity = measure_capacity(run, server, rng, 1.0 if quick else 3.0)
        yield base | {"what": "capacity"}, {"answered_per_s": round(capacity, 2), "memory": _memory(server)}
        best = 0.0  # of rates that last
        for share in (0.5,) if quick else (0.25, 0.5, 0.75, 1.0, 1.25):
            times = load.arrivals(rng, load.steady(share * capacity), seconds)
            measured = _sent(server, run.planned(rng, times), seconds)
            best = max(best, measured["goodput_per_s"])
            yield base | {"what": "rate", "share_of_capacity": share}, measured
        for name, rate in (
            ("diurnal", load.diurnal(0.5 * capacity, seconds)),
            ("burst", load.burst(0.4 * capacity, 2 * capacity, 0.4 * seconds, 0.5 * seconds)),
        ):
            times = load.arrivals(rng, rate, seconds)
            yield base | {"what": name}, _sent(server, run.planned(rng, times), seconds)
        measured = _overload(run, server, rng, capacity, 3.0 if quick else 60.0)
        measured["goodput_over_best_rate"] = round(measured["goodput_per_s"] / max(best, 1e-9), 3)
        yield base | {"what": "overload", "share_of_capacity": 3.0}, measured
    slow = ["--beams", "128", "--threads", "1", "--slo-ms", "2000"]
    with serving(run.path, *slow) as server:
        times = load.arrivals(rng, load.steady(1.0), seconds)
        lengths = load.power_law(rng, 25 if quick else 250, 60 if quick else 1250, len(times))
        measured = _sent(server, run.planned(rng, times, lengths=lengths), seconds, slo_s=2.0)
        tokens = 1 + run.trie.num_levels * lengths
        measured["prompt_tokens"] = {"mean": int(tokens.mean()), "max": int(tokens.max())} if len(tokens) else {}
        yield base | {"what": "lengths", "K": 128, "slo_ms": 2000, "server": " ".join(slow)}, measured


def measure_capacity(run: LoadRun, server: Served, rng: np.random.Generator, seconds: float) -> float:
    """Answers each second within the objective, at the best of rising Poisson rates: half as much again, until it falls."""
    rate, best = 8.0, 0.0
    while True:
        times = load.arrivals(rng, load.steady(rate), seconds)
        answers = server.send(run.planned(rng, times))
        good = sum(one.status == 200 and one.seconds <= SLO_S for one in answers) / seconds
        if good < 0.75 * rate or rate > 5000:
            return max(good, best)
        best, rate = max(best, good), 1.5 * rate


def _overload(run: LoadRun, server: Served, rng: np.random.Generator, capacity: float, seconds: float) -> dict[str, Any]:
    """Three times the capacity for `seconds`, then a third of it: was everyone answered or refused, how soon is it well?"""
    after = 5.0
    rate = load.burst(capacity / 3, 3 * capacity, 0, seconds)
    answers = server.send(run.planned(rng, load.arrivals(rng, rate, seconds + after)))
    during = [one for one in answers if one.at < seconds]
    measured = load.summary(during, seconds=seconds, slo_s=SLO_S)
    accepted = np.array([one.seconds for one in during if one.status == 200])
    later = sorted((one for one in answers if one.at >= seconds), key=lambda one: one.at)
    bad = [one.at - seconds for one in later if one.status != 200 or one.seconds > SLO_S]
    return measured | {
        "goodput_over_capacity": round(measured["goodput_per_s"] / capacity, 3),
        "accepted_p99_within_slo": bool(len(accepted)) and float(np.percentile(accepted, 99)) <= SLO_S,
        "unanswered": sum(one.status == 0 for one in answers),
        "recovered_after_s": round(max(bad, default=0.0), 2),
        "memory": _memory(server),
    }


def _warm(run: LoadRun, server: Served, rng: np.random.Generator) -> None:
    server.send(run.planned(rng, np.linspace(0, 1, 20)))


def _sent(server: Served, planned: Sequence[Planned], seconds: float, slo_s: float = SLO_S) -> dict[str, Any]:
    began = time.perf_counter()
    answers: list[Answered] = server.send(planned)
    taken = time.perf_counter() - began
    return load.summary(answers, seconds=seconds, slo_s=slo_s) | {"memory": _memory(server), "wall_s": round(taken, 1)}


def _memory(server: Served) -> dict[str, int]:
    now, peak = server.resident_bytes
    return {"resident": now, "resident_peak": peak}
