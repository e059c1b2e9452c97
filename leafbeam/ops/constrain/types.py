"""The inputs and outputs of a round of constrained search, the same for every backend.

Shapes: S segments, B requests, K beams, M leaves, D denied leaves of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Filter, Trie, Version, VersionFilter
from leafbeam.index import bit_kernels as bits
from leafbeam.index.items import ItemIds

__all__ = ["Beams", "RequestFilter", "Scoring", "request_filters"]

Scoring = Literal["full", "allowed"]
Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True)
class Beams(Generic[Array]):
    """The beams after a round, best first, each [B, K]; a dead slot has score -inf and everything else 0.

    scores: float32, the sum of log-probabilities. parent: int64, the beam that was extended. code: int64, the code taken.
    lo, hi: int64 [S, B, K], the leaf range reached in each segment, (0, 0) where nothing of it is alive. num_valid: int64 [B],
    how many slots are alive.
    """

    scores: Array
    parent: Array
    code: Array
    lo: Array
    hi: Array
    num_valid: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestFilter:
    """The leaves of one segment that one request may reach: those of a filter, less a few denied ones.

    Equal to `filter - denied` without a bitmap of its own: a range is alive if the filter's leaves in it outnumber the denied
    ones.

    leaves: None where there is no filter. denied_D: int64, ascending leaves of the filter that have no allowed item left.
    filter, denied_ordinals: the same for items, to list results.
    """

    leaves: Bitmap | None
    denied_D: NDArray[np.int64]
    filter: Filter | None
    denied_ordinals: NDArray[np.int64]

    @classmethod
    def of(cls, trie: Trie, allowed: Filter | None, deny: ItemIds | None = None) -> RequestFilter:
        """From a request's filter (of this trie) and deny list, of which unknown ids are ignored.

        Cost: a few searches for each denied item.
        """
        rows = np.empty(0, np.int64) if deny is None else trie.find(deny)
        ordinals = np.unique(trie.items.ordinal_N[rows[rows >= 0]].astype(np.int64)) if len(rows) else rows
        if allowed is not None and len(ordinals):
            ordinals = np.array([one for one in ordinals if int(one) in allowed.ordinals], np.int64)
        leaf_indptr = trie.items.leaf_indptr
        denied = ordinals
        if leaf_indptr is not None and len(ordinals):
            leaves, counts = np.unique(np.searchsorted(leaf_indptr, ordinals, side="right") - 1, return_counts=True)
            denied = np.array(
                [
                    leaf
                    for leaf, count in zip(leaves, counts, strict=True)
                    if count == _items_on(allowed, int(leaf_indptr[leaf]), int(leaf_indptr[leaf + 1]))
                ],
                np.int64,
            )
        leaves = None if allowed is None else allowed.leaves
        return cls(leaves=leaves, denied_D=denied, filter=allowed, denied_ordinals=ordinals)

    @classmethod
    def none(cls) -> RequestFilter:
        """Everything is allowed."""
        nothing = np.empty(0, np.int64)
        return cls(leaves=None, denied_D=nothing, filter=None, denied_ordinals=nothing)

    def may_reach(self, num_leaves: int) -> bool:
        """Whether any leaf is left."""
        return (num_leaves if self.leaves is None else self.leaves.count) > len(self.denied_D)

    def sole_leaves(self, lo_n: NDArray[np.int64], hi_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """The one leaf of each range that may be reached, -1 where there are several or none. Cost: two ranks a range.

        A range whose other leaves are denied one by one counts as several.
        """
        if self.leaves is None:
            return np.where(hi_n - lo_n == 1, lo_n, -1)
        words_W, before_W = self.leaves.words_W, self.leaves.before_W
        ranks = np.empty((2, len(lo_n)), np.int64)
        bits.rank_many(words_W, before_W, lo_n, ranks[0])
        bits.rank_many(words_W, before_W, hi_n, ranks[1])
        sole_n = ranks[1] - ranks[0] == 1
        leaves = [bits.next_set(words_W, lo, hi) if sole else -1 for lo, hi, sole in zip(lo_n, hi_n, sole_n, strict=True)]
        return np.array(leaves, np.int64)

    def allowed_ordinals(self, begin: int, end: int) -> list[int]:
        """The allowed item ordinals in [begin, end)."""
        if self.filter is None and not len(self.denied_ordinals):
            return list(range(begin, end))
        denied = set(self.denied_ordinals[(self.denied_ordinals >= begin) & (self.denied_ordinals < end)].tolist())
        allowed = None if self.filter is None else self.filter.ordinals
        return [one for one in range(begin, end) if one not in denied and (allowed is None or one in allowed)]


def _items_on(allowed: Filter | None, begin: int, end: int) -> int:
    return end - begin if allowed is None else allowed.ordinals.rank(end) - allowed.ordinals.rank(begin)


def request_filters(
    index: Trie | Version,
    batch_size: int,
    filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None,
    deny: Sequence[ItemIds | None] | None,
) -> list[tuple[RequestFilter, ...]]:
    """For each request of a batch, one RequestFilter for each segment, from one shared filter or a list.

    What is dead in the index stays so under every filter and under none. Raises ForeignFilterError.
    """
    version = Version.of(index)
    shared: list[Any] = list(filters) if isinstance(filters, Sequence) else [filters] * batch_size
    denied: list[Any] = [None] * batch_size if deny is None else list(deny)
    parts_of = {id(one): version.segment_filters(one) for one in shared}
    return [
        tuple(
            RequestFilter.of(segment.trie, part, ids) for segment, part in zip(version.segments, parts_of[id(one)], strict=True)
        )
        for one, ids in zip(shared, denied, strict=True)
    ]
