"""The cold-start study: methods of recommending new items, on the same users.

Shapes: U users, N items, C cold items, L levels, B users of a batch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.studies.cold_split import ColdReport, ColdSplit
from benchmarks.studies.exact_scoring import ExactScoring, SearchChoice, choose_search
from benchmarks.studies.retriever import DenseRecipe, DenseRetriever, fit_dense
from benchmarks.studies.text_teacher import TeacherRecipe, TextTeacher, with_pseudo_histories
from leafbeam.decode import BeamSearch, StepFn
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import AnyModel, new_model
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.retrieve import Fusion as Fused
from leafbeam.retrieve import ItemMemory, features
from leafbeam.semid import EmbeddingConfig, QuantiserConfig, SidFit, fit_sids, text_columns, text_vectors
from leafbeam.train import Budget, InteractionLog, RankingMetrics, Recipe, Trainer
from leafbeam.train.baselines import unconstrained_search
from leafbeam.train.fusion import fit_memory
from leafbeam.train.metrics import MISS
from leafbeam.train.run import embed_codes
from leafbeam.train.teacher import MemoryTeacher

__all__ = ["METHODS", "ColdResult", "ColdStudy", "Fusion", "fuse", "ranks_of", "study_cold_start"]

METHODS: dict[str, str] = {
    "unconstrained": "unconstrained",
    "catalog": "trie of the whole catalog",
    "random": "random in the cold set",
    "trie_full": "trie of the cold set, full",
    "trie_allowed": "trie of the cold set, allowed",
    "exact_full": "every cold item scored, full",
    "exact_allowed": "every cold item scored, allowed",
    "text": "nearest by text, last item",
    "text_faded": "nearest by text, faded history",
    "dense": "dense retriever",
    "hybrid": "hybrid",
    "memory": "item memory",
    "fused": "item memory and the model's beams",
}
"""The methods by their names in the rows, with their titles."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """The weight of each standardised score in the hybrid.

    dense: of the retrievers, averaged. model: of the exact scoring "allowed". last, last_new: of the text of the last item,
    where that is a known and where it is a new item. faded: of the text of a history in which older items fade. The defaults
    were chosen on validation items (`cold_split(part="valid")`) of three data sets at two shares:
    docs/engineering-log/trials.md.
    """

    dense: float = 1.0
    model: float = 0.1
    last: float = 0.025
    last_new: float = 0.3
    faded: float = 0.05

    def __post_init__(self) -> None:
        weights = (self.dense, self.model, self.last, self.last_new, self.faded)
        if min(weights) < 0 or sum(weights) == 0:
            raise ArgumentError(f"{self}: weights are at least 0, and not all 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStudy:
    """The settings of one study.

    recipe: of the model over Semantic IDs. embedding, quantiser: of its SIDs; co-occurrence comes from training alone and is
    imputed for cold items. teacher: what the model learns from the first retriever; None: it learns from warm items alone.
    dense: of the retriever over text. retrievers: how many, with different seeds, are averaged for the hybrid; the first is a
    method too. text_dims: of the text vectors of retrievers and neighbours. num_beams: of every beam search (20 in the paper).
    """

    recipe: Recipe = field(default_factory=lambda: Recipe(budget=Budget(epochs=8)))
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    quantiser: QuantiserConfig = field(default_factory=QuantiserConfig)
    teacher: TeacherRecipe | None = None
    dense: DenseRecipe = field(default_factory=DenseRecipe)
    retrievers: int = 3
    fusion: Fusion = field(default_factory=Fusion)
    text_dims: int = 256
    num_beams: int = 20
    batch_users: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.retrievers < 1:
            raise ArgumentError(f"retrievers={self.retrievers}: at least 1")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ColdResult:
    """The rank of each user's target by method, MISS where it is not listed.

    ranks: seen items are excluded. ranks_seen_kept: they are not (the paper does not say). scores: (U, C) of the parts of the
    hybrid. another_cold_U: users with another cold item in their history; last_cold_U: those with a cold last item.
    seconds: by step. parameters: of the model over Semantic IDs.
    """

    report: ColdReport
    ranks: dict[str, NDArray[np.int64]]
    ranks_seen_kept: dict[str, NDArray[np.int64]]
    scores: dict[str, NDArray[np.float32]]
    another_cold_U: NDArray[np.bool_]
    last_cold_U: NDArray[np.bool_]
    choice: SearchChoice
    seconds: dict[str, float]
    parameters: int

    def table(self) -> dict[str, dict[str, RankingMetrics]]:
        """Metrics of each method over all users, and over those without another cold item in their history."""
        alone_U = ~self.another_cold_U
        return {
            name: {"all": RankingMetrics.from_ranks(ranks_U)}
            | ({"alone": RankingMetrics.from_ranks(ranks_U[alone_U])} if alone_U.any() else {})
            for name, ranks_U in self.ranks.items()
        }


def fuse(scores: dict[str, NDArray[np.float32]], last_cold_U: NDArray[np.bool_], fusion: Fusion) -> NDArray[np.float32]:
    """The weighted sum (U, C) of a user's scores, each standardised over the cold items (0 where all are equal)."""
    last_U1 = np.where(last_cold_U, fusion.last_new, fusion.last)[:, None]
    parts = {"dense_averaged": fusion.dense, "exact_allowed": fusion.model, "text": last_U1, "text_faded": fusion.faded}
    total = np.zeros(scores["text"].shape, np.float32)
    for name, weight in parts.items():
        total += (weight * _standardised(scores[name])).astype(np.float32)
    return total


