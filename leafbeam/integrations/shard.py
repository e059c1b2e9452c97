"""One shard of an index: what an actor holds, and what a search asks of it.

Shapes: B requests, F first codes of the shard, n beams of a call, m beams and i items of its answer, V codes, L levels.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.boosts import check_boosts
from leafbeam.decode.config import end_code_of
from leafbeam.decode.results import check_batch, collect_items, root_ranges
from leafbeam.errors import ArgumentError, ShardError, short_repr
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.index.items import ItemIds
from leafbeam.ops.backend import IndexBindings
from leafbeam.ops.constrain import Beams, Boosts, Scoring

MakeFilter = Callable[[Trie], Filter]
MakeBoost = Callable[[Trie], ItemColumn]
Number = TypeVar("Number", bound=np.generic)
_MAX_SEARCHES = 1024  # of drivers that ended within a search


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardSummary:
    """The numbers and the first codes of a shard, which a search needs. leaves_F: the first leaf below each first code."""

    version: str
    codebook_sizes: tuple[int, ...]
    end_code: int | None
    num_nodes: tuple[int, ...]
    num_items: int
    num_leaves: int
    has_shared_sids: bool
    codes_F: NDArray[np.int64]
    leaves_F: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardBatch:
    """The requests of a search: for each the name of its filter and of its boost, and its denied item ids."""

    filters: tuple[str | None, ...]
    boosts: tuple[str | None, ...]
    deny: tuple[ItemIds | None, ...]

    @property
    def names(self) -> set[str]:
        """Return the names of all filters and boosts."""
        return {name for name in (*self.filters, *self.boosts) if name is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardRoots:
    """The first codes and leaves that each request may reach in a shard.

    is_legal_BF: whether an allowed item has the first code. num_leaves_B: the number of allowed leaves.
    maxima_BF: the largest number of the request's boost below each first code, not weighted; None without boosts.
    weight_B: the weight of the boost, 0 for a request without one.
    """

    is_legal_BF: NDArray[np.bool_]
    num_leaves_B: NDArray[np.int64]
    maxima_BF: NDArray[np.float32] | None
    weight_B: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardRows:
    """Beams whose first code is in a shard, by request and then by beam, with their logits."""

    request_n: NDArray[np.int64]
    lo_n: NDArray[np.int64]
    hi_n: NDArray[np.int64]
    scores_n: NDArray[np.float32]
    logits_nV: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardBeams:
    """The best beams of each request after a round. row_m: the position in `ShardRows` of the beam that was extended."""

    request_m: NDArray[np.int64]
    row_m: NDArray[np.int64]
    code_m: NDArray[np.int64]
    lo_m: NDArray[np.int64]
    hi_m: NDArray[np.int64]
    scores_m: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardItems:
    """The allowed items of n leaves, count_n of each, best first."""

    count_n: NDArray[np.int64]
    codes_nL: NDArray[np.int64]
    item_ids_i: NDArray[np.generic]
    scores_i: NDArray[np.float32]
    boosts_i: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    requests: Sequence[Filter]
    boosts: Boosts
    filters: object  # as the backend reads them


class Shard:
    """An index of a range of first codes, with the filters, the boosts and the searches that use it.

    Args:
        path: The file of the index.
        verify: As for `Trie.load`.
    """

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        self.trie = Trie.load(path, verify=verify)
        self._version = Version.of(self.trie)
        self._bound = IndexBindings(self._version).on("cpu")
        self._parts: dict[str, Filter | ItemColumn] = {}  # of filters and boosts, by name
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        everything = check_batch(self._version, 1, None, None)
        _, self._codes_F, self._leaves_F = self._first_codes(everything, self._bind(everything, None))

    def warm_up(self) -> None:
        """Compile or load the code of a search, so that the first one does not wait for it."""
        batch = ShardBatch(filters=(None,), boosts=(None,), deny=(None,))
        zero = np.zeros(1, np.int64)
        for scoring in ("full", "allowed"):
            self.begin("", self.trie.version, batch)
            lo, hi = zero, zero + self.trie.num_leaves
            for level, size in enumerate(self._version.codebook_sizes):
                logits = np.zeros((1, size), np.float32)
                rows = ShardRows(request_n=zero, lo_n=lo, hi_n=hi, scores_n=np.zeros(1, np.float32), logits_nV=logits)
                best = self.step("", level, rows, 1, scoring)
                lo, hi = best.lo_m, best.hi_m
            self.items("", zero, lo, np.zeros(1, np.float32), 1)
        self.end("")

    def summary(self) -> ShardSummary:
        """Return what a search knows of the shard."""
        version = self._version
        return ShardSummary(
            version=self.trie.version,
            codebook_sizes=version.codebook_sizes,
            end_code=end_code_of(version),
            num_nodes=tuple(map(version.num_nodes, range(version.num_levels))),
            num_items=version.num_items,
            num_leaves=self.trie.num_leaves,
            has_shared_sids=self.trie.items.leaf_indptr is not None,
            codes_F=self._codes_F,
            leaves_F=self._leaves_F,
        )

    def make(self, name: str, make: MakeFilter | MakeBoost) -> int:
        """Make the shard's part of a filter or of a boost, and return the number of its items."""
        part = make(self.trie)
        if not isinstance(part, Filter | ItemColumn):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"the function returned {short_repr(part)}: expected a Filter, or an ItemColumn for a boost")
        if isinstance(part, Filter):
            check_batch(self._version, 1, part, None)
        else:
            check_boosts(self._version, 1, part)
        self._parts[name] = part
        return len(part) if isinstance(part, Filter) else self.trie.num_items

    def remove(self, name: str) -> None:
        """Forget a filter or a boost."""
        self._parts.pop(name, None)

    def find(self, item_ids: ItemIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the ids that the shard has, and their codes (n, L)."""
        row_n = self.trie.items.rows_of(item_ids)
        position_n = np.flatnonzero(row_n >= 0)
        return position_n, self.trie.codes_at(self.trie.items.leaves_of(row_n[position_n]))

    def begin(self, search: str, version: str, batch: ShardBatch) -> ShardRoots | list[str]:
        """Begin a search. Returns the names of filters and boosts that the shard does not have, if it lacks any.

        Raises:
            ShardError: If the shard has another index than the caller knows.
            LeafbeamError: As for `BeamSearch.run`.
        """
        if version != self.trie.version:
            text = f"its index has version {self.trie.version}: expected {version}; load the shards again"
            raise ShardError(text, may_pass=False)
        if missing := sorted(batch.names - self._parts.keys()):
            return missing
        filters = [None if name is None else cast("Filter", self._parts[name]) for name in batch.filters]
        requests = check_batch(self._version, len(filters), filters, batch.deny)
        columns = [None if name is None else cast("ItemColumn", self._parts[name]) for name in batch.boosts]
        boosts = check_boosts(self._version, len(filters), columns)
        bound = self._bind(requests, boosts)
        self._searches[search] = _Search(requests=requests, boosts=boosts, filters=bound)
        if len(self._searches) > _MAX_SEARCHES:
            self._searches.popitem(last=False)
        row_C, code_C, _ = self._first_codes(requests, bound)
        is_legal_BF = np.zeros((len(requests), len(self._codes_F)), np.bool_)
        is_legal_BF[row_C, np.searchsorted(self._codes_F, code_C)] = True
        num_leaves_B = np.array([request.parts[0].num_reachable() for request in requests], np.int64)
        weight_B = np.array([0 if column is None else column.weight for column in columns], np.float64)
        maxima_BF = None if boosts is None else np.stack([self._maxima(column) for column in columns])
        return ShardRoots(is_legal_BF=is_legal_BF, num_leaves_B=num_leaves_B, maxima_BF=maxima_BF, weight_B=weight_B)

    def end(self, search: str) -> None:
        """Forget a search."""
        self._searches.pop(search, None)

    def step(self, search: str, level: int, rows: ShardRows, num_beams: int, scoring: Scoring) -> ShardBeams:
        """Run one round over the shard's index: return the `num_beams` best continuations of the rows of each request.

        Raises:
            ShardError: If the search did not begin here, because the shard was restarted.
        """
        running = self._search(search)
        batch_size = len(running.requests)
        count_B = np.bincount(rows.request_n, minlength=batch_size)
        begin_B = np.cumsum(count_B) - count_B
        slot_n = np.arange(len(rows.request_n)) - begin_B[rows.request_n]
        shape = batch_size, int(count_B.max(initial=1))

        def padded(values_n: NDArray[Number], fill: float = 0) -> NDArray[Number]:
            if batch_size == 1:
                return values_n[None]
            values_BK = np.full((*shape, *values_n.shape[1:]), fill, values_n.dtype)
            values_BK[rows.request_n, slot_n] = values_n
            return values_BK

        beams = Beams.start(padded(rows.lo_n)[None], padded(rows.hi_n)[None], padded(rows.scores_n, -np.inf))
        logits_BKV = padded(rows.logits_nV)
        arrays, filters = self._bound.arrays, running.filters
        best = self._bound.ops.step(arrays, level, beams, logits_BKV, filters, num_beams=num_beams, scoring=scoring)
        live = request_m, _ = np.nonzero(best.scores > -np.inf)
        return ShardBeams(
            request_m=request_m,
            row_m=begin_B[request_m] + best.parent[live],
            code_m=best.code[live],
            lo_m=best.lo[0][live],
            hi_m=best.hi[0][live],
            scores_m=best.scores[live],
        )

    def items(
        self,
        search: str,
        request_n: NDArray[np.int64],
        leaf_n: NDArray[np.int64],
        scores_n: NDArray[np.float32],
        num_items: int,
    ) -> ShardItems:
        """Return the first `num_items` allowed items of each leaf, with the scores that the items of one index would get.

        Raises:
            ShardError: As for `step`.
        """
        running = self._search(search)
        requests = [running.requests[b] for b in request_n]
        boosts = None if running.boosts is None else [running.boosts[b] for b in request_n]
        ranges = leaf_n[None, :, None], leaf_n[None, :, None] + 1
        one_n = np.ones(len(leaf_n), np.int64)
        items = collect_items(self._version, requests, ranges, scores_n[:, None], one_n, num_items, boosts=boosts)
        of_leaf = np.arange(items.scores.shape[1]) < items.num_valid[:, None]
        return ShardItems(
            count_n=items.num_valid,
            codes_nL=items.codes[:, 0],
            item_ids_i=np.concatenate(items.item_ids),
            scores_i=items.scores[of_leaf],
            boosts_i=None if items.boosts is None else items.boosts[of_leaf],
        )

    def _search(self, search: str) -> _Search:
        if search not in self._searches:
            raise ShardError("it does not know this search: it was restarted, or has begun too many other searches since")
        return self._searches[search]

    def _bind(self, requests: Sequence[Filter], boosts: Boosts) -> object:
        return self._bound.ops.bind_filters(self._bound.arrays, requests, boosts)

    def _first_codes(self, requests: Sequence[Filter], filters: object) -> tuple[NDArray[np.int64], ...]:
        """Return (request, code, first leaf) of every first code that a request may take."""
        lo_SB1, hi_SB1 = root_ranges(self._version, requests)
        beams = Beams.start(lo_SB1, hi_SB1, np.zeros(hi_SB1.shape[1:], np.float32))
        children = self._bound.children(0, beams, filters)
        return children.legal.row_C, children.legal.code_C, children.lo_SC[0]

    def _maxima(self, column: ItemColumn | None) -> NDArray[np.float32]:
        """Return the largest number below each first code; 0 without a boost."""
        if column is None:
            return np.zeros(len(self._codes_F), np.float32)
        return column.bounds([self.trie])[0].at(self.trie, 0, self._leaves_F)
