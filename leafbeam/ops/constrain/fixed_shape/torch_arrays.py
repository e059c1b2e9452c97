"""An index and the filters of a batch as torch tensors of fixed sizes, on any device.

The same arrays as `jax_arrays` and `jax_filters` have, from the same packing; words are int32, because torch has no unsigned
arithmetic, and are widened where they are read.

Shapes: S segments, B requests, M leaves, W words, G long ranges, E entries, F filters, H masks, D denied leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape.capacity import Capacity, LevelCapacity, SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import pack_denied, pack_filter
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout, pack_version
from leafbeam.ops.constrain.types import RequestFilter

__all__ = ["FilterArrays", "LevelArrays", "LevelFilters", "VersionArrays", "bind", "bind_filters"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelArrays:
    """One level of one segment: see `LevelLayout.arrays`; None where the capacity has no space for the part."""

    column_M: Tensor | None
    boundary_W: Tensor | None
    directory_M: Tensor | None
    ranges_G3: Tensor | None
    codes_E: Tensor | None
    firsts_E: Tensor | None
    capacity: LevelCapacity


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFilters:
    """A batch's filters at one level of one segment: see `jax_filters.LevelFilters`."""

    slot_B: Tensor
    leaves_FW: Tensor
    listed_FW: Tensor | None
    masks_FHW: Tensor | None
    denied_BD: Tensor
    dead_BD3: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionArrays:
    """A version on a device: `levels[t][s]`; what filters are made from stays on the host."""

    levels: tuple[tuple[LevelArrays, ...], ...]
    layouts: tuple[SegmentLayout, ...]
    capacity: Capacity
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        arrays = [value for pair in self.levels for one in pair for value in vars(one).values()]
        return sum(array.nbytes for array in arrays if isinstance(array, Tensor))


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch: `levels[t][s]`."""

    levels: tuple[tuple[LevelFilters, ...], ...]


def bind(
    index: Trie | Version,
    device: torch.device | str = "cpu",
    *,
    delta_leaves: int = 0,
    like: VersionArrays | None = None,
) -> VersionArrays:
    """Copy a version to the device; arguments, cost and errors as for `leafbeam.ops.constrain.fixed_shape.jax_step.bind`."""
    place = torch.device(device) if like is None else like.device
    known, kept = ((), None) if like is None else (like.layouts, like.capacity)
    packed, capacity = pack_version(index, delta_leaves, known, kept)
    columns: list[tuple[LevelArrays, ...]] = []
    for s, (one, segment_capacity) in enumerate(zip(packed, capacity.segments, strict=True)):
        same = (
            like is not None
            and s < len(like.layouts)
            and like.layouts[s] is one
            and like.capacity.segments[s] == segment_capacity
        )
        if like is not None and same:
            columns.append(tuple(pair[s] for pair in like.levels))
        else:
            columns.append(_levels(one, segment_capacity, place))
    return VersionArrays(levels=tuple(zip(*columns, strict=True)), layouts=packed, capacity=capacity, device=place)


def _levels(segment: SegmentLayout, capacity: SegmentCapacity, device: torch.device) -> tuple[LevelArrays, ...]:
    levels: list[LevelArrays] = []
    for level, level_capacity in zip(segment.levels, capacity.levels, strict=True):
        arrays = level.arrays(level_capacity, capacity.leaves)
        parts: dict[str, Any] = {
            name: _tensor(arrays[name], device) if name in arrays else None
            for name in ("column_M", "boundary_W", "directory_M", "ranges_G3", "codes_E", "firsts_E")
        }
        levels.append(LevelArrays(capacity=level_capacity, **parts))
    return tuple(levels)


def bind_filters(arrays: VersionArrays, filters: Sequence[tuple[RequestFilter, ...]]) -> FilterArrays:
    """Copy a batch's filters to the device, each different one once, padded to a power of two of them.

    Cost: `pack_filter` for each different filter, and the copy.
    """
    columns = [
        _filters([parts[s] if s < len(parts) else None for parts in filters], packed, capacity, arrays.device)
        for s, (packed, capacity) in enumerate(zip(arrays.layouts, arrays.capacity.segments, strict=True))
    ]
    return FilterArrays(levels=tuple(zip(*columns, strict=True)))


def _filters(
    requests: Sequence[RequestFilter | None], segment: SegmentLayout, capacity: SegmentCapacity, device: torch.device
) -> tuple[LevelFilters, ...]:
    bitmaps = [None if one is None else one.leaves for one in requests]
    distinct = {id(one): one for one in bitmaps if one is not None}
    slots = {key: slot + 1 for slot, key in enumerate(distinct)}  # filter 0 lets everything pass
    packed = [pack_filter(segment, one, capacity) for one in (None, *distinct.values())]
    packed += [packed[0]] * (bucket(len(packed)) - len(packed))
    stacks = {name: _tensor(np.stack([one[name] for one in packed]), device) for name in packed[0]}
    denied = {name: _tensor(array, device) for name, array in pack_denied(segment, requests).items()}
    slot_B = _tensor(np.array([0 if one is None else slots[id(one)] for one in bitmaps], np.int64), device)
    return tuple(
        LevelFilters(
            slot_B=slot_B,
            leaves_FW=stacks["leaves_W"],
            listed_FW=stacks.get(f"listed_W{level}"),
            masks_FHW=stacks.get(f"masks_HW{level}"),
            denied_BD=denied["denied_BD"],
            dead_BD3=denied[f"dead_BD3{level}"] if level_capacity.ranges else None,
        )
        for level, level_capacity in enumerate(capacity.levels)
    )


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """A tensor of the array, unsigned numbers as signed ones of the same bits; codes as int32 or narrower."""
    signed = {"uint32": np.int32, "uint16": np.int16}.get(array.dtype.name)
    return torch.from_numpy(array if signed is None else array.view(signed)).to(device)
