"""The directory of a durable live index: current base, current log, writer's lock (docs/reference/file-formats.md).

manifest.json        names the current base and log; replaced atomically
base-{n}.leafbeam    all items after change n (an index file)
changes-{n}.log      the changes after n
lock                 held by the one writer; contains its process id
"""

import json
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from leafbeam.errors import IndexFileError, LockedError, LogError
from leafbeam.index import Trie
from leafbeam.live import disk
from leafbeam.live.write_ahead_log import LogContents, WriteAheadLog

FORMAT_VERSION = 1
_JOURNAL_VERSION = (
    2  # of a directory whose changes are in a journal, so that an earlier leafbeam, which would miss them, refuses it
)
_MANIFEST = "manifest.json"
_LOCK = "lock"
_FILES = ("base-*.leafbeam", "base-*.pleach", "changes-*.log", "*.part")
_MAX_BYTES = 4096  # of a manifest; it has some 160


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The current base and log.

    Args:
        number: The number of the last change in the base.
        base_version: The version of the base index.
        journal: Whether later changes are in the log beside the directory (leafbeam.live.journal), and none in the directory's
            own log.
    """

    number: int
    base: str
    base_version: str
    log: str
    journal: bool = False

    def __post_init__(self) -> None:
        number = self.number
        if type(number) is not int or not 0 <= number < 2**63 or type(self.base_version) is not str:
            raise ValueError(f"number {number!r} and base_version {self.base_version!r}: expected a count and text")
        if self.base not in (f"base-{number}.leafbeam", f"base-{number}.pleach") or self.log != f"changes-{number}.log":
            raise ValueError(f"base {self.base!r} and log {self.log!r}: expected the files of change {number}")

    @classmethod
    def of(cls, number: int, base_version: str, *, journal: bool = False) -> "Manifest":
        base, log = f"base-{number}.leafbeam", f"changes-{number}.log"
        return cls(number=number, base=base, base_version=base_version, log=log, journal=journal)

    def encode(self) -> bytes:
        fields = {"format_version": _JOURNAL_VERSION if self.journal else FORMAT_VERSION, **asdict(self)}
        del fields["journal"]
        return (json.dumps({**fields, "crc32": _checksum(fields)}, indent=2) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, path: Path) -> "Manifest":
        """Read the bytes of a manifest. Raises LogError if they are not a valid manifest."""
        damaged = f"{path} is not the manifest of a live index, or damaged; restore the directory from a copy"
        try:
            fields = json.loads(data)
            intact = fields.pop("crc32") == _checksum(fields)
            format_version = fields.pop("format_version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LogError(damaged) from error
        if not intact or type(format_version) is not int:
            raise LogError(damaged)
        if format_version not in (FORMAT_VERSION, _JOURNAL_VERSION):
            raise LogError(f"{path} has format version {format_version}, not {FORMAT_VERSION}: upgrade leafbeam")
        try:
            return cls(**fields, journal=format_version == _JOURNAL_VERSION)
        except (ValueError, TypeError) as error:
            raise LogError(f"{damaged} ({error})") from error


@dataclass(frozen=True, kw_only=True)
class NextBase:
    """A base and a log on disk that the manifest does not name yet."""

    manifest: Manifest
    log: WriteAheadLog


class Directory:
    """The files of one live index. A writer holds the lock and `log`, a reader neither. `manifest` is None during `create`."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self.manifest: Manifest | None = None
        self._lock = lock
        self._log: WriteAheadLog | None = None

    @property
    def has_journal(self) -> bool:
        """Return whether the changes are in a journal."""
        return self.manifest is not None and self.manifest.journal

    @property
    def log(self) -> WriteAheadLog:
        """Return the current log, open for writing."""
        assert self._log is not None
        return self._log

    @classmethod
    def create(cls, path: Path, trie: Trie, *, sync: bool, has_journal: bool = False) -> "Directory":
        """Create a directory with this base and an empty log, open for writing. An interrupted `create` is completed.

        Raises LogError if the path holds anything else or cannot be written, LockedError if another process creates it.
        """
        with disk.log_error(f"make the directory {path}"):
            path.mkdir(parents=True, exist_ok=True)
            foreign = [name for name in disk.names(path) if name != _LOCK and not _is_ours(name)]
        if foreign and foreign != [_MANIFEST]:
            raise LogError(f"{path} is not empty ({foreign[0]!r} is there): choose an empty directory")
        directory = cls(path, take_lock(path))
        try:
            if _MANIFEST in disk.names(path):
                raise LogError(f"{path} holds a live index already: open it, or choose another directory")
            first = directory.write_base(trie, 0, sync=sync, has_journal=has_journal)
            directory._log = first.log  # closed with the directory from here on
            directory.stage_manifest(first.manifest)
            disk.sync_path(path.parent)
            directory.switch(first)
            directory.gc()
        except BaseException as error:
            directory.close(discard=True)
            if isinstance(error, OSError):
                raise LogError(f"cannot write to {path}: {error.strerror or error}") from error
            raise
        return directory

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> "tuple[Directory, Trie, LogContents]":
        """Read the current base and log. A writer also takes the lock here, and then calls `resume`. Raises LogError,
        LockedError.
        """
        try:
            disk.read(path / _MANIFEST).close()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise LogError(f"{path} holds no live index (no {_MANIFEST}): make one with LiveIndex.create") from error
        except OSError as error:
            raise LogError(f"cannot read {path / _MANIFEST}: {error.strerror}") from error
        directory = cls(path, None if read_only else take_lock(path))
        try:
            return (directory, *directory._read())
        except BaseException:
            directory.close()
            raise

    def resume(self, contents: LogContents, *, sync: bool, has_journal: bool = False) -> None:
        """Prepare for writing: truncate an incomplete record and remove files that a crash left. Raises LogError.

        With `has_journal`, later changes are in a journal; the manifest says so before the first of them.
        """
        self._log = WriteAheadLog.resume(contents, sync=sync)
        if self._read_manifest() != self.manifest:  # by a writer that held the log until then, and whose lock is gone
            raise LockedError(f"{self.path} was compacted by another writer meanwhile: close it there, then open it again")
        with disk.log_error(f"write to {self.path}"):
            if has_journal and not self.has_journal:
                assert self.manifest is not None
                self.stage_manifest(replace(self.manifest, journal=True))
                self.switch(NextBase(manifest=replace(self.manifest, journal=True), log=self._log))
            disk.sync_path(self.path)  # a writer that was killed may have renamed the manifest and not synced its name
        self.gc()

    def check_lock(self) -> None:
        """Raise LockedError unless the lock file is still the one that this writer holds. Another writer may hold a new
        file.
        """
        path = self.path / _LOCK
        with disk.log_error(f"read {path}"):
            is_held = self._lock is not None and disk.is_at(self._lock, path)
        if not is_held:
            raise LockedError(
                f"{path} was removed or replaced while this process held it: nothing was changed, and no more changes are "
                f"accepted; leave that file alone, and open the directory again"
            )

    def _read_manifest(self) -> Manifest:
        path = self.path / _MANIFEST
        with disk.log_error(f"read {path}"), disk.read(path) as file:
            return Manifest.decode(file.read(_MAX_BYTES), path)

    def _read(self) -> tuple[Trie, LogContents]:
        """Read the manifest, the base and the log, and read again if a writer replaced the files meanwhile."""
        before: Manifest | None = None
        while True:
            manifest = self._read_manifest()
            try:
                trie = disk.load(self.path / manifest.base)
                contents = LogContents.read(self.path / manifest.log)
            except (FileNotFoundError, IndexFileError) as error:
                if manifest == before or (isinstance(error, IndexFileError) and manifest.base in disk.names(self.path)):
                    raise LogError(
                        f"{self.path / _MANIFEST} names {manifest.base} and {manifest.log}, but they cannot be read ({error}): "
                        f"restore the directory from a copy"
                    ) from error
                before = manifest
                continue
            if {trie.version, contents.base_version} != {manifest.base_version} or contents.base_number != manifest.number:
                raise LogError(
                    f"the files of {self.path} do not belong together: the manifest names base {manifest.base_version} and "
                    f"changes after {manifest.number:,}, {manifest.base} is {trie.version}, {manifest.log} follows "
                    f"{contents.base_version} from {contents.base_number:,} on; restore the directory from a copy"
                )
            self.manifest = manifest
            return trie, contents

    def write_base(self, trie: Trie, number: int, *, sync: bool, has_journal: bool) -> NextBase:
        """Write a base and its empty log beside the current ones, synced. Raises OSError."""
        manifest = Manifest.of(number, trie.version, journal=has_journal)
        disk.save(trie, self.path / manifest.base)
        disk.sync_path(self.path / manifest.base)
        log = WriteAheadLog.create(self.path / manifest.log, base_number=number, base_version=trie.version, sync=sync)
        return NextBase(manifest=manifest, log=log)

    def stage_manifest(self, manifest: Manifest) -> None:
        """Write the next manifest beside the current one, and sync it and the names of all files. Raises OSError."""
        descriptor = disk.create(self.path / f"{_MANIFEST}.part")
        try:
            disk.write(descriptor, manifest.encode())
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.sync_path(self.path)

    def switch(self, next_base: NextBase) -> None:
        """Make the staged manifest the current one. After an OSError it is unknown which one a power cut would leave."""
        disk.rename(self.path / f"{_MANIFEST}.part", self.path / _MANIFEST)
        disk.sync_path(self.path)
        before, self._log, self.manifest = self._log, next_base.log, next_base.manifest
        if before is not None and before is not next_base.log:
            before.close(discard=True)

    def gc(self) -> None:
        """Remove bases, logs and unfinished files that the manifest does not name. Raises LogError."""
        assert self.manifest is not None
        keep = {self.manifest.base, self.manifest.log}
        with disk.log_error(f"remove unused files in {self.path}"):
            for name in disk.names(self.path):
                if _is_ours(name) and name not in keep:
                    disk.remove(self.path / name)

    def close(self, *, discard: bool = False) -> None:
        """Close the log (see WriteAheadLog.close) and release the lock. Raises OSError."""
        try:
            if self._log is not None:
                self._log.close(discard=discard)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                disk.close(lock)


