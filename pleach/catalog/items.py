"""The table of items in its DuckDB file: created at once, read for moments.

Shapes: M items of the table.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pleach.errors import DataError, ItemIdError, RuleError

Ids = NDArray[np.int64] | NDArray[np.str_]


class ItemFile:
    """A DuckDB file with a table `items`: `item_id` (whole numbers or text, unique) and any attributes.

    Think of it as a file on a shelf: it is taken down, read and put back. DuckDB lets one process write a file or many
    read it, never both, so a reader that keeps its connection would lock every writer out. Here a connection lives only
    while something is read; between reads any other process may open the file and change prices or stock. When a writer
    has it, a read waits up to `wait_s` seconds and then raises DataError.
    """

    def __init__(self, path: str | os.PathLike[str], *, wait_s: float = 5.0) -> None:
        self.path = Path(path)
        self.wait_s = wait_s

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], items: pa.Table | str | os.PathLike[str], *, overwrite: bool = False
    ) -> "ItemFile":
        """Write a new file from an Arrow table, or from a `.parquet` or `.csv` file, whose columns include `item_id`.

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
                _fill(connection, items)
                _check_ids(connection, str(target))
            # A log left by a writer that died belongs to the file that goes away now.
            _remove(target.with_name(target.name + ".wal"))
            os.replace(part, target)
        except (duckdb.Error, OSError) as error:
            raise DataError(f"cannot write {target}: {error}") from error
        finally:
            _remove(part)
        return cls(target)

    @contextmanager
    def reading(self) -> Generator["Reading"]:
        """Open the file for one consistent look at it. Raises DataError where that is not possible."""
        connection = self._connect()
        try:
            yield Reading(connection, self.path)
        except duckdb.Error as error:
            raise DataError(f"cannot read {self.path}: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        give_up = time.monotonic() + self.wait_s
        while True:
            try:
                return duckdb.connect(str(self.path), read_only=True)
            except duckdb.Error as error:
                locked = "could not set lock" in str(error).lower()
                if not locked or time.monotonic() >= give_up:
                    hint = f" (waited {self.wait_s:g} s for another process to close it)" if locked else ""
                    raise DataError(f"cannot open {self.path} as a DuckDB file{hint}: {error}") from error
            time.sleep(0.05)


class Reading:
    """One open, read-only look at an item file. It comes from `ItemFile.reading` and ends with it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path) -> None:
        self._connection = connection
        _check_ids(connection, str(path))
        self._path = path

    def ids(self) -> tuple[NDArray[np.int64], Ids]:
        """(rows_M, item_ids_M): DuckDB's own row numbers, which `select` speaks of, and the id in each row."""
        table = self._connection.sql("SELECT rowid, item_id FROM items").to_arrow_table()
        return _numpy(table["rowid"], pa.int64()), _id_array(table["item_id"], str(self._path))

    def select(self, name: str, predicate: str) -> NDArray[np.int64]:
        """Row numbers, in no particular order, where the rule's predicate is true (not false, not NULL).

        The predicate is configuration written by the operator, and the only text that ever becomes SQL.
        Raises RuleError with DuckDB's message.
        """
        # On a line of its own, so that a comment at its end cannot swallow the bracket.
        query = f"SELECT rowid FROM items WHERE (\n{predicate}\n)"
        try:
            if len(self._connection.extract_statements(query)) != 1:
                raise RuleError(f"rule {name!r} has to be one predicate, but holds several statements: {predicate}")
            rows = self._connection.execute(query).fetchnumpy()["rowid"]
        except duckdb.IOException:
            raise
        except duckdb.Error as error:
            raise RuleError(f"rule {name!r} cannot be evaluated: {predicate}\nDuckDB says: {error}") from error
        return np.asarray(rows, np.int64)

    def lookup(self, item_ids: Sequence[Any] | Ids, columns: Sequence[str] | None) -> pa.Table:
        """Rows of the given ids in the given order: `item_id` first, then the attributes; nulls for an unknown id."""
        known = self._connection.sql("SELECT * FROM items LIMIT 0").columns
        wanted = [column for column in known if column != "item_id"] if columns is None else list(columns)
        missing = [column for column in wanted if column not in known]
        if missing:
            raise DataError(f"{self._path} has no column {missing[0]!r}; it has: {', '.join(known)}")
        values = item_ids.tolist() if isinstance(item_ids, np.ndarray) else list(item_ids)
        attributes = "".join(f', items."{column.replace(chr(34), chr(34) * 2)}"' for column in wanted)
        try:
            wanted_ids = pa.table({"place": pa.array(range(len(values)), pa.int64()), "item_id": pa.array(values)})
            self._connection.register("wanted", wanted_ids)
            relation = self._connection.sql(
                f"SELECT wanted.item_id{attributes} FROM wanted LEFT JOIN items "
                "ON items.item_id = wanted.item_id ORDER BY wanted.place"
            )
            return relation.to_arrow_table()
        except (duckdb.Error, pa.ArrowException, OverflowError) as error:
            raise ItemIdError(f"these ids cannot be looked up in {self._path}: {error}") from error


def _fill(connection: duckdb.DuckDBPyConnection, items: pa.Table | str | os.PathLike[str]) -> None:
    if isinstance(items, pa.Table):
        _require_item_id(items.column_names, "the table")
        connection.register("source", items)
        connection.execute("CREATE TABLE items AS SELECT * FROM source")
        connection.unregister("source")
        return
    source = Path(items)
    if not source.is_file():
        raise DataError(f"there is no file {source}: expected a .parquet or .csv file of items")
    if source.suffix == ".parquet":
        relation = connection.read_parquet(str(source))
    elif source.suffix == ".csv":
        # First as text: reading 007 as a number would lose the zeros.
        relation = connection.read_csv(str(source), dtype={"item_id": "VARCHAR"})
    else:
        raise DataError(f"{source} has to end in .parquet or .csv")
    _require_item_id(relation.columns, str(source))
    relation.create("items")
    if source.suffix == ".csv":
        whole = connection.execute(
            "SELECT coalesce(bool_and(TRY_CAST(item_id AS BIGINT)::VARCHAR IS NOT DISTINCT FROM item_id), false) FROM items"
        ).fetchone()
        if whole and whole[0]:
            connection.execute("ALTER TABLE items ALTER item_id TYPE BIGINT")


def _check_ids(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """One pass over the ids: the table exists, is a table, and each row has an id of its own."""
    kinds = connection.execute(
        "SELECT table_type FROM information_schema.tables WHERE table_name = 'items' AND table_schema = 'main'"
    ).fetchall()
    if not kinds:
        raise DataError(f"{name} has no table 'items': make it with Catalogue.create, or create the table in DuckDB")
    if kinds[0][0] != "BASE TABLE":
        raise DataError(f"'items' in {name} has to be a table, not a {kinds[0][0].lower()}: CREATE TABLE items AS ...")
    _require_item_id(connection.sql("SELECT * FROM items LIMIT 0").columns, f"the table 'items' of {name}")
    strays = connection.execute(
        "SELECT item_id, count(*) FROM items GROUP BY item_id HAVING count(*) > 1 OR item_id IS NULL ORDER BY 2 DESC LIMIT 4"
    ).fetchall()
    for item_id, count in strays:
        if item_id is None:
            raise DataError(f"{count:,} rows of the table 'items' of {name} have no item_id: every row needs one")
    if strays:
        some = ", ".join(f"{item_id!r} ({count:,} rows)" for item_id, count in strays[:3])
        more = ", and more" if len(strays) > 3 else ""
        raise DataError(f"each item_id may come once in the table 'items' of {name}, but these come again: {some}{more}")


def _require_item_id(columns: Sequence[str], name: str) -> None:
    if "item_id" not in columns:
        raise DataError(f"{name} has no column 'item_id'; it has: {', '.join(columns) or 'none at all'}")


def _id_array(column: pa.ChunkedArray, name: str) -> Ids:
    if pa.types.is_integer(column.type):
        try:
            return _numpy(column, pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(f"the item_ids of {name} have to fit 64-bit whole numbers: {error}") from error
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_numpy(), dtype=np.str_)
    raise DataError(f"the column item_id of {name} has to hold whole numbers or text, not {column.type}")


def _numpy(column: pa.ChunkedArray, kind: pa.DataType) -> NDArray[np.int64]:
    return np.asarray(column.cast(kind).to_numpy(), np.int64)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