def _standardised(values_UC: NDArray[np.float32]) -> NDArray[np.float32]:
    spread_U1 = values_UC.std(axis=1, keepdims=True)
    return (values_UC - values_UC.mean(axis=1, keepdims=True)) / np.where(spread_U1 > 0, spread_U1, 1)


def ranks_of(scores_UC: NDArray[np.floating], target_U: NDArray[np.integer]) -> NDArray[np.int64]:
    """The rank of each user's target when items are sorted by score, highest first, then by row."""
    target_U1 = scores_UC[np.arange(len(scores_UC)), target_U][:, None]
    earlier_UC = np.arange(scores_UC.shape[1]) < target_U[:, None]
    return ((scores_UC > target_U1) | ((scores_UC == target_U1) & earlier_UC)).sum(axis=1)


def study_cold_start(
    log: InteractionLog, split: ColdSplit, study: ColdStudy | None = None, *, progress: Progress | None = None
) -> ColdResult:
    """Train on a cold split, and rank its test users by every method. One thread, deterministic under the seed.

    Semantic IDs, model and retrievers read `split.train` and the items' text, nothing else; with a teacher, the model also
    learns which new items that draws. Raises DataError where the items have no text.
    """
    study = study or ColdStudy()
    seconds: dict[str, float] = {}
    start = time.perf_counter()

    def record_time(name: str) -> None:
        nonlocal start
        seconds[name] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()

    columns = study.embedding.text_columns or text_columns(log.items)
    text_ND = text_vectors(log.items, columns, dims=study.text_dims, seed=study.seed)
    record_time("text")
    fitted = fit_sids(
        log.items, split.train, embedding=study.embedding, quantiser=study.quantiser, seed=study.seed, progress=progress
    )
    record_time("sids")
    cold, target_U, histories = split.cold_items, split.target_indices_U, split.eval_set.histories
    retrievers = [_retriever(split, text_ND, study, number, progress) for number in range(study.retrievers)]
    dense = [retriever.scores(histories, cold, max_items=study.dense.max_items) for retriever in retrievers]
    record_time("dense")
    model = _trained(log, split, fitted, study, retrievers[0], progress)
    record_time("model")
    last_U = histories.items_E[histories.indptr_U1[1:] - 1]
    last_cold_U = np.isin(last_U, cold)
    scores = {
        "dense": dense[0],
        "dense_averaged": np.mean(dense, axis=0),
        "text": text_ND[last_U] @ text_ND[cold].T,
        "text_faded": _faded(text_ND, split, study.dense.max_items),
    }
    index = Trie.build(fitted.table.codes, codebook_sizes=fitted.table.codebook_sizes, item_ids=log.item_ids)
    evaluator = _Evaluator(model, index, log, split, study)
    with torch_threads(study.recipe.threads):
        for done in evaluator.run():
            if progress is not None:
                progress("evaluating", done)
    record_time("evaluating")
    scores |= {f"exact_{scoring}": scores_UC for scoring, scores_UC in evaluator.exact.items()}
    scores |= _memory_scores(log, split, columns, scores["exact_full"], study.num_beams)
    record_time("memory")
    seen_UC = split.seen_UC()

    def ranked(scores_UC: NDArray[np.floating], *, seen_kept: bool = False) -> NDArray[np.int64]:
        return ranks_of(scores_UC if seen_kept else np.where(seen_UC, -np.inf, scores_UC), target_U)

    ranking = {name: scores_UC for name, scores_UC in scores.items() if name in METHODS}
    ranking["hybrid"] = fuse(scores, last_cold_U, study.fusion)
    random_UC = np.random.default_rng([study.seed, 11]).random(seen_UC.shape)
    ranks = evaluator.ranks | {
        "random": ranked(random_UC),
        **{name: ranked(scores_UC) for name, scores_UC in ranking.items()},
    }
    return ColdResult(
        report=split.report,
        ranks={name: ranks[name] for name in METHODS},
        ranks_seen_kept=evaluator.ranks_seen_kept
        | {name: ranked(scores_UC, seen_kept=True) for name, scores_UC in ranking.items()},
        scores=scores,
        another_cold_U=split.another_cold_U,
        last_cold_U=last_cold_U,
        choice=evaluator.choice,
        seconds=seconds,
        parameters=sum(weight.numel() for weight in model.parameters()),
    )


