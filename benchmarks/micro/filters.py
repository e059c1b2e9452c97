"""The filtered step against the unfiltered one, and against an index rebuilt on the filter's items.

Same shape as `step`. The beams under a filter must equal those of the rebuilt index before any speed is printed.

A last row is about rules: what it takes to make a filter of an SQL predicate, and to join two.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.micro.step import B, K, L, V
from benchmarks.rows import interleaved, spread
from benchmarks.workloads import random_codes, random_logits
from leafbeam.catalog import Catalog
from leafbeam.index import Filter, Trie
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["RULES", "SELECTIVITIES", "measure", "measure_rules"]

SELECTIVITIES = (0.5, 0.1, 0.01, 0.0001)
RULES = {
    "boolean": "in_stock",
    "number": "price < 20",
    "time": "first_seen > now() - INTERVAL 7 DAY",
    "text": "brand = 'brand 7'",
}


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): microseconds a step by selectivity, and how long a filter takes to make."""
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, distribution, num_items, V, L)
    logits = [random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)]
    trie = Trie.build(codes, [V] * L)
    masks = {f"{share:g}": rng.random(num_items) < share for share in SELECTIVITIES}
    runs: dict[str, Any] = {"none": _search(trie, None, logits)}
    for name, mask in masks.items():
        chosen = trie.filter(mask)
        runs[name] = _search(trie, chosen, logits)
        rebuilt = Trie.build(codes[mask], [V] * L)
        runs[f"{name} rebuilt"] = _search(rebuilt, None, logits)
        for filtered, alone in zip(runs[name](), runs[f"{name} rebuilt"](), strict=True):
            np.testing.assert_array_equal(filtered, alone)
    # 64 requests with 64 filters against 64 requests that share one.
    many = [trie.filter(np.roll(masks["0.01"], shift)) for shift in range(64)]
    wide = [np.repeat(one[:1], 64, axis=0) for one in logits]
    runs["64 requests, one filter"] = _search(trie, [many[0]] * 64, wide)
    runs["64 requests, 64 filters"] = _search(trie, many, wide)
    seconds = interleaved(runs, repeats)
    steps = {name: spread([one / L for one in taken]) for name, taken in seconds.items()}
    base = steps["none"]["p50"]
    making = interleaved({"mask": lambda: trie.filter(masks["0.01"]), "and": lambda: many[0] & many[1]}, max(3, repeats // 4))
    measured = {
        "step_us": steps,
        "over_unfiltered": {name: round(steps[name]["p50"] / base, 2) for name in masks},
        "different_over_shared": round(steps["64 requests, 64 filters"]["p50"] / steps["64 requests, one filter"]["p50"], 3),
        "filter_ms": {name: spread(taken, 1e-3) for name, taken in making.items()},
        "repeats": repeats,
    }
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L, "threads": 1}
    return parameters, measured


def measure_rules(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): milliseconds to evaluate a rule over all items and put it in force, and to join two rules.

    The items come in an order that is not the index's, and every filter is compared with numpy's answer first. Joining includes
    the leaves that a search reads; where items share a SID, as some do in the Zipf catalog, these are another bitmap.
    """
    rng = np.random.default_rng(seed)
    trie = Trie.build(random_codes(rng, distribution, num_items, V, L), [V] * L)
    item_ids, in_stock = rng.permutation(num_items), rng.random(num_items) < 0.9
    price, brand = rng.random(num_items, np.float32) * 100, rng.integers(0, 100, num_items)
    age_us = rng.integers(0, 60 * 86_400, num_items) * 1_000_000
    items = pa.table(
        {
            "item_id": item_ids,
            "in_stock": in_stock,
            "price": price,
            "first_seen": pa.array(time.time_ns() // 1000 - age_us, pa.timestamp("us")),
            "brand": pa.array([f"brand {number}" for number in range(100)]).take(pa.array(brand)),
        }
    )
    expected = {"boolean": in_stock, "number": price < 20, "text": brand == 7}
    with Catalog.in_memory(items, trie, RULES, background=False) as catalog:
        found = catalog.rules.filters
        for name, mask in expected.items():
            assert found[name] == trie.filter(item_ids=item_ids[mask]), name
        ids = item_ids[:1000]
        runs: dict[str, Any] = {f"rule of a {name}": partial(catalog.refresh, name) for name in RULES}
        runs |= {
            "a & b": lambda: _used(found["boolean"] & found["number"]),
            "a | b": lambda: _used(found["boolean"] | found["number"]),
            "a - b": lambda: _used(found["boolean"] - found["number"]),
            "(a | b) & c - d": lambda: _used((found["boolean"] | found["number"]) & (found["time"] - found["text"])),
            "expression asked again": lambda: catalog.filter("boolean & number"),
            "1,000 denied": lambda: _used(catalog.filter("boolean & number", deny=ids)),
        }
        for run in runs.values():
            run()
        taken = {name: spread(seconds, 1e-3) for name, seconds in interleaved(runs, repeats).items()}
        measured = {"ms": taken, "rules": {report.name: report.num_items for report in catalog.rules.report.rules}}
    measured |= {"shared_leaves": trie.num_items - trie.num_leaves, "repeats": repeats}
    return {"kind": "rules", "distribution": distribution, "num_items": num_items, "V": V, "L": L}, measured


def _used(chosen: Filter | None) -> None:
    """Build the parts of a filter that are built at first use."""
    assert chosen is not None
    for part in chosen.parts:
        assert part.num_reachable() > 0


def _search(trie: Trie, chosen: Filter | list[Filter] | None, logits: list[Any]) -> Any:
    batch_size = len(logits[0])
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, batch_size, chosen, None))

    def run() -> tuple[Any, Any]:
        lo = np.zeros((1, batch_size, 1), np.int64)
        hi = np.full((1, batch_size, 1), trie.num_leaves)
        beams = Beams.start(lo, hi, np.zeros((batch_size, 1), np.float32))
        taken: list[Any] = []
        for level in range(L):
            beams = cpu.step(arrays, level, beams, logits[level], filters, num_beams=K, scoring="full")
            taken.append(np.stack([beams.parent, beams.code]))
        return np.stack(taken), beams.scores

    return run
