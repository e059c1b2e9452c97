"""A version, and the filters and boosts of a batch, on a device, in arrays of fixed sizes.

The arrays are arguments of the compiled step, never constants in it, so that another version or filter of the same `Capacity`
runs the code that is already compiled.

Shapes: B requests, M leaves, W words, G long ranges, E entries, F filters, H masks, D denied leaves of a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.index.filters import ItemSet
from leafbeam.ops.constrain.fixed_shape.capacity import Capacity, LevelCapacity, SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import denied_arrays
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout, lay_out
from leafbeam.ops.constrain.fixed_shape.stacks import RequestStacks
from leafbeam.ops.constrain.namespaces import Array, ArrayNamespace
from leafbeam.ops.constrain.types import Boosts

_MAX_FILTER_BYTES = 64 << 20  # a new filter copies all of them


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelArrays:
    """One level of one segment: the arrays of `LevelLayout.arrays`, None where the capacity has no space for them."""

    column_M: Array
    boundary_W: Array
    directory_M: Array
    ranges_G3: Array
    codes_E: Array
    firsts_E: Array
    capacity: LevelCapacity


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelBoosts:
    """A batch's boosts at one level of one segment.

    Args:
        slot_B: int32, the row of each request's boost; row 0 is 0 everywhere.
        weight_B: float32, what its numbers are multiplied with.
        leaves_FM, entries_FE, ranges_FG: float32, the largest number below the child that begins at each leaf, below each
            listed child, and below each long range; None where the capacity has no such ranges.
    """

    slot_B: Array
    weight_B: Array
    leaves_FM: Any
    entries_FE: Any
    ranges_FG: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFilters:
    """A batch's filters and boosts at one level of one segment.

    Args:
        slot_B: int32, the row of each request's filter; row 0 allows everything.
        leaves_FW, listed_FW: Words, a bit for each leaf and for each listed child.
        masks_FHW: Words, the codes of the wide ranges.
        denied_BD: int32 leaves.
        dead_BD3: int32 (entry, mask, code) of the listed children that are dead without these leaves. Unused entries of the
            last two arrays are -1.
        boosts: None if no request has one.
    """

    slot_B: Array
    leaves_FW: Array
    listed_FW: Any
    masks_FHW: Any
    denied_BD: Array
    dead_BD3: Any
    boosts: LevelBoosts | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """A version on a device: `levels[t][s]` is level t of segment s.

    Args:
        layouts: The layouts on the host, from which filters are made.
        stacks: The filters and boosts that are on the device, for each segment.
        device: A torch device; in JAX a device, a sharding, or None (default).
    """

    levels: tuple[tuple[LevelArrays, ...], ...]
    layouts: tuple[SegmentLayout, ...]
    stacks: tuple[RequestStacks, ...]
    capacity: Capacity
    device: object
    xp: ArrayNamespace

    def __repr__(self) -> str:
        leaves = " + ".join(f"{layout.trie.num_leaves:,}" for layout in self.layouts)
        return f"VersionArrays(leaves: {leaves})"


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters and boosts of a batch: `levels[t][s]`."""

    levels: tuple[tuple[LevelFilters, ...], ...]


def bind(
    xp: ArrayNamespace,
    index: Trie | Version,
    device: object = None,
    *,
    delta_leaves: int = 0,
    num_filters: int = 1,
    max_filter_bytes: int = _MAX_FILTER_BYTES,
    like: VersionArrays | None = None,
) -> VersionArrays:
    """Copy a version to a device.

    Cost: a pass over each level of each new segment, a few ns a leaf, and the copy. Raises ArgumentError for more than 2^31
    leaves.

    Args:
        device: A device of torch, or a device or sharding of JAX; None takes the library's default.
        delta_leaves: The number of leaves to reserve for a delta, if the version has no delta yet.
        num_filters: The number of filters to reserve space for. More space makes new arrays, for which JAX compiles again.
        max_filter_bytes: The bytes of a segment's filters, and of its boosts, beyond which those used longest ago are dropped;
            at least num_filters are kept.
        like: An earlier version of the same catalog, whose device is used; unchanged segments are not laid out or copied again,
            and no size becomes smaller.
    """
    known, minimum = ((), None) if like is None else (like.layouts, like.capacity)
    device = xp.device(device) if like is None else like.device
    layouts, capacity = lay_out(index, delta_leaves, known, minimum)
    columns: list[tuple[LevelArrays, ...]] = []
    stacks: list[RequestStacks] = []
    options: dict[str, int] = {"num_filters": bucket(num_filters + 1), "max_bytes": max_filter_bytes}
    for s, (layout, sizes) in enumerate(zip(layouts, capacity.segments, strict=True)):
        if like is not None:
            options = like.stacks[min(s, len(like.stacks) - 1)].options
        if like and s < len(like.layouts) and like.layouts[s] is layout and like.capacity.segments[s] == sizes:
            columns.append(tuple(pair[s] for pair in like.levels))
            stacks.append(like.stacks[s])
        else:
            columns.append(_copied(xp, layout, sizes, device))
            stacks.append(RequestStacks(xp, device, layout, sizes, **options))
    return VersionArrays(
        levels=tuple(zip(*columns, strict=True)),
        layouts=layouts,
        stacks=tuple(stacks),
        capacity=capacity,
        device=device,
        xp=xp,
    )


