"""LiveMemory: an item memory that counts interactions as they happen, durably."""

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from leafbeam.errors import LeafbeamError, LogError
from leafbeam.files import Closing, replacing, set_aside
from leafbeam.index.items import ItemIds
from leafbeam.json_reader import Json
from leafbeam.live import KnownRequests, RequestKey, disk
from leafbeam.live.write_ahead_log import LogContents, LogRecord, WriteAheadLog
from leafbeam.retrieve.memory import ItemMemory
from leafbeam.retrieve.text import TextVectors

log = logging.getLogger("leafbeam.retrieve")

Event = tuple[ItemIds, int | str]
COMPACT_BYTES = 16 << 20  # of a log, and not less than the memory's
_KNOWN = b'{"known":'  # how a record of requests that are known begins


class LiveMemory(Closing):
    """The file of an item memory and, beside it, a log of the interactions and items that came after the file was
    written.

    An interaction counts for the next search once `observe` returns. It survives a killed process, and with sync=True a power
    cut. `compact` writes both into the file; `observe` does so once the log is longer than both the memory and 16 MiB.
    One process may have a memory open. `open` raises LogError if the log belongs to another file, for example because
    the memory was fitted again since; `set_log_aside` renames such a log.

    `memory` is the item memory, to be given to an engine.

    Args:
        path: The file.
        memory: The item memory.
        log: The log.
        known: The answers to requests with a key.

    Examples:
        >>> with LiveMemory.open("runs/shop/memory.leafbeam") as live:     # doctest: +SKIP
        ...     live.observe([(["item-3", "item-9"], "item-4")])
    """

    def __init__(self, path: Path, memory: ItemMemory, log: WriteAheadLog, known: KnownRequests) -> None:
        self.path, self.memory, self._log, self._known = path, memory, log, known
        self._lock = threading.Lock()
        self._num_logged = memory.num_items
        self._compact_at = max(COMPACT_BYTES, memory.nbytes)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, sync: bool = True) -> "LiveMemory":
        """Load a memory, replay its log, and write to the log from now on.

        Raises:
            IndexFileError: If the file is missing or damaged.
            LockedError: If another process has the memory open.
            LogError: If the log is damaged, or belongs to another file.
        """
        path = Path(path)
        memory, known = ItemMemory.load(path), KnownRequests()
        if not _log_of(path).exists():
            return cls(path, memory, _new_log(path, memory, 0, known, sync), known)
        contents = LogContents.read(_log_of(path))
        log = WriteAheadLog.resume(contents, sync=sync)
        if contents.base_version == memory.follows:  # a compaction ended between the file and the new log
            log.close(discard=True)
            for record in contents.records:
                _repeat(None, known, record)
            return cls(path, memory, _new_log(path, memory, contents.number, known, sync), known)
        try:
            if contents.base_version != memory.version:
                raise LogError(
                    f"{contents.path} belongs to item memory {contents.base_version}, but {path} is {memory.version}: remove "
                    "the log if the new memory counts its interactions, or restore the memory"
                )
            for record in contents.records:
                _repeat(memory, known, record)
        except BaseException:
            log.close(discard=True)
            raise
        return cls(path, memory, log, known)

    def observe(self, events: Sequence[Event], request: RequestKey | None = None) -> int:
        """Count interactions, and return the number of pairs that were counted.

        An event that is sent twice counts twice. But a request with a key that an earlier request had counts nothing,
        and returns what the earlier one returned. This costs one write, and with sync=True one fsync. After an error
        nothing is counted.

        Args:
            events: For each interaction the user's history before it, oldest item first, and the item. Ids that the memory does
                not have are left out.
            request: The identity of a request that may be repeated.

        Raises:
            ItemIdError: If some ids are numbers and others text.
            ConflictError: If an earlier request with the same key had other content.
            LogError: If the log cannot be written.
        """
        distances = self.memory.config.distances
        rows: list[list[int | str]] = []
        with self._lock:
            if (pairs := self._known.find(request)) is not None:
                return pairs
            for history, item_id in events:
                before, item = self.memory.known(_plain(history)[-distances:]), self.memory.known(_plain([item_id]))
                if before and item:
                    rows.append([*before, *item])
            if not rows and request is None:
                return 0
            key = {} if request is None else {"key": request.key, "digest": request.digest}
            self._append({"observe": rows, **key})
            pairs = sum(self.memory.observe(row[:-1], row[-1]) for row in rows)
            self._known.note(request, pairs)
            self._compact_if_long()
            return pairs

    def insert(self, item_ids: ItemIds, texts: Sequence[str]) -> None:
        """Insert items with texts durably (see `ItemMemory.insert`).

        Raises:
            ItemIdError: As for `ItemMemory.insert`.
            ArgumentError: As for `ItemMemory.insert`.
            LogError: If the log cannot be written.
        """
        with self._lock:
            self.memory.insert(item_ids, texts=texts)
            self._append({"insert": _plain(item_ids), "texts": list(texts)})
            self._compact_if_long()

    def compact(self) -> None:
        """Write the counts and the new items into the file, and begin a new log.

        Raises:
            LogError: If the log cannot be written.
            OSError: If the file cannot be written.
        """
        with self._lock:
            self._compact()

    def _append(self, record: Mapping[str, object]) -> None:
        """Log a record. Items that a binding to an index has inserted since the last record are logged before it."""
        first, end = self._num_logged, self.memory.num_items
        if first < end:
            new_ids = self.memory.ids_of(np.arange(first, end))
            texts = self.memory.texts.take(np.arange(first, end))
            vectors = {name: getattr(texts, name).tolist() for name in ("indptr_N1", "terms_C", "weights_C")}
            record = {"new": new_ids, "vectors": vectors, **record}
        self._log.append(json.dumps(record).encode())
        self._num_logged = end

    def _compact(self) -> None:
        """Write the file and begin a new log.

        If this fails before the new file has its name, file and log are as they were; if later, the old log is closed.
        """
        self._log.check()
        before, memory = self._log, self.memory
        versions = memory.version, memory.follows
        try:
            with replacing(self.path) as part:
                memory.save(part, follows=memory.version)
                disk.sync_path(part)
                after = _unnamed_log(self.path, memory, before.number, self._known, before.sync)
        except BaseException:
            memory.version, memory.follows = versions
            raise
        before.close(discard=True)
        self._log = _named(after, self.path)
        self._compact_at = max(COMPACT_BYTES, self.memory.nbytes)

    def _compact_if_long(self) -> None:
        """Compact the log if it is long.

        A failure loses nothing, because the log has every event; compaction is tried again at twice the length.
        """
        if self._log.end <= self._compact_at:
            return
        try:
            self._compact()
        except (LeafbeamError, OSError) as error:
            self._compact_at = 2 * self._log.end
            log.warning("cannot write the item memory %s: its log grows on (%s)", self.path, error)

    def close(self) -> None:
        """Close the log.

        Raises:
            OSError: If the log cannot be written.
        """
        self._log.close()


