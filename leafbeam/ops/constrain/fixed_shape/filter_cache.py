"""The filters of a batch on a device: a cache of those used last, and the row of each request's filter in it.

Shapes: S segments, B requests, W words, F filters.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.index import Bitmap, Filter
from leafbeam.index.filters import ItemSet
from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelFilters, VersionArrays
from leafbeam.ops.constrain.fixed_shape.capacity import SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import denied_arrays, filter_words
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout


class FilterCache:
    """The filters used last, kept on the device, so that a batch sends row numbers and no bitmaps.

    Cost of a new filter: `filter_words` on the host, its copy to the device, and a copy of the cached filters there.

    Args:
        num_filters: Rows from the start, rounded up to a power of two; row 0 allows everything. The cache grows to the largest
            batch. A filter is known by the identity of its bitmap: keep the filter of a rule instead of building it for each
            request. What `bind` returned stays valid: a new filter makes new arrays.
    """

    def __init__(self, arrays: VersionArrays, num_filters: int = 2) -> None:
        if num_filters < 1:
            raise ArgumentError(f"num_filters is {num_filters}: expected at least 1")
        segments = zip(arrays.layouts, arrays.capacity.segments, strict=True)
        self._segments = [_SegmentCache(arrays, layout, sizes, bucket(num_filters)) for layout, sizes in segments]
        self._lock = threading.Lock()

    def for_version(self, arrays: VersionArrays) -> FilterCache:
        """Return a cache for another version; the filters of unchanged segments are not copied again."""
        cache = FilterCache.__new__(FilterCache)
        cache._lock, cache._segments = self._lock, []
        for s, (layout, sizes) in enumerate(zip(arrays.layouts, arrays.capacity.segments, strict=True)):
            old = self._segments[min(s, len(self._segments) - 1)]
            same = old.layout is layout and old.capacity == sizes
            cache._segments.append(old if same else _SegmentCache(arrays, layout, sizes, old.num_rows))
        return cache

    def bind(self, filters: Sequence[Filter]) -> FilterArrays:
        """Return the filters of a batch: for each request one for each segment, missing ones allow everything. Thread-safe."""
        with self._lock:
            columns = [
                segment.bind([request.parts[s] if s < len(request.parts) else None for request in filters])
                for s, segment in enumerate(self._segments)
            ]
        return FilterArrays(levels=tuple(zip(*columns, strict=True)))


def bind_filters(arrays: VersionArrays, filters: Sequence[Filter]) -> FilterArrays:
    """Copy a batch's filters to the device, each different one once."""
    return FilterCache(arrays).bind(filters)


class _SegmentCache:
    """The filters of one segment, as rows of arrays that `filter_words` names."""

    def __init__(self, arrays: VersionArrays, layout: SegmentLayout, capacity: SegmentCapacity, num_rows: int) -> None:
        self.layout, self.capacity, self.num_rows = layout, capacity, num_rows
        self._xp, self._device = arrays.xp, arrays.device
        self._bitmaps: list[Bitmap | None] = [None] * num_rows  # by row
        self._recent: list[int] = []  # rows, the one used longest ago first
        everything = filter_words(layout, None, capacity)  # row 0; the others may hold anything
        stacks = {name: np.stack([words] * num_rows) for name, words in everything.items()}
        self._stacks = {name: self._xp.asarray(stack, self._device) for name, stack in stacks.items()}

    def bind(self, requests: Sequence[ItemSet | None]) -> tuple[LevelFilters, ...]:
        """Return the filters of a batch at each level."""
        slot_B = self._rows([None if request is None else request.leaves for request in requests])
        slots = self._xp.asarray(slot_B, self._device)
        denied = {name: self._xp.asarray(array, self._device) for name, array in denied_arrays(self.layout, requests).items()}
        return tuple(
            LevelFilters(
                slot_B=slots,
                leaves_FW=self._stacks["leaves_W"],
                listed_FW=self._stacks.get(f"listed_W{level}"),
                masks_FHW=self._stacks.get(f"masks_HW{level}"),
                denied_BD=denied["denied_BD"],
                dead_BD3=denied[f"dead_BD3{level}"] if sizes.ranges else None,
            )
            for level, sizes in enumerate(self.capacity.levels)
        )

    def _rows(self, bitmaps: Sequence[Bitmap | None]) -> NDArray[np.int32]:
        """Return the row of each bitmap; new ones replace those used longest ago."""
        distinct = {id(bitmap): bitmap for bitmap in bitmaps if bitmap is not None}
        if len(distinct) >= self.num_rows:
            self._grow(bucket(len(distinct) + 1))
        row_of = {id(bitmap): row for row, bitmap in enumerate(self._bitmaps) if bitmap is not None and id(bitmap) in distinct}
        new = [bitmap for key, bitmap in distinct.items() if key not in row_of]
        free = [row for row in range(1, self.num_rows) if self._bitmaps[row] is None]
        free += [row for row in self._recent if row not in row_of.values()]
        for bitmap, row in zip(new, free, strict=False):
            row_of[id(bitmap)], self._bitmaps[row] = row, bitmap
        self._recent = [row for row in self._recent if row not in row_of.values()] + list(row_of.values())
        if new:  # padded to a power of two by repeating the last, so that few sizes are compiled
            padded = new + [new[-1]] * (bucket(len(new)) - len(new))
            words = [filter_words(self.layout, bitmap, self.capacity) for bitmap in new]
            words += [words[-1]] * (len(padded) - len(new))
            rows_n = np.array([row_of[id(bitmap)] for bitmap in padded], np.int32)
            fresh = {name: self._xp.asarray(np.stack([arrays[name] for arrays in words]), self._device) for name in words[0]}
            self._stacks = self._xp.set_rows(self._stacks, self._xp.asarray(rows_n, self._device), fresh)
        return np.array([0 if bitmap is None else row_of[id(bitmap)] for bitmap in bitmaps], np.int32)

    def _grow(self, num_rows: int) -> None:
        copies = num_rows // self.num_rows  # both are powers of two; what the new rows hold does not matter
        self._stacks = {name: self._xp.concat([stack] * copies, 0) for name, stack in self._stacks.items()}
        self._bitmaps += [None] * (num_rows - self.num_rows)
        self.num_rows = num_rows
