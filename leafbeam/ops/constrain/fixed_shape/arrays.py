"""A version and the filters of a batch on a device, in arrays of fixed sizes.

The arrays are arguments of the compiled step, never constants in it, so that another version or filter of the same `Capacity`
runs the code that is already compiled.

Shapes: B requests, M leaves, W words, G long ranges, E entries, F filters, H masks, D denied leaves of a request.
"""

from dataclasses import dataclass
from typing import Any

from leafbeam.errors import counted
from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape.capacity import Capacity, LevelCapacity, SegmentCapacity
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout, lay_out
from leafbeam.ops.constrain.namespaces import ArrayNamespace

_PARTS = (
    ("columns", "column_M"),
    ("boundaries", "boundary_W"),
    ("directories", "directory_M"),
    ("directories", "ranges_G3"),
    ("listings", "codes_E"),
    ("listings", "firsts_E"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelArrays:
    """One level of one segment: the arrays of `LevelLayout.arrays`, None where the capacity has no space for them."""

    column_M: Any
    boundary_W: Any
    directory_M: Any
    ranges_G3: Any
    codes_E: Any
    firsts_E: Any
    capacity: LevelCapacity


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFilters:
    """A batch's filters at one level of one segment.

    Args:
        slot_B: int32, the row of each request's filter; row 0 allows everything.
        leaves_FW, listed_FW: Words, a bit for each leaf and for each listed child.
        masks_FHW: Words, the codes of the wide ranges.
        denied_BD: int32 leaves.
        dead_BD3: int32 (entry, mask, code) of the listed children that are dead without these leaves. Unused entries of the
            last two arrays are -1.
    """

    slot_B: Any
    leaves_FW: Any
    listed_FW: Any
    masks_FHW: Any
    denied_BD: Any
    dead_BD3: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """A version on a device: `levels[t][s]` is level t of segment s.

    Args:
        layouts: The layouts on the host, from which filters are made.
        device: A torch device; in JAX a device, a sharding, or None (default).
    """

    levels: tuple[tuple[LevelArrays, ...], ...]
    layouts: tuple[SegmentLayout, ...]
    capacity: Capacity
    device: Any
    xp: ArrayNamespace

    def __repr__(self) -> str:
        leaves = " + ".join(f"{layout.trie.num_leaves:,}" for layout in self.layouts)
        return f"VersionArrays(leaves: {leaves}; {counted(self.nbytes, 'byte')})"

    @property
    def nbytes(self) -> int:
        """Return the bytes allocated on the device, padding included."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes on the device by part: columns, boundaries, directories, listings."""
        arrays = [(part, getattr(level, name)) for pair in self.levels for level in pair for part, name in _PARTS]
        return {part: sum(array.nbytes for at, array in arrays if at == part and array is not None) for part, _ in _PARTS}


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch: `levels[t][s]`."""

    levels: tuple[tuple[LevelFilters, ...], ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes on the device, including those of other filters in the same cache."""
        arrays = {id(array): array for pair in self.levels for level in pair for array in vars(level).values()}
        return sum(array.nbytes for array in arrays.values() if array is not None)


def bind(
    xp: ArrayNamespace,
    index: Trie | Version,
    device: Any = None,
    *,
    delta_leaves: int = 0,
    like: VersionArrays | None = None,
) -> VersionArrays:
    """Copy a version to a device.

    Cost: a pass over each level of each new segment, a few ns a leaf, and the copy. Raises ArgumentError for more than 2^31
    leaves.

    Args:
        device: A device of torch, or a device or sharding of JAX; None takes the library's default.
        delta_leaves: The number of leaves to reserve for a delta, if the version has no delta yet.
        like: An earlier version of the same catalog, whose device is used; unchanged segments are not laid out or copied again,
            and no size becomes smaller.
    """
    known, minimum = ((), None) if like is None else (like.layouts, like.capacity)
    device = xp.device(device) if like is None else like.device
    layouts, capacity = lay_out(index, delta_leaves, known, minimum)
    columns: list[tuple[LevelArrays, ...]] = []
    for s, (layout, sizes) in enumerate(zip(layouts, capacity.segments, strict=True)):
        if like and s < len(like.layouts) and like.layouts[s] is layout and like.capacity.segments[s] == sizes:
            columns.append(tuple(pair[s] for pair in like.levels))
        else:
            columns.append(_copied(xp, layout, sizes, device))
    return VersionArrays(levels=tuple(zip(*columns, strict=True)), layouts=layouts, capacity=capacity, device=device, xp=xp)


def _copied(xp: ArrayNamespace, layout: SegmentLayout, capacity: SegmentCapacity, device: Any) -> tuple[LevelArrays, ...]:
    levels: list[LevelArrays] = []
    for level, sizes in zip(layout.levels, capacity.levels, strict=True):
        arrays: dict[str, Any] = dict.fromkeys(name for _, name in _PARTS)
        arrays |= {name: xp.asarray(array, device) for name, array in level.arrays(sizes, capacity.leaves).items()}
        levels.append(LevelArrays(**arrays, capacity=sizes))
    return tuple(levels)
