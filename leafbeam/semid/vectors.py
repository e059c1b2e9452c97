"""Item vectors: checks, a user's own files, blocks of large files. Shapes: N items, D dimensions, n rows of a block."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import DataError, check_whole, counted
from leafbeam.tables import read_array, read_parquet
from leafbeam.tables.table import ending_of

_MAX_VALUE, _MIN_VALUE = 1e12, 1e-15  # squares beyond overflow float32, or vanish in sums


def unit_rows(vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return rows scaled to length 1; rows of zeros stay zero."""
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / np.where(lengths_N1 > 0, lengths_N1, 1)).astype(np.float32)


def check_finite(
    vectors_ND: NDArray[np.float32], source: str, *, first_row: int = 0, item_ids: NDArray[np.generic] | None = None
) -> None:
    """Raise DataError for NaN, infinity and values beyond 1e12.

    `first_row` is the row number of `vectors_ND[0]` in `source`. If `item_ids`, the items of the rows, are given, the
    message names the item instead.
    """
    invalid_ND = ~(np.abs(vectors_ND) <= _MAX_VALUE)
    if invalid_ND.any():
        row, column = np.argwhere(invalid_ND)[0]
        count = int(invalid_ND.any(axis=1).sum())
        where = f"row {int(row) + first_row:,}" if item_ids is None else f"the vector of item {item_ids[row].item()!r}"
        raise DataError(
            f"{source} has NaN, infinite numbers or numbers beyond {_MAX_VALUE:g} in {count:,} "
            f"{'row' if count == 1 else 'rows'}, first in {where}, column {int(column):,}: fix, scale or drop them"
        )


def _check_scale(vectors: NDArray[np.generic], source: str) -> None:
    """Raise DataError if all numbers are so small that their squares are 0 in single precision."""
    if 0 < (largest := float(np.abs(vectors).max())) < _MIN_VALUE:
        raise DataError(
            f"{source} has no number beyond {largest:.3g}, and squares of numbers below {_MIN_VALUE:g} vanish in single "
            f"precision: multiply all by {1 / max(largest, 1e-300):.0e}"
        )


def check_vectors(
    vectors: NDArray[np.generic], source: str, item_ids: NDArray[np.generic] | None = None
) -> NDArray[np.float32]:
    """Return a float32 copy (N, D); `item_ids` are the items of the rows, for messages.

    Raises DataError for anything but a finite, non-empty matrix, if all rows are equal, and for numbers whose squares are 0 in
    single precision.
    """
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.number) or np.iscomplexobj(vectors):
        raise DataError(f"{source} is {vectors.dtype} of shape {vectors.shape}: expected one row of numbers for each item")
    if 0 in vectors.shape:
        raise DataError(f"{source} has shape {vectors.shape}: expected at least one item and one dimension")
    with np.errstate(over="ignore"):
        vectors_ND = vectors.astype(np.float32)
    check_finite(vectors_ND, source, item_ids=item_ids)
    _check_scale(vectors, source)
    if len(vectors_ND) > 1 and (vectors_ND == vectors_ND[0]).all():
        differ = bool((vectors != vectors[0]).any())
        remedy = "; in single precision, so subtract their mean and scale them" if differ else ""
        raise DataError(
            f"{source} gives all {counted(len(vectors_ND), 'item')} the same vector: no code could tell them apart{remedy}"
        )
    return vectors_ND


