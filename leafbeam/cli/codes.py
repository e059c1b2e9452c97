"""Tables of codes in Parquet, read a batch of rows at a time: item_id, and the codes as lists or as one column a level.

Shapes: n rows of a batch, L levels.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, DataError, counted
from leafbeam.index.items import ids_from_arrow
from leafbeam.tables import SourceTable, open_parquet, read_ids
from leafbeam.tables.ids import check_ids
from leafbeam.tables.parquet import part_files, read_batches
from leafbeam.tables.table import listed, nth_row

_BATCH = 1 << 17
_SIZES_KEY = b"leafbeam.codebook_sizes"  # metadata that `fit-sids` writes
_ITEM_ID = "item_id"
_LISTS = ("codes", "sid")  # names of a list column of codes: leafbeam's, OpenOneRec's
_EXPECTED = "expected item_id, and the codes as a list column `codes` or as columns c0, c1, ... (or code_0, code_1, ...)"


@dataclass(frozen=True, kw_only=True, slots=True)
class CodesTable:
    """The rows of a Parquet file, or of all Parquet files of a directory in the order of their names.

    `columns` is the one list column of codes, or one column for each level. `id_column` has the item ids.
    """

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    num_levels: int
    rows_by_file: tuple[int, ...]
    codebook_sizes: tuple[int, ...]
    id_column: str = "item_id"

    @property
    def num_rows(self) -> int:
        return sum(self.rows_by_file)

    @classmethod
    def open(
        cls, path: Path, codebook_sizes: Sequence[int] | None, *, id_column: str = "item_id", sizes_needed: bool = True
    ) -> "CodesTable":
        """Read the schemas.

        Args:
            path: The file or the directory.
            codebook_sizes: One for each level, or one for all; None takes those in the file's metadata.
            id_column: The column of item ids; `item_id` if the first file has no such column.
            sizes_needed: If false, sizes that are unknown are ().

        Raises:
            DataError: If a file is not such a table.
            ArgumentError: If the sizes do not match its levels.
        """
        files = part_files(path)
        columns: tuple[str, ...] = ()
        num_levels, rows_by_file = 0, list[int]()
        sizes_in_file: tuple[int, ...] | None = None
        for file in files:
            with open_parquet(file) as parquet:
                schema = parquet.schema_arrow
                if file == files[0]:
                    id_column = found_id_column(schema.names, id_column)
                names = _code_columns(file, schema, id_column)
                levels = len(names) if names[0] not in _LISTS else _list_levels(file, parquet, names[0], codebook_sizes)
                if columns and (names, levels) != (columns, num_levels):
                    raise DataError(
                        f"{file} has {counted(levels, 'level')} in {', '.join(names)}, but {files[0]} has {num_levels} in "
                        f"{', '.join(columns)}: expected the same in all files"
                    )
                columns, num_levels = names, levels
                rows_by_file.append(parquet.metadata.num_rows)
                sizes_in_file = _sizes_in(file, schema.metadata or {}) or sizes_in_file
        sizes = tuple(codebook_sizes or sizes_in_file or ())
        if len(sizes) == 1:
            sizes *= num_levels
        table = cls(
            files=files,
            columns=columns,
            num_levels=num_levels,
            rows_by_file=tuple(rows_by_file),
            codebook_sizes=sizes,
            id_column=id_column,
        )
        if not sizes and sizes_needed:
            largest = [f"{code:,} in {name}" for name, code in table.largest_codes().items() if code is not None]
            raise ArgumentError(
                f"{path} does not say how many codes each of its {counted(num_levels, 'level')} has: pass "
                f"--codebook-sizes, such as 2048 or {','.join(['2048'] * num_levels)}"
                + (f" (the largest codes are {', '.join(largest)})" if largest else "")
            )
        if sizes and len(sizes) != num_levels:
            raise ArgumentError(
                f"--codebook-sizes names {counted(len(sizes), 'level')}, but {path} has {num_levels}: expected a size for each"
            )
        return table

    def summary(self) -> str:
        """Return the numbers of rows, files and levels in words."""
        return f"{counted(self.num_rows, 'row')} in {counted(len(self.files), 'file')}, {counted(self.num_levels, 'level')}"

    def largest_codes(self) -> dict[str, int | None]:
        """Return the largest code of each column by the files' statistics, without reading rows; None if a file has none."""
        largest: dict[str, int | None] = dict.fromkeys(self.columns, 0)
        for file in self.files:
            with open_parquet(file) as parquet:
                groups = [parquet.metadata.row_group(group) for group in range(parquet.metadata.num_row_groups)]
                for column in (group.column(number) for group in groups for number in range(group.num_columns)):
                    name, statistics = column.path_in_schema.split(".")[0], column.statistics
                    if name not in largest or not column.num_values:
                        continue
                    before = largest[name]
                    if before is None or statistics is None or not statistics.has_min_max:
                        largest[name] = None
                    else:
                        largest[name] = max(before, int(statistics.max))
        return largest

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return each file's name, with its size, time and columns, and its number of rows, for `SavedRuns`."""
        columns = f"{self.id_column} {self.columns}"
        status = [(file.resolve(), file.stat(), rows) for file, rows in zip(self.files, self.rows_by_file, strict=True)]
        return tuple((f"{file} {stat.st_size} {stat.st_mtime_ns} {columns}", rows) for file, stat, rows in status)

    def id_bytes(self) -> int:
        """Return the bytes of an id; of text, those of the longest in the first batch."""
        for file in self.files:
            for batch in read_batches(file, _BATCH, [self.id_column]):
                return ids_from_arrow(check_ids(batch, self.id_column, str(file), 0)).dtype.itemsize
        return 0

    def batches(self, begin: int = 0) -> Iterator[tuple[NDArray[np.integer], NDArray[np.generic]]]:
        """Yield (codes_nL, item_ids) of up to 131,072 rows at a time, without the first `begin` rows; DataError and CodesError
        name the row.
        """
        first = 0
        for file, num_rows in zip(self.files, self.rows_by_file, strict=True):
            skipped = min(num_rows, max(0, begin - first))
            first += skipped
            if skipped == num_rows:
                continue
            for batch in read_batches(file, _BATCH, [self.id_column, *self.columns], skipped):
                where = partial(_nth_row, first)
                ids = check_ids(batch, self.id_column, str(file), first)
                yield _codes_of(file, self.columns, batch, where, self.num_levels), ids_from_arrow(ids)
                first += len(batch)


