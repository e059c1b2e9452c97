"""TableFeed: the differences between the versions of a table, as changes of items."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Protocol
from uuid import uuid4

from leafbeam.catalog.definitions import quoted
from leafbeam.errors import DataError, FeedError, short_repr
from leafbeam.extras import optional_imports
from leafbeam.feeds.batch import Batch, ItemChange, SourceColumns, Start, check_max_changes
from leafbeam.feeds.position_file import invalid_position, load_position, save_position
from leafbeam.json_reader import Json
from leafbeam.tables.as_json import rows_of

with optional_imports("leafbeam.feeds.TableFeed", "catalog"):
    import duckdb
    import pyarrow as pa

_KINDS: Mapping[str, UnionType | type | tuple[type, ...]] = {  # of a position's fields
    **dict.fromkeys(("version", "to", "until"), int | None),
    "table_id": str,
    "columns": (list, type(None)),
    "whole": bool,
    "row": int,
    "key": str | None,
}


class VersionedTable(Protocol):
    """A table that can be read as it was at each of its versions. `newest` and `rows` raise FeedError.

    `name` is the table's name in messages; `table_id` is the same for all versions of one table.
    """

    @property
    def name(self) -> str: ...

    @property
    def table_id(self) -> str: ...

    def newest(self) -> int | None:
        """Return the newest version; None for a table without one."""

    def rows(self, version: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of a version.

        Args:
            version: The version.
            columns: The columns; None takes all.
        """

    def close(self) -> None:
        """Close what the table keeps open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A position in a followed table.

    All changes up to `version` are made (None: the table is new), and the first `row` of those from there to the version `to`.
    key, until: of the batch under way, changes `row` to before `until`. columns: those that were taken. whole: whether they
    were others before, so that every row of `to` is put.
    """

    table_id: str
    columns: list[str] | None
    whole: bool = False
    version: int | None = None
    to: int | None = None
    row: int = 0
    key: str | None = None
    until: int | None = None

    def save(self, path: Path) -> None:
        """Write it durably. Raises FeedError."""
        save_position(path, asdict(self))

    @classmethod
    def of(cls, content: Json, where: str) -> "Position":
        """Return what `asdict` made, read from JSON. where: for messages. Raises FeedError."""
        try:
            for name, value in content.items():
                if not isinstance(value, _KINDS[name]):
                    raise TypeError(f"{name} is {short_repr(value)}")
            position = cls(**content)
            if not all(type(name) is str for name in position.columns or ()):
                raise TypeError("columns are not names")
            if not 0 <= position.row <= (position.row if position.until is None else position.until):
                raise ValueError("its numbers contradict each other")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise invalid_position(where, error) from error
        return position


