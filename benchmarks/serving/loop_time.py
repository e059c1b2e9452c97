"""A server of which every callback of the event loop is timed: `python -m benchmarks.serving.loop_time RUN RECORD`.

In CPU time of the loop's thread, so that other load on the machine does not count. asyncio's own loop runs, because uvloop's
callbacks cannot be timed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving import settings_server

__all__ = ["timed_callbacks"]


@contextmanager
def timed_callbacks(longest: NDArray[np.float64]) -> Generator[None]:
    """While open, longest[0] is raised to the CPU seconds of the longest callback of any loop that starts."""
    handle: Any = asyncio.Handle
    run, uvloop = handle._run, sys.modules.get("uvloop")

    def timed(self: asyncio.Handle) -> None:
        began = time.thread_time()
        run(self)
        longest[0] = max(float(longest[0]), time.thread_time() - began)

    handle._run = timed
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        handle._run = run
        if uvloop is None:
            del sys.modules["uvloop"]
        else:
            sys.modules["uvloop"] = uvloop


if __name__ == "__main__":
    with timed_callbacks(np.memmap(sys.argv[2], np.float64, "r+", shape=(1,))):
        settings_server.main(Path(sys.argv[1]), "{}", "{}")
