"""Read and write sessions on the table of items: all SQL of the catalog.

Shapes: M items of the table, R row numbers of DuckDB (all are below R; some may have no row), n items of one call.
"""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# Evaluated annotations would keep types of DuckDB alive at the exit of Python, where its bindings report them as leaked.
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.catalog.definitions import LISTED, Definition, cut, quoted, reason_of
from leafbeam.catalog.time_limit import TimeLimit
from leafbeam.errors import AttributesError, DataError, ItemIdError, RuleError, counted
from leafbeam.index.items import ItemIds, decode_ids, ids_from_arrow
from leafbeam.json_reader import Json

# DuckDB compares a TIMESTAMP column with now(), which has a time zone, by converting each value: 500 ns a row, against 5 ns if
# now() is a TIMESTAMP of UTC too. It is replaced by one, unless an expression matches this one: it may see the difference.
_NOW_FUNCTIONS = ("now", "get_current_timestamp")
_NAMES_NOW = re.compile("now|current", re.IGNORECASE)
_MAY_SEE_TIME_ZONES = re.compile("zone|tz|varchar|char|text|string|strf|typeof", re.IGNORECASE)

# How many properties of the table a copy by CREATE TABLE AS would lose.
_NOT_COPIED = """
    SELECT (SELECT count(*) FROM duckdb_constraints() WHERE table_name = 'items' AND schema_name = 'main')
        + (SELECT count(*) FROM duckdb_indexes() WHERE table_name = 'items' AND schema_name = 'main')
        + (SELECT count(*) FROM duckdb_tables() WHERE table_name = 'items' AND schema_name = 'main' AND comment IS NOT NULL)
        + (SELECT count(*) FROM duckdb_columns() WHERE table_name = 'items' AND schema_name = 'main'
            AND (column_default IS NOT NULL OR comment IS NOT NULL))
"""

_CHUNK = 1 << 24  # rows whose values are in memory at a time
_IDS = 1 << 22  # rows whose ids are

# A plan of these operators returns rows in the order of their numbers.
_SCAN = ("PROJECTION", "SEQ_SCAN")


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemValues:
    """The values of definitions for n items, (n,) by name; empty ones for a definition that failed. Under LISTED: whether the
    item has a row.

    Args:
        errors: The error of each definition that could not be evaluated.
        rows_n: The number of each item's row, -1 if it has none.
    """

    by_name: dict[str, NDArray[np.generic]]
    errors: dict[str, RuleError]
    rows_n: NDArray[np.int64]

    @classmethod
    def empty(cls, definitions: Sequence[Definition], rows_n: NDArray[np.int64]) -> ItemValues:
        """Return empty values for the items with these rows."""
        empty = {definition.name: definition.no_values(len(rows_n)) for definition in definitions}
        return cls(by_name={LISTED: rows_n >= 0, **empty}, errors={}, rows_n=rows_n)


class RowValues(NamedTuple):
    """The values of a definition by row number of a table.

    Args:
        reads_other_rows: Whether the value for a row depends on other rows, as with a subquery over the items.
    """

    values_R: NDArray[np.generic]
    reads_other_rows: bool


