"""Snapshots: the items of a catalog and their attributes at one moment, under a name, to go back to."""

import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from leafbeam.catalog import Catalog
from leafbeam.errors import ArgumentError, ConflictError, LogError
from leafbeam.files import read_json, replacing, write_json
from leafbeam.index import Trie
from leafbeam.ingest.answers import SnapshotAnswer
from leafbeam.live import disk

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

    def make(self, name: str, catalog: Catalog, feed: Mapping[str, Any]) -> SnapshotAnswer:
        """Save a catalog, with the position in the source that it follows.

        Raises ArgumentError for a bad name, ConflictError for one that is taken, LogError.
        """
        path = self._path(name)
        if path.exists():
            raise ConflictError(f"there is a snapshot {name!r} already: choose another name, or delete it")
        if len(self.list()) >= MAX_SNAPSHOTS:
            raise ConflictError(f"there are {MAX_SNAPSHOTS} snapshots already: delete one")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with replacing(path, durable=True) as part:
                part.mkdir()
                version = catalog.save(part / "index.leafbeam", part / "items.parquet")
                created = datetime.now(UTC).isoformat(timespec="milliseconds")
                info = SnapshotAnswer(
                    name=name, num_items=version.num_items, index_version=version.name, created=created, feed=dict(feed)
                )
                write_json(part / "snapshot.json", asdict(info))
        except OSError as error:
            raise LogError(f"cannot write the snapshot {name!r}: {error.strerror or error}") from error
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

    def load(self, name: str) -> tuple[Trie, Path, Mapping[str, Any]]:
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
        try:
            shutil.rmtree(part, ignore_errors=True)
            disk.rename(path, part)  # a process that is killed leaves no half of a snapshot under its name
            disk.sync_path(self._directory)
            shutil.rmtree(part)
        except OSError as error:
            raise LogError(f"cannot remove the snapshot {name!r}: {error.strerror or error}") from error

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name) or name.endswith(_PART):
            raise ArgumentError(
                f"a snapshot's name is a letter or digit and up to 63 letters, digits, -, _ or ., not {name[:80]!r}"
            )
        return self._directory / name

    def _read(self, path: Path) -> SnapshotAnswer:
        try:
            return SnapshotAnswer(**read_json(path / "snapshot.json"))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise LogError(f"{path} is not a snapshot ({error}): remove it") from error
