"""SessionLock: many readers of a table at the same time, or a single writer."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager


class SessionLock:
    """A lock that many readers share, or that a single writer holds. A waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._entry = threading.Lock()  # held by a writer until it ends, by a reader until it has begun
        self._ended = threading.Condition()
        self._num_readers = 0

    @contextmanager
    def shared(self) -> Generator[None]:
        """Keep writers out while the block runs."""
        with self._entry, self._ended:
            self._num_readers += 1
        try:
            yield
        finally:
            with self._ended:
                self._num_readers -= 1
                self._ended.notify_all()

    @contextmanager
    def alone(self, timeout_s: float | None = None) -> Generator[bool]:
        """Wait for the sessions that run and keep new ones out. Yields whether they ended within `timeout_s` seconds."""
        began = time.monotonic()
        entered = self._entry.acquire(timeout=-1 if timeout_s is None else timeout_s)
        left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - began))
        try:
            with self._ended:
                is_alone = entered and self._ended.wait_for(lambda: self._num_readers == 0, left_s)
            yield is_alone
        finally:
            if entered:
                self._entry.release()
