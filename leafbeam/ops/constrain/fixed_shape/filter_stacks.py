"""The filters of a segment on a device, in stacks of fixed shapes. A request's filter is the number of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leafbeam.index import Bitmap
from leafbeam.ops.constrain.filter_cache import FilterCache
from leafbeam.ops.constrain.fixed_shape.capacity import SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import filter_words
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout
from leafbeam.ops.constrain.namespaces import ArrayNamespace


class SegmentFilters:
    """The filters of one segment: its cache, and stacks of arrays that `filter_words` names, whose rows the cache numbers.

    What was read before stays valid: new rows make new stacks. The words of a filter are computed on the host, because a
    level's list of children has a bit for each child that is left, so no filter is derived on the device.

    Args:
        num_rows: Rows to reserve. Row 0 allows everything.
        max_bytes: As for `FilterCache`.
    """

    def __init__(
        self,
        xp: ArrayNamespace,
        device: Any,
        layout: SegmentLayout,
        capacity: SegmentCapacity,
        *,
        num_rows: int,
        max_bytes: int,
    ) -> None:
        self.layout, self.capacity = layout, capacity
        self._xp, self._device, self.num_rows = xp, device, num_rows
        everything = filter_words(layout, None, capacity)  # row 0; the others may hold anything
        self.row_nbytes = sum(words.nbytes for words in everything.values())
        stacks = {name: np.stack([words] * num_rows) for name, words in everything.items()}
        self.stacks: dict[str, Any] = {name: xp.asarray(stack, device) for name, stack in stacks.items()}
        self.cache = FilterCache(self, num_rows=num_rows, max_bytes=max_bytes)

    def resize(self, num_rows: int) -> None:
        """Make longer stacks; what the new rows hold does not matter."""
        copies = -(-num_rows // self.num_rows)
        self.stacks = {name: self._xp.concat([stack] * copies, 0)[:num_rows] for name, stack in self.stacks.items()}
        self.num_rows = num_rows

    def upload(self, rows: Sequence[int], bitmaps: Sequence[Bitmap]) -> None:
        """Compute the words of filters, and copy them to the device."""
        padding = bucket(len(rows)) - len(rows)  # the last is repeated, so that few sizes are compiled
        words = [filter_words(self.layout, bitmap, self.capacity) for bitmap in bitmaps]
        words += words[-1:] * padding
        rows_n = np.array([*rows, *[rows[-1]] * padding], np.int32)
        fresh = {name: self._xp.asarray(np.stack([arrays[name] for arrays in words]), self._device) for name in words[0]}
        self.stacks = self._xp.set_rows(self.stacks, self._xp.asarray(rows_n, self._device), fresh)
