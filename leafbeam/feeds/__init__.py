"""Feeds: the changes of a topic, a table or a publication, made in a served catalog. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.feeds.batch import Batch, CatalogFeed, Feed, ItemChange, SourceColumns, open_feed
    from leafbeam.feeds.catalog_source import CatalogSource
    from leafbeam.feeds.delta import DeltaSource
    from leafbeam.feeds.follower import Followed, follow
    from leafbeam.feeds.iceberg import IcebergSource
    from leafbeam.feeds.kafka import KafkaFeed
    from leafbeam.feeds.postgres import PostgresFeed
    from leafbeam.feeds.publication import Publication
    from leafbeam.feeds.table import TableFeed, VersionedTable

__all__ = [
    "Batch",
    "CatalogFeed",
    "CatalogSource",
    "DeltaSource",
    "Feed",
    "Followed",
    "IcebergSource",
    "ItemChange",
    "KafkaFeed",
    "PostgresFeed",
    "Publication",
    "SourceColumns",
    "TableFeed",
    "VersionedTable",
    "follow",
    "open_feed",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
