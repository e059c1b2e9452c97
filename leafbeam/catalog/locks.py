"""Locks of a table: many readers or one writer in this process, and a mark for other processes that the file is in use."""

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


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


_OPEN = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
_WAIT_S, _PAUSE_S = 1.0, 0.0005  # others hold the directory's lock for some microseconds


class UseLock:
    """A shared lock on `NAME.lock` beside a file, held until `close`, so that a process that changes items sees other users.

    No process is kept out, and the file is never written. To look for others, a process tries to lock it exclusively, which
    drops its share for a moment. So opening, looking and returning to sharing take turns under a lock on the directory.
    Raises OSError if a file or lock cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._directory = path.parent
        self._descriptor = os.open(f"{path}.lock", _OPEN, 0o666)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        try:
            with self._turn():
                fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def is_shared(self) -> bool:
        """Return whether another process, or another catalog of this process, has the file open. Cost: some system calls.

        Returns True if another program keeps the directory locked for a second.
        """
        try:
            with self._turn():
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                finally:
                    fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except TimeoutError:
            return True
        return False

    @contextmanager
    def _turn(self) -> Generator[None]:
        """Hold the directory's lock while the block runs. Raises TimeoutError after a second."""
        descriptor, give_up = os.open(self._directory, os.O_RDONLY), time.monotonic() + _WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up:
                        raise TimeoutError(f"another program keeps {self._directory} locked") from None
                time.sleep(_PAUSE_S)
            yield
        finally:
            os.close(descriptor)
