"""Signals of a server: SIGHUP reloads, from before anything is loaded until everything has stopped."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

__all__ = ["SighupReloader"]


class SighupReloader:
    """SIGHUP, which would end the process, asks for a reload instead.

    Think of it as a doorbell: while nobody is in (`listening`, without `answer`) it remembers that it rang; `answer` says what
    to do about it, at once if it rang before. Only the main thread hears signals; in another one this does nothing.
    """

    def __init__(self) -> None:
        self._reload: Callable[[], object] | None = None
        self._rang = False

    @contextmanager
    def listening(self) -> Generator["SighupReloader"]:
        """Hear SIGHUP while open."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
            yield self
            return
        before = signal.signal(signal.SIGHUP, self._ring)
        try:
            yield self
        finally:
            signal.signal(signal.SIGHUP, before)

    def answer(self, reload: Callable[[], object] | None) -> None:
        """What to do about it from now on; None: remember."""
        self._reload = reload
        if reload is not None and self._rang:
            self._rang = False
            self._start(reload)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._reload is None:
            self._rang = True
        else:
            self._start(self._reload)

    def _start(self, reload: Callable[[], object]) -> None:
        # Not in the handler: the signal may have interrupted anything, a lock held by this very thread included.
        threading.Thread(target=reload, name="leafbeam-reload").start()
