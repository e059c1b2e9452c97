"""Processes that get a share of the time, as servers of a small machine would."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

__all__ = ["throttled"]

_PERIOD_S, _TICK_S = 0.03, 0.003


@contextmanager
def throttled(pids: Sequence[int], share: float) -> Generator[None]:
    """Let each process run for a share of every 30 ms, and stop it (SIGSTOP) for the rest. They begin one after the other.

    A process may use more than one core while it runs.
    """
    ends = threading.Event()
    switcher = threading.Thread(target=_switch, args=(pids, share, ends), daemon=True)
    if share < 1:
        switcher.start()
    try:
        yield
    finally:
        ends.set()
        if share < 1:
            switcher.join()


def _switch(pids: Sequence[int], share: float, ends: threading.Event) -> None:
    runs, began = dict.fromkeys(pids, True), time.monotonic()
    try:
        while not ends.wait(_TICK_S):
            periods = (time.monotonic() - began) / _PERIOD_S
            for number, pid in enumerate(pids):
                may_run = (periods + number / len(pids)) % 1 < share
                if may_run != runs[pid]:
                    os.kill(pid, signal.SIGCONT if may_run else signal.SIGSTOP)
                    runs[pid] = may_run
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
