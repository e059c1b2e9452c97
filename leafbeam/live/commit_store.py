"""The current snapshot of a live index and the directory that makes its commits durable."""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from leafbeam.errors import ArgumentError, LogError
from leafbeam.index import Trie
from leafbeam.live.journal import Commit, Journal, read_commits, write_sets_after
from leafbeam.live.manifest import Directory, NextBase
from leafbeam.live.snapshot import Snapshot
from leafbeam.live.transaction import WriteSet
from leafbeam.live.write_ahead_log import LogContents

_ATTEMPTS = 5  # to read a directory that another process is writing


class CommitStore:
    """A sequence of snapshots. With a directory, each snapshot is on disk before it becomes the current one.

    A reader takes `snapshot`; a writer holds `write_lock`. A compaction's thread calls `before_switch` with the new
    base.

    Args:
        journal: The journal that has the commits in place of the directory's own log.
        num_replayed: The number of commits that `open` read from the logs.
        truncated_bytes: The bytes of an incomplete record that it found.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        directory: Directory | None = None,
        *,
        read_only: bool = False,
        journal: Journal | None = None,
        num_replayed: int = 0,
        truncated_bytes: int = 0,
    ) -> None:
        self.snapshot = snapshot
        self.write_lock = threading.Lock()
        self.before_switch: Callable[[Trie], None] | None = None
        self.num_replayed, self.truncated_bytes = num_replayed, truncated_bytes
        self._directory, self._journal = directory, journal
        self._closed = "the index was opened with read_only=True: open it for writing to change it" if read_only else None
        self._failure: str | None = None
        self._process = os.getpid()
        self._recent_commits: list[tuple[int, WriteSet]] | None = None  # numbered commits since a compaction began
        self._versions = [weakref.ref(snapshot.version)]

    @classmethod
    def open(cls, path: Path, *, sync: bool, read_only: bool, journal: Journal | None = None) -> "CommitStore":
        """Open the store of a directory, with the commits of its log and of its journal. Raises LogError, LockedError."""
        directory, trie, contents, later = _read(path, read_only=read_only, journal=journal)
        try:
            write_sets = [*_write_sets_of(contents, trie.codebook_sizes), *later]
            snapshot = _replay(Snapshot.from_trie(trie, contents.base_number), contents, write_sets)
            if not read_only:
                directory.resume(contents, sync=sync, has_journal=journal is not None)
        except BaseException:
            directory.close(discard=True)
            raise
        return cls(
            snapshot,
            None if read_only else directory,
            read_only=read_only,
            journal=journal,
            num_replayed=len(write_sets),
            truncated_bytes=contents.truncated_bytes,
        )

    @property
    def path(self) -> Path | None:
        """Return the directory; None in memory or read-only."""
        return None if self._directory is None else self._directory.path

    @property
    def log_bytes(self) -> int:
        """Return the length of the log; 0 in memory."""
        if self._journal is not None:
            return self._journal.log_bytes
        return 0 if self._directory is None else self._directory.log.end

    @property
    def versions_alive(self) -> int:
        """Return the number of versions that are referenced, the current one included."""
        return sum(version() is not None for version in self._versions)

    def persist(self, path: Path, *, sync: bool, journal: Journal | None = None) -> None:
        """Make an index in memory durable, before its first commit. Raises ArgumentError after one, LogError, LockedError."""
        with self.write_lock:
            self.check()
            if self._directory is not None or self.snapshot.number:
                raise ArgumentError("only an index in memory that has not changed can be made durable: use LiveIndex.create")
            self._directory = Directory.create(path, self.snapshot.base.trie, sync=sync, has_journal=journal is not None)
            self._journal = journal

    def check(self) -> None:
        """Raise if no commit is possible: ArgumentError (read-only, closed, forked), LogError (after a failure)."""
        if self._closed is not None:
            raise ArgumentError(self._closed)
        if self._process != os.getpid():
            raise ArgumentError(
                f"the index belongs to process {self._process}, and this process is a fork of it: open the index again here"
            )
        if self._failure is not None:
            raise LogError(self._failure)
        if self._directory is not None:
            log = self._directory.log
            if log.failure is not None:
                raise LogError(log.failure)
            number = log.number if self._journal is None else max((at for at, _ in self._journal.commits[-1:]), default=0)
            if number > self.snapshot.number:  # an exception, such as KeyboardInterrupt, came between the two
                raise LogError(f"change {number:,} is on disk but not in memory: open the directory again")

    def commit(self, write_set: WriteSet) -> int:
        """Log a write set and publish the next snapshot, under `write_lock`. Raises LogError; then nothing was changed."""
        number = self.snapshot.number + 1
        snapshot = self.snapshot.apply([write_set], number)
        if self._directory is not None:
            self._directory.check_lock()
            if self._journal is None:
                self._directory.log.append(write_set.encode())
            else:
                self._journal.commit(number, write_set)
        if self._recent_commits is not None:
            while self._recent_commits and self._recent_commits[-1][0] >= number:  # of an interrupted commit
                self._recent_commits.pop()
            self._recent_commits.append((number, write_set))
        self._publish(snapshot)
        return number

    def compact(self, num_threads: int) -> bool:
        """Merge base and delta into a new base, and apply the commits made meanwhile on top. Returns False if there is
        nothing to merge.

        Compactions run one at a time. Writers wait only while the last of those commits is applied and the manifest is
        replaced. Raises LeafbeamError, OSError and errors of the build; the index is then as it was.
        """
        with self.write_lock:
            self.check()
            begin = self.snapshot
            if begin.number == begin.base_number:
                return False
            self._recent_commits = []
        directory, next_base = self._directory, None
        try:
            trie = begin.merge(num_threads)
            snapshot = Snapshot.from_trie(trie, begin.number)
            if self.before_switch is not None:
                self.before_switch(trie)
            if directory is not None:
                journal = directory.has_journal
                next_base = directory.write_base(trie, begin.number, sync=directory.log.sync, has_journal=journal)
            # Commits made meanwhile: most are applied now, the few that come during that under the lock.
            with self.write_lock:
                number = self.snapshot.number
            snapshot = self._catch_up(snapshot, next_base, number)
            with self.write_lock:
                self.check()
                snapshot = self._catch_up(snapshot, next_base, self.snapshot.number)
                if directory is not None and next_base is not None:
                    directory.check_lock()
                    directory.stage_manifest(next_base.manifest)
                    self._failure = f"a switch to a new base in {directory.path} was interrupted: open the directory again"
                    directory.switch(next_base)
                self._publish(snapshot)
                self._failure = None
                if self._journal is not None:
                    self._journal.forget_commits(snapshot.base_number)
        except BaseException:
            if next_base is not None:
                next_base.log.close(discard=True)
            raise
        finally:
            self._recent_commits = None
            if directory is not None and self._failure is None:
                with suppress(LogError):  # the next compaction, or the next open, removes the files
                    directory.gc()
        return True

    def close(self) -> None:
        """Accept no more commits; referenced versions stay readable. Raises LogError."""
        with self.write_lock:
            self._closed = self._closed or "the index is closed: open it again to change it"
            try:
                if self._directory is not None:
                    self._directory.close()
            except OSError as error:
                raise LogError(f"the last changes may not be safe on disk: {error.strerror}") from error

    def _publish(self, snapshot: Snapshot) -> None:
        self._versions = [version for version in self._versions if version() is not None] + [weakref.ref(snapshot.version)]
        self.snapshot = snapshot

    def _catch_up(self, snapshot: Snapshot, next_base: NextBase | None, number: int) -> Snapshot:
        """Return the snapshot with the missing commits up to `number`, and write them into the next log too."""
        assert self._recent_commits is not None
        write_sets = [write_set for at, write_set in self._recent_commits if snapshot.number < at <= number]
        if write_sets and next_base is not None and self._journal is None:
            next_base.log.append(*(write_set.encode() for write_set in write_sets))
        return snapshot.apply(write_sets, number) if write_sets else snapshot


def _read(path: Path, *, read_only: bool, journal: Journal | None) -> tuple[Directory, Trie, LogContents, list[WriteSet]]:
    """Open the directory, its base and log, and the later commits of a journal. Raises LogError, LockedError."""
    for _ in range(_ATTEMPTS):
        directory, trie, contents = Directory.open(path, read_only=read_only)
        try:
            commits: Sequence[Commit] = () if journal is None else journal.commits
            if journal is None and directory.has_journal:
                if not read_only:
                    raise LogError(
                        f"{path} belongs to a server, and only that server may change it: open it with read_only=True"
                    )
                commits = read_commits(path)
            later = write_sets_after(commits, contents.number, trie.codebook_sizes)
            if later is not None:
                return directory, trie, contents, later
        except FileNotFoundError:  # another process has replaced the journal meanwhile
            pass
        except ValueError as error:
            directory.close(discard=True)
            raise LogError(f"a change beside {path} cannot be read ({error}): restore the directory from a copy") from error
        except BaseException:
            directory.close(discard=True)
            raise
        directory.close(discard=True)
    raise LogError(f"changes of {path} are missing in the log beside it: restore the directory from a copy")


def _write_sets_of(contents: LogContents, codebook_sizes: Sequence[int]) -> list[WriteSet]:
    """Return the write sets in the records of a log. Raises LogError."""
    write_sets: list[WriteSet] = []
    for record in contents.records:
        try:
            write_sets.append(WriteSet.decode(record.payload, codebook_sizes))
        except ValueError as error:
            raise LogError(
                f"{contents.path} holds record {record.number:,} at byte {record.offset:,}, which is not a change of this "
                f"index ({error}): restore the directory from a copy"
            ) from error
    return write_sets


def _replay(snapshot: Snapshot, contents: LogContents, write_sets: Sequence[WriteSet]) -> Snapshot:
    """Return the snapshot after some commits. Cost: one sort of their ids and one build. Raises LogError."""
    if not write_sets:
        return snapshot
    try:
        total = WriteSet.combine(write_sets)
        if len(total.added_A) and snapshot.version.id_kind not in (None, total.added_A.dtype.kind):
            raise ValueError("ids of another kind than those of the base")
        if np.any(snapshot.version.knows(total.added_A) & ~np.isin(total.added_A, total.removed_R)):
            raise ValueError("an added item is live already")
        return snapshot.apply(write_sets, snapshot.number + len(write_sets))
    except ValueError as error:
        raise LogError(
            f"the changes in {contents.path} do not fit the base that they follow ({error}): restore the directory from a copy"
        ) from error
