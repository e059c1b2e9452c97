"""The file operations of a durable catalog, one function each: what a crash can come between.

What is written is safe from a killed process at once, and from a power cut only after `sync` of the file and, where a name is
new, moved or gone, `sync_directory` of its directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from leafbeam.index import Trie

__all__ = ["create", "cut", "read", "remove", "rename", "save", "sync", "sync_directory", "sync_file", "write"]


def create(path: Path) -> int:
    """A descriptor of a new, empty file, or of the old one emptied; every write goes to its end."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)


def write(descriptor: int, data: bytes) -> None:
    """Append all of the data. Raises OSError, and then any part of it may be in the file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read(descriptor: int, begin: int, end: int) -> bytes:
    """The bytes [begin, end) of a file, fewer where it is shorter."""
    parts: list[bytes] = []
    while begin < end:
        part = os.pread(descriptor, end - begin, begin)
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def cut(descriptor: int, size: int) -> None:
    """Make the file shorter."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Return once all that was written to the file would survive a power cut."""
    os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file another name, replacing what had it, in one step."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def save(trie: Trie, path: Path) -> None:
    """Write an index file."""
    trie.save(path)


def sync_file(path: Path) -> None:
    """`sync` of a file that somebody else wrote."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
