"""At sizes that do not fit the peers' memory: the same rounds over a small and a large catalog, interleaved.

STATIC claims a step whose time does not grow with the catalog; this is leafbeam's answer to it. Both catalogs are searched by
turns in one process with the same logits, of which there are many, so that the beams of each search go other ways through the
large index than those before: what is not in the processor's caches has to be fetched. The large one is built from chunks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro.step import B, K, L, V
from benchmarks.rows import spread
from benchmarks.workloads import random_chunk, random_logits
from leafbeam.index import Trie
from leafbeam.index.builder import TrieBuilder
from leafbeam.ops.constrain import Beams, Scoring, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["measure"]

SMALL = 100_000
_CHUNK = 1 << 20
_LOGITS = 16  # sets of them


def measure(
    distribution: str, num_items: int, repeats: int, small: int = SMALL, memory_limit: int = 4 << 30, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row: microseconds a step over both catalogs (mean over the levels), and the ratio."""
    rng = np.random.default_rng(seed)
    sets = [[random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)] for _ in range(_LOGITS)]
    began = time.perf_counter()
    tries = {
        "small": _build(distribution, small, memory_limit, seed),
        "large": _build(distribution, num_items, memory_limit, seed),
    }
    seconds_build = time.perf_counter() - began
    scorings: tuple[Scoring, ...] = ("full", "allowed")
    searches = {f"{name} {scoring}": _Search(trie, scoring) for name, trie in tries.items() for scoring in scorings}
    for search in searches.values():
        search.run(sets[0])
    seconds_RL: dict[str, list[list[float]]] = {name: [] for name in searches}
    names = list(searches)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # no method always follows the same other
            seconds_RL[name].append(searches[name].run(sets[turn % _LOGITS]))
    steps = {name: spread([sum(one) / L for one in runs]) for name, runs in seconds_RL.items()}
    measured = {
        "step_us": steps,
        "by_level_us": {name: np.median(np.array(runs) * 1e6, axis=0).round(1).tolist() for name, runs in seconds_RL.items()},
        "large_over_small": round(steps["large full"]["p50"] / steps["small full"]["p50"], 3),
        "large_over_small_allowed": round(steps["large allowed"]["p50"] / steps["small allowed"]["p50"], 3),
        "bytes_per_item": {name: round(trie.bytes_per_item, 2) for name, trie in tries.items()},
        "seconds_build": round(seconds_build, 1),
        "repeats": repeats,
    }
    parameters = {"distribution": distribution, "num_items": num_items, "small": small, "B": B, "K": K, "V": V, "L": L}
    return {**parameters, "logits": _LOGITS, "threads": 1}, measured


def _build(distribution: str, num_items: int, memory_limit: int, seed: int) -> Trie:
    """Built from chunks, and compared with a few of them."""
    with TrieBuilder([V] * L, memory_limit=memory_limit) as builder:
        for begin in range(0, num_items, _CHUNK):
            builder.add(random_chunk(distribution, min(_CHUNK, num_items - begin), V, L, seed, begin))
        trie = builder.finish()
    codes = random_chunk(distribution, min(_CHUNK, num_items), V, L, seed, 0)
    rows = np.random.default_rng(seed).integers(0, len(codes), 100)
    np.testing.assert_array_equal(trie.codes_of(rows), codes[rows])
    return trie


class _Search:
    """Whole searches over one catalog, of which the rounds are timed."""

    def __init__(self, trie: Trie, scoring: Scoring) -> None:
        self.trie = trie
        self.scoring: Scoring = scoring
        self.arrays = cpu.bind(trie)
        self.filters = cpu.bind_filters(self.arrays, request_filters(trie, B, None, None))
        self.fresh = [np.empty((B, 1 if level == 0 else K, V), np.float32) for level in range(L)]

    def run(self, logits: list[NDArray[np.float32]]) -> list[float]:
        """Seconds of each round; the logits are written anew before it, as a model's head would have done."""
        lo, hi = np.zeros((1, B, 1), np.int64), np.full((1, B, 1), self.trie.num_leaves)
        beams = Beams.start(lo, hi, np.zeros((B, 1), np.float32))
        seconds: list[float] = []
        for level, values in enumerate(logits):
            np.copyto(self.fresh[level], values)
            begin = time.perf_counter()
            beams = cpu.step(self.arrays, level, beams, self.fresh[level], self.filters, num_beams=K, scoring=self.scoring)
            seconds.append(time.perf_counter() - begin)
        assert (beams.lo < beams.hi).all()
        return seconds
