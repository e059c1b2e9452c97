"""Sources of a table of items: Arrow, files, PostgreSQL."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# Evaluated annotations would keep types of DuckDB alive at the exit of Python, where its bindings report them as leaked.
from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from leafbeam.catalog.definitions import quoted
from leafbeam.catalog.sessions import check_columns
from leafbeam.errors import DataError
from leafbeam.extras import require
from leafbeam.tables import CsvFormat, read_ids, read_table
from leafbeam.tables.ids import check_ids, type_of_ids
from leafbeam.tables.parquet import read_batches, schema_of
from leafbeam.tables.plain_types import as_plain, plain_schema
from leafbeam.tables.reader import is_parquet
from leafbeam.tables.table import check_names

log = logging.getLogger("leafbeam.catalog")
_BATCH = 1 << 16  # rows

# Types that are selected as they are; all others are cast to text.
_PLAIN = re.compile(
    r"(bigint|integer|smallint|real|double precision|boolean|text|bytea|date|uuid|json|jsonb|interval"
    r"|character( varying)?(\(\d+\))?|time(\(\d\))? without time zone|timestamp(\(\d\))? with(out)? time zone)(\[\])?"
)
_EXACT = pa.decimal128(38, 10)
_DECIMAL = re.compile(r"numeric\((\d+),(\d+)\)")

# A domain is listed as its base type.
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
    """A table, view or materialised view of a PostgreSQL database, which is streamed into DuckDB in one snapshot.

    Types keep their meaning: numeric(p, s) up to 38 digits stays exact, a numeric without a precision becomes a double, and
    types that DuckDB lacks (enums, addresses, ranges, money) become text. It needs the extra `postgres`.

    Args:
        uri: libpq's connection string (`postgresql://shop@db/shop`); missing parts come from PGHOST, PGPASSWORD and similar
            variables. It is never printed.
        table: The name of the table.
        schema: The schema of the table.
        columns: The columns; None selects all. One has to be `item_id`; a view can rename it.

    Raises:
        DataError: If there is no connection or no such table, or a value fits no type.

    Examples:
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
        """Return the rows as a stream, and the DuckDB types of the columns that have to be cast."""
        require("reading a PostgreSQL table", "adbc_driver_postgresql")
        import adbc_driver_postgresql.dbapi as dbapi

        try:
            with dbapi.connect(self.uri) as connection, connection.cursor() as cursor:
                # Columns and rows in one snapshot.
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute(_COLUMNS, (self.schema, self.table))
                types: dict[str, str] = dict(cursor.fetchall())
                names = self._select(list(types))
                selected = [
                    f"{quoted(name)}::{types[name] if _PLAIN.fullmatch(types[name]) else 'text'} AS {quoted(name)}"
                    for name in names
                ]
                cursor.execute(f"SELECT {', '.join(selected)} FROM {quoted(self.schema)}.{quoted(self.table)}")
                casts = {name: cast for name in names if (cast := _duckdb_cast(types[name])) is not None}
                rows = cursor.fetch_record_batch()
                yield _with_exact_ids(rows) if casts.pop("item_id", None) else rows, casts
        except dbapi.Error as error:
            raise DataError(f"cannot read {self}: {_without_secrets(str(error), self.uri)}") from None

    def _select(self, columns: list[str]) -> list[str]:
        if not columns:
            raise DataError(f"{self} does not exist, or this user may not see it: name a table or view, and its schema")
        selected = columns if self.columns is None else list(self.columns)
        missing = [name for name in selected if name not in columns]
        if missing:
            raise DataError(f"{self} has no column {missing[0]!r}; it has: {', '.join(columns)}")
        check_columns(selected, str(self))
        return selected


class CsvOptions(TypedDict, total=False):
    """The delimiter and the encoding of a CSV source, as in `CsvFormat`; by default a comma and UTF-8."""

    delimiter: str
    encoding: str


ItemSource = pa.Table | pa.RecordBatchReader | PostgresTable | str | os.PathLike[str]


def copy_items(
    connection: duckdb.DuckDBPyConnection, source: ItemSource, form: CsvFormat, *, ids_are_checked: bool = False
) -> None:
    """Create the table `items` from a source.

    Args:
        connection: A database without such a table.
        source: The items.
        form: The delimiter and the encoding of CSV.
        ids_are_checked: If true, ids are not checked again. This is for files that leafbeam wrote, perhaps before
            `read_ids` had its present checks.

    Raises:
        DataError: If the source cannot be read, or `read_ids` refuses its ids.
        duckdb.Error: If values have no type that DuckDB knows.
    """
    if isinstance(source, PostgresTable):
        with source.rows() as (rows, casts):
            _copy_batches(connection, rows.schema, rows, str(source), casts)
    elif isinstance(source, pa.Table | pa.RecordBatchReader):
        batches: Any = source.to_batches(_BATCH) if isinstance(source, pa.Table) else source
        try:
            _copy_batches(connection, source.schema, batches, "the table", ids_are_checked=ids_are_checked)
        except pa.ArrowException as error:
            raise DataError(f"the table cannot be read: {error}") from error
    elif isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        _copy_file(connection, Path(source), form, ids_are_checked=ids_are_checked)
    else:
        expected = "a pyarrow.Table such as pa.table({...}), a PostgresTable, or the path of a file in Parquet, CSV or JSON"
        raise DataError(f"the items are a {type(source).__name__}: expected {expected}")


