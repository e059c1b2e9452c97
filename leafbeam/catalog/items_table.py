"""The DuckDB table of items: created, opened for short reads and writes, or kept open exclusively."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import duckdb
import pyarrow as pa

from leafbeam.catalog.locks import SessionLock, UseLock
from leafbeam.catalog.sessions import ReadSession, WriteSession, check_table
from leafbeam.catalog.sources import CsvOptions, ItemSource, copy_items
from leafbeam.catalog.time_limit import DEFAULT_S, TimeLimit
from leafbeam.errors import CatalogInUseWarning, DataError
from leafbeam.files import replacing
from leafbeam.tables import CsvFormat

_CLOSE_S = 5.0
_ONE_THREAD = "SET threads = 1"  # for a few rows, to wake others takes longer than the work
_Settings = dict[str, str | bool | int | float | list[str]]
_SETTINGS: _Settings = {
    "TimeZone": "UTC",
    "autoinstall_known_extensions": "false",
}  # a rule must not download code
# A rule reads no other file, and no statement turns this off.
_TABLE_ALONE: _Settings = {**_SETTINGS, "enable_external_access": "false"}


@dataclass(frozen=True, kw_only=True)
class _HeldFile:
    """A file that is open for several sessions.

    Args:
        number: The inode number of the open file. By now its path may lead to another file.
        timer: The timer that closes the file. Without one, the last reader closes it.
    """

    connection: duckdb.DuckDBPyConnection
    number: int
    timer: threading.Timer | None = None

    def is_at(self, path: Path | None) -> bool:
        """Return whether the file at a path is this one."""
        with suppress(OSError):
            return path is not None and path.stat().st_ino == self.number
        return False


class TableOptions(TypedDict, total=False):
    """The keyword arguments of `ItemsTable`, which say how a catalog's file is opened."""

    wait_s: float
    exclusive: bool
    hold_s: float
    rule_timeout_s: float


