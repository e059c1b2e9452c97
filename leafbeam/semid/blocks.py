"""Vectors that are too many for memory, read block by block as often as wanted.

Shapes: N items, D dimensions, n rows of a block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.semid.arrays import check_finite

__all__ = ["VectorBlocks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorBlocks:
    """One or more `.npy` files of vectors, one after another: what `ResidualKMeans.fit_blocks` and `encode_blocks` read.

    Think of it as a matrix (N, D) on disk of which `rows` rows are in memory at a time, as float32. The files may be of any
    floating type; they are memory-mapped, never loaded. Iterating begins anew each time.

    >>> np.save("vectors.npy", np.random.default_rng(0).normal(size=(10, 4)))
    >>> [block.shape for block in VectorBlocks.of("vectors.npy", rows=8)]
    [(8, 4), (2, 4)]
    """

    paths: tuple[Path, ...]
    shape: tuple[int, int]
    rows: int

    @classmethod
    def of(cls, paths: str | Path | Sequence[str | Path], *, rows: int = 65_536) -> "VectorBlocks":
        """Look at the files' headers; DataError for a missing file, another shape than (n, D), or no vector at all."""
        if rows < 1:
            raise ArgumentError(f"rows={rows}: at least 1")
        places = tuple(Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths))
        shapes: list[tuple[int, ...]] = []
        for place in places:
            vectors = _mapped(place)
            if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
                raise DataError(f"{place} is {vectors.dtype} of shape {vectors.shape}: one row of floating numbers an item")
            shapes.append(vectors.shape)
        widths = {shape[1] for shape in shapes}
        count = sum(shape[0] for shape in shapes)
        if len(widths) != 1 or 0 in widths or count == 0:
            raise DataError(f"files of shapes {shapes}: they need vectors, all of one width")
        return cls(paths=places, shape=(count, widths.pop()), rows=rows)

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        """Blocks of at most `rows` rows, in order. DataError where one has NaN or infinite numbers."""
        for place in self.paths:
            for start in range(0, len(_mapped(place)), self.rows):
                with np.errstate(over="ignore"):  # mapped anew, so that the pages of the blocks before are given back
                    block_nD = np.array(_mapped(place)[start : start + self.rows], np.float32)
                check_finite(block_nD, f"{place}, rows from {start:,} on,")
                yield block_nD


def _mapped(place: Path) -> NDArray[np.generic]:
    try:
        return np.load(place, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{place} cannot be read as a .npy file: {error}") from error
