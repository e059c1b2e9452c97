"""One look at the table of items, and one change of it: all SQL of the catalog.

Shapes: M items of the table, R row numbers of DuckDB (all are below R; some may have no row), n items of one call.
"""

# pyarrow and duckdb carry no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.catalog.rule_config import Rule
from leafbeam.catalog.sources import check_columns, quoted
from leafbeam.errors import DataError, ItemIdError, RuleError

__all__ = ["Ids", "ReadSession", "WriteSession", "check_table"]

Ids = NDArray[np.int64] | NDArray[np.str_]

# DuckDB compares a TIMESTAMP column with now(), which has a time zone, by giving each of its values one: 500 ns a row, against
# 5 ns where now() is a TIMESTAMP of UTC too. It can be, unless a predicate may see the difference.
_NOWS = ("now", "get_current_timestamp")
_SEES_ZONES = re.compile("zone|tz|varchar|char|text|string|strf|typeof", re.IGNORECASE)

# In a plain scan, rows come out in the order of their numbers.
_SCAN = ("PROJECTION", "SEQ_SCAN")


class ReadSession:
    """One consistent look at the table. It comes from `ItemStore.reading` and ends with it.

    begin: starts a transaction on a connection whose table may change meanwhile and returns the number of changes that it sees,
    which becomes `stamp`; None where nobody can change anything. Predicates are configuration written by the operator, and the
    only text that ever becomes SQL. Times without a time zone are UTC.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        *,
        begin: Callable[[duckdb.DuckDBPyConnection], int] | None = None,
    ) -> None:
        self.name = name
        self.connection = connection
        self._begin = begin
        self._now_is_plain: bool | None = False
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET autoinstall_known_extensions = false")  # a rule never makes a server download code
        self.stamp = None if begin is None else begin(connection)

    @property
    def columns(self) -> list[str]:
        """Names of the columns, `item_id` among them. Raises DataError where there is no proper table."""
        return _columns(self.connection, self.name)

    def check(self) -> None:
        """Raise DataError unless each row has an id of its own. Cost: one pass over the ids, 0.2 µs each."""
        check_table(self.connection, self.name)

    def extent(self, below: int | None = None) -> tuple[int, int, int]:
        """(rows, R, a hash of which id has which row number) of all rows, or of those with numbers below `below`.

        Cost: one pass over the ids, 3 ns each.
        """
        where = "" if below is None else f"WHERE rowid < {below}"
        # DuckDB's hash(a, b) is one of a and one of b, combined by xor: over all rows it cannot see which id is in which.
        pair = "hash(xor(hash(rowid), hash(hash(item_id))))"
        found = self.connection.execute(
            f"SELECT count(*), coalesce(max(rowid) + 1, 0), coalesce(bit_xor({pair}), 0) FROM items {where}"
        ).fetchall()[0]
        return int(found[0]), int(found[1]), int(found[2])

    def ids(self, begin: int = 0) -> tuple[NDArray[np.int64], Ids]:
        """(rows_n, item_ids_n): the rows with numbers from `begin` on, in their order."""
        table = self.connection.sql(f"SELECT rowid, item_id FROM items WHERE rowid >= {begin}").to_arrow_table()
        return _numpy(table["rowid"], pa.int64()), _id_array(table["item_id"], self.name)

    def rows_of(self, item_ids: Ids) -> NDArray[np.int64]:
        """The row number of each id, -1 where the table has none. Cost: one pass over the ids, 5 ns each."""
        rows = np.full(len(item_ids), -1, np.int64)
        if not len(item_ids):
            return rows
        wanted = pa.table({"place": np.arange(len(item_ids)), "item_id": pa.array(item_ids)})
        self.connection.register("wanted", wanted)
        found = self.connection.sql(
            "SELECT wanted.place, items.rowid FROM items JOIN wanted ON items.item_id = wanted.item_id"
        ).to_arrow_table()
        self.connection.unregister("wanted")
        rows[_numpy(found["place"], pa.int64())] = _numpy(found["rowid"], pa.int64())
        return rows

    def chosen(self, rule: Rule, num_rows: int, end: int) -> NDArray[np.uint8]:
        """1 for each row number below `end` whose row the predicate is true for (not false, not NULL), else 0.

        num_rows: how many rows there are below `end`. Cost: a scan of the rule's columns, 1.5 ns a row, where the predicate
        looks at nothing but the row itself and no row was ever deleted; three times that otherwise. Raises RuleError.
        """
        try:
            predicate = _predicate(rule)
            self._set_now([rule])
            # An aggregate or a window may stand in a column, but not here.
            self.connection.execute(f"EXPLAIN SELECT rowid FROM items WHERE ({predicate})").fetchall()
            if num_rows == end:
                query = f"SELECT coalesce(({predicate})::BOOLEAN, false)::UTINYINT AS chosen FROM items"
                if self._is_scan(query):
                    column = self.connection.sql(query).to_arrow_table()["chosen"]
                    return _bytes(column)[:end]
            rows = self.connection.sql(f"SELECT rowid FROM items WHERE ({predicate})").to_arrow_table()["rowid"]
            chosen_R = np.zeros(end, np.uint8)
            numbers = _numpy(rows, pa.int64())
            chosen_R[numbers[numbers < end]] = 1
            return chosen_R
        except duckdb.IOException:
            raise
        except duckdb.Error as error:
            raise self._rule_error(rule, error) from error

    def chosen_of(self, rules: Sequence[Rule], rows_n: NDArray[np.int64]) -> dict[str, NDArray[np.bool_] | RuleError]:
        """What each rule says of some rows, (n,) each, by their row numbers; or why it cannot say.

        Cost: milliseconds where the rows lie together, such as those that were added last.
        """
        if not rules or not len(rows_n):
            return {rule.name: np.zeros(len(rows_n), np.bool_) for rule in rules}
        try:
            return dict(zip([rule.name for rule in rules], self._chosen_together(rules, rows_n), strict=True))
        except duckdb.IOException:
            raise
        except duckdb.Error as error:
            self._restart()
            if len(rules) == 1:
                return {rules[0].name: self._rule_error(rules[0], error)}
        apart: dict[str, NDArray[np.bool_] | RuleError] = {}
        for rule in rules:
            apart.update(self.chosen_of([rule], rows_n))
        return apart

    def lookup(self, item_ids: Sequence[Any] | Ids, columns: Sequence[str] | None) -> pa.Table:
        """Rows of the given ids in the given order: `item_id` first, then the attributes; nulls for an unknown id."""
        known = self.columns
        wanted = [column for column in known if column != "item_id"] if columns is None else list(columns)
        missing = [column for column in wanted if column not in known]
        if missing:
            raise DataError(f"{self.name} has no column {missing[0]!r}; it has: {', '.join(known)}")
        values = item_ids.tolist() if isinstance(item_ids, np.ndarray) else list(item_ids)
        attributes = "".join(f", items.{quoted(column)}" for column in wanted)
        try:
            wanted_ids = pa.table({"place": pa.array(range(len(values)), pa.int64()), "item_id": pa.array(values)})
            self.connection.register("wanted", wanted_ids)
            relation = self.connection.sql(
                f"SELECT wanted.item_id{attributes} FROM wanted LEFT JOIN items "
                "ON items.item_id = wanted.item_id ORDER BY wanted.place"
            )
            return relation.to_arrow_table()
        except (duckdb.Error, pa.ArrowException, OverflowError) as error:
            raise ItemIdError(f"these ids cannot be looked up in {self.name}: {error}") from error

    def _chosen_together(self, rules: Sequence[Rule], rows_n: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        columns = ", ".join(
            f"coalesce(({_predicate(rule)})::BOOLEAN, false)::UTINYINT AS c{number}" for number, rule in enumerate(rules)
        )
        self._set_now(rules)
        low, high = int(rows_n.min()), int(rows_n.max())
        where = f"rowid >= {low} AND rowid <= {high}"
        if high - low >= len(rows_n):
            self.connection.register("changed_rows", pa.table({"number": rows_n}))
            where += " AND rowid IN (SELECT number FROM changed_rows)"
        table = self.connection.sql(f"SELECT rowid AS number, {columns} FROM items WHERE {where}").to_arrow_table()
        numbers = _numpy(table["number"], pa.int64())
        order = np.argsort(numbers)
        at = order[np.searchsorted(numbers, rows_n, sorter=order)]
        return [_bytes(table[f"c{number}"])[at] == 1 for number in range(len(rules))]

    def _is_scan(self, query: str) -> bool:
        plan = self.connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()[0][1]
        node, names = json.loads(plan)[0], []
        while True:
            names.append(node["name"].strip())
            if len(node["children"]) != 1:
                return tuple(names) in (_SCAN, _SCAN[1:]) and not node["children"]
            node = node["children"][0]

    def _rule_error(self, rule: Rule, error: duckdb.Error) -> RuleError:
        self._restart()
        return RuleError(f"rule {rule.name!r} cannot be evaluated: {rule.where}\nDuckDB says: {error}")

    def _set_now(self, rules: Sequence[Rule]) -> None:
        """Let now() be a TIMESTAMP for these predicates, if none of them can tell."""
        plain = not any(_SEES_ZONES.search(rule.where) for rule in rules)
        if plain == self._now_is_plain:
            return
        for name in _NOWS:
            if plain:
                self.connection.execute(f"CREATE OR REPLACE TEMP MACRO {name}() AS transaction_timestamp()::TIMESTAMP")
            else:
                self.connection.execute(f"DROP MACRO IF EXISTS temp.{name}")
        self._now_is_plain = plain

    def _restart(self) -> None:
        """Look afresh: an error ends a transaction."""
        self._now_is_plain = None
        if self._begin is not None:
            self.connection.rollback()
            self.stamp = self._begin(self.connection)


class WriteSession(ReadSession):
    """One change of the table, which `commit` makes; without it nothing happens. It comes from `ItemStore.writing`.

    stamp_before, stamp: how many changes a held table has before and with this one; None for another.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, *, stamp: int | None) -> None:
        super().__init__(connection, name)
        self.stamp = stamp
        self.stamp_before = None if stamp is None else stamp - 1

    def end(self) -> int:
        """New rows will have this number or a higher one. Cost: one pass over the row numbers, half a nanosecond each."""
        found = self.connection.execute("SELECT coalesce(max(rowid) + 1, 0) FROM items").fetchall()
        return int(found[0][0])

    def commit(self) -> None:
        """Make the change; what is read afterwards sees it."""
        self.connection.commit()

    def put(self, attributes: pa.Table, rows_n: NDArray[np.int64]) -> None:
        """Write attributes: into the rows with these numbers, or into new rows (-1) behind all others.

        attributes: (n,) rows with an `item_id` and columns of the table; new rows have NULL in the others. Cost: milliseconds
        for new rows; one scan of the ids, 20 ns each, where rows are there. Raises DataError.
        """
        known = self.columns
        unknown = [column for column in attributes.column_names if column not in known]
        if unknown:
            raise DataError(f"{self.name} has no column {unknown[0]!r}; it has: {', '.join(known)}")
        check_columns(attributes.column_names, "the table of attributes")
        columns = [column for column in attributes.column_names if column != "item_id"]
        try:
            old = attributes.filter(pa.array(rows_n >= 0))
            if old.num_rows and columns:
                self.connection.register("changed", old)
                settings = ", ".join(f"{quoted(column)} = changed.{quoted(column)}" for column in columns)
                self.connection.execute(f"UPDATE items SET {settings} FROM changed WHERE items.item_id = changed.item_id")
            new = attributes.filter(pa.array(rows_n < 0))
            if new.num_rows:
                self.connection.register("added", new)
                names = ", ".join(quoted(column) for column in attributes.column_names)
                self.connection.execute(f"INSERT INTO items ({names}) SELECT {names} FROM added")
        except (duckdb.Error, pa.ArrowException) as error:
            raise DataError(f"the attributes do not fit the table of {self.name}: {error}") from error

    def drop(self) -> None:
        """Drop the table."""
        self.connection.execute("DROP TABLE items")

    def remove(self, rows_n: NDArray[np.int64]) -> None:
        """Delete the rows with these numbers. Cost: one scan of the row numbers."""
        self.connection.register("removed", pa.table({"number": rows_n}))
        self.connection.execute("DELETE FROM items WHERE rowid IN (SELECT number FROM removed)")
        self.connection.unregister("removed")


def check_table(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Raise DataError unless there is a table `items` in which each row has an `item_id` of its own."""
    _columns(connection, name)
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


def _columns(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    kinds = connection.execute(
        "SELECT table_type FROM information_schema.tables WHERE table_name = 'items' AND table_schema = 'main'"
    ).fetchall()
    if not kinds:
        raise DataError(f"{name} has no table 'items': make it with Catalog.create, or create the table in DuckDB")
    if kinds[0][0] != "BASE TABLE":
        raise DataError(f"'items' in {name} has to be a table, not a {kinds[0][0].lower()}: CREATE TABLE items AS ...")
    columns = connection.sql("SELECT * FROM items LIMIT 0").columns
    check_columns(columns, f"the table 'items' of {name}")
    return columns


def _predicate(rule: Rule) -> str:
    """The rule's text, if it is one expression: brackets that close too early, several statements and lists are refused."""
    duckdb.SQLExpression(rule.where)
    # On a line of its own, so that a comment at its end cannot swallow the bracket.
    return f"\n{rule.where}\n"


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


def _bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """A column of bytes without NULLs; copied once where it has several chunks."""
    parts = [chunk.to_numpy() for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)
