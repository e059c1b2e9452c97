"""Building the index from unsorted rows, against numpy lexsort + the vectorised STATIC construction.

Both get the table in the smallest dtype, uint16: numpy's lexsort is a radix sort there, ten times as fast as on int64.

Peak memory is the process's high-water mark in a child of its own, above what it held with the input in place. Before a build
is timed, as much memory as it needs is touched and given back: on a virtual machine that has not used its memory yet, finding
the pages takes longer than filling them, and is no part of either method.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro.step import L, V
from benchmarks.peers.static_matrix import matrix_of_codes
from benchmarks.resident import peak_bytes
from benchmarks.workloads import random_chunk, random_codes
from leafbeam.index import Trie
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.level import code_dtype
from leafbeam.index.memory_estimate import MemoryEstimate

__all__ = ["measure", "measure_chunks"]

_CHUNK = 1 << 20


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): seconds of both builds, bytes an item, peak memory beside the input."""
    ours = [_in_child(_build_ours, distribution, num_items, seed) for _ in range(repeats)]
    theirs = [_in_child(_build_static, distribution, num_items, seed) for _ in range(max(1, repeats // 3))]
    seconds, static_seconds = (float(np.median([one["seconds"] for one in runs])) for runs in (ours, theirs))
    measured = {
        "leafbeam_s": round(seconds, 3),
        "static_s": round(static_seconds, 3),
        "static_over_leafbeam": round(static_seconds / seconds, 1),
        "load_ms": ours[0]["load_ms"],
        "verified_load_ms": ours[0]["verified_load_ms"],
        "bytes_per_item": ours[0]["bytes_per_item"],
        "packed_bytes_per_item": ours[0]["packed_bytes_per_item"],
        "entropy_bytes_per_item": ours[0]["entropy_bytes_per_item"],
        "order_bytes_per_item": ours[0]["order_bytes_per_item"],
        "static_bytes_per_item": theirs[0]["bytes_per_item"],
        "peak_over_result": max(one["peak_over_result"] for one in ours),
        "static_peak_gb": theirs[0]["peak_gb"],
        "repeats": repeats,
    }
    parameters = {"distribution": distribution, "num_items": num_items, "V": V, "L": L, "threads": "all"}
    return parameters | {"dtype": np.dtype(code_dtype(V)).name}, measured


def measure_chunks(
    distribution: str, num_items: int, memory_limit: int = 4 << 30, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one build from chunks of 2^20 rows, in a child: more items than the peer has memory for.

    leafbeam_s: of adding and finishing, without making the codes; cpu_s: of all threads in them, the same on busy cores.
    peak_gb: the child's high-water mark, the result and all of Python included. filter_s: of a filter from a mask of 1 %;
    places_s: of what the first filter of an index computes.
    """
    measured = _in_child(_build_chunks, distribution, num_items, memory_limit, seed)
    parameters = {"distribution": distribution, "num_items": num_items, "V": V, "L": L, "threads": "all"}
    return {**parameters, "chunk": _CHUNK, "memory_limit": memory_limit}, measured


def _build_chunks(distribution: str, num_items: int, memory_limit: int, seed: int) -> dict[str, Any]:
    with TrieBuilder([V] * L, memory_limit=50_000) as small:  # compile, or read the compiled code from its cache
        small.add(random_chunk(distribution, 200_000, V, L, seed, 0))
        _filter_seconds(small.finish(), seed)
    before = peak_bytes(anew=True)
    with TrieBuilder([V] * L, memory_limit=memory_limit) as builder:
        adding, making = 0.0, 0.0
        cpu = time.process_time()
        for begin in range(0, num_items, _CHUNK):
            start = time.process_time()
            codes = random_chunk(distribution, min(_CHUNK, num_items - begin), V, L, seed, begin)
            making += time.process_time() - start
            start = time.perf_counter()
            builder.add(codes)
            adding += time.perf_counter() - start
        start = time.perf_counter()
        trie = builder.finish()
        finishing = time.perf_counter() - start
        cpu = time.process_time() - cpu - making
    peak = peak_bytes()
    sample = np.random.default_rng(seed).integers(0, len(trie), 1000)
    for begin in {int(row) // _CHUNK * _CHUNK for row in sample[:5]}:  # parity before speed, where a peer does not fit
        codes = random_chunk(distribution, min(_CHUNK, num_items - begin), V, L, seed, begin)
        rows = sample[(sample >= begin) & (sample < begin + len(codes))]
        assert np.array_equal(trie.codes_of(rows), codes[rows - begin])
    assert all(
        trie.leaf_of(sid) == leaf
        for leaf, sid in zip(sample[:200] % trie.num_leaves, trie.codes_at(sample[:200] % trie.num_leaves), strict=True)
    )
    plan = MemoryEstimate.of(trie)
    trie = replace(trie, items=replace(trie.items))  # the places were computed for the codes of items
    return {
        "leafbeam_s": round(adding + finishing, 2),
        "adding_s": round(adding, 2),
        "finishing_s": round(finishing, 2),
        "cpu_s": round(cpu, 2),
        "peak_gb": round(peak / 1e9, 2),
        "peak_over_start_gb": round((peak - before) / 1e9, 2),
        "bytes_per_item": round(trie.bytes_per_item, 2),
        "packed_bytes_per_item": round(plan.per_item(plan.packed_nbytes), 2),
        "order_bytes_per_item": round(trie.items.nbytes / num_items, 2),
        "entropy_bytes_per_item": round(plan.per_item(plan.entropy_bits / 8), 2),
        "static_u_max_per_item": round(plan.per_item(plan.static.upper_bound), 2),
        "static_nodes_per_item": round(plan.per_item(plan.static.estimate), 2),
        **_filter_seconds(trie, seed),
    }


def _filter_seconds(trie: Trie, seed: int) -> dict[str, float]:
    """Return the seconds of a filter from a mask of 1 % of the items, compared with the mask, and of the first one's places."""
    mask = np.zeros(len(trie), np.bool_)
    mask[np.random.default_rng(seed).integers(0, len(trie), len(trie) // 100)] = True
    begin = time.perf_counter()
    assert len(trie.items.ordinal_N) == len(trie)
    places = time.perf_counter() - begin
    begin = time.perf_counter()
    found = trie.filter(mask)
    seconds = time.perf_counter() - begin
    rows = trie.items.order_N[found.ordinals.positions()]
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(mask))
    return {"filter_s": round(seconds, 3), "places_s": round(places, 3)}


def _in_child(build: Any, *arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(build, arguments)


def _touch(nbytes: int) -> None:
    np.ones(nbytes, np.uint8)


def _table(distribution: str, num_items: int, seed: int) -> NDArray[np.unsignedinteger]:
    return random_codes(np.random.default_rng(seed), distribution, num_items, V, L).astype(code_dtype(V))


def _build_ours(distribution: str, num_items: int, seed: int) -> dict[str, Any]:
    import tempfile

    codes = _table(distribution, num_items, seed)
    Trie.build(codes[:5000], [V] * L)  # compile, or read the compiled code from its cache
    Trie.build(codes[:200_000], [V] * L)
    before = peak_bytes(anew=True)
    trie = Trie.build(codes, [V] * L)  # once for its peak
    result = trie.nbytes + trie.items.nbytes
    peak = peak_bytes() - before
    del trie
    _touch(result + peak)
    begin = time.perf_counter()
    trie = Trie.build(codes, [V] * L)
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        trie.save(Path(folder) / "index.leafbeam")
        load_ms: list[float] = []
        for verify in (False, True, True):  # the second time without loading the kernels
            begin = time.perf_counter()
            loaded = Trie.load(Path(folder) / "index.leafbeam", verify=verify)
            load_ms.append((time.perf_counter() - begin) * 1e3)
            assert loaded.version == trie.version
    return {
        "seconds": seconds,
        "load_ms": round(load_ms[0], 2),
        "verified_load_ms": round(load_ms[2], 2),
        "bytes_per_item": round(trie.bytes_per_item, 2),
        "packed_bytes_per_item": round(trie.packed().bytes_per_item, 2),
        "entropy_bytes_per_item": round(MemoryEstimate.of(trie).entropy_bits / 8 / num_items, 2),
        "order_bytes_per_item": round(trie.items.nbytes / num_items, 2),
        "peak_over_result": round((peak - result) / result, 2),
    }


def _build_static(distribution: str, num_items: int, seed: int) -> dict[str, Any]:

    codes = _table(distribution, num_items, seed)
    matrix_of_codes(codes[:5000], [V] * L)
    before = peak_bytes(anew=True)
    index = matrix_of_codes(codes, [V] * L)
    peak = peak_bytes() - before
    nbytes = index.nbytes
    del index
    _touch(peak)
    begin = time.perf_counter()
    matrix_of_codes(codes, [V] * L)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "bytes_per_item": round(nbytes / num_items, 2), "peak_gb": round(peak / 1e9, 2)}
