"""The fixed-shape step in JAX, on CPU, GPU and TPU: arrays are pytrees, and a step is compiled once for a `Capacity`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape import arrays as device_arrays
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelArrays, LevelFilters, VersionArrays
from leafbeam.ops.constrain.fixed_shape.filter_cache import FilterCache, bind_filters
from leafbeam.ops.constrain.fixed_shape.step import launch, step
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register
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
    "first_bad_row",
    "launch",
    "num_compiled",
    "step",
]

_XP = JaxNamespace()

register(LevelFilters)
register(LevelArrays, static=["capacity"])


def bind(
    index: Trie | Version, device: Any = None, *, delta_leaves: int = 0, like: VersionArrays | None = None
) -> VersionArrays:
    """Copy a version to a device.

    device: a device or a sharding of JAX, None for its default. delta_leaves: leave space for a delta of so many leaves, should
    the version have none yet. like: an earlier version of the same catalog, whose device is used; unchanged segments are not
    laid out or copied again, and no size becomes smaller.

    Cost: a pass over each level of each new segment, a few ns a leaf, and the copy.
    Raises ArgumentError for more than 2^31 leaves.
    """
    return device_arrays.bind(_XP, index, device, delta_leaves, like)


def extend(
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    lo_SBK: Any,
    hi_SBK: Any,
    scores_BK: Any,
    logits_BKV: Any,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Any], Any]:
    """One step inside a traced function: (beams, bool [B, P]: rows that were live and held NaN or +inf, treated as dead).

    levels, filters: of one level, one for each segment: `arrays.levels[t]`, `filters.levels[t]`.
    """
    state = lo_SBK, hi_SBK, scores_BK
    return fixed_step.extend(_XP, levels, filters, *state, logits_BKV, num_beams=num_beams, scoring=scoring)


def first_bad_row(bad_BP: Any) -> Any:
    """What `launch` returns for the bad rows of `extend`: 1 + the first, 0 for none; may be traced."""
    return fixed_step.first_bad_row(_XP, bad_BP)


def num_compiled() -> int:
    """The number of different steps that this process has compiled; constant while a catalog stays within its capacity."""
    compiled: Any = _XP.compiled(fixed_step.run)
    return compiled._cache_size()
