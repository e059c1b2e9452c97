"""Parquet: the one way to open a file that a user brings, with its checksums verified and its damage named."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.errors import DataError
from leafbeam.tables.table import SourceTable

_BUFFER = 1 << 20
_ONE_FILE: dict[str, Any] = {"partitioning": None}  # no column is made of the names of folders


@contextmanager
def open_parquet(path: Path) -> Generator[pq.ParquetFile]:
    """Open a file; what fails to be read of it in the block, or to be decoded, becomes a DataError."""
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER, page_checksum_verification=True) as file:
            _ = file.schema_arrow.names  # UnicodeDecodeError for a name that is not UTF-8
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:  # of damaged lengths too
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip()
        raise DataError(f"{path} cannot be read as Parquet ({reason}): write it again, or restore it from a copy") from error


def read_parquet(path: Path, *, ids: Sequence[str] = (), only: Sequence[str] | None = None) -> SourceTable:
    """Read a file of Parquet.

    Args:
        path: The file.
        ids: Columns whose text is read as a dictionary, which takes less time and memory.
        only: The columns to read, of those that are there; all by default.

    Raises:
        DataError: If it cannot be read.
    """
    with open_parquet(path) as file:
        names = tuple(file.schema_arrow.names)
    columns = None if only is None or any("." in name for name in names) else [name for name in names if name in only]
    try:
        table = pq.read_table(path, columns=columns, read_dictionary=list(ids), page_checksum_verification=True, **_ONE_FILE)
        table.validate()
    except (pa.ArrowException, OSError, OverflowError, MemoryError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet ({str(error).strip()}): write it again, or restore it from a copy"
        ) from error
    schema = pa.schema([field.with_type(_plain(field.type)) for field in table.schema])
    return SourceTable(table=table.cast(schema), source=str(path), names=names)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that pyarrow's functions take in place of a view, also within lists."""
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def read_batches(path: Path, size: int, columns: list[str] | None = None) -> Generator[Any]:
    """Yield record batches of at most `size` rows. Memory: a row group's pages. Raises DataError that says how far it came."""
    read = 0
    with open_parquet(path) as file:
        batches = file.iter_batches(size, columns=columns)
        while True:
            try:
                batch = next(batches, None)
                if batch is not None:
                    batch.validate(full=True)  # lists of a damaged file may end before they begin
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{path} cannot be read beyond row {read:,} ({str(error).strip()}): write it again") from error
            if batch is None:
                return
            read += len(batch)
            yield batch
