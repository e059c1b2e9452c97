"""How tables become a log: the rules, the names of columns, and the counts of what the rules did."""

from dataclasses import dataclass, fields
from typing import Literal

from leafbeam.errors import ArgumentError, check_choice
from leafbeam.tables import TimeUnit

Duplicates = Literal["drop", "keep"]
Incomplete = Literal["refuse", "drop"]
Order = Literal["time", "file"]
Unlisted = Literal["keep", "drop", "refuse"]
Unseen = Literal["keep", "drop"]
_CHOICES = {
    "time_unit": TimeUnit,
    "duplicates": Duplicates,
    "incomplete": Incomplete,
    "order": Order,
    "unlisted": Unlisted,
    "unseen": Unseen,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRules:
    """The rules by which tables become a log.

    Args:
        time_unit: The unit of times that are numbers.
        duplicates: "drop" counts rows with the same user, item and time as one interaction; "keep" keeps all of them.
        incomplete: "refuse" raises for rows without a user, an item or a time; "drop" drops them.
        order: "file" keeps the file's order altogether and needs no column of times: without one, a row's number is its time.
        unlisted: "keep" adds an item that the item table lacks, with null attributes; "drop" drops its rows; "refuse" raises.
        unseen: "keep" keeps an item without interactions; "drop" drops it.
        k_core: If not 0, users and items with fewer interactions are dropped until none is left; only the remaining items stay,
            whatever `unseen` says.
        text_ids: If true, all ids become text; otherwise they keep their type.

    Raises:
        ArgumentError: If a value is not one of its choices, or `k_core` is negative.
    """

    time_unit: TimeUnit = "s"
    duplicates: Duplicates = "drop"
    incomplete: Incomplete = "refuse"
    order: Order = "time"
    unlisted: Unlisted = "keep"
    unseen: Unseen = "keep"
    k_core: int = 0
    text_ids: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.k_core < 0:
            raise ArgumentError(f"k_core={self.k_core}: 0 keeps everything, 5 is usual")


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The column names of the user's own tables.

    Args:
        user: The user's id in the interactions.
        item: The item's id in the interactions.
        timestamp: The time in the interactions.
        item_of_items: The item's id in the table of items.
    """

    user: str = "user_id"
    item: str = "item_id"
    timestamp: str = "timestamp"
    item_of_items: str = "item_id"

    def __post_init__(self) -> None:
        names = (self.user, self.item, self.timestamp)
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"users, items and times are the columns {', '.join(map(repr, names))}: expected a column for each "
                "(--user-column, --item-column, --time-column)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReport:
    """The counts of rows, users and items that the loader read, kept and dropped.

    `tied_times` counts rows whose time is that of the same user's row before. `notes` are sentences about what is probably a
    mistake.
    """

    rows_read: int
    incomplete_rows_dropped: int
    duplicates_dropped: int
    unlisted_items: int
    unlisted_rows_dropped: int
    core_rows_dropped: int
    unseen_items: int
    unseen_items_dropped: int
    items_without_text: int
    users_out_of_order: int
    rows_in_the_future: int
    rows_before_1980: int
    tied_times: int
    users_with_one_interaction: int
    users: int
    items: int
    interactions: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "notes"}
        lines = [f"{name.replace('_', ' '):28} {count:>12,}" for name, count in counts.items()]
        return "\n".join([*lines, *self.notes])
