"""What a recommender has to beat: the most popular items, and the items most like the last one.

Both rank the whole catalog and answer with the place of each user's right item in that ranking.

Shapes: U users, N items, D values of a vector.
"""

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.train.data import Histories
from leafbeam.train.metrics import MISS

__all__ = ["neighbour_ranks", "popularity_ranks"]


def popularity_ranks(
    train: Histories, targets_U: NDArray[np.integer], *, num_items: int, seen: Histories | None = None
) -> NDArray[np.int64]:
    """The place of each user's target among all items, those with most interactions in training first.

    Equal counts are ordered by item row. The same list for everybody, but for what is in a user's history in `seen`, which is
    taken out of his (and is a MISS as a target).
    """
    counts_N = np.bincount(train.items_E, minlength=num_items)
    place_N = np.empty(num_items, np.int64)
    place_N[np.argsort(-counts_N, kind="stable")] = np.arange(num_items)
    ranks_U = place_N[targets_U]
    if seen is None:
        return ranks_U
    user_P, item_P = np.unique(np.stack(seen.pairs(np.arange(len(seen)))), axis=1)
    ranks_U = ranks_U - np.bincount(user_P, place_N[item_P] < ranks_U[user_P], len(ranks_U)).astype(np.int64)
    ranks_U[user_P[item_P == targets_U[user_P]]] = MISS
    return ranks_U


def neighbour_ranks(
    vectors_ND: NDArray[np.floating],
    last_U: NDArray[np.integer],
    targets_U: NDArray[np.integer],
    *,
    seen: Histories | None = None,
    chunk: int = 512,
) -> NDArray[np.int64]:
    """The place of each user's target among all items, those with the greatest cosine to the user's last item first.

    The last item itself is not in the list (it would always lead it): a target equal to it is a MISS; and so is what is in a
    user's history in `seen`. Equal cosines are ordered by item row; an item whose vector is all zeros has cosine 0 to
    everything. U x N x D multiplications, `chunk` users at a time.
    """
    if vectors_ND.ndim != 2 or not np.isfinite(vectors_ND).all():
        raise ArgumentError(f"vectors must be finite and of shape (N, D), got shape {vectors_ND.shape}")
    vectors_ND = vectors_ND.astype(np.float32)
    lengths_N = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    units_ND = vectors_ND / np.where(lengths_N > 0, lengths_N, 1)
    rows_N = np.arange(len(units_ND))
    ranks_U = np.full(len(targets_U), MISS, np.int64)
    for first in range(0, len(targets_U), chunk):
        last, target = last_U[first : first + chunk], targets_U[first : first + chunk]
        cosine_UN = units_ND[last] @ units_ND.T
        cosine_UN[np.arange(len(last)), last] = -np.inf
        if seen is not None:
            cosine_UN[seen.pairs(np.arange(first, first + len(last)))] = -np.inf
        own_U = cosine_UN[np.arange(len(last)), target][:, None]
        before_UN = (cosine_UN > own_U) | ((cosine_UN == own_U) & (rows_N < target[:, None]))
        ranks_U[first : first + chunk] = np.where(own_U[:, 0] == -np.inf, MISS, before_UN.sum(axis=1))
    return ranks_U
