"""Baselines: rankings by popularity and by nearest neighbours of the last item, and beam search without a constraint.

Shapes: U users, B users of a batch, N items, D dimensions, K beams, L levels, V codes of a level, M SIDs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.semid.vectors import unit_rows
from leafbeam.train.histories import Histories
from leafbeam.train.metrics import MISS

StepFn = Callable[[Tensor | None, Tensor | None], Tensor]


def popularity_ranks(
    train: Histories, targets_U: NDArray[np.integer], *, num_items: int, seen: Histories | None = None
) -> NDArray[np.int64]:
    """The rank of each user's target among all items by their training interactions, then by row; MISS if in `seen`."""
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
    """The rank of each user's target among all items by their cosine to the user's last item, then by row. Cost: U * N * D.

    A target equal to the last item, or in the user's history in `seen`, is a MISS. A zero vector has cosine 0 to everything.
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


@torch.inference_mode()
def unconstrained_search(step_fn: StepFn, *, num_levels: int, num_beams: int) -> tuple[Tensor, Tensor]:
    """The `num_beams` likeliest SIDs, whether or not they exist: codes_BKL and scores_BK, best first.

    for each level:
        score = beam score + log_softmax(logits)[code]
        keep the `num_beams` best of all beams' codes

    The step function, width and normalisation are those of `BeamSearch(scoring="full")`.
    """
    scores_BK = torch.log_softmax(step_fn(None, None), dim=-1)
    scores_BK, code_BK = scores_BK.topk(min(num_beams, scores_BK.shape[-1]), dim=-1)
    parent_BK = torch.zeros_like(code_BK)
    codes_BKL = code_BK[..., None]
    for _ in range(1, num_levels):
        logits_BKV = step_fn(code_BK, parent_BK)
        B, K, V = logits_BKV.shape
        total_BC = (scores_BK[..., None] + torch.log_softmax(logits_BKV, dim=-1)).view(B, K * V)
        scores_BK, best_BK = total_BC.topk(min(num_beams, K * V), dim=-1)
        parent_BK, code_BK = best_BK // V, best_BK % V
        prefix_BKL = codes_BKL.gather(1, parent_BK[..., None].expand(-1, -1, codes_BKL.shape[-1]))
        codes_BKL = torch.cat((prefix_BKL, code_BK[..., None]), dim=-1)
    return codes_BKL, scores_BK


class SidSet:
    """The existing SIDs, to check both searches: for each level the sorted keys `parent * size + code` of its nodes."""

    def __init__(self, codes_NL: NDArray[np.int64], codebook_sizes: Sequence[int]) -> None:
        self._sizes = tuple(codebook_sizes)
        self._keys: list[NDArray[np.int64]] = []
        node_N = np.zeros(len(codes_NL), np.int64)
        for level, size in enumerate(self._sizes):
            keys, node_N = np.unique(node_N * size + codes_NL[:, level], return_inverse=True)
            self._keys.append(keys)

    def contains(self, codes_ML: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether each SID exists. Cost: L binary searches each."""
        node_M = np.zeros(len(codes_ML), np.int64)
        known_M = np.full(len(codes_ML), len(self._keys[0]) > 0)
        for level, (size, keys) in enumerate(zip(self._sizes, self._keys, strict=True)):
            if not len(keys):
                break
            key_M = node_M * size + codes_ML[:, level]
            node_M = np.minimum(np.searchsorted(keys, key_M), len(keys) - 1)
            known_M &= keys[node_M] == key_M
        return known_M
