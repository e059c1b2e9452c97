"""ChangeAnswer: the counts of a change, for the log, the answer over HTTP and clients. It needs no package but msgspec."""

from typing import Annotated

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
