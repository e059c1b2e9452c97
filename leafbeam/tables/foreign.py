"""Tables as other libraries keep them: RecBole's atomic files, Hugging Face datasets on disk, cornac's and RecTools' tables."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import io
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError, counted, short_repr
from leafbeam.files import open_regular, read_json
from leafbeam.tables.cells import are_numbers, are_written, typed
from leafbeam.tables.columns import NUMBER
from leafbeam.tables.csv_rows import CsvFormat, read_csv
from leafbeam.tables.table import SourceTable, is_utf_16

ATOMIC_SUFFIXES = (".inter", ".item", ".user")
_ATOMIC_TYPES = ("token", "token_seq", "float", "float_seq")
_FLOAT = r"(?i)^\s*[-+]?(nan|inf|infinity|([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?)\s*$"
_MAX_HEADER = 1 << 16
_DATASET, _SPLITS = "state.json", "dataset_dict.json"


def read_atomic(path: Path, *, ids: Sequence[str] = (), times: Sequence[str] = (), encoding: str = "utf-8") -> SourceTable:
    """Read a file of RecBole: a line of `name:type` (token, token_seq, float, float_seq), then rows, with tabs between fields.

    Columns lose their types; ids and times are text; sequences are text of words. Numbers that a float64 would change make
    their column text, as in CSV. Raises DataError.
    """
    form = CsvFormat(delimiter="\t", encoding=encoding, quotes=False)
    try:
        with open_regular(path) as file:
            if form.is_utf8 and is_utf_16(file.read(_MAX_HEADER)):
                raise DataError(f"{path} is not UTF-8: it looks like UTF-16; pass --encoding utf-16 (encoding='utf-16')")
            file.seek(0)
            with io.TextIOWrapper(file, "utf-8-sig" if form.is_utf8 else encoding, "replace") as lines:
                line = lines.readline(_MAX_HEADER)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} cannot be read: {reason}") from error
    fields = [field.partition(":") for field in line.rstrip("\r\n").split("\t")]
    for name, _, kind in fields:
        if not name or kind not in _ATOMIC_TYPES:
            raise DataError(
                f"{path}: the column {short_repr(name)} has the type {short_repr(kind)}: expected a first line of names with "
                f"types ({', '.join(_ATOMIC_TYPES)}) and tabs between them, such as user_id:token"
            )
    names = tuple(name for name, _, _ in fields)
    source = read_csv(path, replace(form, names=names), ids=ids, texts=names)
    table = source.table
    for number, (name, _, kind) in enumerate(fields):
        if kind == "float" and name not in (*ids, *times):
            table = table.set_column(number, name, _floats(source, name))
    return source.with_table(table)


def _floats(source: SourceTable, name: str) -> pa.ChunkedArray:
    """Return a column that its file declares as numbers. Raises DataError for text that is not a number."""
    values = source.table[name]
    wrong = pc.fill_null(pc.invert(pc.match_substring_regex(values, _FLOAT)), False)
    source.refuse(name, "not a number", wrong, "write a number, or leave the cell empty")
    numbers = typed(values)
    with suppress(pa.ArrowInvalid):  # whole numbers that a float64 would change
        numbers = numbers.cast(pa.float64()) if pa.types.is_integer(numbers.type) else numbers
    return numbers


def is_dataset(directory: Path) -> bool:
    """Return whether Hugging Face's `datasets` saved a directory (`save_to_disk`)."""
    return (directory / _DATASET).is_file() or (directory / _SPLITS).is_file()


