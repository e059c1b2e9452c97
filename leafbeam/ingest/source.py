"""Source: where the changes of a catalog's items come from, if not from clients."""

from typing import Protocol

from leafbeam.ingest.answers import FeedStatus


class Source(Protocol):
    """Makes the changes of another system in a catalog, in a thread of its own. name: for messages."""

    name: str

    def start(self) -> None:
        """Begin to follow the source."""

    def stop(self) -> None:
        """Follow it no longer; return once no change is being made."""

    @property
    def status(self) -> FeedStatus: ...

    @property
    def unready_reason(self) -> str | None:
        """Return why the items are too old to be recommended; None if they are not."""
