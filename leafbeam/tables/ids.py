"""Ids of users and items: whole numbers or text, the distinct ones once. Shapes: E rows, n distinct ids."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import DataError
from leafbeam.tables.cells import as_whole_numbers
from leafbeam.tables.columns import column
from leafbeam.tables.table import SourceTable, type_name

_CONTROL = r"[\x00-\x1f\x7f-\x{9f}]"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ids:
    """A column of ids.

    Args:
        values: int64 or large_string (n,). The distinct ids in the order in which they first appear.
        codes_E: int32. The index into `values` of each row.
    """

    values: pa.Array
    codes_E: NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.codes_E)

    @property
    def column(self) -> pa.Array:
        """Return the id of each row."""
        return self.values.take(pa.array(self.codes_E))

    def as_numbers(self) -> "Ids":
        """Return text ids as int64 if all are plain whole numbers of 64 bits ("12", not "012"); else the same."""
        if pa.types.is_large_string(self.values.type) and len(self.values):
            numbers = as_whole_numbers(self.values)
            return self if numbers is None else replace(self, values=numbers)
        return self


def read_ids(source: SourceTable, name: str, role: str, *, as_text: bool = False) -> Ids:
    """Return a column of ids.

    Text of formats without types loses blanks around it; whole numbers written there stay text (`Ids.as_numbers`).

    Args:
        source: The table.
        name: Its column.
        role: The column's field of `Columns`, for messages.
        as_text: True makes text of numbers.

    Raises:
        DataError: For empty ids, control characters such as line breaks, numbers beyond 64 bits, and other types.
    """
    values, where = column(source, name, role), f"{source.source}, column {name!r}"
    if pa.types.is_null(values.type):
        return Ids(values=pa.array([], pa.large_string()), codes_E=np.empty(0, np.int32))
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{where} holds values of the type {type_name(kind)}: ids are whole numbers or text")
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    encoded = values.unify_dictionaries().combine_chunks()
    distinct, codes_E = encoded.dictionary, np.asarray(encoded.indices).astype(np.int32)
    if pa.types.is_integer(kind):
        distinct = _whole(distinct, where, as_text)
    else:
        distinct = distinct.cast(pa.large_string())
        if source.is_text and not (trimmed := pc.utf8_trim_whitespace(distinct)).equals(distinct):
            merged = trimmed.dictionary_encode()
            distinct, codes_E = merged.dictionary, np.asarray(merged.indices).astype(np.int32)[codes_E]
        _check_text(source, name, distinct, codes_E)
    return _in_order(distinct, codes_E)


def same_type(taken: Ids, listed: Ids, interactions: SourceTable, items: SourceTable) -> tuple[Ids, Ids]:
    """Return the item ids of both tables as one type: text without a type becomes numbers if the other table allows it."""
    if interactions.is_text and items.is_text:
        numbers = taken.as_numbers(), listed.as_numbers()
        return numbers if numbers[0].values.type == numbers[1].values.type else (taken, listed)
    if interactions.is_text and pa.types.is_int64(listed.values.type):
        taken = taken.as_numbers()
    if items.is_text and pa.types.is_int64(taken.values.type):
        listed = listed.as_numbers()
    if taken.values.type != listed.values.type:
        types = f"{type_name(taken.values.type)} in {interactions.source} but {type_name(listed.values.type)} in {items.source}"
        raise DataError(f"item ids are of the type {types}: write both in one type, or pass --text-ids (text_ids=True)")
    return taken, listed


def _whole(values: pa.Array, where: str, as_text: bool) -> pa.Array:
    if as_text:
        return values.cast(pa.large_string())
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: an id beyond 64 bits with sign, read ids as text (--text-ids, text_ids=True)") from error


def _check_text(source: SourceTable, name: str, values: pa.Array, codes_E: NDArray[np.int32]) -> None:
    for problem, wrong in (
        ("empty", pc.equal(pc.utf8_length(values), 0)),
        ("control characters, such as line breaks,", pc.match_substring_regex(values, _CONTROL)),
    ):
        if pc.any(wrong).as_py():
            wrong_E = np.asarray(wrong)[codes_E]
            source.refuse(
                name, problem, pa.chunked_array([pa.array(wrong_E)]), "an id is text without them; correct these rows"
            )


def _in_order(values: pa.Array, codes_E: NDArray[np.int32]) -> Ids:
    """Return ids in the order in which they first appear, without those that no row has."""
    first_n = np.full(len(values), len(codes_E), np.int64)
    first_n[codes_E[::-1]] = np.arange(len(codes_E) - 1, -1, -1)
    order_n = np.argsort(first_n, kind="stable")
    order_n = order_n[first_n[order_n] < len(codes_E)]
    if len(order_n) == len(values) and (order_n == np.arange(len(values))).all():
        return Ids(values=values, codes_E=codes_E)
    rank_n = np.zeros(len(values), np.int32)
    rank_n[order_n] = np.arange(len(order_n), dtype=np.int32)
    return Ids(values=values.take(pa.array(order_n)), codes_E=rank_n[codes_E])
