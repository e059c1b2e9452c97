"""The fixed-shape step in torch, on any device; `torch.compile(extend, fullgraph=True)` takes it without graph breaks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape import arrays as device_arrays
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelArrays, LevelFilters, VersionArrays
from leafbeam.ops.constrain.fixed_shape.filter_cache import FilterCache, bind_filters
from leafbeam.ops.constrain.fixed_shape.step import launch, step
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = [
    "FilterArrays",
    "FilterCache",
    "LevelArrays",
    "LevelFilters",
    "VersionArrays",
    "bind",
    "bind_filters",
    "extend",
    "launch",
    "step",
]

_XP = TorchNamespace()


def bind(
    index: Trie | Version,
    device: torch.device | str = "cpu",
    *,
    delta_leaves: int = 0,
    like: VersionArrays | None = None,
) -> VersionArrays:
    """Copy a version to a device; arguments, cost and errors as for `leafbeam.ops.constrain.fixed_shape.jax.bind`."""
    return device_arrays.bind(_XP, index, torch.device(device), delta_leaves, like)


def extend(
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    lo_SBK: Tensor,
    hi_SBK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """One step: (beams, bool [B, P]: rows that were live and held NaN or +inf, treated as dead).

    levels, filters: of one level, one for each segment: `arrays.levels[t]`, `filters.levels[t]`. lo, hi are int64. Compiled,
    another version or filter of the same capacity compiles nothing and nothing of shape [R, V] is written.
    """
    state = lo_SBK, hi_SBK, scores_BK
    return fixed_step.extend(_XP, levels, filters, *state, logits_BKV, num_beams=num_beams, scoring=scoring)
