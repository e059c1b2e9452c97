"""A database of PostgreSQL with a published table of items."""

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from leafbeam.feeds import Batch, Followed, PostgresFeed, Publication
from leafbeam.feeds.follower import make
from tests.catalog import postgres

SETTINGS = "-c wal_level=logical -c max_wal_senders=40 -c max_replication_slots=40 -c wal_sender_timeout=5s"
_NUMBERS = itertools.count()


@contextmanager
def database() -> Generator[str]:
    """The connection string of a new server with logical replication; skips the test by name where none can be started."""
    with postgres.server(SETTINGS) as uri:
        yield uri


@dataclass(kw_only=True)
class PublishedItems:
    """A table of items, its publication and a slot, all of one name."""

    uri: str
    columns: str = "item_id bigint PRIMARY KEY, codes int[], title text, price double precision, stock int"
    key: str = "item_id"
    name: str = field(default_factory=lambda: f"items{next(_NUMBERS)}")

    def __post_init__(self) -> None:
        self.run(f"CREATE TABLE {self.name} ({self.columns})", f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")

    def run(self, *commands: str, **values: Any) -> list[Any]:
        """Run commands in one transaction; the rows of the last one."""
        with psycopg.connect(self.uri) as connection:
            for command in commands:
                cursor = connection.execute(command.replace("TABLE_", self.name).encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def put(self, *rows: Mapping[str, Any]) -> None:
        """Insert or replace rows in one transaction."""
        with psycopg.connect(self.uri) as connection:
            for row in rows:
                self._put(connection, row)

    def change(self, rows: Mapping[Any, Mapping[str, Any] | None]) -> None:
        """Put rows, or delete those that are None, in one transaction."""
        with psycopg.connect(self.uri) as connection:
            for item_id, row in rows.items():
                if row is None:
                    connection.execute(f"DELETE FROM {self.name} WHERE {self.key} = %s".encode(), [item_id])
                else:
                    self._put(connection, row)

    def _put(self, connection: psycopg.Connection, row: Mapping[str, Any]) -> None:
        names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        sets = ", ".join(f"{name} = excluded.{name}" for name in row)
        command = f"INSERT INTO {self.name} ({names}) VALUES ({marks}) ON CONFLICT ({self.key}) DO UPDATE SET {sets}"
        connection.execute(command.encode(), list(row.values()))

    def delete(self, *ids: Any) -> None:
        """Delete rows in one transaction."""
        self.change(dict.fromkeys(ids))

    def publication(self, slot: str = "", **options: Any) -> Publication:
        """The publication for a feed; `slot` is the name of the table by default."""
        return Publication(name=self.name, slot=slot or self.name, database=self.uri, **options)

    def feed(self, position: Any, slot: str = "", **options: Any) -> PostgresFeed:
        """A feed at a position."""
        timeout_s = options.pop("timeout_s", 30.0)
        return PostgresFeed(self.publication(slot, timeout_s=timeout_s), position, **options)

    def rows(self) -> dict[Any, dict[str, Any]]:
        """The rows of the table now, by id."""
        with psycopg.connect(self.uri, row_factory=dict_row) as connection:
            return {row[self.key]: row for row in connection.execute(f"SELECT * FROM {self.name}".encode()).fetchall()}

    @property
    def slots(self) -> list[str]:
        """The slots of this table's feeds."""
        query = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name ~ %(names)s ORDER BY 1"
        return [name for (name,) in self.run(query, names=f"^{self.name}(_.*)?$")]

    @property
    def log_end(self) -> str:
        """The end of the log."""
        return self.run("SELECT pg_current_wal_insert_lsn()::text")[0][0]


class Items:
    """A catalog of rows by id, with the position that came with the last change; `step` is called around each write."""

    has_text_ids = False

    def __init__(self) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.position: Mapping[str, object] = {}
        self.step: Callable[[], object] = lambda: None

    def send(self, operation: str, rows: Sequence[Any], batch: Batch, *, is_last: bool) -> Followed:
        """Make changes (see Target); a patch of an item that is not there fails."""
        self.step()
        for row in rows:
            if operation == "delete":
                self.rows.pop(row["item_id"], None)
            else:
                self.rows[row["item_id"]] = dict(row) if operation == "put" else self.rows[row["item_id"]] | row
        if is_last:
            self.position = batch.position
        self.step()
        return Followed.nothing()

    def follow_to_end(self, feed: PostgresFeed, *, skip_bad: bool = False) -> list[Batch]:
        """Make the changes of a feed up to its end, as a server does; the batches that were made."""
        batches: list[Batch] = []
        with closing(feed):
            if self.position != feed.position:
                self.position = feed.position
            while not feed.is_at_end:
                batch = feed.read(0.05)
                if batch is not None:
                    make(feed.name, batch, self, Followed.nothing(), skip_bad=skip_bad)
                    self.position = batch.position
                    self.step()
                    feed.commit(batch)
                    self.step()
                    batches.append(batch)
        return batches
