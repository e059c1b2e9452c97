"""Where a table of items comes from: Arrow, Parquet, CSV, PostgreSQL."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from leafbeam.errors import DataError, MissingExtraError

__all__ = ["ItemSource", "PostgresTable", "check_columns", "copy_items", "quoted"]

# Types that come as what they are; all others come as text.
_PLAIN = re.compile(
    r"(bigint|integer|smallint|real|double precision|boolean|text|bytea|date|uuid|json|jsonb|interval"
    r"|character( varying)?(\(\d+\))?|time(\(\d\))? without time zone|timestamp(\(\d\))? with(out)? time zone)(\[\])?"
)
_DECIMAL = re.compile(r"numeric\((\d+),(\d+)\)")

# A domain counts as the type that it is made of.
_COLUMNS = """
SELECT a.attname::text, CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
                                       ELSE format_type(a.atttypid, a.atttypmod) END
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     JOIN pg_type t ON t.oid = a.atttypid
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresTable:
    """A table, view or materialised view of a PostgreSQL database, read once, in one snapshot.

    Think of it as `SELECT * FROM schema.table`: the rows stream into DuckDB, and nothing is held in PostgreSQL afterwards.
    Types keep their meaning; numeric(p, s) up to 38 digits stays exact, a numeric without a precision becomes a double, and
    what DuckDB has no type for (enums, addresses, ranges, money) becomes its text.

    uri: libpq's connection string, as configuration (`postgresql://shop@db/shop`; what it leaves out comes from the variables
    PGHOST, PGPASSWORD and so on). It is never printed. columns: None takes all. One has to be `item_id`; a view can rename it.

    Needs the extra `postgres`. Raises DataError (no connection, no such table, a value that fits no type).

    >>> Catalog.create("shop.duckdb", PostgresTable(uri="postgresql://shop@db/shop", table="articles"))
    """

    uri: str = field(repr=False)
    table: str
    schema: str = "public"
    columns: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"PostgreSQL's {self.schema}.{self.table}"

    @contextmanager
    def rows(self) -> Generator[tuple[pa.RecordBatchReader, dict[str, str]]]:
        """The rows as a stream, and the DuckDB types of the columns that are to be cast on arrival."""
        try:
            import adbc_driver_postgresql.dbapi as dbapi
        except ImportError as error:
            raise MissingExtraError("reading a PostgreSQL table needs ADBC: pip install 'leafbeam[postgres]'") from error
        try:
            with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
                # Columns and rows in one snapshot.
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute(_COLUMNS, (self.schema, self.table))
                kinds: dict[str, str] = dict(cursor.fetchall())
                names = self._names(list(kinds))
                taken = ", ".join(f"{quoted(name)}::{_kind_taken(kinds[name])} AS {quoted(name)}" for name in names)
                cursor.execute(f"SELECT {taken} FROM {quoted(self.schema)}.{quoted(self.table)}")
                casts = {name: kind for name in names if (kind := _kind_made(kinds[name])) is not None}
                yield cursor.fetch_record_batch(), casts
        except dbapi.Error as error:
            raise DataError(f"cannot read {self}: {_without_secrets(str(error), self.uri)}") from None

    def _names(self, there: list[str]) -> list[str]:
        if not there:
            raise DataError(f"{self} is not there, or this user may not see it: name a table or view, and its schema")
        wanted = there if self.columns is None else list(self.columns)
        missing = [name for name in wanted if name not in there]
        if missing:
            raise DataError(f"{self} has no column {missing[0]!r}; it has: {', '.join(there)}")
        check_columns(wanted, str(self))
        return wanted


ItemSource = pa.Table | pa.RecordBatchReader | PostgresTable | str | os.PathLike[str]


