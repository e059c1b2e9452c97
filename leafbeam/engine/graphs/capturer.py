"""What makes a replay of a decode: torch's CUDA graphs, or whatever a test brings in their place."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from leafbeam.engine.graphs.static_decode import StaticDecode

__all__ = ["Capturer", "CudaCapturer"]


class Capturer(Protocol):
    """How a decode becomes something to replay; one for each worker."""

    @property
    def nbytes(self) -> int | None:
        """Bytes that captures took so far, trays aside; None where nobody can tell (then they are estimated)."""
        ...

    def stream(self) -> AbstractContextManager[Any]:
        """Around all that a worker does with its decodes."""
        ...

    def capture(self, decode: StaticDecode) -> Callable[[], None]: ...

    def wait(self) -> None:
        """Until the device has done what it was told."""
        ...


class CudaCapturer:
    """torch.cuda's graphs, of one stream, which share their memory between them: one replay at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._taken = device, 0
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    @property
    def nbytes(self) -> int:
        return self._taken

    def stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        """Run it once, so that kernels are compiled and libraries loaded; then once more, recorded."""
        self.wait()  # what it reads was written on another stream
        with self.stream():
            decode.run()
        self.wait()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            decode.run()
        self._taken += max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph.replay

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)
