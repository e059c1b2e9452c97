"""Buffers that successive searches of one worker reuse."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError

__all__ = ["Workspace"]


class Workspace:
    """Named buffers for a search's keys, values, activations and logits, for `Transformer.start`.

    A buffer is allocated on first use and again only when a search needs it larger: after one search with the largest batch,
    prompt and number of beams, no further search allocates (`growths` stays constant). One search at a time: starting the next
    one invalidates the last and its logits, so each worker needs its own workspace.

    rows: tokens or beams that go through the layers together; bounds the activations. scores: attention scores computed
    together.

    >>> workspace = Workspace()
    >>> session = model.start(tokens_BT, lengths_B, workspace=workspace)   # doctest: +SKIP
    """

    def __init__(self, *, rows: int = 512, scores: int = 1 << 18) -> None:
        if rows < 1 or scores < 1:
            raise ArgumentError(f"rows={rows} and scores={scores} have to be at least 1")
        self.rows, self.scores = rows, scores
        self.growths = 0
        self._flat: dict[str, Tensor] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._views: dict[str, tuple[tuple[int, ...], Tensor, NDArray[Any]]] = {}

    def __repr__(self) -> str:
        return f"Workspace(rows={self.rows}, scores={self.scores}, nbytes={self.nbytes})"

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(flat.nbytes for flat in self._flat.values())

    def buffer(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, keep: bool = False
    ) -> tuple[Tensor, NDArray[Any]]:
        """The buffer of this name in this shape, as a tensor and as an array over the same memory, not cleared.

        keep: copy the old contents where the buffer has to grow.
        """
        held = self._views.get(name)
        if held is not None and held[0] == shape:
            return held[1], held[2]
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            if not keep:  # release the old buffer before allocating the new one
                held = flat = None
                self._flat.pop(name, None)
                self._views.pop(name, None)
            grown = torch.empty(size, dtype=dtype)
            if flat is not None:
                grown[: len(flat)] = flat
            self._flat[name] = flat = grown
            self.growths += 1
        view = flat[:size].view(shape)
        self._views[name] = shape, view, view.numpy()
        return view, self._views[name][2]

    def table(self, name: str, min_rows: int, rows: Callable[[int], Tensor]) -> NDArray[Any]:
        """A table of at least min_rows rows, computed by `rows(count)`; when too short, computed again at twice the length."""
        flat = self._flat.get(name)
        if flat is None or len(flat) < min_rows:
            self._flat[name] = flat = rows(max(min_rows, 2 * (0 if flat is None else len(flat)))).contiguous()
            self.growths += 1
            self._views[name] = tuple(flat.shape), flat, flat.numpy()
        return self._views[name][2]

    def gather_rows(self, name: str, matrix_VD: Tensor, rows: NDArray[Any]) -> Tensor:
        """Some rows of a matrix, copied again only when the matrix has changed."""
        stamp = matrix_VD.data_ptr(), 0 if matrix_VD.is_inference() else matrix_VD._version
        buffer, _ = self.buffer(name, len(rows), matrix_VD.shape[1])
        if matrix_VD.is_inference() or self._stamps.get(name) != stamp:
            torch.index_select(matrix_VD, 0, torch.from_numpy(rows), out=buffer)
            self._stamps[name] = stamp
        return buffer
