"""Fits `AttentionCosts`, by which a prompt's attention is split on a GPU, to times measured there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from leafbeam.ops.attention.costs import COST_NAMES, AttentionCosts, AttentionWork, features

__all__ = ["AttentionTime", "fit_costs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionTime:
    """The time of one call on a device."""

    work: AttentionWork
    splits: int
    nanoseconds: float


def fit_costs(times: Sequence[AttentionTime], *, programs: Sequence[int], device: str | None = None) -> AttentionCosts:
    """Fit costs by least squares over the differences between the numbers of parts of one call, relative to its mean time.

    programs: how many may run side by side, of which the best is taken. Raises ValueError where the times tell nothing.
    """
    by_work: dict[AttentionWork, list[AttentionTime]] = {}
    for time in times:
        by_work.setdefault(time.work, []).append(time)
    best: tuple[float, int, NDArray[np.float64]] | None = None
    for count in programs:
        found = _least_squares(list(by_work.values()), count)
        if best is None or found[0] < best[0]:
            best = found[0], count, found[1]
    if best is None or not best[2].any():
        raise ValueError(f"{len(times)} times of {len(by_work)} calls do not say what parts cost: measure several of each")
    wave, block, merge = best[2].tolist()
    return AttentionCosts(programs=best[1], wave=wave, block=block, merge=merge, device=device)


def _least_squares(by_work: Sequence[Sequence[AttentionTime]], programs: int) -> tuple[float, NDArray[np.float64]]:
    """(squared error, costs of at least 0): the best of the solutions that leave some of them out."""
    rows, sides = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    for times in by_work:
        side = np.array([time.nanoseconds for time in times])
        row = np.stack([features(time.work, time.splits, programs) for time in times])
        rows.append((row - row.mean(0)) / side.mean())
        sides.append((side - side.mean()) / side.mean())
    if not rows:
        return math.inf, np.zeros(len(COST_NAMES))
    matrix, target = np.concatenate(rows), np.concatenate(sides)
    scale = np.maximum(np.abs(matrix).max(0), 1e-30)
    best = float(target @ target), np.zeros(len(COST_NAMES))
    sizes = range(1, len(COST_NAMES) + 1)
    for kept in chain.from_iterable(combinations(range(len(COST_NAMES)), size) for size in sizes):
        solved = np.linalg.lstsq(matrix[:, kept] / scale[list(kept)], target, rcond=None)[0]
        costs = np.zeros(len(COST_NAMES))
        costs[list(kept)] = solved / scale[list(kept)]
        error = matrix @ costs - target
        if (costs >= 0).all() and float(error @ error) < best[0]:
            best = float(error @ error), costs
    return best
