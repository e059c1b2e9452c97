"""Into how many parts a prompt's attention is split: every number timed, the regressor fitted, and what its picks lose.

The costs that fit are written beside the rows, for the setting `engine.attention_costs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.split_costs import AttentionTime, fit_costs
from benchmarks.gpu.timing import Measured, attempt, times
from benchmarks.rows import RESULTS
from leafbeam.ops.attention import triton
from leafbeam.ops.attention.costs import AttentionCosts, AttentionWork

__all__ = ["COSTS", "REAL", "runs"]

_TRIED = 3  # calls that are also timed in one launch, and with descriptors

COSTS = RESULTS / "attention-costs.json"

# Attention of Qwen3-0.6B, in an order in which the first ones already tell much.
REAL = tuple(
    AttentionWork(requests=requests, tokens=tokens, beams=beams, heads=16, groups=8, size=128)
    for requests, beams in ((1, 512), (1, 20), (8, 128), (1, 128), (8, 512), (8, 20), (64, 20))
    for tokens in (1000, 4000, 250)
)


def runs(device: torch.device, seconds: float, works: Sequence[AttentionWork] = REAL, path: Path = COSTS) -> Measured:
    """A row of times for each call, then one of the fit, which is written to `path`."""
    until = time.monotonic() + seconds
    found: list[AttentionTime] = []
    for work in works:
        if time.monotonic() > until:
            break
        parameters = {"what": "attention by splits", "requests": work.requests, "tokens": work.tokens, "beams": work.beams}
        yield attempt(parameters, partial(_time, device, work, found))
    yield attempt({"what": "attention costs", "calls": len({one.work for one in found})}, partial(_fit, device, found, path))


def _inputs(device: torch.device, work: AttentionWork) -> list[Tensor]:
    """Random arguments of `attend`."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    query = draw(work.requests, work.beams, work.heads, work.size)
    key = draw(work.requests, work.groups, work.size, work.tokens)
    value = draw(work.requests, work.groups, work.tokens, work.size)
    lengths = torch.full((work.requests,), work.tokens, device=device)
    slots = [draw(work.requests, work.beams, 1, work.groups, work.size) for _ in range(2)]
    return [query, key, value, lengths, *slots]


def _time(device: torch.device, work: AttentionWork, found: list[AttentionTime]) -> dict[str, Any]:
    given = _inputs(device, work)
    microseconds: dict[int, float] = {}
    for splits in work.splits():
        if splits not in (1, 2, 3, 4, 6, 8, 12, 16):  # each number is compiled
            continue
        run = partial(triton.attend, *given, splits=splits)
        microseconds[splits] = times([run] * 2, device, samples=7)["p50"]
        found.append(AttentionTime(work=work, splits=splits, nanoseconds=1e3 * microseconds[splits]))
    return {"us_by_splits": microseconds}


def _quickest_way(
    device: torch.device, costs: AttentionCosts, works: Sequence[AttentionWork]
) -> tuple[AttentionCosts, dict[str, list[float]]]:
    """Time some calls in two launches or one, with and without descriptors; return the costs with the quickest way."""
    ways = [replace(costs, one_launch=one, descriptors=described) for one, described in product((False, True), repeat=2)]
    names = [f"{1 if way.one_launch else 2}, {'with' if way.descriptors else 'without'}" for way in ways]
    microseconds: dict[str, list[float]] = {name: [] for name in names}
    for work in works:
        given = _inputs(device, work)
        for name, way in zip(names, ways, strict=True):
            run = partial(triton.attend, *given, splits=way)
            microseconds[name].append(times([run] * 2, device, samples=7)["p50"])
    best = min(range(len(ways)), key=lambda number: float(np.prod(microseconds[names[number]])))
    return ways[best], microseconds


def _fit(device: torch.device, found: Sequence[AttentionTime], path: Path) -> dict[str, Any]:
    """Fitted to every other call and tried on the others; what is written is fitted to all."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    fit = partial(fit_costs, programs=[processors * each for each in range(1, 9)], device=name)
    works = list(dict.fromkeys(one.work for one in found))
    held_out = set(works[1::2])
    half = fit([one for one in found if one.work not in held_out])
    tried = [one for one in found if one.work in held_out]
    costs, us_by_way = _quickest_way(device, fit(found), works[:_TRIED])
    costs.save(path)
    return {
        "programs": costs.programs,
        "wave_ns": costs.wave,
        "block_ns": costs.block,
        "merge_ns": costs.merge,
        "us_by_launches_and_descriptors": us_by_way,
        "time_of_pick_over_best": {
            "fitted, of calls it has not seen": _over_best(half, tried),
            "fitted, of all": _over_best(costs, found),
            "estimates, of all": _over_best(AttentionCosts(), found),
            "one part, of all": _over_best(None, found),
        },
        "file": path.name,
    }


def _over_best(costs: AttentionCosts | None, found: Sequence[AttentionTime]) -> dict[str, float]:
    """The measured time of the number that the costs take, of those timed, over the smallest; None: one part."""
    over = list(_ratios(costs, found))
    return {"mean": round(float(np.mean(over)), 4), "max": round(float(np.max(over)), 4)} if over else {}


def _ratios(costs: AttentionCosts | None, found: Sequence[AttentionTime]) -> Iterator[float]:
    for work in dict.fromkeys(one.work for one in found):
        of_work = {one.splits: one.nanoseconds for one in found if one.work == work}
        pick = 1 if costs is None else min(of_work, key=partial(costs.nanoseconds, work))
        yield of_work[pick] / min(of_work.values())
