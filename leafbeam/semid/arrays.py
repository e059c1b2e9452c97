"""Small operations on tables of vectors that every embedding shares."""

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from leafbeam.errors import DataError

__all__ = ["check_finite", "check_vectors", "one_thread", "unit_rows"]

_LARGEST = 1e12


@contextmanager
def one_thread() -> Generator[None]:
    """Run linear algebra and k-means on one thread: sums then have one order, and equal seeds give equal bits."""
    with threadpool_limits(1):
        yield


def unit_rows(vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
    """The rows scaled to length 1; rows of zeros stay."""
    lengths_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / np.where(lengths_N > 0, lengths_N, 1)).astype(np.float32)


def check_finite(vectors_ND: NDArray[np.float32], what: str) -> None:
    """A DataError for NaN, infinite numbers, and numbers so large that their squares would leave float32."""
    broken_N = ~(np.abs(vectors_ND) <= _LARGEST).all(axis=1)
    if broken_N.any():
        raise DataError(
            f"{what} has NaN, infinite numbers or numbers beyond {_LARGEST:g} in {int(broken_N.sum()):,} rows, first in row "
            f"{int(np.argmax(broken_N)):,}: mend, scale or drop them"
        )


def check_vectors(vectors: NDArray[np.generic], what: str) -> NDArray[np.float32]:
    """`vectors` as float32 (N, D), or a DataError: not a table of numbers, empty, NaN or infinite, all rows the same."""
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.number) or np.iscomplexobj(vectors):
        raise DataError(f"{what} is {vectors.dtype} of shape {vectors.shape}: one row of numbers an item is expected")
    if 0 in vectors.shape:
        raise DataError(f"{what} has shape {vectors.shape}: at least one item and one dimension are needed")
    with np.errstate(over="ignore"):
        vectors_ND = vectors.astype(np.float32)
    check_finite(vectors_ND, what)
    if len(vectors_ND) > 1 and (vectors_ND == vectors_ND[0]).all():
        raise DataError(f"{what} gives all {len(vectors_ND):,} items the same vector: nothing tells them apart")
    return vectors_ND
