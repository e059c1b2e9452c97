"""The directory of a durable catalog: which base, which log, who writes (docs/format.md).

manifest.json      names the base and the log in force; replaced in one step
base-{n}.leafbeam    all items as they were after change n (an index file)
changes-{n}.log    the changes after n
lock               held by the one writer, with its process id inside
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leafbeam.errors import IndexFileError, LockedError, LogError
from leafbeam.index import Trie
from leafbeam.live import disk
from leafbeam.live.write_ahead_log import Contents, WriteAheadLog

__all__ = ["FORMAT_VERSION", "Directory", "Manifest"]

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_LOCK = "lock"
_OURS = ("base-*.leafbeam", "base-*.pleach", "changes-*.log", "*.part")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The base and the log in force. number: the last change that is in the base. base_version: of the base index."""

    number: int
    base: str
    base_version: str
    log: str

    @classmethod
    def of(cls, number: int, base_version: str) -> Manifest:
        return cls(number=number, base=f"base-{number}.leafbeam", base_version=base_version, log=f"changes-{number}.log")

    def encode(self) -> bytes:
        fields = {
            "format_version": FORMAT_VERSION,
            "number": self.number,
            "base": self.base,
            "base_version": self.base_version,
            "log": self.log,
        }
        return (json.dumps({**fields, "crc32": _checksum(fields)}, indent=2) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, path: Path) -> Manifest:
        """Raises LogError where these are not the bytes of a manifest."""
        damaged = f"{path} is not the manifest of a live catalog, or damaged; restore the directory from a copy"
        try:
            fields = json.loads(data)
            crc32, format_version = fields.pop("crc32"), fields["format_version"]
            if type(format_version) is not int or crc32 != _checksum(fields):
                raise LogError(damaged)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LogError(damaged) from error
        if format_version != FORMAT_VERSION:
            raise LogError(
                f"{path} has format version {format_version}, this leafbeam reads {FORMAT_VERSION}: upgrade leafbeam"
            )
        assert fields.keys() == {"format_version", "number", "base", "base_version", "log"}
        return cls(number=fields["number"], base=fields["base"], base_version=fields["base_version"], log=fields["log"])


@dataclass(frozen=True, kw_only=True)
class Successor:
    """A base and a log that are on disk and wait to be put in force."""

    manifest: Manifest
    journal: WriteAheadLog