def bind_filters(arrays: VersionArrays, filters: Sequence[Filter], boosts: Boosts = None) -> FilterArrays:
    """Return the filters of a batch: for each request one for each segment, missing ones allow everything; and its boosts.

    What the device does not have is copied there. What was returned before stays valid. Thread-safe.

    Cost of a new filter or boost: `filter_words` or `boost_values` on the host, its copy to the device, and a copy of the
    cached ones there.
    """
    columns = [
        _of_segment(arrays, segment, [request.parts[s] if s < len(request.parts) else None for request in filters])
        for s, segment in enumerate(arrays.stacks)
    ]
    if boosts is not None:
        pairs = zip(columns, _boosts_of_segments(arrays, boosts), strict=True)
        columns = [
            tuple(replace(one, boosts=of_level) for one, of_level in zip(levels, of_levels, strict=True))
            for levels, of_levels in pairs
        ]
    return FilterArrays(levels=tuple(zip(*columns, strict=True)))


def _of_segment(arrays: VersionArrays, segment: RequestStacks, requests: Sequence[ItemSet | None]) -> tuple[LevelFilters, ...]:
    """Return the filters of a batch in one segment, at each level."""
    with segment.filters.cache.rows_of([None if request is None else request.leaves for request in requests]) as rows:
        slot_B, stacks = arrays.xp.asarray(rows, arrays.device), segment.filters.stacks
    denied = {name: arrays.xp.asarray(array, arrays.device) for name, array in denied_arrays(segment.layout, requests).items()}
    return tuple(
        LevelFilters(
            slot_B=slot_B,
            leaves_FW=stacks["leaves_W"],
            listed_FW=stacks.get(f"listed_W{level}"),
            masks_FHW=stacks.get(f"masks_HW{level}"),
            denied_BD=denied["denied_BD"],
            dead_BD3=denied[f"dead_BD3{level}"] if sizes.ranges else None,
        )
        for level, sizes in enumerate(segment.capacity.levels)
    )


def _boosts_of_segments(arrays: VersionArrays, boosts: Sequence[ItemColumn | None]) -> list[tuple[LevelBoosts, ...]]:
    """Return the boosts of a batch in each segment, at each level; a segment beyond those of the version has no items."""
    weight_B = np.array([0 if column is None else column.weight for column in boosts], np.float32)
    weights = arrays.xp.asarray(weight_B, arrays.device)
    tries = [layout.trie for layout in arrays.layouts]
    maxima = [() if column is None else column.bounds(tries[: len(column.parts)]) for column in boosts]
    found: list[tuple[LevelBoosts, ...]] = []
    for s, segment in enumerate(arrays.stacks):
        with segment.boosts.cache.rows_of([of_request[s] if s < len(of_request) else None for of_request in maxima]) as rows:
            slot_B, stacks = arrays.xp.asarray(rows, arrays.device), segment.boosts.stacks
        names = [[f"{name}{level}" for name in ("leaves_M", "entries_E", "ranges_G")] for level in range(len(arrays.levels))]
        levels = [[stacks.get(name) for name in of_level] for of_level in names]
        found.append(
            tuple(
                LevelBoosts(slot_B=slot_B, weight_B=weights, leaves_FM=leaves, entries_FE=entries, ranges_FG=ranges)
                for leaves, entries, ranges in levels
            )
        )
    return found


def _copied(xp: ArrayNamespace, layout: SegmentLayout, capacity: SegmentCapacity, device: object) -> tuple[LevelArrays, ...]:
    levels: list[LevelArrays] = []
    for level, sizes in zip(layout.levels, capacity.levels, strict=True):
        arrays: dict[str, Any] = dict.fromkeys(one.name for one in fields(LevelArrays))  # None
        arrays |= {name: xp.asarray(array, device) for name, array in level.arrays(sizes, capacity.leaves).items()}
        arrays["capacity"] = sizes
        levels.append(LevelArrays(**arrays))
    return tuple(levels)
