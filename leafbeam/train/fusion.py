"""The item memory of a log and its fusion with beams: settings chosen on validation users, and ranks.

Shapes: U users, k items of the beams, N items.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.retrieve import Example, Fusion, Fusions, ItemMemory, MemoryConfig, features
from leafbeam.retrieve.memory import top_rows
from leafbeam.semid.texts import texts
from leafbeam.train.baselines import memory_scores, rank_targets
from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog
from leafbeam.train.metrics import SEEN, Estimate, Ranks, Seen, ndcg_gains
from leafbeam.train.split import Split

_CANDIDATES = 100  # of the memory for an example, beside those of the beams
_MAX_SCORES = 50_000_000  # items scored in one ranking of a sample, from _MIN_USERS on
_MIN_USERS = 200
_SAMPLE = 4_000  # users on whom settings are chosen

_CHOICES: dict[str, tuple[float, ...]] = {
    "text_weight": (0.4, 0.6, 1.0, 1.4),
    "shrinkage": (0.25, 1.0, 2.0),
    "history_decay": (0.4, 0.8),
    "reverse": (0.0, 0.5, 1.0),
}


def fit_memory(
    log: InteractionLog, histories: Histories, columns: Sequence[str], config: MemoryConfig | None = None
) -> ItemMemory:
    """Return the item memory of a log's items: transitions of `histories`, and texts of the columns, if any (see
    `ItemMemory.fit`).
    """
    words = texts(log.items, tuple(columns)) if columns else None
    return ItemMemory.fit(log.item_ids, histories.indptr_U1, histories.items_E, texts=words, config=config)


def tune_memory(
    memory: ItemMemory,
    split: Split,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ItemMemory:
    """Return the memory, which counts `split.train`, with settings chosen on a sample of validation users.

    One setting after the other is changed if NDCG@10, the mean of lists with and without seen items, rises by more than its
    standard error. This costs 13 rankings of 4,000 users, or of fewer, down to 200, to fit into `seconds`; no
    ranking is begun after that. If the split has no validation users, the memory is returned as it is.
    """
    began, users, train = clock(), split.valid_users(), split.train
    if len(users) == 0:
        return memory
    sample = min(_SAMPLE, max(_MIN_USERS, _MAX_SCORES // memory.num_items))

    def draw(count: int) -> NDArray[np.int64]:
        return users if count >= len(users) else np.sort(np.random.default_rng(0).choice(users, count, replace=False))

    def gains(memory: ItemMemory, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        histories, targets_U = train.select(drawn), split.valid_U[drawn]
        ranks = rank_targets(memory_scores(memory), histories, targets_U, num_items=memory.num_items)
        return np.mean([ndcg_gains(getattr(ranks, seen), 10) for seen in SEEN], axis=0)

    if seconds is not None:
        rankings = 1 + sum(map(len, _CHOICES.values()))
        sample = min(sample, affordable_users(lambda count: gains(memory, draw(count)), seconds, clock, times=rankings))
    users = draw(sample)
    best_U = gains(memory, users)
    for name, values in _CHOICES.items():
        if name == "text_weight" and memory.encoder is None:
            continue
        base = memory.config
        for value in values:
            if seconds is not None and clock() - began >= seconds:
                return memory
            other = memory.with_transitions(train.indptr_U1, train.items_E, config=replace(base, **{name: value}))
            gains_U = gains(other, users)
            change = Estimate.from_values(gains_U - best_U)
            if change.mean > change.error:
                memory, best_U = other, gains_U
    return memory


def affordable_users(rank: Callable[[int], object], seconds: float, clock: Callable[[], float], *, times: int = 1) -> int:
    """Return the number of users, at least 200, whom `rank` can rank `times` times in the seconds.

    It is estimated from the time for the fewest users. Ranking one user, which compiles, and 200 users counts as a part of the
    seconds.
    """
    began = clock()
    rank(1)
    pilot_began = clock()
    rank(_MIN_USERS)
    now = clock()
    user_s = max(1e-9, (now - pilot_began) / _MIN_USERS)
    return max(_MIN_USERS, int((seconds - (now - began)) / times / user_s))


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
        beams = self.memory.beams(item_ids_k, scores_k)
        return features(self.memory.scores(self.memory.newest(history_n), allowed_N), beams, history_n)


class FusionExamples(_UserFeatures):
    """A collector of examples: the candidates of users whose next item is among them.

    `found` are those of each kind of list.
    """

    def __init__(self, memory: ItemMemory, histories: Histories, targets_U: NDArray[np.integer]) -> None:
        super().__init__(memory, histories, targets_U)
        self.found: dict[Seen, list[Example]] = {seen: [] for seen in SEEN}

    def observe(self, index: int, seen: Seen, item_ids_k: NDArray[np.generic], scores_k: NDArray[np.float32]) -> None:
        """Add the example of a user, unless neither channel finds the item that it took."""
        features_FN, found_N = self.of(index, seen, item_ids_k, scores_k)
        default_N = Fusion().scores(features_FN, found_N)
        beams = self.memory.rows_of(item_ids_k)
        rows = np.union1d(top_rows(default_N, _CANDIDATES, minimum=-np.inf), beams)
        target = np.flatnonzero(rows == self._targets_U[index])
        if len(target):
            self.found[seen].append(Example(features_FN[:, rows], int(target[0])))


class FusedRanks(_UserFeatures):
    """A collector of the ranks of users' items by the fused score, among all items. Items of equal score rank before
    the user's.
    """

    def __init__(self, memory: ItemMemory, histories: Histories, targets_U: NDArray[np.integer]) -> None:
        super().__init__(memory, histories, targets_U)
        self.ranks = Ranks.none(len(targets_U), memory.num_items)

    def observe(self, index: int, seen: Seen, item_ids_k: NDArray[np.generic], scores_k: NDArray[np.float32]) -> None:
        """Rank the item of a user."""
        fusion = (self.memory.fusion or Fusions()).of(keeps_history=seen == "kept")
        scores_N = fusion.scores(*self.of(index, seen, item_ids_k, scores_k))
        self.ranks.shown[seen][top_rows(scores_N, 10, minimum=-np.inf)] += 1
        target = self._targets_U[index]
        if scores_N[target] > -np.inf:
            getattr(self.ranks, seen)[index] = np.count_nonzero(scores_N >= scores_N[target]) - 1