class ReadSession:
    """One consistent view of the table, from `ItemsTable.reading`.

    Expressions come from configuration and are the only text that becomes SQL. Times without a time zone are UTC.

    Args:
        limit: The time limit of each evaluation.
        begin: A function that starts a transaction on a connection whose table may change meanwhile, and returns its
            `change_counter`. None if no other thread can change the table.
        change_counter: The number of changes that this session sees; None if it is unknown.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        *,
        limit: TimeLimit,
        begin: Callable[[duckdb.DuckDBPyConnection], int] | None = None,
    ) -> None:
        self.name = name
        self.connection = connection
        self._limit = limit
        self._begin = begin
        self._now_is_utc: bool | None = False
        self.change_counter = None if begin is None else begin(connection)

    def check(self) -> None:
        """Raise DataError unless every row has a unique id. Cost: one pass over the ids, 0.2 µs each."""
        check_table(self.connection, self.name)

    def fingerprint(self, below: int | None = None) -> tuple[int, int, int]:
        """Return (rows, R, a hash of all pairs of row number and id), of row numbers below `below`. Cost: 3 ns a row."""
        where = "" if below is None else f"WHERE rowid < {below}"
        # DuckDB's hash(a, b) is hash(a) xor hash(b), so over all rows it would not show which id belongs to which row.
        pair = "hash(xor(hash(rowid), hash(hash(item_id))))"
        numbers = self.connection.execute(
            f"SELECT count(*), coalesce(max(rowid) + 1, 0), coalesce(bit_xor({pair}), 0) FROM items {where}"
        ).fetchall()[0]
        return int(numbers[0]), int(numbers[1]), int(numbers[2])

    def ids(self, begin: int = 0) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return (rows_n, item_ids_n): the rows with numbers from `begin` on, ascending. Raises DataError for other ids."""
        return self._rows_and_ids(
            self.connection.sql(f"SELECT rowid, item_id FROM items WHERE rowid >= {begin}").to_arrow_table()
        )

    def _rows_and_ids(self, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        try:
            return _int64(table["rowid"]), ids_from_arrow(table["item_id"])
        except ItemIdError as error:
            raise DataError(
                f"the column item_id of {self.name} has to hold whole numbers or text, and those have to fit 64-bit whole "
                f"numbers: {error}"
            ) from error

    def id_batches(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.generic]]]:
        """Yield what `ids` returns in batches of some million rows. No other statement may run before the last one."""
        reader = self.connection.sql("SELECT rowid, item_id FROM items").to_arrow_reader(_IDS)
        for batch in reader:
            yield self._rows_and_ids(pa.Table.from_batches([batch]))

    def rows_of(self, ids_n: NDArray[np.generic]) -> NDArray[np.int64]:
        """Return the row number of each id, -1 if the table has none. Cost: one pass over the ids, 5 ns each."""
        rows = np.full(len(ids_n), -1, np.int64)
        if not len(ids_n):
            return rows
        requested = pa.table({"i": np.arange(len(ids_n)), "item_id": pa.array(decode_ids(ids_n))})
        self.connection.register("requested", requested)
        columns = self.connection.execute(
            "SELECT requested.i, items.rowid FROM items JOIN requested ON items.item_id = requested.item_id"
        ).fetchnumpy()
        rows[columns["i"]] = columns["rowid"]
        return rows

    def evaluate(self, definition: Definition, num_rows: int, end: int) -> RowValues:
        """Evaluate a definition for each row number below `end`. Missing rows, and rows for which it is NULL, have the empty
        value.

        `num_rows` is the number of rows below `end`. Memory beside the values: that of some million rows, unless the
        expression reads other rows. Cost: 1.5 ns a row if a predicate reads only the row itself and
        no row was ever deleted, several times that otherwise. Raises RuleError, also at the time limit.
        """
        try:
            with self._limit.enforce(self.connection):
                return self._evaluate(definition, num_rows, end)
        except duckdb.IOException:
            raise
        except duckdb.Error as error:
            raise self._rule_error(definition, error) from error

    def evaluate_items(self, definitions: Sequence[Definition], ids_n: NDArray[np.generic], begin: int = 0) -> ItemValues:
        """Evaluate definitions for the items with these ids; an item without a row has empty values.

        `begin` is a lower bound of their row numbers. Cost: milliseconds, and one pass over the ids from there, 20 ns
        each.
        """
        if not len(ids_n):
            return ItemValues.empty(definitions, np.empty(0, np.int64))
        try:
            with self._limit.enforce(self.connection):
                return self._evaluate_together(definitions, ids_n, begin)
        except duckdb.IOException:
            raise
        except duckdb.Error as error:
            if not definitions:
                raise
            if len(definitions) == 1:
                errors = {definitions[0].name: self._rule_error(definitions[0], error)}
                values = ItemValues.empty(definitions, self.evaluate_items([], ids_n, begin).rows_n)
                return replace(values, errors=errors)
            self._restart()
            each = [self.evaluate_items([definition], ids_n, begin) for definition in definitions]
            return ItemValues(
                by_name={name: values_n for result in each for name, values_n in result.by_name.items()},
                errors={name: error for result in each for name, error in result.errors.items()},
                rows_n=each[-1].rows_n,
            )

    def schema(self) -> pa.Schema:
        """Return the columns of the table and their types in Arrow."""
        _columns(self.connection, self.name)
        return self.connection.sql("SELECT * FROM items LIMIT 0").to_arrow_table().schema

    def save(self, path: Path) -> None:
        """Write the table into a Parquet file."""
        self.connection.sql("SELECT * FROM items").write_parquet(str(path))

    def lookup(self, item_ids: ItemIds, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of these ids, in their order: `item_id` first, then the attributes; nulls for an unknown id."""
        known = _columns(self.connection, self.name)
        selected = [column for column in known if column != "item_id"] if columns is None else list(columns)
        _check_known(selected, known, self.name)
        values = item_ids.tolist() if isinstance(item_ids, np.ndarray) else list(item_ids)
        attributes = "".join(f", items.{quoted(column)}" for column in selected)
        try:
            requested = pa.table({"i": pa.array(range(len(values)), pa.int64()), "item_id": pa.array(values)})
            self.connection.register("requested", requested)
            return self.connection.sql(
                f"SELECT requested.item_id{attributes} FROM requested LEFT JOIN items "
                "ON items.item_id = requested.item_id ORDER BY requested.i"
            ).to_arrow_table()
        except (duckdb.DataError, duckdb.ProgrammingError, pa.ArrowException, OverflowError) as error:
            raise ItemIdError(f"these ids cannot be looked up in {self.name}: {error}") from error

    def search(self, words: Sequence[str], column: str | None, limit: int) -> pa.Table:
        """Return rows whose column contains every word, in upper or lower case, or whose id is the words; the shortest
        texts first.

        If `column` is None, only ids are searched. Without words, the result is the first rows of the table. Cost: one
        pass over the column, 20 ns a row.
        """
        _check_known([] if column is None else [column], _columns(self.connection, self.name), self.name)
        text = "NULL" if column is None else f"lower(CAST({quoted(column)} AS VARCHAR))"
        has_words = " AND ".join([f"contains({text}, lower(?))"] * len(words)) if column is not None and words else "FALSE"
        values = [] if column is None else list(words)
        order = f"ORDER BY CAST(item_id AS VARCHAR) != ?, length({text}), item_id" if words else ""
        where = f"WHERE ({has_words}) OR CAST(item_id AS VARCHAR) = ? {order}" if words else ""
        values += [" ".join(words)] * 2 if words else []
        return self.connection.sql(f"SELECT * FROM items {where} LIMIT {int(limit)}", params=values).to_arrow_table()

    def _evaluate(self, definition: Definition, num_rows: int, end: int) -> RowValues:
        expression = _expression(definition.sql)
        self._set_now([definition])
        # Refuses aggregates and windows, which are valid in a column but not here.
        reads_other_rows = self._num_scans(f"SELECT rowid FROM items WHERE ({expression}) IS NOT NULL") > 1
        selected = self.connection.sql(f"SELECT ({expression}) AS value FROM items LIMIT 0")
        if selected.columns != ["value"]:  # COLUMNS(...) stands for several
            what = counted(len(selected.columns), "column")
            raise RuleError(f"{definition} is {what}: expected one condition or number: {cut(definition.sql)}")
        definition.check_type(str(selected.types[0]))
        query = f"SELECT {definition.column(expression)} AS value FROM items"
        is_scan = num_rows == end and self._is_scan(query)
        values_R = definition.no_values(end)
        step = max(1, end if reads_other_rows else _CHUNK)  # what is read of other rows is read once
        for begin in range(0, end, step):
            chunk_n = values_R[begin : begin + step]
            within = f"rowid >= {begin} AND rowid < {begin + len(chunk_n)}"
            if is_scan:
                part = query if len(chunk_n) == end else f"{query} WHERE {within}"
                chunk_n[:] = definition.values(self.connection.sql(part).to_arrow_table()["value"])
            else:
                table = self.connection.sql(definition.rows(expression, within)).to_arrow_table()
                chunk_n[_int64(table["rowid"]) - begin] = definition.values(table["value"])
        if len(unusable := definition.unusable(values_R)):
            where = f"WHERE rowid = {unusable[0]}"
            item_id, value = self.connection.execute(f"SELECT item_id, ({expression}) FROM items {where}").fetchall()[0]
            raise _unusable(definition, item_id, value)
        return RowValues(values_R, reads_other_rows)

    def _evaluate_together(self, definitions: Sequence[Definition], ids_n: NDArray[np.generic], begin: int) -> ItemValues:
        columns = "".join(
            f", {definition.column(_expression(definition.sql))} AS c{number}" for number, definition in enumerate(definitions)
        )
        self._set_now(definitions)
        keys = decode_ids(ids_n)
        self.connection.register("requested", pa.table({"item_id": pa.array(keys)}))
        where = f"rowid >= {begin} AND item_id IN (SELECT item_id FROM requested)"
        # A relation would be planned twice.
        query = f"SELECT rowid AS row, item_id AS id{columns} FROM items WHERE {where}"
        matched = self.connection.execute(query).fetchnumpy()
        position = {key: i for i, key in enumerate(keys.tolist())}
        ids = matched["id"].tolist()
        at = [position[key] for key in ids]
        values = ItemValues.empty(definitions, np.full(len(ids_n), -1, np.int64))
        values.rows_n[at] = matched["row"]
        values.by_name[LISTED][at] = True
        for number, definition in enumerate(definitions):
            column = _chunked(matched[f"c{number}"])
            try:
                values_n = definition.values(column)
                if len(unusable := definition.unusable(values_n)):
                    row = int(unusable[0])
                    values.errors[definition.name] = _unusable(definition, ids[row], column[row].as_py())
                    values_n[unusable] = definition.empty
                values.by_name[definition.name][at] = values_n
            except RuleError as error:
                values.errors[definition.name] = error
        return values

    def _num_scans(self, query: str) -> int:
        """Return how often a query reads the table of items, also through views and macros, by its plan before optimisation."""
        nodes, count = list(self._plan(query, "logical_plan")), 0
        while nodes:
            node = nodes.pop()
            count += str(node.get("extra_info", {}).get("Table", "")).rsplit(".", 1)[-1].strip('"') == "items"
            nodes += node["children"]
        return count

    def _is_scan(self, query: str) -> bool:
        node, names = self._plan(query, "physical_plan")[0], []
        while True:
            names.append(node["name"].strip())
            if len(node["children"]) != 1:
                return tuple(names) in (_SCAN, _SCAN[1:]) and not node["children"]
            node = node["children"][0]

    def _plan(self, query: str, kind: str) -> list[Json]:
        """Return the nodes of a query's plan. The setting is not reset, because a transaction takes no statement after
        an error.
        """
        self.connection.execute("SET explain_output = 'all'")
        return json.loads(dict(self.connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall())[kind])

    def _rule_error(self, definition: Definition, error: duckdb.Error) -> RuleError:
        self._restart()
        if isinstance(error, duckdb.InterruptException):
            if self._limit.stopped:
                raise self._limit.closed_error() from error
            return RuleError(
                f"{definition} took longer than {self._limit.seconds:g} s and was stopped: simplify it, or raise the "
                f"limit (rule_timeout_s): {cut(definition.sql)}",
                by_data=True,
            )
        message = f"{definition} cannot be evaluated: {cut(definition.sql)}\nDuckDB says: {reason_of(error)}"
        return RuleError(message, by_data=isinstance(error, duckdb.DataError))

    def _set_now(self, definitions: Sequence[Definition]) -> None:
        """Make now() a TIMESTAMP of UTC, unless no expression names it or one of them could tell the difference."""
        if not any(_NAMES_NOW.search(definition.sql) for definition in definitions):
            return
        as_utc = not any(_MAY_SEE_TIME_ZONES.search(definition.sql) for definition in definitions)
        if as_utc == self._now_is_utc:
            return
        for name in _NOW_FUNCTIONS:
            if as_utc:
                self.connection.execute(f"CREATE OR REPLACE TEMP MACRO {name}() AS transaction_timestamp()::TIMESTAMP")
            else:
                self.connection.execute(f"DROP MACRO IF EXISTS temp.{name}")
        self._now_is_utc = as_utc

    def _restart(self) -> None:
        """Begin the transaction again, because an error has ended it."""
        self._now_is_utc = None
        if self._begin is not None:
            self.connection.rollback()
            self.change_counter = self._begin(self.connection)


class WriteSession(ReadSession):
    """One transaction on the table; without `connection.commit()` nothing changes.

    Args:
        change_counter: The number of changes of the table, this one included.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, name: str, *, limit: TimeLimit, change_counter: int | None
    ) -> None:
        super().__init__(connection, name, limit=limit)
        self.change_counter = change_counter

    def end(self) -> int:
        """Return a lower bound of the numbers of new rows. Cost: one pass over the row numbers, half a nanosecond each."""
        return int(self.connection.execute("SELECT coalesce(max(rowid) + 1, 0) FROM items").fetchall()[0][0])

    def close_gaps(self, spare: int) -> bool:
        """Write the table anew, in the same order, if most row numbers belong to removed rows. DuckDB never reuses a
        number.

        `spare` is the number of removed rows that are tolerated. Returns whether the table was written; the new row
        numbers hold from the commit on.

        A table with constraints, indexes, defaults or comments, which a copy would lose, stays as it is. Cost: a pass
        over the row numbers, and a copy of the table each time more rows than it has were removed, or changed in a list
        column.
        """
        num_rows = self.connection.execute("SELECT count(*) FROM items").fetchall()[0][0]
        if self.end() <= 2 * num_rows + spare or self.connection.execute(_NOT_COPIED).fetchall()[0][0]:
            return False
        self.connection.execute('CREATE TABLE "leafbeam: without gaps" AS SELECT * FROM items ORDER BY rowid')
        self.connection.execute("DROP TABLE items")
        self.connection.execute('ALTER TABLE "leafbeam: without gaps" RENAME TO items')
        return True

    def put(self, attributes: pa.Table, rows_n: NDArray[np.int64]) -> None:
        """Write attributes into the rows with these numbers, or into new rows (-1) behind all others. Raises AttributesError.

        Cost: milliseconds for new rows (NULL where `attributes` has no column); one scan of the ids, 20 ns each, for others.
        """
        _check_known(attributes.column_names, _columns(self.connection, self.name), self.name)
        check_columns(attributes.column_names, "the table of attributes")
        columns = [column for column in attributes.column_names if column != "item_id"]
        try:
            existing = attributes.filter(pa.array(rows_n >= 0))
            if existing.num_rows and columns:
                self.connection.register("changed", existing)
                settings = ", ".join(f"{quoted(column)} = changed.{quoted(column)}" for column in columns)
                self.connection.execute(f"UPDATE items SET {settings} FROM changed WHERE items.item_id = changed.item_id")
            new = attributes.filter(pa.array(rows_n < 0))
            if new.num_rows:
                self.connection.register("added", new)
                names = ", ".join(quoted(column) for column in attributes.column_names)
                self.connection.execute(f"INSERT INTO items ({names}) SELECT {names} FROM added")
        except (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, pa.ArrowException) as error:
            raise AttributesError(f"the attributes do not fit the table of {self.name}: {error}") from error

    def remove(self, rows_n: NDArray[np.int64]) -> None:
        """Delete the rows with these numbers. Cost: one scan of the row numbers."""
        self.connection.register("removed", pa.table({"number": rows_n}))
        self.connection.execute("DELETE FROM items WHERE rowid IN (SELECT number FROM removed)")
        self.connection.unregister("removed")