def read_dataset(directory: Path) -> SourceTable:
    """Read a dataset that `save_to_disk` of Hugging Face's datasets wrote: Arrow streams that state.json names.

    A directory of several splits is refused: name one of its directories. Raises DataError.
    """
    if not (directory / _DATASET).is_file():
        splits = _read_fields(directory / _SPLITS).get("splits")
        if not isinstance(splits, list) or not splits or not all(_is_name(split) for split in splits):
            raise DataError(f"{directory / _SPLITS} names no splits: save the dataset again")
        if len(splits) > 1:
            raise DataError(f"{directory} has the splits {', '.join(splits)}: name one, such as {directory / splits[0]}")
        directory = directory / splits[0]
    files = _read_fields(directory / _DATASET).get("_data_files")
    if not isinstance(files, list) or not all(isinstance(file, dict) and _is_name(file.get("filename")) for file in files):
        raise DataError(f"{directory / _DATASET} names no data files: save the dataset again")
    tables: list[object] = []
    for file in files:
        path = directory / file["filename"]
        if not path.is_file():
            raise DataError(f"{path} is missing: copy the dataset again")
        try:
            with open_regular(path) as opened, pa.ipc.open_stream(opened) as reader:
                tables.append(reader.read_all())
            tables[-1].validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    if not tables:
        raise DataError(f"{directory} is a dataset without files: expected at least one")
    try:
        table = pa.concat_tables(tables).replace_schema_metadata(None)
    except pa.ArrowException as error:
        raise DataError(f"{directory} has files of several schemas ({error}): save the dataset again") from error
    return SourceTable(table=table, source=str(directory))


def read_ratings(path: Path) -> SourceTable:
    """Read a file without names of columns: user, item, rating and, if there is a fourth, time (cornac's UIR and UIRT).

    The first line tells the separator: a tab, a comma, `::` or blanks. Raises DataError.
    """
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read: {reason}") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    first = lines[0][1] if lines else ""
    mark = next((mark for mark in ("\t", "::", ",") if mark in first), None)
    rows = [[cell.strip() for cell in line.strip().split(mark)] for _, line in lines]
    width = len(rows[0]) if rows else 0
    if width not in (3, 4):
        raise DataError(
            f"{path}: line 1 has {counted(width, 'field')}: expected user, item, rating and perhaps time, as in cornac's files"
        )
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise DataError(
                f"{path}, line {number:,} has {counted(len(row), 'field')}, but the first has {width}: expected the same "
                "number in all rows"
            )
    columns = dict(zip(("user_id", "item_id", "rating", "timestamp"), zip(*rows, strict=True), strict=False))
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    checks: dict[str, Callable[[pa.ChunkedArray], bool]] = {
        "rating": are_numbers,
        "timestamp": lambda values: are_written(values, NUMBER),  # stays text, so that no digit is lost
    }
    for name in columns.keys() & checks:
        if not checks[name](table[name]):
            wrong = next(row for row in range(len(rows)) if not checks[name](table[name].slice(row, 1)))
            raise DataError(
                f"{path}, line {lines[wrong][0]:,}: the {name} {short_repr(columns[name][wrong])} is not a number: "
                "is this a table with names of columns?"
            )
    table = table.set_column(2, "rating", typed(table["rating"]))
    return SourceTable(table=table, source=str(path), is_text=True, where=lambda row: f"line {lines[row][0]:,}")


def joined_features(source: SourceTable) -> SourceTable:
    """Return RecTools' features of items (id, feature, value: a row a value) as a row an item; another table as it is.

    Several values of a feature are joined with blanks.
    """
    table = source.table
    if set(table.column_names) != {"id", "feature", "value"} or any(column.null_count for column in table.columns):
        return source
    rows: dict[object, dict[str, list[str]]] = {}
    for item, feature, value in zip(*(table[name].to_pylist() for name in ("id", "feature", "value")), strict=True):
        rows.setdefault(item, {}).setdefault(str(feature), []).append(str(value))
    names = dict.fromkeys(name for row in rows.values() for name in row)
    joined = {name: pa.array([" ".join(row[name]) if name in row else None for row in rows.values()]) for name in names}
    ids = pa.array(list(rows), pa.string() if source.is_text else table["id"].type)
    return SourceTable(table=pa.table({**joined, "id": ids}), source=source.source, is_text=source.is_text)


def _is_name(name: object) -> bool:
    """Return whether a name is that of a file in the directory itself."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]{1,255}", name) is not None and not name.startswith(".")


def _read_fields(path: Path) -> dict[str, object]:
    try:
        content = read_json(path)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}): save the dataset again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no object: save the dataset again")
    return content
