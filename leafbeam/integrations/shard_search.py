"""A search over an index in shards, each of which may be on a machine of its own.

    round 0     from the first codes, which the driver knows of all shards
    round 1...  each beam's first code is in one shard, which gets its row of logits; every shard returns its best
                `num_beams` continuations of each request, and the best `num_beams` of all of them are the round's beams
    at the end  the leaves that were found go to their shards and become items

The leaves of a shard are numbered from its own offset, so that the beams are those of one index of all items: the same ranges,
scores and order. The model runs on the driver alone.

Shapes: S shards, B requests, K beams, F first codes of all shards, n beams of a round, i items found, L levels, V codes.
"""

import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.beam_search import BeamSearch, Collect, ItemSearch, Requests, Widths
from leafbeam.decode.config import SearchConfig, beams_of_search, check_length, first_width
from leafbeam.decode.constraint import TrieConstraint
from leafbeam.decode.head_constraint import Head
from leafbeam.decode.model_calls import MoreFn, StepFn
from leafbeam.decode.results import DenyLists, SearchResult, ranked_items, ranks_of
from leafbeam.errors import ArgumentError, ForeignFilterError, LogitsError, ShardError, check_whole, short_repr
from leafbeam.index import ItemColumn
from leafbeam.index.items import ItemIds
from leafbeam.integrations.shard import Shard, ShardBatch, ShardBeams, ShardRoots, ShardRows
from leafbeam.integrations.shards import BoostHandle, FilterHandle, ShardedIndex
from leafbeam.ops.backend import BoundIndex
from leafbeam.ops.constrain import Beams, Boosts, HostBeams, Scoring

Element = TypeVar("Element", bound=np.generic)
Handle = FilterHandle | BoostHandle


