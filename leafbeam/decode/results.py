"""From requests to root ranges, and from the leaves found to items.

Shapes: S segments, B requests, K beams, L levels, n items found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops.constrain import RequestFilter, request_filters

# One filter for all requests, or one for each; the denied item ids of each request.
BatchFilters = Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None
DenyLists = Sequence[ItemIds | None] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """Ranked items of a batch: item_ids best first, of length num_valid[b]; items of one Semantic ID follow each other.

    scores: float32 (B, K), -inf beyond `num_valid`. codes: int64 (B, K, L), 0 beyond. num_valid: int64 (B,). rounds_saved:
    calls of the model skipped because codes were forced. Fewer legal items than beams give a short answer.
    """

    item_ids: list[NDArray[Any]]
    scores: NDArray[np.float32]
    codes: NDArray[np.int64]
    num_valid: NDArray[np.int64]
    rounds_saved: int = 0


def check_batch(version: Version, batch_size: int, filters: BatchFilters, deny: DenyLists) -> list[tuple[RequestFilter, ...]]:
    """For each request one RequestFilter a segment, after checking that the lists are as long as the batch."""
    if batch_size < 1:
        raise ArgumentError(f"batch_size is {batch_size}: expected at least 1 request")
    for name, values in (("filters", filters), ("deny", deny)):
        if values is not None and not isinstance(values, Filter | VersionFilter) and len(values) != batch_size:
            raise ArgumentError(f"{name} has {len(values)} entries: expected one for each of the {batch_size} requests")
    return request_filters(version, batch_size, filters, deny)


def root_ranges(version: Version, requests: Sequence[tuple[RequestFilter, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(lo_SB1, hi_SB1) before the first round: all of each segment, nothing of one in which a request may reach nothing."""
    hi_SB1 = np.array(
        [
            [[segment.trie.num_leaves if parts[s].may_reach(segment.trie.num_leaves) else 0] for parts in requests]
            for s, segment in enumerate(version.segments)
        ],
        np.int64,
    )
    return np.zeros_like(hi_SB1), hi_SB1


def collect_items(
    version: Version,
    requests: Sequence[tuple[RequestFilter, ...]],
    ranges: tuple[NDArray[np.int64], NDArray[np.int64]],
    scores_BK: NDArray[np.float32],
    num_valid_B: NDArray[np.int64],
    width: int,
    rounds_saved: int = 0,
) -> SearchResult:
    """Turn ranked leaves into ranked items; a SID with several allowed items lists them all, up to `width` in total."""
    batch_size = len(requests)
    lo_SBK, hi_SBK = ranges
    live_BK = np.arange(lo_SBK.shape[2]) < num_valid_B[:, None]
    found = [
        _allowed_items(segment.trie, [parts[s] for parts in requests], live_BK & (hi_SBK[s] > lo_SBK[s]), lo_SBK[s])
        for s, segment in enumerate(version.segments)
    ]
    segment_n = np.repeat(np.arange(len(found)), [len(rows) for rows, _, _ in found])
    found_4n = np.stack([*(np.concatenate(parts) for parts in zip(*found, strict=True)), segment_n])
    found_4n = found_4n[:, np.lexsort((found_4n[3], found_4n[1], found_4n[0]))]  # by request, beam, segment
    num_valid = np.bincount(found_4n[0], minlength=batch_size)
    rank_n = np.arange(found_4n.shape[1]) - np.repeat(np.cumsum(num_valid) - num_valid, num_valid)
    (row_n, slot_n, ordinal_n, segment_n), rank_n = found_4n[:, rank_n < width], rank_n[rank_n < width]
    num_valid = np.minimum(num_valid, width).astype(np.int64)
    scores = np.full((batch_size, width), -np.inf, np.float32)
    codes = np.zeros((batch_size, width, version.num_levels), np.int64)
    scores[row_n, rank_n] = scores_BK[row_n, slot_n]
    ids: list[NDArray[np.generic]] = []
    of_segment = [np.flatnonzero(segment_n == s) for s in range(len(found))]
    for s, (segment, items) in enumerate(zip(version.segments, of_segment, strict=True)):
        if len(items) or s == 0:
            rows = row_n[items]
            codes[rows, rank_n[items]] = segment.trie.codes_at(lo_SBK[s, rows, slot_n[items]])
            ids.append(segment.trie.items.ids_of(segment.trie.items.order_N[ordinal_n[items]]))
    ids = [array for array in ids if len(array)] or ids[:1]
    item_ids = np.concatenate(ids)[np.argsort(np.concatenate(of_segment))] if len(ids) > 1 else ids[0]
    lists = np.split(item_ids, np.cumsum(num_valid)[:-1])
    return SearchResult(item_ids=lists, scores=scores, codes=codes, num_valid=num_valid, rounds_saved=rounds_saved)


def _allowed_items(
    trie: Trie, filters: Sequence[RequestFilter], live_BK: NDArray[np.bool_], leaves_BK: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(request, beam, ordinal) of every allowed item on the live leaves of one segment."""
    rows, slots = np.nonzero(live_BK)
    if trie.items.leaf_indptr is None:  # a leaf is an item, and a legal leaf is an allowed one
        return rows, slots, leaves_BK[live_BK]
    lists = [
        filters[row].allowed_ordinals(*trie.items.ordinals_of_leaf(leaf))
        for row, leaf in zip(rows.tolist(), leaves_BK[live_BK].tolist(), strict=True)
    ]
    sizes = [len(ordinals) for ordinals in lists]
    ordinals = np.array([ordinal for ordinals in lists for ordinal in ordinals], np.int64)
    return np.repeat(rows, sizes), np.repeat(slots, sizes), ordinals