def check_table(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Raise DataError unless there is a table `items` in which every row has a unique `item_id`."""
    _columns(connection, name)
    kinds = connection.execute(
        "SELECT table_type FROM information_schema.tables WHERE table_name = 'items' AND table_schema = 'main'"
    ).fetchall()
    if kinds != [("BASE TABLE",)]:
        kind = kinds[0][0].lower() if kinds else "something of another schema"
        raise DataError(f"'items' in {name} has to be a table, not a {kind}: CREATE TABLE items AS ...")
    bad = connection.execute(
        "SELECT item_id, count(*) FROM items GROUP BY item_id HAVING count(*) > 1 OR item_id IS NULL ORDER BY 2 DESC LIMIT 4"
    ).fetchall()
    for item_id, count in bad:
        if item_id is None:
            rows = f"{counted(count, 'row')} without item_id"
            raise DataError(f"the table 'items' of {name} has {rows}: every row needs one")
    if bad:
        repeated = ", ".join(f"{item_id!r} ({counted(count, 'row')})" for item_id, count in bad[:3])
        more = ", and more" if len(bad) > 3 else ""
        raise DataError(f"each item_id may occur once in the table 'items' of {name}, but these occur again: {repeated}{more}")


def check_columns(columns: Sequence[str], name: str) -> None:
    """Raise DataError if no column is `item_id`, or two names are equal but for case (DuckDB ignores case)."""
    if "item_id" not in columns:
        near = [column for column in columns if re.sub(r"[\s_-]", "", column).lower() in ("itemid", "id", "item")]
        hint = f": rename the column {near[0]!r} to 'item_id'" if near else ": call the column of the items' ids item_id"
        raise DataError(f"{name} has no column 'item_id'; it has: {', '.join(columns) or 'none at all'}{hint}")
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            raise DataError(f"{name} has two columns {column!r} (upper and lower case ignored): rename one of them")
        seen.add(column.lower())


def _check_known(columns: Sequence[str], known: Sequence[str], name: str) -> None:
    unknown = [column for column in columns if column not in known]
    if unknown:
        raise DataError(f"{name} has no column {unknown[0]!r}; it has: {', '.join(known)}")


def _columns(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    try:
        columns = connection.sql("SELECT * FROM items LIMIT 0").columns
    except duckdb.CatalogException as error:
        message = f"{name} has no table 'items': make it with Catalog.create, or create the table in DuckDB"
        raise DataError(message) from error
    check_columns(columns, f"the table 'items' of {name}")
    return columns


@lru_cache(maxsize=1024)
def _expression(sql: str) -> str:
    """Return the SQL of a definition if it is a single expression; otherwise duckdb raises (several statements, unbalanced
    parentheses).
    """
    duckdb.SQLExpression(sql)
    return f"\n{sql}\n"  # on a line of its own, so that a comment at its end does not hide the parenthesis behind it


def _unusable(definition: Definition, item_id: object, value: object) -> RuleError:
    message = f"{definition} is {value!r} for item {item_id!r}: expected a finite number, or NULL for 0: {cut(definition.sql)}"
    return RuleError(message, by_data=True)


def _chunked(column: Any) -> pa.ChunkedArray:
    """Return a column of `fetchnumpy`, masked where it is NULL, in Arrow."""
    is_text = column.dtype.kind == "O"
    return pa.chunked_array([pa.array(column, pa.string() if is_text else None)])


def _int64(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)
