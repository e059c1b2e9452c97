"""From requests to root ranges, and from the leaves found to items.

Shapes: S segments, B requests, K beams, L levels, n items found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.boosts import boosts_of_items, leaf_boosts
from leafbeam.decode.config import check_length
from leafbeam.errors import FilterError, check_whole, counted, short_repr
from leafbeam.html_table import html_table
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.filters import ItemSet
from leafbeam.index.items import ItemIds
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import AnyArray, Beams, Boosts, request_filters

# One filter for all requests, or one for each; the denied item ids of each request.
BatchFilters = Filter | Sequence[Filter | None] | None
DenyLists = Sequence[ItemIds | None] | None
_SHOWN_REQUESTS, _SHOWN_ITEMS = 4, 5  # in notebooks
_Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class BeamLevel:
    """The beams that a search kept at one level, best first.

    The arrays have shape (B, K) for a batch, with the score -inf for a dead beam, and shape (k,) for a row, which has live
    beams alone.

    Attributes:
        codes: The code that each beam took.
        parents: The beam of the previous level that it extends.
        scores: Its log probability so far.
        num_sids: The number of Semantic IDs of the index below its prefix, allowed or not.
        passes: The number of the pass that first kept it, from 1.
    """

    codes: NDArray[np.int64]
    parents: NDArray[np.int64]
    scores: NDArray[np.float32]
    num_sids: NDArray[np.int64]
    passes: NDArray[np.int64]

    @classmethod
    def of(cls, beams: Beams[AnyArray]) -> "BeamLevel":
        """Return the beams after a round. On a device this waits."""
        lo_SBK, hi_SBK = to_numpy(beams.lo), to_numpy(beams.hi)
        codes, parents, scores = to_numpy(beams.code), to_numpy(beams.parent), to_numpy(beams.scores)
        num_sids = (hi_SBK - lo_SBK).sum(0)
        return cls(codes=codes, parents=parents, scores=scores, num_sids=num_sids, passes=np.ones(codes.shape, np.int64))

    def row(self, request: int) -> "BeamLevel":
        """Return the live beams of one request."""
        live_k = self.scores[request] > -np.inf
        return BeamLevel(**{field.name: getattr(self, field.name)[request][live_k] for field in fields(self)})


def with_passes(levels: Sequence[BeamLevel], before: Sequence[BeamLevel], number: int) -> tuple[BeamLevel, ...]:
    """Return the beams of pass `number`, marked with the pass that first kept them, given those of the pass before."""
    first = {
        (b, path): int(level.passes[b, k])
        for level, beams in zip(before, _paths_of(before), strict=True)
        for b, k, path in beams
    }
    found: list[BeamLevel] = []
    for level, beams in zip(levels, _paths_of(levels), strict=True):
        passes = np.full(level.codes.shape, number)
        for b, k, path in beams:
            passes[b, k] = first.get((b, path), number)
        found.append(replace(level, passes=passes))
    return tuple(found)


def _paths_of(levels: Sequence[BeamLevel]) -> Iterator[list[tuple[int, int, tuple[int, ...]]]]:
    """Yield the request, the number and the codes of every live beam, level by level."""
    before: dict[tuple[int, int], tuple[int, ...]] = {}
    for number, level in enumerate(levels):
        beams: list[tuple[int, int, tuple[int, ...]]] = []
        for b, k in np.argwhere(level.scores > -np.inf).tolist():
            parent = before[b, int(level.parents[b, k])] if number else ()
            beams.append((b, k, (*parent, int(level.codes[b, k]))))
        before = {(b, k): path for b, k, path in beams}
        yield beams


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """The ranked items of a batch of B requests. If fewer items are allowed than requested, the answer is short.

    Attributes:
        item_ids: For each request its items, best first, `num_valid[b]` of them; items of one Semantic ID follow each other.
        scores: Shape (B, K), float32. The log probability of each item, plus its boost if the request has one; -inf beyond
            `num_valid`.
        codes: Shape (B, K, L), int64. The Semantic ID of each item, 0 beyond `num_valid`.
        num_items: Shape (B,), int64. The number of items that each request wants.
        num_valid: Shape (B,), int64. The number of items of each request.
        rounds_saved: The number of calls of the model that were skipped because codes were forced.
        levels: The beams of each level, if the search explains itself; those of its last pass.
        bound: Shape (B,), float32. No dropped prefix scores higher than this, so no missed item does either; -inf if nothing
            was dropped. None for samples, which are not ordered by score.
        beams_needed: Shape (B, L - 1), int64. For each level but the last, the number of beams kept that score at least as
            high as the last item: a search that keeps these proves its answer in one pass. None for samples, and for
            searches of a fixed width on a device.
        rows: Shape (B,), int64. The number of rows that the model computed for each request: one for the prompt and one for
            each live beam of each call. None for searches of a fixed width on a device.
        passes: The number of passes of the search.
        boosts: Shape (B, K), float32. The boost of each item, which `scores` includes; None without boosts.
    """

    item_ids: list[NDArray[Any]]
    scores: NDArray[np.float32]
    codes: NDArray[np.int64]
    num_items: NDArray[np.int64]
    num_valid: NDArray[np.int64]
    rounds_saved: int = 0
    levels: tuple[BeamLevel, ...] = ()
    bound: NDArray[np.float32] | None = None
    beams_needed: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None
    passes: int = 1
    boosts: NDArray[np.float32] | None = None

    @property
    def model_scores(self) -> NDArray[np.float32]:
        """Shape (B, K), float32. The log probability of each item, without its boost; -inf beyond `num_valid`."""
        return self.scores if self.boosts is None else self.scores - self.boosts

    @property
    def num_exact(self) -> NDArray[np.int64] | None:
        """Shape (B,), int64. The number of first items that are proved to be the best allowed ones; None for samples.

        No dropped prefix scores above them, and no item scores above its prefix. Items that the search missed may have the
        same score as the last of them.
        """
        if self.bound is None:
            return None
        return ((self.scores >= self.bound[:, None]) & (self.scores > -np.inf)).sum(1)

    @property
    def is_proved(self) -> NDArray[np.bool_]:
        """Shape (B,). True where the whole answer is proved: no list of as many allowed items has better scores."""
        return np.zeros(len(self.scores), np.bool_) if self.bound is None else self.bound <= self.last_scores

    @property
    def last_scores(self) -> NDArray[np.float32]:
        """Shape (B,), float32. The score of the last item that each request wants, -inf if it has fewer."""
        return self.scores[np.arange(len(self.scores)), self.num_items - 1]

    def _repr_html_(self) -> str:
        """The first items of the first requests."""
        rows = [
            (request, rank + 1, str(item), f"{self.scores[request, rank]:.2f}", "-".join(map(str, self.codes[request, rank])))
            for request, items in enumerate(self.item_ids[:_SHOWN_REQUESTS])
            for rank, item in enumerate(items[:_SHOWN_ITEMS].tolist())
        ]
        counts = f"{counted(len(self.item_ids), 'request')}, {counted(int(self.num_valid.sum()), 'item')}"
        return html_table(f"Search result: {counts}", ["request", "rank", "item", "log probability", "Semantic ID"], rows)


def check_batch(version: Version, batch_size: int, filters: BatchFilters, deny: DenyLists) -> list[Filter]:
    """Return the filter of each request, less its denied items; check that the lists are as long as the batch."""
    check_whole(batch_size=batch_size)
    given: Any = filters
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    each: list[Any] = list(given) if is_list else [given]
    for number, one in enumerate(each):
        if one is not None and not isinstance(one, Filter):
            name = f"filters[{number}]" if is_list else "filters"
            raise FilterError(
                f"{name} is {short_repr(one)}: expected a Filter: make one with index.filter(mask) or catalog.filter('cheap')"
            )
    if not isinstance(filters, Filter):
        check_length("filters", filters, batch_size)
    check_length("deny", deny, batch_size)
    return request_filters(version, batch_size, filters, deny)


def root_ranges(version: Version, requests: Sequence[Filter]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (lo_SB1, hi_SB1) before the first round: the whole segment, or nothing if a request may reach nothing in it."""
    hi_SB1 = np.array(
        [
            [[segment.trie.num_leaves if request.parts[s].num_reachable() else 0] for request in requests]
            for s, segment in enumerate(version.segments)
        ],
        np.int64,
    )
    return np.zeros_like(hi_SB1), hi_SB1


