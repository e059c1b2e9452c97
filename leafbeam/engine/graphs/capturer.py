"""Captures a static decode for replay: torch's CUDA graphs, or a stand-in in tests."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from leafbeam.engine.graphs.static_decode import StaticDecode

__all__ = ["Capturer", "CudaCapturer"]


class Capturer(Protocol):
    """Captures decodes; one for each worker."""

    @property
    def nbytes(self) -> int | None:
        """Bytes that captures took so far, buffers aside; None if unknown (then they are estimated)."""
        ...

    def stream(self) -> AbstractContextManager[Any]:
        """The stream of all of a worker's decodes, as a context."""
        ...

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        """Returns a function that replays `decode.run()`."""
        ...

    def wait(self) -> None:
        """Wait for the device."""
        ...


class CudaCapturer:
    """torch.cuda's graphs on one stream. They share their memory, so one replays at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._nbytes = device, 0
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        """Run it once, so that kernels are compiled and libraries loaded; then once more, recorded."""
        self.wait()  # its inputs were written on another stream
        with self.stream():
            decode.run()
        self.wait()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            decode.run()
        self._nbytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph.replay

    def wait(self) -> None:
        torch.cuda.synchronize(self._device)
