"""Beams that can no longer win: searches for 10 items that run them in the last round, or leave them out as the engine does.

The demo's trained model and its users' histories, both ways in turns, equal items asserted. Then, at the shape of Qwen3-0.6B
with random weights, which would need every beam, the last level alone by how many of its beams are run.

Shapes: B requests, K beams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rows import interleaved, spread
from benchmarks.serving.engines import check_same_sets, one_thread, shape_of
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.production import large_run
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.engine.decoder import LastRounds, RoundKind
from leafbeam.model import Workspace

__all__ = ["measure", "measure_rows", "runs"]

ITEMS = 10
_HISTORY = 12  # items
_COUNTS = (1, 10, 20, 50, 128)
_WARM = 16  # batches from which the choice is learned before the clock runs
Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]


def runs(quick: bool) -> Runs:
    """A row for each number of requests and of beams, then one of the large model."""
    run = LoadRun.demo(quick)
    with one_thread():
        for batch in (1, 8):
            for beams in (20, 50) if quick else (20, 50, 128, 512):
                yield measure(run, beams, batch, batches=24 if quick else 200)
        if not quick:
            yield measure_rows(large_run(run), repeats=9)


def measure(run: LoadRun, beams: int, batch: int, batches: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Milliseconds of prompts and search both ways, and how many beams the last round needs."""
    rng, workspace = np.random.default_rng(0), Workspace()
    vocabulary, num_levels = run.model.vocabulary, run.trie.num_levels
    search = BeamSearch(run.trie, [beams] * (num_levels - 1) + [ITEMS])
    kind = RoundKind(batch=batch, num_beams=beams, num_kept=ITEMS, scoring="full")
    last_rounds, needed = LastRounds(), list[int]()

    def searched(prompts: list[NDArray[np.int64]], *, whole: bool) -> SearchResult:
        tokens_BT, lengths_B = vocabulary.prompts(prompts)
        session = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=workspace)
        num_first = None if whole else last_rounds.num_first(kind)
        last_step_fn = None if num_first is None else session.last_step_fn
        return search.run(session.step_fn, batch, last_step_fn=last_step_fn, num_first=num_first)

    def picked() -> list[NDArray[np.int64]]:
        users = rng.integers(len(run.histories), size=batch)
        return [run.trie.codes_at(run.leaves_of(run.histories[int(user)][-_HISTORY - 1 : -1])) for user in users]

    seconds: dict[str, list[float]] = {"whole": [], "leafbeam": []}
    for number in range(_WARM + batches):
        prompts, found = picked(), dict[str, SearchResult]()
        for name, taken in seconds.items():
            began = time.perf_counter()
            found[name] = searched(prompts, whole=name == "whole")
            if number >= _WARM:
                taken.append(time.perf_counter() - began)
        check_same_sets(found["leafbeam"].item_ids, found["whole"].item_ids)
        needed_B = found["leafbeam"].beams_needed
        assert needed_B is not None
        last_rounds.observe(kind, needed_B)
        needed += needed_B.tolist()
    whole, leafbeam = (float(np.median(seconds[name])) for name in ("whole", "leafbeam"))
    return {"what": "searches", "K": beams, "B": batch, "items": ITEMS, "history": _HISTORY} | shape_of(run), {
        "search_ms": {name: spread(values, 1e-3) for name, values in seconds.items()},
        "whole_over_leafbeam": round(whole / leafbeam, 2),
        "beams_needed": {"mean": round(float(np.mean(needed)), 1), "p90": float(np.percentile(needed, 90))},
        "repeats": batches,
    }


def measure_rows(run: LoadRun, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Milliseconds of the last level by how many of its beams are run, after a prompt of 32 items."""
    tokens_BT, lengths_B = run.model.vocabulary.prompts([run.trie.codes_at(np.arange(32))])
    session = run.model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace=Workspace())
    session.step_fn()
    sizes, most = run.trie.codebook_sizes, max(_COUNTS)
    parents = torch.zeros((1, most), dtype=torch.int64)
    for size in sizes[:-2]:
        session.step_fn(torch.arange(most)[None] % size, parents)
    last_1K = torch.arange(most)[None] % sizes[-2]

    def last(count: int) -> Callable[[], Any]:
        return lambda: session.last_step_fn(last_1K[:, :count], parents[:, :count])

    times = interleaved({str(count): last(count) for count in _COUNTS}, repeats)
    parameters = {"what": "beams of a last level", "prompt_tokens": int(lengths_B[0])} | shape_of(run)
    return parameters, {"round_ms": {name: spread(values, 1e-3) for name, values in times.items()}, "repeats": repeats}
