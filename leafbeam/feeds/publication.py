"""Publication: a published table of PostgreSQL, a replication slot that keeps its changes, and connections to both."""

import re
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leafbeam.catalog.definitions import quoted
from leafbeam.errors import ArgumentError, FeedError
from leafbeam.extras import optional_imports
from leafbeam.feeds.batch import START_AGAIN

with optional_imports("leafbeam.feeds.PostgresFeed", "postgres"):
    import psycopg
    from psycopg import pq, sql
    from psycopg.adapt import AdaptersMap, Transformer
    from psycopg.conninfo import make_conninfo
    from psycopg.postgres import types as builtin_types
    from psycopg.types import TypeInfo
    from psycopg.types.string import TextLoader

_OLDEST = 150_000  # the first version that says which columns and rows are published
_FIRST_OWN_TYPE = 16_384  # types with smaller numbers are PostgreSQL's own
_AS_THEY_ARE = ("bool", "int2", "int4", "int8", "oid", "float4", "float8")  # the others, and those in arrays, are text
_SLOT = re.compile("[a-z0-9_]{1,58}")  # 63 with the ending of the slot for a copy

_TABLES = """
SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, t.schemaname, t.tablename, t.attnames, t.rowfilter
FROM pg_publication p LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname
WHERE p.pubname = %s ORDER BY 2, 3
"""
# Generated columns are published from version 18 on, but older versions list them too.
_COLUMNS = """
SELECT c.oid, a.attname, a.atttypid, c.relreplident = 'f' OR EXISTS (
  SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY(i.indkey)
  AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY(%s) AND NOT a.attisdropped AND (a.attgenerated = '' OR %s)
ORDER BY a.attnum
"""
# A domain is its base type.
_TYPES = """
WITH RECURSIVE bases(id, base) AS (
  SELECT oid, oid FROM pg_type WHERE oid = ANY(%s)
  UNION ALL SELECT b.id, t.typbasetype FROM bases b JOIN pg_type t ON t.oid = b.base WHERE t.typtype = 'd')
SELECT b.id, t.oid, CASE t.typcategory WHEN 'A' THEN t.typelem ELSE 0 END, t.typdelim
FROM bases b JOIN pg_type t ON t.oid = b.base WHERE t.typtype <> 'd'
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """A publication of one table, and the slot in which PostgreSQL keeps its changes for one server.

    Args:
        name: The name of the publication.
        slot: The name of the replication slot; each server has its own. It is created if there is none.
        database: libpq's connection string; missing parts come from PGHOST, PGPASSWORD and similar variables. It is never
            printed.
        properties: Further properties of libpq, such as password.
        timeout_s: The number of seconds without an answer after which the feed ends.

    Raises:
        ArgumentError: If the slot's name, the connection string or a property is invalid.
    """

    name: str
    slot: str = "leafbeam"
    database: str = field(default="", repr=False)
    properties: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not _SLOT.fullmatch(self.slot):
            raise ArgumentError(f"slot {self.slot!r:.80}: expected 1 to 58 characters of a to z, 0 to 9 and _")
        try:
            make_conninfo("", **self.properties)
        except psycopg.ProgrammingError as error:
            raise ArgumentError(f"{self}: libpq does not take these properties: {error}") from None
        try:
            make_conninfo(self.database)
        except psycopg.ProgrammingError:  # its message may have the password
            raise ArgumentError(
                f"{self}: the connection string is invalid: expected postgresql://user@host/database, or host=... dbname=..."
            ) from None

    def __str__(self) -> str:
        return f"PostgreSQL publication {self.name}"

    def connect(self, *, replication: bool = False, like: "psycopg.Connection | None" = None) -> "psycopg.Connection":
        """Return a connection. like: one whose types it reads too. Raises FeedError."""
        with self.failures():
            options: dict[str, Any] = {
                "application_name": f"leafbeam {self.slot}",
                "connect_timeout": max(2, round(self.timeout_s)),
            }
            options |= dict(self.properties) | ({"replication": "database"} if replication else {})
            options |= {"client_encoding": "utf8"}
            connection = psycopg.connect(self.database, autocommit=True, context=like, **options)
            connection.execute("SET datestyle = ISO")
            connection.execute("SET timezone = UTC")
            return connection

    @contextmanager
    def failures(self) -> Generator[None]:
        """Raise FeedError for what psycopg raises."""
        try:
            yield
        except psycopg.errors.ObjectInUse as error:
            raise FeedError(f"{self}: {_text_of(error)}. Each server needs a slot of its own: name another") from None
        except psycopg.errors.QueryCanceled as error:
            raise FeedError(
                f"{self}: {_text_of(error)}, after {self.timeout_s:g} s. A slot waits for the end of all transactions that "
                "write: is one of them left open?"
            ) from None
        except psycopg.Error as error:
            raise FeedError(
                f"{self}: {_text_of(error)}. Is the database up, does it have wal_level = logical, and may this user read the "
                "table and replicate?"
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """The table of a publication. row_filter: the SQL of rows that are published; empty for all."""

    table_id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str = ""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Database:
    """A connection beside the one for changes, which answers questions and reads texts as values.

    Args:
        publication: The publication.

    Raises:
        FeedError: If there is no such database or publication, or it cannot be followed.
    """

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self.connection = publication.connect()
        try:
            version = self.connection.info.server_version
            if version < _OLDEST:
                raise FeedError(f"{publication}: PostgreSQL has version {version // 10_000}: expected 15 or a newer one")
            _read_as_text(self.connection.adapters)
            self._values = Transformer(self.connection)
            self.system = str(self._row("SELECT system_identifier FROM pg_control_system()")[0])
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def table(self, item_id: str) -> PublishedTable:
        """Return the one table of the publication. item_id: the column of ids. Raises FeedError."""
        name = self._publication
        found = self._rows(_TABLES, name.name)
        tables = [row for row in found if row[1] is not None]
        if len(tables) != 1:
            listed = ", ".join(f"{row[1]}.{row[2]}" for row in tables[:5]) or "no table"
            problem = f"it publishes {listed}" if found else "there is no such publication"
            raise FeedError(f"{name}: {problem}: expected one with one table (CREATE PUBLICATION {name.name} FOR TABLE items)")
        publishes_all, schema, table, names, row_filter = tables[0]
        if not publishes_all:
            raise FeedError(
                f"{name}: some changes are not published: ALTER PUBLICATION {name.name} "
                "SET (publish = 'insert, update, delete, truncate')"
            )
        columns = self._rows(_COLUMNS, schema, table, names, self.connection.info.server_version >= 180_000)
        if item_id not in [column for _, column, _, is_key in columns if is_key]:
            raise FeedError(
                f"{name}: the replica identity of {schema}.{table} does not have the column {item_id!r}, so that a deletion "
                "would not name its item: make it the primary key, or ALTER TABLE ... REPLICA IDENTITY FULL"
            )
        self.learn(type_id for _, _, type_id, _ in columns)
        return PublishedTable(
            table_id=columns[0][0],
            schema=schema,
            name=table,
            columns=tuple(column for _, column, _, _ in columns),
            row_filter=row_filter or "",
        )

    def find_slot(self) -> int | None:
        """Return the position from which on the slot keeps changes; None if there is no slot. Raises FeedError."""
        name, slot = self._publication, self._publication.slot
        query = "SELECT plugin, wal_status, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        found = self._rows(query, slot)
        if not found:
            return None
        plugin, status, confirmed = found[0]
        if plugin != "pgoutput":
            raise FeedError(f"{name}: slot {slot} has the plugin {plugin}: expected pgoutput. Name another slot")
        if status == "lost" or confirmed is None:
            raise FeedError(
                f"{name}: PostgreSQL has removed changes that slot {slot} had not sent yet (max_slot_wal_keep_size). "
                f"{START_AGAIN}, and drop the slot before: SELECT pg_drop_replication_slot('{slot}')"
            )
        return lsn_of(confirmed)

    def create_slot(self) -> int:
        """Create the slot, and return the position from which on it keeps changes. Raises FeedError."""
        with self._publication.failures():
            self.connection.execute(
                sql.SQL("SET statement_timeout = {}").format(sql.Literal(round(self._publication.timeout_s * 1000)))
            )
        try:
            query = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
            return lsn_of(self._row(query, self._publication.slot)[0])
        finally:
            with self._publication.failures():
                self.connection.execute("RESET statement_timeout")

    def log_end(self) -> int:
        """Return the end of the database's log. Raises FeedError."""
        return lsn_of(self._row("SELECT pg_current_wal_flush_lsn()::text")[0])

    def learn(self, type_ids: Iterable[int]) -> None:
        """Learn to read arrays and domains that were defined in the database. Raises FeedError."""
        own = [type_id for type_id in type_ids if type_id >= _FIRST_OWN_TYPE]
        adapters = self.connection.adapters
        for type_id, base, element, delimiter in self._rows(_TYPES, own) if own else ():
            if element:
                self.learn([element])
                TypeInfo(str(element), element, type_id, delimiter=delimiter).register(self.connection)
            elif (loader := adapters.get_loader(base, pq.Format.TEXT)) is not None:
                adapters.register_loader(type_id, loader)
        self._values = Transformer(self.connection)

    def value_of(self, type_id: int, text: bytes) -> object:
        """Return the value of a type's text: truth values, numbers and lists; of other types, the text. Raises ValueError."""
        try:
            return self._values.get_loader(type_id, pq.Format.TEXT).load(text)
        except psycopg.DataError as error:
            raise ValueError(str(error)) from None

    def _row(self, query: str, *values: object) -> Sequence[Any]:
        return self._rows(query, *values)[0]

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._publication.failures():
            return self.connection.execute(query.encode(), values or None).fetchall()