def collect_items(
    version: Version,
    requests: Sequence[Filter],
    ranges: tuple[NDArray[np.int64], NDArray[np.int64]],
    scores_BK: NDArray[np.float32],
    num_valid_B: NDArray[np.int64],
    num_items: int | Sequence[int],
    rounds_saved: int = 0,
    boosts: Boosts = None,
) -> SearchResult:
    """Turn ranked leaves into ranked items; a SID with several allowed items lists them all, up to `num_items` in total.

    With boosts the score of a leaf counts the largest boost of its items; each item gets its own, and they are ranked again.
    """
    num_items_B = np.full(len(requests), num_items, np.int64)
    lo_SBK, hi_SBK = ranges
    live_BK = np.arange(lo_SBK.shape[2]) < num_valid_B[:, None]
    found = [
        _allowed_items(segment.trie, [request.parts[s] for request in requests], live_BK & (hi_SBK[s] > lo_SBK[s]), lo_SBK[s])
        for s, segment in enumerate(version.segments)
    ]
    row_n, slot_n, ordinal_n, segment_n = _in_order(found)
    boosts_n, scores_n = None, scores_BK[row_n, slot_n]
    if boosts is not None:
        boosts_n = boosts_of_items(boosts, row_n, segment_n, ordinal_n)
        scores_n = scores_n + (boosts_n - leaf_boosts(version, boosts, ranges)[row_n, slot_n])
        order_n = np.lexsort((-scores_n, row_n))
        row_n, slot_n, ordinal_n, segment_n = (array[order_n] for array in (row_n, slot_n, ordinal_n, segment_n))
        boosts_n, scores_n = boosts_n[order_n], scores_n[order_n]
    rank_n = ranks_of(row_n)
    kept = rank_n < num_items_B[row_n]
    if not kept.all():
        row_n, slot_n, ordinal_n, segment_n, rank_n = (array[kept] for array in (row_n, slot_n, ordinal_n, segment_n, rank_n))
        boosts_n, scores_n = None if boosts_n is None else boosts_n[kept], scores_n[kept]
    codes_nL = np.zeros((len(row_n), version.num_levels), np.int64)
    ids: list[NDArray[np.generic]] = []
    one = len(found) == 1
    of_segment = [np.arange(len(row_n))] if one else [np.flatnonzero(segment_n == s) for s in range(len(found))]
    for s, (segment, items) in enumerate(zip(version.segments, of_segment, strict=True)):
        if len(items) or s == 0:
            codes_nL[items] = segment.trie.codes_at(lo_SBK[s, row_n[items], slot_n[items]])
            ids.append(segment.trie.items.ids_of(segment.trie.items.order_N[ordinal_n[items]]))
    ids = [array for array in ids if len(array)] or ids[:1]
    item_ids = np.concatenate(ids)[np.argsort(np.concatenate(of_segment))] if len(ids) > 1 else ids[0]
    return ranked_items(
        row_n,
        rank_n,
        num_items_B,
        item_ids_n=item_ids,
        codes_nL=codes_nL,
        scores_n=scores_n,
        boosts_n=boosts_n,
        rounds_saved=rounds_saved,
    )


