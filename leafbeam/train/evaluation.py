"""Evaluation: full ranking of the catalog by constrained beam search, with baselines.

Shapes: U users, B users of a batch, K beams, L levels, N items, D dimensions.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.errors import ArgumentError, check_choice, check_whole
from leafbeam.index import Trie
from leafbeam.model import AnyModel, DecodeSession, Transformer, Workspace
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.constrain import Scoring
from leafbeam.retrieve import Fusion, Fusions, ItemMemory
from leafbeam.train.baselines import ScoreFn, SidSet, memory_scores, popularity, rank_targets, unconstrained_search
from leafbeam.train.fusion import FusedRanks, FusionExamples, affordable_users
from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog
from leafbeam.train.metrics import MISS, SEEN, Estimate, Ranking, RankingMetrics, Ranks, Seen
from leafbeam.train.report import EvaluationReport, UnconstrainedReport, Verdict
from leafbeam.train.segments import HISTORY, POPULARITY, ListFigures, segments_of
from leafbeam.train.split import Split

_BATCH_USERS = 128
_NUM_BEAMS = 20  # while training
_FUSION_USERS = 4000

Part = Literal["valid", "test"]
T = TypeVar("T")
Progress = Callable[[int, int], None]
OnBeams = Callable[[int, Seen, NDArray[np.generic], NDArray[np.float32]], None]
"""Takes the index of a user, how seen items are treated, and the ids and scores of the items that the search returned."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EvaluationSet:
    """Users (by their numbers in the log), and for each of them the history and the item that came next."""

    users: NDArray[np.int64] = field(repr=False)
    histories: Histories
    targets_U: NDArray[np.int32] = field(repr=False)

    @classmethod
    def from_split(cls, split: Split, part: Part, *, sample: int | None = None, seed: int = 0) -> "EvaluationSet":
        """Return all users with a held-out item, or a sample of them; histories before the test include the validation item."""
        check_choice("part", part, Part)
        users = split.test_users() if part == "test" else split.valid_users()
        if len(users) == 0:
            raise ArgumentError(
                f"the split holds out no {part} item: users need three interactions, and after fitting on train+valid only the "
                "test items are held out"
            )
        if sample is not None and sample < len(users):
            users = np.sort(np.random.default_rng(seed).choice(users, sample, replace=False))
        histories = split.before_test if part == "test" else split.train
        targets_U = split.test_U if part == "test" else split.valid_U
        return cls(users=users, histories=histories.select(users), targets_U=targets_U[users])

    def batches(
        self, max_items: int, batch_users: int, *, among: NDArray[np.bool_] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield indices into `users`, sorted by history length to minimise padding; `among` marks the users to take, None takes
        all.
        """
        order_U = np.argsort(np.minimum(self.histories.lengths_U, max_items), kind="stable")
        order_U = order_U if among is None else order_U[among[order_U]]
        return (order_U[first : first + batch_users] for first in range(0, len(order_U), batch_users))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """The settings of an evaluation.

    Args:
        part: The part whose items are held out.
        num_beams: The number of beams.
        scoring: As for `BeamSearch`.
        max_items: The number of last items before the held-out item that the model reads; None takes as many as in training.
        sample: The number of users, drawn by `seed`; None takes all.
        seed: The seed of the sample.
        unconstrained_users: The number of users that are also searched without the trie, to measure invalid SIDs and time.
        batch_users: The number of users in a batch.
        threads: The number of CPU threads of the model.

    Raises:
        ArgumentError: If a number is out of range.
    """

    part: Part = "test"
    num_beams: int = 20
    scoring: Scoring = "full"
    max_items: int | None = None
    sample: int | None = None
    seed: int = 0
    unconstrained_users: int = 2000
    batch_users: int = 128
    threads: int = 1

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("num_beams", "max_items", "batch_users", "threads")}
        check_whole(**{name: value for name, value in numbers.items() if value is not None})


def evaluate(
    model: AnyModel,
    trie: Trie,
    log: InteractionLog,
    split: Split,
    config: EvaluationConfig | None = None,
    *,
    baselines: Mapping[str, ScoreFn] | None = None,
    memory: ItemMemory | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Rank the whole catalog for each user by constrained beam search, and report the rank of the held-out item.

    There are two rankings for each user: one that may list items of the history, and one that may not. Every other item of
    `trie` may be listed, and an item beyond the `num_beams` best SIDs is a miss. Items of equal score rank before the held-out
    one.

    Args:
        model: The model.
        trie: The index of the items.
        log: The log.
        split: Its parts.
        config: The settings of the evaluation.
        baselines: Other methods by name, each a function from histories to scores of all items of the log. Popularity in the
            training part is always among them.
        memory: An item memory of the training part, whose rows are those of the log. Its ranking is reported too, alone and
            together with the model.
        progress: Called with the number of users done and of all users.

    Raises:
        ItemIdError: If the trie lacks an item of the log.
        ArgumentError: If trie and model differ in their levels.
    """
    start, config = time.perf_counter(), config or EvaluationConfig()
    if trie.codebook_sizes != model.vocabulary.codebook_sizes:
        sizes = f"the index has codebooks {trie.codebook_sizes}, the model {model.vocabulary.codebook_sizes}"
        raise ArgumentError(f"{sizes}: build the index from the Semantic IDs that the model was trained on")
    max_items = _longest_history(model) if config.max_items is None else config.max_items
    eval_set = EvaluationSet.from_split(split, config.part, sample=config.sample, seed=config.seed)
    search = BeamSearch(trie, num_beams=config.num_beams, scoring=config.scoring)
    fused = None if memory is None else FusedRanks(memory, eval_set.histories, eval_set.targets_U)
    on_beams = None if fused is None else fused.observe
    evaluator = _Evaluator(model, trie, log, eval_set, search, max_items, on_beams=on_beams)
    compared_U = evaluator.run(config, progress)
    ranks = {"model": evaluator.ranks}
    scorers = {"popularity": popularity(split.train, log.num_items), **(baselines or {})}
    if memory is not None and fused is not None:
        ranks["fused"] = fused.ranks
        scorers = {"memory": memory_scores(memory), **scorers}
    rank = partial(rank_targets, histories=eval_set.histories, targets_U=eval_set.targets_U, num_items=log.num_items)
    ranks |= {name: rank(scores, counts_lists=True) for name, scores in scorers.items()}
    verdict, interactions_N = Verdict.from_ranks(ranks), np.bincount(split.train.items_E, minlength=log.num_items)
    by_kind = {
        "popularity": segments_of(ranks, verdict.seen, interactions_N[eval_set.targets_U], POPULARITY),
        "history": segments_of(ranks, verdict.seen, eval_set.histories.lengths_U, HISTORY),
    }
    return EvaluationReport(
        part=config.part,
        fit_on="train" if len(split.valid_users()) else "train+valid",
        users=len(eval_set.users),
        items=trie.num_items,
        num_beams=config.num_beams,
        scoring=config.scoring,
        max_items=max_items,
        trie_version=trie.version,
        rankings={name: Ranking.from_ranks(named) for name, named in ranks.items()},
        verdict=verdict,
        segments=by_kind,
        lists={name: ListFigures.of(named.shown[verdict.seen], interactions_N) for name, named in ranks.items()},
        unconstrained=evaluator.comparison(compared_U) if compared_U.any() else None,
        seconds=time.perf_counter() - start,
    )


class Validation:
    """A measurement of Recall@10 on the validation items of a sample of users: call it with a model, as a `Trainer` does.

    `recalls` are those of each baseline by name, popularity among them. `seen` says whether lists keep seen items, here
    and for models; it is the choice that is better for the best baseline. The baselines may take `seconds`; if they
    need longer, the sample becomes smaller, down to 200 users.
    """

    def __init__(
        self,
        trie: Trie,
        log: InteractionLog,
        split: Split,
        *,
        max_items: int,
        sample: int,
        baselines: Mapping[str, ScoreFn] | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trie, self._log, self._max_items = trie, log, max_items
        scorers = {"popularity": popularity(split.train, log.num_items), **(baselines or {})}

        @cache
        def rank(count: int) -> tuple[EvaluationSet, dict[str, Ranking]]:
            drawn = EvaluationSet.from_split(split, "valid", sample=count)
            of_users = partial(rank_targets, histories=drawn.histories, targets_U=drawn.targets_U, num_items=log.num_items)
            return drawn, {name: Ranking.from_ranks(of_users(scores)) for name, scores in scorers.items()}

        users = sample if seconds is None else min(sample, affordable_users(rank, seconds, clock))
        self._eval_set, rankings = rank(users)
        recalls: dict[Seen, dict[str, float]] = {
            seen: {name: getattr(ranking, seen).recall_10.mean for name, ranking in rankings.items()} for seen in SEEN[::-1]
        }
        self.seen: Seen = max(recalls, key=lambda seen: max(recalls[seen].values()))
        self.recalls: dict[str, float] = recalls[self.seen]

    def warm_up(self, model: AnyModel, clock: Callable[[], float] = time.monotonic) -> float:
        """Compile the kernels of a search, so that no measurement includes that time, and return an estimate of a
        call's seconds.

        The estimate comes from a batch of users with histories of median length.
        """
        evaluator = self._evaluator(model)
        evaluator.run_batch(next(self._eval_set.batches(self._max_items, 1)), compare=False)
        batches = list(self._eval_set.batches(self._max_items, _BATCH_USERS))
        began = clock()
        evaluator.run_batch(batches[len(batches) // 2], compare=False)
        return (clock() - began) * len(batches)

    def _evaluator(self, model: AnyModel) -> "_Evaluator":
        search = BeamSearch(self._trie, num_beams=_NUM_BEAMS)
        return _Evaluator(model, self._trie, self._log, self._eval_set, search, self._max_items, (self.seen,))

    def __call__(self, model: AnyModel) -> float:
        evaluator = self._evaluator(model)
        for batch in self._eval_set.batches(self._max_items, _BATCH_USERS):
            evaluator.run_batch(batch, compare=False)
        return RankingMetrics.from_ranks(getattr(evaluator.ranks, self.seen)).recall_10.mean


def fit_fusion(
    model: AnyModel,
    trie: Trie,
    log: InteractionLog,
    split: Split,
    memory: ItemMemory,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Fusions:
    """Learn the weights of a model's beams and an item memory of the training part on a sample of validation users.

    This costs two searches per user. After `seconds` no further batch of users is begun, except the first. If the split has no
    validation users, the default weights are returned.
    """
    began = clock()
    if len(split.valid_users()) == 0:
        return Fusions()
    eval_set = EvaluationSet.from_split(split, "valid", sample=_FUSION_USERS, seed=1)
    examples = FusionExamples(memory, eval_set.histories, eval_set.targets_U)
    max_items = _longest_history(model)
    search = BeamSearch(trie, num_beams=_NUM_BEAMS)
    evaluator = _Evaluator(model, trie, log, eval_set, search, max_items, on_beams=examples.observe)
    with torch_threads(1):
        batches = list(eval_set.batches(max_items, _BATCH_USERS))
        order = np.arange(len(batches)) if seconds is None else np.random.default_rng(1).permutation(len(batches))
        for number, batch in enumerate(order.tolist()):
            if number and seconds is not None and clock() - began >= seconds:
                break
            evaluator.run_batch(batches[batch], compare=False)
    return Fusions(**{seen: Fusion.fit(found) for seen, found in examples.found.items()})


def _longest_history(model: AnyModel) -> int:
    """Return the number of items of the longest history that the model was trained on, by its positions; at least 1."""
    positions, vocabulary = model.config.max_position_embeddings, model.vocabulary
    return max(1, min((positions - 1) // vocabulary.num_levels - 1, vocabulary.max_history(positions)))


class _Evaluator:
    """An object that ranks batches of users, and keeps the ranks of their targets and the time of each search."""

    def __init__(
        self,
        model: AnyModel,
        trie: Trie,
        log: InteractionLog,
        eval_set: EvaluationSet,
        search: BeamSearch,
        max_items: int,
        seen: tuple[Seen, ...] = SEEN,
        on_beams: "OnBeams | None" = None,
    ) -> None:
        self._on_beams = on_beams
        self._model, self._eval_set, self._item_ids = model.eval(), eval_set, log.item_ids
        self._search, self._max_items, self._seen = search, max_items, seen
        self._user_ids = log.user_ids[eval_set.users] if model.vocabulary.num_users else None
        self._codes_NL = trie.codes_of(log.item_ids)
        self._sids = SidSet(trie.codes_of(trie.item_ids))
        users = len(eval_set.users)
        self.ranks, self._unconstrained_ranks_U = Ranks.none(users, log.num_items), np.full(users, MISS, np.int64)
        self._number_M = np.full(trie.num_items, -1, np.int64)  # of each item of the trie in the log
        self._number_M[trie.find(log.item_ids)] = np.arange(log.num_items)
        self._trie, self._invalid_U = trie, np.zeros(users)
        self._seconds: dict[str, float] = {}
        self._unconstrained_first = False
        options: dict[str, object] = {"other_tokens": True} if search.config.scoring == "vocabulary" else {}
        if isinstance(model, Transformer) and model.takes_workspace:
            options["workspace"] = Workspace()
        self._start: Callable[..., DecodeSession] = partial(model.start, **options)

    def run(self, config: EvaluationConfig, progress: Progress | None) -> NDArray[np.bool_]:
        """Rank all users, and return which of them were searched without the trie too."""
        users, done = len(self._eval_set.users), 0
        compared_U = np.zeros(users, np.bool_)
        compared_U[np.random.default_rng(config.seed).permutation(users)[: config.unconstrained_users]] = True
        with torch_threads(config.threads):
            # The compared users come first, in batches of their own, so that both searches are timed on the same prompts.
            for compare in (True, False):
                for batch in self._eval_set.batches(self._max_items, config.batch_users, among=compared_U == compare):
                    self.run_batch(batch, compare=compare)
                    done += len(batch)
                    if progress is not None:
                        progress(done, users)
        return compared_U

    def run_batch(self, indices: NDArray[np.int64], *, compare: bool) -> None:
        """Rank the users at `indices`; compare: by both searches on the same prompts, in alternating order, and timed."""
        histories = self._eval_set.histories
        codes = [self._codes_NL[histories[index][-self._max_items :]] for index in indices.tolist()]
        users = None if self._user_ids is None else self._user_ids[indices]
        prompts = self._model.vocabulary.prompts(codes, users)
        tokens_BT, lengths_B = (torch.as_tensor(array, device=self._model.device) for array in prompts)
        if not compare:
            session = self._start(tokens_BT, lengths_B)
            for seen in self._seen:
                self._record(indices, seen, self._constrained(session, indices, seen))
            return
        if not self._seconds:  # the first call of each search compiles or loads kernels: it is not timed
            session = self._start(tokens_BT[:1], lengths_B[:1])
            self._constrained(session, indices[:1], "kept")
            self._unconstrained(session)
        session = self._timed("prompt", lambda: self._start(tokens_BT, lengths_B))
        for unconstrained in (self._unconstrained_first, not self._unconstrained_first):
            if unconstrained:
                self._record_unconstrained(indices, self._timed("unconstrained", lambda: self._unconstrained(session)))
            else:
                self._record(indices, "kept", self._timed("constrained", lambda: self._constrained(session, indices, "kept")))
        self._record(indices, "removed", self._constrained(session, indices, "removed"))
        self._unconstrained_first = not self._unconstrained_first

    def _timed(self, name: str, search: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = search()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start
        return result

    def _constrained(self, session: DecodeSession, indices: NDArray[np.int64], seen: Seen) -> SearchResult:
        histories = self._eval_set.histories
        denied = [self._item_ids[histories[index]] for index in indices.tolist()] if seen == "removed" else None
        return self._search.run(session.step_fn, batch_size=len(indices), deny=denied)

    def _unconstrained(self, session: DecodeSession) -> NDArray[np.int64]:
        num_levels, has_others = self._codes_NL.shape[1], self._search.config.scoring == "vocabulary"

        def step_fn(codes_BK: torch.Tensor | None, parents_BK: torch.Tensor | None) -> torch.Tensor:
            logits_BKV = session.step_fn(codes_BK, parents_BK)
            return logits_BKV[..., :-1] if has_others else logits_BKV

        codes_BKL, _ = unconstrained_search(step_fn, num_levels=num_levels, num_beams=self._search.num_items)
        return codes_BKL.cpu().numpy()

    def _record(self, indices: NDArray[np.int64], seen: Seen, result: SearchResult) -> None:
        ranks_U = self.ranks.kept if seen == "kept" else self.ranks.removed
        listed_n = self._number_M[self._trie.find(np.concatenate([ids_K[:10] for ids_K in result.item_ids]))]
        np.add.at(self.ranks.shown[seen], listed_n[listed_n >= 0], 1)
        for row, index in enumerate(indices.tolist()):
            if self._on_beams is not None:
                self._on_beams(index, seen, result.item_ids[row], result.scores[row, : len(result.item_ids[row])])
            hits = np.flatnonzero(result.item_ids[row] == self._item_ids[self._eval_set.targets_U[index]])
            if len(hits):
                scores = np.asarray(result.scores[row])
                ranks_U[index] = (scores >= scores[hits[0]]).sum() - 1
        live_BK = np.asarray(result.scores) > -np.inf
        if not self._sids.contains(np.asarray(result.codes)[live_BK]).all():
            raise AssertionError("the constrained search returned a SID that is not in the index")

    def _record_unconstrained(self, indices: NDArray[np.int64], codes_BKL: NDArray[np.int64]) -> None:
        B, K, L = codes_BKL.shape
        self._invalid_U[indices] = 1 - self._sids.contains(codes_BKL.reshape(B * K, L)).reshape(B, K).mean(axis=1)
        hit_BK = (codes_BKL == self._codes_NL[self._eval_set.targets_U[indices]][:, None]).all(axis=2)
        self._unconstrained_ranks_U[indices] = np.where(hit_BK.any(axis=1), hit_BK.argmax(axis=1), MISS)

    def comparison(self, compared_U: NDArray[np.bool_]) -> UnconstrainedReport:
        """Return both searches on the users that were compared."""
        return UnconstrainedReport(
            users=int(compared_U.sum()),
            invalid=Estimate.from_values(self._invalid_U[compared_U]),
            scores=RankingMetrics.from_ranks(self._unconstrained_ranks_U[compared_U]),
            constrained=RankingMetrics.from_ranks(self.ranks.kept[compared_U]),
            prompt_s=self._seconds["prompt"],
            constrained_s=self._seconds["constrained"],
            unconstrained_s=self._seconds["unconstrained"],
        )
