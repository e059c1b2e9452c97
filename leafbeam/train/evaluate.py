"""How good a model's recommendations are: full ranking by constrained beam search, with baselines beside it.

Shapes: U users, B users of a batch, K beams, L levels, N items.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import AnyModel, DecodeSession
from leafbeam.train.baselines import neighbour_ranks, popularity_ranks
from leafbeam.train.data import Histories, InteractionLog
from leafbeam.train.metrics import MISS, Estimate, Scores
from leafbeam.train.report import Report, Unconstrained
from leafbeam.train.split import Split
from leafbeam.train.threads import torch_threads
from leafbeam.train.unconstrained import SidSet, unconstrained_search

__all__ = ["Part", "Questions", "evaluate", "recall_on"]

Part = Literal["valid", "test"]
T = TypeVar("T")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Questions:
    """What is asked of a model: after these items, which one came next?

    users: their numbers in the log. histories: what each took before, in the order of `users`. targets_U: what came next.
    """

    users: NDArray[np.int64]
    histories: Histories
    targets_U: NDArray[np.int32]

    @classmethod
    def of(cls, split: Split, part: Part, *, sample: int | None = None, seed: int = 0) -> "Questions":
        """Those of all users with a held-out item, or of a sample; the histories before the test hold the validation item."""
        if part not in ("valid", "test"):
            raise ArgumentError(f"part={part!r}: choose 'valid' or 'test'")
        users = split.test_users() if part == "test" else split.valid_users()
        if len(users) == 0:
            raise ArgumentError("the split holds out no item: no user has three interactions")
        if sample is not None and sample < len(users):
            users = np.sort(np.random.default_rng(seed).choice(users, sample, replace=False))
        histories = split.before_test() if part == "test" else split.train
        targets_U = split.test_U if part == "test" else split.valid_U
        return cls(users=users, histories=histories.of(users), targets_U=targets_U[users])

    def batches(self, max_items: int, batch_users: int) -> Iterator[NDArray[np.int64]]:
        """Places of `users`, those with histories of about one length together, so that little is padding."""
        order_U = np.argsort(np.minimum(self.histories.lengths_U, max_items), kind="stable")
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
) -> Report:
    """Rank the whole catalog for each user by constrained beam search, and see where the held-out item comes.

    The standard protocol: one question a user, the history is everything before the held-out item (for the test the
    validation item too), its last `max_items` items; every item of `trie` may be answered. An item beyond the `num_beams`
    best SIDs counts as missed. Popularity is counted in the training part.

    max_items: None takes as many as the model has room for, which is what it was trained on (`Recipe.max_items`).
    remove_seen: nothing that is in a user's history (all of it) may be answered, by the model (a deny list for each request)
    or by the baselines; an item that comes again is then missed. Published figures of SASRec and S3-Rec are with it; papers on
    generative models mostly do not say. The unconstrained search, which knows no items, keeps them.
    sample: ask that many users only, drawn by `seed`; None asks all. text_vectors_ND: a row for each of the log's items,
    for the text-nearest-neighbour baseline. unconstrained_users: how many of the users are also answered by a beam search
    without the trie, for its share of invalid SIDs and for the time of both; 0 leaves it out.
    threads: of the CPU, for the model (see `torch_threads`). progress: called with (users done, users in all).

    Raises ItemIdError where the trie lacks an item of the log, ArgumentError where trie and model differ in their levels.
    """
    begun = time.perf_counter()
    if trie.codebook_sizes != model.vocabulary.codebook_sizes:
        raise ArgumentError(
            f"the index has codebooks {trie.codebook_sizes}, the model {model.vocabulary.codebook_sizes}: "
            "build the index from the Semantic IDs that the model was trained on"
        )
    if max_items is None:
        max_items = max(1, (model.config.max_position_embeddings - 1) // trie.num_levels - 1)
    if min(num_beams, batch_users, max_items, threads) < 1:
        given = f"num_beams={num_beams}, batch_users={batch_users}, max_items={max_items}, threads={threads}"
        raise ArgumentError(f"{given}: at least 1 each")
    questions = Questions.of(split, part, sample=sample, seed=seed)
    ask = _Asking(
        model, trie, log, questions, num_beams=num_beams, scoring=scoring, max_items=max_items, remove_seen=remove_seen
    )
    users = len(questions.users)
    compared_U = np.zeros(users, np.bool_)
    compared_U[np.random.default_rng(seed).permutation(users)[:unconstrained_users]] = True
    batches = list(questions.batches(max_items, batch_users))
    # The compared users come first, in batches of their own, so that both searches are timed on the same prompts.
    compared = [batch[compared_U[batch]] for batch in batches]
    others = [batch[~compared_U[batch]] for batch in batches]
    done = 0
    with torch_threads(threads):
        for batch in [*_full(compared, batch_users), *_full(others, batch_users)]:
            ask.batch(batch, compared=bool(compared_U[batch[0]]))
            done += len(batch)
            if progress is not None:
                progress(done, users)
    last_U = questions.histories.items_E[questions.histories.indptr_U1[1:] - 1]
    targets_U, seen = questions.targets_U, questions.histories if remove_seen else None
    neighbours = None if text_vectors_ND is None else neighbour_ranks(text_vectors_ND, last_U, targets_U, seen=seen)
    return Report(
        part=part,
        users=users,
        items=trie.num_items,
        num_beams=num_beams,
        scoring=scoring,
        max_items=max_items,
        seen="removed" if remove_seen else "kept",
        trie_version=trie.version,
        model=Scores.of(ask.ranks_U),
        popularity=Scores.of(popularity_ranks(split.train, targets_U, num_items=log.num_items, seen=seen)),
        text_neighbours=None if neighbours is None else Scores.of(neighbours),
        unconstrained=ask.comparison(compared_U) if compared_U.any() else None,
        seconds=time.perf_counter() - begun,
    )


def recall_on(
    trie: Trie, log: InteractionLog, split: Split, *, max_items: int, sample: int, num_beams: int = 20, seed: int = 0
) -> Callable[[AnyModel], float]:
    """What the trainer asks to choose its best weights: Recall@10 on validation items of a sample of users."""
    questions = Questions.of(split, "valid", sample=sample, seed=seed)

    def recall(model: AnyModel) -> float:
        ask = _Asking(model, trie, log, questions, num_beams=num_beams, scoring="full", max_items=max_items)
        for batch in questions.batches(max_items, 128):
            ask.batch(batch, compared=False)
        return Scores.of(ask.ranks_U).recall_10.mean

    return recall


class _Asking:
    """Asks the questions batch by batch, and keeps the places of the right items and the time that it took."""

    def __init__(
        self,
        model: AnyModel,
        trie: Trie,
        log: InteractionLog,
        questions: Questions,
        *,
        num_beams: int,
        scoring: Literal["full", "allowed"],
        max_items: int,
        remove_seen: bool = False,
    ) -> None:
        self._model, self._questions = model.eval(), questions
        self._num_beams, self._max_items, self._remove_seen = num_beams, max_items, remove_seen
        self._item_ids = log.item_ids
        self._user_ids = log.user_ids[questions.users] if model.vocabulary.num_users else None
        self._codes_NL = trie.codes_of(log.item_ids)
        self._search = BeamSearch(trie, num_beams=num_beams, scoring=scoring)
        self._exists = SidSet(trie.codes_of(trie.item_ids), trie.codebook_sizes)
        self.ranks_U = np.full(len(questions.users), MISS, np.int64)
        self._free_ranks_U = np.full(len(questions.users), MISS, np.int64)
        self._invalid_U = np.zeros(len(questions.users))
        self._seconds: dict[str, float] = {}
        self._turns = 0

    def batch(self, places: NDArray[np.int64], *, compared: bool) -> None:
        """Answer the questions at `places`; compared: by both searches on the same prompts, in turn, with their times."""
        codes = [self._codes_NL[self._questions.histories[place][-self._max_items :]] for place in places.tolist()]
        users = None if self._user_ids is None else self._user_ids[places]
        prompts = self._model.vocabulary.prompts(codes, users)
        tokens_BT, lengths_B = (torch.as_tensor(array, device=self._model.device) for array in prompts)
        if compared and not self._seconds:  # the first call of either search compiles or loads its kernels: not its time
            once = self._model.start(tokens_BT[:1], lengths_B[:1])
            self._constrained(once, places[:1])
            self._unconstrained(once)
        if not compared:
            self._note(places, self._constrained(self._model.start(tokens_BT, lengths_B), places))
            return
        rounds = self._timed("prompt", lambda: self._model.start(tokens_BT, lengths_B))
        free_first = self._turns % 2 == 1
        self._turns += 1
        if free_first:
            self._note_free(places, self._timed("unconstrained", lambda: self._unconstrained(rounds)))
        self._note(places, self._timed("constrained", lambda: self._constrained(rounds, places)))
        if not free_first:
            self._note_free(places, self._timed("unconstrained", lambda: self._unconstrained(rounds)))

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        begun = time.perf_counter()
        done = work()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun
        return done

    def _constrained(self, rounds: DecodeSession, places: NDArray[np.int64]) -> SearchResult:
        seen = [self._item_ids[self._questions.histories[place]] for place in places.tolist()] if self._remove_seen else None
        return self._search.run(rounds.step_fn, batch_size=len(places), deny=seen)

    def _unconstrained(self, rounds: DecodeSession) -> NDArray[np.int64]:
        num_levels = self._codes_NL.shape[1]
        codes_BKL, _ = unconstrained_search(rounds.step_fn, num_levels=num_levels, num_beams=self._num_beams)
        return codes_BKL.cpu().numpy()

    def _note(self, places: NDArray[np.int64], result: SearchResult) -> None:
        for row, place in enumerate(places.tolist()):
            found = np.flatnonzero(result.item_ids[row] == self._item_ids[self._questions.targets_U[place]])
            self.ranks_U[place] = found[0] if len(found) else MISS
        live_BK = np.asarray(result.scores) > -np.inf
        if not self._exists.contains(np.asarray(result.codes)[live_BK]).all():
            raise AssertionError("the constrained search answered a SID that is not in the index")

    def _note_free(self, places: NDArray[np.int64], codes_BKL: NDArray[np.int64]) -> None:
        B, K, L = codes_BKL.shape
        self._invalid_U[places] = 1 - self._exists.contains(codes_BKL.reshape(B * K, L)).reshape(B, K).mean(axis=1)
        right_BK = (codes_BKL == self._codes_NL[self._questions.targets_U[places]][:, None]).all(axis=2)
        self._free_ranks_U[places] = np.where(right_BK.any(axis=1), right_BK.argmax(axis=1), MISS)

    def comparison(self, compared_U: NDArray[np.bool_]) -> Unconstrained:
        """Both searches on the users that both have answered."""
        return Unconstrained(
            users=int(compared_U.sum()),
            invalid=Estimate.of(self._invalid_U[compared_U]),
            scores=Scores.of(self._free_ranks_U[compared_U]),
            constrained=Scores.of(self.ranks_U[compared_U]),
            prompt_s=self._seconds["prompt"],
            constrained_s=self._seconds["constrained"],
            unconstrained_s=self._seconds["unconstrained"],
        )


def _full(batches: list[NDArray[np.int64]], batch_users: int) -> list[NDArray[np.int64]]:
    """The same places in the same order, in batches that are full again."""
    places = np.concatenate(batches) if batches else np.zeros(0, np.int64)
    return [places[first : first + batch_users] for first in range(0, len(places), batch_users)]