class TableFeed:
    """The rows of a table, then what each newer version changes: new and changed rows are put, missing rows are deleted.

    Each comparison reads the columns of both versions into memory.

    Args:
        table: The table.
        position: A JSON file that says how far the catalog has followed the table; or the position of the last batch that was
            made, where the catalog keeps it, empty at first.
        columns: The columns that are taken.
        start: Where to begin without that file: with all rows of the table, or with the changes from now on.
        max_changes: The largest number of changes of a batch.

    Raises:
        FeedError: If the table or the position cannot be read.
    """

    def __init__(
        self,
        table: VersionedTable,
        position: Path | Mapping[str, object],
        *,
        columns: SourceColumns | None = None,
        start: Start = "beginning",
        max_changes: int = 1000,
    ) -> None:
        check_max_changes(max_changes)
        self._table, self._columns, self._max_changes = table, columns or SourceColumns(), max_changes
        self._path = position if isinstance(position, Path) else None
        self.name, self._is_at_end = table.name, False
        self._looked_at: float | None = None
        self._changes: _Differences | None = None
        known, where = load_position(position, table.name)
        current = None if known is None else Position.of(known, where)
        if current is None:
            version = None if start == "beginning" else table.newest()
            current = Position(table_id=table.table_id, columns=self._columns.all_names, version=version)
            self._save(current)
        elif current.table_id != table.table_id:
            raise FeedError(
                f"{where} is the position of another table, not of {table.name}: give each table its own position file"
            )
        elif current.columns != self._columns.all_names:  # the numbers of changes are others too
            current = replace(current, columns=self._columns.all_names, whole=True, row=0, key=None, until=None)
        self._position = current

    @property
    def position(self) -> dict[str, object]:
        """Return how far the table is followed."""
        return asdict(replace(self._position, key=None, until=None))

    @property
    def complete_until(self) -> float | None:
        """Return the time of the last look at which nothing was missing (see CatalogFeed)."""
        return self._looked_at

    @property
    def is_at_end(self) -> bool:
        """Return whether the last `read` found no newer version."""
        return self._is_at_end

    def read(self, wait_s: float) -> Batch | None:
        """Return the next batch (see Feed)."""
        if self._is_at_end:
            time.sleep(wait_s)
        if self._changes is None:
            position, now = self._position, time.time()
            to = self._table.newest() if position.to is None else position.to
            self._is_at_end = to is None or (to == position.version and not position.whole)
            if to is None or self._is_at_end:
                self._looked_at = now
                return None
            self._changes = self._compare(to)
            self._position = replace(position, to=to)
        position, changes = self._position, self._changes
        until = position.until
        if until is None:
            until = min(position.row + self._max_changes, len(changes))
        batch = self._batch(changes, position.row, until, position.key or uuid4().hex)
        self._save(replace(position, key=batch.key, until=until))
        return batch

    def commit(self, batch: Batch) -> None:
        """Record that a batch is done (see Feed)."""
        after = self._after(batch.end["row"])
        self._save(after)
        if after.to is None:
            self._changes = None

    def close(self) -> None:
        """Close the table."""
        self._table.close()

    def _after(self, row: int) -> Position:
        """Return the position once the changes before this one are made."""
        position = self._position
        if self._changes is None or row >= len(self._changes):
            return Position(table_id=position.table_id, columns=position.columns, version=position.to)
        return replace(position, row=row, key=None, until=None)

    def _save(self, position: Position) -> None:
        if self._path is not None:
            position.save(self._path)
        self._position = position

    def _compare(self, to: int) -> "_Differences":
        names, version, item_id = self._columns.all_names, self._position.version, self._columns.item_id
        after = self._table.rows(to, names)
        before = None if version is None else self._table.rows(version, [item_id] if self._position.whole else names)
        try:
            return _Differences.between(before, after, item_id)
        except (duckdb.Error, pa.ArrowException, DataError) as error:
            raise FeedError(f"{self.name}, version {to}: {error}") from error

    def _batch(self, changes: "_Differences", begin: int, until: int, key: str) -> Batch:
        made: list[ItemChange] = []
        bad: dict[str, str] = {}
        for number, (row, problem) in zip(itertools.count(begin), changes.rows(begin, until)):
            where = f"version {self._position.to}, {self._columns.item_id} {short_repr(row.get(self._columns.item_id))}"
            try:
                if problem:
                    raise DataError(problem)
                if number < len(changes.put):
                    made.append(ItemChange(operation="put", row=self._columns.row(row), place=where))
                else:
                    made.append(ItemChange(operation="delete", row={"item_id": self._columns.id_of(row)}, place=where))
            except DataError as error:
                bad[where] = str(error)
        return Batch(changes=tuple(made), bad=bad, key=key, end={"row": until}, position=asdict(self._after(until)))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Differences:
    """Rows to put, then ids of rows to delete, each in the order of their ids, so that a number is always the same change."""

    put: pa.Table
    delete: pa.Table

    def __len__(self) -> int:
        return len(self.put) + len(self.delete)

    def rows(self, begin: int, until: int) -> list[tuple[dict[str, object], str]]:
        """Return changes `begin` up to `until` (excluded) as JSON values, each with its problem, or ""."""
        begin, until, first = min(begin, len(self)), min(until, len(self)), len(self.put)
        put = self.put.slice(min(begin, first), max(0, min(until, first) - begin))
        delete = self.delete.slice(max(begin, first) - first, max(0, until - max(begin, first)))
        return _rows_of(put) + _rows_of(delete)

    @classmethod
    def between(cls, before: pa.Table | None, after: pa.Table, item_id: str) -> "_Differences":
        """Return what makes `before` (None: nothing) to `after`.

        Raises DataError for ids that are missing or twice, duckdb.Error.
        """
        for table in (after,) if before is None else (before, after):
            if item_id not in table.schema.names:
                raise DataError(f"it has no column {item_id!r}; it has: {', '.join(table.schema.names) or 'none'}")
        name = quoted(item_id)
        with duckdb.connect() as connection:
            connection.register("after_rows", after)
            twice = connection.sql(
                f"SELECT {name} FROM after_rows WHERE {name} IS NOT NULL GROUP BY {name} HAVING count(*) > 1 LIMIT 1"
            ).fetchall()
            if twice:
                raise DataError(f"two rows have the {item_id} {short_repr(twice[0][0])}: expected one row an item")
            put, delete = "SELECT * FROM after_rows", f"SELECT {name} FROM after_rows LIMIT 0"
            if before is not None:
                connection.register("before_rows", before)
                delete = f"SELECT {name} FROM before_rows EXCEPT SELECT {name} FROM after_rows ORDER BY {name}"
                if before.schema.equals(after.schema):  # with other columns, every row is another
                    put += " EXCEPT SELECT * FROM before_rows"
            return cls(
                put=connection.sql(f"{put} ORDER BY {name}").to_arrow_table(),
                delete=connection.sql(delete).to_arrow_table(),
            )


def _rows_of(table: pa.Table) -> list[tuple[dict[str, object], str]]:
    """Return each row of a table as JSON values, with a message if JSON cannot hold it exactly, else ""."""
    try:
        return [(row, "") for row in rows_of(table)]
    except (pa.ArrowException, OverflowError) as error:  # such as a time with nanoseconds, or beyond the year 9999
        if len(table) == 1:
            return [(rows_of(table, exact=False)[0], f"a value cannot be read exactly: {str(error)[:200]}")]
    return [row for number in range(len(table)) for row in _rows_of(table.slice(number, 1))]
