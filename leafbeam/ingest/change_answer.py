"""ChangeAnswer: the counts of a change, in its log, as the answer over HTTP and for clients. Needs msgspec alone."""

from typing import Annotated

from msgspec import Meta, Struct


class ChangeAnswer(Struct, frozen=True, kw_only=True):
    """What a batch did. It is on disk, and the next request sees it."""

    inserted: Annotated[int, Meta(description="Items that were not there.")]
    updated: Annotated[int, Meta(description="Items that were.")]
    deleted: int
    ignored: Annotated[int, Meta(description="Lines of items to delete that were not there, with `?missing=ignore`.")]
    number: Annotated[
        int, Meta(description="Of the version that has the change: `index_version` ends in `+number` or a later one.")
    ]