def ranks_of(row_n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each entry among those of its request, for ascending requests."""
    return np.arange(len(row_n)) - np.searchsorted(row_n, row_n)


def ranked_items(
    row_n: NDArray[np.int64],
    rank_n: NDArray[np.int64],
    num_items_B: NDArray[np.int64],
    *,
    item_ids_n: NDArray[np.generic],
    codes_nL: NDArray[np.int64],
    scores_n: NDArray[np.floating],
    boosts_n: NDArray[np.floating] | None,
    rounds_saved: int = 0,
) -> SearchResult:
    """Return the items of all requests, by request and then by rank, as a result."""
    batch_size = len(num_items_B)
    num_valid = np.bincount(row_n, minlength=batch_size).astype(np.int64)
    scores = np.full((batch_size, int(num_items_B.max())), -np.inf, np.float32)
    codes = np.zeros((*scores.shape, codes_nL.shape[1]), np.int64)
    scores[row_n, rank_n], codes[row_n, rank_n] = scores_n, codes_nL
    boosts_BK = None if boosts_n is None else np.zeros(scores.shape, np.float32)
    if boosts_BK is not None:
        boosts_BK[row_n, rank_n] = boosts_n
    return SearchResult(
        item_ids=np.split(item_ids_n, np.cumsum(num_valid)[:-1]) if batch_size > 1 else [item_ids_n],
        scores=scores,
        codes=codes,
        num_items=num_items_B,
        num_valid=num_valid,
        rounds_saved=rounds_saved,
        boosts=boosts_BK,
    )


def _in_order(found: Sequence[_Found]) -> tuple[NDArray[np.int64], ...]:
    """(request, beam, ordinal, segment) of the items found in each segment, by request, then beam, then segment."""
    if len(found) == 1:
        return *found[0], np.zeros(len(found[0][0]), np.int64)
    segment_n = np.repeat(np.arange(len(found)), [len(rows) for rows, _, _ in found])
    found_4n = np.stack([*(np.concatenate(parts) for parts in zip(*found, strict=True)), segment_n])
    return tuple(found_4n[:, np.lexsort((found_4n[3], found_4n[1], found_4n[0]))])


def _allowed_items(trie: Trie, parts: Sequence[ItemSet], live_BK: NDArray[np.bool_], leaves_BK: NDArray[np.int64]) -> _Found:
    """(request, beam, ordinal) of every allowed item on the live leaves of one segment, in this order."""
    row_n, slot_n = np.nonzero(live_BK)
    indptr, leaf_n = trie.items.leaf_indptr, leaves_BK[live_BK]
    if indptr is None:  # a leaf is an item, and a legal leaf is an allowed one
        return row_n, slot_n, leaf_n
    begin_n = indptr[leaf_n].astype(np.int64)
    size_n = indptr[leaf_n + 1] - begin_n
    row_i, slot_i = np.repeat(row_n, size_n), np.repeat(slot_n, size_n)
    ordinal_i = np.arange(len(row_i)) + np.repeat(begin_n - (np.cumsum(size_n) - size_n), size_n)
    allowed_i = np.ones(len(row_i), np.bool_)
    for row, part in enumerate(parts):
        if part.bitmap is not None or len(part.denied_ordinals):
            of_row = slice(*np.searchsorted(row_i, (row, row + 1)).tolist())
            allowed_i[of_row] = part.has(ordinal_i[of_row])
    return (row_i, slot_i, ordinal_i) if allowed_i.all() else (row_i[allowed_i], slot_i[allowed_i], ordinal_i[allowed_i])
