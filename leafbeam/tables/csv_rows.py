"""CSV: read by pyarrow, after a check that its quotes close and that its text is in the encoding that was named."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import codecs
import csv
import io
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import pyarrow as pa
import pyarrow.csv as pacsv

from leafbeam.errors import ArgumentError, DataError, counted, short_repr
from leafbeam.tables.cells import typed
from leafbeam.tables.csv_structure import Structure, read_structure
from leafbeam.tables.table import SourceTable, check_names, is_compressed, is_utf_16, opened

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_CHUNK = 1 << 22
_MAX_HEADER = 1 << 20
_IDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, kw_only=True, slots=True)
class CsvFormat:
    """The form of a file of CSV.

    Args:
        delimiter: The character between two cells.
        encoding: A name that Python knows, such as "latin-1" or "utf-16".
        quotes: False where a quote is a character like others (RecBole).
        names: The names of the columns, in place of those in the first line.
    """

    delimiter: str = ","
    encoding: str = "utf-8"
    quotes: bool = True
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n':
            raise ArgumentError(f"delimiter={self.delimiter!r}: expected one character, such as ',' or ';'")
        try:
            is_text = cast("Any", codecs.lookup(self.encoding))._is_text_encoding  # no public name; hex and rot13 have False
        except (LookupError, ValueError):
            is_text = False
        if not is_text:
            raise ArgumentError(
                f"encoding={self.encoding!r}: expected the name of an encoding, such as utf-8, latin-1 or utf-16"
            )

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")


class _Header(NamedTuple):
    """The names of the columns, and the number of rows up to and including the row of names; those before it are empty.

    has_rows: False if the file ends after this row.
    """

    names: list[str]
    rows: int
    has_rows: bool = True


def read_csv(
    path: Path,
    form: CsvFormat | None = None,
    *,
    ids: Sequence[str] = (),
    times: Sequence[str] = (),
    only: Sequence[str] | None = None,
    texts: Sequence[str] = (),
) -> SourceTable:
    """Read a file of CSV, plain or compressed with gzip.

    Args:
        path: The file.
        form: Its form; a comma and UTF-8 by default.
        ids: Columns that stay text.
        times: Columns of times, which stay text too, so that no digit is lost.
        only: The columns to read, if the file has them; all columns by default.
        texts: Other columns that stay text.

    Raises:
        DataError: For a quote that does not close, text after a closing quote, rows of another length, another encoding, a
            name of a column that occurs twice.
    """
    form = form or CsvFormat()
    header = _check(path, form)
    names = header.names
    columns = names if only is None else [name for name in names if name in only]
    kinds: dict[str, pa.DataType] = {name: _IDS if name in ids else pa.string() for name in columns}
    table = pa.table({})
    if columns and header.has_rows:
        with _reading(path, form, names):
            table = pacsv.read_csv(_stream(path), **_options(form, header, kinds, columns))
    elif columns:
        table = pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
    for number, name in enumerate(table.column_names):
        if name not in (*ids, *times, *texts):
            table = table.set_column(number, name, typed(table[name]))
    line_of = partial(line_number, path, form, len(names))
    return SourceTable(
        table=table, source=str(path), is_text=True, names=tuple(names), where=lambda row: f"line {line_of(row):,}"
    )


def read_cells(path: Path, form: CsvFormat, size: int) -> Generator[tuple[list[dict[str, str]], Callable[[int], int]]]:
    """Yield the rows of a file as text without empty cells, `size` at a time, and how to find the line of each.

    Memory: some megabytes, whatever the size of the file. Raises DataError as `read_csv` does.
    """
    header = _check(path, form)
    names = header.names
    if not header.has_rows:
        return
    with _reading(path, form, names):
        reader = pacsv.open_csv(_stream(path), **_options(form, header, {name: pa.string() for name in names}, names))
    begin = 0
    while True:
        with _reading(path, form, names):
            batch = next(reader, None)
        if batch is None:
            return
        for first in range(0, len(batch), size):
            part = batch.slice(first, size).to_pylist()
            rows = [{name: cell for name, cell in row.items() if cell is not None} for row in part]
            yield rows, partial(_line_after, partial(line_number, path, form, len(names)), begin)
            begin += len(rows)


def _line_after(line_of: Callable[[int], int], begin: int, row: int) -> int:
    return line_of(begin + row)


def line_number(path: Path, form: CsvFormat, num_columns: int, row: int) -> int:
    """Return the line of a row, counted from 1 as editors do. Cost: one pass over the file."""
    if not form.quotes:
        return _line_without_quotes(path, form, row + 1)
    chunks = _utf8_chunks(path, form)
    return read_structure(chunks, delimiter=form.delimiter, num_columns=num_columns, sought=row + 1).sought_line


def _line_without_quotes(path: Path, form: CsvFormat, sought: int) -> int:
    with _lines(path, form) as lines:
        for number, line in enumerate(lines, 1):
            sought -= bool(line.rstrip("\n"))
            if sought < 0:
                return number
    return 0


def _options(form: CsvFormat, header: _Header, kinds: dict[str, pa.DataType], columns: list[str]) -> dict[str, object]:
    """Return pyarrow's options to read `columns` of a file, with the types that `kinds` has for some of them."""
    encoding = "utf8" if form.is_utf8 else form.encoding
    quote = '"' if form.quotes else False
    return {
        "read_options": pacsv.ReadOptions(
            block_size=_CHUNK, encoding=encoding, column_names=header.names, skip_rows_after_names=header.rows
        ),
        "parse_options": pacsv.ParseOptions(delimiter=form.delimiter, newlines_in_values=form.quotes, quote_char=quote),
        "convert_options": pacsv.ConvertOptions(
            column_types=kinds,
            include_columns=columns,
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[""],
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        ),
    }