class TableCopy:
    """All rows of the table as they are at one position of the log.

    Args:
        publication: The publication.
        table: Its table.
        like: A connection that knows the types of the table.

    Raises:
        FeedError: If the table cannot be read.
    """

    def __init__(self, publication: Publication, table: PublishedTable, like: "psycopg.Connection") -> None:
        self._publication = publication
        slot = sql.Identifier(f"{publication.slot}_copy")
        exporting = publication.connect(replication=True)
        with publication.failures(), exporting:  # its slot ends with it; the snapshot stays in the other transaction
            timer = threading.Timer(publication.timeout_s, exporting.cancel)
            timer.start()
            try:
                query = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')").format(slot)
                (_, at, snapshot, _), *_ = exporting.execute(query).fetchall()
            finally:
                timer.cancel()
            self.at = lsn_of(at)
            self._connection = publication.connect(like=like)
            columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
            select = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(table.schema, table.name))
            where = f" WHERE {table.row_filter}".encode() if table.row_filter else b""
            try:
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self._connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
                self._connection.execute(b"DECLARE rows NO SCROLL CURSOR FOR " + select.as_bytes(self._connection) + where)
            except BaseException:
                self._connection.close()
                raise

    def rows(self, count: int) -> list[dict[str, object]]:
        """Return the next rows, fewer than `count` at the end. Raises FeedError."""
        with self._publication.failures():
            cursor = self._connection.execute(sql.SQL("FETCH {} FROM rows").format(sql.Literal(count)))
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()


def start_replication(publication: Publication, connection: "psycopg.Connection", lsn: int) -> None:
    """Begin to send the changes of the slot from a position on. Raises psycopg.Error."""
    names = quoted(publication.name).replace("'", "''")
    command = f"START_REPLICATION SLOT {quoted(publication.slot)} LOGICAL {text_of_lsn(lsn)} "
    command += f"(proto_version '1', publication_names '{names}')"
    result = connection.pgconn.exec_(command.encode())
    if result.status != pq.ExecStatus.COPY_BOTH:
        raise psycopg.errors.error_from_result(result)


def lsn_of(text: str) -> int:
    """Return the number of a position in the log. Raises ValueError, AttributeError."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def text_of_lsn(lsn: int) -> str:
    """Return a position in the log as PostgreSQL writes it.

    Examples:
        >>> text_of_lsn(0x1_016B3748)
        '1/16B3748'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _read_as_text(adapters: "AdaptersMap") -> None:
    for info in builtin_types:
        if info.name not in _AS_THEY_ARE:
            adapters.register_loader(info.oid, TextLoader)


def _text_of(error: "psycopg.Error") -> str:
    return " ".join((error.diag.message_primary or str(error)).split())[:300]
