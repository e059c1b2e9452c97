"""CatalogWriter: changes a served catalog; each change is checked, durable, and made once even if it is sent again."""

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec.structs import asdict

from leafbeam import semid
from leafbeam.catalog import Boost, Catalog, Rule, RuleStatus
from leafbeam.errors import ConflictError, DataError, LeafbeamError, LogError, UnknownBoostError, UnknownRuleError
from leafbeam.index import Trie, Version
from leafbeam.ingest.answers import ChangeAnswer, FeedStatus, SnapshotAnswer
from leafbeam.ingest.changes import Change, ChangePlanner, Operation
from leafbeam.ingest.lines import Lines
from leafbeam.ingest.live_directory import LiveDirectory, Snapshots
from leafbeam.ingest.request_log import RequestLog
from leafbeam.ingest.texts import MemoryTexts
from leafbeam.live import RequestKey, disk
from leafbeam.live.transaction import WriteSet
from leafbeam.retrieve import ItemMemory, LiveMemory


class Source(Protocol):
    """Makes the changes of another system in a catalog, in a thread of its own. name: for messages."""

    name: str

    def start(self) -> None:
        """Begin to follow the source."""

    def stop(self) -> None:
        """Follow it no longer; return once no change is being made."""

    @property
    def status(self) -> FeedStatus: ...

    @property
    def unready_reason(self) -> str | None:
        """Return why the items are too old to be recommended; None if they are not."""


log = logging.getLogger("leafbeam.ingest")


