"""Constrained rounds in JAX against STATIC's own algorithm in JAX and an unconstrained round, on JAX's device.

B = 2 requests, K = 70 beams, V = 2,048 codes, L = 8 levels, one thread on a CPU. Each method is one compiled function a level
(log-softmax, constraint and selection together); whole searches run over given logits, written anew before each round. leafbeam
is there three times: alone, behind a filter of half the items and a deny list, and over a base and a delta of 1 %; and once
more as a whole search in one function (`JaxBeamSearch`). Parity of the scores comes before any speed.

A row says how often leafbeam compiled, and that ten more versions and filters compiled nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fixed_shape_bytes import filter_bytes, version_bytes
from benchmarks.peers import jax_rounds  # first: it asks XLA for one thread
from benchmarks.peers.static_jax import StaticJax
from benchmarks.rows import spread
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode.jax_search import JaxBatch, JaxBeamSearch
from leafbeam.index import Segment, Trie, Version
from leafbeam.ops.constrain import Beams, Scoring, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.fixed_shape import jax as ops
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

import jax  # isort: skip

__all__ = ["measure", "runs"]

B, K, V, L = 2, 70, 2048, 8
Round = Callable[[int, Any, Any], Any]  # (level, state or None, logits) -> state


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each distribution and size."""
    for num_items in (10_000,) if quick else (100_000, 1_000_000, 10_000_000):
        for distribution in DISTRIBUTIONS:
            yield measure(distribution, num_items, repeats=10 if quick else 100)


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row: microseconds a step of each method (mean over the levels), and their ratios."""
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, distribution, num_items, V, L)
    logits = [random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)]
    trie = Trie.build(codes, [V] * L)
    extra = random_codes(rng, distribution, max(1, num_items // 100), V, L)
    changed = _changed(rng, trie, extra)
    codes_LM = np.stack([level.codes_at(np.arange(trie.num_leaves)).astype(np.uint16) for level in trie.levels])
    del codes
    static = TransitionMatrix.of_sorted(codes_LM, [V] * L)
    peer, free = StaticJax.of(static), jax_rounds.UnconstrainedJax()

    half = trie.filter(rng.random(num_items) < 0.5)
    deny = [rng.integers(0, num_items, 8) for _ in range(B)]
    begin = time.perf_counter()
    alone = _Bound(Version.of(trie), None, None)
    seconds_bind = time.perf_counter() - begin
    behind, both = _Bound(Version.of(trie), half, deny), _Bound(changed, None, None)
    carry = [jax.numpy.asarray(one) for one in logits]
    methods: dict[str, Round] = {
        "leafbeam": alone.round,
        "leafbeam_filtered": behind.round,
        "leafbeam_two_segments": both.round,
        "static_jax": _peer_round(peer),
        "unconstrained": _peer_round(free),
    }
    last: dict[str, Any] = {}
    seconds_compile: dict[str, float] = {}
    for name, method in methods.items():
        begin = time.perf_counter()
        last[name] = _search(method, logits)[0]
        seconds_compile[name] = round(time.perf_counter() - begin, 2)
    np.testing.assert_allclose(last["leafbeam"].scores, last["static_jax"].scores_BK, rtol=1e-5, atol=1e-4)
    for name, bound in (("leafbeam", alone), ("leafbeam_filtered", behind), ("leafbeam_two_segments", both)):
        np.testing.assert_allclose(last[name].scores, bound.truth(logits), rtol=1e-5, atol=1e-4)
    wholes = _whole_searches(trie, peer, carry)
    ranked: dict[str, NDArray[np.float32]] = {}
    for name, run in wholes.items():
        begin = time.perf_counter()
        ranked[name] = run()
        seconds_compile[name] = round(time.perf_counter() - begin, 2)
    np.testing.assert_allclose(ranked["leafbeam_whole_search"], last["leafbeam"].scores, rtol=1e-5, atol=1e-4)
    for suffix in ("", "_allowed"):
        for name in (f"leafbeam_whole_search{suffix}", f"pallas_whole_search{suffix}"):
            if name in ranked:
                np.testing.assert_allclose(ranked[name], ranked[f"static_jax_whole_search{suffix}"], rtol=1e-5, atol=1e-4)

    compiled = _num_compiled()
    for turn in range(10):  # other versions and filters of the same sizes
        both.swap(_changed(np.random.default_rng(turn), trie, extra[: len(extra) - turn]))
        _search(both.round, logits)
        other = _Bound(Version.of(trie), trie.filter(rng.random(num_items) < 0.4), deny, behind)
        _search(other.round, logits)
    again = _num_compiled() - compiled

    seconds_RL: dict[str, list[list[float]]] = {name: [] for name in methods}
    whole_seconds: dict[str, list[float]] = {name: [] for name in wholes}
    names, whole_names = list(methods), list(wholes)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # no method always follows the same other
            seconds_RL[name].append(_search(methods[name], logits)[1])
        for name in whole_names[turn % len(wholes) :] + whole_names[: turn % len(wholes)]:
            begin = time.perf_counter()
            wholes[name]()
            whole_seconds[name].append((time.perf_counter() - begin) / L)
    steps = {name: spread([sum(one) / L for one in runs]) for name, runs in seconds_RL.items()}
    steps |= {name: spread(seconds) for name, seconds in whole_seconds.items()}
    mine, parts = steps["leafbeam"]["p50"], version_bytes(alone.arrays)
    measured = {
        "step_us": steps,
        "by_level_us": {name: np.median(np.array(runs) * 1e6, axis=0).round(1).tolist() for name, runs in seconds_RL.items()},
        "static_over_leafbeam": round(steps["static_jax"]["p50"] / mine, 2),
        "static_over_leafbeam_whole_search": _ratio(steps, "static_jax_whole_search", "leafbeam_whole_search"),
        "static_over_leafbeam_whole_search_allowed": _ratio(
            steps, "static_jax_whole_search_allowed", "leafbeam_whole_search_allowed"
        ),
        "unconstrained_over_leafbeam": round(steps["unconstrained"]["p50"] / mine, 2),
        "two_segments_over_one": round(steps["leafbeam_two_segments"]["p50"] / mine, 2),
        "filtered_over_plain": round(steps["leafbeam_filtered"]["p50"] / mine, 2),
        "compiled": {"first": compiled, "for_20_versions_and_filters": again},
        "seconds_compile": seconds_compile,
        "seconds_bind": round(seconds_bind, 3),
        "bytes_per_item": {
            "leafbeam": round(sum(parts.values()) / num_items, 2),
            "leafbeam_parts": {part: round(nbytes / num_items, 2) for part, nbytes in parts.items()},
            "leafbeam_filter": round(filter_bytes(alone.filters) / 2 / num_items, 3),
            "static": round(static.nbytes / num_items, 2),
        },
    }
    device = jax.devices()[0]
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L}
    return parameters | {"device": f"{device.platform} {device.device_kind}"}, {**measured, "repeats": repeats}


class _Bound:
    """A version and its filters on the device, and a round of a search on them."""

    def __init__(self, version: Version, allowed: Any, deny: Any, like: _Bound | None = None) -> None:
        self.arrays = ops.bind(version, like=None if like is None else like.arrays)
        self._take(version, allowed, deny)

    def _take(self, version: Version, allowed: Any, deny: Any) -> None:
        self.version = version
        self.requests = request_filters(version, B, allowed, deny)
        self.filters = ops.bind_filters(self.arrays, self.requests)
        hi = [one.trie.num_leaves for one in version.segments]
        self.root = Beams.start(
            jax_rounds.on_device(np.zeros((len(hi), B, 1), np.int32)),
            jax_rounds.on_device(np.broadcast_to(np.array(hi, np.int32)[:, None, None], (len(hi), B, 1))),
            jax_rounds.on_device(np.zeros((B, 1), np.float32)),
        )

    def swap(self, version: Version) -> None:
        """Take another version of the catalog."""
        self.arrays = ops.bind(version, like=self.arrays)
        self._take(version, None, None)

    def round(self, level: int, state: Any, fresh: Any) -> Any:
        beams = self.root if state is None else state
        return jax.block_until_ready(ops.step(self.arrays, level, beams, fresh, self.filters, num_beams=K, scoring="full"))

    def truth(self, logits: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """The scores that the CPU backend gives."""
        arrays = cpu.bind(self.version)
        filters = cpu.bind_filters(arrays, self.requests)
        lo, hi = (np.asarray(array, np.int64) for array in (self.root.lo, self.root.hi))
        beams = Beams.start(lo, hi, np.asarray(self.root.scores))
        for level, values in enumerate(logits):
            beams = cpu.step(arrays, level, beams, values, filters, num_beams=K, scoring="full")
        return beams.scores


def _whole_searches(trie: Trie, peer: StaticJax, carry: list[Any]) -> dict[str, Callable[[], NDArray[np.float32]]]:
    """Whole searches over given logits; each returns its scores once they are computed."""
    searches: dict[str, Callable[[], NDArray[np.float32]]] = {}
    scorings: tuple[Scoring, ...] = "full", "allowed"
    for scoring in scorings:
        suffix = "" if scoring == "full" else "_allowed"
        search = JaxBeamSearch(trie, K, scoring)
        batch = search.prepare(B)

        def leafbeam(search: JaxBeamSearch = search, batch: JaxBatch = batch) -> NDArray[np.float32]:
            return jax.block_until_ready(search.decode(_given_logits, carry, batch)).scores_BK

        def static(scoring: Scoring = scoring) -> NDArray[np.float32]:
            return jax.block_until_ready(jax_rounds.search(peer, carry, K, scoring))[-1].scores_BK

        searches |= {f"leafbeam_whole_search{suffix}": leafbeam, f"static_jax_whole_search{suffix}": static}
        if jax.default_backend() != "cpu":  # which would interpret the kernel
            pallas = JaxBeamSearch(trie, K, scoring, kernels="pallas")
            searches[f"pallas_whole_search{suffix}"] = partial(leafbeam, pallas, pallas.prepare(B))
    return searches


def _ratio(steps: dict[str, dict[str, float]], peer: str, own: str) -> float:
    """Return how often a peer takes the time of one of ours, by medians."""
    return round(steps[peer]["p50"] / steps[own]["p50"], 2)


def _num_compiled() -> int:
    """The number of different steps that this process has compiled."""
    compiled: Any = ops.namespace("xla").compiled(fixed_step.run)
    return compiled._cache_size()


def _changed(rng: np.random.Generator, trie: Trie, extra: NDArray[np.int64]) -> Version:
    """The trie less 1 % of its items, and a delta."""
    live = trie.filter(rng.random(trie.num_items) < 0.99)
    return Version(segments=(Segment(trie=trie, live=live), Segment(trie=Trie.build(extra, [V] * L))))


def _given_logits(carry: Any, codes: Any, parents: Any, level: int) -> tuple[Any, Any]:
    """A model that has answered already."""
    return carry, carry[level]


def _peer_round(peer: Any) -> Round:
    def round_of(level: int, state: Any, fresh: Any) -> Any:
        beams = jax_rounds.root(peer, B) if state is None else state
        return jax.block_until_ready(jax_rounds.extend(peer, level, beams, fresh, K))

    return round_of


def _search(method: Round, logits: list[NDArray[np.float32]]) -> tuple[Any, list[float]]:
    """Run all rounds of one search; returns the last state and the seconds of each round."""
    state: Any = None
    seconds: list[float] = []
    for level, values in enumerate(logits):
        fresh = jax_rounds.on_device(values)
        begin = time.perf_counter()
        state = method(level, state, fresh)
        seconds.append(time.perf_counter() - begin)
    return state, seconds
