"""A file of rows that a user brought: how it is opened, its columns, and mistakes named by file, line, column and value."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
import gzip
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import DataError, short_repr
from leafbeam.files import open_regular
from leafbeam.ids import UNSEEN
from leafbeam.tables.plain_types import as_plain

_MAGIC = {  # the first bytes of formats whose files often have a wrong ending
    b"\x1f\x8b": "compressed with gzip: add .gz to its name",
    b"PAR1": "Parquet: rename it, so that its name ends in .parquet",
    b"PK\x03\x04": "a ZIP file or an Excel workbook: save the table as CSV (UTF-8), or as Parquet",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the table as CSV (UTF-8), or as Parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it, or compress it with gzip",
}


def ending_of(path: Path, endings: Sequence[str]) -> str:
    """Return which of `endings` a file's name has, in lower case, or "" if it has none of them.

    >>> ending_of(Path("Items.CSV.GZ"), (".csv", ".csv.gz"))
    '.csv.gz'
    """
    return next((ending for ending in endings if path.name.lower().endswith(ending)), "")


def is_compressed(path: Path) -> bool:
    """Return whether a file's name says that gzip compressed it."""
    return path.name.lower().endswith(".gz")


def is_utf_16(head: bytes) -> bool:
    """Return whether the first bytes of a text are those of UTF-16, with or without a byte order mark."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or 4 * head.count(b"\0", 0, 1000) > len(head[:1000])


def check_content(path: Path) -> None:
    """Raise DataError if a file that should be text begins with the bytes of another format."""
    try:
        with open_regular(path) as file:
            head = file.read(8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    for magic, advice in _MAGIC.items():
        if head.startswith(magic) and not (is_compressed(path) and magic == b"\x1f\x8b"):
            raise DataError(f"{path} is {advice}")


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """Open a regular file, decompressed if it ends in .gz. Raises OSError; reading may also raise EOFError and zlib.error."""
    with open_regular(path) as file:
        if is_compressed(path):
            with gzip.open(file) as plain:
                yield cast("BinaryIO", plain)
        else:
            yield file


_MAX_LISTED = 10
_CONTROL = "[\\x00-\\x1f\\x7f\u0080-\u009f\u2028\u2029]"


def nth_row(row: int) -> str:
    """Return the name of a row of a file without lines, counted from 1."""
    return f"row {row + 1:,}"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SourceTable:
    """The rows of one source.

    Args:
        table: The columns. Their types are converted as in `plain_types`.
        source: The name of the file, for messages.
        is_text: True if the format has no types (CSV, keys of JSON), so that ids of digits may be whole numbers.
        names: All columns of the source, also those that were not read; by default those of `table`.
        where: The line or row that a row of the table came from, in words.
    """

    table: pa.Table
    source: str = "the table"
    is_text: bool = False
    names: tuple[str, ...] = ()
    where: Callable[[int], str] = nth_row

    def __post_init__(self) -> None:
        check_names(self.table.column_names, self.source)
        object.__setattr__(self, "table", as_plain(self.table, self.source))
        object.__setattr__(self, "names", self.names or tuple(self.table.column_names))

    def with_table(self, table: pa.Table) -> "SourceTable":
        """Return the same rows with other columns."""
        return replace(self, table=table)

    def take(self, rows_n: NDArray[np.integer]) -> "SourceTable":
        """Return some rows, in this order."""
        where = self.where
        return replace(self, table=self.table.take(pa.array(rows_n)), where=lambda row: where(int(rows_n[row])))

    def refuse(self, name: str, problem: str, mask: pa.ChunkedArray, fix: str) -> None:
        """Raise DataError if any row of the mask is set, with the first ten of them and their values.

        Args:
            name: The column.
            problem: The mistake, such as "empty".
            mask: bool, one a row.
            fix: The advice, a clause.
        """
        rows = np.flatnonzero(np.asarray(mask))
        if not len(rows):
            return
        values = self.table[name] if name in self.table.column_names else None
        shown = []
        for row in rows[:_MAX_LISTED].tolist():
            value = None if values is None else values[row].as_py()
            shown.append(self.where(row) + (f" ({short_repr(value)})" if value not in (None, "") else ""))
        raise DataError(f"{self.source}, column {name!r}: {problem} in {listed(shown, total=len(rows))}: {fix}")


def listed(names: Iterable[str], *, total: int | None = None) -> str:
    """Return names with commas, the first ten of many, and how many more there are.

    Args:
        names: The names.
        total: The number of all names, if `names` are only the first of them.

    Examples:
        >>> listed(map(str, range(12)))
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    names = list(names)
    total = len(names) if total is None else total
    shown = names[:_MAX_LISTED]
    more = f" and {total - len(shown):,} more" if total > len(shown) else ""
    return ", ".join(shown) + more or "none"


def check_names(names: Sequence[str], source: str) -> None:
    """Raise DataError for a name that a rule could not be typed with, or that equals another in upper or lower case.

    Such names are empty, have blanks around them, or have control characters or characters that cannot be seen.
    """
    before: dict[str, str] = {}
    for name in names:
        if not name.strip():
            raise DataError(f"{source} has a column without a name, beside {listed(map(repr, names))}: name it, or remove it")
        if re.search(UNSEEN, name):
            raise DataError(
                f"{source} has a character that cannot be seen in the name of the column {short_repr(name)}: remove it"
            )
        is_one_line = len(names) == 1 and "\t" in name  # of a file whose delimiter is a tab: a missing column says so
        if not is_one_line and (match := re.search(_CONTROL, name)):
            what = "a NUL character" if match[0] == "\0" else "a control character, such as a line break or tab,"
            raise DataError(f"{source} has {what} in the name of the column {short_repr(name)}: remove it")
        if name != name.strip():
            raise DataError(f"{source} has blanks around the name of the column {short_repr(name)}: remove them")
        if name.lower() in before:
            other = before[name.lower()]
            both = f"the column {name!r} twice" if other == name else f"the columns {other!r} and {name!r}"
            raise DataError(f"{source} has {both} (upper and lower case ignored): rename one of them")
        before[name.lower()] = name


def describe(types: Mapping[str, pa.DataType | str], empty: Mapping[str, int]) -> str:
    """Return columns with their types, and how many of their values are empty, in one line.

    Args:
        types: The type of each column, or its name in Arrow.
        empty: The number of empty values, by column.

    Examples:
        >>> describe({"item_id": pa.string(), "price": "double"}, {"price": 1})
        'item_id text · price number (1 empty)'
    """
    parts: list[str] = []
    for name, kind in types.items():
        count = empty.get(name, 0)
        parts.append(f"{name} {type_name(kind)}" + (f" ({count:,} empty)" if count else ""))
    return " · ".join(parts)


def type_name(kind: pa.DataType | str) -> str:
    """Return a type, or the name that Arrow gives it, in plain words: text, whole number, number, true/false, list of text."""
    types = pa.types
    if isinstance(kind, str):
        try:
            return type_name(pa.type_for_alias(kind))
        except ValueError:
            return kind
    if types.is_dictionary(kind):
        return type_name(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"list of {type_name(kind.value_type)}"
    words = (
        ("text", types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)),
        ("true/false", types.is_boolean(kind)),
        ("whole number", types.is_integer(kind)),
        ("number", types.is_floating(kind) or types.is_decimal(kind)),
        ("date", types.is_date(kind)),
        ("time", types.is_timestamp(kind)),
        ("time of a day", types.is_time(kind)),
        ("nothing", types.is_null(kind)),
    )
    return next((word for word, is_it in words if is_it), str(kind))
