"""Baselines: rankings by popularity and by nearest neighbours of the last item.

Shapes: U users, B users of a batch, N items, D dimensions.
"""

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.semid.vectors import unit_rows
from leafbeam.train.histories import Histories
from leafbeam.train.metrics import MISS

__all__ = ["neighbour_ranks", "popularity_ranks"]


def popularity_ranks(
    train: Histories, targets_U: NDArray[np.integer], *, num_items: int, seen: Histories | None = None
) -> NDArray[np.int64]:
    """The rank of each user's target among all items by their number of training interactions, then by row.

    seen: items of a user's history are removed from that user's list; a target among them is a MISS.
    """
    counts_N = np.bincount(train.items_E, minlength=num_items)
    rank_N = np.empty(num_items, np.int64)
    rank_N[np.argsort(-counts_N, kind="stable")] = np.arange(num_items)
    ranks_U = rank_N[targets_U]
    if seen is None:
        return ranks_U
    user_P, item_P = np.unique(np.stack(seen.pairs(np.arange(len(seen)))), axis=1)
    ranks_U = ranks_U - np.bincount(user_P, rank_N[item_P] < ranks_U[user_P], len(ranks_U)).astype(np.int64)
    ranks_U[user_P[item_P == targets_U[user_P]]] = MISS
    return ranks_U


def neighbour_ranks(
    vectors_ND: NDArray[np.floating],
    last_U: NDArray[np.integer],
    targets_U: NDArray[np.integer],
    *,
    seen: Histories | None = None,
    batch_users: int = 512,
) -> NDArray[np.int64]:
    """The rank of each user's target among all items by their cosine to the user's last item, then by row.

    The last item itself is not listed: a target equal to it is a MISS, and so are targets in a user's history in `seen`. A
    zero vector has cosine 0 to everything. Cost: U * N * D multiplications.
    """
    if vectors_ND.ndim != 2 or not np.isfinite(vectors_ND).all():
        raise ArgumentError(f"vectors must be finite and of shape (N, D), got shape {vectors_ND.shape}")
    units_ND = unit_rows(vectors_ND.astype(np.float32))
    rows_N = np.arange(len(units_ND))
    ranks_U = np.full(len(targets_U), MISS, np.int64)
    for first in range(0, len(targets_U), batch_users):
        last_B, target_B = last_U[first : first + batch_users], targets_U[first : first + batch_users]
        users_B = np.arange(len(last_B))
        cosine_BN = units_ND[last_B] @ units_ND.T
        cosine_BN[users_B, last_B] = -np.inf
        if seen is not None:
            cosine_BN[seen.pairs(first + users_B)] = -np.inf
        target_B1 = cosine_BN[users_B, target_B][:, None]
        before_BN = (cosine_BN > target_B1) | ((cosine_BN == target_B1) & (rows_N < target_B[:, None]))
        ranks_U[first : first + len(last_B)] = np.where(target_B1[:, 0] == -np.inf, MISS, before_BN.sum(axis=1))
    return ranks_U
