"""LiveDirectory: the files in which a served catalog keeps its changes, beside those of its run.

live/
    lock               held by the only writer; contains its process id
    origin.json        the version of the index that the changes began with
    index/             the live index, from the first change on; its commits are in the request log
    requests-{n}.log   changes and answers (RequestLog)
    rules.json         rules made over HTTP
    snapshots/NAME/    index.leafbeam, items.parquet, snapshot.json
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from leafbeam import files
from leafbeam.errors import ConflictError, LogError
from leafbeam.files import read_json, write_json
from leafbeam.index import Trie
from leafbeam.ingest.request_log import RequestLog
from leafbeam.live import CompactionPolicy, LiveIndex, disk
from leafbeam.live.manifest import take_lock

_FORMAT = 1
INDEX, RULES = "index", "rules.json"


class LiveDirectory:
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
        try:
            return cls(Path(path), Path(trie), verify=verify, sync=sync, compaction=compaction)
        except OSError as error:
            raise LogError(f"cannot write to {path}: {error.strerror or error}") from error

    def persist(self) -> RequestLog:
        """Keep changes from now on; the log of requests. The first call copies the index. Raises LogError."""
        if self.requests is None:
            try:
                content = {"format": _FORMAT, "index": _version_of(self._trie)}
                write_json(self.path / "origin.json", content, durable=True)
            except OSError as error:
                raise LogError(f"cannot write to {self.path}: {error.strerror}") from error
            with ExitStack() as opened:
                requests = opened.enter_context(RequestLog.open(self.path, sync=self._sync))
                self.index.persist(self.path / INDEX, sync=self._sync, journal=requests)
                self._opened.callback(opened.pop_all().close)
            self.requests = requests
        return self.requests

    def save_rules(self, rules: Mapping[str, dict[str, Any]]) -> None:
        """Replace the rules, on disk first. Raises OSError."""
        write_json(self.rules_file, {"rules": rules}, durable=True)
        self.rules = dict(rules)

    def close(self) -> None:
        """Close the files and release the lock. Raises LogError, OSError."""
        self._opened.close()

    def __enter__(self) -> "LiveDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
            f"the changes in {path} began with index {origin}, and {trie} is {version}: it was built again since. Run "
            f"`leafbeam build` to set the changes aside, or rename {path}, and import items that are missing again"
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


def _read_rules(path: Path) -> dict[str, dict[str, object]]:
    with suppress(FileNotFoundError):
        try:
            rules = read_json(path)["rules"]
            return {str(name): dict(rule) for name, rule in rules.items()}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LogError(f"{path} cannot be read ({error}): restore it from a copy, or remove it") from error
    return {}