class Directory:
    """The files of one catalog: those in force, and those that are about to be.

    Think of it as a pointer (the manifest) to a base and a log. A writer holds the lock and `journal`, the log in force; a
    reader has neither.

    manifest: what is in force; None while the directory is being made.
    """

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock
        self.manifest: Manifest | None = None
        self._journal: WriteAheadLog | None = None

    @property
    def journal(self) -> WriteAheadLog:
        """The log in force, open for writing."""
        assert self._journal is not None
        return self._journal

    @classmethod
    def create(cls, path: Path, trie: Trie, *, sync: bool) -> Directory:
        """A new directory with this base and an empty log, open for writing.

        What an interrupted `create` left behind is replaced. Raises LogError where the path holds anything else or cannot
        be written, LockedError where somebody else is at it.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            strangers = [one.name for one in path.iterdir() if one.name != _LOCK and not any(map(one.match, _OURS))]
        except OSError as error:
            raise LogError(f"cannot make the directory {path}: {error.strerror}") from error
        if strangers and strangers != [_MANIFEST]:
            raise LogError(f"{path} is not empty ({strangers[0]!r} is there): choose a directory of its own")
        directory = cls(path, _take_lock(path))
        try:
            if (path / _MANIFEST).exists():
                raise LogError(f"{path} holds a catalog already: open it, or choose another directory")
            successor = directory.prepare(trie, 0, sync=sync)
            directory.stage(successor)
            directory.switch(successor)
            disk.sync_directory(path.parent)
            directory.sweep()
        except BaseException as error:
            directory.close(forget=True)
            if isinstance(error, OSError):
                raise LogError(f"cannot write to {path}: {error.strerror or error}") from error
            raise
        return directory

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> tuple[Directory, Trie, Contents]:
        """What is in force. A writer takes the lock first, and calls `resume` before it writes; a reader takes none.

        Raises LogError, LockedError.
        """
        if not (path / _MANIFEST).is_file():
            raise LogError(f"{path} holds no catalog (no {_MANIFEST}): make one with LiveIndex.create")
        directory = cls(path, None if read_only else _take_lock(path))
        try:
            return (directory, *directory._read())
        except BaseException:
            directory.close()
            raise

    def resume(self, contents: Contents, *, sync: bool) -> None:
        """Cut off an incomplete record, remove what a crash left over, and be ready to write. Raises LogError."""
        self._journal = WriteAheadLog.resume(contents, sync=sync)
        self.sweep()

    def _read(self) -> tuple[Trie, Contents]:
        """Manifest, base and log; once more where the writer replaced them under a reader's hands."""
        before: Manifest | None = None
        while True:
            manifest_path = self.path / _MANIFEST
            try:
                manifest = Manifest.decode(manifest_path.read_bytes(), manifest_path)
            except OSError as error:
                raise LogError(f"cannot read {manifest_path}: {error.strerror}") from error
            base_path = self.path / manifest.base
            try:
                trie = Trie.load(base_path)
                contents = Contents.read(self.path / manifest.log)
            except (FileNotFoundError, IndexFileError) as error:
                if manifest == before or (isinstance(error, IndexFileError) and base_path.exists()):
                    raise LogError(
                        f"{manifest_path} names {manifest.base} and {manifest.log}, but they cannot be read ({error}): restore "
                        f"the directory from a copy"
                    ) from error
                before = manifest
                continue
            if trie.version != manifest.base_version or contents.base != trie.version or contents.after != manifest.number:
                raise LogError(
                    f"{self.path} is a mixture: the manifest names base {manifest.base_version} and changes after "
                    f"{manifest.number:,}, {manifest.base} is {trie.version}, {manifest.log} follows {contents.base} from "
                    f"{contents.after:,} on; restore the directory from a copy"
                )
            self.manifest = manifest
            return trie, contents

    def prepare(self, trie: Trie, number: int, *, sync: bool) -> Successor:
        """Write a base and its empty log beside those in force, safe on disk. Raises OSError."""
        manifest = Manifest.of(number, trie.version)
        disk.save(trie, self.path / manifest.base)
        disk.sync_file(self.path / manifest.base)
        journal = WriteAheadLog.create(self.path / manifest.log, after=number, base=trie.version, sync=sync)
        return Successor(manifest=manifest, journal=journal)

    def stage(self, successor: Successor) -> None:
        """Write a manifest beside the one in force, safe on disk together with the names of all files. Raises OSError."""
        descriptor = disk.create(self.path / f"{_MANIFEST}.part")
        try:
            disk.write(descriptor, successor.manifest.encode())
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
        disk.sync_directory(self.path)

    def switch(self, successor: Successor) -> None:
        """Put the staged manifest in force. Raises OSError, and then nobody knows which one a power cut would leave."""
        disk.rename(self.path / f"{_MANIFEST}.part", self.path / _MANIFEST)
        disk.sync_directory(self.path)
        before, self._journal, self.manifest = self._journal, successor.journal, successor.manifest
        if before is not None:
            before.close(forget=True)

    def sweep(self) -> None:
        """Remove bases, logs and unfinished files that are not in force. Raises LogError."""
        assert self.manifest is not None
        keep = {self.manifest.base, self.manifest.log}
        try:
            for pattern in _OURS:
                for path in self.path.glob(pattern):
                    if path.name not in keep:
                        disk.remove(path)
        except OSError as error:
            raise LogError(f"cannot remove what is no longer needed in {self.path}: {error.strerror}") from error

    def close(self, *, forget: bool = False) -> None:
        """Close the log (see WriteAheadLog.close) and let another writer in. Raises OSError."""
        try:
            if self._journal is not None:
                self._journal.close(forget=forget)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may hold a copy of the descriptor
                os.close(lock)


def _take_lock(path: Path) -> int:
    """A descriptor that holds the writer's lock, or LockedError naming who holds it."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise LogError(f"cannot write to {path}: {error.strerror}; open it with read_only=True to look at it") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(descriptor)
        who = "this process itself" if holder == str(os.getpid()) else f"process {holder}"
        raise LockedError(
            f"{path} is open for writing by {who}: one writer at a time; close it there, or open it here with read_only=True"
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise LogError(f"cannot write to {path}: {error.strerror}") from error
    return descriptor


def _checksum(fields: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
