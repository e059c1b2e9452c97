"""STATIC's transition matrix from codes in any order, and its size without building it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.level import code_dtype
from leafbeam.ops.constrain.static.matrix import TransitionMatrix

__all__ = ["matrix_nbytes", "matrix_of_codes"]


def matrix_nbytes(nodes_L: Sequence[int], codebook_sizes: Sequence[int]) -> int:
    """Return the bytes of a matrix from the number of nodes of depths 1 to L, without the padding of the edges."""
    d = min(2, len(codebook_sizes))
    masks = sum(prod(codebook_sizes[:t]) * -(-codebook_sizes[t] // 8) for t in range(d))
    rows = sum([1, *nodes_L][d:-1])
    return 8 * sum(nodes_L[d:]) + 4 * (rows + 2) + masks + (4 * prod(codebook_sizes[:d]) if d else 0)


def matrix_of_codes(codes_NL: NDArray[np.integer], codebook_sizes: Sequence[int], dense_levels: int = 2) -> TransitionMatrix:
    """Build a matrix from a table of codes in any order, duplicates allowed. Cost: a sort of the table, then as `of_sorted`.

    Columns of the smallest dtype: numpy's lexsort is a radix sort on 16 bits, an order of magnitude faster than on int64.
    """
    sorted_LN = np.ascontiguousarray(codes_NL.T, code_dtype(max(codebook_sizes)))
    sorted_LN = sorted_LN[:, np.lexsort(sorted_LN[::-1])]
    is_new_N = np.ones(sorted_LN.shape[1], np.bool_)
    is_new_N[1:] = (sorted_LN[:, 1:] != sorted_LN[:, :-1]).any(axis=0)
    return TransitionMatrix.of_sorted(sorted_LN[:, is_new_N], codebook_sizes, dense_levels)
