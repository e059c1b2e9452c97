"""Batch: changes of items in the order of their source, the feed that hands them out, and `open_feed`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from leafbeam.errors import ArgumentError, DataError, short_repr
from leafbeam.extras import require
from leafbeam.ids import is_id
from leafbeam.json_reader import Json
from leafbeam.serve.feed_config import LISTED, FeedConfig

if TYPE_CHECKING:
    from leafbeam.feeds.table import VersionedTable

Operation = Literal["put", "patch", "delete"]
Start = Literal["beginning", "now"]
MAX_CHANGES = 10_000  # of a batch: what a server takes at once
TRUNCATED = "the table was emptied (truncate), which names no items: remove them with `leafbeam items remove`"
START_AGAIN = "Begin with a newer snapshot of another server, or with a run that is built anew"
_MODULES = {
    "kafka": ("confluent_kafka",),
    "delta": ("deltalake", "pyarrow", "duckdb"),
    "iceberg": ("pyiceberg", "pyarrow", "duckdb"),
    "postgres": ("psycopg",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemChange:
    """An item to put (with all its columns), to patch (with some of them) or to delete.

    Attributes:
        operation: The kind of the change.
        row: `item_id` and, unless it is deleted, perhaps `codes` or `vector`, and attributes.
        place: The position in the source, such as "partition 0, offset 17".
    """

    operation: Operation
    row: Json = field(repr=False)
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The changes of a feed from one commit to the next.

    Attributes:
        changes: The changes, in order.
        bad: The problems of changes that cannot be read, by their positions in the source.
        key: The same each time that the feed returns this batch, also after a crash.
        end: Where the next batch begins.
        position: The place in the whole source up to which changes are made once this batch is. A feed that is opened with it
            goes on behind the batch.
    """

    changes: tuple[ItemChange, ...] = field(repr=False)
    bad: Mapping[str, str]
    key: str
    end: Mapping[str, int]
    position: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)


class Feed(Protocol):
    """A source of changes that knows which of them have been made. All methods raise FeedError."""

    @property
    def name(self) -> str: ...

    @property
    def is_at_end(self) -> bool: ...

    def read(self, wait_s: float) -> Batch | None:
        """Return the batch after the last committed one, or None if none came within `wait_s` seconds.

        It records the batch's end and key before it returns, so that after a crash the same batch comes again, under the same
        key.
        """

    def commit(self, batch: Batch) -> None:
        """Record that the changes of the batch have been made, durably."""

    def close(self) -> None:
        """Release the source."""


