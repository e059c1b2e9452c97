"""Changes of a served catalog: batches of items that are checked, durable and made once. Names load on first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.ingest.answers import ChangeAnswer, FeedStatus, SnapshotAnswer
    from leafbeam.ingest.lines import MAX_LINES, ItemLine, Lines
    from leafbeam.ingest.live_directory import INDEX, RULES, LiveDirectory, check_origin, origin_of, set_aside
    from leafbeam.ingest.writer import CatalogWriter, Source

__all__ = [
    "INDEX",
    "MAX_LINES",
    "RULES",
    "CatalogWriter",
    "ChangeAnswer",
    "FeedStatus",
    "ItemLine",
    "Lines",
    "LiveDirectory",
    "SnapshotAnswer",
    "Source",
    "check_origin",
    "origin_of",
    "set_aside",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