def found_id_column(names: Sequence[str], id_column: str) -> str:
    """Return the column of item ids: the named one, or `item_id`, which tables of codes have whatever a log calls its items."""
    return id_column if id_column in names else _ITEM_ID


def codes_of_table(file: Path, source: SourceTable, id_column: str) -> tuple[NDArray[np.integer], NDArray[np.generic]]:
    """Return (codes_nL, item_ids) of a table in another format; the errors are those of `CodesTable.batches`."""
    id_column = found_id_column(source.table.column_names, id_column)
    names = _code_columns(file, source.table.schema, id_column)
    ids = read_ids(source, id_column, "item_of_items")
    (batch,) = source.table.select(names).combine_chunks().to_batches()
    num_levels = len(batch[0][0]) if names[0] in _LISTS and batch[0][0].is_valid else len(names)
    return _codes_of(file, names, batch, source.where, num_levels), ids_from_arrow(ids.column)


def _codes_of(
    file: Path, columns: Sequence[str], batch: pa.RecordBatch, where: Callable[[int], str], num_levels: int
) -> NDArray[np.integer]:
    """Return the codes (n, L) of a batch, from lists or from a column for each level."""
    if columns[0] not in _LISTS:
        return np.stack([_numbers(file, name, batch[name], where) for name in columns], axis=1)
    lists = batch[columns[0]]
    if lists.null_count:
        raise CodesError(f"{file}: {where(_first_null(lists))} has no codes: expected {num_levels}")
    if not pa.types.is_fixed_size_list(lists.type):
        lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != num_levels)
        if wrong.size:
            row = int(wrong[0])
            raise CodesError(f"{file}: {where(row)} has {counted(lengths[row], 'code')}: expected {num_levels}")
    return _numbers(file, columns[0], lists.flatten(), where, num_levels).reshape(len(batch), num_levels)


