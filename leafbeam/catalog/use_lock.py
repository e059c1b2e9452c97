"""UseLock: whether other processes have a catalog's file open."""

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class UseLock:
    """A shared lock on `NAME.lock` beside a file, held until `close`, so that a process that changes items sees other users.

    It keeps no process out, and the file is never written. Raises OSError where it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(f"{path}.lock", _OPEN, 0o666)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self._share()

    def is_shared(self) -> bool:
        """Whether another process, or another catalog of this one, has the file open. Cost: two system calls."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            self._share()
        return False

    def _share(self) -> None:
        with suppress(BlockingIOError):  # another process is in `is_shared` now
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
