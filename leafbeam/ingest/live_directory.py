"""LiveDirectory: the files in which a served catalog keeps its changes, beside those of its run, and snapshots of its items.

live/
    lock               held by the only writer; contains its process id
    origin.json        the version of the index that the changes began with
    index/             the live index, from the first change on; its commits are in the request log
    requests-{n}.log   changes and answers (RequestLog)
    rules.json         rules made over HTTP
    snapshots/NAME/    index.leafbeam, items.parquet, snapshot.json
"""

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import asdict

from leafbeam import files
from leafbeam.catalog import Catalog
from leafbeam.errors import ArgumentError, ConflictError, LogError
from leafbeam.files import Closing, read_json, replacing, write_json
from leafbeam.index import Trie
from leafbeam.ingest.answers import SnapshotAnswer
from leafbeam.ingest.request_log import RequestLog
from leafbeam.live import CompactionPolicy, LiveIndex, disk
from leafbeam.live.manifest import take_lock

_FORMAT = 1
INDEX, RULES = "index", "rules.json"


class LiveDirectory(Closing):
    """The directory of one run's changes, open for writing by this process alone.

    Attributes:
        index: The live index; in memory until `persist`.
        requests: The log of requests; None until `persist`.
        rules: The rules that were made over HTTP.
        rules_file: These rules as a source for a `Catalog`.
    """

    def __init__(self, path: Path, trie: Path, *, verify: bool, sync: bool, compaction: CompactionPolicy | None) -> None:
        self.path, self._trie, self._sync = path, trie, sync
        self.rules_file = path / RULES
        self.requests: RequestLog | None = None
        with ExitStack() as opened:
            path.mkdir(parents=True, exist_ok=True)
            opened.callback(disk.close, take_lock(path))
            check_origin(path, trie)
            self.rules = _read_rules(self.rules_file)
            if not self.rules_file.exists():
                write_json(self.rules_file, {"rules": {}})
            if (path / INDEX / "manifest.json").exists():
                self.requests = opened.enter_context(RequestLog.open(path, sync=sync))
                self.index = opened.enter_context(
                    LiveIndex.open(path / INDEX, sync=sync, compaction=compaction, journal=self.requests)
                )
            else:
                self.index = LiveIndex.create(None, Trie.load(trie, verify=verify), compaction=compaction)
                opened.callback(self.index.close)
            self._opened = opened.pop_all()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        trie: str | os.PathLike[str],
        *,
        verify: bool = True,
        sync: bool = True,
        compaction: CompactionPolicy | None = None,
    ) -> "LiveDirectory":
        """Open the directory, or prepare to make one.

        Args:
            path: The directory.
            trie: The index file that the changes begin with.
            verify: Whether the index is checked.
            sync: Whether changes survive a power cut, not only a killed process.
            compaction: When segments are merged.

        Raises:
            LockedError: If another process writes it.
            ConflictError: If the index was built again since.
            LogError: If the directory cannot be read or written.
            IndexFileError: If the index is damaged.
        """
        with disk.log_error(f"write to {path}"):
            return cls(Path(path), Path(trie), verify=verify, sync=sync, compaction=compaction)

    def persist(self) -> RequestLog:
        """Keep changes from now on; the log of requests. The first call copies the index. Raises LogError."""
        if self.requests is None:
            with disk.log_error(f"write to {self.path}"):
                content = {"format": _FORMAT, "index": _version_of(self._trie)}
                write_json(self.path / "origin.json", content, durable=True)
            with ExitStack() as opened:
                requests = opened.enter_context(RequestLog.open(self.path, sync=self._sync))
                self.index.persist(self.path / INDEX, sync=self._sync, journal=requests)
                self._opened.callback(opened.pop_all().close)
            self.requests = requests
        return self.requests

    def save_rules(self, rules: Mapping[str, Mapping[str, object]]) -> None:
        """Replace the rules, on disk first. Raises OSError."""
        write_json(self.rules_file, {"rules": rules}, durable=True)
        self.rules = dict(rules)

    def close(self) -> None:
        """Close the files and release the lock. Raises LogError, OSError."""
        self._opened.close()