def load_vectors(path: str | Path, item_ids: NDArray[np.generic]) -> NDArray[np.float32]:
    """Read a user's own vectors, one row for each item id: float32 (N, D).

    Args:
        path: A `.npy` file with the rows in the order of the ids; or a `.parquet` file, or a directory of such files, with a
            column item_id and one of lists, with the rows in any order.
        item_ids: The ids.

    Raises:
        DataError: If the shape is wrong, an item is missing, or a value is NaN.
    """
    path = Path(path)
    is_array = ending_of(path, (".npy",)) != ""
    if not (is_array or path.is_dir() or ending_of(path, (".parquet",))):
        raise DataError(f"{path.name} is neither .npy nor .parquet: convert the vectors to one of them")
    try:
        vectors = read_array(path) if is_array else _rows_of(read_parquet(path).table, item_ids, path)
    except (OverflowError, ValueError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as vectors: {error}") from error
    if vectors.ndim != 2 or len(vectors) != len(item_ids):
        raise DataError(
            f"{path} has shape {vectors.shape}: {counted(len(item_ids), 'row is', 'rows are')} expected, one an item"
        )
    return check_vectors(vectors, str(path), item_ids)


def _rows_of(table: pa.Table, item_ids: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    """Return the vectors of `item_ids` from a table of item_id and one column of lists."""
    types = pa.types
    lists = [
        f.name for f in table.schema if types.is_list(f.type) or types.is_large_list(f.type) or types.is_fixed_size_list(f.type)
    ]
    if "item_id" not in table.column_names or len(lists) != 1:
        columns = ", ".join(map(repr, table.column_names))
        raise DataError(f"{path} has the columns {columns}: expected item_id and one column of lists")
    row_of = {item: row for row, item in enumerate(table["item_id"].to_pylist())}
    if len(row_of) < len(table):
        raise DataError(f"{path} gives an item more than one vector: keep one row for each item")
    items: list[object] = item_ids.tolist()
    if missing := [item for item in items if item not in row_of]:
        example = next((f"; its ids are such as {item!r}" for item in row_of), "")
        raise DataError(f"{path} has no vector for {counted(len(missing), 'item')}, the first is {missing[0]!r}{example}")
    values, rows = table[lists[0]].to_pylist(), [row_of[item] for item in items]
    width = len(values[rows[0]] or ()) if rows else 0
    for item, row in zip(items, rows, strict=True):
        if values[row] is None or len(values[row]) != width or None in values[row]:
            raise DataError(
                f"{path}, column {lists[0]!r}, item {item!r}: expected as many numbers in every vector, without nulls"
            )
    return np.asarray([values[row] for row in rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorBlocks:
    """A matrix (N, D) in one or more `.npy` files, read `rows` rows at a time as float32 (see `ResidualKMeans.fit_blocks`).

    The files are memory-mapped and may be of any floating type. Each iteration starts from the first row.

    Args:
        paths: The files.
        shape: (N, D).
        rows: The number of rows of a block.

    Examples:
        >>> np.save("vectors.npy", np.random.default_rng(0).normal(size=(10, 4)))
        >>> [block.shape for block in VectorBlocks.open("vectors.npy", rows=8)]
        [(8, 4), (2, 4)]
    """

    paths: tuple[Path, ...]
    shape: tuple[int, int]
    rows: int

    @classmethod
    def open(cls, paths: str | Path | Sequence[str | Path], *, rows: int = 65_536) -> "VectorBlocks":
        """Read the headers of the files.

        Raises:
            DataError: If a file is missing, a shape is not (n, D), or there are no vectors.
        """
        check_whole(rows=rows)
        files = tuple(Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths))
        shapes: list[tuple[int, ...]] = []
        for file in files:
            vectors = _memory_map(file)
            if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
                raise DataError(f"{file} is {vectors.dtype} of shape {vectors.shape}: expected one row of floats for each item")
            shapes.append(vectors.shape)
        widths = {shape[1] for shape in shapes}
        count = sum(shape[0] for shape in shapes)
        if len(widths) != 1 or 0 in widths or count == 0:
            raise DataError(f"the files have the shapes {shapes}: expected vectors of the same width in all of them")
        return cls(paths=files, shape=(count, widths.pop()), rows=rows)

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        """Yield blocks of at most `rows` rows, in order; raise DataError for NaN and infinity."""
        for file in self.paths:
            for start in range(0, len(_memory_map(file)), self.rows):
                rows = _memory_map(file)[start : start + self.rows]  # anew for each block, which releases earlier pages
                with np.errstate(over="ignore"):
                    block_nD = np.array(rows, np.float32)
                check_finite(block_nD, str(file), first_row=start)
                if not block_nD.any():
                    _check_scale(rows, str(file))
                yield block_nD


def _memory_map(path: Path) -> NDArray[np.generic]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a .npy file: {error}") from error
