"""Tables of interactions and items from Parquet, CSV or JSON: ids as int64 or text, times as microseconds.

All work is on whole columns; only an error looks at single rows, to name the first bad one. Rows are counted from 0.

Shapes: E rows of interactions.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from leafbeam.errors import DataError
from leafbeam.train.foreign_tables import ATOMIC_SUFFIXES, is_dataset, read_atomic, read_dataset, read_ratings
from leafbeam.train.json_tables import JSON_SUFFIXES, read_json_table

TimeUnit = Literal["s", "ms", "us", "ns"]

_SUFFIXES = (".parquet", ".csv", ".csv.gz")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_3000 = 32_503_680_000  # in seconds: a later time means a wrong unit
_OPTIONS = {  # of the command line, by the field of `Columns`
    "user": "--user-column",
    "item": "--item-column",
    "timestamp": "--time-column",
    "item_of_items": "--id-column",
}


class SourceTable(NamedTuple):
    """A table, the name of its source for messages, and whether its ids are text of CSV or JSON keys that may be numbers."""

    table: pa.Table
    source: str
    is_csv: bool = False


def find_table(directory: Path, stem: str) -> Path | None:
    """The one table of a directory called `stem` (.parquet, .csv, ...), or None; DataError for two of them.

    RecBole's `NAME.inter` and `NAME.item` count as `interactions` and `items`, as does a dataset of Hugging Face in a folder.
    """
    found = [path for suffix in _SUFFIXES if (path := directory / f"{stem}{suffix}").is_file()]
    found += sorted(directory.glob({"interactions": "*.inter", "items": "*.item"}[stem]))
    found += [folder] if is_dataset(folder := directory / stem) else []
    if len(found) > 1:
        raise DataError(f"{directory} holds {' and '.join(p.name for p in found)}: keep one, or name the file to read")
    return found[0] if found else None


def read_table(path: Path, id_columns: tuple[str, ...], *, delimiter: str = ",") -> SourceTable:
    """Read one file of Parquet, CSV, JSON or RecBole, or a directory that Hugging Face's datasets saved.

    In CSV the `id_columns` stay text, so that "007" is not 7. delimiter: of CSV.
    """
    if path.is_dir() and is_dataset(path):
        return SourceTable(_checked(path, lambda: read_dataset(path)), str(path))
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    is_text = path.name.endswith((".csv", ".csv.gz", *ATOMIC_SUFFIXES))

    def read() -> pa.Table:
        nonlocal is_text
        if path.name.endswith(".parquet"):
            return pq.read_table(path)
        if path.suffix in ATOMIC_SUFFIXES:
            return read_atomic(path)
        if path.suffix in JSON_SUFFIXES:
            table, is_text = read_json_table(path, id_columns[0])
            return table
        if not is_text:
            raise DataError(f"{path.name} is neither .parquet, .csv, .csv.gz, .jsonl, .json, .inter nor .item: convert it")
        types = {name: pa.string() for name in id_columns}
        convert = pacsv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=True)
        parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        return pacsv.read_csv(path, convert_options=convert, parse_options=parse)

    return SourceTable(_checked(path, read), str(path), is_text)


def read_headerless(path: Path) -> SourceTable:
    """Read cornac's user, item, rating and perhaps time, in lines without names. Raises DataError."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    return SourceTable(_checked(path, lambda: read_ratings(path)), str(path), True)


def _checked(path: Path, read: Callable[[], pa.Table]) -> pa.Table:
    """The table that `read` returns. Raises DataError where it cannot be read, or a column is there twice."""
    try:
        table = read()
        names = table.column_names  # raises UnicodeDecodeError
    except DataError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError, MemoryError) as error:  # of damaged lengths too
        raise DataError(f"{path} cannot be read: {error}") from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path} has the column {repeated[0]!r} more than once: rename one of them")
    return table


def id_column(source: SourceTable, name: str, *, role: str, as_text: bool = False) -> pa.ChunkedArray:
    """A column of ids as int64 or text. role: its field of `Columns`, for messages. as_text: numbers become text too.

    Raises DataError for nulls, empty text and other types.
    """
    values, where = column(source, name, role), f"{source.source}, column {name!r}"
    if pa.types.is_integer(values.type) and as_text:
        return values.cast(pa.large_string())
    if pa.types.is_integer(values.type):
        try:
            return values.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(f"{where}: an id beyond 64 bits with sign, read ids as text (--text-ids, text_ids=True)") from error
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.array([], pa.string())])
    if not _is_text(values):
        raise DataError(f"{where} is of type {values.type}: ids are whole numbers or text")
    empty = pc.equal(pc.utf8_length(values), 0)
    if pc.any(empty).as_py():
        raise DataError(f"{where}: empty in {pc.sum(empty).as_py():,} rows, first in row {_first_row(empty):,}")
    return values.cast(pa.large_string())


