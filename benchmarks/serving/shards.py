"""A search over an index in shards, each a Ray actor on this machine, beside one index of the same items in one process.

Both search by turns with the same logits, which are made before, and have to give the same items and the same scores. A round
is the time from the model's logits to its next call; the whole search also has the beginning and the items. The actors and the
driver share this machine's cores, and rows go through shared memory: on machines of their own, rows take the network's time.

B = 2 requests, K = 70 beams, V = 2,048 codes, L = 8 levels, as in `step`.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro.step import B, K, L, V
from benchmarks.rows import spread
from benchmarks.workloads import random_chunk, random_logits
from leafbeam import BeamSearch, Trie
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.shards import build_shards
from leafbeam.integrations.shard import Shard
from leafbeam.integrations.shard_search import ShardedSearch

__all__ = ["measure"]

_CHUNK = 1 << 20
_LOGITS = 4  # sets of them
_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_register_timeout_seconds": "300"}
_CALCULATED = (10**9, 10**10, 10**11)
_MACHINE = 48 * 10**9  # bytes of a machine's memory for its shard


def measure(
    distribution: str, num_items: int, num_shards: int, repeats: int, memory_limit: int = 4 << 30, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row."""
    os.environ.update(_RAY)
    ray: Any = importlib.import_module("ray")
    on_ray: Any = importlib.import_module("leafbeam.integrations.ray_shards")
    ray.init(num_cpus=os.cpu_count(), object_store_memory=256 << 20, include_dashboard=False, log_to_driver=False)

    def chunks() -> Iterator[tuple[NDArray[np.uint16], None]]:
        for begin in range(0, num_items, _CHUNK):
            yield random_chunk(distribution, min(_CHUNK, num_items - begin), V, L, seed, begin), None

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        manifest = build_shards(chunks, [V] * L, num_shards, folder, memory_limit=memory_limit)
        seconds_build = time.perf_counter() - began
        with TrieBuilder([V] * L, memory_limit=memory_limit) as builder:
            for codes, _ in chunks():
                builder.add(codes)
            trie = builder.finish()
        began = time.perf_counter()
        cpus = (os.cpu_count() or 1) / num_shards
        with on_ray.load_shards_on_ray(folder, cpus_per_shard=cpus, timeout_s=300) as index:
            seconds_load = time.perf_counter() - began
            measured = _measure(trie, index, repeats, seed)
            measured["memory_of_actor_mb"] = [round(_memory_of(ray, actor) / 1e6) for actor in index.link.actors]
        measured["file_mb"] = [round((Path(folder) / shard.file).stat().st_size / 1e6) for shard in manifest.shards]
    ray.shutdown()
    measured |= {
        "items_of_shard": [shard.num_items for shard in manifest.shards],
        "one_index_mb": round((trie.nbytes + trie.items.nbytes) / 1e6),
        "seconds_build": round(seconds_build, 1),
        "seconds_load": round(seconds_load, 1),
        "repeats": repeats,
        "calculated": _calculated(sum(measured["file_mb"]) * 1e6 / num_items),
    }
    parameters = {"distribution": distribution, "num_items": num_items, "shards": num_shards, "B": B, "K": K, "V": V, "L": L}
    return parameters, measured


class _Model:
    """Logits that are made before, and the times at which they are asked for and returned."""

    def __init__(self, logits: list[NDArray[np.float32]]) -> None:
        self._logits, self.times = logits, list[float]()

    def __call__(self, codes: Any, parents: Any) -> NDArray[np.float32]:
        level = len(self.times)
        self.times.append(time.perf_counter())
        return self._logits[level]


def _measure(trie: Trie, index: Any, repeats: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    sets = [[random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)] for _ in range(_LOGITS)]
    searches: dict[str, Any] = {"one": BeamSearch(trie, K), "shards": ShardedSearch(index, K)}
    whole: dict[str, list[float]] = {name: [] for name in searches}
    rounds: dict[str, list[float]] = {name: [] for name in searches}
    hops: list[float] = []
    traffic = None
    for turn in range(repeats + _LOGITS):
        results: dict[str, Any] = {}
        for name, search in searches.items():
            model, before = _Model(sets[turn % _LOGITS]), index.traffic
            began = time.perf_counter()
            results[name] = search.run(model, B)
            seconds = time.perf_counter() - began
            traffic = index.traffic - before
            if turn >= _LOGITS:  # the first ones load code
                whole[name].append(seconds)
                rounds[name].append(float(np.diff(model.times)[1:].mean()))  # the round of the first codes asks no shard
        for field in ("scores", "codes"):
            np.testing.assert_array_equal(getattr(results["one"], field), getattr(results["shards"], field))
        assert all((one == two).all() for one, two in zip(results["one"].item_ids, results["shards"].item_ids, strict=True))
        began = time.perf_counter()
        index.call(Shard.remove, dict.fromkeys(range(index.num_shards), ("nothing",)))
        hops.append(time.perf_counter() - began)
    assert traffic is not None
    row = 8 + 8 + 8 + 4 + 4 * V
    return {
        "search_ms": {name: spread(seconds, 1e-3) for name, seconds in whole.items()},
        "round_ms": {name: spread(seconds, 1e-3) for name, seconds in rounds.items()},
        "empty_hop_ms": spread(hops, 1e-3),
        "hops": traffic.hops,
        "messages": traffic.messages,
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
        "bytes_sent_of_round": B * K * row,
    }


def _calculated(bytes_of_item: float) -> list[dict[str, float]]:
    """Return the shards of `_MACHINE` bytes that more items need, and the most bytes that a round moves.

    Hops and sent bytes do not depend on the shards. Each shard returns K beams of each request at most.
    """
    rows: list[dict[str, float]] = []
    for num_items in _CALCULATED:
        num_shards = int(np.ceil(num_items * bytes_of_item / _MACHINE))
        rows.append(
            {
                "num_items": num_items,
                "shards": num_shards,
                "hops": L + 1,
                "bytes_sent_of_round": B * K * (8 + 8 + 8 + 4 + 4 * V),
                "most_bytes_received_of_round": num_shards * B * K * (5 * 8 + 4),
            }
        )
    return rows


def _memory_of(ray: Any, actor: Any) -> int:
    """The resident bytes of an actor's process."""
    pages = ray.get(actor.__ray_call__.remote(lambda _: Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]))
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
