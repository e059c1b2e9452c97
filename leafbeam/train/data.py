"""Logs of who took which item when, and the items themselves.

Shapes: U users, N items, E interactions; `indptr_U1` has U + 1 entries.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train.histories import Histories
from leafbeam.train.tables import (
    TimeUnit,
    find_table,
    id_column,
    numpy_ids,
    read_table,
    same_kind,
    times_of,
    whole_numbers,
)

__all__ = ["Columns", "Histories", "InteractionLog", "LogReport", "load_log", "log_of_tables"]

Duplicates = Literal["drop", "keep"]
Order = Literal["time", "file"]
Unlisted = Literal["keep", "drop", "refuse"]
Unseen = Literal["keep", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """What the columns are called in the user's own tables."""

    user: str = "user_id"
    item: str = "item_id"
    timestamp: str = "timestamp"
    item_of_items: str = "item_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReport:
    """What the loader read, kept and left out."""

    rows_read: int
    duplicates_dropped: int
    unlisted_items: int
    unlisted_rows_dropped: int
    core_rows_dropped: int
    unseen_items: int
    unseen_items_dropped: int
    items_without_text: int
    users_out_of_order: int
    rows_in_the_future: int
    users_with_one_interaction: int
    users: int
    items: int
    interactions: int

    def __str__(self) -> str:
        return "\n".join(f"{field.name.replace('_', ' '):28} {getattr(self, field.name):>12,}" for field in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InteractionLog:
    """All interactions of all users, and the items.

    item_ids: int64 or text (N,): the rows of `items` and the numbers in `histories.items_E`.
    user_ids: int64 or text (U,), in order of first appearance: the rows of `histories`.
    items: a table of N rows, `item_id` first, then whatever is known of an item (null where nothing is).
    """

    item_ids: NDArray[np.int64] | NDArray[np.str_]
    user_ids: NDArray[np.int64] | NDArray[np.str_]
    histories: Histories
    items: pa.Table
    report: LogReport

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    @property
    def num_users(self) -> int:
        return len(self.user_ids)


def load_log(
    path: str | Path | None = None,
    *,
    interactions: str | Path | None = None,
    items: str | Path | None = None,
    columns: Columns | None = None,
    time_unit: TimeUnit = "s",
    duplicates: Duplicates = "drop",
    order: Order = "time",
    unlisted: Unlisted = "keep",
    unseen: Unseen = "keep",
    k_core: int = 0,
) -> InteractionLog:
    """Read a table of interactions (user, item, time) and, if there is one, a table of items.

    `path` is a directory that holds `interactions.parquet`, `.csv` or `.csv.gz` and optionally `items.*`; or name the
    two files.
    In CSV, ids that are all plain whole numbers become int64, anything else ("007") stays text.
    The remaining options, and the rules for rows that are not as they should be, are those of `log_of_tables`.

    Raises DataError for a file that is missing, empty or not a table, and for what `log_of_tables` refuses.
    """
    if (path is None) == (interactions is None):
        raise ArgumentError("give either a directory, or interactions=FILE (and items=FILE)")
    columns = columns or Columns()
    if path is not None:
        directory = Path(path)
        if not directory.is_dir():
            raise DataError(f"there is no directory {directory}: it should hold interactions.parquet (or .csv)")
        interactions = find_table(directory, "interactions")
        if interactions is None:
            raise DataError(f"{directory} holds no interactions.parquet, interactions.csv or interactions.csv.gz")
        items = items if items is not None else find_table(directory, "items")
    assert interactions is not None
    log_path, items_path = Path(interactions), None if items is None else Path(items)
    return log_of_tables(
        read_table(log_path, (columns.user, columns.item)),
        None if items_path is None else read_table(items_path, (columns.item_of_items,)),
        columns=columns,
        time_unit=time_unit,
        duplicates=duplicates,
        order=order,
        unlisted=unlisted,
        unseen=unseen,
        k_core=k_core,
        from_csv=(_is_csv(log_path), items_path is not None and _is_csv(items_path)),
    )


def log_of_tables(
    interactions: pa.Table,
    items: pa.Table | None = None,
    *,
    columns: Columns | None = None,
    time_unit: TimeUnit = "s",
    duplicates: Duplicates = "drop",
    order: Order = "time",
    unlisted: Unlisted = "keep",
    unseen: Unseen = "keep",
    k_core: int = 0,
    from_csv: tuple[bool, bool] = (False, False),
) -> InteractionLog:
    """Make a log of two tables in memory. A sort of the rows; no Python loop over them.

    Times are numbers of `time_unit` since 1970, datetimes, dates or ISO 8601 text. Rules, each counted in `report`:

    * each user's rows are sorted by time; equal times keep the file's order (order="file" trusts it altogether);
    * a time after now stays where it stands in the order, and is counted: clocks are wrong more often than dates matter;
      where *every* time is after now, the unit is wrong, and that is an error;
    * rows with the same user, item and time are one interaction, the first (duplicates="keep": all);
      the same item at another time is a repeat and stays;
    * an item of the log that the item table lacks is added with null attributes (unlisted="drop" drops its rows,
      "refuse" raises);
    * an item that nobody took stays in the catalog (unseen="drop": leaves it);
    * an item without any text stays: its embedding is then behaviour alone;
    * a user with one interaction stays: it trains, and is not evaluated (`split.leave_one_out`);
    * k_core=k drops users and items with fewer than k interactions until none is left; the catalog is then the
      survivors (as in the 5-core sets of the literature), whatever `unseen` says.

    Raises DataError for missing columns, null or empty ids, ids of two kinds, an item listed twice, times that are
    null, not finite, unparsable or all in the future, and for a log that is empty, or is after k_core.
    """
    columns = columns or Columns()
    _check_choices(time_unit=time_unit, duplicates=duplicates, order=order, unlisted=unlisted, unseen=unseen, k_core=k_core)
    users = id_column(interactions, columns.user, "interactions")
    taken = id_column(interactions, columns.item, "interactions")
    times_E = times_of(interactions, columns.timestamp, time_unit)
    if len(users) == 0:
        raise DataError("the table of interactions has no rows")
    users = whole_numbers(users) if from_csv[0] else users
    future_E = times_E > time.time() * 1e6
    if future_E.all():
        raise DataError(f"every time lies in the future as time_unit={time_unit!r}: is it another unit (s, ms, us, ns)?")

    if items is None:
        taken = whole_numbers(taken) if from_csv[0] else taken
        listed, items = taken.slice(0, 0), pa.table({"item_id": taken.slice(0, 0)})
    else:
        listed = id_column(items, columns.item_of_items, "items")
        if len(listed) == 0:
            raise DataError("the table of items has no rows: leave it out, or fill it")
        taken, listed = same_kind(taken, listed, from_csv=from_csv)
        _check_unique(listed)
    unlisted_ids = pc.unique(taken.filter(pc.invert(pc.is_in(taken, value_set=listed.combine_chunks()))))
    if len(unlisted_ids) and unlisted == "refuse":
        raise DataError(
            f"{len(unlisted_ids):,} items of the log are not in the table of items, the first is "
            f"{unlisted_ids[0].as_py()!r}: add them, or pass unlisted='keep' or 'drop'"
        )
    catalog = pa.chunked_array([*listed.chunks, *([unlisted_ids] if unlisted == "keep" else [])], type=listed.type)
    encoded_users = users.combine_chunks().dictionary_encode()
    users_E = encoded_users.indices.to_numpy().astype(np.int64)
    found = pc.fill_null(pc.index_in(taken, value_set=catalog.combine_chunks()), -1)
    items_E = found.to_numpy().astype(np.int32)
    user_ids = encoded_users.dictionary

    listed_E = items_E >= 0
    sort_E = np.lexsort((times_E, users_E)) if order == "time" else np.argsort(users_E, kind="stable")
    out_of_order = _count_out_of_order(users_E, times_E)
    sort_E = sort_E[listed_E[sort_E]]
    users_E, items_E, times_E = users_E[sort_E], items_E[sort_E], times_E[sort_E]

    first_E = _first_of_equals(users_E, items_E, times_E) if duplicates == "drop" else np.ones(len(users_E), np.bool_)
    users_E, items_E, times_E = users_E[first_E], items_E[first_E], times_E[first_E]
    core_E = _core(users_E, items_E, k_core, num_users=len(user_ids), num_items=len(catalog))
    users_E, items_E, times_E = users_E[core_E], items_E[core_E], times_E[core_E]
    if len(users_E) == 0:
        rule = f"no {k_core}-core: nobody is left" if k_core else "no interaction whose item is listed"
        raise DataError(f"of {len(interactions):,} rows there is {rule}")

    seen_N = np.bincount(items_E, minlength=len(catalog)) > 0
    unseen_items = int((~seen_N).sum())
    keep_N = seen_N if k_core or unseen == "drop" else np.ones(len(catalog), np.bool_)
    items_E = (np.cumsum(keep_N) - 1)[items_E].astype(np.int32)
    table = _item_table(items, columns.item_of_items, catalog, keep_N)
    counts_U = np.bincount(users_E, minlength=len(user_ids))
    kept_U = counts_U > 0
    counts_U = counts_U[kept_U]
    indptr_U1 = np.concatenate([[0], np.cumsum(counts_U)])
    return InteractionLog(
        item_ids=numpy_ids(table["item_id"]),
        user_ids=numpy_ids(user_ids.filter(pa.array(kept_U))),
        histories=Histories(indptr_U1=indptr_U1, items_E=items_E, times_E=times_E),
        items=table,
        report=LogReport(
            rows_read=len(interactions),
            duplicates_dropped=int((~first_E).sum()),
            unlisted_items=len(unlisted_ids),
            unlisted_rows_dropped=int((~listed_E).sum()),
            core_rows_dropped=int((~core_E).sum()),
            unseen_items=unseen_items,
            unseen_items_dropped=int((~keep_N).sum()),
            items_without_text=_count_without_text(table),
            users_out_of_order=out_of_order,
            rows_in_the_future=int(future_E.sum()),
            users_with_one_interaction=int((counts_U == 1).sum()),
            users=len(counts_U),
            items=len(table),
            interactions=len(items_E),
        ),
    )


def _is_csv(path: Path) -> bool:
    return path.name.endswith((".csv", ".csv.gz"))


def _check_choices(
    *, time_unit: TimeUnit, duplicates: Duplicates, order: Order, unlisted: Unlisted, unseen: Unseen, k_core: int
) -> None:
    for name, value, kind in (
        ("time_unit", time_unit, TimeUnit),
        ("duplicates", duplicates, Duplicates),
        ("order", order, Order),
        ("unlisted", unlisted, Unlisted),
        ("unseen", unseen, Unseen),
    ):
        if value not in get_args(kind):
            raise ArgumentError(f"{name}={value!r}: choose one of {', '.join(map(repr, get_args(kind)))}")
    if k_core < 0:
        raise ArgumentError(f"k_core={k_core}: 0 keeps everything, 5 is usual")


def _check_unique(listed: pa.ChunkedArray) -> None:
    """An item id that stands in two rows is an error: which row would be the item?"""
    encoded = listed.combine_chunks().dictionary_encode()
    if len(encoded.dictionary) == len(listed):
        return
    counts = np.bincount(encoded.indices.to_numpy())
    twice = int(np.argmax(counts > 1))
    rows = np.flatnonzero(encoded.indices.to_numpy() == twice)[:2].tolist()
    raise DataError(
        f"{int((counts > 1).sum()):,} item ids are listed more than once in the table of items, the first is "
        f"{encoded.dictionary[twice].as_py()!r} in rows {rows[0]:,} and {rows[1]:,}: keep one row an item"
    )


def _count_out_of_order(users_E: NDArray[np.int64], times_E: NDArray[np.int64]) -> int:
    """How many users have a row in the file that is earlier than the row before it."""
    by_user_E = np.argsort(users_E, kind="stable")
    users_E, times_E = users_E[by_user_E], times_E[by_user_E]
    falls = (users_E[1:] == users_E[:-1]) & (times_E[1:] < times_E[:-1])
    return len(np.unique(users_E[1:][falls]))


def _first_of_equals(users_E: NDArray[np.int64], items_E: NDArray[np.int32], times_E: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks the first of the rows that agree in user, item and time."""
    sort_E = np.lexsort((items_E, times_E, users_E))  # stable: the first of equals stays first
    same = np.ones(len(users_E) - 1 if len(users_E) else 0, np.bool_)
    for values in (users_E, items_E, times_E):
        same &= values[sort_E][1:] == values[sort_E][:-1]
    first_E = np.ones(len(users_E), np.bool_)
    first_E[sort_E[1:][same]] = False
    return first_E


def _core(
    users_E: NDArray[np.int64], items_E: NDArray[np.int32], k_core: int, *, num_users: int, num_items: int
) -> NDArray[np.bool_]:
    """Marks the interactions of the k-core: repeat "drop users and items with fewer than k" until nothing changes."""
    keep_E = np.ones(len(users_E), np.bool_)
    while k_core > 1:
        enough_U = np.bincount(users_E[keep_E], minlength=num_users) >= k_core
        enough_N = np.bincount(items_E[keep_E], minlength=num_items) >= k_core
        narrower_E = keep_E & enough_U[users_E] & enough_N[items_E]
        if narrower_E.sum() == keep_E.sum():
            break
        keep_E = narrower_E
    return keep_E


def _item_table(items: pa.Table, id_name: str, catalog: pa.ChunkedArray, keep_N: NDArray[np.bool_]) -> pa.Table:
    """The items' attributes in the order of the catalog, `item_id` first, null for items that were not listed."""
    others = [name for name in items.column_names if name != id_name]
    if "item_id" in others:
        raise DataError(f"the item id is the column {id_name!r}, but another column is called 'item_id': rename that one")
    attributes = items.select(others)
    missing = len(catalog) - len(items)
    if missing:
        nulls = pa.table({field.name: pa.nulls(missing, field.type) for field in attributes.schema}) if others else None
        attributes = pa.concat_tables([attributes, nulls]) if nulls is not None else attributes
    table = pa.Table.from_arrays([catalog, *attributes.columns], names=["item_id", *others])
    return table.filter(pa.array(keep_N)).replace_schema_metadata(None)


def _count_without_text(table: pa.Table) -> int:
    """How many items have no text in any column beside the id."""
    has_text = np.zeros(len(table), np.bool_)
    for field in table.schema:
        if field.name != "item_id" and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            has_text |= pc.fill_null(pc.greater(pc.utf8_length(table[field.name]), 0), False).to_numpy(zero_copy_only=False)
    return int((~has_text).sum())
