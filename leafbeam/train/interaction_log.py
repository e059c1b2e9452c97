"""Interaction logs: interactions of users with items in time order, and the table of items.

Shapes: U users, N items, E interactions; `indptr_U1` has U + 1 entries.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError, ItemIdError, counted, short_repr
from leafbeam.ids import parse_id
from leafbeam.semid.table import numpy_ids
from leafbeam.tables import (
    CsvFormat,
    Ids,
    SourceTable,
    TimeUnit,
    complete_rows,
    listed,
    nanoseconds,
    read_ids,
    read_table,
    rows_of_lists,
    same_type,
)
from leafbeam.tables.foreign import is_dataset, joined_features, read_ratings
from leafbeam.tables.reader import SUFFIXES, find_table
from leafbeam.train.histories import Histories
from leafbeam.train.log_rules import Columns, LogReport, LogRules, Order

_YEAR_1980 = 315_532_800 * 10**9  # in nanoseconds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InteractionLog:
    """All interactions of all users, and the items.

    Attributes:
        item_ids: int64 or text (N,); position n is row n of `items` and number n in `histories.items_E`.
        user_ids: int64 or text (U,) in order of first appearance; position u is user u of `histories`.
        histories: The items of each user.
        items: A table of N rows, `item_id` first, then the items' attributes (null where unknown).
        report: The counts of what was changed.
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

    def history_of(self, user: str) -> list[int | str]:
        """Return the items of a user, oldest first; this compares all users. Raises ItemIdError for a user without any."""
        user_id = parse_id(user, self.user_ids.dtype.kind)
        row = np.flatnonzero(self.user_ids == user_id) if user_id is not None else np.empty(0, np.int64)
        if not len(row):
            known = f"{counted(self.num_users, 'user has', 'users have')} ids such as {', '.join(map(str, self.user_ids[:3]))}"
            raise ItemIdError(f"the log has no user {short_repr(user)}; its {known}")
        return self.item_ids[self.histories[int(row[0])]].tolist()

    def __repr__(self) -> str:
        return (
            f"InteractionLog({counted(self.num_users, 'user')}, {counted(self.num_items, 'item')}, "
            f"{counted(self.report.interactions, 'interaction')})"
        )


def load_log(
    path: str | Path | None = None,
    *,
    interactions: str | Path | None = None,
    items: str | Path | None = None,
    columns: Columns | None = None,
    rules: LogRules | None = None,
    form: CsvFormat | None = None,
    items_form: CsvFormat | None = None,
    headerless: bool = False,
) -> InteractionLog:
    """Read a table of interactions (user, item, time) and, if there is one, a table of items.

    In CSV, ids that are all plain whole numbers become int64; other ids ("007") stay text. A column of items may hold lists, a
    user's items from the oldest on, with order="file", or with equally long lists of times. Tables may also be JSON,
    files of RecBole (.inter, .item) and directories that Hugging Face's datasets saved; a table of items may be
    RecTools' (id, feature, value).

    Args:
        path: A directory with `interactions.parquet`, `.csv` or `.csv.gz` and optionally `items.*`.
        interactions: In place of a directory, the file of interactions.
        items: The file of items.
        columns: The names of the columns.
        rules: The rules by which the tables become a log.
        form: The delimiter and the encoding of CSV.
        items_form: The delimiter and the encoding of the table of items, if they differ.
        headerless: If true, interactions are lines of user, item, rating and, optionally, time, as in cornac.

    Raises:
        DataError: If a file is unusable; otherwise as for `log_from_tables`.

    Examples:
        >>> load_log(interactions="clicks.csv", items="goods.csv", columns=Columns(user="who", item="sku", item_of_items="sku"))
    """
    columns, form = columns or Columns(), form or CsvFormat()
    interactions, items = _files_of_log(path, interactions, items)
    if headerless:
        taken = read_ratings(interactions)
    else:
        names, times = (columns.user, columns.item), (columns.timestamp,)
        taken = read_table(interactions, ids=names, times=times, only=(*names, *times), form=form, lists=columns.item)
    offered = None
    if items is not None:
        offered = joined_features(read_table(items, ids=(columns.item_of_items,), form=items_form or form))
    return log_from_tables(taken, offered, columns=columns, rules=rules)