def copy_items(connection: duckdb.DuckDBPyConnection, source: ItemSource) -> None:
    """Make the table `items` (which must not be there) from a source.

    Raises DataError; duckdb.Error for values without a type.
    """
    if isinstance(source, PostgresTable):
        with source.rows() as (rows, casts):
            _copy_arrow(connection, rows, casts)
    elif isinstance(source, pa.Table | pa.RecordBatchReader):
        check_columns(source.schema.names, "the table")
        try:
            _copy_arrow(connection, source, {})
        except pa.ArrowException as error:
            raise DataError(f"the table cannot be read: {error}") from error
    else:
        _copy_file(connection, Path(source))


def check_columns(columns: Sequence[str], name: str) -> None:
    """Raise DataError where no column is `item_id`, or two have one name (DuckDB's names know no upper case)."""
    if "item_id" not in columns:
        raise DataError(f"{name} has no column 'item_id'; it has: {', '.join(columns) or 'none at all'}")
    seen: set[str] = set()
    for column in columns:
        if column.lower() in seen:
            raise DataError(f"{name} has two columns {column!r} (upper and lower case are one): rename one of them")
        seen.add(column.lower())


def quoted(name: str) -> str:
    """A name as an SQL identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _copy_arrow(connection: duckdb.DuckDBPyConnection, rows: pa.Table | pa.RecordBatchReader, casts: dict[str, str]) -> None:
    columns = ", ".join(
        f"CAST({quoted(name)} AS {casts[name]}) AS {quoted(name)}" if name in casts else quoted(name)
        for name in rows.schema.names
    )
    connection.register("item_source", rows)
    try:
        connection.execute(f"CREATE TABLE items AS SELECT {columns} FROM item_source")
    finally:
        connection.unregister("item_source")


def _copy_file(connection: duckdb.DuckDBPyConnection, source: Path) -> None:
    if not source.is_file():
        raise DataError(f"there is no file {source}: expected a .parquet or .csv file of items")
    if source.suffix == ".parquet":
        relation = connection.read_parquet(str(source))
    elif source.suffix == ".csv":
        check_columns(connection.read_csv(str(source)).columns, str(source))
        # First as text: reading 007 as a number would lose the zeros.
        relation = connection.read_csv(str(source), dtype={"item_id": "VARCHAR"})
    else:
        raise DataError(f"{source} has to end in .parquet or .csv")
    check_columns(relation.columns, str(source))
    relation.create("items")
    if source.suffix == ".csv":
        whole = connection.execute(
            "SELECT coalesce(bool_and(TRY_CAST(item_id AS BIGINT)::VARCHAR IS NOT DISTINCT FROM item_id), false) FROM items"
        ).fetchall()
        if whole[0][0]:
            connection.execute("ALTER TABLE items ALTER item_id TYPE BIGINT")


def _kind_taken(kind: str) -> str:
    """As what a column of PostgreSQL's type is asked for."""
    return kind if _PLAIN.fullmatch(kind) else "text"


def _kind_made(kind: str) -> str | None:
    """What DuckDB makes of it, if not what arrives."""
    if kind.endswith("[]") or not kind.startswith("numeric"):
        return None
    found = _DECIMAL.fullmatch(kind)
    if found is None or int(found[1]) > 38 or int(found[2]) > int(found[1]):
        return "DOUBLE"
    return "BIGINT" if int(found[2]) == 0 and int(found[1]) <= 18 else f"DECIMAL({found[1]}, {found[2]})"


def _without_secrets(message: str, uri: str) -> str:
    """libpq repeats what it cannot understand, and that can be a password."""
    if "=" not in uri and "://" not in uri:
        return "the connection string is not one: expected postgresql://user@host/database, or host=... dbname=..."
    secrets = [
        found for pair in re.findall(r"://[^/:@]*:(.*)@|password\s*=\s*('[^']*'|[^\s&]+)", uri) for found in pair if found
    ]
    for secret in secrets:
        pieces = [piece for piece in re.split(r"[@:/?#&' ]", secret) if piece]
        for piece in sorted({secret, unquote(secret), *pieces}, key=len, reverse=True):
            message = message.replace(piece, "***")
    return message.strip()
