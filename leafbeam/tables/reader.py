"""One reader for every file of rows: the ending of its name says the format, and all formats follow one policy.

| | policy |
| --- | --- |
| text | UTF-8, or the encoding that is named |
| null | an empty cell of CSV, null of JSON and Parquet, a missing field of JSON; nothing else |
| types | Parquet's and JSON's own; in CSV as `cells` says; times in JSON's text are times |
| names | once, upper and lower case being one |
| mistakes | file, line (from 1), column, value, and what to do |
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa

from leafbeam.errors import DataError, short_repr
from leafbeam.tables import csv_rows, json_rows
from leafbeam.tables.cells import parse_cell
from leafbeam.tables.csv_rows import CsvFormat, read_cells, read_csv
from leafbeam.tables.foreign import ATOMIC_SUFFIXES, is_dataset, read_atomic, read_dataset
from leafbeam.tables.json_rows import lines_of, read_json, read_json_table, read_lines
from leafbeam.tables.parquet import read_batches, read_parquet
from leafbeam.tables.table import SourceTable, listed

SUFFIXES = (".parquet", *csv_rows.SUFFIXES, *json_rows.SUFFIXES)


def read_table(
    path: Path,
    *,
    ids: Sequence[str],
    times: Sequence[str] = (),
    only: Sequence[str] | None = None,
    form: CsvFormat | None = None,
    lists: str | None = None,
) -> SourceTable:
    """Read a file of Parquet, CSV, JSON or RecBole, or a directory that Hugging Face's datasets saved, into memory.

    Args:
        path: The file or directory.
        ids: The columns of ids, which stay text in formats without types, so that 007 is not 7; the first is also the column
            that keys of JSON become.
        times: The columns of times, whose types pyarrow finds.
        only: The columns to read, where the format allows to leave others unread.
        form: The delimiter and the encoding of CSV.
        lists: The column that lists become in a JSON object from ids to lists.

    Raises:
        DataError: If the file is missing, of another format, or damaged, or if it has a column twice.
    """
    if path.is_dir() and is_dataset(path):
        return read_dataset(path)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty (0 bytes)")
    if path.name.endswith(".parquet"):
        return read_parquet(path, ids=ids, only=only)
    if path.name.endswith(csv_rows.SUFFIXES):
        return read_csv(path, form, ids=ids, times=times, only=only)
    if path.suffix in json_rows.SUFFIXES:
        return read_json_table(path, ids, lists=lists)
    if path.suffix in ATOMIC_SUFFIXES:
        return read_atomic(path, ids=ids)
    raise DataError(
        f"{path.name} does not end in {', '.join((*SUFFIXES, *ATOMIC_SUFFIXES))}: convert it to one of these formats"
    )


def find_table(directory: Path, stem: str) -> Path | None:
    """Return the one table of a directory called `stem` (.parquet, .csv, ...), or None. Raises DataError for two of them.

    RecBole's `NAME.inter` and `NAME.item` count as `interactions` and `items`, as does a dataset of Hugging Face in a folder.
    """
    paths = [path for suffix in SUFFIXES if (path := directory / f"{stem}{suffix}").is_file()]
    paths += sorted(directory.glob({"interactions": "*.inter", "items": "*.item"}[stem]))
    paths += [folder] if is_dataset(folder := directory / stem) else []
    if len(paths) > 1:
        raise DataError(f"{directory} holds {listed(path.name for path in paths)}: keep one, or name the file to read")
    return paths[0] if paths else None


class Rows(NamedTuple):
    """Some rows of a file, and the line of each in the file (its row, in a format without lines), counted from 1."""

    rows: Sequence[Mapping[str, Any]]
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
        path: A file of Parquet, CSV, JSON or JSON lines; `-` for JSON lines on standard input.
        size: The rows of a batch. Memory: a batch, but for `.json`, which is read whole.
        types: The Arrow types of known columns in words, for the cells of CSV.
        ids: The columns of ids, whose cells of CSV lose blanks around them.
        form: The delimiter and the encoding of CSV.
        stdin: Standard input.

    Raises:
        DataError: As `read_table`; the batches before it have been yielded.
    """
    if str(path) == "-" and stdin is not None:
        yield from _batches(_numbered(read_lines(stdin, "standard input"), "standard input, line"), size)
    elif not path.name.endswith(SUFFIXES):
        raise DataError(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}, or - for JSON lines on standard input")
    elif path.name.endswith(".parquet"):
        yield from _parquet_rows(path, size)
    elif path.name.endswith(csv_rows.SUFFIXES):
        for cells, line_of in read_cells(path, form or CsvFormat(), size):
            stripped = [{name: cell.strip() if name in ids else cell for name, cell in row.items()} for row in cells]
            rows = [{name: parse_cell(cell, types.get(name, "")) for name, cell in row.items()} for row in stripped]
            yield Rows(rows, line_of)
    elif path.suffix == ".json":
        content = read_json(path).value
        rows = content if isinstance(content, list) else [content]
        yield from _batches(_numbered(enumerate(rows, 1), f"{path}, row"), size)
    else:
        yield from _batches(_numbered(lines_of(path), f"{path}, line"), size)


def _numbered(contents: Iterable[tuple[int, Any]], source: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, content in contents:
        if not isinstance(content, dict):
            raise DataError(f"{source} {number:,}: expected a row as a JSON object, not {short_repr(content)}")
        yield number, cast("dict[str, Any]", content)


def _batches(rows: Iterator[tuple[int, Mapping[str, Any]]], size: int) -> Generator[Rows]:
    while batch := list(islice(rows, size)):
        yield Rows([row for _, row in batch], [number for number, _ in batch].__getitem__)


def _parquet_rows(path: Path, size: int) -> Generator[Rows]:
    from leafbeam.tables.as_json import rows_of  # needs msgspec, which reading tables does not

    begin = 1
    for batch in read_batches(path, size):
        try:
            rows = [{name: value for name, value in row.items() if value is not None} for row in rows_of(batch)]
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}, rows {begin:,} to {begin + len(batch) - 1:,} cannot be sent as JSON: {error}") from error
        yield Rows(rows, partial(add, begin))
        begin += len(rows)
