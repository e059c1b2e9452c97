"""STATIC's public code beside our form of it, and of its baselines: whole searches in JAX over given logits, one thread.

B = 2 requests, K = 70 beams, V = 2,048 codes, L = 8 levels. Each method is one compiled function, and all take the same logits
in turns; the public trie calls back to Python. Exact searches have to find the same SIDs before any time is taken. The public
code's own script keeps 30 codes of a beam at the second level, and is not exact: it is measured so, and with K.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import jax_rounds  # first: it asks XLA for one thread
from benchmarks.peers.baselines_jax import HashBitmapJax, PpvJax, columns_of
from benchmarks.peers.hash_bitmap import HashBitmap
from benchmarks.peers.static_jax import StaticJax
from benchmarks.peers.static_public import PublicStatic
from benchmarks.rows import moments, spread
from benchmarks.static import trials
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.workloads import DISTRIBUTIONS
from leafbeam.decode.jax_search import JaxBeamSearch
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

import jax  # isort: skip

__all__ = ["measure", "runs"]

B, K = 2, 70
PUBLIC_CANDIDATES = 30  # of a beam, in the public code's own script
Search = Callable[[], Any]
Sids = Callable[[Any], NDArray[np.int64]]  # what a search returns -> [B, K, L]


def runs(quick: bool, checkout: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each distribution."""
    public = PublicStatic.load(checkout)
    for distribution in DISTRIBUTIONS:
        shape = Shape(distribution=distribution, num_items=10_000 if quick else 1_000_000)
        yield measure(shape, public, 2 if quick else 30)


def measure(shape: Shape, public: PublicStatic, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row: microseconds a step of each search, and how often the public code takes ours' time."""
    catalog = Catalog.make(shape)
    given = trials.draw_logits(np.random.default_rng([shape.seed, 1]), catalog.trie, B, K)[0]
    logits = [jax_rounds.on_device(values) for values in given]
    searches = {**_ours(catalog, logits), **_public(catalog, public, logits)}
    answers = {name: _sets(sids(search())) for name, (search, sids) in searches.items()}
    best = answers["leafbeam"]
    for name in _EXACT:
        assert answers[name] == best, f"{name} found other SIDs"
    found = {
        name: round(sum(len(mine & other) for mine, other in zip(sids, best, strict=True)) / (B * K), 4)
        for name, sids in answers.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    rng = np.random.default_rng(shape.seed)
    with trials.one_core():
        for _ in range(repeats):
            for name in rng.permutation(list(searches)).tolist():
                began = time.perf_counter()
                searches[name][0]()
                seconds[name].append((time.perf_counter() - began) / shape.num_levels)
    steps = {name: spread(one) | moments(one) for name, one in seconds.items()}
    pairs = [name for name in steps if f"public_{name}" in steps]
    measured = {
        "step_us": steps,
        "public_over_ours": {name: round(steps[f"public_{name}"]["p50"] / steps[name]["p50"], 2) for name in pairs},
        "found": found,
        "repeats": repeats,
        "public_commit": public.commit,
    }
    parameters = {"distribution": shape.distribution, "num_items": shape.num_items, "B": B, "K": K}
    device = jax.devices()[0]
    at = {"V": shape.num_codes, "L": shape.num_levels, "device": f"{device.platform} {device.device_kind}"}
    return parameters | at, measured


# The searches that have to find leafbeam's SIDs.
_EXACT = (
    *("static_jax", "static_jax_scatter", "public_static_jax"),
    *("ppv_exact_jax", "public_ppv_exact_jax", "public_cpu_trie_jax"),
)


def _ours(catalog: Catalog, logits: list[Any]) -> dict[str, tuple[Search, Sids]]:
    """leafbeam, and our forms of STATIC and its baselines."""
    codes_LM = catalog.sorted_codes()
    matrix, columns = TransitionMatrix.of_sorted(codes_LM, catalog.shape.codebook_sizes), columns_of(codes_LM)
    peers: Mapping[str, Any] = {
        "static_jax": StaticJax.of(matrix),
        "static_jax_scatter": StaticJax.of(matrix, scatter=True),
        "ppv_exact_jax": PpvJax(columns=columns),
        "ppv_approximate_jax": PpvJax(columns=columns, num_candidates=50),
        "hash_bitmap_jax": HashBitmapJax.of(HashBitmap.of_sorted(codes_LM)),
    }
    search = JaxBeamSearch(catalog.trie, K, "full")
    batch = search.prepare(B)

    def leafbeam() -> Any:
        return jax.block_until_ready(search.decode(_given_logits, logits, batch))

    def of_peer(peer: Any) -> Any:
        return jax.block_until_ready(jax_rounds.search(peer, logits, K, "full"))

    found: dict[str, tuple[Search, Sids]] = {"leafbeam": (leafbeam, lambda beams: np.asarray(beams.codes_BKL))}
    return found | {name: (partial(of_peer, peer), _sids_of_rounds) for name, peer in peers.items()}


def _public(catalog: Catalog, public: PublicStatic, logits: list[Any]) -> dict[str, tuple[Search, Sids]]:
    """Its STATIC as exact as ours and as its script runs it, and its baselines."""
    sids_NL = np.ascontiguousarray(catalog.sorted_codes().T)
    beams = {"num_beams": K, "num_candidates": K}
    searches = {
        "public_static_jax": public.search(sids_NL, logits, **beams),
        "public_static_jax_30": public.search(sids_NL, logits, num_beams=K, num_candidates=PUBLIC_CANDIDATES),
    }
    for name in ("ppv_exact", "ppv_approximate", "hash_bitmap", "cpu_trie"):
        searches[f"public_{name}_jax"] = public.baseline(name, sids_NL, logits, **beams)
    return {name: (search, np.asarray) for name, search in searches.items()}


def _given_logits(carry: Any, codes: Any, parents: Any, level: int) -> tuple[Any, Any]:
    """A model that has answered already."""
    return carry, carry[level]


def _sids_of_rounds(rounds: list[Any]) -> NDArray[np.int64]:
    """The SIDs of the last round's beams, back through their parents."""
    at_BK = np.asarray(rounds[-1].parent_BK)
    columns = [np.asarray(rounds[-1].code_BK)]
    for beams in reversed(rounds[:-1]):
        columns.append(np.take_along_axis(np.asarray(beams.code_BK), at_BK, axis=1))
        at_BK = np.take_along_axis(np.asarray(beams.parent_BK), at_BK, axis=1)
    return np.stack(columns[::-1], axis=2).astype(np.int64)


def _sets(sids_BKL: NDArray[Any]) -> list[set[tuple[int, ...]]]:
    return [set(map(tuple, sids_KL.tolist())) for sids_KL in sids_BKL]