def whole_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text ids as int64 if all are plain whole numbers ("12", not "012"); else unchanged."""
    if not pa.types.is_large_string(values.type) or len(values) == 0:
        return values
    plain = pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,17})$")
    return values.cast(pa.int64()) if pc.all(plain).as_py() else values


def same_id_type(
    taken: pa.ChunkedArray, listed: pa.ChunkedArray, interactions: SourceTable, items: SourceTable
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The item ids of both tables as one type: CSV text becomes numbers if the other table allows it, never the reverse."""
    if interactions.is_csv and items.is_csv:
        numbers = whole_numbers(taken), whole_numbers(listed)
        return numbers if numbers[0].type == numbers[1].type else (taken, listed)
    if interactions.is_csv and pa.types.is_int64(listed.type):
        taken = whole_numbers(taken)
    if items.is_csv and pa.types.is_int64(taken.type):
        listed = whole_numbers(listed)
    if taken.type != listed.type:
        types = f"{taken.type} in {interactions.source} but {listed.type} in {items.source}"
        raise DataError(f"item ids are of type {types}: write both in one type")
    return taken, listed


def timestamps(source: SourceTable, name: str, unit: TimeUnit) -> NDArray[np.int64]:
    """A column of numbers of `unit`, datetimes, dates or ISO 8601 text as int64 microseconds since 1970 (UTC)."""
    values, where = column(source, name, "timestamp"), f"{source.source}, column {name!r}"
    if len(values) == 0:
        return np.empty(0, np.int64)
    if _is_text(values):
        values = _parse_times(values.cast(pa.large_string()), where)
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        return np.asarray(values.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy(), dtype=np.int64)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DataError(f"{where} is of type {values.type}: a time is a number of seconds, a datetime, a date or ISO 8601 text")
    return _microseconds(values.to_numpy(), where, unit)


def column(source: SourceTable, name: str, role: str) -> pa.ChunkedArray:
    """The column `name` without dictionary encoding. Raises DataError where it is missing or has nulls."""
    names = source.table.column_names
    if name not in names:
        fix = f"name it with {_OPTIONS[role]} (in Python Columns({role}=...))"
        if role == "timestamp":
            fix += "; rows that are in order already need no times with --order file (order='file')"
        if source.is_csv and len(names) == 1 and (found := [mark for mark in ";\t|," if mark in names[0]]):
            option = "items_delimiter" if role == "item_of_items" else "delimiter"
            fix = f"fields are separated by {found[0]!r}: pass it as --{option.replace('_', '-')} ({option}={found[0]!r})"
        raise DataError(f"{source.source} has no column {name!r}; it has {', '.join(map(repr, names)) or 'none'}: {fix}")
    values = source.table[name]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        row = _first_row(values.is_null())
        raise DataError(f"{source.source}, column {name!r}: null in {values.null_count:,} rows, first in row {row:,}")
    return values


def _microseconds(numbers: NDArray[np.generic], where: str, unit: TimeUnit) -> NDArray[np.int64]:
    """Numbers of `unit` in microseconds. Raises DataError for numbers too large for `unit`, and suggests one."""
    per_second = _PER_SECOND[unit]
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{where} is {numbers[row]} in row {row:,}: a time is a finite number")
    largest = float(np.abs(numbers.astype(np.float64)).max())
    if largest / per_second > _YEAR_3000:
        likely = [other for other, scale in _PER_SECOND.items() if largest / scale <= _YEAR_3000]
        hint = f"pass time_unit={likely[0]!r} (--time-unit {likely[0]})" if likely else "check the column"
        raise DataError(f"{where} reaches {largest:.0f}, beyond the year 3000 as time_unit={unit!r}: {hint}")
    if np.issubdtype(numbers.dtype, np.floating):
        return np.rint(numbers.astype(np.float64) * (10**6 / per_second)).astype(np.int64)
    whole = numbers.astype(np.int64)
    return whole * (10**6 // per_second) if per_second <= 10**6 else whole // (per_second // 10**6)


def _parse_times(values: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """ISO 8601 text as datetimes, digits as whole numbers. Raises DataError that names the first other text."""
    if pc.all(pc.match_substring_regex(values, r"^-?[0-9]{1,18}$")).as_py():
        return values.cast(pa.int64())
    times = _as_timestamps(values)
    if times is not None:
        return times
    for row, text in enumerate(values.to_pylist()):
        if not text.lstrip("-").isdecimal() and _as_timestamps(pa.scalar(text)) is None:
            raise DataError(f"{where} is {text!r} in row {row:,}: expected seconds or ISO 8601 (2014-07-23 10:00:00)")
    raise DataError(f"{where} mixes numbers, times with and times without an offset from UTC: write all of them one way")


def _as_timestamps(values: Any) -> Any:
    """Text as datetimes, without or with an offset from UTC; None where not all of it is one of the two."""
    for dtype in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        with suppress(pa.ArrowInvalid):
            return values.cast(dtype)
    return None


def _is_text(values: pa.ChunkedArray) -> bool:
    return pa.types.is_string(values.type) or pa.types.is_large_string(values.type)


def _first_row(mask: pa.ChunkedArray) -> int:
    return int(pc.index(mask, True).as_py())
