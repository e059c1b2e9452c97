"""UseLock: whether other processes have a catalog's file open."""

import fcntl
import os
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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
