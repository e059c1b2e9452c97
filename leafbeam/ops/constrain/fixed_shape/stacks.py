"""Filters and boosts of requests on a device: rows of stacks of fixed shapes, for one segment of the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap
from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.ops.constrain.filter_cache import FilterCache
from leafbeam.ops.constrain.fixed_shape.capacity import SHORT, SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import changed_words, filter_words
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout
from leafbeam.ops.constrain.namespaces import Array, ArrayNamespace

# (layout, what a request brings or None, capacity) -> the arrays of its row.
LayOut = Callable[[SegmentLayout, Any, SegmentCapacity], Mapping[str, NDArray[np.generic]]]


class SegmentStacks:
    """The filters, or the boosts, of one segment: a cache, and stacks of arrays whose rows the cache numbers.

    What was read before stays valid: new rows make new stacks. Rows are computed on the host, because a level's list of
    children has an entry for each child, so the device combines no filters. A filter that differs from another one in some
    words is a copy of its row, with the words that changed.

    Args:
        lay_out: Makes the arrays of a row. Row 0 is that of a request without.
        num_rows: Rows to reserve.
        max_bytes: As for `FilterCache`.
    """

    def __init__(
        self,
        xp: ArrayNamespace,
        device: object,
        layout: SegmentLayout,
        capacity: SegmentCapacity,
        lay_out: LayOut,
        *,
        num_rows: int,
        max_bytes: int,
    ) -> None:
        self._layout, self._capacity = layout, capacity
        self._row_of = lambda of_request: lay_out(layout, of_request, capacity)
        self._xp, self._device, self.num_rows = xp, device, num_rows
        first = self._row_of(None)  # row 0; the others may hold any finite number
        self.row_nbytes = sum(array.nbytes for array in first.values())
        stacks = {name: np.stack([array] * num_rows) for name, array in first.items()}
        self.stacks: dict[str, Array] = {name: xp.asarray(stack, device) for name, stack in stacks.items()}
        self.cache = FilterCache(self, num_rows=num_rows, max_bytes=max_bytes)

    def resize(self, num_rows: int) -> None:
        """Make longer stacks; what the new rows hold does not matter."""
        copies = -(-num_rows // self.num_rows)
        self.stacks = {name: self._xp.concat([stack] * copies, 0)[:num_rows] for name, stack in self.stacks.items()}
        self.num_rows = num_rows

    def patch(self, row: int, source: int, words_n: NDArray[np.int64], bitmap: Bitmap) -> None:
        """Copy a filter's row on the device, with the words from the host that differ."""
        changed = changed_words(self._layout, bitmap, words_n, self._capacity)
        sent = {
            name: tuple(self._xp.asarray(_to_bucket(array), self._device) for array in words) for name, words in changed.items()
        }
        self.stacks = self._xp.copy_row(self.stacks, row, source, sent)

    def upload(self, rows: Sequence[int], data: Sequence[object]) -> None:
        """Lay out filters or boosts, and copy them to the device."""
        padding = bucket(len(rows)) - len(rows)  # the last is repeated, so that few sizes are compiled
        made = [self._row_of(of_request) for of_request in data]
        made += made[-1:] * padding
        rows_n = np.array([*rows, *[rows[-1]] * padding], np.int32)
        fresh = {name: self._xp.asarray(np.stack([arrays[name] for arrays in made]), self._device) for name in made[0]}
        self.stacks = self._xp.set_rows(self.stacks, self._xp.asarray(rows_n, self._device), fresh)


def _to_bucket(array_n: NDArray[np.generic]) -> NDArray[np.generic]:
    """Repeat the last entry up to a power of two, so that few sizes are compiled."""
    return np.concatenate([array_n, np.repeat(array_n[-1:], bucket(len(array_n)) - len(array_n))])


class RequestStacks:
    """The filters of one segment, and its boosts once a request has one.

    Args:
        num_filters: Rows of filters to reserve.
        num_boosts: Rows of boosts to reserve.
        max_bytes: For each of the two, as for `FilterCache`.
    """

    def __init__(
        self,
        xp: ArrayNamespace,
        device: object,
        layout: SegmentLayout,
        capacity: SegmentCapacity,
        *,
        num_filters: int,
        num_boosts: int = 2,
        max_bytes: int,
    ) -> None:
        self.layout, self.capacity, self._num_boosts = layout, capacity, num_boosts
        self._of_segment = (xp, device, layout, capacity)
        self.filters = SegmentStacks(*self._of_segment, filter_words, num_rows=num_filters, max_bytes=max_bytes)

    @cached_property
    def boosts(self) -> SegmentStacks:
        """Return the stacks of boosts: 4 bytes for each leaf of a level with short ranges, and for each listed child."""
        max_bytes = self.filters.cache.max_bytes
        return SegmentStacks(*self._of_segment, boost_values, num_rows=self._num_boosts, max_bytes=max_bytes)

    @property
    def options(self) -> dict[str, int]:
        """Return the arguments for the stacks of another segment in place of this one: no size becomes smaller."""
        num_boosts = self.boosts.num_rows if "boosts" in vars(self) else self._num_boosts
        return {"num_filters": self.filters.num_rows, "num_boosts": num_boosts, "max_bytes": self.filters.cache.max_bytes}


def boost_values(
    segment: SegmentLayout, maxima: NodeMaxima | None, capacity: SegmentCapacity
) -> dict[str, NDArray[np.float32]]:
    """Return a boost's numbers, padded to `capacity` with 0; None is 0 everywhere.

    leaves_M{t}, entries_E{t}, ranges_G{t}: float32, for each level t that has such ranges. Cost: a pass over the leaves for
    each level.
    """
    arrays: dict[str, NDArray[np.float32]] = {}
    for t, (level, sizes) in enumerate(zip(segment.levels, capacity.levels, strict=True)):
        if sizes.short:
            leaves_M = arrays[f"leaves_M{t}"] = np.zeros(capacity.leaves + SHORT, np.float32)
            if maxima is not None and level.num_leaves:
                firsts = level.source.firsts
                leaves_M[slice(level.num_leaves) if firsts is None else firsts] = maxima.levels[t]
        if sizes.ranges:
            entries_E = arrays[f"entries_E{t}"] = np.zeros(sizes.entries + sizes.width, np.float32)
            ranges_G = arrays[f"ranges_G{t}"] = np.zeros(sizes.ranges, np.float32)
            if maxima is not None and len(level.lo_G):
                of_children = maxima.at(segment.trie, t, level.firsts_E.astype(np.int64))
                entries_E[: len(of_children)] = of_children
                ranges_G[: len(level.lo_G)] = np.maximum.reduceat(of_children, level.indptr_G1[:-1])
    return arrays
