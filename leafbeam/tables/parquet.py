"""Parquet: the one way to open a file that a user brings, with its checksums verified and its damage named."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.errors import DataError
from leafbeam.tables.plain_types import as_plain
from leafbeam.tables.table import SourceTable, check_names, ending_of, listed, nth_row

_BUFFER = 1 << 20
_ONE_FILE: dict[str, Any] = {"partitioning": None}  # no column is made of the names of folders


@contextmanager
def open_parquet(path: Path) -> Generator[pq.ParquetFile]:
    """Open a file for the time of a block.

    Args:
        path: The file.

    Raises:
        DataError: If the file cannot be opened, or, in the block, read or decoded.
    """
    if path.exists() and not path.is_file() and not path.is_dir():  # pyarrow would wait for a pipe
        raise DataError(f"{path} is not a regular file: write the table into a file")
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER, page_checksum_verification=True) as file:
            check_names(file.schema_arrow.names, str(path))  # UnicodeDecodeError for a name that is not UTF-8
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:  # of damaged lengths too
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip()
        raise DataError(f"{path} cannot be read as Parquet ({reason}): write it again, or restore it from a copy") from error


def part_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a table: the file itself, or the sorted files of a directory that Spark, Dask or DuckDB wrote.

    Hidden files, checksums (.crc) and files whose names begin with `_`, such as _SUCCESS and _metadata, hold no rows.

    Raises DataError if a directory has no part files, or has folders or other files, whose rows would be missing.
    """
    if not path.is_dir():
        return (path,)
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    folders = [entry.name for entry in entries if entry.is_dir()]
    by_value = [name for name in folders if "=" in name]
    if by_value:
        raise DataError(
            f"{path} is split into folders by the values of a column ({listed(by_value)}), and such folders are not "
            "read: write one file, or one directory of files"
        )
    names = [entry.name for entry in entries if not entry.is_dir() and not entry.name.startswith("_")]
    files = tuple(path / name for name in names if ending_of(path / name, (".parquet",)))
    others = [f"{name}/" for name in folders] + [name for name in names if not ending_of(path / name, (".parquet", ".crc"))]
    if not files:
        what = f", but {listed(others)}" if others else ""
        raise DataError(f"{path} has no *.parquet files{what}: expected a Parquet file, or a directory of Parquet files")
    if others:
        raise DataError(
            f"{path} has {listed(others)} beside *.parquet files, which would not be read: move them elsewhere, or, if they "
            "hold rows of the table, put them in this directory under names that end in .parquet"
        )
    return files


def read_parquet(path: Path, *, ids: Sequence[str] = (), only: Sequence[str] | None = None) -> SourceTable:
    """Read a file of Parquet, or a directory of files.

    Args:
        path: The file or directory.
        ids: Columns whose text is read as a dictionary, which takes less time and memory.
        only: The columns to read, of those that are there; all by default.

    Raises:
        DataError: If it cannot be read.
    """
    files, names = part_files(path), tuple(schema_of(path).names)
    columns = None if only is None or any("." in name for name in names) else [name for name in names if name in only]
    tables: list[pa.Table] = []
    for file in files:
        try:
            tables.append(
                pq.read_table(file, columns=columns, read_dictionary=list(ids), page_checksum_verification=True, **_ONE_FILE)
            )
            tables[-1].validate()
        except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
            raise DataError(
                f"{file} cannot be read as Parquet ({str(error).strip()}): write it again, or restore it from a copy"
            ) from error
    ends = np.cumsum([len(table) for table in tables])

    def where(row: int) -> str:
        if len(files) == 1:
            return nth_row(row)
        part = int(np.searchsorted(ends, row, side="right"))
        return f"{nth_row(row - int(ends[part]) + len(tables[part]))} of {files[part].name}"

    table = pa.concat_tables(tables, promote_options="default")
    return SourceTable(table=table, source=str(path), names=names, where=where)


def schema_of(path: Path) -> pa.Schema:
    """Return the columns of a file, or of all files of a directory. Raises DataError if the files differ."""
    files = part_files(path)
    schemas: list[pa.Schema] = []
    for file in files:
        with open_parquet(file) as opened:
            schemas.append(opened.schema_arrow)
        if (schemas[-1].names, schemas[-1].types) != (schemas[0].names, schemas[0].types):
            raise DataError(
                f"{files[0]} has the columns {listed(map(str, schemas[0]))}, but "
                f"{file.name} has {listed(map(str, schemas[-1]))}: "
                "expected the same names and types in all files"
            )
    return schemas[0]


def read_batches(path: Path, size: int, columns: list[str] | None = None, begin: int = 0) -> Generator[pa.RecordBatch]:
    """Yield record batches of at most `size` rows of a file or of a directory's files, with the types of `plain_schema`.

    The first `begin` rows are left out; whole row groups of them are not read. Memory: the pages of a row group. Raises a
    DataError that says up to which row the file could be read.
    """
    for file in part_files(path):
        with open_parquet(file) as opened:
            groups, first = list(range(opened.num_row_groups)), 0
            while groups and first + (rows := opened.metadata.row_group(groups[0]).num_rows) <= begin:
                del groups[0]
                first += rows
            begin -= first
            batches = opened.iter_batches(size, groups, columns=columns) if groups else iter(())
            for batch in _valid_batches(file, batches, first):
                skipped = min(begin, len(batch))
                begin -= skipped
                if skipped < len(batch):
                    yield as_plain(batch.slice(skipped), str(file))


def _valid_batches(file: Path, batches: Iterator[pa.RecordBatch], read: int) -> Generator[pa.RecordBatch]:
    """Yield the batches of a file behind its first rows, each checked: lists of a damaged file may end before they begin."""
    try:
        for batch in batches:
            batch.validate(full=True)
            yield batch
            read += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read beyond row {read:,} ({str(error).strip()}): write it again") from error
