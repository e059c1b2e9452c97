"""The item memory's part in an answer: alone, or fused with the model's beams.

Shapes: N items of the memory, h items of a history, k of a result.
"""

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.request import ItemId, PendingRequest
from leafbeam.index import Version
from leafbeam.retrieve import BoundMemory, Fusions, ItemMemory, Reason, features
from leafbeam.retrieve.memory import top_rows


class RankedItems(NamedTuple):
    """Items, best first, with their scores and the largest part of each score."""

    item_ids: list[ItemId]
    scores: list[float]
    reasons: list[Reason]


class MemoryChannel:
    """Ranks the items that a request allows by an item memory, alone or fused with the beams of its search."""

    def __init__(self, memory: ItemMemory, version: Version) -> None:
        self.memory = memory
        self._lock = threading.Lock()
        self._bound = BoundMemory(memory, version)

    def rank(
        self, pending: PendingRequest, beams: tuple[NDArray[np.generic], NDArray[np.float32]] | None = None
    ) -> RankedItems:
        """Return the best of the allowed items that were found, and then the most popular of the other allowed items.

        beams: ids and log probabilities of a search; None: no search.
        """
        memory, num_items = self.memory, pending.request.num_items
        allowed_N = self._bind(pending.version).allowed(pending.item_filter)
        history_n = memory.rows_of(pending.history)
        if pending.deny is not None:
            deny_n = memory.rows_of(pending.deny)
            allowed_N[deny_n[deny_n >= 0]] = False
        rows_h = memory.newest(history_n)
        parts = memory.scores(rows_h, allowed_N)
        if beams is None:
            total_N, weights = memory.total(parts), (1.0, memory.config.text_weight)
            best_k = top_rows(total_N, num_items, minimum=0.0)
            ranked = RankedItems(memory.ids_of(best_k), total_N[best_k].tolist(), memory.reasons(rows_h, best_k, weights))
            return self._filled(ranked, best_k, allowed_N, num_items)
        fusion = (memory.fusion or Fusions()).of(keeps_history=pending.request.keep_history)
        features_FN, found_N = features(parts, memory.beams(*beams), history_n)
        total_N = fusion.scores(features_FN, found_N)
        best_k = top_rows(total_N, num_items, minimum=-np.inf)
        reasons = memory.reasons(rows_h, best_k, (fusion.transition, fusion.text))
        by_model_k = fusion.log_prob * features_FN[2, best_k] + fusion.found * features_FN[3, best_k]
        for place in np.flatnonzero(features_FN[3, best_k]).tolist():
            if by_model_k[place] >= reasons[place].score:
                reasons[place] = Reason(channel="model", item_id=None, score=float(by_model_k[place]))
        return self._filled(RankedItems(memory.ids_of(best_k), total_N[best_k].tolist(), reasons), best_k, allowed_N, num_items)

    def _filled(
        self, ranked: RankedItems, rows_k: NDArray[np.int64], allowed_N: NDArray[np.bool_], num_items: int
    ) -> RankedItems:
        """Return the ranked items, at `rows_k`, followed by popular ones if fewer than `num_items` were found."""
        missing = num_items - len(rows_k)
        if missing <= 0:
            return ranked
        others_N = allowed_N.copy()
        others_N[rows_k] = False
        rows_m = self.memory.popular(others_N, missing)
        score = min([0.0, *ranked.scores[-1:]])
        return RankedItems(
            ranked.item_ids + self.memory.ids_of(rows_m),
            ranked.scores + [score] * len(rows_m),
            ranked.reasons + [Reason(channel="popular", item_id=None, score=score)] * len(rows_m),
        )

    def _bind(self, version: Version) -> BoundMemory:
        """Return the binding to a version; that of the latest version is kept."""
        with self._lock:
            if self._bound.version is not version:
                self._bound = BoundMemory(self.memory, version, like=self._bound)
            return self._bound
