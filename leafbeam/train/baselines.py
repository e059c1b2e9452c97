"""Baselines: scores by popularity, text and item memory, the ranks that scores give, and beam search without a constraint.

Shapes: U users, B users of a batch, N items, D dimensions, K beams, L levels, V codes of a level, M SIDs.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.retrieve import ItemMemory, MemoryConfig
from leafbeam.retrieve.memory import top_rows
from leafbeam.semid.vectors import unit_rows
from leafbeam.train.histories import Histories
from leafbeam.train.metrics import MISS, Ranks, Seen

StepFn = Callable[[Tensor | None, Tensor | None], Tensor]

ScoreFn = Callable[[Histories], NDArray[np.float32]]
"""Scores (B, N) of all items after each of B histories, in a new array; -inf where an item may not be listed."""


def rank_targets(
    scores: ScoreFn, histories: Histories, targets_U: NDArray[np.integer], *, num_items: int, counts_lists: bool = False
) -> Ranks:
    """Return the rank of each user's target among all items by score; items of equal score rank before it.

    A target that scores -inf is a MISS, and so is one in the user's history if seen items are removed. This costs U * N.

    Args:
        scores: The scores.
        histories: The history of each user.
        targets_U: The item of each user.
        num_items: The number of items.
        counts_lists: Whether `Ranks.shown` is counted, which costs U * N once more.
    """
    users = len(targets_U)
    ranks = Ranks.none(users, num_items)
    size = max(1, 2**23 // num_items)
    for first in range(0, users, size):
        batch_B = np.arange(first, min(first + size, users))
        rows_B, target_B = np.arange(len(batch_B)), targets_U[batch_B]
        scores_BN = scores(histories.select(batch_B))
        for ranks_U in (ranks.kept, ranks.removed):
            seen: Seen = "removed" if ranks_U is ranks.removed else "kept"
            if seen == "removed":
                scores_BN[histories.pairs(batch_B)] = -np.inf
            if counts_lists:
                for scores_N in scores_BN:
                    ranks.shown[seen][top_rows(scores_N, 10, minimum=-np.inf)] += 1
            target_B1 = scores_BN[rows_B, target_B][:, None]
            before_B = (scores_BN >= target_B1).sum(axis=1) - 1
            ranks_U[batch_B] = np.where(target_B1[:, 0] == -np.inf, MISS, before_B)
    return ranks


def popularity(train: Histories, num_items: int) -> ScoreFn:
    """Return a function that scores items by their training interactions."""
    counts_N = np.bincount(train.items_E, minlength=num_items).astype(np.float32)
    return lambda histories: np.tile(counts_N, (len(histories), 1))


def text_neighbours(vectors_ND: NDArray[np.floating]) -> ScoreFn:
    """Return a function that scores items by the cosine of their vectors to that of the last item, which is not listed.

    It costs N * D per user. A zero vector has cosine 0 to everything. Raises ArgumentError for vectors that are not finite.
    """
    if vectors_ND.ndim != 2 or not np.isfinite(vectors_ND).all():
        raise ArgumentError(f"vectors must be finite and of shape (N, D), got shape {vectors_ND.shape}")
    units_ND = unit_rows(vectors_ND.astype(np.float32))

    def scores(histories: Histories) -> NDArray[np.float32]:
        last_B = histories.items_E[histories.indptr_U1[1:] - 1]
        cosine_BN = units_ND[last_B] @ units_ND.T
        cosine_BN[np.arange(len(last_B)), last_B] = -np.inf
        return cosine_BN

    return scores


def memory_scores(memory: ItemMemory) -> ScoreFn:
    """Return a function that scores items by an item memory whose rows are those of the log; -inf for items that it does not
    find.
    """

    def scores(histories: Histories) -> NDArray[np.float32]:
        rows = [memory.newest(histories[user].astype(np.int64)) for user in range(len(histories))]
        total_BN = np.stack([memory.total(memory.scores(rows_h)) for rows_h in rows])
        total_BN[total_BN <= 0] = -np.inf
        return total_BN

    return scores


def transition_baselines(memory: ItemMemory, train: Histories) -> dict[str, ScoreFn]:
    """Return the last item's transitions and the transition graph of `train`, and the graph with the texts of `memory`, if any.

    (An Embarrassingly Simple Graph Heuristic, arXiv 2605.07125.)
    """
    last = MemoryConfig(distances=1, reverse=0.0, history=1, text_weight=0.0)
    graph = MemoryConfig(
        distances=3, distance_decay=0.6, reverse=0.5, history=5, history_decay=0.6, shrinkage=0.0, text_weight=0.0
    )
    configs = {"transitions": last, "graph": graph}
    if memory.encoder is not None:
        configs["graph_text"] = replace(graph, text_weight=1.0)
    count = partial(memory.with_transitions, train.indptr_U1, train.items_E)
    return {name: memory_scores(count(config=config)) for name, config in configs.items()}


@torch.inference_mode()
def unconstrained_search(step_fn: StepFn, *, num_levels: int, num_beams: int) -> tuple[Tensor, Tensor]:
    """Return the `num_beams` most likely SIDs, whether or not they exist: codes_BKL and scores_BK, best first.

        for each level:
            score = beam score + log_softmax(logits)[code]
            keep the `num_beams` best of all beams' codes

    The step function, the number of beams and the normalisation are those of `BeamSearch(scoring="full")`.
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
    """The existing SIDs, to check both searches: sorted, each as one value of 8 L bytes."""

    def __init__(self, codes_NL: NDArray[np.integer]) -> None:
        self._sid_N = np.sort(_as_one_value(codes_NL))

    def contains(self, codes_ML: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return whether each SID exists. Each costs a binary search."""
        sid_M = _as_one_value(codes_ML)
        first_M = np.searchsorted(self._sid_N, sid_M)
        return first_M < np.searchsorted(self._sid_N, sid_M, side="right")


def _as_one_value(codes_ML: NDArray[np.integer]) -> NDArray[np.void]:
    return np.ascontiguousarray(codes_ML, np.int64).view(np.dtype((np.void, 8 * codes_ML.shape[1])))[:, 0]
