"""`bench index`: building the index from unsorted rows, against numpy lexsort + the vectorised STATIC construction.

Peak memory is the process's high-water mark in a child of its own, above what it held with the input in place.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from typing import Any

import numpy as np

from pleach.bench.step import L, V
from pleach.bench.workloads import random_codes
from pleach.index import Trie

__all__ = ["measure"]


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): seconds of both builds, bytes an item, peak memory beside the input."""
    ours = [_in_child(_build_ours, distribution, num_items, seed) for _ in range(repeats)]
    theirs = [_in_child(_build_static, distribution, num_items, seed) for _ in range(max(1, repeats // 3))]
    seconds, static_seconds = (float(np.median([one["seconds"] for one in runs])) for runs in (ours, theirs))
    measured = {
        "pleach_s": round(seconds, 3),
        "static_s": round(static_seconds, 3),
        "static_over_pleach": round(static_seconds / seconds, 1),
        "load_ms": ours[0]["load_ms"],
        "bytes_per_item": ours[0]["bytes_per_item"],
        "order_bytes_per_item": ours[0]["order_bytes_per_item"],
        "static_bytes_per_item": theirs[0]["bytes_per_item"],
        "peak_over_result": max(one["peak_over_result"] for one in ours),
        "static_peak_gb": theirs[0]["peak_gb"],
        "repeats": repeats,
    }
    return {"distribution": distribution, "num_items": num_items, "V": V, "L": L, "threads": "all"}, measured


def _in_child(build: Any, *arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(build, arguments)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _build_ours(distribution: str, num_items: int, seed: int) -> dict[str, Any]:
    import tempfile
    from pathlib import Path

    codes = random_codes(np.random.default_rng(seed), distribution, num_items, V, L)
    Trie.build(codes[:5000], [V] * L)  # compile, or read the compiled code from its cache
    Trie.build(codes[:200_000], [V] * L)
    before = _peak_bytes()
    begin = time.perf_counter()
    trie = Trie.build(codes, [V] * L)
    seconds = time.perf_counter() - begin
    result = trie.nbytes + trie.items.nbytes
    peak = _peak_bytes() - before
    with tempfile.TemporaryDirectory() as folder:
        trie.save(Path(folder) / "index.pleach")
        begin = time.perf_counter()
        loaded = Trie.load(Path(folder) / "index.pleach")
        load_ms = (time.perf_counter() - begin) * 1e3
        assert loaded.version == trie.version
    return {
        "seconds": seconds,
        "load_ms": round(load_ms, 2),
        "bytes_per_item": round(trie.bytes_per_item, 2),
        "order_bytes_per_item": round(trie.items.nbytes / num_items, 2),
        "peak_over_result": round((peak - result) / result, 2),
    }


def _build_static(distribution: str, num_items: int, seed: int) -> dict[str, Any]:
    from pleach.bench.peers.static import StaticIndex, build_arrays

    codes = random_codes(np.random.default_rng(seed), distribution, num_items, V, L)
    build_arrays(codes[:5000], V)
    before = _peak_bytes()
    begin = time.perf_counter()
    index = StaticIndex.build(codes, V)
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "bytes_per_item": round(index.nbytes / num_items, 2),
        "peak_gb": round((_peak_bytes() - before) / 1e9, 2),
    }
