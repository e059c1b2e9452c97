"""Evaluation: full ranking of the catalog by constrained beam search, with baselines.

Shapes: U users, B users of a batch, K beams, L levels, N items, D dimensions.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import AnyModel, DecodeSession
from leafbeam.semid.config import check_choice
from leafbeam.train.baselines import SidSet, neighbour_ranks, popularity_ranks, unconstrained_search
from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog
from leafbeam.train.metrics import MISS, Estimate, RankingMetrics
from leafbeam.train.report import EvaluationReport, UnconstrainedReport
from leafbeam.train.split import Split
from leafbeam.train.threads import torch_threads

Part = Literal["valid", "test"]
T = TypeVar("T")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EvaluationSet:
    """Users (numbers in the log), and in their order the histories and the item that each took next."""

    users: NDArray[np.int64] = field(repr=False)
    histories: Histories
    targets_U: NDArray[np.int32] = field(repr=False)

    @classmethod
    def from_split(cls, split: Split, part: Part, *, sample: int | None = None, seed: int = 0) -> "EvaluationSet":
        """All users with a held-out item, or a sample of them; histories before the test include the validation item."""
        check_choice("part", part, Part)
        users = split.test_users() if part == "test" else split.valid_users()
        if len(users) == 0:
            raise ArgumentError("the split holds out no item: no user has three interactions")
        if sample is not None and sample < len(users):
            users = np.sort(np.random.default_rng(seed).choice(users, sample, replace=False))
        histories = split.before_test() if part == "test" else split.train
        targets_U = split.test_U if part == "test" else split.valid_U
        return cls(users=users, histories=histories.select(users), targets_U=targets_U[users])

    def batches(
        self, max_items: int, batch_users: int, *, among: NDArray[np.bool_] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Indices into `users`, sorted by history length to minimise padding. among: marks the users to take; None: all."""
        order_U = np.argsort(np.minimum(self.histories.lengths_U, max_items), kind="stable")
        order_U = order_U if among is None else order_U[among[order_U]]
        return (order_U[first : first + batch_users] for first in range(0, len(order_U), batch_users))


