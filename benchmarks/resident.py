"""Memory of a process, as Linux counts it (proc(5)).

Not by `resource.getrusage`: the peak that it tells lives on through exec, so that a child begins with that of a large parent,
and growth below it is never seen.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["peak_bytes", "resident_bytes"]


def resident_bytes(pid: int | None = None) -> tuple[int, int]:
    """(now, peak) of a process, of this one if none is named."""
    text = Path(f"/proc/{os.getpid() if pid is None else pid}/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, peak


def peak_bytes(*, anew: bool = False) -> int:
    """The peak of this process since it began or was last reset with `anew`; pages of mapped files count while held."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()[1]
