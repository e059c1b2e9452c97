"""Co-occurrence vectors: positive pointwise mutual information and a truncated SVD (Levy and Goldberg, 2014).

Shapes: N items, D dimensions, U sessions, E interactions.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from leafbeam.errors import ArgumentError, DataError
from leafbeam.semid.vectors import unit_rows

__all__ = ["Sessions", "behaviour_vectors", "positive_pmi"]


class Sessions(Protocol):
    """Item rows of all sessions, concatenated: session u is `items_E[indptr_U1[u]:indptr_U1[u + 1]]`."""

    @property
    def indptr_U1(self) -> NDArray[np.int64]: ...

    @property
    def items_E(self) -> NDArray[np.int32]: ...


def positive_pmi(sessions: Sessions, num_items: int, *, window: int) -> csr_array:
    """Positive PMI of items at most `window` positions apart in a session: max(0, log P(a,b)/P(a)P(b)).

    Sparse float32 (N, N), symmetric, with an empty diagonal. Cost: linear in E * window.
    """
    if window < 1:
        raise ArgumentError(f"window={window}: at least 1")
    items_E = sessions.items_E.astype(np.int64)
    if len(items_E) and not 0 <= items_E.min() <= items_E.max() < num_items:
        raise DataError(f"the sessions name item rows {items_E.min()} to {items_E.max()}, but there are {num_items:,} items")
    session_E = np.repeat(np.arange(len(sessions.indptr_U1) - 1), np.diff(sessions.indptr_U1))
    lefts, rights = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for lag in range(1, window + 1):
        pair = (session_E[lag:] == session_E[:-lag]) & (items_E[lag:] != items_E[:-lag])
        lefts.append(items_E[:-lag][pair])
        rights.append(items_E[lag:][pair])
    left, right = np.concatenate(lefts), np.concatenate(rights)
    pairs = np.concatenate([left, right]), np.concatenate([right, left])
    counts = coo_array((np.ones(len(pairs[0])), pairs), shape=(num_items, num_items)).tocsr().tocoo()
    totals_N = np.bincount(counts.row, weights=counts.data, minlength=num_items)
    pmi = np.log(counts.data * totals_N.sum() / (totals_N[counts.row] * totals_N[counts.col]))
    keep = pmi > 0
    entries = (pmi[keep].astype(np.float32), (counts.row[keep], counts.col[keep]))
    return coo_array(entries, shape=(num_items, num_items)).tocsr()


def behaviour_vectors(sessions: Sessions, num_items: int, *, dims: int, window: int, seed: int) -> NDArray[np.float32]:
    """Vectors of items that co-occur: U sqrt(S) of the truncated SVD of the positive PMI. float32 (N, min(dims, N)).

    sessions: pass the training part of a split; nothing else is read. Rows have length 1, or 0 for an item that never
    co-occurs. Raises DataError where no session has two different items.
    """
    if dims < 1:
        raise ArgumentError(f"behaviour_dims={dims}: at least 1")
    pmi_NN = positive_pmi(sessions, num_items, window=window)
    if pmi_NN.nnz == 0:
        raise DataError("no session has two different items: there is no co-occurrence to learn vectors from")
    with threadpool_limits(1):  # one order of summation, so equal seeds give equal bits
        left_ND, singular_D, _ = randomized_svd(pmi_NN, min(dims, num_items), n_iter=5, random_state=seed)  # pyright: ignore[reportArgumentType]
    vectors_ND = left_ND * np.sqrt(singular_D)
    vectors_ND[np.diff(pmi_NN.indptr) == 0] = 0  # the SVD leaves rounding noise in empty rows
    return unit_rows(vectors_ND)
