"""SessionLock: readers of a table together, or one writer alone."""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class SessionLock:
    """Lets sessions that read run at the same time, and one that writes alone. A waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._entry = threading.Lock()  # of a writer until it has ended, of a reader until it has begun
        self._ended = threading.Condition()
        self._num_readers = 0

    @contextmanager
    def shared(self) -> Generator[None]:
        """Keep writers out."""
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
        """Keep all others out. Yields whether they ended within `timeout_s` seconds; if not, nobody is kept out."""
        entered = self._entry.acquire(timeout=-1 if timeout_s is None else timeout_s)
        try:
            with self._ended:
                is_alone = entered and self._ended.wait_for(lambda: self._num_readers == 0, timeout_s)
            yield is_alone
        finally:
            if entered:
                self._entry.release()
