"""Inputs of a batch that go to a device together: the host's buffer is pinned, and the copy is asynchronous."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class PackedInputs:
    """Several int64 tensors in one buffer on a device, which `send` fills from the host in one asynchronous copy.

    Args:
        shapes: The shapes of the tensors.
        device: Their device.

    Attributes:
        tensors: The tensors on the device, which never move.
        host: An array for each of them, to write before `send`.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._buffer = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._is_pinned = device.type == "cuda"
        pinned = torch.zeros(sum(sizes), dtype=torch.int64, pin_memory=True) if self._is_pinned else None
        self._staged: NDArray[np.int64] = np.zeros(sum(sizes), np.int64) if pinned is None else pinned.numpy()
        pieces = zip(self._buffer.split(sizes), shapes, strict=True)
        self.tensors = [piece.view(shape) for piece, shape in pieces]
        ends = np.cumsum(sizes)[:-1]
        self.host = [part.reshape(shape) for part, shape in zip(np.split(self._staged, ends), shapes, strict=True)]

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    @staticmethod
    def as_float32(integers_n: Any) -> Any:
        """Return as many float32 numbers as an int64 tensor or array has entries, in its memory."""
        dtype: Any = torch.float32 if isinstance(integers_n, torch.Tensor) else np.float32
        return integers_n.view(dtype)[: len(integers_n)]

    def send(self) -> None:
        """Copy what was written to the device. Write again only after the device was waited for."""
        self._buffer.copy_(torch.from_numpy(self._staged), non_blocking=self._is_pinned)
