"""What boosts and caps cost, and what re-ranking finds of the best items with a boost.

steps: a whole search without a model, on random codes, with one boost and without, in turns; and making a boost's bounds.
caps: on the demo's shop or a data set, a proof of ten items with at most two of a brand, beside one without, in turns.
re-ranking: a campaign of 3 nats for 2 % of the items, on the demo's model and on larger catalogs with random weights: the
share of the best ten items that beams without the boost find, when their items are ranked again with it.

Shapes: N items, B requests, K beams, L levels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.rows import Row, interleaved, spread
from benchmarks.serving.bound import Bench, Measured, synthetic
from benchmarks.serving.load_run import LoadRun
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode.boosts import root_boosts
from leafbeam.decode.policy import Cap, Policy, fill_lists
from leafbeam.decode.results import check_batch
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.index import ItemColumn, Trie, Version
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["draw", "runs", "runs_of_data"]

V, L, B, K = 2048, 4, 2, 70
_NATS, _SHARE = 3.0, 0.02  # of the campaign
_WARM, _BEAMS = 24, (20, 128, 512)


def runs(quick: bool) -> Iterator[Measured]:
    """A row for each distribution and size of the steps, one of the caps, and one for each catalog of the re-ranking."""
    with torch_threads(1):
        for distribution in DISTRIBUTIONS:
            for num_items in (20_000,) if quick else (10**6, 10**7):
                yield from measure_steps(distribution, num_items, repeats=5 if quick else 100)
        demo, batches = LoadRun.demo(quick), 10 if quick else 100
        yield measure_caps(demo, batches)
        yield measure_reranking(demo, batches)
        for num_items in (20_000,) if quick else (10**4, 10**5, 10**6, 10**7):
            yield measure_reranking(synthetic(demo, num_items, "small"), min(batches, 40), weights="small")


def runs_of_data(quick: bool, data: Path) -> Iterator[Measured]:
    """A row of caps on a data set, whose items have a brand, with a model trained for two minutes."""
    path = Path("runs") / f"bench-objectives-{data.name}{'-quick' if quick else ''}"
    run = LoadRun.make(path, data, train_minutes=0.05 if quick else 2.0)
    with torch_threads(1):
        parameters, measured = measure_caps(run, 10 if quick else 100, brands=brands_of_items(run, data / "items.parquet"))
        yield {**parameters, "what": "caps-data", "data": data.name}, measured


def campaign(trie: Trie, seed: int = 3) -> ItemColumn:
    """Return a boost of some items, drawn at random."""
    return ItemColumn.of(trie, _NATS * (np.random.default_rng(seed).random(trie.num_items) < _SHARE))


def measure_steps(distribution: str, num_items: int, repeats: int) -> Iterator[Measured]:
    """Microseconds of all steps of a search, with and without a boost, and milliseconds of a boost's bounds.

    A row for standard normal logits, and one for logits of three times their spread, as a trained model's are.
    """
    rng = np.random.default_rng(0)
    trie = Trie.build(random_codes(rng, distribution, num_items, V, L), [V] * L)
    columns = {"campaign": campaign(trie), "margin": ItemColumn.of(trie, 0.3 * rng.normal(size=num_items))}
    began = time.perf_counter()
    columns["campaign"].bounds([trie])
    bound_ms = 1e3 * (time.perf_counter() - began)
    columns["margin"].bounds([trie])
    seconds: list[float] = []
    for _ in range(6):
        changed_n, began = rng.choice(num_items, 1000, replace=False), time.perf_counter()
        columns["margin"].with_values(changed_n, rng.normal(size=1000).astype(np.float32), trie).bounds([trie])
        seconds.append(time.perf_counter() - began)
    changed_ms = 1e3 * float(np.median(seconds[1:]))  # the first compiles
    arrays, requests = cpu.bind(trie), request_filters(trie, B, None, None)
    normal = [random_logits(rng, B, K if level else 1, V) for level in range(L)]
    hi = np.full((1, B, 1), trie.num_leaves)

    def new_search(column: ItemColumn | None) -> tuple[cpu.FilterArrays, NDArray[np.float32]]:
        boosts = None if column is None else [column] * B
        root_B1 = root_boosts(Version.of(trie), boosts or [None] * B, hi[:, :, 0])
        return cpu.bind_filters(arrays, requests, boosts), root_B1

    bound = {name: new_search(column) for name, column in {"without": None, **columns}.items()}

    def search(filters: cpu.FilterArrays, root_B1: NDArray[np.float32], logits: list[NDArray[np.float32]]) -> None:
        beams = Beams.start(hi * 0, hi, root_B1)
        for level in range(L):
            rows = logits[level][:, : beams.scores.shape[1]]
            beams = cpu.step(arrays, level, beams, rows, filters, num_beams=K, scoring="full")

    for spread_of_logits in (1.0, 3.0):
        logits = [np.float32(spread_of_logits) * rows for rows in normal]
        ways = {name: partial(search, *given, logits) for name, given in bound.items()}
        taken = {name: spread(seconds, 1e-6) for name, seconds in interleaved(ways, repeats).items()}
        parameters = {"what": "steps", "distribution": distribution, "num_items": num_items, "V": V, "L": L, "B": B, "K": K}
        yield (
            parameters | {"threads": 1, "spread": spread_of_logits},
            {
                "search_us": taken,
                "boost_over_none": {name: round(taken[name]["p50"] / taken["without"]["p50"], 3) for name in columns},
                "bounds_ms": round(bound_ms, 1),
                "changed_ms": round(changed_ms, 1),
                "repeats": repeats,
            },
        )


def measure_caps(run: LoadRun, batches: int, most: int = 2, brands: ItemColumn | None = None) -> Measured:
    """Milliseconds of a proof of ten items, prompt included, with at most two of a brand and without."""
    bench = Bench(run=run, share=1.0, num_items=10)
    groups = brands_of_items(run, run.path / "items.parquet") if brands is None else brands
    policy = Policy(num_items=10, caps=(Cap(groups=groups, most=most),))
    version, plain, wide = Version.of(run.trie), SearchWidths(), SearchWidths()
    everything = check_batch(version, 1, None, None)
    twice = Bench(run=run, share=1.0, num_items=20)
    searches, proved = list[int](), list[bool]()

    def capped(prompt: list[NDArray[np.int64]]) -> None:
        count = 0

        def search(filters: Any, deny: Any, num_items: Any) -> Any:
            nonlocal count
            count += 1
            return twice.proof(prompt, wide, filters=filters, deny=deny, num_items=num_items)

        result, _ = fill_lists(version, [policy], everything, search)
        searches.append(count)
        proved.append(bool(result.is_proved.all()))

    ways: dict[str, Any] = {"without": lambda prompt: bench.proof(prompt, plain), "capped": capped}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_WARM + batches):
        prompt = bench.prompts(1)
        for name in sorted(ways, reverse=bool(number % 2)):
            began = time.perf_counter()
            ways[name](prompt)
            if number >= _WARM:
                seconds[name].append(time.perf_counter() - began)
    ratios = [np.percentile(seconds["capped"], at) / np.percentile(seconds["without"], at) for at in (50, 99)]
    return {"what": "caps", "items": 10, "most": most} | run.shape, {
        "search_ms": {name: spread(values, 1e-3) for name, values in seconds.items()},
        "capped_over_none": {"p50": round(float(ratios[0]), 3), "p99": round(float(ratios[1]), 3)},
        "searches": round(float(np.mean(searches[_WARM:])), 3),
        "proved": round(float(np.mean(proved[_WARM:])), 4),
        "repeats": batches,
    }


def brands_of_items(run: LoadRun, items: Path) -> ItemColumn:
    """Return the brand of each item as a number, from a table of items."""
    table = pq.read_table(items, columns=["item_id", "brand"])
    brand_of = dict(zip(table["item_id"].to_pylist(), table["brand"].to_pylist(), strict=True))
    names = [brand_of.get(item) for item in run.trie.item_ids.tolist()]
    numbers = {name: number for number, name in enumerate(sorted({name for name in names if name is not None}))}
    values_N = np.array([numbers.get(name, -1) if name is not None else -1 for name in names], np.int32)
    return ItemColumn(parts=(values_N[run.trie.items.order_N],), index=run.trie)


def measure_reranking(run: LoadRun, users: int, weights: str = "trained") -> Measured:
    """The share of the best ten items with a boost that re-ranked beams find, and the rows of both."""
    scoring = "full" if weights == "trained" else "allowed"
    bench, column = Bench(run=run, share=1.0, num_items=10, scoring=scoring), campaign(run.trie)
    learnt, place_of = SearchWidths(), run.trie.items.ordinal_N
    found: dict[str, list[float]] = {str(beams): [] for beams in _BEAMS}
    rows: dict[str, list[float]] = {name: [] for name in (*found, "proof")}
    for _ in range(users):
        prompt = bench.prompts(1)
        best = bench.proof(prompt, learnt, boosts=column)
        rows["proof"].append(float(np.asarray(best.rows)[0]))
        if not best.is_proved[0]:
            continue
        for beams in _BEAMS:
            search = bench.new_search(num_beams=[beams] * run.trie.num_levels)
            result = bench.search(prompt, search)
            ordinals_n = place_of[run.trie.find(result.item_ids[0])].astype(np.int64)
            totals_n = result.scores[0, : len(ordinals_n)] + column.at(ordinals_n)
            again = result.item_ids[0][np.argsort(-totals_n, kind="stable")[:10]]
            found[str(beams)].append(float(np.isin(best.item_ids[0], again).mean()))
            rows[str(beams)].append(float(np.asarray(result.rows)[0]))
    parameters = {"what": "re-ranking", "nats": _NATS, "share": _SHARE, "users": users, "weights": weights, "scoring": scoring}
    return parameters | run.shape, {
        "found": {name: round(float(np.mean(shares)), 4) for name, shares in found.items()},
        "rows": {name: round(float(np.mean(counts)), 1) for name, counts in rows.items()},
        "proved": round(len(found[str(_BEAMS[0])]) / users, 4),
    }


def draw(rows: list[Row]) -> Figure:
    """Plot the share of the best ten items that re-ranking finds, by the number of items and of beams."""
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes, points = figure.subplots(), sorted(rows, key=lambda row: row["parameters"]["num_items"])
    sizes = [row["parameters"]["num_items"] for row in points]
    for beams, colour in zip(_BEAMS, ("#b0b7b3", "#7f9c8b", "#3b6ea5"), strict=True):
        found = [100 * row["measured"]["found"][str(beams)] for row in points]
        axes.plot(sizes, found, marker="o", ms=4, color=colour, label=f"{beams} beams, ranked again")
    axes.axhline(100, color="#2f7d4f", lw=2, label="the proof")
    axes.set(xscale="log", ylim=(0, 105), xlabel="items", ylabel="of the best ten items, found, %")
    axes.legend(fontsize=8, frameon=False, loc="lower left")
    axes.set_title(f"a campaign of {_NATS:g} nats on {_SHARE:.0%} of the items", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
