"""The file operations of a durable live index, one function each; crash tests interrupt between any two of them.

Written data survives a killed process at once, a power cut only after `sync` of the file and, for a created, renamed or
removed name, `sync_path` of its directory.
"""

import os
from pathlib import Path

from leafbeam.index import Trie

sync = os.fsync  # returns once everything written to the descriptor survives a power cut
truncate = os.ftruncate
rename = os.replace  # atomic
save = Trie.save


def create(path: Path) -> int:
    """A descriptor of a new or emptied file, in append mode."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)


def write(descriptor: int, data: bytes) -> None:
    """Append all of the data. Raises OSError, and then any part of the data may be in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """`sync` of a file, or of the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