def origin_of(path: Path) -> str | None:
    """Return the version of the index that the changes in a directory began with, or None without changes. Raises LogError."""
    origin = path / "origin.json"
    if not origin.exists():
        return None
    try:
        return str(read_json(origin)["index"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise LogError(f"{origin} cannot be read ({error}): restore the directory from a copy") from error


def check_origin(path: Path, trie: Path) -> None:
    """Raise ConflictError if the changes in a directory did not begin with this index file."""
    origin = origin_of(path)
    if origin is not None and origin != (version := _version_of(trie)):
        raise ConflictError(
            f"the changes in {path} belong to index {origin}, but {trie} is {version}, because it was built again. Run "
            f"`leafbeam build` to set the changes aside, or rename {path}; then import again the items that are missing"
        )


def set_aside(path: Path) -> Path | None:
    """Rename a directory of changes, because its run was built again; its new name, or None if there is none.

    Raises LockedError if a process writes it, OSError.
    """
    if not (path / "origin.json").exists():
        return None
    lock = take_lock(path)
    try:
        return files.set_aside(path)
    finally:
        disk.close(lock)


def _version_of(trie: Path) -> str:
    """Return the version in an index file's header."""
    return Trie.load(trie, verify=False).version


def _read_rules(path: Path) -> dict[str, Mapping[str, object]]:
    with suppress(FileNotFoundError):
        try:
            rules = read_json(path)["rules"]
            return {str(name): dict(rule) for name, rule in rules.items()}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LogError(f"{path} cannot be read ({error}): restore it from a copy, or remove it") from error
    return {}


MAX_SNAPSHOTS = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PART = ".part"


class Snapshots:
    """The snapshots in a directory, each in one of its own: index.leafbeam, items.parquet, snapshot.json."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for part in directory.glob(f"*{_PART}"):  # of a process that was killed
            shutil.rmtree(part, ignore_errors=True)

    def list(self) -> list[SnapshotAnswer]:
        """Return all snapshots, the oldest first. Raises LogError for a damaged one."""
        if not self._directory.is_dir():
            return []
        paths = [path for path in self._directory.iterdir() if not path.name.endswith(_PART)]
        return sorted((self._read(path) for path in paths), key=lambda info: (info.created, info.name))

    def make(self, name: str, catalog: Catalog, feed: Mapping[str, object]) -> SnapshotAnswer:
        """Save a catalog, with the position in the source that it follows.

        Raises ArgumentError for a bad name, ConflictError for one that is taken, LogError.
        """
        path = self._path(name)
        if path.exists():
            raise ConflictError(f"there is a snapshot {name!r} already: choose another name, or delete it")
        if len(self.list()) >= MAX_SNAPSHOTS:
            raise ConflictError(f"there are {MAX_SNAPSHOTS} snapshots already: delete one")
        with disk.log_error(f"write the snapshot {name!r}"):
            self._directory.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=True) as part:
                part.mkdir()
                version = catalog.save(part / "index.leafbeam", part / "items.parquet")
                created = datetime.now(UTC).isoformat(timespec="milliseconds")
                info = SnapshotAnswer(
                    name=name, num_items=version.num_items, index_version=version.name, created=created, feed=dict(feed)
                )
                write_json(part / "snapshot.json", asdict(info))
        return info

    def newest(self) -> str:
        """Return the name of the newest. Raises ArgumentError if there is none."""
        snapshots = self.list()
        if not snapshots:
            raise ArgumentError("there is no snapshot to go back to: make one first")
        return snapshots[-1].name

    def take(self, source: Path) -> str:
        """Copy the directory of a snapshot that another server made, unless one of its name is here; its name.

        Raises LogError if it is none, or cannot be copied.
        """
        name = self._read(source).name
        path = self._path(name)
        if not path.exists():
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                with replacing(path, durable=True) as part:
                    shutil.copytree(source, part)
            except (OSError, shutil.Error) as error:
                raise LogError(f"cannot copy the snapshot {source}: {error}") from error
        return name

    def load(self, name: str) -> tuple[Trie, Path, Mapping[str, object]]:
        """Return the index, the Parquet file of attributes, and the position in the followed source.

        Raises ArgumentError if there is no such snapshot, IndexFileError, LogError.
        """
        path = self._path(name)
        if not path.is_dir():
            names = ", ".join(info.name for info in self.list()) or "none"
            raise ArgumentError(f"there is no snapshot {name!r}; there are: {names}")
        return Trie.load(path / "index.leafbeam"), path / "items.parquet", self._read(path).feed

    def delete(self, name: str) -> None:
        """Remove a snapshot. Raises ArgumentError if there is none of this name, LogError."""
        path = self._path(name)
        if not path.is_dir():
            raise ArgumentError(f"there is no snapshot {name!r}")
        part = self._directory / f"{name}{_PART}"
        with disk.log_error(f"remove the snapshot {name!r}"):
            shutil.rmtree(part, ignore_errors=True)
            disk.rename(path, part)  # a process that is killed leaves no half of a snapshot under its name
            disk.sync_path(self._directory)
            shutil.rmtree(part)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.endswith(_PART):
            raise ArgumentError(
                "a snapshot's name must begin with a letter or digit, and have at most 63 more letters, digits, -, _ or ., "
                f"not {name[:80]!r}"
            )
        return self._directory / name

    def _read(self, path: Path) -> SnapshotAnswer:
        try:
            return SnapshotAnswer(**read_json(path / "snapshot.json"))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LogError(f"{path} is not a snapshot ({error}): remove it") from error