class _Session:
    """One search of the shards.

    Args:
        index: The index.
        name: The name under which the shards know the search.
        roots: The first codes and leaves that the requests may reach in each shard.
    """

    def __init__(self, index: ShardedIndex, name: str, roots: Sequence[ShardRoots]) -> None:
        self._index, self._name = index, name
        trie = index.first_codes.version.segments[0].trie
        is_legal_BF = np.concatenate([root.is_legal_BF for root in roots], 1)
        self.filters = [None if is_legal_F.all() else trie.filter(is_legal_F) for is_legal_F in is_legal_BF]
        num_leaves_B = np.sum([root.num_leaves_B for root in roots], 0)
        self.shares: list[float] = (np.maximum(1, num_leaves_B) / index.num_leaves).tolist()
        self.boosts: list[ItemColumn | None] | None = None
        maxima = [root.maxima_BF for root in roots if root.maxima_BF is not None]
        if maxima:
            weights_SB = np.stack([root.weight_B for root in roots])
            if (weights_SB != weights_SB[0]).any():
                raise ArgumentError("the parts of a boost have different weights: expected the same in all shards")
            columns = zip(np.concatenate(maxima, 1), weights_SB[0].tolist(), strict=True)
            self.boosts = [ItemColumn.of(trie, maxima_F).scaled(weight) if weight else None for maxima_F, weight in columns]

    @classmethod
    @contextmanager
    def begin(cls, index: ShardedIndex, batch: ShardBatch) -> Generator["_Session"]:
        """Begin a search in all shards, and end it after the block."""
        name = uuid.uuid4().hex
        try:
            yield cls(index, name, index.begin(name, batch))
        finally:
            index.end(name)

    def after_first_codes(self, beams: HostBeams) -> HostBeams:
        """Return beams over the first codes as beams over the leaves of all shards."""
        live_BK, leaves_F1 = beams.scores > -np.inf, self._index.leaves_F1
        lo, hi = (np.where(live_BK, leaves_F1[array], 0) for array in (beams.lo, beams.hi))
        return replace(beams, lo=lo, hi=hi)

    def step(
        self, level: int, beams: HostBeams, logits_BKV: NDArray[np.float32], num_beams: int, scoring: Scoring
    ) -> HostBeams:
        """Run a round in the shards that have beams, and return the best beams of all."""
        request_n, beam_n = np.nonzero(beams.scores > -np.inf)
        lo_n, hi_n = beams.lo[0, request_n, beam_n], beams.hi[0, request_n, beam_n]
        arguments, rows_of = dict[int, tuple[object, ...]](), dict[int, NDArray[np.int64]]()
        for shard, rows in self._by_shard(lo_n):
            offset, request, beam = self._index.offsets_S[shard], request_n[rows], beam_n[rows]
            logits_nV = logits_BKV[request, beam]
            _check_finite(logits_nV, request, beam, level)
            sent = ShardRows(
                request_n=request,
                lo_n=lo_n[rows] - offset,
                hi_n=hi_n[rows] - offset,
                scores_n=beams.scores[request, beam],
                logits_nV=logits_nV,
            )
            arguments[shard], rows_of[shard] = (self._name, level, sent, num_beams, scoring), rows
        answers = self._index.call(Shard.step, arguments)
        parents = {shard: beam_n[rows_of[shard][best.row_m]] for shard, best in answers.items()}
        return _best(answers, parents, self._index.offsets_S, (len(beams.scores), num_beams))

    def collect(
        self,
        ranges: tuple[NDArray[np.int64], NDArray[np.int64]],
        scores_BK: NDArray[np.float32],
        num_valid_B: NDArray[np.int64],
        num_items: int | Sequence[int],
        rounds_saved: int = 0,
        boosts: Boosts = None,
    ) -> SearchResult:
        """Return the items of the leaves that were found, as `collect_items` does for one index."""
        num_items_B = np.full(len(scores_BK), num_items, np.int64)
        request_n, slot_n = np.nonzero(np.arange(scores_BK.shape[1]) < num_valid_B[:, None])
        leaf_n, max_items = ranges[0][0, request_n, slot_n], int(num_items_B.max())
        arguments, rows_of = dict[int, tuple[object, ...]](), list[NDArray[np.int64]]()
        for shard, rows in self._by_shard(leaf_n):
            leaves, scores = leaf_n[rows] - self._index.offsets_S[shard], scores_BK[request_n[rows], slot_n[rows]]
            arguments[shard] = self._name, request_n[rows], leaves, scores, max_items
            rows_of.append(rows)
        answers = list(self._index.call(Shard.items, arguments).values()) if arguments else []
        codes_nL = np.zeros((len(leaf_n), self._index.num_levels), np.int64)
        for rows, part in zip(rows_of, answers, strict=True):
            codes_nL[rows] = part.codes_nL
        row_i = _joined([np.repeat(rows, part.count_n) for rows, part in zip(rows_of, answers, strict=True)], np.int64)
        ids_i = _joined([part.item_ids_i for part in answers], np.int64)
        scores_i = _joined([part.scores_i for part in answers], np.float32)
        boosts_i = (
            None if boosts is None else _joined([part.boosts_i for part in answers if part.boosts_i is not None], np.float32)
        )
        # Best first; items of equal scores are in the order of their leaves.
        order_i = np.lexsort((row_i,) if boosts_i is None else (row_i, -scores_i, request_n[row_i]))
        request_i = request_n[row_i[order_i]]
        rank_i = ranks_of(request_i)
        kept_i = rank_i < num_items_B[request_i]
        order_i = order_i[kept_i]
        return ranked_items(
            request_i[kept_i],
            rank_i[kept_i],
            num_items_B,
            item_ids_n=ids_i[order_i],
            codes_nL=codes_nL[row_i[order_i]],
            scores_n=scores_i[order_i],
            boosts_n=None if boosts_i is None else boosts_i[order_i],
            rounds_saved=rounds_saved,
        )

    def _by_shard(self, leaf_n: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the number of each shard that has some of these leaves, and their positions."""
        shard_n = np.searchsorted(self._index.offsets_S, leaf_n, side="right") - 1
        return [(int(shard), np.flatnonzero(shard_n == shard)) for shard in np.unique(shard_n)]


class ShardedSearch:
    """`BeamSearch` over an index in shards, with the same answers and the same proofs.

    Args:
        index: The index.
        num_beams: As for `BeamSearch`.
        scoring: As for `BeamSearch`.
        num_items: As for `BeamSearch`.
        max_rows: As for `BeamSearch`.
        num_retries: The number of times that a search may begin again from the prompts, once a shard that did not
            answer answers again.

    Raises:
        ArgumentError: As for `BeamSearch`.

    Examples:
        >>> search = ShardedSearch(index, num_items=10)
        >>> result = search.run(step_fn, batch_size=2, filters=[fresh, None])
        >>> result.item_ids[0], result.is_proved[0]
    """

    def __init__(
        self,
        index: ShardedIndex,
        num_beams: int | Sequence[int] | None = None,
        scoring: Scoring = "full",
        *,
        num_items: int | None = None,
        max_rows: int = 512,
        num_retries: int = 0,
    ) -> None:
        check_whole(0, num_retries=num_retries)
        self.index, self.num_retries = index, num_retries
        beams = beams_of_search(index.num_levels, num_beams, num_items, max_rows)
        self._num_items, self._max_rows = beams[-1], max_rows if num_beams is None else None
        self.config = SearchConfig(
            num_beams=tuple(map(min, beams, index.num_nodes)),
            code_sizes=index.codebook_sizes,
            scoring=scoring,
            end_code=index.end_code,
            num_nodes=index.num_nodes,
        )

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: FilterHandle | Sequence[FilterHandle | None] | None = None,
        deny: DenyLists = None,
        *,
        boosts: BoostHandle | Sequence[BoostHandle | None] | None = None,
        more_fn: MoreFn | None = None,
        num_items: int | Sequence[int] | None = None,
        widths: Widths | None = None,
    ) -> SearchResult:
        """Decode a batch of requests as `BeamSearch.run` does.

        Args:
            step_fn: As for `BeamSearch.run`. Logits on a device are copied to the host in every round.
            batch_size: The number of requests, B.
            filters: A filter for each request, or one for all; None allows all items.
            deny: The denied item ids of each request.
            boosts: A boost for each request, or one for all.
            more_fn: As for `BeamSearch.run`.
            num_items: As for `BeamSearch.run`.
            widths: As for `BeamSearch.run`.

        Raises:
            ShardError: If a shard does not answer and there is no retry left. There is no answer then, not even of the other
                shards.
            LeafbeamError: As for `BeamSearch.run`.
        """
        batch = ShardBatch(
            filters=self._names("filters", filters, FilterHandle, batch_size),
            boosts=self._names("boosts", boosts, BoostHandle, batch_size),
            deny=_deny_lists(deny, batch_size),
        )
        for attempt in range(1 + self.num_retries):
            try:
                with _Session.begin(self.index, batch) as session:
                    return self._run(session, step_fn, batch_size, more_fn=more_fn, num_items=num_items, widths=widths)
            except ShardError as error:
                if attempt == self.num_retries or not error.may_pass or error.shard is None:
                    raise
                self.index.wait(error.shard)
        raise AssertionError

    def _run(
        self,
        session: _Session,
        step_fn: StepFn,
        batch_size: int,
        *,
        more_fn: MoreFn | None,
        num_items: int | Sequence[int] | None,
        widths: Widths | None,
    ) -> SearchResult:
        config = self.config
        if widths is None and self._max_rows is not None:
            guesses = [first_width(share, self._num_items, config.scoring) for share in session.shares]
            widths = [(guess,) * (config.num_rounds - 1) for guess in guesses]
        search = _SessionSearch(self.index, config, session, num_items=self._num_items, max_rows=self._max_rows)
        return search.run(
            step_fn,
            batch_size,
            session.filters,
            boosts=session.boosts,
            more_fn=more_fn,
            num_items=num_items,
            widths=widths,
        )

    def _names(
        self, name: str, given: Handle | Sequence[Handle | None] | None, kind: type[Handle], batch_size: int
    ) -> tuple[str | None, ...]:
        """Return the names of the requests' filters or boosts."""
        handles = given if isinstance(given, Sequence) else [given] * batch_size
        check_length(name, handles, batch_size)
        for number, handle in enumerate(handles):
            if handle is not None and not isinstance(handle, kind):
                maker = "filter" if kind is FilterHandle else "boost"
                raise ArgumentError(
                    f"{name}[{number}] is {short_repr(handle)}: expected a {kind.__name__}: make it with {maker}(...) of the "
                    "ShardedIndex"
                )
            if handle is not None and handle.index is not self.index:
                raise ForeignFilterError(f"{name}[{number}] belongs to another ShardedIndex: make it again with this one")
        return tuple(None if handle is None else handle.name for handle in handles)


class _SessionSearch(BeamSearch):
    """A beam search whose rounds after the first run in the shards; its index has the first codes alone."""

    def __init__(
        self, index: ShardedIndex, config: SearchConfig, session: _Session, *, num_items: int, max_rows: int | None
    ) -> None:
        proves = max_rows is not None
        ItemSearch.__init__(self, index.first_codes, config, "cpu", "cpu", num_items=num_items, proves=proves)
        self._session, self._max_rows = session, max_rows or 0
        self._num_shared = index.num_nodes[-1] if index.has_shared_sids else 0

    def _constraint(
        self,
        head: Head | None,
        columns: Boosts,
        bound: BoundIndex,
        requests: Requests,
        hi_SB: NDArray[np.int64],
        config: SearchConfig,
    ) -> TrieConstraint:
        first = super()._constraint(head, columns, bound, requests, hi_SB, config)
        return TrieConstraint(config, hi_SB, partial(self._launch, first), None, first.boosts)

    def _launch(
        self, first: TrieConstraint, number: int, beams: HostBeams, logits_BKV: NDArray[np.float32], num_beams: int
    ) -> tuple[HostBeams, None]:
        if number == 0:
            return self._session.after_first_codes(first.step(0, beams, logits_BKV)), None
        return self._session.step(number, beams, logits_BKV, num_beams, self.config.scoring), None

    def _collector(self, requests: Requests) -> Collect:
        return self._session.collect


def _best(
    answers: Mapping[int, ShardBeams],
    parents: Mapping[int, NDArray[np.int64]],
    offsets_S: NDArray[np.int64],
    shape: tuple[int, int],
) -> HostBeams:
    """Return the best beams of each request: by score, then by the smaller parent, then by the smaller code."""
    beams_of_shards = answers.items()
    request_m = _joined([beams.request_m for _, beams in beams_of_shards], np.int64)
    parent_m = _joined([parents[shard] for shard, _ in beams_of_shards], np.int64)
    code_m = _joined([beams.code_m for _, beams in beams_of_shards], np.int64)
    scores_m = _joined([beams.scores_m for _, beams in beams_of_shards], np.float32)
    lo_m = _joined([beams.lo_m + offsets_S[shard] for shard, beams in beams_of_shards], np.int64)
    hi_m = _joined([beams.hi_m + offsets_S[shard] for shard, beams in beams_of_shards], np.int64)
    order_m = np.lexsort((code_m, parent_m, -scores_m, request_m))
    rank_m = ranks_of(request_m[order_m])
    order_m, rank_m = order_m[rank_m < shape[1]], rank_m[rank_m < shape[1]]
    slots = request_m[order_m], rank_m
    scores = np.full(shape, -np.inf, np.float32)
    parent, code, lo, hi = (np.zeros(shape, np.int64) for _ in range(4))
    for array, values_m in ((scores, scores_m), (parent, parent_m), (code, code_m), (lo, lo_m), (hi, hi_m)):
        array[slots] = values_m[order_m]
    num_valid_B = np.bincount(slots[0], minlength=shape[0]).astype(np.int64)
    return Beams(scores=scores, parent=parent, code=code, lo=lo[None], hi=hi[None], num_valid=num_valid_B)


def _joined(parts: Sequence[NDArray[Element]], dtype: type[Element]) -> NDArray[Element]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _check_finite(logits_nV: NDArray[np.float32], request_n: NDArray[np.int64], beam_n: NDArray[np.int64], level: int) -> None:
    """Raise LogitsError for a row with NaN or +inf."""
    largest_n = logits_nV.max(1)
    bad = np.flatnonzero(np.isnan(largest_n) | (largest_n == np.inf))
    if bad.size:
        raise LogitsError.not_finite(int(request_n[bad[0]]), int(beam_n[bad[0]]), f"at level {level}")


def _deny_lists(deny: DenyLists, batch_size: int) -> tuple[ItemIds | None, ...]:
    check_length("deny", deny, batch_size)
    return (None,) * batch_size if deny is None else tuple(deny)