def _copy_arrow(
    connection: duckdb.DuckDBPyConnection,
    rows: pa.Table | pa.RecordBatchReader,
    casts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    columns = ", ".join(
        f"CAST({quoted(name)} AS {casts[name]}) AS {quoted(name)}" if name in casts else quoted(name)
        for name in rows.schema.names
    )
    connection.register("item_source", rows)
    try:
        connection.execute(f"CREATE TABLE items AS SELECT {columns} FROM item_source")
    finally:
        connection.unregister("item_source")


def _copy_batches(
    connection: duckdb.DuckDBPyConnection,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    source: str,
    casts: Mapping[str, str] = MappingProxyType({}),
    *,
    ids_are_checked: bool = False,
) -> None:
    """Copy rows batch by batch, with plain types and checked ids. `casts` are DuckDB's types of columns. Memory: one batch."""
    check_columns(schema.names, source)
    number, schema = schema.names.index("item_id"), plain_schema(schema, source)
    if not ids_are_checked:
        check_names(schema.names, source)
        schema = schema.set(number, pa.field("item_id", type_of_ids(schema.field(number).type)))

    mistakes: list[DataError] = []  # DuckDB would put them into a text of its own

    def checked() -> Generator[pa.RecordBatch]:
        begin = 0
        try:
            for batch in batches:
                batch = as_plain(batch, source)
                if not ids_are_checked:
                    ids = check_ids(batch, "item_id", source, begin)
                    batch = batch.set_column(number, schema.field(number), ids)
                begin += len(batch)
                yield batch
        except (DataError, pa.ArrowInvalid) as error:
            mistakes.append(error if isinstance(error, DataError) else DataError(f"{source} cannot be read: {error}"))
            raise

    try:
        _copy_arrow(connection, pa.RecordBatchReader.from_batches(schema, checked()), casts)
    except duckdb.Error:
        if mistakes:
            raise mistakes[0] from None
        raise


def _copy_file(connection: duckdb.DuckDBPyConnection, source: Path, form: CsvFormat, *, ids_are_checked: bool) -> None:
    if is_parquet(source):
        schema, batches = schema_of(source), read_batches(source, _BATCH)
        _copy_batches(connection, schema, batches, str(source), ids_are_checked=ids_are_checked)
        return
    table = read_table(source, ids=("item_id",), form=form)
    check_columns(table.table.column_names, str(source))
    ids = read_ids(table, "item_id", "item_of_items")
    numbers = ids.as_numbers() if table.is_text else ids
    if numbers is not ids:
        log.info("the item ids of %s are read as whole numbers; to keep them text, pass an Arrow table of text ids", source)
    number = table.table.column_names.index("item_id")
    _copy_arrow(connection, table.table.set_column(number, "item_id", numbers.column))


def _with_exact_ids(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows; ids that are numeric values written as text become decimals, so that fractions are noticed."""
    number = rows.schema.get_field_index("item_id")
    schema = rows.schema.set(number, pa.field("item_id", _EXACT))
    batches = (batch.set_column(number, schema.field(number), batch["item_id"].cast(_EXACT)) for batch in rows)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _duckdb_cast(postgres_type: str) -> str | None:
    """Return the DuckDB type that a column has to be cast to, if any."""
    if postgres_type.endswith("[]") or not postgres_type.startswith("numeric"):
        return None
    match = _DECIMAL.fullmatch(postgres_type)
    if match is None or int(match[1]) > 38 or int(match[2]) > int(match[1]):
        return "DOUBLE"
    return "BIGINT" if int(match[2]) == 0 and int(match[1]) <= 18 else f"DECIMAL({match[1]}, {match[2]})"


def _without_secrets(message: str, uri: str) -> str:
    """Return the message without passwords: libpq repeats what it cannot parse."""
    if "=" not in uri and "://" not in uri:
        return "the connection string is invalid: expected postgresql://user@host/database, or host=... dbname=..."
    pairs = re.findall(r"://[^/:@]*:(.*)@|password\s*=\s*('[^']*'|[^\s&]+)", uri)
    secrets = [secret for pair in pairs for secret in pair if secret]
    for secret in secrets:
        pieces = [piece for piece in re.split(r"[@:/?#&' ]", secret) if piece]
        for piece in sorted({secret, unquote(secret), *pieces}, key=len, reverse=True):
            message = message.replace(piece, "***")
    return message.strip()