def _files_of_log(
    path: str | Path | None, interactions: str | Path | None, items: str | Path | None
) -> tuple[Path, Path | None]:
    """Return the files of interactions and of items. Raises ArgumentError, DataError if there are none."""
    if path is not None and is_dataset(Path(path)):
        path, interactions = None, path
    if (path is None) == (interactions is None):
        raise ArgumentError("pass either a directory, or interactions=FILE (and items=FILE)")
    if path is not None:
        directory = Path(path)
        if directory.exists() and not directory.is_dir():
            raise DataError(f"{path} is not a directory: name a table as interactions=FILE")
        if not directory.exists():
            raise DataError(f"there is no directory {path}: it should hold interactions.parquet (or .csv)")
        interactions = find_table(directory, "interactions")
        if interactions is None:
            missing = f"{path} holds no {', '.join(f'interactions{suffix}' for suffix in SUFFIXES)}"
            how = "`leafbeam fit-sids --data FILE` (in Python interactions=FILE)"
            raise DataError(f"{missing}: rename the file, or name it with {how}")
        items = items if items is not None else find_table(directory, "items")
    assert interactions is not None
    return Path(interactions), None if items is None else Path(items)


def log_from_tables(
    interactions: pa.Table | SourceTable,
    items: pa.Table | SourceTable | None = None,
    *,
    columns: Columns | None = None,
    rules: LogRules | None = None,
) -> InteractionLog:
    """Make a log from two tables in memory. This costs a sort of the rows.

    Times are numbers of `rules.time_unit` since 1970, datetimes, dates or ISO 8601 text. `report` counts what each rule did:

    * A column of lists of items is a row for each item (see `load_log`).
    * Each user's rows are sorted by time; equal times keep the file's order.
    * A time in the future or before 1980 is kept and counted. If *every* time is in the future, or before 1980 in another unit
      than seconds, the unit is wrong, which is an error.
    * An item without text is kept: its embedding is co-occurrence alone.
    * A user with one interaction is kept: it trains, and is not evaluated (`leave_one_out`).

    Args:
        interactions: The interactions.
        items: The items.
        columns: The names of the columns.
        rules: The rules by which rows are kept, dropped and converted.

    Raises:
        DataError: If a column is missing; an id is empty, has control characters, or has another type than others; an item is
            listed twice; times are empty, not finite, unreadable, all in the future or all too early; or the log is empty, also
            after k_core.
    """
    columns, rules = columns or Columns(), rules or LogRules()
    if not isinstance(interactions, SourceTable):
        interactions = SourceTable(table=interactions, source="the table of interactions")
    interactions, num_incomplete = _single_rows(interactions, columns, rules)
    users, times_E, has_times = _users_and_times(interactions, columns, rules)
    future_E = times_E > time.time() * 1e9
    early_E = times_E < _YEAR_1980 if has_times else np.zeros(len(users), np.bool_)
    _check_unit(future_E, early_E, rules.time_unit)

    items = items if items is None or isinstance(items, SourceTable) else SourceTable(table=items, source="the table of items")
    taken, offered = _ids_of_items(interactions, items, columns, text_ids=rules.text_ids)
    new_ids, notes = _unlisted(taken.values, offered, items, rules.unlisted)
    catalog = pa.concat_arrays([offered, new_ids]) if rules.unlisted == "keep" else offered
    rows_n = pc.fill_null(pc.index_in(taken.values, value_set=catalog), -1).to_numpy(zero_copy_only=False).astype(np.int32)
    rows, counts = _Rows(users.codes_E, rows_n[taken.codes_E], times_E).cleaned(rules)

    seen_N = np.bincount(rows.items_E, minlength=len(catalog)) > 0
    keep_N = seen_N if rules.k_core or rules.unseen == "drop" else np.ones(len(catalog), np.bool_)
    items_E = (np.cumsum(keep_N) - 1)[rows.items_E].astype(np.int32)
    attributes = pa.table({columns.item_of_items: offered}) if items is None else items.table
    table = _item_table(attributes, columns.item_of_items, catalog, keep_N)
    counts_U = np.bincount(rows.users_E, minlength=len(users.values))
    user_ids = users.values.filter(pa.array(counts_U > 0))
    counts_U = counts_U[counts_U > 0]
    report = LogReport(
        **counts,
        rows_read=len(users) + num_incomplete,
        incomplete_rows_dropped=num_incomplete,
        unlisted_items=len(new_ids),
        unseen_items=int((~seen_N).sum()),
        unseen_items_dropped=int((~keep_N).sum()),
        items_without_text=_count_without_text(table),
        rows_in_the_future=int(future_E.sum()),
        rows_before_1980=int(early_E.sum()),
        users_with_one_interaction=int((counts_U == 1).sum()),
        users=len(counts_U),
        items=len(table),
        interactions=len(items_E),
        notes=tuple(notes),
    )
    indptr_U1 = np.concatenate([[0], np.cumsum(counts_U)])
    return InteractionLog(
        item_ids=numpy_ids(table["item_id"]),
        user_ids=numpy_ids(user_ids),
        histories=Histories(indptr_U1=indptr_U1, items_E=items_E, times_E=rows.times_E),
        items=table,
        report=report,
    )


