"""An index as a pytree of device arrays, and what stays on the host beside it.

The arrays are arguments of every compiled function, never constants in it; their sizes come from a `Capacity`, so that another
version or filter of the same capacity runs what is compiled already. Leaves are int32, words uint32: nothing needs 64 bits.

Shapes: S segments, M leaves, W words, G long ranges, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from leafbeam.extras import optional_imports
from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape.capacity import Capacity, LevelCapacity, SegmentCapacity
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout, pack_version
from leafbeam.ops.constrain.types import Beams

with optional_imports("backend 'jax'"):
    import jax
    import jax.numpy as jnp

__all__ = ["LevelArrays", "VersionArrays", "bind"]

Array = jax.Array

jax.tree_util.register_dataclass(Beams, ["scores", "parent", "code", "lo", "hi", "num_valid"], [])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class LevelArrays:
    """One level of one segment on a device: see `LevelLayout.arrays`; None where the capacity has no space for the part."""

    column_M: Array | None
    boundary_W: Array | None
    directory_M: Array | None
    ranges_G3: Array | None
    codes_E: Array | None
    firsts_E: Array | None
    capacity: LevelCapacity = field(metadata={"static": True})


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """A version on a device: `levels[t][s]` is a pytree. The rest stays on the host: what filters are made from.

    nbytes counts what is allocated, padding included; used_nbytes what the exact sizes would take.
    """

    levels: tuple[tuple[LevelArrays, ...], ...]
    layouts: tuple[SegmentLayout, ...]
    capacity: Capacity

    def placed(self, sharding: jax.sharding.Sharding) -> VersionArrays:
        """The same arrays somewhere else: on another device, or a copy on each of a mesh. Free where they are there already."""
        return replace(self, levels=jax.device_put(self.levels, sharding))

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(self.parts.values())

    @property
    def used_nbytes(self) -> int:
        """Bytes without the padding to powers of two."""
        return sum(segment.used_nbytes for segment in self.layouts)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes on the device by part: columns, boundaries, directories, listings."""
        names = {
            "columns": ("column_M",),
            "boundaries": ("boundary_W",),
            "directories": ("directory_M", "ranges_G3"),
            "listings": ("codes_E", "firsts_E"),
        }
        return {
            part: sum(_nbytes(getattr(one, name)) for pair in self.levels for one in pair for name in fields)
            for part, fields in names.items()
        }


def _nbytes(array: Array | None) -> int:
    return 0 if array is None else array.nbytes


def bind(index: Trie | Version, *, delta_leaves: int = 0, like: VersionArrays | None = None) -> VersionArrays:
    """Copy a version to the device.

    delta_leaves: leave space for a delta of so many leaves where the version has none yet. like: an earlier version of the same
    catalog; its segments that have not changed are not packed or copied again, and no size becomes smaller than there.

    Cost: a pass over each level of each new segment, a few ns a leaf, and the copy.
    Raises ArgumentError for more than 2^31 leaves.
    """
    known, kept = ((), None) if like is None else (like.layouts, like.capacity)
    packed, wanted = pack_version(index, delta_leaves, known, kept)
    columns: list[tuple[LevelArrays, ...]] = []
    for s, (one, segment_capacity) in enumerate(zip(packed, wanted.segments, strict=True)):
        old = (
            like is not None
            and s < len(like.layouts)
            and like.layouts[s] is one
            and like.capacity.segments[s] == segment_capacity
        )
        columns.append(tuple(pair[s] for pair in like.levels) if like is not None and old else _levels(one, segment_capacity))
    return VersionArrays(levels=tuple(zip(*columns, strict=True)), layouts=packed, capacity=wanted)


def _levels(segment: SegmentLayout, capacity: SegmentCapacity) -> tuple[LevelArrays, ...]:
    levels: list[LevelArrays] = []
    for level, level_capacity in zip(segment.levels, capacity.levels, strict=True):
        arrays = level.arrays(level_capacity, capacity.leaves)
        parts: dict[str, Any] = {
            name: jnp.asarray(arrays[name]) if name in arrays else None
            for name in ("column_M", "boundary_W", "directory_M", "ranges_G3", "codes_E", "firsts_E")
        }
        levels.append(LevelArrays(capacity=level_capacity, **parts))
    return tuple(levels)
