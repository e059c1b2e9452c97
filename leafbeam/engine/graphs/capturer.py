"""Captures a static decode for replay as a CUDA graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from leafbeam.engine.graphs.static_decode import StaticDecode

__all__ = ["CudaCapturer"]


class CudaCapturer:
    """torch.cuda's graphs of one worker, on one stream. They share their memory, so one replays at a time.

    nbytes: that captures took so far, buffers aside.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.nbytes = device, 0
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def stream(self) -> AbstractContextManager[Any]:
        """The stream of all of the worker's decodes, as a context."""
        return torch.cuda.stream(self._stream)

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        """A function that replays `decode.run()`, which runs once to compile its kernels and is then recorded."""
        self.wait()  # its inputs were written on another stream
        with self.stream():
            decode.run()
        self.wait()
        before = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            decode.run()
        self.nbytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        return graph.replay

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)
