"""The inputs and outputs of a round of constrained search, the same for every backend.

Shapes: S segments, B requests, K beams, M leaves, D denied leaves of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError
from leafbeam.index import Bitmap, Filter, Trie, Version, VersionFilter
from leafbeam.index import bit_kernels as bits
from leafbeam.index.items import ItemIds

Scoring = Literal["full", "allowed"]
# A score that would be lower is this one: masks of a dtype's lowest number at two levels would add up to -inf, which means that
# the model excludes a code.
LOWEST = float(np.finfo(np.float32).min)
Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True)
class Beams(Generic[Array]):
    """The beams after a round, best first, each [B, K]; a dead slot has score -inf and everything else 0.

    Args:
        scores: float32, the sum of log-probabilities.
        parent: int64, the beam that was extended.
        code: int64, the code taken.
        lo, hi: int64 [S, B, K], the leaf range reached in each segment, (0, 0) where nothing of it is alive.
        num_valid: int64 [B], the number of live slots.
    """

    scores: Array
    parent: Array
    code: Array
    lo: Array
    hi: Array
    num_valid: Array


def waiting(launch: Callable[..., tuple[Beams[Any], Any]], where: str = "at level") -> Callable[..., Beams[Any]]:
    """Return `step` of a backend with `launch`: it waits for the device and raises LogitsError if a row held NaN or +inf."""

    def step(arrays: Any, level: int, lo_SBK: Any, *rest: Any, num_beams: int, scoring: Scoring) -> Beams[Any]:
        beams, bad_row = launch(arrays, level, lo_SBK, *rest, num_beams=num_beams, scoring=scoring)
        if number := bad_row.item():  # not int(): it costs 8 µs more in JAX
            request, beam = divmod(number - 1, lo_SBK.shape[2])
            raise LogitsError.not_finite(request, beam, f"{where} {level}")
        return beams

    return step


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestFilter:
    """The leaves of one segment that one request may reach: those of a filter, less a few denied ones.

    Equal to `filter - denied` without a bitmap of its own: a range is alive if the filter's leaves in it outnumber the denied
    ones.

    Args:
        leaves: The leaves of the filter; None without a filter.
        denied_D: int64, ascending leaves of the filter that have no allowed item left.
        filter, denied_ordinals: The same for items, to list results.
    """

    leaves: Bitmap | None
    denied_D: NDArray[np.int64]
    filter: Filter | None
    denied_ordinals: NDArray[np.int64]

    @classmethod
    def of(cls, trie: Trie, allowed: Filter | None, deny: ItemIds | None = None) -> RequestFilter:
        """Return what is left of a request's filter (of this trie) after its deny list; unknown ids in the list are ignored.

        Cost: a few searches for each denied item.
        """
        rows = np.empty(0, np.int64) if deny is None else trie.find(deny)
        ordinals = np.unique(trie.items.ordinal_N[rows[rows >= 0]].astype(np.int64)) if len(rows) else rows
        if allowed is not None and len(ordinals):
            ordinals = ordinals[allowed.ordinals.has(ordinals)]
        leaf_indptr = trie.items.leaf_indptr
        denied = ordinals
        if leaf_indptr is not None and len(ordinals):
            leaves_n = np.searchsorted(leaf_indptr, ordinals.astype(leaf_indptr.dtype), side="right") - 1
            leaves, counts = np.unique(leaves_n, return_counts=True)
            begin_n, end_n = leaf_indptr[leaves].astype(np.int64), leaf_indptr[leaves + 1].astype(np.int64)
            items_n = end_n - begin_n if allowed is None else allowed.ordinals.ranks(end_n) - allowed.ordinals.ranks(begin_n)
            denied = leaves[counts == items_n].astype(np.int64)
        leaves = None if allowed is None else allowed.leaves
        return cls(leaves=leaves, denied_D=denied, filter=allowed, denied_ordinals=ordinals)

    @classmethod
    def none(cls) -> RequestFilter:
        """Return the filter that allows everything."""
        nothing = np.empty(0, np.int64)
        return cls(leaves=None, denied_D=nothing, filter=None, denied_ordinals=nothing)

    def may_reach(self, num_leaves: int) -> bool:
        """Return whether any leaf is left."""
        return (num_leaves if self.leaves is None else self.leaves.count) > len(self.denied_D)

    def num_leaves(self, lo_n: NDArray[np.int64], hi_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many leaves of each range the filter allows; the deny list is not counted. Cost: two ranks a range."""
        return hi_n - lo_n if self.leaves is None else self.leaves.ranks(hi_n) - self.leaves.ranks(lo_n)

    def sole_leaves(self, lo_n: NDArray[np.int64], hi_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the one leaf of each range that may be reached, -1 where there are several or none. Cost: two ranks a range.

        A range whose other leaves are denied one by one counts as several.
        """
        if self.leaves is None:
            return np.where(hi_n - lo_n == 1, lo_n, -1)
        sole_n, words_W = self.num_leaves(lo_n, hi_n) == 1, self.leaves.words_W
        leaves = [bits.next_set(words_W, lo, hi) if sole else -1 for lo, hi, sole in zip(lo_n, hi_n, sole_n, strict=True)]
        return np.array(leaves, np.int64)

    def allows(self, ordinals_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these item ordinals may be shown."""
        allowed_n = np.ones(len(ordinals_n), np.bool_) if self.filter is None else self.filter.ordinals.has(ordinals_n)
        return allowed_n & ~np.isin(ordinals_n, self.denied_ordinals) if len(self.denied_ordinals) else allowed_n


def request_filters(
    index: Trie | Version,
    batch_size: int,
    filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None,
    deny: Sequence[ItemIds | None] | None,
) -> list[tuple[RequestFilter, ...]]:
    """Return one RequestFilter for each request of a batch and each segment, from one shared filter or a list.

    What is dead in the index stays so under every filter and under none. Raises ForeignFilterError, ItemIdError.
    """
    version = Version.of(index)
    per_request: list[Any] = list(filters) if isinstance(filters, Sequence) else [filters] * batch_size
    denied = [None if ids is None else version.deny_ids(ids) for ids in ([None] * batch_size if deny is None else deny)]
    parts_of = {id(item_filter): version.segment_filters(item_filter) for item_filter in per_request}
    tries = [segment.trie for segment in version.segments]
    return [
        tuple(RequestFilter.of(trie, part, ids) for trie, part in zip(tries, parts_of[id(item_filter)], strict=True))
        for item_filter, ids in zip(per_request, denied, strict=True)
    ]
