"""Memory that searches of one stream write again and again."""

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
    """The buffers of one worker: context slots of prompts, codes of beams, activations, logits.

    Think of it as a desk that is cleared, not thrown away: each buffer is allocated when it is first needed, or needed larger,
    and from then on every search writes into the same memory. After one search of the largest batch, prompt and width, no
    further search allocates (`growths` stands still). Give it to `Transformer.start`; without one, each search has its own.

    One search at a time: starting the next ends the one before, and the logits that it answered are written over. So workers
    that run side by side have one each, over one copy of the weights.

    rows: tokens or beams that go through the layers together. Activations have so many rows, however long the prompt and wide
    the search. scores: attention scores that are held at a time.

    >>> workspace = Workspace()
    >>> rounds = model.start(tokens_BT, lengths_B, workspace=workspace)   # doctest: +SKIP
    """

    def __init__(self, *, rows: int = 512, scores: int = 1 << 18) -> None:
        if rows < 1 or scores < 1:
            raise ArgumentError(f"rows={rows} and scores={scores} have to be at least 1")
        self.rows, self.scores = rows, scores
        self.growths = 0
        self._flat: dict[str, Tensor] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._views: dict[str, tuple[tuple[int, ...], Tensor, NDArray[Any]]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(flat.nbytes for flat in self._flat.values())

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, keep: bool = False
    ) -> tuple[Tensor, NDArray[Any]]:
        """The buffer of this name in this shape, as a tensor and as an array, with whatever was left in it.

        keep: what the buffer holds is still needed if it has to grow.
        """
        held = self._views.get(name)
        if held is not None and held[0] == shape:
            return held[1], held[2]
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            if not keep:  # before the new one is taken, so that both are never there together
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

    def computed(self, name: str, least: int, rows: Callable[[int], Tensor]) -> NDArray[Any]:
        """A table with at least so many rows, from `rows(count)`; made anew, twice as long, where it is too short."""
        flat = self._flat.get(name)
        if flat is None or len(flat) < least:
            self._flat[name] = flat = rows(max(least, 2 * (0 if flat is None else len(flat)))).contiguous()
            self.growths += 1
            self._views[name] = tuple(flat.shape), flat, flat.numpy()
        return self._views[name][2]

    def gathered(self, name: str, matrix_VD: Tensor, rows: NDArray[Any]) -> Tensor:
        """Some rows of a matrix, copied again only when it has changed."""
        stamp = matrix_VD.data_ptr(), 0 if matrix_VD.is_inference() else matrix_VD._version
        buffer, _ = self.take(name, len(rows), matrix_VD.shape[1])
        if matrix_VD.is_inference() or self._stamps.get(name) != stamp:
            torch.index_select(matrix_VD, 0, torch.from_numpy(rows), out=buffer)
            self._stamps[name] = stamp
        return buffer
