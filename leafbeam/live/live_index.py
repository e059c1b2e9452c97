"""LiveIndex: an index that changes while it is searched, in memory or on disk.

Shapes: n items of one call, L levels.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, LeafbeamError, LogError
from leafbeam.index import Trie, Version
from leafbeam.index.items import ItemIds
from leafbeam.live.commit_store import CommitStore
from leafbeam.live.snapshot import State
from leafbeam.live.transaction import Transaction

__all__ = ["CompactionPolicy", "LiveIndex", "OpenReport", "Status"]


@dataclass(frozen=True, kw_only=True)
class CompactionPolicy:
    """When base and delta are merged in the background.

    share: as soon as more rows were inserted and deleted than this share of the base's items; None: never.
    floor: but not for fewer rows than this. num_threads: of the merge, which runs beside the searches.
    """

    share: float | None = 0.02
    floor: int = 10_000
    num_threads: int = 1

    def __post_init__(self) -> None:
        if (self.share is not None and not self.share > 0) or self.floor < 0 or self.num_threads < 1:
            raise ArgumentError(f"{self}: expected share > 0 or None, floor >= 0 and num_threads >= 1")

    def is_due(self, state: State) -> bool:
        """Whether so much has changed."""
        return self.share is not None and state.churn > max(self.floor, self.share * state.base.trie.num_items)


@dataclass(frozen=True, kw_only=True)
class OpenReport:
    """What `open` found: how many changes the log held, and how many bytes of one that was never finished were cut off."""

    num_changes: int = 0
    bytes_cut: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        cut = f"; {self.bytes_cut:,} bytes of an unfinished change were cut off" if self.bytes_cut else ""
        return f"{self.num_changes:,} changes since the last compaction, opened in {self.seconds:.2f} s{cut}"


@dataclass(frozen=True, kw_only=True)
class Status:
    """How things stand, for metrics.

    number: changes so far. num_base, num_dead: items of the base, and how many of them are deleted. num_delta: rows of the
    delta. log_bytes: the length of the log, 0 in memory.
    versions_alive: how many versions are held by anybody, the newest among them. failure: why the last compaction failed.
    """

    number: int
    num_items: int
    num_base: int
    num_dead: int
    num_delta: int
    log_bytes: int
    versions_alive: int
    is_compacting: bool
    num_compactions: int
    failure: str | None


class LiveIndex:
    """A live index: items come and go while searches run, and each search sees one moment.

    Think of it as a variable of type Version. `insert`, `delete` and `replace` assign a new one, all or nothing; `version()`
    reads it, and holding what it returns is all the pinning that a batch needs. Behind it stand a big base, of which items are
    only crossed out, and a small delta, which every insert builds anew; `compact` merges the two in the background.
    (DESIGN §1.5: Lucene's segments.)

    With a directory, a change is in its log before anybody sees it, and `open` brings it back: all changes that were
    acknowledged with sync=True, after a power cut too; with sync=False, after a killed process too, while a power cut takes
    the last ones. One writer at a time; any number of processes may look with read_only=True.

    Cost of 1,000 inserts and 1,000 deletes in one transaction on 10^7 items: 9 ms of one core, 18 with
    100,000 rows in the delta.

    >>> segments = LiveIndex.create("shop.segments", Trie.build([[0, 1], [1, 0]], [2, 2], ["a", "b"]))
    >>> segments.insert([[1, 1]], ["c"]); segments.delete(["a"]); segments.version().num_items
    2
    """

    def __init__(self, ledger: CommitStore, policy: CompactionPolicy, report: OpenReport) -> None:
        self.opened = report
        self._ledger = ledger
        self._policy = policy
        self._owner: int | None = None  # the thread whose transaction is open
        self._compacting = threading.Lock()  # guards what follows
        self._thread: threading.Thread | None = None
        self._num_compactions = 0
        self._failure: BaseException | None = None
        self._unreported = False
        self._retry_above = 0
        self._on_switched: Callable[[], None] | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str] | None,
        trie: Trie,
        *,
        sync: bool = True,
        compaction: CompactionPolicy | None = None,
    ) -> LiveIndex:
        """A live index that begins as this trie, in a new directory or (path None) in memory only.

        Cost: a copy of the trie on disk, and a sort of its ids if `Trie.build` has not done it.
        Raises LogError where the path is taken or cannot be written, LockedError where somebody else is at it.
        """
        ledger = CommitStore(State.of(trie)) if path is None else CommitStore.create(Path(path), trie, sync=sync)
        return cls(ledger, compaction or CompactionPolicy(), OpenReport())

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        sync: bool = True,
        read_only: bool = False,
        compaction: CompactionPolicy | None = None,
    ) -> LiveIndex:
        """The live index of a directory, as it was after the last change. `opened` says what was found.

        read_only: look at the state of this moment beside another process that writes. A reader takes no lock.
        Cost: a sort of the base's ids (under a second at 10^7; none where they are row numbers), and of all changes in the log.
        Raises LogError (no catalog there, or a damaged one), LockedError (another writer; the message names its process).
        """
        begin = time.perf_counter()
        ledger, contents = CommitStore.open(Path(path), sync=sync, read_only=read_only)
        report = OpenReport(num_changes=len(contents.records), bytes_cut=contents.torn, seconds=time.perf_counter() - begin)
        return cls(ledger, compaction or CompactionPolicy(), report)

    def version(self) -> Version:
        """The index as it is now: immutable, and alive for as long as somebody holds it. Cost: none; never waits."""
        return self._ledger.state.version

    def insert(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds) -> int:
        """Add items; the next `version()` has them. codes: (n, L) of any integer dtype. Returns the version's number.

        Cost: a build of the delta, 15 ms where it has 100,000 rows. Raises CodesError, ItemIdError where an id is there already
        (use `replace`) or comes twice, LogError where it cannot be written; then nothing was changed.
        """
        with self.transaction() as change:
            change.insert(codes, item_ids)
        return self._number_of(change)

    def delete(self, item_ids: ItemIds) -> int:
        """Take items out; an id may come back later. Returns the version's number.

        Cost: a copy of the base's live bitmap (a millisecond at 10^7). Raises ItemIdError where an id is not there or comes
        twice, LogError; then nothing was changed.
        """
        with self.transaction() as change:
            change.delete(item_ids)
        return self._number_of(change)

    def replace(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds) -> int:
        """Give items other codes; no version has an item twice or not at all. Returns the version's number.

        Raises CodesError, ItemIdError where an id is not there or comes twice, LogError; then nothing was changed.
        """
        with self.transaction() as change:
            change.replace(codes, item_ids)
        return self._number_of(change)

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        """Several changes that come into force together when the block ends, or not at all where it raises.

        Other writers wait meanwhile, so keep it short. One log record, one new version; none where nothing changes in the end.

        >>> with segments.transaction() as change:
        ...     change.delete(["a"]); change.insert([[0, 0]], ["d"])
        """
        self._refuse_inside("change.insert, change.delete and change.replace of the open transaction")
        self._raise_failure()
        with self._ledger.writing:
            self._ledger.check()
            change = Transaction(self._ledger.state.version)
            self._owner = threading.get_ident()
            try:
                yield change
                net = change.close()
            finally:
                self._owner = None
                change.discard()
            change.number = self._ledger.state.number if net.is_empty else self._ledger.commit(net)
        state = self._ledger.state
        if self._policy.is_due(state) and state.churn > self._retry_above:
            try:
                self._start()
            except RuntimeError as error:  # no thread could be started; the change itself is made
                self._note_failure(error)

    def compact(self, *, wait: bool = False) -> None:
        """Merge base and delta in the background; searches and writers go on, and see the same items before and after.

        wait: return when all changes made so far are merged. A failure changes nothing; it is raised here if `wait`, else by
        the next call, and `status.failure` keeps it. Cost: a pass and a build over all items, and memory for a second base.
        """
        self._refuse_inside("compact() after the transaction")
        self._raise_failure()
        with self._ledger.writing:
            self._ledger.check()
            number = self._ledger.state.number
        running = self._start()
        if wait:
            running.join()
            self._raise_failure()
            if self._ledger.state.base_number < number:  # it had begun before the last changes
                self._start().join()
                self._raise_failure()

    def watch(self, *, merged: Callable[[Trie], None], switched: Callable[[], None]) -> None:
        """Be told of compactions, by their thread: of a new base before it comes into force, and when it has. One can watch."""
        self._ledger.on_merged, self._on_switched = merged, switched

    @property
    def status(self) -> Status:
        """How things stand now."""
        state = self._ledger.state
        return Status(
            number=state.number,
            num_items=state.version.num_items,
            num_base=state.base.trie.num_items,
            num_dead=state.base.trie.num_items - state.base.num_items,
            num_delta=len(state.ids_D),
            log_bytes=self._ledger.log_bytes,
            versions_alive=self._ledger.versions_alive,
            is_compacting=self._thread is not None and self._thread.is_alive(),
            num_compactions=self._num_compactions,
            failure=None if self._failure is None else f"{type(self._failure).__name__}: {self._failure}",
        )

    def close(self) -> None:
        """Wait for a compaction, make everything safe on disk and let another writer in. Versions that are held stay good.

        Raises LogError where that fails, or where a compaction failed and nobody was told yet.
        """
        self._refuse_inside("close() after the transaction")
        with self._compacting:
            running = self._thread
        if running is not None:
            running.join()
        self._ledger.close()
        self._raise_failure()

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.version().num_items

    def _start(self) -> threading.Thread:
        """The compaction that runs, or a new one."""
        with self._compacting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="leafbeam-compaction")
                self._thread.start()
            return self._thread

    def _run(self) -> None:
        try:
            merged = self._ledger.rebase(self._policy.num_threads)
        except BaseException as error:
            self._note_failure(error)
        else:
            self._num_compactions += merged
            self._failure, self._unreported, self._retry_above = None, False, 0
            if merged and self._on_switched is not None:
                self._on_switched()

    def _note_failure(self, error: BaseException) -> None:
        self._failure, self._unreported = error, True
        self._retry_above = 2 * self._ledger.state.churn  # not again with every change

    def _raise_failure(self) -> None:
        """Say once that a compaction failed."""
        if self._unreported:
            self._unreported = False
            why = str(self._failure) if isinstance(self._failure, LeafbeamError) else repr(self._failure)
            raise LogError(
                f"the compaction in the background failed ({why}): no change is lost, and this call made none; call it again, "
                f"and compact() once the cause is mended"
            ) from self._failure

    @staticmethod
    def _number_of(change: Transaction) -> int:
        assert change.number is not None
        return change.number

    def _refuse_inside(self, instead: str) -> None:
        if self._owner == threading.get_ident():
            raise ArgumentError(f"this thread has a transaction open, and its changes come into force together: use {instead}")
