"""The text of items: the columns that hold words, and the words of each item."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError

_NUMBER = r"^\s*[$€£]?\s*[-+]?[0-9][0-9.,]*\s*$"
_URL = r"^\s*https?://"


def text_columns(items: pa.Table) -> tuple[str, ...]:
    """Return the columns of text, or lists of text, that are not mostly numbers or URLs; never `item_id`."""
    return tuple(name for name in items.column_names if name != "item_id" and _is_words(items[name]))


def texts(items: pa.Table, columns: tuple[str, ...]) -> list[str]:
    """Return the text of `columns`, joined for each item, "" if all are empty. Raises DataError if a column is not text."""
    for name in columns:
        if name not in items.column_names:
            raise DataError(f"the items have no column {name!r}; they have {', '.join(map(repr, items.column_names))}")
        if not _is_text(items[name].type):
            raise DataError(f"the items' column {name!r} is of type {items[name].type}: choose columns of text")
    joined = [""] * len(items)
    for name in columns:
        joined = [
            f"{before} . {text}" if before else text for before, text in zip(joined, _flat_text(items[name]), strict=True)
        ]
    return joined


def _is_text(dtype: pa.DataType) -> bool:
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        dtype = dtype.value_type
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def _flat_text(values: pa.ChunkedArray) -> list[str]:
    """Return one text per item, in which lists are joined and null becomes ""."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return [" ".join(word for word in words if word) if words else "" for words in values.to_pylist()]
    return [text or "" for text in values.to_pylist()]


def _is_words(values: pa.ChunkedArray) -> bool:
    if not _is_text(values.type):
        return False
    flat = pa.array(_flat_text(values), pa.large_string())
    flat = flat.filter(pc.greater(pc.utf8_length(flat), 0))
    if len(flat) == 0:
        return False
    numbers_or_urls = pc.or_(pc.match_substring_regex(flat, _NUMBER), pc.match_substring_regex(flat, _URL))
    return pc.sum(numbers_or_urls).as_py() * 2 < len(flat)
