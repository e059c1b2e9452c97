"""The OpenMP threads of this process, by the numbers that Linux gives them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from leafbeam.ops import openmp

__all__ = ["has_ended", "needs_openmp", "openmp_threads"]

_MAX_S = 10.0

needs_openmp = pytest.mark.skipif(
    not (openmp.is_available() and hasattr(os, "sched_setaffinity")), reason="not Linux, or torch came without gcc's library"
)


def openmp_threads(count: int) -> list[int]:
    """Those that the calling thread's kernels run on; it is the first."""
    ids = np.zeros(count, np.int64)
    openmp._write_ids(ids, count)
    return ids.tolist()


def has_ended(thread: int) -> bool:
    """Whether a thread ends within ten seconds."""
    over = time.monotonic() + _MAX_S
    while (is_there := Path(f"/proc/self/task/{thread}").exists()) and time.monotonic() < over:
        time.sleep(0.01)
    return not is_there
