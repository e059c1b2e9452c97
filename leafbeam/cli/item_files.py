"""Files of items: JSON lines, JSON, CSV or Parquet, read a batch at a time."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.errors import ArgumentError, DataError
from leafbeam.files import open_regular
from leafbeam.ingest.attributes import rows_of

BATCH = 1000  # items
_MAX_LINE = 1 << 20
FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
Parse = Callable[[str, str], Any]  # (column, text of a cell) -> value


def batches(path: Path, parse: Parse = lambda _, text: text) -> Generator[list[dict[str, Any]]]:
    """The items of a file, or of JSON lines on standard input ("-"), up to 1,000 at a time.

    parse: makes the value of a cell of CSV, which has text alone. An empty cell is no value. Raises DataError, ArgumentError.
    """
    rows = _rows(path, parse)
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


def _rows(path: Path, parse: Parse) -> Generator[dict[str, Any]]:
    if str(path) == "-":
        yield from _json_lines(sys.stdin.buffer, "standard input")
        return
    if path.suffix not in FORMATS:
        raise ArgumentError(f"{path}: expected a file of {', '.join(FORMATS)}, or - for JSON lines on standard input")
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
            return
        with open_regular(path) as file:
            if path.suffix == ".csv":
                yield from _csv(file, str(path), parse)
            elif path.suffix == ".json":
                yield from _checked(json.load(file), str(path))
            else:
                yield from _json_lines(file, str(path))
    except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        reason = error.strerror if isinstance(error, OSError) else None
        raise DataError(f"{path} cannot be read: {reason or error}") from error


def _parquet(path: Path) -> Generator[dict[str, Any]]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(BATCH):
            batch.validate(full=True)
            yield from ({name: value for name, value in row.items() if value is not None} for row in rows_of(batch))


def _csv(file: Any, name: str, parse: Parse) -> Generator[dict[str, Any]]:
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, strict=True)
        columns = next(rows, [])
        if "item_id" not in columns or len(set(columns)) < len(columns):
            raise DataError(f"{name} has the columns {', '.join(columns)!r:.200}: expected item_id, and no column twice")
        for cells in rows:
            if len(cells) > len(columns):
                raise DataError(f"{name}, line {rows.line_num:,} has {len(cells):,} cells: expected at most {len(columns):,}")
            if cells:
                yield {column: parse(column, cell) for column, cell in zip(columns, cells, strict=False) if cell}


def _json_lines(lines: Any, name: str) -> Generator[dict[str, Any]]:
    for number in itertools.count(1):
        line: bytes = lines.readline(_MAX_LINE + 1)
        if not line:
            return
        if len(line) > _MAX_LINE:
            raise DataError(f"{name}, line {number:,}: expected at most {_MAX_LINE:,} bytes")
        if line.strip():
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}, line {number:,} is no JSON: {error}") from None
            yield from _checked([content], f"{name}, line {number:,}")


def _checked(content: Any, place: str) -> Iterable[dict[str, Any]]:
    rows: list[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{place}: expected items as JSON objects")
    return rows
