"""Items of one table beside the ids or the interactions of another. Shapes: N items, E interactions."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import DataError, counted
from leafbeam.semid.table import numpy_ids
from leafbeam.tables import SourceTable, read_ids, same_type
from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog, check_listed_once


def item_table(
    ids: SourceTable, items: SourceTable | None, *, item_column: str = "item_id", text_ids: bool = False
) -> tuple[pa.Table, int]:
    """Return the items of some ids with their attributes, null for unlisted items, and the number of listed items left out.

    Types of ids are as for `log_from_tables`. Raises DataError, also if no id is listed.

    Args:
        ids: A table with the column item_id.
        items: The items; None gives no attributes.
        item_column: The column of their ids.
        text_ids: As for `log_from_tables`.
    """
    taken = read_ids(ids, "item_id", "item", as_text=text_ids)
    if items is None:
        return pa.table({"item_id": (taken.as_numbers() if ids.is_text and not text_ids else taken).column}), 0
    offered = read_ids(items, item_column, "item_of_items", as_text=text_ids)
    if not text_ids:
        taken, offered = same_type(taken, offered, ids, items)
    check_listed_once(offered, items)
    rows = pc.index_in(taken.column, value_set=offered.values)
    num_joined = len(taken) - rows.null_count
    if not num_joined:
        other = repr(offered.values[0].as_py()) if len(offered) else "no items"
        raise DataError(
            f"no item of {ids.source}, such as {taken.values[0].as_py()!r}, is in {items.source}, which has {other}: the ids "
            "differ"
        )
    others = [name for name in items.table.column_names if name not in (item_column, "item_id")]
    attributes = items.table.select(others).take(rows)
    table = pa.Table.from_arrays([taken.column, *attributes.columns], names=["item_id", *others])
    return table.replace_schema_metadata(None), len(offered) - num_joined


def with_items(log: InteractionLog, items: pa.Table) -> InteractionLog:
    """Return the same interactions over other items (a table with `item_id`); raise DataError unless it has all that occur."""
    ids = numpy_ids(items["item_id"])
    if ids.dtype.kind != log.item_ids.dtype.kind:
        raise DataError(
            f"item ids look like {log.item_ids[0].item()!r} in the log and {ids[0].item()!r} in the run: expected the same "
            "type in "
            "both; --text-ids reads all ids as text"
        )
    rows_N = rows_among(log.item_ids, ids)
    items_E = rows_N[log.histories.items_E]
    if (items_E < 0).any():
        occurs_N = np.bincount(log.histories.items_E, minlength=log.num_items) > 0
        missing_N = occurs_N & (rows_N < 0)
        raise DataError(
            f"{counted(missing_N.sum(), 'item of the log has', 'items of the log have')} no Semantic ID, the first is "
            f"{log.item_ids[missing_N.argmax()].item()!r}: give each of them one, or remove their rows from the log"
        )
    histories = Histories(indptr_U1=log.histories.indptr_U1, items_E=items_E.astype(np.int32), times_E=log.histories.times_E)
    return replace(log, item_ids=ids, items=items, histories=histories, report=replace(log.report, items=len(ids)))


def rows_among(ids: NDArray[np.generic], among: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the row of each id, -1 for an unknown id."""
    return pc.fill_null(pc.index_in(pa.array(ids), value_set=pa.array(among)), -1).to_numpy().astype(np.int64)
