"""One reader for every file of rows: the ending of its name says the format, and all formats follow one policy.

| | policy |
| --- | --- |
| text | UTF-8, or the encoding that is named |
| null | an empty cell of CSV, null of JSON and Parquet, a missing field of JSON; nothing else |
| types | Parquet's and JSON's own; in CSV as `cells` says; times in JSON's text are times |
| names | once, upper and lower case being one |
| mistakes | file, line (from 1), column, value, and what to do |
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pyarrow as pa

from leafbeam.errors import DataError, short_repr
from leafbeam.ids import BLANKS
from leafbeam.tables import csv_rows, json_rows
from leafbeam.tables.cells import parse_cell
from leafbeam.tables.csv_rows import CsvFormat, read_cells, read_csv
from leafbeam.tables.foreign import ATOMIC_SUFFIXES, is_dataset, read_atomic, read_dataset
from leafbeam.tables.ids import check_ids
from leafbeam.tables.json_rows import lines_of, read_json_table, read_lines, read_objects
from leafbeam.tables.parquet import read_batches, read_parquet, schema_of
from leafbeam.tables.table import SourceTable, check_content, check_names, ending_of, listed

_PARQUET = ".parquet"
SUFFIXES = (_PARQUET, *csv_rows.SUFFIXES, *json_rows.SUFFIXES)
_TEXT, _NUMBERS = ("string", "large_string"), ("int", "uint", "float", "double")


def read_table(
    path: Path,
    *,
    ids: Sequence[str],
    times: Sequence[str] = (),
    only: Sequence[str] | None = None,
    form: CsvFormat | None = None,
    lists: str | None = None,
) -> SourceTable:
    """Read a file of Parquet, CSV, JSON or RecBole, or a directory of Spark or Hugging Face datasets, into memory.

    Args:
        path: The file or directory.
        ids: The columns of ids, which stay text in formats without types, so that 007 is not 7; the first is also the column
            that keys of JSON become.
        times: The columns of times, which stay text in CSV and RecBole's files, so that no digit is lost.
        only: The columns to read, where the format allows to leave others unread.
        form: The delimiter and the encoding of CSV; the encoding counts for RecBole's files too.
        lists: The column that lists become in a JSON object from ids to lists.

    Raises:
        DataError: If the file is missing, of another format, or damaged, or if it has a column twice.
    """
    if path.is_dir() and is_dataset(path):
        return read_dataset(path)
    ending = _ending(path, (*SUFFIXES, *ATOMIC_SUFFIXES))
    if ending == _PARQUET:
        return read_parquet(path, ids=ids, only=only)
    if ending in csv_rows.SUFFIXES:
        return read_csv(path, _form(ending, form), ids=ids, times=times, only=only)
    if ending in json_rows.SUFFIXES:
        return read_json_table(path, ids, lists=lists)
    return read_atomic(path, ids=ids, times=times, encoding=(form or CsvFormat()).encoding)


def is_parquet(path: Path) -> bool:
    """Return whether `read_table` reads a path as Parquet. Raises DataError as `read_table` does."""
    return not is_dataset(path) and _ending(path, (*SUFFIXES, *ATOMIC_SUFFIXES)) == _PARQUET


def _ending(path: Path, endings: Sequence[str]) -> str:
    """Return the ending that names a file's format; that of a directory is .parquet. Raises DataError for any other."""
    if path.is_dir():
        return _PARQUET
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    ending = ending_of(path, endings)
    if not ending:
        raise DataError(f"{path}: expected a file that ends in {', '.join(endings)}: convert it to one of these formats")
    if ending != _PARQUET:
        check_content(path)
    return ending


def _form(ending: str, form: CsvFormat | None) -> CsvFormat:
    """Return the form of a CSV file; the cells of a .tsv file are separated by tabs, unless the form has another delimiter."""
    form = form or CsvFormat()
    return replace(form, delimiter="\t") if ending.startswith(".tsv") and form.delimiter == "," else form


def find_table(directory: Path, stem: str) -> Path | None:
    """Return the one table of a directory called `stem` (.parquet, .csv, ...), or None. Raises DataError for two of them.

    RecBole's `NAME.inter` and `NAME.item` count as `interactions` and `items`, as does a dataset of Hugging Face in a folder.
    A directory that Spark wrote (its name ends in .parquet, or it has a file `_SUCCESS`) is itself the table of interactions.
    """
    names = [f"{stem}{suffix}" for suffix in SUFFIXES]
    paths = [path for path in sorted(directory.iterdir()) if path.name.lower() in names]
    if stem == "interactions" and (ending_of(directory, (_PARQUET,)) or (directory / "_SUCCESS").is_file()):
        paths.append(directory)
    paths += sorted(directory.glob({"interactions": "*.inter", "items": "*.item"}[stem]))
    paths += [folder] if is_dataset(folder := directory / stem) else []
    if len(paths) > 1:
        raise DataError(f"{directory} holds {listed(path.name for path in paths)}: keep one, or name the file to read")
    return paths[0] if paths else None