def _retriever(
    split: ColdSplit, text_ND: NDArray[np.float32], study: ColdStudy, number: int, progress: Progress | None
) -> DenseRetriever:
    """A retriever trained with the recipe's seed, offset by 1000 * `number`."""
    recipe = replace(study.dense, seed=study.dense.seed + 1000 * number)  # studies of seeds 0, 1, 2 share none
    what = f"training retriever {number + 1} of {study.retrievers}"
    return fit_dense(
        split.train,
        text_ND,
        recipe,
        progress=None if progress is None else lambda done, _: progress(what, done / recipe.epochs),
    )


def _trained(
    log: InteractionLog,
    split: ColdSplit,
    fitted: SidFit,
    study: ColdStudy,
    retriever: DenseRetriever,
    progress: Progress | None,
) -> AnyModel:
    """The model over Semantic IDs, trained on warm items, and with a teacher on the new ones that it draws."""
    recipe = study.recipe
    vocabulary = recipe.vocabulary(fitted.table.codebook_sizes)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(study.seed))
    embed_codes(model, fitted.code_vectors, seed=study.seed)
    histories, teacher = split.train, None
    if recipe.teacher_weight:  # without texts: what the model knows of new items' texts comes from the other teacher alone
        memory = ItemMemory.fit(log.item_ids, split.train.indptr_U1, split.train.items_E)
        teacher = MemoryTeacher(memory, split.train, num_targets=recipe.teacher_items)
    if study.teacher is not None:
        teacher = TextTeacher(retriever, split.cold_items, teacher, study.teacher)
        histories = with_pseudo_histories(split.train, teacher, study.teacher, seed=study.seed)
    users = log.user_ids if recipe.num_users else None
    trainer = Trainer(model, histories, fitted.table.codes, recipe, user_ids=users)
    trainer.teacher = teacher
    trainer.run(progress=None if progress is None else lambda stats: progress("training the model", stats.share))
    return model


def _faded(text_ND: NDArray[np.float32], split: ColdSplit, max_items: int, fading: float = 0.8) -> NDArray[np.float32]:
    """The cosine of each cold item's text to a sum over the history in which an item counts 0.8 of the next one."""
    histories = split.eval_set.histories
    ages_E = histories.indptr_U1[1:][histories.users_E] - 1 - np.arange(len(histories.items_E))
    weights_E = np.where(ages_E < max_items, fading ** ages_E.astype(np.float64), 0.0).astype(np.float32)
    sums_UD = np.add.reduceat(text_ND[histories.items_E] * weights_E[:, None], histories.indptr_U1[:-1], axis=0)
    return sums_UD @ text_ND[split.cold_items].T


def _memory_scores(
    log: InteractionLog, split: ColdSplit, columns: Sequence[str], log_probs_UC: NDArray[np.float32], num_beams: int
) -> dict[str, NDArray[np.float32]]:
    """The item memory's scores (U, C), and those fused by the default weights with the `num_beams` likeliest items."""
    memory, cold, histories = fit_memory(log, split.train, columns), split.cold_items, split.eval_set.histories
    allowed_N = np.isin(np.arange(log.num_items), cold)
    alone_UC, fused_UC = np.empty_like(log_probs_UC), np.empty_like(log_probs_UC)
    for user, log_probs_C in enumerate(log_probs_UC):
        history_n = histories[user].astype(np.int64)
        parts = memory.scores(memory.newest(history_n), allowed_N)
        best_k = np.argsort(-log_probs_C, kind="stable")[:num_beams]
        found = features(parts, memory.beams(log.item_ids[cold[best_k]], log_probs_C[best_k]), history_n)
        alone_UC[user], fused_UC[user] = memory.total(parts)[cold], Fused().scores(*found)[cold]
    return {"memory": alone_UC, "fused": fused_UC}


