"""Beams and item memory of held-out users: the examples that fusion learns from, and the ranks that it gives.

Shapes: U users, k items of the beams, N items.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.retrieve import Beams, Example, Fusion, ItemMemory, features
from leafbeam.retrieve.memory import top_rows
from leafbeam.semid.embedding import texts
from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog
from leafbeam.train.metrics import MISS, Ranks, Seen

_CANDIDATES = 100  # of the memory for an example, beside those of the beams


def fit_memory(log: InteractionLog, histories: Histories, columns: Sequence[str]) -> ItemMemory:
    """The item memory of a log's items: transitions of `histories`, texts of the columns, if any. Cost: `ItemMemory.fit`."""
    words = texts(log.items, tuple(columns)) if columns else None
    return ItemMemory.fit(log.item_ids, histories.indptr_U1, histories.items_E, texts=words)


class _UserFeatures:
    """The features of all items for the user at an index, from the beams of its search."""

    def __init__(self, memory: ItemMemory, histories: Histories, targets_U: NDArray[np.integer]) -> None:
        self.memory, self._histories, self._targets_U = memory, histories, targets_U

    def of(
        self, index: int, seen: Seen, item_ids_k: NDArray[np.generic], scores_k: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        history_n = self._histories[index].astype(np.int64)
        allowed_N = np.ones(self.memory.num_items, np.bool_)
        if seen == "removed":
            allowed_N[history_n] = False
        beams = Beams(self.memory.rows_of(item_ids_k), scores_k)
        return features(self.memory.scores(self.memory.newest(history_n), allowed_N), beams, history_n)


class FusionExamples(_UserFeatures):
    """Collects examples: the candidates of users whose next item is among them. found: the examples."""

    def __init__(self, memory: ItemMemory, histories: Histories, targets_U: NDArray[np.integer]) -> None:
        super().__init__(memory, histories, targets_U)
        self.found: list[Example] = []

    def observe(self, index: int, seen: Seen, item_ids_k: NDArray[np.generic], scores_k: NDArray[np.float32]) -> None:
        """Add the example of a user, unless neither channel finds the item that it took."""
        features_FN, found_N = self.of(index, seen, item_ids_k, scores_k)
        default_N = Fusion().scores(features_FN, found_N)
        beams = self.memory.rows_of(item_ids_k)
        rows = np.union1d(top_rows(default_N, _CANDIDATES, minimum=-np.inf), beams)
        target = np.flatnonzero(rows == self._targets_U[index])
        if len(target):
            self.found.append(Example(features_FN[:, rows], int(target[0])))


class FusedRanks(_UserFeatures):
    """Collects the ranks of users' items by the fused score, all items ranked; items of equal score rank before them."""

    def __init__(self, memory: ItemMemory, histories: Histories, targets_U: NDArray[np.integer]) -> None:
        super().__init__(memory, histories, targets_U)
        kept_U, removed_U = (np.full(len(targets_U), MISS, np.int64) for _ in range(2))
        self.ranks = Ranks(kept=kept_U, removed=removed_U)

    def observe(self, index: int, seen: Seen, item_ids_k: NDArray[np.generic], scores_k: NDArray[np.float32]) -> None:
        """Rank the item of a user."""
        fusion = self.memory.fusion or Fusion()
        scores_N = fusion.scores(*self.of(index, seen, item_ids_k, scores_k))
        target = self._targets_U[index]
        if scores_N[target] > -np.inf:
            getattr(self.ranks, seen)[index] = np.count_nonzero(scores_N >= scores_N[target]) - 1