def _nth_row(first: int, row: int) -> str:
    return nth_row(first + row)


def _code_columns(file: Path, schema: pa.Schema, id_column: str) -> tuple[str, ...]:
    names = schema.names
    if id_column not in names:
        raise DataError(f"{file} has the columns {listed(names)}: {_EXPECTED}; --item-column names another column of ids")
    for name in _LISTS:
        if name not in names:
            continue
        kind = schema.field(name).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not lists or not _are_whole(kind.value_type):
            raise DataError(f"{file} has {name} of type {kind}: expected lists of whole numbers")
        return (name,)
    for stem in ("c", "code_"):
        levels = sorted(int(match[1]) for name in names if (match := re.fullmatch(stem + r"(0|[1-9]\d{0,3})", name)))
        if levels:
            if levels != list(range(len(levels))):
                missing = next(level for level in range(len(levels)) if level not in levels)
                raise DataError(f"{file} has {stem}{levels[-1]} and no {stem}{missing}: expected one column for each level")
            columns = tuple(f"{stem}{level}" for level in levels)
            for name in columns:
                if not _are_whole(schema.field(name).type):
                    raise DataError(f"{file} has {name} of type {schema.field(name).type}: expected whole numbers")
            return columns
    raise DataError(f"{file} has the columns {listed(names)}: {_EXPECTED}")


def _list_levels(file: Path, parquet: pq.ParquetFile, name: str, codebook_sizes: Sequence[int] | None) -> int:
    """Return the length of the lists: by their type, by the codebook sizes of the caller or the metadata, or the first row."""
    schema = parquet.schema_arrow
    kind = schema.field(name).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    sizes = codebook_sizes or _sizes_in(file, schema.metadata or {}) or ()
    if len(sizes) > 1:
        return len(sizes)
    for batch in read_batches(file, 1, [name]):
        if len(batch) and batch[name][0].is_valid:
            return len(batch[name][0])
    return len(sizes)


def _sizes_in(file: Path, metadata: dict[bytes, bytes]) -> tuple[int, ...] | None:
    if _SIZES_KEY not in metadata:
        return None
    try:
        return tuple(int(size) for size in json.loads(metadata[_SIZES_KEY]))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{file} has metadata {_SIZES_KEY.decode()} that is not a list of numbers ({error}): pass --codebook-sizes"
        ) from error


def _are_whole(kind: pa.DataType) -> bool:
    """Return whether a type may be that of codes: whole numbers, or decimals, as Spark and DuckDB write whole numbers."""
    return pa.types.is_integer(kind) or pa.types.is_decimal(kind)


def _first_null(column: pa.Array) -> int:
    return int(np.argmax(np.asarray(column.is_null())))


def _numbers(file: Path, name: str, column: pa.Array, where: Callable[[int], str], per_row: int = 1) -> NDArray[np.integer]:
    if column.null_count:
        raise CodesError(f"{file}: {where(_first_null(column) // per_row)} has no number in {name}: expected a whole number")
    if pa.types.is_decimal(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            row = next(row for row, code in enumerate(column.to_pylist()) if code != int(code) or abs(code) >= 1 << 63)
            raise CodesError(
                f"{file}: {where(row // per_row)} has {column[row]} in {name}: expected a whole number of up to 64 bits"
            ) from error
    return column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