def _check(path: Path, form: CsvFormat) -> _Header:
    """Return the header of a file. Raises DataError for a wrong encoding, repeated names or wrong quotes."""
    try:
        with opened(path) as file:
            head = file.read(_MAX_HEADER)
            if not head:
                raise DataError(f"{path} is empty (0 bytes): expected a line with the names of the columns")
            if form.is_utf8 and is_utf_16(head):
                raise DataError(f"{path} is not UTF-8: it looks like UTF-16; pass --encoding utf-16 (encoding='utf-16')")
            header = _read_header(path, head, form)
            has_quotes = False
            for chunk in chain((head,), iter(partial(file.read, _CHUNK), b"")):
                if form.is_utf8 and b"\0" in chunk:
                    raise DataError(f"{path}, line {_line_of_nul(path):,} has a NUL character: is it a file of CSV? Remove it")
                has_quotes = has_quotes or b'"' in chunk
        if has_quotes and form.quotes:
            chunks = _utf8_chunks(path, form)
            _check_quotes(path, read_structure(chunks, delimiter=form.delimiter, num_columns=len(header.names)))
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        _refuse(path, error, form)
    check_names(header.names, str(path))
    return header


def _line_of_nul(path: Path) -> int:
    with opened(path) as file:
        return next(number for number, line in enumerate(file, 1) if b"\0" in line)


def _read_header(path: Path, head: bytes, form: CsvFormat) -> _Header:
    """Return the first line that is not empty. A column without a name, such as the index of pandas, gets a name."""
    decoder = codecs.getincrementaldecoder("utf-8" if form.is_utf8 else form.encoding)("strict")
    text = decoder.decode(head, final=len(head) < _MAX_HEADER)  # a mark of the byte order is left out once, as by pyarrow
    lines = (line for line in io.StringIO(text.removeprefix("\ufeff"), newline=""))
    quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
    try:
        rows = csv.reader(lines, delimiter=form.delimiter, quoting=quoting, strict=True)
        number, names = next(((number, row) for number, row in enumerate(rows, 1) if row), (1, []))
        has_rows = len(head) == _MAX_HEADER or any(True for _ in lines)
    except csv.Error as error:
        raise DataError(
            f"{path}, line 1 does not name columns ({error}): expected names with {form.delimiter!r} between"
        ) from None
    if form.names:
        return _Header(list(form.names), number, has_rows)
    if excel_line := re.fullmatch(r"(?i)sep=(\\t|.)?", form.delimiter.join(names)):
        mark = (excel_line[1] or form.delimiter).replace("\\t", "\t")
        raise DataError(
            f"{path}, line {number} is {excel_line[0]!r}, which is for Excel: remove this line, so that the file begins with "
            f"the names of the columns, and pass --delimiter {'tab' if mark == chr(9) else repr(mark)}"
        )
    for index in [index for index, name in enumerate(names) if not name]:
        names[index] = next(name for number in count(index) if (name := f"unnamed_{number}") not in names)
    return _Header(names, number, has_rows)


def _check_quotes(path: Path, structure: Structure) -> None:
    """Raise DataError for a quote that does not close, or that swallows rows."""
    begins = f"{path}, line {structure.open_line:,}: a quote opens a cell"
    double = 'double a quote that is part of the text (""), or remove it'
    if structure.is_open:
        raise DataError(f"{begins} and does not close up to the end of the file: close it, or {double}")
    if structure.bad_line:
        raise DataError(f"{begins}, and after it closes in line {structure.bad_line:,} there is other text: {double}")
    if structure.spaced_line:
        raise DataError(
            f"{path}, line {structure.spaced_line:,}: a blank stands before the quotes of a cell, so that they would be a part "
            "of its text: remove the blanks between the delimiter and the quote"
        )
    if 2 * structure.swallowed > structure.spanning:
        raise DataError(
            f"{path}, line {structure.swallowed_line:,}: a quote opens a cell that holds whole rows up to the next quote: "
            f"{double}; if the cell does hold line breaks, write the table as Parquet or JSON lines"
        )


