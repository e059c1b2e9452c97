"""Tables of interactions and items as files give them: Parquet or CSV, ids of ints or text, times of any kind.

Everything here works on whole columns; only an error, once found, looks at single rows to name the first bad one.

Shapes: E rows of interactions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from leafbeam.errors import DataError

__all__ = ["TimeUnit", "find_table", "id_column", "numpy_ids", "read_table", "same_kind", "times_of"]

TimeUnit = Literal["s", "ms", "us", "ns"]

_SUFFIXES = (".parquet", ".csv", ".csv.gz")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_3000 = 32_503_680_000  # in seconds: a later time is a wrong unit, not a purchase


def find_table(directory: Path, stem: str) -> Path | None:
    """The one file `stem.parquet`, `stem.csv` or `stem.csv.gz` of a directory, or None; two of them are a DataError."""
    found = [path for suffix in _SUFFIXES if (path := directory / f"{stem}{suffix}").is_file()]
    if len(found) > 1:
        raise DataError(f"{directory} holds {' and '.join(p.name for p in found)}: keep one, or name the file to read")
    return found[0] if found else None


def read_table(path: Path, text_columns: tuple[str, ...]) -> pa.Table:
    """Read one Parquet or CSV file; in CSV the `text_columns` (the ids) stay text, so that "007" is not 7."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    try:
        if path.name.endswith(".parquet"):
            table = pq.read_table(path)
        elif path.name.endswith((".csv", ".csv.gz")):
            types = {name: pa.string() for name in text_columns}
            options = pacsv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=True)
            parse = pacsv.ParseOptions(newlines_in_values=True)
            table = pacsv.read_csv(path, convert_options=options, parse_options=parse)
        else:
            raise DataError(f"{path.name} is neither .parquet, .csv nor .csv.gz: convert it to one of them")
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    doubled = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if doubled:
        raise DataError(f"{path} has the column {doubled[0]!r} more than once: rename one of them")
    return table


def column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    """The column called `name`, or a DataError that lists the columns there are."""
    if name not in table.column_names:
        raise DataError(
            f"the table of {what} has no column {name!r}; it has {', '.join(map(repr, table.column_names)) or 'none'}: "
            "rename the column, or name it with Columns(...)"
        )
    return table[name]


def id_column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    """A column of ids as int64 or as text; nulls, empty text and other kinds are DataErrors."""
    values = column(table, name, what)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        raise DataError(f"{name!r} of {what} is null in {values.null_count:,} rows, first in row {_first(values.is_null()):,}")
    if pa.types.is_integer(values.type):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(f"{name!r} of {what} has an id beyond 64 bits with sign: write it as text") from error
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.array([], pa.string())])
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(f"{name!r} of {what} is of type {values.type}: ids are whole numbers or text")
    empty = pc.equal(pc.utf8_length(values), 0)
    if pc.any(empty).as_py():
        raise DataError(f"{name!r} of {what} is empty in {pc.sum(empty).as_py():,} rows, first in row {_first(empty):,}")
    return values.cast(pa.large_string())


def whole_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text ids as int64 where every one of them is a plain whole number ("12", not "012"); else unchanged."""
    if not pa.types.is_large_string(values.type) or len(values) == 0:
        return values
    plain = pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,17})$")
    return values.cast(pa.int64()) if pc.all(plain).as_py() else values


def same_kind(
    first: pa.ChunkedArray, second: pa.ChunkedArray, *, from_csv: tuple[bool, bool]
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two columns of ids as one kind: CSV text becomes numbers where the other side allows it, never the reverse."""
    if from_csv == (True, True):
        numbers = whole_numbers(first), whole_numbers(second)
        return numbers if numbers[0].type == numbers[1].type else (first, second)
    if from_csv[0] and pa.types.is_int64(second.type):
        first = whole_numbers(first)
    if from_csv[1] and pa.types.is_int64(first.type):
        second = whole_numbers(second)
    if first.type != second.type:
        raise DataError(
            f"item ids are of type {first.type} in the interactions but {second.type} in the items: write both in one type"
        )
    return first, second


def numpy_ids(values: pa.ChunkedArray | pa.Array) -> NDArray[np.int64] | NDArray[np.str_]:
    """Ids as numpy: int64, or fixed-width text."""
    if pa.types.is_int64(values.type):
        return np.asarray(values.to_numpy(), dtype=np.int64)
    return np.asarray(values.to_pylist(), dtype=np.str_)


def times_of(table: pa.Table, name: str, unit: TimeUnit) -> NDArray[np.int64]:
    """A column of numbers of `unit`, datetimes, dates or ISO 8601 text as int64 microseconds since 1970 (UTC)."""
    values = column(table, name, "interactions")
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        raise DataError(f"{name!r} is null in {values.null_count:,} rows, first in row {_first(values.is_null()):,}")
    if len(values) == 0:
        return np.empty(0, np.int64)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = _times_of_text(values.cast(pa.large_string()), name)
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return np.asarray(values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy(), dtype=np.int64)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataError(
            f"{name!r} is of type {values.type}: a time is a number of seconds, a datetime, a date or ISO 8601 text"
        )
    return _microseconds(values.to_numpy(), name, unit)


def _microseconds(numbers: NDArray[np.generic], name: str, unit: TimeUnit) -> NDArray[np.int64]:
    """Numbers of `unit` in microseconds; a number too large for a time is a DataError that names the likely unit."""
    per_second = _PER_SECOND[unit]
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{name!r} is {numbers[row]} in row {row:,}: a time is a finite number")
    largest = float(np.abs(numbers.astype(np.float64)).max())
    if largest / per_second > _YEAR_3000:
        likely = [other for other, scale in _PER_SECOND.items() if largest / scale <= _YEAR_3000]
        hint = f"pass time_unit={likely[0]!r}" if likely else "check the column"
        raise DataError(f"{name!r} reaches {largest:.0f}, beyond the year 3000 as time_unit={unit!r}: {hint}")
    if np.issubdtype(numbers.dtype, np.floating):
        return np.rint(numbers.astype(np.float64) * (10**6 / per_second)).astype(np.int64)
    whole = numbers.astype(np.int64)
    return whole * (10**6 // per_second) if per_second <= 10**6 else whole // (per_second // 10**6)


def _times_of_text(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """ISO 8601 text as datetimes, digits as whole numbers; the first text that is neither is named."""
    if pc.all(pc.match_substring_regex(values, r"^-?[0-9]{1,18}$")).as_py():
        return values.cast(pa.int64())
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):  # without and with an offset from UTC
        try:
            return values.cast(kind)
        except pa.ArrowInvalid:
            continue
    for row, text in enumerate(values.to_pylist()):
        if not _is_time(text):
            raise DataError(
                f"{name!r} is {text!r} in row {row:,}: a time is a number of seconds or ISO 8601 (2014-07-23 10:00:00)"
            )
    raise DataError(f"{name!r} mixes numbers, times with and times without an offset from UTC: write all of them one way")


def _is_time(text: str) -> bool:
    if text.lstrip("-").isdecimal():
        return True
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        try:
            pa.scalar(text).cast(kind)
        except pa.ArrowInvalid:
            continue
        return True
    return False


def _first(mask: pa.ChunkedArray) -> int:
    """The first row where `mask` holds."""
    return int(pc.index(mask, True).as_py())
