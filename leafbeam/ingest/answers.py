"""Answers to changes: the counts of a change, and a saved snapshot.

The log of requests, the HTTP interface and clients read them, so this module needs no package but msgspec.
"""

from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct


class ChangeAnswer(Struct, frozen=True, kw_only=True):
    """The effect of a batch. The batch is on disk, and the next request sees it."""

    inserted: Annotated[int, Meta(description="Items that are new.")]
    updated: Annotated[int, Meta(description="Items that existed before.")]
    deleted: int
    ignored: Annotated[int, Meta(description="Items to delete that did not exist, with `?missing=ignore`.")]
    number: Annotated[
        int,
        Meta(description="The number of the version with this change. `index_version` then ends in `+number`."),
    ]

    @classmethod
    def nothing(cls, **fields: object) -> Self:
        """Return the counts before the first change; `fields` are those that a subclass adds."""
        return cls(inserted=0, updated=0, deleted=0, ignored=0, number=0, **fields)

    def plus(self, later: "ChangeAnswer") -> Self:
        """Return the counts of both changes together, with the number of the later one."""
        return msgspec.structs.replace(
            self,
            inserted=self.inserted + later.inserted,
            updated=self.updated + later.updated,
            deleted=self.deleted + later.deleted,
            ignored=self.ignored + later.ignored,
            number=later.number,
        )


class FeedStatus(Struct, frozen=True, kw_only=True):
    """The progress in the followed source of the items.

    Servers that began alike and have the same position have the same items.
    """

    source: Annotated[str, Meta(description="The name of the source.")]
    position: Annotated[dict[str, Any], Meta(description="The place in the source up to which all changes are made.")]
    lag_s: Annotated[
        float | None,
        Meta(description="The age, in seconds, of the oldest change that may be missing; null before the first look."),
    ]
    error: Annotated[str | None, Meta(description="The reason why following stopped; it is tried again.")] = None


class SnapshotAnswer(Struct, frozen=True, kw_only=True):
    """A saved state of all items and attributes."""

    name: str
    num_items: int
    index_version: str
    created: Annotated[str, Meta(description="When, in UTC.")]
    feed: Annotated[
        dict[str, Any],
        Meta(description="The position in the followed source that belongs to the snapshot; empty without a source."),
    ] = {}
