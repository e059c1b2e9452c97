"""Memory of a process, as Linux counts it (proc(5)).

Not by `resource.getrusage`: the peak that it tells lives on through exec, so that a child begins with that of a large parent,
and growth below it is never seen.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import ClassVar

__all__ = ["growth_bytes", "malloc_bytes", "peak_bytes", "resident_bytes"]


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc: mallinfo(3)."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    ]


def resident_bytes(pid: int | None = None) -> tuple[int, int]:
    """(now, peak) of a process, of this one if none is named."""
    text = Path(f"/proc/{os.getpid() if pid is None else pid}/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, peak


def malloc_bytes() -> int:
    """What malloc has given out and not got back, of all threads; 0 where the C library cannot say (it is not glibc 2.33)."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    mallinfo.restype = _MallInfo
    found = mallinfo()
    return found.uordblks + found.hblkhd


def peak_bytes(*, anew: bool = False) -> int:
    """The peak of this process since it began or was last reset with `anew`; pages of mapped files count while held."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()[1]


def growth_bytes(samples: Sequence[float]) -> float:
    """The last fifth of what was sampled all the time over the second fifth, by medians: the first one is a warm-up."""
    fifth = max(1, len(samples) // 5)
    return float(median(samples[-fifth:]) - median(samples[fifth : 2 * fifth] or samples[:1]))
