"""The state in force and the log that would bring it back: what every change goes through.

Shapes: as in `state.py`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from leafbeam.errors import ArgumentError, LogError
from leafbeam.index import Trie
from leafbeam.live.manifest import Directory
from leafbeam.live.snapshot import State
from leafbeam.live.transaction import Change, kind_of, kind_of_version
from leafbeam.live.write_ahead_log import Contents

__all__ = ["CommitStore"]


class CommitStore:
    """One state after the other, each on disk before anybody sees it (unless all is in memory).

    Think of it as a variable of type State with a memory: `commit` assigns, `rebase` assigns the same content in a new shape. A
    reader takes `state` and is done; who changes it holds `writing`.

    on_merged: told of a rebase's trie before it comes into force, by the thread that rebases.
    """

    def __init__(self, state: State, directory: Directory | None = None, *, read_only: bool = False) -> None:
        self.state = state
        self.writing = threading.Lock()
        self.on_merged: Callable[[Trie], None] | None = None
        self._directory = directory
        self._shut = "the catalog was opened with read_only=True: open it for writing to change it" if read_only else None
        self._failure: str | None = None
        self._process = os.getpid()
        self._since: list[tuple[int, Change]] | None = None  # numbered changes since a rebase began
        self._versions = [weakref.ref(state.version)]

    @classmethod
    def create(cls, path: Path, trie: Trie, *, sync: bool) -> CommitStore:
        """A new directory. Raises LogError, LockedError."""
        return cls(State.of(trie), Directory.create(path, trie, sync=sync))

    @classmethod
    def open(cls, path: Path, *, sync: bool, read_only: bool) -> tuple[CommitStore, Contents]:
        """The state that a directory holds, and the log that it came from. Raises LogError, LockedError.

        Cost: the sort of the base's ids, one of all changed ids, and a build of the delta.
        """
        directory, trie, contents = Directory.open(path, read_only=read_only)
        try:
            state = _replay(State.of(trie, contents.after), contents)
            if not read_only:
                directory.resume(contents, sync=sync)
        except BaseException:
            directory.close(forget=True)
            raise
        return cls(state, None if read_only else directory, read_only=read_only), contents

    @property
    def log_bytes(self) -> int:
        """The length of the log; 0 in memory."""
        return 0 if self._directory is None else self._directory.journal.end

    @property
    def versions_alive(self) -> int:
        """How many versions somebody holds, the one in force among them."""
        return sum(version() is not None for version in self._versions)

    def check(self) -> None:
        """Raise where no change can be taken: ArgumentError (read-only, closed, forked), LogError (after a failure)."""
        if self._shut is not None:
            raise ArgumentError(self._shut)
        if self._process != os.getpid():
            raise ArgumentError(f"the catalog belongs to process {self._process}, and this is a fork of it: open it here")
        if self._failure is not None:
            raise LogError(self._failure)
        if self._directory is not None:
            journal = self._directory.journal
            if journal.failure is not None:
                raise LogError(journal.failure)
            if journal.number != self.state.number:  # something (KeyboardInterrupt) came between the two
                raise LogError(f"change {journal.number:,} is on disk but not in force: open the directory again")

    def commit(self, change: Change) -> int:
        """Log a change, put it in force and return its number; the caller holds `writing`.

        Raises LogError, and then nothing was changed.
        """
        number = self.state.number + 1
        state = self.state.after([change], number)
        if self._directory is not None:
            self._directory.journal.append(change.encode())
        if self._since is not None:
            while self._since and self._since[-1][0] >= number:  # of a commit that did not get to its end
                self._since.pop()
            self._since.append((number, change))
        self._put_in_force(state)
        return number

    def rebase(self, num_threads: int) -> bool:
        """Merge base and delta into a new base; changes made meanwhile are made again on top. False: nothing to merge.

        `writing` is held at the end only, while the last of those changes are made again and the manifest is switched. One
        rebase at a time. Raises LeafbeamError, OSError and whatever the build raises; what was in force then still is.
        """
        with self.writing:
            self.check()
            begin = self.state
            log_begin = self.log_bytes
            if begin.number == begin.base_number:
                return False
            self._since = []
        successor = None
        try:
            trie = begin.merged(num_threads)
            state = State.of(trie, begin.number)
            if self.on_merged is not None:
                self.on_merged(trie)
            if self._directory is not None:
                successor = self._directory.prepare(trie, begin.number, sync=self._directory.journal.sync)
            # What came meanwhile is made again twice: most of it now, the little that is left then under the lock.
            with self.writing:
                number, log_end = self.state.number, self.log_bytes
            state = self._catch_up(state, number)
            if self._directory is not None and successor is not None:
                successor.journal.copy_from(self._directory.journal, log_begin, log_end, number)
            with self.writing:
                self.check()
                number = self.state.number
                state = self._catch_up(state, number)
                if self._directory is not None and successor is not None:
                    successor.journal.copy_from(self._directory.journal, log_end, self.log_bytes, number)
                    self._directory.stage(successor)
                    self._failure = f"a switch to a new base in {self._directory.path} was broken off: open the directory again"
                    self._directory.switch(successor)
                self._put_in_force(state)
                self._failure = None
        except BaseException:
            if successor is not None:
                successor.journal.close(forget=True)
            if self._directory is not None and self._failure is None:
                with suppress(LogError):  # what stays is removed by the next compaction, or the next open
                    self._directory.sweep()
            raise
        finally:
            self._since = None
        if self._directory is not None:
            self._directory.sweep()
        return True

    def close(self) -> None:
        """Take no more changes; versions can be read as long as somebody holds them. Raises LogError."""
        with self.writing:
            self._shut = self._shut or "the catalog is closed: open it again to change it"
            try:
                if self._directory is not None:
                    self._directory.close()
            except OSError as error:
                raise LogError(f"the last changes may not be safe on disk: {error.strerror}") from error

    def _put_in_force(self, state: State) -> None:
        self._versions = [one for one in self._versions if one() is not None] + [weakref.ref(state.version)]
        self.state = state

    def _catch_up(self, state: State, number: int) -> State:
        """A state with the changes up to this number that came since the rebase began."""
        assert self._since is not None
        changes = [change for at, change in self._since if state.number < at <= number]
        return state.after(changes, number) if changes else state


def _replay(state: State, contents: Contents) -> State:
    """The state after all changes of a log, or a LogError. Cost: one sort of their ids, one build."""
    changes: list[Change] = []
    for record in contents.records:
        try:
            changes.append(Change.decode(record.payload, state.version.codebook_sizes))
        except ValueError as error:
            raise LogError(
                f"{contents.path} holds record {record.number:,} at byte {record.offset:,}, which is no change of this "
                f"catalog ({error}): restore the directory from a copy"
            ) from error
    if not changes:
        return state
    try:
        net = Change.joined(changes)
        known = kind_of_version(state.version)
        if len(net.added_A) and known not in ("rows", kind_of(net.added_A)):
            raise ValueError(f"ids of another kind than {known}")
        if np.any(state.version.knows(net.added_A) & ~np.isin(net.added_A, net.removed_R)):
            raise ValueError("an added item is there already")
        return state.after(changes, contents.number)
    except ValueError as error:
        raise LogError(
            f"the changes in {contents.path} do not fit the base that they follow ({error}): restore the directory from a copy"
        ) from error
