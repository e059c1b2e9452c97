"""JSON: lines of objects, a list of objects, objects by id or by row number, and columns as pandas writes them."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
import math
import re
import zlib
from collections.abc import Callable, Generator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from leafbeam.errors import DataError, short_repr
from leafbeam.json_reader import parse_json
from leafbeam.tables.cells import no_constant, typed
from leafbeam.tables.table import SourceTable, ending_of, is_utf_16, listed, nth_row, opened

WHOLE = (".json", ".json.gz")
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", *WHOLE)
MAX_LINE = 1 << 20
_MAX_EXACT = 1 << 53
_MAX_INT = 1 << 63
_ERRORS = (OSError, EOFError, zlib.error)
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "an object"}
_INEXACT, _BEYOND = "beyond 53 bits", "beyond 64 bits"  # kinds of whole numbers
Where = Callable[[int], str]


class Content(NamedTuple):
    """The content of a file, and the line or row of its n-th part."""

    value: object
    where: Where


def read_json(path: Path) -> Content:
    """Return the content of a file; of JSON lines the list of the lines' content.

    Raises:
        DataError: For text that is not JSON, a key that occurs twice, NaN, or another encoding, with its line.
    """
    try:
        if ending_of(path, WHOLE):
            with opened(path) as file:
                return Content(_parsed(file.read(), str(path)), nth_row)
    except _ERRORS as error:
        raise _unreadable(path, error) from error
    lines = list(lines_of(path))
    return Content([value for _, value in lines], lambda row: f"line {lines[row][0]:,}")


def lines_of(path: Path) -> Generator[tuple[int, object]]:
    """Yield `read_lines` of a file. Raises DataError."""
    try:
        with opened(path) as file:
            yield from read_lines(file, str(path))
    except _ERRORS as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return DataError(f"{path} cannot be read: {reason}")


def read_lines(file: BinaryIO, source: str) -> Generator[tuple[int, object]]:
    """Yield the number, from 1, and the content of each line that is not empty. Raises DataError with the line."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataError(f"{source}, line {number:,} is too long: expected at most {MAX_LINE:,} bytes")
        if line.strip():
            yield number, _parsed(line, f"{source}, line {number:,}")


class Objects(NamedTuple):
    """The rows of a file as objects, whether their ids were keys, and a function that names the line or row of each."""

    rows: list[dict[str, object]]
    has_keys_as_ids: bool
    where: Where