def _single_rows(source: SourceTable, columns: Columns, rules: LogRules) -> tuple[SourceTable, int]:
    """Return a row for each interaction, and how many rows were left out because they are incomplete."""
    in_order = rules.order == "file"
    if rules.incomplete == "refuse":
        return rows_of_lists(source, columns.item, columns.timestamp, in_order=in_order), 0
    names = [name for name in (columns.user, columns.item, columns.timestamp) if name in source.table.column_names]
    with_lists = complete_rows(source, names)
    single = rows_of_lists(with_lists, columns.item, columns.timestamp, in_order=in_order)
    complete = complete_rows(single, names)  # lists may hold nulls too
    return complete, len(source.table) - len(with_lists.table) + len(single.table) - len(complete.table)


def _users_and_times(interactions: SourceTable, columns: Columns, rules: LogRules) -> tuple[Ids, NDArray[np.int64], bool]:
    """Return the user and the time of each row, and whether the times are of a column; without one, they are row numbers."""
    users = read_ids(interactions, columns.user, "user", as_text=rules.text_ids)
    has_times = rules.order != "file" or columns.timestamp in interactions.table.column_names
    times_E = nanoseconds(interactions, columns.timestamp, rules.time_unit) if has_times else np.arange(len(users))
    if len(users) == 0:
        raise DataError(f"{interactions.source} has no rows")
    return users.as_numbers() if interactions.is_text and not rules.text_ids else users, times_E, has_times


def _unlisted(ids: pa.Array, offered: pa.Array, items: SourceTable | None, unlisted: str) -> tuple[pa.Array, list[str]]:
    """Return the ids of the log that the table of items lacks, and a note if it lacks all; raise DataError for "refuse"."""
    new_ids = ids.filter(pc.invert(pc.is_in(ids, value_set=offered)))
    if len(new_ids) and unlisted == "refuse":
        raise DataError(
            f"{counted(len(new_ids), 'item of the log is', 'items of the log are')} not in the table of items: "
            f"{_some(new_ids)}: add them, or pass unlisted='keep' or 'drop'"
        )
    if items is None or len(new_ids) < len(ids):
        return new_ids, []
    example = _some(offered, 1)
    return new_ids, [
        f"no item of the log, such as {_some(new_ids, 1)}, is in {items.source}, which has {example}: write the ids in one way"
    ]


