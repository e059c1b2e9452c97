"""The bitmaps of filters, and the maxima of boosts, on a GPU, where they stay.

Shapes: W words of a bitmap, n changed words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.index import Bitmap
from leafbeam.index.lineage import Operator
from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace

# Copies an array to a device; tests count the bytes.
Copy = Callable[[NDArray[np.generic], torch.device], Tensor]

_COMBINE: dict[Operator, Callable[[Tensor, Tensor], Tensor]] = {
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "minus": lambda left, right: torch.bitwise_and(left, torch.bitwise_not(right)),
}


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a copy on the device, or the array itself where that is this machine's memory and it may be shared.

    The copy is asynchronous: what is launched next waits for it, the host does not.
    """
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class BitmapTensors(NamedTuple):
    """A bitmap on the device: words (W,) as int64, and the rank before each word (W,) as int32."""

    words: Tensor
    before: Tensor

    @classmethod
    def of(cls, words_W: Tensor) -> BitmapTensors:
        """Add the ranks, which the device computes."""
        counts_W = TorchNamespace().popcount(words_W.view(torch.int32).long()).view(-1, 2).sum(1)
        return cls(words_W, (counts_W.cumsum(0) - counts_W).int())


class BitmapMemory:
    """The bitmaps of one segment, each in memory of its own, which is freed when no batch reads it any more."""

    def __init__(self, size: int, device: torch.device, copy: Copy) -> None:
        self._device, self._copy = device, copy
        self._tensors: dict[int, BitmapTensors] = {}
        self.row_nbytes = (size // 64 + 1) * 12

    def __getitem__(self, row: int) -> BitmapTensors | None:
        """Return the bitmap of a row; None for row 0, which allows everything."""
        return self._tensors.get(row)

    def resize(self, num_rows: int) -> None:
        """Do nothing: a row takes memory when it is written."""

    def upload(self, rows: Sequence[int], bitmaps: Sequence[Bitmap]) -> None:
        """Copy the words of bitmaps to the device."""
        for row, bitmap in zip(rows, bitmaps, strict=True):
            self._tensors[row] = BitmapTensors.of(self._copy(bitmap.words_W.view(np.int64), self._device))

    def patch(self, row: int, source: int, words_n: NDArray[np.int64], bitmap: Bitmap) -> None:
        """Copy a bitmap on the device, with some words from the host."""
        sent_2n = self._copy(np.stack([words_n, bitmap.words_W[words_n].view(np.int64)]), self._device)
        self._tensors[row] = BitmapTensors.of(self._tensors[source].words.index_copy(0, sent_2n[0], sent_2n[1]))

    def combine(self, row: int, operator: Operator, left: int, right: int) -> None:
        """Combine two bitmaps on the device."""
        self._tensors[row] = BitmapTensors.of(_COMBINE[operator](self._tensors[left].words, self._tensors[right].words))


class MaximaMemory:
    """The maxima of boosts of one segment: for each row a tensor of the root, and then one of each level."""

    def __init__(self, row_nbytes: int, device: torch.device, copy: Copy) -> None:
        self._device, self._copy = device, copy
        self._tensors: dict[int, tuple[Tensor, ...]] = {}
        self.row_nbytes = row_nbytes

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        """Return the tensors of a row; () for row 0, which adds nothing."""
        return self._tensors.get(row, ())

    def resize(self, num_rows: int) -> None:
        """Do nothing: a row takes memory when it is written."""

    def upload(self, rows: Sequence[int], data: Sequence[NodeMaxima]) -> None:
        """Copy maxima to the device as they are."""
        for row, maxima in zip(rows, data, strict=True):
            tables = np.full(1, maxima.root, np.float32), *maxima.levels
            self._tensors[row] = tuple(self._copy(table, self._device) for table in tables)
