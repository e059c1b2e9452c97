"""The storage of a durable live index, with one function for each operation. Tests replace them by a simulated disk.

Written data survives a killed process at once, a power cut only after `sync` of the file and, for a created, renamed or
removed name, `sync_path` of its directory. Every function raises OSError.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from leafbeam import files
from leafbeam.errors import LogError
from leafbeam.index import Trie

sync_path = files.sync_path  # `sync` of a file, or of the names in a directory
sync = os.fsync  # returns once everything written to the descriptor survives a power cut
truncate = os.ftruncate
rename = os.replace  # atomic
names = os.listdir
save = Trie.save
load = Trie.load
read = files.open_regular  # a regular file, to be read


@contextmanager
def log_error(action: str) -> Generator[None]:
    """Raise LogError if the block raises an OSError. action: what it does, as "write to live/"."""
    try:
        yield
    except OSError as error:
        raise LogError(f"cannot {action}: {error.strerror or error}") from error


def create(path: Path) -> int:
    """Create a file and return its descriptor in append mode. A file or link of that name is removed; links are never
    followed.
    """
    remove(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file and return its descriptor in append mode. It must be a regular file with a single name, owned by this
    user or the directory's owner.
    """
    expected = (
        f"{path.name} must be a regular file with only one name, owned by you or the directory's owner: remove it, or copy it"
    )
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    except OSError as error:
        raise OSError(error.errno, expected if error.errno in (errno.ELOOP, errno.EISDIR) else error.strerror) from error
    status, owners = os.fstat(descriptor), (os.geteuid(), path.parent.stat().st_uid)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in owners:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, expected)
    return descriptor


def lock(descriptor: int) -> None:
    """Lock a file against other writers. Raises BlockingIOError if one holds it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_at(descriptor: int, path: Path, size: int | None = None) -> bool:
    """Return whether the path still names the open file, and the file has this size."""
    status = os.fstat(descriptor)
    try:
        return os.path.samestat(status, os.lstat(path)) and size in (None, status.st_size)
    except FileNotFoundError:
        return False


def write(descriptor: int, data: bytes) -> None:
    """Append the whole data. After an OSError any part of it may be in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def close(descriptor: int) -> None:
    """Unlock the file and close it. Closing alone does not unlock if a forked child has a copy of the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)
