"""Histories in cells: a row a user with a list of items becomes a row an item."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import json
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError, short_repr
from leafbeam.tables.cells import are_numpy_arrays, typed
from leafbeam.tables.columns import column
from leafbeam.tables.table import SourceTable


def rows_of_lists(source: SourceTable, item: str, timestamp: str, *, in_order: bool) -> SourceTable:
    """Return a row for each item of a column of lists; another table as it is.

    Args:
        source: The table. Lists are Arrow's, or text such as "[1, 2]" or "['a', 'b']" in all cells of the column.
        item: The column of items.
        timestamp: The column of times, which may hold lists of the same lengths.
        in_order: Whether rows are in order, the lists' items from the oldest on, so that no times are needed.

    Raises:
        DataError: For lists without times that are not said to be in order, and for times of other lengths.
    """
    lists = _lists(source, item)
    if lists is None:
        _check_no_arrays(source, item)
        return source
    column(source, item, "item")
    times = _times(source, timestamp)
    if times is None and not in_order:
        raise DataError(
            f"{source.source}, column {item!r} holds lists ({source.where(0)}: {short_repr(source.table[item][0].as_py())}): "
            "a history in a cell is read with --order file (order='file'), its items from the oldest on"
        )
    if times is not None:
        source.refuse(
            timestamp,
            f"not as many times as {item!r} has items",
            pc.fill_null(pc.not_equal(pc.list_value_length(times), pc.list_value_length(lists)), True),
            "write a time for each item",
        )
    flat = source.take(np.asarray(pc.list_parent_indices(lists)))
    for name, values in ((item, lists), (timestamp, times)):
        if values is not None:
            flat = flat.with_table(flat.table.set_column(flat.table.column_names.index(name), name, pc.list_flatten(values)))
    return flat


def _check_no_arrays(source: SourceTable, name: str) -> None:
    values = source.table[name] if name in source.table.column_names and len(source.table) else None
    if values is not None and (pa.types.is_dictionary(values.type) or pa.types.is_string(values.type)):
        shown = values.slice(0, 1000).cast(pa.string())
        if shown.null_count < len(shown) and are_numpy_arrays(shown):
            raise DataError(
                f"{source.source}, column {name!r} holds arrays as NumPy prints them ({source.where(0)}: "
                f"{short_repr(values[0].as_py())}): write lists with commas (array.tolist()), or write the table as Parquet"
            )


def _times(source: SourceTable, name: str) -> pa.ChunkedArray:
    """Return `_lists` of a column of times; numbers of a list in text stay text, so that no digit is lost."""
    values = source.table[name] if name in source.table.column_names else None
    if values is None or not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return _lists(source, name)
    texts = values.to_pylist()
    if values.null_count < len(texts) and all(text is None or text.lstrip().startswith("[") for text in texts):
        with suppress(ValueError, RecursionError, pa.ArrowException, TypeError):
            lists = [None if text is None else json.loads(text, parse_int=str, parse_float=str) for text in texts]
            return pa.array(lists, pa.list_(pa.string()))
    return _lists(source, name)


def _lists(source: SourceTable, name: str) -> pa.ChunkedArray:
    """Return a column of lists as one array, None if it is missing or holds something else."""
    if name not in source.table.column_names or not len(source.table):
        return None
    values = source.table[name]
    types = pa.types
    if types.is_dictionary(values.type):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
        decoded = typed(pa.chunked_array([values.dictionary.cast(pa.string())]))
        values = decoded.take(values.indices) if types.is_list(decoded.type) else None
    elif types.is_string(values.type) or types.is_large_string(values.type):
        values = typed(values.cast(pa.string()))
    if values is None or not (
        types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type)
    ):
        return None
    if types.is_fixed_size_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    return values.combine_chunks()
