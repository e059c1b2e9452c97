"""The JSON of the routes that change a catalog."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from leafbeam.ingest.answers import ChangeAnswer, SnapshotAnswer
from leafbeam.serve.schema import Id, ItemId

MAX_ITEMS = 256  # that a search finds, and ids that it looks up
MAX_CHARACTERS = 200  # of its query
_EXAMPLE = {"item_id": "P900", "title": "Red silk shoe", "price": 49.5}


class ItemBody(Struct, frozen=True, kw_only=True):
    """One item of a batch: a line of `application/x-ndjson`, or an object of a JSON list. Its attributes are further fields."""

    item_id: Id
    codes: Annotated[
        list[int] | None,
        Meta(description="Its Semantic ID, one code for each level. By default it is computed from the item's text."),
    ] = None
    vector: Annotated[
        list[float] | None,
        Meta(description="The item's vector, in place of text, if the Semantic IDs were fitted on your own vectors."),
    ] = None


class ItemAnswer(Struct, frozen=True, kw_only=True):
    """An item that may be recommended."""

    item_id: Id
    codes: Annotated[tuple[int, ...], Meta(description="Its Semantic ID, one code for each level.")]
    attributes: dict[str, Any]
    rules: Annotated[tuple[str, ...], Meta(description="The rules that allow it.")]
    index_version: str


class UserAnswer(Struct, frozen=True, kw_only=True):
    """The items that a user took, as the log of interactions has them."""

    user: str
    history: Annotated[
        tuple[ItemId, ...], Meta(description="The items, oldest first, including those that are no longer in the index.")
    ]


class FoundItem(Struct, frozen=True, kw_only=True):
    """An item, its attributes, and the rules that allow it."""

    item_id: ItemId
    attributes: dict[str, Any]
    in_index: Annotated[bool, Meta(description="Whether the item can be recommended.")]
    rules: Annotated[tuple[str, ...], Meta(description="The rules that allow it.")]
    allowed: Annotated[bool, Meta(description="Whether the rules and the filter of the query allow the item.")]


class FoundItems(Struct, frozen=True, kw_only=True):
    """Items found, and how many items of the whole index the rules and the filter of the query allow."""

    items: tuple[FoundItem, ...]
    num_allowed: int
    num_items: Annotated[int, Meta(description="The number of items of the index.")]
    title_column: Annotated[
        str | None,
        Meta(description="The column that is searched: `title`, or `name`, or the first column of text; null: ids only."),
    ]
    index_version: str


class CatalogAnswer(Struct, frozen=True, kw_only=True):
    """The catalog now."""

    index_version: str
    num_items: int
    num_changed: Annotated[int, Meta(description="The number of items inserted or deleted since the last compaction.")]
    is_compacting: bool
    codebook_sizes: tuple[int, ...]
    item_ids: Annotated[
        Literal["numbers", "text"] | None, Meta(description="The type of item ids; null if there are no items.")
    ]
    columns: Annotated[dict[str, str], Meta(description="The attributes and their types.")]
    text_columns: Annotated[
        tuple[str, ...],
        Meta(description="The attributes from which the codes of a new item are computed; the list may be empty."),
    ]
    writable: bool
    reason: Annotated[
        str | None, Meta(description="The reason why the catalog is not writable, or why new items must be sent with codes.")
    ]
    snapshots: tuple[SnapshotAnswer, ...]


class SnapshotBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to make."""

    name: Annotated[str, Meta(description="A letter or digit, and up to 63 letters, digits, `-`, `_` or `.`.")]


class RollbackBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to go back to."""

    snapshot: Annotated[str | None, Meta(description="The name of the snapshot. Default: the newest one.")] = None


class RuleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule."""

    where: Annotated[str, Meta(description="An SQL predicate over the columns, such as `price < 20`.")]
    refresh: Annotated[
        str | None,
        Meta(
            description="The interval at which the rule is evaluated again, such as `60s`. "
            "By default it is evaluated when items change or rules are reloaded."
        ),
    ] = None


class RuleAnswer(Struct, frozen=True, kw_only=True):
    """A rule in use."""

    name: str
    where: str
    refresh_s: float | None
    num_items: Annotated[int, Meta(description="The number of items that the rule allows.")]
    error: Annotated[
        str | None,
        Meta(description="The reason why the last evaluation failed; the filter of the evaluation before stays in use."),
    ]
    age_s: Annotated[float | None, Meta(description="Seconds since it was last evaluated over all items.")]


class RulesAnswer(Struct, frozen=True, kw_only=True):
    """All rules in use."""

    rules: tuple[RuleAnswer, ...]


class BoostBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A boost."""

    expression: Annotated[
        str, Meta(description="An SQL expression over the columns that yields a number for each item, such as `0.1 * margin`.")
    ]
    refresh: Annotated[
        str | None,
        Meta(
            description="The interval at which the boost is evaluated again, such as `1h`. "
            "By default it is evaluated when items change or rules are reloaded."
        ),
    ] = None


class BoostAnswer(Struct, frozen=True, kw_only=True):
    """A boost in use."""

    name: str
    expression: str
    refresh_s: float | None
    num_items: Annotated[int, Meta(description="The number of items for which the boost is not 0.")]
    error: Annotated[
        str | None,
        Meta(description="The reason why the last evaluation failed; the numbers of the evaluation before stay in use."),
    ]
    age_s: Annotated[float | None, Meta(description="Seconds since it was last evaluated over all items.")]


class BoostsAnswer(Struct, frozen=True, kw_only=True):
    """All boosts in use."""

    boosts: tuple[BoostAnswer, ...]


TYPES = [
    ItemBody,
    ChangeAnswer,
    ItemAnswer,
    FoundItems,
    UserAnswer,
    CatalogAnswer,
    SnapshotBody,
    SnapshotAnswer,
    RollbackBody,
    RuleBody,
    RuleAnswer,
    RulesAnswer,
    BoostBody,
    BoostAnswer,
    BoostsAnswer,
]
EXAMPLES = {"ItemBody": _EXAMPLE}