class ItemsTable:
    """A DuckDB table `items`: `item_id` (integers or text, unique) and any attributes; in a file or in memory (path None).

    DuckDB lets one process write a file or many read it, never both. So a connection is open only during a session, or
    during several sessions that read at the same time; between sessions other processes may write the file. If another
    process has it open, a session waits up to `wait_s` seconds, then raises DataError.

    Args:
        exclusive: Keep the file open and lock other processes out. Changes then cost milliseconds instead of opening the file,
            and reads do not wait for each other. A table in memory is always exclusive.
        hold_s: The seconds for which a change keeps the file open for the changes that follow, unless another process
            uses the file as a catalog.
        rule_timeout_s: The time limit of one evaluation of a rule, in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        wait_s: float = 5.0,
        exclusive: bool = False,
        hold_s: float = 0.0,
        rule_timeout_s: float = DEFAULT_S,
    ) -> None:
        self._limit = TimeLimit(rule_timeout_s)
        self.path = None if path is None else Path(path)
        self.wait_s = wait_s
        self.name = "the catalog in memory" if path is None else str(path)
        # The lock of this process's sessions; if exclusive, only for writes and the beginnings of reads.
        self._lock = SessionLock()
        self._readers = threading.Condition()  # guards what readers share: `_read` with its count, and `_held`'s connection
        self._read: _HeldFile | None = None
        self._num_readers = 0
        self._num_changes = 0
        self._hold_s = hold_s
        self._held: _HeldFile | None = None
        self._open: duckdb.DuckDBPyConnection | None = None
        if path is None:
            self._open = duckdb.connect(":memory:", config=_SETTINGS)
        elif exclusive:
            self._open = self._connect(_SETTINGS, read_only=False)
        self._use_lock: UseLock | None = None
        if self.path is not None and self.path.is_file():
            with suppress(OSError):  # a directory that this process may not write
                self._use_lock = UseLock(self.path)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], items: ItemSource, *, overwrite: bool = False, **csv: Unpack[CsvOptions]
    ) -> None:
        """Write a new file from an Arrow table or stream, a file that `read_table` reads, or a PostgresTable.

        The source has a column `item_id`. csv: the `delimiter` and the `encoding` of a file of CSV.
        The file appears under its name only when it is complete. In a CSV file the ids are integers if all of them are
        written like integers (`7`, not `007`), else text. Raises DataError if there is no `item_id`, an id is missing
        or repeated, the source cannot be read, or the file exists (unless `overwrite`).
        """
        target = Path(path)
        if target.exists() and not overwrite:
            raise DataError(f"{target} is already there: choose another name, or pass overwrite=True to replace it")
        try:
            with replacing(target) as part:
                with duckdb.connect(str(part)) as connection:
                    copy_items(connection, items, CsvFormat(**csv))
                    check_table(connection, str(target))
                # A log that a dead writer left belongs to the replaced file.
                target.with_name(target.name + ".wal").unlink(missing_ok=True)
        except (duckdb.Error, OSError) as error:
            raise DataError(f"cannot write {target}: {error}") from error

    @classmethod
    def in_memory(cls, items: ItemSource, *, rule_timeout_s: float = DEFAULT_S, **csv: Unpack[CsvOptions]) -> ItemsTable:
        """Return a table in memory. Raises DataError."""
        table = cls(None, rule_timeout_s=rule_timeout_s)
        assert table._open is not None
        with table._translated():
            copy_items(table._open, items, CsvFormat(**csv))
        return table

    @contextmanager
    def reading(self, *, other_files: bool = False, before_change: bool = False, whole: bool = False) -> Generator[ReadSession]:
        """Open one consistent view of the table. Raises DataError.

        Args:
            other_files: Whether SQL may read and write other files.
            before_change: Whether a change follows, so that the file is opened for writing too.
            whole: Whether the session reads the whole table, with all threads.
        """
        if self._open is None:
            is_alone = before_change or other_files
            with (
                self._lock.alone() if is_alone else self._lock.shared(),
                self._translated(),
                self._connected(read_only=not before_change, other_files=other_files)
                if is_alone
                else self._shared(whole=whole) as connection,
            ):
                yield ReadSession(connection, self.name, limit=self._limit)
        else:
            with self._translated(), self._open.cursor() as connection:
                yield ReadSession(connection, self.name, limit=self._limit, begin=self._begin)

    @contextmanager
    def writing(self, *, other_files: bool = False) -> Generator[WriteSession]:
        """Open one transaction, all or nothing: `commit` it in the block. Other sessions wait meanwhile. Raises DataError."""
        with self._lock.alone(), self._translated(), self._connected(read_only=False, other_files=other_files) as connection:
            self._num_changes += 1
            connection.begin()
            counter = None if self._open is None else self._num_changes
            yield WriteSession(connection, self.name, limit=self._limit, change_counter=counter)

    def refill(
        self,
        items: ItemSource,
        before_commit: Callable[[], None] = lambda: None,
        *,
        ids_are_checked: bool = False,
        **csv: Unpack[CsvOptions],
    ) -> None:
        """Replace all rows and columns by another source. Raises DataError, and then nothing was changed.

        Args:
            before_commit: A function that is called once the source is read and checked. If it raises, nothing was changed.
            ids_are_checked: As for `copy_items`.
        """
        with self.writing(other_files=True) as session:
            session.connection.execute("DROP TABLE items")
            copy_items(session.connection, items, CsvFormat(**csv), ids_are_checked=ids_are_checked)
            session.check()
            before_commit()
            session.connection.commit()

    def is_shared(self) -> bool:
        """Return whether another process, or another catalog of this one, has the file open. Cost: two system calls."""
        return self._use_lock is not None and self._use_lock.is_shared()

    def warn_if_shared(self, stacklevel: int) -> None:
        """Warn with CatalogInUseWarning, before a change, if others use the file: they do not see the change at once."""
        if self.is_shared():
            message = (
                f"another process has {self.name} open: it sees changed rows after its next reload, and inserted or deleted "
                "items only once it opens the same index again; to hide an item there, delete its row"
            )
            warnings.warn(message, CatalogInUseWarning, stacklevel=stacklevel + 1)

    @property
    def is_stopped(self) -> bool:
        """Return whether evaluations were stopped. A rule that was stopped has not failed."""
        return self._limit.stopped

    def stop(self) -> None:
        """Interrupt running evaluations of rules, and refuse new ones."""
        self._limit.stop()

    def close(self) -> None:
        """Stop evaluations, and close an exclusive file once no session uses it. If one still does after 5 s, the file
        stays open.
        """
        self.stop()
        self._limit.join()
        if self._use_lock is not None:
            self._use_lock.close()
        give_up = time.monotonic() + _CLOSE_S
        if self._hold_s:
            with self._lock.alone(_CLOSE_S) as is_alone:  # else a session still runs
                if is_alone:
                    self._release()
        while self._open is not None:
            try:
                self._open.close()
                break
            except duckdb.Error:  # a session still uses it
                if time.monotonic() >= give_up:
                    break
                time.sleep(0.01)

    @contextmanager
    def _shared(self, *, whole: bool) -> Generator[duckdb.DuckDBPyConnection]:
        """Yield a connection for a reading session. The first reader opens the file for all, and the last closes it."""
        with self._readers:
            while (file := self._file_to_read()) is None:
                self._readers.wait()
            connection = file.connection.cursor()
            self._num_readers += 1
            if uses_all := whole and file.timer is not None:
                file.connection.execute("RESET threads")
        try:
            with connection:
                yield connection
        finally:
            with self._readers:
                self._num_readers -= 1
                if uses_all:
                    file.connection.execute(_ONE_THREAD)
                if not self._num_readers and self._read is not None:
                    self._read.connection.close()
                    self._read = None
                self._readers.notify_all()

    def _file_to_read(self) -> _HeldFile | None:
        """Return the open file, or open it; None while others still read a file that is no longer at its path."""
        file = self._held or self._read
        if file is not None and not file.is_at(self.path):
            if self._num_readers:
                return None
            self._release()
            file = None
        if file is None:
            file = self._read = _HeldFile(connection=self._connect(_TABLE_ALONE, read_only=True), number=self._number())
        return file

    @contextmanager
    def _connected(self, *, read_only: bool, other_files: bool) -> Generator[duckdb.DuckDBPyConnection]:
        """Yield a connection for a session that runs alone."""
        kept = self._kept(other_files=other_files)
        if kept is None:
            kept = self._connect(_SETTINGS if other_files else _TABLE_ALONE, read_only=read_only)
            if read_only or other_files or not self._hold_s or self.is_shared():
                with kept:
                    yield kept
                return
            self._hold(kept)
        with kept.cursor() as connection:
            yield connection

    def _kept(self, *, other_files: bool) -> duckdb.DuckDBPyConnection | None:
        """Return the open connection, unless it cannot read other files, or its file is held but no longer at its path."""
        if self._held is not None and (other_files or not self._held.is_at(self.path)):
            self._release()
        return self._open if self._held is None else self._held.connection

    def _hold(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(_ONE_THREAD)
        timer = threading.Timer(self._hold_s, self._end_hold)
        self._held = _HeldFile(connection=connection, number=self._number(), timer=timer)
        timer.start()

    def _number(self) -> int:
        assert self.path is not None
        return self.path.stat().st_ino

    def _end_hold(self) -> None:
        with self._lock.alone():
            self._release()

    def _release(self) -> None:
        """Close a held file."""
        if self._held is not None:
            if self._held.timer is not None:
                self._held.timer.cancel()
            self._held.connection.close()
            self._held = None

    def _begin(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Fix what a session on an exclusive table sees, and return the number of changes up to then."""
        with self._lock.alone():
            connection.begin()
            connection.execute("SELECT 1 FROM items LIMIT 0").fetchall()  # DuckDB fixes the view at the first statement
            return self._num_changes

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except duckdb.Error as error:
            if self._limit.stopped and isinstance(error, duckdb.ConnectionException):
                raise self._limit.closed_error() from error
            may_pass = isinstance(error, duckdb.OperationalError | duckdb.InterruptException)
            raise DataError(f"cannot use {self.name}: {error}", may_pass=may_pass) from error

    def _connect(self, settings: _Settings, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        assert self.path is not None
        if not self.path.is_file():
            raise DataError(f"there is no file {self.path}: make it with Catalog.create", may_pass=True)
        give_up = time.monotonic() + self.wait_s
        while True:
            try:
                return duckdb.connect(str(self.path), read_only=read_only, config=settings)
            except duckdb.Error as error:
                # The second: a catalog of this process has it open for writing.
                locked = any(words in str(error).lower() for words in ("could not set lock", "different configuration"))
                if not locked or time.monotonic() >= give_up:
                    hint = f" (waited {self.wait_s:g} s for another process to close it)" if locked else ""
                    raise DataError(f"cannot open {self.path} as a DuckDB file{hint}: {error}", may_pass=True) from error
            time.sleep(0.05)


def title_column(schema: pa.Schema) -> str | None:
    """Return the column `title`, else `name` (in upper or lower case), else the first column of text; None if no column
    is text.

    >>> title_column(pa.schema({"item_id": pa.string(), "kind": pa.string(), "Name": pa.string()}))
    'Name'
    """
    names = [field.name for field in schema if field.name != "item_id" and _is_text(field.type)]
    known = {name.lower(): name for name in reversed(names)}
    return known.get("title") or known.get("name") or next(iter(names), None)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