class CatalogWriter:
    """Changes a catalog on behalf of clients, one change at a time; requests for recommendations never wait.

    A batch is made as a whole or not at all, and is on disk before `put`, `patch` or `delete` return. A request with a key that
    was sent before gets the same answer and changes nothing, even after a restart.

    Args:
        catalog: A catalog over `live.index`.
        live: The directory of the changes.
        encoder: Gives new items codes; or a text that says why there is none.
        memory: The engine's item memory, which learns the texts of new items. Pass it before the engine is made.

    Attributes:
        source: The source that the items follow. If there is one, changes of items come from it alone.

    Raises:
        LogError: If a change that a crash interrupted cannot be made now.
    """

    def __init__(
        self,
        catalog: Catalog,
        live: LiveDirectory,
        *,
        encoder: "semid.ItemEncoder | str",
        memory: ItemMemory | LiveMemory | None = None,
    ) -> None:
        self.catalog, self._live = catalog, live
        self.encoder = encoder
        self.source: Source | None = None
        self._snapshots = Snapshots(live.path / "snapshots")
        self._texts = MemoryTexts(memory, () if isinstance(encoder, str) else encoder.columns)
        self._planner = ChangePlanner(encoder, self._texts.memory)
        self._lock = threading.Lock()
        if live.requests is not None:
            self._make_pending(live.requests)
            replayed = map(self._texts.ids_of, live.requests.take_replayed())
            live.requests.texts.update(dict.fromkeys(itertools.chain.from_iterable(replayed)))
            self._texts.look_up_again(catalog, list(live.requests.texts))
        self._texts.add_missing(catalog)

    def put(self, lines: Lines, request: RequestKey | None = None) -> ChangeAnswer:
        """Insert items, or replace those that are there. Attributes that a line does not name become null.

        A new item without codes gets them from its vector, or its text; one that is there keeps its codes, unless the line has
        codes or a vector. Raises BatchError, which names every bad line, ConflictError, DataError (the table), LogError.
        """
        self._check_source()
        return self._change("put", lines, request)

    def patch(self, lines: Lines, request: RequestKey | None = None) -> ChangeAnswer:
        """Change the attributes, or the codes, that each line names. Raises as `put`."""
        self._check_source()
        return self._change("patch", lines, request)

    def delete(self, lines: Lines, request: RequestKey | None = None, *, missing_ok: bool = False) -> ChangeAnswer:
        """Remove items and their attributes. missing_ok: an item that is not there is ignored. Raises as `put`."""
        self._check_source()
        return self._change("delete", lines, request, missing_ok=missing_ok)

    def follow(self, operation: Operation, lines: Lines, position: Mapping[str, object] | None) -> ChangeAnswer:
        """Make a change that comes from the source; an item to delete that is not there is ignored. Raises as `put`.

        position: how far the source is followed with this change, on disk with it; None leaves it as it is.
        """
        return self._change(operation, lines, None, missing_ok=True, position=position)

    def move(self, position: Mapping[str, object]) -> None:
        """Record how far the source is followed, where no change comes with it. Raises LogError."""
        with self._writing() as requests:
            requests.follow(position)

    @property
    def position(self) -> Mapping[str, object]:
        """Return how far the source is followed; empty before its first change."""
        return {} if self._live.requests is None else self._live.requests.feed

    def snapshot(self, name: str) -> SnapshotAnswer:
        """Save all items and attributes under a name. Raises ArgumentError, ConflictError, LogError, DataError."""
        with self._writing():
            return self._snapshots.make(name, self.catalog, self.position)

    def rollback(self, name: str | None = None, request: RequestKey | None = None) -> ChangeAnswer:
        """Go back to a snapshot, the newest by default; rules stay. Counts as `put` and `delete` would.

        Raises ArgumentError (no such snapshot), IndexFileError, ConflictError, LogError.
        """
        self._check_source()
        return self._restore(name, request)

    def begin_with(self, snapshot: Path) -> bool:
        """Take over another server's snapshot, with its position in the source, unless something was changed here already.

        Returns whether it did.         Raises LogError (no snapshot), IndexFileError, ConflictError.
        """
        if self.catalog.index.version().number or self.position:
            return False
        self._restore(self._snapshots.take(snapshot), None)
        return True

    def _restore(self, name: str | None, request: RequestKey | None) -> ChangeAnswer:
        with self._writing() as requests:
            if (answer := requests.find(request)) is not None:
                return ChangeAnswer(**answer)
            name = self._snapshots.newest() if name is None else name
            trie, items, feed = self._snapshots.load(name)
            counts = _counts_of_restore(trie, self.catalog.index.version())
            change = {"operation": "rollback", "snapshot": name}
            self.catalog.restore(trie, items, lambda: requests.append(request, asdict(counts), change, feed=feed))
            self._texts.add_missing(self.catalog)
            requests.applied()
            return counts

    def delete_snapshot(self, name: str) -> None:
        """Remove a snapshot. Raises ArgumentError, LogError."""
        with self._writing():
            self._snapshots.delete(name)

    def compact(self) -> None:
        """Merge the segments of the index in the background; `catalog.index.status` says how far it is. Raises LogError."""
        self.catalog.compact()

    @property
    def snapshots(self) -> list[SnapshotAnswer]:
        """Return all snapshots, the oldest first."""
        return self._snapshots.list()

    def status(self, name: str, kind: type[Rule] | type[Boost] = Rule) -> RuleStatus:
        """Return the status of a rule or boost. Raises UnknownRuleError or UnknownBoostError."""
        matching = next((status for status in self.catalog.status if (status.name, status.kind) == (name, kind.noun)), None)
        if matching is None:
            rules = self.catalog.rules
            known, error = (rules.filters, UnknownRuleError) if kind is Rule else (rules.boosts, UnknownBoostError)
            names = ", ".join(sorted(known)) or "none"
            raise error(f"there is no {kind.noun} {name[:80]!r}; the {kind.noun}s of this catalog are: {names}")
        return matching

    def put_definition(self, kind: type[Rule] | type[Boost], name: str, sql: str, refresh: str | None = None) -> RuleStatus:
        """Add or replace a rule or a boost, in force once it has been evaluated, and kept over restarts.

        Raises RuleError, LogError.
        """
        add, remove, key = self._calls(kind)
        with self._writing():
            before = self.catalog.rules.definitions.get(name)
            add(name, sql, refresh)
            definition = {key: sql} if refresh is None else {key: sql, "refresh": refresh}
            try:
                self._live.save_rules({**self._live.rules, name: definition})
            except OSError as error:
                if before is None:
                    remove(name)
                else:
                    add(name, before.sql, None if before.refresh is None else f"{before.refresh}s")
                raise LogError(f"cannot write {kind.noun} {name!r}: {error.strerror or error}") from error
            return self.status(name, kind)

    def _calls(self, kind: type[Rule] | type[Boost]) -> tuple[Callable[..., None], Callable[[str], None], str]:
        """Return the catalog's methods that add and remove a rule or a boost, and the key of its SQL in a file."""
        if kind is Rule:
            return self.catalog.add_rule, self.catalog.remove_rule, "where"
        return self.catalog.add_boost, self.catalog.remove_boost, "expression"

    def delete_definition(self, kind: type[Rule] | type[Boost], name: str) -> None:
        """Remove a rule or boost made by `put_definition`; one of this name in rules.toml is in force again.

        Raises UnknownRuleError, UnknownBoostError, ConflictError for one of a file, LogError.
        """
        with self._writing():
            self.status(name, kind)
            if name not in self._live.rules:
                raise ConflictError(f"{kind.noun} {name!r} is in rules.toml or on the server's command line: change it there")
            with disk.log_error(f"remove {kind.noun} {name!r}"):
                self._live.save_rules({other: rule for other, rule in self._live.rules.items() if other != name})
            self._calls(kind)[1](name)
            if not (report := self.catalog.reload()).ok:
                log.warning("%s", report)

    def _check_source(self) -> None:
        if self.source is not None:
            raise ConflictError(f"the items of this server follow {self.source.name}: make the change there")

    def _change(
        self,
        operation: Operation,
        lines: Lines,
        request: RequestKey | None,
        *,
        missing_ok: bool = False,
        position: Mapping[str, object] | None = None,
    ) -> ChangeAnswer:
        with self._writing() as requests:
            if (answer := requests.find(request)) is not None:
                return ChangeAnswer(**answer)
            version = self.catalog.index.version()
            schema = self.catalog.schema(before_change=True)
            change = self._planner.plan(operation, lines, version, schema, missing_ok=missing_ok)
            counts = change.counts(version, lines.num_lines)

            def decide(write_set: WriteSet) -> None:
                commit = (self.catalog.index.version().number + 1, write_set) if len(write_set) else None
                requests.append(request, asdict(counts), change.record(), commit, position)

            self._make(change, requests, decide)
            requests.applied()
            return counts

    def _make(self, change: Change, requests: RequestLog, decide: Callable[[WriteSet], None] = lambda _: None) -> None:
        put_texts = self._texts.of_put(change)

        def before_commit() -> None:
            decide(transaction.write_set())
            # Before the commit; otherwise the first request that meets the new items would have to estimate their texts.
            requests.texts.update(dict.fromkeys(self._texts.insert(put_texts)))

        with self.catalog.transaction(before_commit) as transaction:
            change.make(transaction, self.catalog.index.version())
        requests.texts.update(dict.fromkeys(self._texts.observe_patch(change, self.catalog)))

    @contextmanager
    def _writing(self) -> Generator[RequestLog]:
        """Yield the lock of changes, and the log of requests; a change that is decided and not made is made first."""
        with self._lock:
            requests = self._live.persist()
            self._make_pending(requests)
            try:
                yield requests
            except (LeafbeamError, OSError) as error:
                if requests.pending is None:
                    raise
                if _is_lasting(error):
                    self._reject(requests, error)
                    raise
                raise LogError(
                    f"the change is on disk but could not be applied ({error}): it will be applied before any other change; to "
                    "learn when, send the request again with the same Idempotency-Key"
                ) from error

    def _make_pending(self, requests: RequestLog) -> None:
        """Make the change that is decided, and perhaps not made because a crash or an error came between."""
        pending = requests.pending
        if pending is None:
            return
        try:
            if pending["operation"] == "rollback":
                trie, items, _ = self._snapshots.load(str(pending.get("snapshot")))
                self.catalog.restore(trie, items)
                self._texts.add_missing(self.catalog)
            else:
                self._make(Change.of_record(pending, self.catalog.schema()), requests)
            requests.applied()
        except (LeafbeamError, OSError) as error:
            if not _is_lasting(error):
                raise LogError(f"a change that is on disk cannot be applied ({error}): later changes wait for it") from error
            self._reject(requests, error)

    def _reject(self, requests: RequestLog, error: Exception) -> None:
        """Give up a decided change that can never be made, which would stop all others, and the next start."""
        log.error("a change that is on disk can never be made, so it is given up: %s", error)
        requests.rejected()
        self.catalog.reload()  # the table may have a part of it


def _is_lasting(error: Exception) -> bool:
    """Return whether an error lies in the change itself, so that every attempt to make it fails."""
    may_pass = isinstance(error, LogError) or (isinstance(error, DataError) and error.may_pass)
    return isinstance(error, LeafbeamError) and not may_pass


def _counts_of_restore(trie: Trie, version: Version) -> ChangeAnswer:
    """Return the effect of replacing all items of a version by those of a trie."""
    ids = trie.item_ids
    known = ids[version.knows(ids)]
    moves = bool((version.codes_of(known) != trie.codes_of(known)).any())
    inserted, deleted = len(ids) - len(known), version.num_items - len(known)
    number = version.number + bool(inserted or deleted or moves)
    return ChangeAnswer(inserted=inserted, updated=len(known), deleted=deleted, ignored=0, number=number)
