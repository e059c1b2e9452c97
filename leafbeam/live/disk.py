"""The file operations of a durable live index, one function each; crash tests interrupt between any two of them.

Written data survives a killed process at once. It survives a power cut only after `sync` of the file and, for a name that was
created, renamed or removed, `sync_path` of its directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from leafbeam.index import Trie

__all__ = ["create", "remove", "rename", "save", "sync", "sync_path", "truncate", "write"]


def create(path: Path) -> int:
    """A descriptor of a new or emptied file, in append mode."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)


def write(descriptor: int, data: bytes) -> None:
    """Append all of the data. Raises OSError, and then any part of the data may be in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def truncate(descriptor: int, size: int) -> None:
    """Cut the file to `size` bytes."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Return once everything written to the file survives a power cut."""
    os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file atomically, replacing the target."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    path.unlink(missing_ok=True)


def save(trie: Trie, path: Path) -> None:
    """Write an index file."""
    trie.save(path)


def sync_path(path: Path) -> None:
    """`sync` of a file, or of the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
