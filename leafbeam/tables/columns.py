"""Columns that a log needs, by their roles: present, without nulls, and times as whole nanoseconds. Shapes: E rows."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from leafbeam.errors import DataError, counted, short_repr
from leafbeam.ids import BLANKS
from leafbeam.tables.cells import are_written
from leafbeam.tables.table import SourceTable, listed, type_name

TimeUnit = Literal["s", "ms", "us", "ns"]
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SAMPLE = 32  # values that decide early
_YEAR_1980, _YEAR_2100 = 315_532_800, 4_102_444_800  # in seconds
_YEAR_2262 = 9_223_372_036  # in seconds: the last that 64 bits of nanoseconds hold
NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?$"
_WHOLE = r"^-?[0-9]{1,18}$"
_OFFSET = r":[0-9.]+(Z|[-+][0-9]{2}(:?[0-9]{2})?)$"
_NOT_FINITE = r"(?i)[-+]?(nan|inf|infinity)"
_OPTIONS = {  # of the command line, by the field of `Columns`
    "user": "--user-column",
    "item": "--item-column",
    "timestamp": "--time-column",
    "item_of_items": "--id-column",
}


def column(source: SourceTable, name: str, role: str) -> pa.ChunkedArray:
    """Return a column, with its dictionaries.

    Args:
        source: The table.
        name: The name of the column.
        role: The column's field of `Columns`, for messages.

    Raises:
        DataError: If the column is missing or has nulls.
    """
    if name not in source.table.column_names:
        raise DataError(_missing(source, name, role))
    values = source.table[name]
    if values.null_count:
        fix = "fill or remove these rows"
        if role in ("user", "item", "timestamp"):
            fix += ", or leave them out with --incomplete drop (incomplete='drop')"
        source.refuse(name, "empty", values.is_null(), fix)
    return values


def complete_rows(source: SourceTable, names: Sequence[str]) -> SourceTable:
    """Return the rows that have a value in each of these columns; text of blanks alone is not a value.

    Raises:
        DataError: If there is no such row.
    """
    complete_E = np.ones(len(source.table), np.bool_)
    for name in names:
        complete_E &= ~np.asarray(_are_empty(source.table[name]))
    if complete_E.all():
        return source
    if not complete_E.any():
        raise DataError(f"{source.source}: no row has a value in each of the columns {listed(map(repr, names))}")
    return source.take(np.flatnonzero(complete_E))


def _are_empty(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark nulls, and text that is empty or blank."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values.is_null()
    return pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim(values, BLANKS)), 0), True)


def _missing(source: SourceTable, name: str, role: str) -> str:
    names = source.names
    fix = f"name another one with {_OPTIONS[role]} (in Python Columns({role}=...))"
    if role == "timestamp":
        fix += "; rows that are in order already need no times with --order file (order='file')"
    if role == "item":
        fix += "; with --order file (order='file') it may hold lists, a user's items from the oldest on"
    if source.is_text and len(names) == 1 and (marks := [mark for mark in ";\t|," if mark in names[0]]):
        option, form = ("--items-delimiter", "items_form") if role == "item_of_items" else ("--delimiter", "form")
        fix = f"fields are separated by {marks[0]!r}: pass it as {option} (in Python {form}=CsvFormat(delimiter={marks[0]!r}))"
    return f"{source.source} has no column {name!r}; it has {listed(map(repr, names))}: {fix}"


def nanoseconds(source: SourceTable, name: str, unit: TimeUnit) -> NDArray[np.int64]:
    """Return a column of times as int64 nanoseconds since 1970 (UTC), exactly.

    Args:
        source: The table.
        name: Its column of numbers of `unit`, datetimes, dates or ISO 8601 text.
        unit: The unit of numbers.

    Raises:
        DataError: For another type, a time that is not finite, unreadable text, or times before 1678 or after 2262.
    """
    values, where = column(source, name, "timestamp"), f"{source.source}, column {name!r}"
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if len(values) == 0:
        return np.empty(0, np.int64)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        text = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
        if are_written(text, NUMBER) and not are_written(text, _WHOLE):
            return _exact(source, name, text, unit)
        values = _parsed(source, name, text)
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        try:
            return np.asarray(values.cast(pa.timestamp("ns")).cast(pa.int64()).to_numpy(), dtype=np.int64)
        except pa.ArrowInvalid as error:
            raise DataError(f"{where} has times before 1678 or after 2262: expected times of interactions") from error
    if pa.types.is_decimal(values.type):
        return _decimals(source, name, values, unit)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataError(
            f"{where} holds values of the type {type_name(values.type)}: a time is a number of seconds, a datetime, a date or "
            "ISO 8601 text"
        )
    return _numbers(source, name, values.to_numpy(), unit)


def _numbers(source: SourceTable, name: str, numbers: NDArray[np.integer | np.floating], unit: TimeUnit) -> NDArray[np.int64]:
    where, per_second = f"{source.source}, column {name!r}", _PER_SECOND[unit]
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize < 8:
        numbers = numbers.astype(np.int64)
    source.refuse(name, "not a finite number", pa.chunked_array([pa.array(~np.isfinite(numbers))]), "a time is finite")
    _check_no_dates(where, numbers)
    _check_one_unit(source, name, numbers.astype(np.float64) / per_second, unit)
    largest = float(np.abs(numbers.astype(np.float64)).max())
    if largest / per_second > _YEAR_2262:
        likely = [other for other, scale in _PER_SECOND.items() if largest / scale <= _YEAR_2262]
        hint = f"pass time_unit={likely[0]!r} (--time-unit {likely[0]})" if likely else "check the column"
        raise DataError(f"{where} reaches {largest:.0f}, beyond the year 2262 as time_unit={unit!r}: {hint}")
    if np.issubdtype(numbers.dtype, np.floating):
        return np.rint(numbers.astype(np.float64) * (10**9 / per_second)).astype(np.int64)
    return numbers.astype(np.int64) * (10**9 // per_second)


def _check_one_unit(source: SourceTable, name: str, seconds: NDArray[np.float64], unit: TimeUnit) -> None:
    """Raise DataError if some times are usual in a unit, and others are so only in another unit."""
    usual = (seconds >= _YEAR_1980) & (seconds < _YEAR_2100)
    if not usual.any() or usual.all():
        return
    other = np.abs(seconds) > _YEAR_2262
    for scale in _PER_SECOND.values():
        if scale < _PER_SECOND[unit]:
            coarser = seconds * (_PER_SECOND[unit] // scale)
            other |= (coarser >= _YEAR_1980) & (coarser < _YEAR_2100) & ~usual
    if other.any():
        shown = [f"{source.where(row)} ({source.table[name][row]})" for row in (int(usual.argmax()), int(other.argmax()))]
        raise DataError(
            f"{source.source}, column {name!r} mixes units: as time_unit={unit!r}, {shown[0]} is a usual time, but "
            f"{int(other.sum()):,} of {counted(len(seconds), 'row')} are in another unit, first in {shown[1]}: write all in "
            "one unit"
        )


def _check_no_dates(where: str, numbers: NDArray[np.integer | np.floating]) -> None:
    """Raise DataError if all numbers are dates in digits, such as 20261122, 202611221000 or 22112026, not times since 1970."""
    for are_dates in (_are_dates, _are_short_dates):
        if are_dates(numbers[:_SAMPLE]) and are_dates(numbers):
            raise DataError(
                f"{where} looks like dates in digits, such as {int(numbers[0])}, not like times since 1970: write them as "
                "2026-11-22 or 2026-11-22 10:00:00"
            )


def _are_dates(numbers: NDArray[np.integer | np.floating]) -> bool:
    """Return whether all numbers are written as YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS."""
    parts = (numbers // scale for scale in (1, 10**4, 10**6))
    return any(bool(_are_days(part // 10_000, part // 100 % 100, part % 100).all()) for part in parts)


def _are_short_dates(numbers: NDArray[np.integer | np.floating]) -> bool:
    """Return whether all numbers are written as DDMMYYYY, MMDDYYYY or, since 2010, as YYMMDD: in seconds, days of 1970."""
    pairs = numbers // 1_000_000, numbers // 10_000 % 100
    orders = (
        _are_days(numbers % 10_000, pairs[1], pairs[0]),
        _are_days(numbers % 10_000, pairs[0], pairs[1]),
        _are_days(numbers // 10_000 + 2000, numbers // 100 % 100, numbers % 100) & (numbers >= 100_000),
    )
    return any(bool(order.all()) for order in orders)


def _are_days(years: NDArray[np.number], months: NDArray[np.number], days: NDArray[np.number]) -> NDArray[np.bool_]:
    return (years >= 1900) & (years < 2100) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)


def _exact(source: SourceTable, name: str, values: pa.ChunkedArray, unit: TimeUnit) -> NDArray[np.int64]:
    """Return numbers with fractions or exponents, written as text, as exact nanoseconds; finer digits are cut."""
    per_unit = 10**9 // _PER_SECOND[unit]
    plain = values.combine_chunks()
    has_exponent = pc.match_substring_regex(plain, "[eE]")
    if pc.any(has_exponent).as_py():
        written = [f"{Decimal(text):f}" for text in plain.filter(has_exponent).to_pylist()]
        plain = pc.replace_with_mask(plain, has_exponent, pa.array(written, plain.type))
    parts = pc.extract_regex(plain, r"^(?P<whole>-?[0-9]*)\.?(?P<fraction>[0-9]*)$")
    digits = len(str(per_unit)) - 1
    fraction = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.struct_field(parts, "fraction"), 9, "0"), 0, digits)
    try:
        whole = pc.struct_field(parts, "whole")
        nanoseconds = pc.binary_join_element_wise(whole, fraction, pa.scalar("", plain.type)).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:  # beyond 64 bits
        _numbers(source, name, values.cast(pa.float64()).to_numpy(), unit)
        raise DataError(f"{source.source}, column {name!r} has times before 1678 or after 2262: check the column") from error
    _check_no_dates(f"{source.source}, column {name!r}", nanoseconds // per_unit)
    _check_one_unit(source, name, nanoseconds / 1e9, unit)
    return nanoseconds


def _decimals(source: SourceTable, name: str, values: pa.ChunkedArray, unit: TimeUnit) -> NDArray[np.int64]:
    """Return decimals, such as Spark and DuckDB write, as nanoseconds. Raises DataError."""
    per_unit, where = 10**9 // _PER_SECOND[unit], f"{source.source}, column {name!r}"
    try:
        exact = values.cast(pa.decimal256(values.type.precision, values.type.scale))
        numbers = np.asarray(
            pc.multiply(exact, pa.scalar(per_unit, pa.decimal256(10, 0))).cast(pa.int64()).to_numpy(), dtype=np.int64
        )
    except pa.ArrowInvalid as error:
        _numbers(source, name, values.cast(pa.float64()).to_numpy(), unit)
        raise DataError(
            f"{where} has times finer than nanoseconds or beyond the year 2262 in the unit {unit!r}: write whole numbers, "
            "and pass their unit (--time-unit)"
        ) from error
    _check_no_dates(where, numbers // per_unit)
    _check_one_unit(source, name, numbers / 1e9, unit)
    return numbers


def _parsed(source: SourceTable, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return digits as whole numbers, and ISO 8601 text as datetimes.

    Raises a DataError that names the first ten texts that are neither.
    """
    if are_written(values, _WHOLE):
        return values.cast(pa.int64())
    times = _as_timestamps(values)
    if times is not None:
        return times
    texts = values.to_pylist()
    infinite = [re.fullmatch(_NOT_FINITE, text) is not None for text in texts]
    source.refuse(name, "not a finite number", pa.chunked_array([pa.array(infinite)]), "a time is finite")
    wrong = [re.search(NUMBER, text) is None and _as_timestamps(pa.scalar(text)) is None for text in texts]
    expected = "expected seconds or ISO 8601 (2014-07-23 10:00:00), from the year 1678 to 2262"
    source.refuse(name, "not a time", pa.chunked_array([pa.array(wrong)]), expected)
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        offset = "with" if re.search(_OFFSET, text) else "without"
        first.setdefault("a number" if re.search(NUMBER, text) else f"a time {offset} an offset from UTC", row)
    shown = listed(f"{kind} in {source.where(row)} ({short_repr(texts[row])})" for kind, row in first.items())
    raise DataError(f"{source.source}, column {name!r} mixes {shown}: write all of them one way")


def _as_timestamps(values: pa.ChunkedArray | pa.Scalar) -> pa.ChunkedArray | pa.Scalar | None:
    """Return text as datetimes, without or with an offset from UTC; None if not all of it is one of the two."""
    for dtype in (pa.timestamp("ns"), pa.timestamp("ns", tz="UTC")):
        with suppress(pa.ArrowInvalid):
            return values.cast(dtype)
    return None