def evaluate(
    model: AnyModel,
    trie: Trie,
    log: InteractionLog,
    split: Split,
    *,
    part: Part = "test",
    num_beams: int = 20,
    scoring: Literal["full", "allowed"] = "full",
    max_items: int | None = None,
    remove_seen: bool = False,
    sample: int | None = None,
    seed: int = 0,
    text_vectors_ND: NDArray[np.floating] | None = None,
    unconstrained_users: int = 2000,
    batch_users: int = 128,
    threads: int = 1,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Rank the whole catalog for each user by constrained beam search, and report the rank of the held-out item.

    One ranking a user, from the last `max_items` items (None: as in training) before the held-out item; every item of `trie`
    may be returned, and an item beyond the `num_beams` best SIDs is a miss. Popularity is counted in the training part.

    remove_seen: items of a user's history are excluded, for the model and the baselines; a repeated item is then a miss. The
    unconstrained search keeps them. (Published figures of SASRec and S3-Rec remove seen items.)
    sample: number of users, drawn by `seed`; None: all. text_vectors_ND: one row for each item of the log, for the nearest
    neighbours. unconstrained_users: how many are also searched without the trie, to measure invalid SIDs and time. threads: of
    the model. progress: called with (users done, all users).

    Raises ItemIdError where the trie lacks an item of the log, ArgumentError where trie and model differ in their levels.
    """
    start = time.perf_counter()
    if trie.codebook_sizes != model.vocabulary.codebook_sizes:
        sizes = f"the index has codebooks {trie.codebook_sizes}, the model {model.vocabulary.codebook_sizes}"
        raise ArgumentError(f"{sizes}: build the index from the Semantic IDs that the model was trained on")
    if max_items is None:
        max_items = max(1, (model.config.max_position_embeddings - 1) // trie.num_levels - 1)
    if min(num_beams, batch_users, max_items, threads) < 1:
        raise ArgumentError(f"{num_beams=}, {batch_users=}, {max_items=}, {threads=}: at least 1 each")
    eval_set = EvaluationSet.from_split(split, part, sample=sample, seed=seed)
    search = BeamSearch(trie, num_beams=num_beams, scoring=scoring)
    evaluator = _Evaluator(model, trie, log, eval_set, search, max_items, remove_seen)
    users = len(eval_set.users)
    compared_U = np.zeros(users, np.bool_)
    compared_U[np.random.default_rng(seed).permutation(users)[:unconstrained_users]] = True
    done = 0
    with torch_threads(threads):
        # The compared users come first, in batches of their own, so that both searches are timed on the same prompts.
        for compare in (True, False):
            for batch in eval_set.batches(max_items, batch_users, among=compared_U == compare):
                evaluator.run_batch(batch, compare=compare)
                done += len(batch)
                if progress is not None:
                    progress(done, users)
    last_U = eval_set.histories.items_E[eval_set.histories.indptr_U1[1:] - 1]
    targets_U, seen = eval_set.targets_U, eval_set.histories if remove_seen else None
    neighbours = None if text_vectors_ND is None else neighbour_ranks(text_vectors_ND, last_U, targets_U, seen=seen)
    popularity = popularity_ranks(split.train, targets_U, num_items=log.num_items, seen=seen)
    return EvaluationReport(
        part=part,
        users=users,
        items=trie.num_items,
        num_beams=num_beams,
        scoring=scoring,
        max_items=max_items,
        seen="removed" if remove_seen else "kept",
        trie_version=trie.version,
        model=RankingMetrics.from_ranks(evaluator.ranks_U),
        popularity=RankingMetrics.from_ranks(popularity),
        text_neighbours=None if neighbours is None else RankingMetrics.from_ranks(neighbours),
        unconstrained=evaluator.comparison(compared_U) if compared_U.any() else None,
        seconds=time.perf_counter() - start,
    )


def recall_on(
    trie: Trie, log: InteractionLog, split: Split, *, max_items: int, sample: int, num_beams: int = 20, seed: int = 0
) -> Callable[[AnyModel], float]:
    """A function that returns a model's Recall@10 on the validation items of a sample of users (`Trainer.validate`)."""
    eval_set = EvaluationSet.from_split(split, "valid", sample=sample, seed=seed)

    def recall(model: AnyModel) -> float:
        evaluator = _Evaluator(model, trie, log, eval_set, BeamSearch(trie, num_beams=num_beams), max_items)
        for batch in eval_set.batches(max_items, 128):
            evaluator.run_batch(batch, compare=False)
        return RankingMetrics.from_ranks(evaluator.ranks_U).recall_10.mean

    return recall


class _Evaluator:
    """Ranks batches of users, and keeps the ranks of their targets and the time of each search."""

    def __init__(
        self,
        model: AnyModel,
        trie: Trie,
        log: InteractionLog,
        eval_set: EvaluationSet,
        search: BeamSearch,
        max_items: int,
        remove_seen: bool = False,
    ) -> None:
        self._model, self._eval_set, self._item_ids = model.eval(), eval_set, log.item_ids
        self._search, self._max_items, self._remove_seen = search, max_items, remove_seen
        self._user_ids = log.user_ids[eval_set.users] if model.vocabulary.num_users else None
        self._codes_NL = trie.codes_of(log.item_ids)
        self._sids = SidSet(trie.codes_of(trie.item_ids), trie.codebook_sizes)
        users = len(eval_set.users)
        self.ranks_U, self._unconstrained_ranks_U = (np.full(users, MISS, np.int64) for _ in range(2))
        self._invalid_U = np.zeros(users)
        self._seconds: dict[str, float] = {}
        self._unconstrained_first = False

    def run_batch(self, indices: NDArray[np.int64], *, compare: bool) -> None:
        """Rank the users at `indices`; compare: by both searches on the same prompts, in alternating order, and timed."""
        histories = self._eval_set.histories
        codes = [self._codes_NL[histories[index][-self._max_items :]] for index in indices.tolist()]
        users = None if self._user_ids is None else self._user_ids[indices]
        prompts = self._model.vocabulary.prompts(codes, users)
        tokens_BT, lengths_B = (torch.as_tensor(array, device=self._model.device) for array in prompts)
        if not compare:
            self._record(indices, self._constrained(self._model.start(tokens_BT, lengths_B), indices))
            return
        if not self._seconds:  # the first call of each search compiles or loads kernels: it is not timed
            session = self._model.start(tokens_BT[:1], lengths_B[:1])
            self._constrained(session, indices[:1])
            self._unconstrained(session)
        session = self._timed("prompt", lambda: self._model.start(tokens_BT, lengths_B))
        for unconstrained in (self._unconstrained_first, not self._unconstrained_first):
            if unconstrained:
                self._record_unconstrained(indices, self._timed("unconstrained", lambda: self._unconstrained(session)))
            else:
                self._record(indices, self._timed("constrained", lambda: self._constrained(session, indices)))
        self._unconstrained_first = not self._unconstrained_first

    def _timed(self, name: str, search: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = search()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    def _constrained(self, session: DecodeSession, indices: NDArray[np.int64]) -> SearchResult:
        histories = self._eval_set.histories
        seen = [self._item_ids[histories[index]] for index in indices.tolist()] if self._remove_seen else None
        return self._search.run(session.step_fn, batch_size=len(indices), deny=seen)

    def _unconstrained(self, session: DecodeSession) -> NDArray[np.int64]:
        num_levels = self._codes_NL.shape[1]
        codes_BKL, _ = unconstrained_search(session.step_fn, num_levels=num_levels, num_beams=self._search.num_items)
        return codes_BKL.cpu().numpy()

    def _record(self, indices: NDArray[np.int64], result: SearchResult) -> None:
        for row, index in enumerate(indices.tolist()):
            hits = np.flatnonzero(result.item_ids[row] == self._item_ids[self._eval_set.targets_U[index]])
            self.ranks_U[index] = hits[0] if len(hits) else MISS
        live_BK = np.asarray(result.scores) > -np.inf
        if not self._sids.contains(np.asarray(result.codes)[live_BK]).all():
            raise AssertionError("the constrained search returned a SID that is not in the index")

    def _record_unconstrained(self, indices: NDArray[np.int64], codes_BKL: NDArray[np.int64]) -> None:
        B, K, L = codes_BKL.shape
        self._invalid_U[indices] = 1 - self._sids.contains(codes_BKL.reshape(B * K, L)).reshape(B, K).mean(axis=1)
        hit_BK = (codes_BKL == self._codes_NL[self._eval_set.targets_U[indices]][:, None]).all(axis=2)
        self._unconstrained_ranks_U[indices] = np.where(hit_BK.any(axis=1), hit_BK.argmax(axis=1), MISS)

    def comparison(self, compared_U: NDArray[np.bool_]) -> UnconstrainedReport:
        """Both searches on the users that were compared."""
        return UnconstrainedReport(
            users=int(compared_U.sum()),
            invalid=Estimate.from_values(self._invalid_U[compared_U]),
            scores=RankingMetrics.from_ranks(self._unconstrained_ranks_U[compared_U]),
            constrained=RankingMetrics.from_ranks(self.ranks_U[compared_U]),
            prompt_s=self._seconds["prompt"],
            constrained_s=self._seconds["constrained"],
            unconstrained_s=self._seconds["unconstrained"],
        )