def set_log_aside(path: str | os.PathLike[str]) -> Path | None:
    """Rename the log beside a memory that was fitted again, so that the new memory opens, and return the log's new
    name.

    An empty log is removed, and the result is None. The new memory counts what it was fitted on, and nothing from the
    log.

    Raises:
        LogError: If the log is damaged.
        OSError: If it cannot be renamed.
    """
    log = _log_of(Path(path))
    if not log.exists():
        return None
    if all(record.payload.startswith(_KNOWN) for record in LogContents.read(log).records):
        log.unlink()
        return None
    return set_aside(log)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _new_log(path: Path, memory: ItemMemory, number: int, known: KnownRequests, sync: bool) -> WriteAheadLog:
    """Return a new log that begins with the known requests. It gets its name once it is complete."""
    return _named(_unnamed_log(path, memory, number, known, sync), path)


def _unnamed_log(path: Path, memory: ItemMemory, number: int, known: KnownRequests, sync: bool) -> WriteAheadLog:
    part = path.with_name(f"{path.name}.log.part")
    log = WriteAheadLog.create(part, base_number=number, base_version=memory.version, sync=sync)
    try:
        if answers := known.to_json():
            log.append(_KNOWN + json.dumps(answers).encode() + b"}")
    except BaseException:
        log.close(discard=True)
        raise
    return log


def _named(log: WriteAheadLog, path: Path) -> WriteAheadLog:
    """Give a log its final name, once the name of its memory's file is durable."""
    try:
        disk.sync_path(path.parent)
        log.rename(_log_of(path))
    except BaseException:
        log.close(discard=True)
        raise
    return log


def _repeat(memory: ItemMemory | None, known: KnownRequests, record: LogRecord) -> None:
    """Apply a record of a log to the memory and the known requests. With None as the memory, only the requests are updated."""
    try:
        content: Json = json.loads(record.payload)
        for answer in content.get("known", ()):
            known.load(answer)
        if memory is not None and "new" in content:
            memory.insert_vectors(content["new"], _vectors(content["vectors"]))
        rows = content.get("observe", ())
        if memory is not None:
            for row in rows:
                memory.observe(row[:-1], row[-1])
        known.load({**content, "answer": sum(len(row) - 1 for row in rows)})
        if memory is not None and "insert" in content:
            memory.insert(content["insert"], texts=content["texts"])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise LogError(f"record {record.number:,} of an item memory's log cannot be read ({error}): remove the log") from error


def _vectors(content: dict[str, list[int]]) -> TextVectors:
    """Return texts from JSON. Raises KeyError, ValueError, TypeError or OverflowError if the JSON has another form."""
    return TextVectors(
        indptr_N1=np.array(content["indptr_N1"], np.uint32),
        terms_C=np.array(content["terms_C"], np.uint16),
        weights_C=np.array(content["weights_C"], np.uint8),
    )


def _plain(item_ids: ItemIds) -> list[int | str]:
    """Return ids as plain integers or text, which JSON can hold."""
    return [item.item() if isinstance(item, np.generic) else item for item in item_ids]