class CatalogFeed(Feed, Protocol):
    """A feed whose position the catalog keeps: it is on disk with the changes, and goes along with a snapshot of them."""

    @property
    def position(self) -> Mapping[str, object]:
        """Return the place in the source up to which changes are committed."""
        ...

    @property
    def complete_until(self) -> float | None:
        """Return the time, in seconds since 1970, before which no change is missing; None if that is not known yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceColumns:
    """The columns that are taken of a source.

    Args:
        item_id: The column of the ids.
        names: The columns of attributes, codes or vector; None takes all.

    Examples:
        >>> SourceColumns(item_id="sku").row({"sku": "a", "price": 3})
        {'item_id': 'a', 'price': 3}
    """

    item_id: str = "item_id"
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.names is not None and self.item_id in self.names:
            raise ArgumentError(f"column {self.item_id!r} holds the ids: leave it out of the other columns")

    @property
    def all_names(self) -> list[str] | None:
        """Return the columns to read; None for all."""
        return None if self.names is None else [self.item_id, *self.names]

    def id_of(self, fields: Mapping[str, object]) -> int | str:
        """Return the id in a row of the source.

        Raises:
            DataError: If there is none, or it is invalid.
        """
        item_id = fields.get(self.item_id)
        if not is_id(item_id):
            names = ", ".join(list(map(short_repr, fields))[:20]) or "none"
            what = (
                f"it has no {self.item_id!r}; its columns: {names}" if item_id is None else f"its id is {short_repr(item_id)}"
            )
            raise DataError(f"{what}: expected a whole number or text as item id")
        return item_id

    def change(self, fields: Mapping[str, object], *, is_whole: bool) -> tuple[Operation, dict[str, object]]:
        """Return how a changed row is made, and as which item.

        It is put; or its item is patched, if the source left out columns that are taken, because they did not change.
        Raises DataError as `row` does.
        """
        is_whole = is_whole or (self.names is not None and set(self.names) <= fields.keys())
        return ("put" if is_whole else "patch"), self.row(fields, partial=not is_whole)

    def row(self, fields: Mapping[str, object], *, partial: bool = False) -> dict[str, object]:
        """Return a row of the source as an item; with `partial`, columns may be missing.

        Raises:
            DataError: If the id is invalid or a column is missing.
        """
        item_id = self.id_of(fields)
        names = [name for name in fields if name != self.item_id] if self.names is None else self.names
        missing = next((name for name in names if name not in fields), None)
        if missing is not None and not partial:
            raise DataError(f"it has no column {missing!r}; its columns: {', '.join(list(map(short_repr, fields))[:20])}")
        if "item_id" in names:
            raise DataError(f"its ids are in {self.item_id!r}, but it has a column 'item_id' too: name the columns to take")
        return {"item_id": item_id, **{name: fields[name] for name in names if name in fields}}


def check_max_changes(max_changes: int) -> None:
    """Check the largest number of changes of a batch. Raises ArgumentError."""
    if not 1 <= max_changes <= MAX_CHANGES:
        raise ArgumentError(f"a batch may have 1 to {MAX_CHANGES:,} changes, not {max_changes:,}")


def require_library(config: FeedConfig, purpose: str, *modules: str) -> None:
    """Check that what a source needs is installed. purpose, modules: as of `require`. Raises MissingExtraError."""
    if config.kind is not None:
        require(purpose, *_MODULES[config.kind], *modules, extra=config.kind)


def open_feed(config: FeedConfig, position: Mapping[str, object] | Path | str) -> CatalogFeed:
    """Return the feed that settings name.

    Args:
        config: The settings.
        position: The position that the catalog keeps, empty at first. Or what keeps it instead: a file, or the name of a Kafka
            consumer group.

    Raises:
        ArgumentError: If the settings name no source, or a property is invalid.
        FeedError: If the source cannot be read.
        MissingExtraError: If the source's library is not installed.
    """
    require_library(config, f"to follow {config.name}")
    columns = SourceColumns(item_id=config.item_id, names=config.columns or None)
    start: Start = "now" if config.from_now else "beginning"
    properties = config.library_properties()
    if config.kafka is not None:
        from leafbeam.feeds.kafka import KafkaFeed

        assert not isinstance(position, Path)
        return KafkaFeed(
            config.servers,
            config.kafka,
            position,
            columns=columns,
            start=start,
            max_changes=config.batch,
            properties=properties,
        )
    assert not isinstance(position, str)
    if config.postgres is not None:
        from leafbeam.feeds.postgres import PostgresFeed
        from leafbeam.feeds.publication import Publication

        publication = Publication(name=config.postgres, slot=config.slot, database=config.database or "", properties=properties)
        return PostgresFeed(publication, position, columns=columns, start=start, max_changes=config.batch)
    table: VersionedTable
    if config.delta is not None:
        from leafbeam.feeds.delta import DeltaSource

        table = DeltaSource(config.delta, properties)
    elif config.iceberg is not None:
        from leafbeam.feeds.iceberg import IcebergSource

        table = IcebergSource(config.iceberg, catalog=config.catalog, properties=properties)
    else:
        raise ArgumentError(f"the settings name no source: set {LISTED}")
    from leafbeam.feeds.table import TableFeed

    return TableFeed(table, position, columns=columns, start=start, max_changes=config.batch)
