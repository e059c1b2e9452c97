"""SIGHUP reloads the rules, from before a server is loaded until it has stopped."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

__all__ = ["SighupReloader"]


class SighupReloader:
    """Turns SIGHUP, which would end the process, into a call of `reload`.

    A signal that arrives before `set_reload` is remembered until then. Only the main thread receives signals; in any other
    this does nothing.
    """

    def __init__(self) -> None:
        self._reload: Callable[[], object] | None = None
        self._is_pending = False

    @contextmanager
    def installed(self) -> Generator["SighupReloader"]:
        """Handle SIGHUP while open."""
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
            yield self
            return
        before = signal.signal(signal.SIGHUP, self._handle)
        try:
            yield self
        finally:
            signal.signal(signal.SIGHUP, before)

    def set_reload(self, reload: Callable[[], object] | None) -> None:
        """Call `reload` from now on, at once if a signal is pending; None: remember signals."""
        self._reload = reload
        if reload is not None and self._is_pending:
            self._is_pending = False
            self._start(reload)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._reload is None:
            self._is_pending = True
        else:
            self._start(self._reload)

    def _start(self, reload: Callable[[], object]) -> None:
        # Not in the handler: it interrupts any code of the main thread, which may hold a lock that `reload` needs.
        threading.Thread(target=reload, name="leafbeam-reload").start()
