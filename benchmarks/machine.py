"""The machine of a benchmark, and how much of it other programs use meanwhile."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Usage", "adopt_orphans", "begin", "end_children", "machine", "used"]

_SHORTEST = 1.0  # seconds that say something
_SET_CHILD_SUBREAPER = 36  # of Linux's prctl


class Usage(NamedTuple):
    """Seconds until now: on the clock, of all cores in use, and of these by this process and its descendants."""

    clock: float
    cores: float
    own: float


def adopt_orphans() -> None:
    """On Linux, descendants whose parents end are this process's children from now on, so that `used` counts them.

    Servers of peers end without waiting for their workers.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Ask the children of this process to end (SIGTERM). Does nothing without psutil."""
    with suppress(ImportError):
        import psutil

        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                child.terminate()


@cache
def begin() -> Usage | None:
    """What was used when this was first called; other programs count from there. None without psutil."""
    try:
        return used()
    except ImportError:
        return None


def used() -> Usage:
    """What was used until now. Cores that a virtual machine was denied are in use. Raises ImportError without psutil."""
    import psutil

    cores, process = psutil.cpu_times(), psutil.Process()
    own = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:  # it ended meanwhile: its parent has its seconds
            continue
        own += times.user + times.system + times.children_user + times.children_system
    idle = cores.idle + getattr(cores, "iowait", 0.0)
    guests = getattr(cores, "guest", 0.0) + getattr(cores, "guest_nice", 0.0)  # part of user and nice
    return Usage(time.monotonic(), sum(cores) - idle - guests, own)


def machine() -> dict[str, Any]:
    """Processor, cores and load of the last minute; others: cores in use by other programs, on average since `begin`."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line.split(":", 1) for line in info.read_text().split("\n\n")[0].splitlines() if ":" in line]
        fields = {name.strip(): value.strip() for name, value in lines}  # of the first core
        if "model name" in fields:  # which virtual machines shorten, so that generations look alike
            model = f"{fields['model name']} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"
    found: dict[str, Any] = {"cpu": model, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    if (first := begin()) is not None:
        clock, cores, own = (now - then for now, then in zip(used(), first, strict=True))
        if clock >= _SHORTEST and cores > 0:  # some sandboxes do not count
            found["others"] = round(max(0.0, cores - own) / clock, 2)
    return found