class _Rows(NamedTuple):
    """The user, the item and the time of each row; -1 is an item that is not listed."""

    users_E: NDArray[np.int32]
    items_E: NDArray[np.int32]
    times_E: NDArray[np.int64]

    def at(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "_Rows":
        """Return some of the rows."""
        return _Rows(self.users_E[rows], self.items_E[rows], self.times_E[rows])

    def sorted(self, order: Order) -> "tuple[_Rows, int]":
        """Return the rows by users, and by time unless the file's order counts; and the users whose rows were out of order."""
        by_user_E = np.argsort(self.users_E, kind="stable")
        out_of_order = _count_out_of_order(self.users_E[by_user_E], self.times_E[by_user_E])
        is_sorted = order == "file" or not out_of_order
        return self.at(by_user_E if is_sorted else np.lexsort((self.times_E, self.users_E))), out_of_order

    def cleaned(self, rules: LogRules) -> "tuple[_Rows, dict[str, int]]":
        """Return the rows that the rules keep, sorted, and the counts of a `LogReport`. Raises DataError if none is left."""
        listed_E = self.items_E >= 0
        rows, out_of_order = self.sorted(rules.order)
        rows = rows if listed_E.all() else rows.at(rows.items_E >= 0)
        first_E = _first_of_equals(*rows) if rules.duplicates == "drop" else np.ones(len(rows.users_E), np.bool_)
        rows = rows.at(first_E)
        core_E = _core(rows.users_E, rows.items_E, rules.k_core)
        counts = {
            "duplicates_dropped": int((~first_E).sum()),
            "unlisted_rows_dropped": int((~listed_E).sum()),
            "core_rows_dropped": int((~core_E).sum()),
            "users_out_of_order": out_of_order,
            "tied_times": rows.num_tied if rules.order == "time" else 0,
        }
        if not core_E.any():
            rule = f"is in the {rules.k_core}-core of users and items" if rules.k_core else "has an item that is listed"
            raise DataError(f"of {counted(len(listed_E), 'row')} none {rule}")
        return rows.at(core_E), counts

    @property
    def num_tied(self) -> int:
        """Return the number of rows whose time is that of the same user's row before."""
        same_user = self.users_E[1:] == self.users_E[:-1]
        return int((same_user & (self.times_E[1:] == self.times_E[:-1])).sum())


def _check_unit(future_E: NDArray[np.bool_], early_E: NDArray[np.bool_], unit: TimeUnit) -> None:
    """Raise DataError if all times are in the future, or all are early in another unit than seconds."""
    how = f"as time_unit={unit!r}: pass another (--time-unit s, ms, us or ns)"
    if future_E.all():
        raise DataError(f"every time lies in the future {how}")
    if early_E.all() and unit != "s":
        raise DataError(f"every time lies before 1980 {how}")


def _ids_of_items(
    interactions: SourceTable, items: SourceTable | None, columns: Columns, *, text_ids: bool
) -> tuple[Ids, pa.Array]:
    """Return the items of the interactions, and those of the table of items, if there is one, in one type of id."""
    taken = read_ids(interactions, columns.item, "item", as_text=text_ids)
    if items is None:
        taken = taken.as_numbers() if interactions.is_text and not text_ids else taken
        return taken, taken.values.slice(0, 0)
    ids = read_ids(items, columns.item_of_items, "item_of_items", as_text=text_ids)
    if len(ids) == 0:
        raise DataError(f"{items.source} has no rows: leave it out, or fill it")
    if not text_ids:
        taken, ids = same_type(taken, ids, interactions, items)
    check_listed_once(ids, items)
    return taken, ids.values


def _some(ids: pa.Array, count: int = 10) -> str:
    return listed((repr(value) for value in ids.slice(0, count).to_pylist()), total=count if count == 1 else len(ids))


def check_listed_once(ids: Ids, source: SourceTable) -> None:
    """Raise DataError for an item id that a table has twice."""
    counts_n = np.bincount(ids.codes_E, minlength=len(ids.values))
    repeated = np.flatnonzero(counts_n > 1)
    if not len(repeated):
        return
    parts: list[str] = []
    for code in repeated[:10].tolist():
        rows = np.flatnonzero(ids.codes_E == code)[:10].tolist()
        parts.append(f"{ids.values[code].as_py()!r} in {' and '.join(source.where(row) for row in rows)}")
    shown = listed(parts, total=len(repeated))
    raise DataError(
        f"{source.source}: {counted(len(repeated), 'item id is', 'item ids are')} listed more than once, {shown}: "
        "keep one row for each item"
    )


def _count_out_of_order(users_E: NDArray[np.int32], times_E: NDArray[np.int64]) -> int:
    """Return the number of users, who are sorted, with a row that is earlier than their row before it."""
    falls = (users_E[1:] == users_E[:-1]) & (times_E[1:] < times_E[:-1])
    return len(np.unique(users_E[1:][falls]))


def _first_of_equals(users_E: NDArray[np.int32], items_E: NDArray[np.int32], times_E: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first of the rows with equal user, item and time. Users are sorted."""
    same_user = users_E[1:] == users_E[:-1]
    rows = np.arange(len(users_E))
    if not (same_user & (times_E[1:] < times_E[:-1])).any():  # in order of time too: equals are neighbours
        tied = same_user & (times_E[1:] == times_E[:-1])
        rows = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
    rows = rows[np.lexsort((items_E[rows], times_E[rows], users_E[rows]))]  # stable: the first of equals stays first
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    for values in (users_E[rows], items_E[rows], times_E[rows]):
        same &= values[1:] == values[:-1]
    first_E = np.ones(len(users_E), np.bool_)
    first_E[rows[1:][same]] = False
    return first_E


def _core(users_E: NDArray[np.int32], items_E: NDArray[np.int32], k_core: int) -> NDArray[np.bool_]:
    """Mark the interactions of the k-core: drop users and items with fewer than k until nothing changes."""
    keep_E, before = np.ones(len(users_E), np.bool_), -1
    while k_core > 1 and keep_E.sum() not in (0, before):
        before = keep_E.sum()
        for rows_E in (users_E, items_E):
            keep_E &= (np.bincount(rows_E[keep_E], minlength=int(rows_E.max()) + 1) >= k_core)[rows_E]
    return keep_E


def _item_table(items: pa.Table, id_name: str, catalog: pa.ChunkedArray, keep_N: NDArray[np.bool_]) -> pa.Table:
    """Return the items' attributes in the order of the catalog, `item_id` first, null for unlisted items."""
    others = [name for name in items.column_names if name != id_name]
    if "item_id" in others:
        raise DataError(f"the item id is the column {id_name!r}, but another column is called 'item_id': rename that one")
    attributes = items.select(others)
    missing = len(catalog) - len(items)
    if missing and others:
        nulls = pa.table({field.name: pa.nulls(missing, field.type) for field in attributes.schema})
        attributes = pa.concat_tables([attributes, nulls])
    table = pa.Table.from_arrays([catalog, *attributes.columns], names=["item_id", *others])
    return table.filter(pa.array(keep_N)).replace_schema_metadata(None)


def _count_without_text(table: pa.Table) -> int:
    """Return the number of items without text in any column but the id."""
    has_text_N = np.zeros(len(table), np.bool_)
    for field in table.schema:
        if field.name != "item_id" and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            has_text_N |= pc.fill_null(pc.greater(pc.utf8_length(table[field.name]), 0), False).to_numpy(zero_copy_only=False)
    return int((~has_text_N).sum())
