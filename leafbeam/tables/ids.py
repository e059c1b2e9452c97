"""Ids of users and items: whole numbers or text, the distinct ones once. Shapes: E rows, n distinct ids."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import DataError
from leafbeam.ids import BLANKS, WRONG_IN_IDS
from leafbeam.tables.cells import as_whole_numbers
from leafbeam.tables.columns import column
from leafbeam.tables.plain_types import Column
from leafbeam.tables.table import SourceTable, nth_row, type_name


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

    Text of formats without types loses blanks and tabs around it; whole numbers written there stay text (`Ids.as_numbers`).

    Args:
        source: The table.
        name: Its column.
        role: The column's field of `Columns`, for messages.
        as_text: True makes text of numbers.

    Raises:
        DataError: If an id is empty, has a character of `WRONG_IN_IDS`, is a number with a fraction or beyond 64 bits, or has
            another type.
    """
    values = _ids_of(source, name, role)
    if pa.types.is_null(values.type):
        return Ids(values=pa.array([], pa.large_string()), codes_E=np.empty(0, np.int32))
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    encoded = values.unify_dictionaries().combine_chunks()
    distinct, codes_E = encoded.dictionary, np.asarray(encoded.indices).astype(np.int32)
    is_text = pa.types.is_string(distinct.type) or pa.types.is_large_string(distinct.type)
    if source.is_text and is_text and not (trimmed := pc.utf8_trim(distinct, BLANKS)).equals(distinct):
        merged = trimmed.dictionary_encode()
        distinct, codes_E = merged.dictionary, np.asarray(merged.indices).astype(np.int32)[codes_E]
    return _in_order(_checked(source, name, distinct, codes_E, as_text=as_text), codes_E)


def check_ids(batch: pa.RecordBatch, name: str, source: str, begin: int = 0) -> pa.Array:
    """Return a column of item ids as int64 or large_string, for a part of a table in a format with types.

    Args:
        batch: The part.
        name: Its column.
        source: The name of the file, for messages.
        begin: The number of rows before the part.

    Raises:
        DataError: As in `read_ids`.
    """
    table = SourceTable(table=pa.table([batch[name]], [name]), source=source, where=lambda row: nth_row(begin + row))
    values = _ids_of(table, name, "item_of_items").combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return _checked(table, name, values, None, as_text=False)


def type_of_ids(kind: pa.DataType) -> pa.DataType:
    """Return the type of `check_ids` for a column of a type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.int64() if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else pa.large_string()


def _ids_of(source: SourceTable, name: str, role: str) -> pa.ChunkedArray:
    """Return a column of ids. Raises DataError if it has nulls or a type that ids cannot have."""
    values = column(source, name, role)
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    if not (is_text or types.is_integer(kind) or types.is_decimal(kind) or types.is_null(kind)):
        raise DataError(
            f"{source.source}, column {name!r} holds values of the type {type_name(kind)}: ids are whole numbers or text; "
            "write the column as one of these"
        )
    return values


def same_type(taken: Ids, listed: Ids, interactions: SourceTable, items: SourceTable) -> tuple[Ids, Ids]:
    """Return the item ids of both tables as one type: text without a type becomes numbers if the other table allows it.

    Args:
        taken: The ids in the table of interactions.
        listed: The ids in the table of items.
        interactions: The table of interactions.
        items: The table of items.

    Raises:
        DataError: If the types cannot be made one.
    """
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


def _checked(source: SourceTable, name: str, values: Column, codes_E: NDArray[np.int32] | None, *, as_text: bool) -> Column:
    """Return ids as int64 or large_string. codes_E: as in `Ids`; None if `values` has a value for each row."""

    def refuse(problem: str, wrong: object, fix: str) -> None:
        rows = np.asarray(wrong)
        source.refuse(name, problem, pa.chunked_array([pa.array(rows if codes_E is None else rows[codes_E])]), fix)

    if pa.types.is_decimal(values.type):
        try:
            values = values.cast(pa.decimal256(76, 0))
        except pa.ArrowInvalid:
            fractions = [value != int(value) for value in values.to_pylist()]
            refuse("numbers with a fraction", fractions, "an id is a whole number or text; correct these rows")
            raise
    if not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
        values = values.cast(pa.large_string())
        advice = "an id is text without them; correct these rows"
        refuse("empty", pc.equal(pc.utf8_length(values), 0), advice)
        if pc.all(
            pc.ascii_is_printable(values), min_count=0
        ).as_py():  # nearly all ids are, and this check takes a hundredth of the time
            return values
        for problem, pattern in WRONG_IN_IDS.items():
            refuse(problem, pc.match_substring_regex(values, pattern), advice)
        return values
    if as_text:
        return values.cast(pa.large_string())
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        beyond = [not -(1 << 63) <= int(value) < 1 << 63 for value in values.to_pylist()]
        refuse(
            "numbers beyond 64 bits including the sign",
            beyond,
            "write ids as text, or read them as text (--text-ids, text_ids=True)",
        )
        raise


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