def take_lock(path: Path) -> int:
    """Return a descriptor that holds the writer's lock. Raises LockedError with the process id of the holder, LogError."""
    while True:
        descriptor = -1
        try:
            descriptor = disk.open_own(path / _LOCK, os.O_CREAT)
            disk.lock(descriptor)
            if disk.is_at(descriptor, path / _LOCK):  # else replaced since it was opened
                disk.truncate(descriptor, 0)
                disk.write(descriptor, str(os.getpid()).encode())
                return descriptor
            disk.close(descriptor)
        except BlockingIOError as error:
            disk.close(descriptor)
            raise LockedError(
                f"{path} is open for writing by {_holder(path)}: one writer at a time; close it there, or open it here with "
                f"read_only=True"
            ) from error
        except OSError as error:
            if descriptor >= 0:
                disk.close(descriptor)
            raise LogError(f"cannot write to {path}: {error.strerror}; open it with read_only=True to read it") from error


def _holder(path: Path) -> str:
    """Return the process that holds the lock, in words."""
    with suppress(OSError), disk.read(path / _LOCK) as file:
        holder = file.read(20).decode("ascii", "replace")
        return "this process itself" if holder == str(os.getpid()) else f"process {holder or 'unknown'}"
    return "another process"


def _is_ours(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _FILES)


def _checksum(fields: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())
