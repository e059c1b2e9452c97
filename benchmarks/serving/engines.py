"""The engine and its peers, side by side in this process: PagedAttention, per-beam copies, and generate of transformers.

All find the same items, asserted before any speed is measured, and run the same batches interleaved. What stops a peer is in
the row, under "failed".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers import paged_engine, per_beam_engine
from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.failure import failures_of
from benchmarks.peers.hf_generate import HfGenerate
from benchmarks.rows import interleaved, spread
from benchmarks.serving import load
from benchmarks.serving.load_run import LoadRun
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.model import DecodeSession, ModelConfig, Workspace, search_bytes

__all__ = [
    "BEAMS",
    "Sizes",
    "answering",
    "check_same",
    "engines",
    "kv_bytes_of",
    "measure_engine",
    "measure_equal_p99",
    "measure_long_prompts",
    "measure_long_prompts_within",
    "one_thread",
    "shape_of",
    "versus",
]

Prompts = Sequence[NDArray[np.int64]]
Search = Callable[[Prompts], SearchResult]
BEAMS = 50


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Searches at once: requests in flight, tokens of each prompt, beams, and rounds after the prompt."""

    prompt_tokens: int
    beams: int
    rounds: int
    inflight: int = 1


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
    """Histories of the data, 50 beams: leafbeam, generate and the paged peers, side by side in this process."""
    rng = np.random.default_rng(batch_size)
    batches = [run.prompts(rng, batch_size) for _ in range(repeats)]
    searches, failed = answering(engines(run, BeamSearch(run.trie, BEAMS, scoring="allowed")), batches[0])
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
    return parameters | shape_of(run), {**measured, "failed": failed, "identical_item_sets": same, "repeats": repeats}


def measure_equal_p99(run: LoadRun, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Requests a second of leafbeam, in the largest batches whose p99 is no worse than that of generate, against generate's.

    Of the means of 20 batches; their p99 lies between the two slowest.
    """
    repeats = 3 if quick else 20
    rng = np.random.default_rng(99)
    parameters = {"what": "equal p99", "data": run.path.name, "K": BEAMS} | shape_of(run)
    generate = _generate(run)
    leafbeam = engines(run, BeamSearch(run.trie, BEAMS, scoring="allowed"))["leafbeam"]
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
    searches = [engines(run, BeamSearch(run.trie, num_beams, scoring="allowed")) for _ in range(workers)]
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
    return parameters | shape_of(run) | {"threads": workers}, {**measured, "failed": failed, "kv_bytes": kv_bytes}


def measure_long_prompts_within(
    run: LoadRun, tokens: int, rates: Sequence[float], requests: int, *, num_beams: int = 128, slo_s: float = 0.2
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The highest of rising Poisson rates at which p99 stays within the objective, on a virtual clock; batches of up to 4."""
    prompts = [_long(run, seed, 1, tokens)[0] for seed in range(requests)]
    searches, failed = answering(engines(run, BeamSearch(run.trie, num_beams, scoring="allowed")), prompts[:1])
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
    return parameters | {"slo_ms": slo_s * 1e3} | shape_of(run), measured


def _long(run: LoadRun, seed: int, batch_size: int, tokens: int) -> Prompts:
    """Histories of items drawn at random, so many tokens of each."""
    rng = np.random.default_rng([seed, tokens])
    length = tokens // run.trie.num_levels
    return [run.trie.codes_at(rng.integers(0, run.trie.num_leaves, length)) for _ in range(batch_size)]


def engines(run: LoadRun, search: BeamSearch) -> dict[str, Search]:
    """A whole search from histories: ours, through block tables, and with a copy of the prompt for each beam.

    Each has its own workspace.
    """

    def searched(start: Callable[[Tensor, Tensor, Workspace], DecodeSession]) -> Search:
        workspace = Workspace()

        def answer(prompts: Prompts) -> SearchResult:
            tokens_BT, lengths_B = run.model.vocabulary.prompts(prompts)
            rounds = start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace)
            return search.run(rounds.step_fn, batch_size=len(prompts))

        return answer

    return {
        "leafbeam": searched(lambda *given: run.model.start(*given[:2], workspace=given[2])),
        "paged_attention": searched(partial(paged_engine.start, run.model)),
        "per_beam_copies": searched(partial(per_beam_engine.start, run.model)),
    }


def kv_bytes_of(name: str, config: ModelConfig, sizes: Sizes) -> int:
    """Bytes of keys and values that a search of this engine holds, by arithmetic; pages count whole."""
    given = asdict(sizes)
    shared = search_bytes(config, **given)
    if name == "leafbeam":
        return shared
    if name == "per_beam_copies":
        return shared + sizes.beams * search_bytes(config, **given | {"beams": 0})
    prompts = np.full(sizes.inflight, sizes.prompt_tokens)
    tables = BlockTables(prompts, paged_engine.PAGE, sizes.rounds)
    tables.extend(np.zeros((sizes.inflight, sizes.beams), np.int64), sizes.rounds)
    return tables.peak * search_bytes(config, prompt_tokens=paged_engine.PAGE, beams=0, rounds=0)


def answering(searches: Mapping[str, Search], prompts: Prompts) -> tuple[dict[str, Search], dict[str, dict[str, str]]]:
    """The engines that answer, their answers asserted to be leafbeam's, and the rows of the others."""
    mine = searches["leafbeam"](prompts)

    def check(theirs: SearchResult) -> None:
        np.testing.assert_allclose(theirs.scores, mine.scores, atol=1e-3)
        check_same_sets(mine.item_ids, theirs.item_ids)

    failed = failures_of({name: partial(answer, prompts) for name, answer in searches.items()}, check)
    return {name: answer for name, answer in searches.items() if name not in failed}, failed


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


def check_same_sets(mine: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    """Assert equal item sets, but for one that is a tie at the last place."""
    for one, other in zip(mine, theirs, strict=True):
        assert len(set(one.tolist()) ^ set(other.tolist())) <= 2


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


def shape_of(run: LoadRun) -> dict[str, Any]:
    """The model and the catalog, for a row."""
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
