"""The table of items: created at once, looked at for moments, and changed where the catalog changes it.

Shapes: M items of the table, R row numbers of DuckDB (all below R; some may have no row), n items of one call.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from leafbeam.catalog.sessions import ReadSession, WriteSession, check_table
from leafbeam.catalog.sources import ItemSource, copy_items
from leafbeam.errors import DataError

__all__ = ["ItemStore"]


class ItemStore:
    """A DuckDB table `items`: `item_id` (whole numbers or text, unique) and any attributes; in a file or in memory.

    Think of a file on a shelf: it is taken down, read and put back. DuckDB lets one process write a file or many read it, never
    both, so a reader that keeps its connection would lock every writer out. Here a connection lives only while something is
    read or written; between, any other process may open the file and change prices or stock. When one has it, an access waits
    up to `wait_s` seconds and then raises DataError.

    hold: keep the file open instead, and everybody else out. Changes then cost milliseconds rather than a file opened and
    closed each, and looks do not wait for each other. A table in memory is always held.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, wait_s: float = 5.0, hold: bool = False) -> None:
        self.path = None if path is None else Path(path)
        self.wait_s = wait_s
        self.name = "the catalog in memory" if path is None else str(path)
        # Guards the file between looks of this process; where it is held, only their beginnings against changes.
        self._lock = threading.Lock()
        self._changes = 0
        self._held = duckdb.connect(":memory:") if path is None else self._connect(read_only=False) if hold else None

    @classmethod
    def create(cls, path: str | os.PathLike[str], items: ItemSource, *, overwrite: bool = False) -> None:
        """Write a new file from an Arrow table or stream, a `.parquet` or `.csv` file, or a PostgresTable, with an `item_id`.

        The file appears under its name only when it is complete. In a CSV file the ids are whole numbers if all of them
        are written the way a whole number is (`7`, not `007`), else text.
        Raises DataError: no `item_id`, an id that is missing or comes twice, an unreadable source, or a file that is
        already there (unless `overwrite`).
        """
        target = Path(path)
        if target.exists() and not overwrite:
            raise DataError(f"{target} is already there: choose another name, or pass overwrite=True to replace it")
        part = target.with_name(target.name + ".part")
        _remove(part)
        try:
            with duckdb.connect(str(part)) as connection:
                copy_items(connection, items)
                check_table(connection, str(target))
            # A log left by a writer that died belongs to the file that goes away now.
            _remove(target.with_name(target.name + ".wal"))
            os.replace(part, target)
        except (duckdb.Error, OSError) as error:
            raise DataError(f"cannot write {target}: {error}") from error
        finally:
            _remove(part)

    @classmethod
    def in_memory(cls, items: ItemSource) -> ItemStore:
        """The same in memory; it is gone with the store. Raises DataError."""
        store = cls(None)
        assert store._held is not None
        try:
            copy_items(store._held, items)
        except duckdb.Error as error:
            raise DataError(f"the items cannot be read: {error}") from error
        return store

    @property
    def is_held(self) -> bool:
        """Nobody else can change the table."""
        return self._held is not None

    @contextmanager
    def reading(self) -> Generator[ReadSession]:
        """One consistent look at the table. Raises DataError where that is not possible."""
        if self._held is None:
            with self._lock, self._translated(), self._connect(read_only=True) as connection:
                yield ReadSession(connection, self.name)
        else:
            connection = self._held.cursor()
            try:
                with self._translated():
                    yield ReadSession(connection, self.name, begin=self._begin)
            finally:
                connection.close()

    @contextmanager
    def writing(self) -> Generator[WriteSession]:
        """Change the table, all or nothing: `commit` it inside the block.

        Nobody else looks or writes meanwhile. Raises DataError.
        """
        with self._lock, self._translated():
            connection = self._connect(read_only=False) if self._held is None else self._held.cursor()
            self._changes += 1
            try:
                connection.begin()
                yield WriteSession(connection, self.name, stamp=None if self._held is None else self._changes)
            finally:
                connection.close()

    def refill(self, items: ItemSource) -> None:
        """Make another source the whole table. Raises DataError, and then nothing was changed."""
        with self.writing() as writing:
            writing.drop()
            copy_items(writing.connection, items)
            writing.check()
            writing.commit()

    def close(self) -> None:
        """Give a held file back."""
        with self._lock:
            if self._held is not None:
                self._held.close()

    def _begin(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Fix what a look at a held table sees, and say how many changes that has."""
        with self._lock:
            connection.begin()
            # DuckDB's transactions see the moment of their first statement.
            connection.execute("SELECT 1 FROM items LIMIT 0").fetchall()
            return self._changes

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise DataError(f"cannot use {self.name}: {error}") from error

    def _connect(self, *, read_only: bool) -> duckdb.DuckDBPyConnection:
        assert self.path is not None
        if not self.path.is_file():
            raise DataError(f"there is no file {self.path}: make it with Catalog.create")
        give_up = time.monotonic() + self.wait_s
        while True:
            try:
                return duckdb.connect(str(self.path), read_only=read_only)
            except duckdb.Error as error:
                locked = "could not set lock" in str(error).lower()
                if not locked or time.monotonic() >= give_up:
                    hint = f" (waited {self.wait_s:g} s for another process to close it)" if locked else ""
                    raise DataError(f"cannot open {self.path} as a DuckDB file{hint}: {error}") from error
            time.sleep(0.05)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