class Rows(NamedTuple):
    """Some rows of a file, and the line of each in the file (its row, in a format without lines), counted from 1."""

    rows: Sequence[Mapping[str, object]]
    line_of: Callable[[int], int]


def read_rows(
    path: Path,
    size: int,
    *,
    types: Mapping[str, str],
    ids: Sequence[str] = (),
    form: CsvFormat | None = None,
    stdin: BinaryIO | None = None,
) -> Generator[Rows]:
    """Yield the rows of a file as JSON has them, without nulls, `size` at a time.

    Args:
        path: A file of Parquet, CSV, JSON or JSON lines, or a directory of Parquet files; `-` for JSON lines on standard input.
        size: The number of rows in a batch. Only one batch is in memory at a time, except that `.json` is read whole.
        types: The Arrow types of known columns in words. Cells of CSV become values of these types, and whole numbers become
            text in a column of text.
        ids: The columns of ids. Blanks and tabs around an id in CSV are removed; keys of a JSON object become the first of
            these columns.
        form: The delimiter and the encoding of CSV.
        stdin: Standard input.

    Raises:
        DataError: As `read_table`; the batches before it have been yielded.
    """
    if str(path) == "-" and stdin is not None:
        yield from _batches(read_lines(stdin, "standard input"), "standard input", size, types)
        return
    ending = _ending(path, SUFFIXES)
    if ending == _PARQUET:
        yield from _parquet_rows(path, size, types, ids)
    elif ending in csv_rows.SUFFIXES:
        for cells, line_of in read_cells(path, _form(ending, form), size):
            stripped = [{name: cell.strip(BLANKS) if name in ids else cell for name, cell in row.items()} for row in cells]
            rows = [{name: parse_cell(cell, types.get(name, "")) for name, cell in row.items()} for row in stripped]
            yield Rows(rows, line_of)
    elif ending in json_rows.WHOLE:
        objects = read_objects(path, ids or ("item_id",))
        if objects.has_keys_as_ids:
            for row in objects.rows:
                row[ids[0]] = parse_cell(str(row[ids[0]]), types.get(ids[0], "string"))
        yield from _batches(enumerate(objects.rows, 1), str(path), size, types)
    else:
        yield from _batches(lines_of(path), str(path), size, types)


def _batches(contents: Iterable[tuple[int, object]], source: str, size: int, types: Mapping[str, str]) -> Generator[Rows]:
    """Yield the objects of a file in batches, with the number of each."""
    names: dict[str, None] = {}
    contents = iter(contents)
    while batch := list(islice(contents, size)):
        rows: list[Mapping[str, object]] = []
        for number, content in batch:
            if not isinstance(content, dict):
                raise DataError(f"{source}, line {number:,}: expected a row as a JSON object, not {short_repr(content)}")
            if not names.keys() >= (row := cast("dict[str, object]", content)).keys():
                names |= dict.fromkeys(row)
                check_names(list(names), source)
            rows.append(_plain(row, types))
        yield Rows(rows, [number for number, _ in batch].__getitem__)


def _parquet_rows(path: Path, size: int, types: Mapping[str, str], ids: Sequence[str]) -> Generator[Rows]:
    from leafbeam.tables.as_json import rows_of  # needs msgspec, which reading tables does not

    schema = schema_of(path)
    decimals = [field.name for field in schema if pa.types.is_decimal(field.type)]
    numbers = [name for name in decimals if name not in ids and types.get(name, "").startswith(_NUMBERS)]
    begin = 1
    for batch in read_batches(path, size):
        for name in set(ids).intersection(decimals):
            batch = batch.set_column(schema.get_field_index(name), name, check_ids(batch, name, str(path), begin - 1))
        try:
            rows = [_plain(row, types) for row in rows_of(batch)]
            for name in numbers:  # they are text in JSON, which is exact, and are read like a cell of CSV
                rows = [{**row, name: parse_cell(str(row[name]), types[name])} if name in row else row for row in rows]
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}, rows {begin:,} to {begin + len(batch) - 1:,} cannot be sent as JSON: {error}") from error
        yield Rows(rows, partial(add, begin))
        begin += len(rows)


def _plain(row: Mapping[str, object], types: Mapping[str, str]) -> Mapping[str, object]:
    """Return a row without nulls, in which whole numbers of text columns are text, as in CSV."""
    return {
        name: str(value) if type(value) is int and types.get(name) in _TEXT else value
        for name, value in row.items()
        if value is not None
    }