@contextmanager
def _reading(path: Path, form: CsvFormat, names: Sequence[str]) -> Generator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        _refuse(path, error, form, len(names))


def _refuse(path: Path, error: Exception, form: CsvFormat, num_columns: int = 0) -> NoReturn:
    """Raise DataError for what pyarrow or Python cannot read, with the line where that can be found."""
    if isinstance(error, OSError) and error.strerror:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(error, OSError | EOFError | zlib.error):
        if form.is_utf8 and (undecoded := _first_undecodable(path, form)):
            raise DataError(undecoded) from error
        if "straddling" in str(error) and (line := _line_of_long_row(path, form)):
            raise DataError(f"{path}, line {line:,}: the row is longer than {_CHUNK >> 20} MiB: shorten its cells") from error
        if num_columns and not isinstance(error, UnicodeError):
            line, fields = _first_ragged(path, form, num_columns)
            if line:
                how = f"; quote text that holds {form.delimiter!r}" if form.quotes else ""
                raise DataError(
                    f"{path}, line {line:,} has {counted(fields, 'cell')}, but the first line names "
                    f"{counted(num_columns, 'column')}: expected as many cells{how}"
                ) from error
    how = "" if form.is_utf8 else f" as {form.encoding}"
    raise DataError(f"{path} cannot be read{how}: {error}") from error


def _first_ragged(path: Path, form: CsvFormat, num_columns: int) -> tuple[int, int]:
    """Return the line of the first row that has another number of cells, and that number; zeros if there is none."""
    if form.quotes:
        structure = read_structure(_utf8_chunks(path, form), delimiter=form.delimiter, num_columns=num_columns)
        return structure.ragged_line, structure.ragged_fields
    with _lines(path, form) as lines:
        counts = ((number, line.count(form.delimiter) + 1) for number, line in enumerate(lines, 1) if line != "\n")
        return next(((number, count) for number, count in counts if count != num_columns), (0, 0))


def _line_of_long_row(path: Path, form: CsvFormat) -> int:
    """Return the line where the first row begins that is longer than pyarrow's block, or 0."""
    begin, size, quotes = 1, 0, 0
    with _lines(path, form) as lines:
        for number, line in enumerate(lines, 1):
            size, quotes = size + len(line.encode()), quotes + line.count('"') * form.quotes
            if size > _CHUNK:
                return begin
            if quotes % 2 == 0:
                begin, size, quotes = number + 1, 0, 0
    return 0


@contextmanager
def _lines(path: Path, form: CsvFormat) -> Generator[io.TextIOWrapper]:
    with opened(path) as file, io.TextIOWrapper(file, encoding=form.encoding, errors="replace", newline=None) as lines:
        yield lines


def _first_undecodable(path: Path, form: CsvFormat) -> str:
    """Return the line, column and value of the first cell that is not UTF-8, or ""."""
    with opened(path) as file, io.TextIOWrapper(file, encoding="latin-1", newline="") as text:
        quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
        rows = csv.reader(text, delimiter=form.delimiter, quoting=quoting)
        names: list[str] = list(form.names)
        try:
            for row in rows:
                names = names or row
                bytes_of_cells = ((index, _undecodable_byte(cell.encode("latin-1"))) for index, cell in enumerate(row))
                index, byte = next((pair for pair in bytes_of_cells if pair[1]), (0, ""))
                if byte:
                    name = names[index] if index < len(names) else str(index)
                    return (
                        f"{path}, line {rows.line_num:,}, column {name!r}: {short_repr(row[index])} is not UTF-8 (byte "
                        f"{byte}): pass --encoding latin-1, or what it is written in (encoding=...)"
                    )
        except csv.Error:  # such as a cell that is longer than csv's limit
            return _first_undecodable_line(path)
    return ""


def _undecodable_byte(data: bytes) -> str:
    """Return the first byte that is not UTF-8, as "0xFC", or ""."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"0x{data[error.start]:02X}"
    return ""


def _first_undecodable_line(path: Path) -> str:
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            if byte := _undecodable_byte(line):
                return f"{path}, line {number:,} is not UTF-8 (byte {byte}): pass --encoding (encoding=...)"
    return ""


def _stream(path: Path) -> pa.NativeFile:
    """Open a file for pyarrow, which recognises the ending .gz only in lower case."""
    return pa.input_stream(str(path), compression="gzip" if is_compressed(path) else None)


def _utf8_chunks(path: Path, form: CsvFormat) -> Iterator[bytes]:
    """Yield the bytes of a file in UTF-8, without a byte order mark."""
    with opened(path) as file:
        chunks = iter(partial(file.read, _CHUNK), b"")
        if form.is_utf8:
            for number, chunk in enumerate(chunks):
                yield chunk if number else chunk.removeprefix(codecs.BOM_UTF8)
            return
        decoder = codecs.getincrementaldecoder(form.encoding)("strict")
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