class _Evaluator:
    """Four beam searches and two exact scorings by the model over Semantic IDs, on the same prompts."""

    def __init__(self, model: AnyModel, index: Trie, log: InteractionLog, split: ColdSplit, study: ColdStudy) -> None:
        self._model, self._log, self._split, self._study = model.eval(), log, split, study
        self._codes_NL = index.codes_of(log.item_ids)
        cold_ids = log.item_ids[split.cold_items]
        self._cold = index.filter(item_ids=cold_ids)
        self._searches = {scoring: BeamSearch(index, study.num_beams, scoring) for scoring in ("full", "allowed")}
        self._exact = {scoring: ExactScoring(index, cold_ids, scoring) for scoring in ("full", "allowed")}
        self.choice = choose_search(self._exact["full"], study.num_beams)
        users = len(split.eval_set.users)
        self.exact = {scoring: np.empty((users, len(cold_ids)), np.float32) for scoring in self._exact}
        by_beams = ("unconstrained", "catalog", "trie_full", "trie_allowed")
        self.ranks = {name: np.full(users, MISS, np.int64) for name in by_beams}
        self.ranks_seen_kept = {"trie_full": np.full(users, MISS, np.int64)}

    def run(self) -> Iterator[float]:
        """Evaluate batch by batch; yields the share that is done."""
        eval_set, max_items = self._split.eval_set, self._study.recipe.max_items
        batches = list(eval_set.batches(max_items, self._study.batch_users))
        for number, indices in enumerate(batches):
            self._batch(indices, [eval_set.histories[index] for index in indices.tolist()], max_items)
            yield (number + 1) / len(batches)

    def _batch(self, indices: NDArray[np.int64], histories: list[NDArray[np.int32]], max_items: int) -> None:
        users = self._log.user_ids[self._split.eval_set.users[indices]] if self._model.vocabulary.num_users else None
        prompts = self._model.vocabulary.prompts([self._codes_NL[items[-max_items:]] for items in histories], users)
        session = self._model.start(*(torch.as_tensor(array) for array in prompts))
        size, item_ids = len(indices), self._log.item_ids
        targets = self._split.eval_set.targets_U[indices]
        seen = [item_ids[items] for items in histories]
        step_fn: _Recording | _Replay = _Recording(session.step_fn)  # both scorings read the same prefixes
        for scoring, exact in self._exact.items():
            self.exact[scoring][indices] = exact.run(step_fn, size)
            step_fn = _Replay(step_fn.results)
        for scoring, search in self._searches.items():
            found = search.run(session.step_fn, size, filters=self._cold, deny=seen)
            self.ranks[f"trie_{scoring}"][indices] = _ranks_in(found.item_ids, item_ids[targets])
        full = self._searches["full"]
        found = full.run(session.step_fn, size, filters=self._cold)
        self.ranks_seen_kept["trie_full"][indices] = _ranks_in(found.item_ids, item_ids[targets])
        found = full.run(session.step_fn, size, deny=seen)
        self.ranks["catalog"][indices] = _ranks_in(found.item_ids, item_ids[targets])
        codes_BKL, _ = unconstrained_search(
            session.step_fn, num_levels=self._codes_NL.shape[1], num_beams=self._study.num_beams
        )
        hit_BK = (codes_BKL.numpy() == self._codes_NL[targets][:, None]).all(axis=2)
        self.ranks["unconstrained"][indices] = np.where(hit_BK.any(axis=1), hit_BK.argmax(axis=1), MISS)


class _Recording:
    """A step function that records its results."""

    def __init__(self, step_fn: StepFn) -> None:
        self._step_fn = step_fn
        self.results: list[Any] = []

    def __call__(self, codes: Any, parents: Any) -> Any:
        self.results.append(self._step_fn(codes, parents))
        return self.results[-1]


class _Replay:
    """Replays recorded results in order."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results
        self._next = iter(results)

    def __call__(self, codes: Any, parents: Any) -> Any:
        return next(self._next)


def _ranks_in(lists: list[NDArray[np.generic]], targets: NDArray[np.generic]) -> NDArray[np.int64]:
    """The rank of each target in its list, MISS where it is not listed."""
    hits = [np.flatnonzero(items == target) for items, target in zip(lists, targets, strict=True)]
    return np.array([hit[0] if len(hit) else MISS for hit in hits], np.int64)
