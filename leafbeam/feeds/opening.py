"""`open_feed`: the feed that settings name."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leafbeam.errors import ArgumentError
from leafbeam.extras import require
from leafbeam.feeds.batch import CatalogFeed, SourceColumns, Start
from leafbeam.serve.feed_config import FeedConfig

if TYPE_CHECKING:
    from leafbeam.feeds.table import VersionedTable


_MODULES = {
    "kafka": ("confluent_kafka",),
    "delta": ("deltalake", "pyarrow", "duckdb"),
    "iceberg": ("pyiceberg", "pyarrow", "duckdb"),
}


def require_library(config: FeedConfig, purpose: str, *modules: str) -> None:
    """Check that what a source needs is installed. purpose, modules: as of `require`. Raises MissingExtraError."""
    if config.kind is not None:
        require(purpose, *_MODULES[config.kind], *modules, extra=config.kind)


def open_feed(config: FeedConfig, position: Mapping[str, Any] | Path | str) -> CatalogFeed:
    """Return the feed that settings name.

    Args:
        config: The settings.
        position: The position that the catalog keeps, empty at first. Or what keeps it instead: the file of a table, or the
            name of a Kafka consumer group.

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
    table: VersionedTable
    if config.delta is not None:
        from leafbeam.feeds.delta import DeltaSource

        table = DeltaSource(config.delta, properties)
    elif config.iceberg is not None:
        from leafbeam.feeds.iceberg import IcebergSource

        table = IcebergSource(config.iceberg, catalog=config.catalog, properties=properties)
    else:
        raise ArgumentError("the settings name no source: set kafka, delta or iceberg")
    from leafbeam.feeds.table import TableFeed

    assert not isinstance(position, str)
    return TableFeed(table, position, columns=columns, start=start, max_changes=config.batch)