def read_objects(path: Path, ids: Sequence[str], *, lists: str | None = None) -> Objects:
    """Read the rows of a file as objects.

    These forms are read: an object a line; a list of objects; an object from ids, or from row numbers, to objects; an object
    from columns to lists, or to values by row number (pandas). A key is the id of a row only if the row has no such field.

    Args:
        path: The file.
        ids: The columns of ids; keys of an object become the first of them.
        lists: The column that lists become in an object from ids to lists; None refuses them.

    Raises:
        DataError: If the file has another form.
    """
    content, id_name = read_json(path), ids[0]
    rows, is_text = content.value, False
    if isinstance(rows, dict):
        rows, is_text = _rows_by_key(cast("dict[str, object]", rows), id_name, lists, path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected objects of fields, an object a row")
    return Objects(cast("list[dict[str, object]]", rows), is_text, content.where)


def read_json_table(path: Path, ids: Sequence[str], *, lists: str | None = None) -> SourceTable:
    """Read a table, with null where an object lacks a field.

    Args:
        path: The file, in a form that `read_objects` reads.
        ids: The columns of ids, whose text is never read as a time; keys of an object become the first of them.
        lists: As in `read_objects`.

    Raises:
        DataError: If the file has another form, or a column has values of two types; the error names the lines of both.
    """
    objects, is_text, where = read_objects(path, ids, lists=lists)
    names = list(dict.fromkeys(name for row in objects for name in row))
    columns = {name: _column([row.get(name) for row in objects], f"{path}, column {name!r}", where) for name in names}
    columns = {
        name: typed(values, times_alone=True) if name not in ids and pa.types.is_string(values.type) else values
        for name, values in columns.items()
    }
    return SourceTable(table=pa.table(columns), source=str(path), is_text=is_text, where=where)


def _rows_by_key(content: dict[str, Any], id_name: str, lists: str | None, path: Path) -> tuple[list[object], bool]:
    """Return the rows of an object, and whether its keys became their ids."""
    values = list(content.values())
    if id_name in content and values and all(isinstance(value, list) for value in values):
        lengths = {name: len(value) for name, value in content.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"{path} has columns of different lengths: {listed(f'{n} {count:,}' for n, count in lengths.items())}"
            )
        return [dict(zip(content, row, strict=True)) for row in zip(*values, strict=True)], False
    if lists is not None and values and all(isinstance(value, list) for value in values):
        return [{id_name: key, lists: value} for key, value in content.items()], True
    if not values or not all(isinstance(value, dict) for value in values):
        return [content], False
    objects = cast("dict[str, dict[str, object]]", content)
    if id_name in objects:  # columns of values by row number
        keys = list(dict.fromkeys(key for column in objects.values() for key in column))
        return [{name: column.get(key) for name, column in objects.items()} for key in keys], False
    has_ids = [id_name in row for row in objects.values()]
    if any(has_ids) and not all(has_ids):
        key = list(objects)[has_ids.index(False)]
        raise DataError(
            f"{path}: the row {key!r} has no {id_name!r}, but other rows have one: expected it in all rows, or in none"
        )
    if any(has_ids):
        return list(objects.values()), False
    return [{id_name: key, **row} for key, row in objects.items()], True


def _column(values: list[object], source: str, where: Where) -> pa.ChunkedArray:
    """Return values of one type as a column; whole numbers beyond 64 bits make all of them text."""
    for path, rows in _rows_by_kind(values).items():
        within = " within its lists or objects" if path else ""
        kinds = {kind: row for kind, row in rows.items() if isinstance(kind, type)}
        if len(kinds) > 1 and kinds.keys() != {int, float}:
            words = {kind: _KINDS.get(kind, kind.__name__) for kind in kinds}
            shown = listed(
                f"{words[kind]} in {where(row)} ({short_repr(values[row])})"
                for kind, row in sorted(kinds.items(), key=itemgetter(1))
            )
            raise DataError(f"{source} has values of several types{within}, {shown}: write all of them as one type")
        if float in rows and _INEXACT in rows:
            shown = [f"{where(rows[kind])} ({short_repr(values[rows[kind]])})" for kind in (float, _INEXACT)]
            raise DataError(
                f"{source} has fractions{within}, first in {shown[0]}, and whole numbers that a float64 would change, first in "
                f"{shown[1]}: write all as text"
            )
        if _BEYOND in rows and path:
            row = rows[_BEYOND]
            raise DataError(
                f"{source} has a whole number beyond 64 bits{within} in {where(row)} ({short_repr(values[row])}): write such "
                "numbers as text, in all rows"
            )
        if _BEYOND in rows:
            values = [None if value is None else str(value) for value in values]
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise DataError(f"{source} cannot be read as a column ({error}): write its values as text") from error
    return pa.chunked_array([array.cast(pa.string()) if pa.types.is_null(array.type) else array])


def _rows_by_kind(values: list[object]) -> dict[tuple[str, ...], dict[type | str, int]]:
    """Return the first row of each type of value, for the values themselves (an empty path) and each path within them.

    Items of a list have the path "[]". Whole numbers that a float64 or 64 bits cannot hold are kinds of their own too.
    """
    first: dict[tuple[str, ...], dict[type | str, int]] = {}
    for row, top in enumerate(values):
        stack: list[tuple[tuple[str, ...], Any]] = [((), top)]
        while stack:
            path, value = stack.pop()
            if value is None:
                continue
            kind = type(value)
            rows = first.setdefault(path, {})
            rows.setdefault(kind, row)
            if kind is int and abs(value) > _MAX_EXACT:
                rows.setdefault(_INEXACT, row)
                if not -_MAX_INT <= value < _MAX_INT:
                    rows.setdefault(_BEYOND, row)
            elif kind is dict:
                stack += [((*path, name), part) for name, part in cast("dict[str, object]", value).items()]
            elif kind is list:
                inside = (*path, "[]")
                stack += [(inside, part) for part in cast("list[object]", value)]
    return first


def _float(text: str) -> float:
    """Return a number with a fraction or an exponent. Raises ValueError if a float64 would make it infinite or 0."""
    number = float(text)
    if math.isinf(number) or (number == 0 and re.match(r"-?[0.]*[1-9]", text)):
        raise ValueError(f"{text} is too large or too small for a 64-bit number: write it as text")
    return number


def _parsed(data: bytes, source: str) -> object:
    if is_utf_16(data[:1000]):
        raise DataError(f"{source} is not UTF-8: it looks like UTF-16: write JSON in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = source if ", line " in source else f"{source}, line {line:,}"
        raise DataError(f"{where} is not UTF-8 (byte 0x{data[error.start]:02X}): write JSON in UTF-8") from error
    try:
        value = parse_json(text, parse_constant=no_constant, parse_float=_float)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
        return value
    except RecursionError:
        raise DataError(f"{source} cannot be read as JSON: it nests too deeply") from None
    except ValueError as error:
        is_lines = isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and error.lineno > 1 == error.colno
        hint = "; if each line is an object, let the file's name end in .jsonl" if is_lines else ""
        raise DataError(f"{source} cannot be read as JSON: {error}{hint}") from error
