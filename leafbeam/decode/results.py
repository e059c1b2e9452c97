"""From requests to root ranges, and from the leaves found to items.

Shapes: S segments, B requests, K beams, L levels, n items found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops.constrain import RequestFilter, request_filters

__all__ = ["SearchResult", "check_batch", "collect_items", "root_ranges"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """Ranked items of a batch of requests.

    item_ids: one array for each request, best first, of length `num_valid[b]`: fewer legal items than beams give a short
    answer, never an item that may not be shown. scores: float32 (B, K), -inf beyond `num_valid`. codes: int64 (B, K, L), 0
    beyond. num_valid: int64 (B,). rounds_saved: how many calls of the model were skipped because the codes were forced.

    Items that share a Semantic ID follow each other with equal scores, in the caller's order.
    """

    item_ids: list[NDArray[Any]]
    scores: NDArray[np.float32]
    codes: NDArray[np.int64]
    num_valid: NDArray[np.int64]
    rounds_saved: int = 0


def check_batch(
    version: Version,
    batch_size: int,
    filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None,
    deny: Sequence[ItemIds | None] | None,
) -> list[tuple[RequestFilter, ...]]:
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
        _places(segment.trie, [parts[s] for parts in requests], np.nonzero(live_BK & (hi_SBK[s] > lo_SBK[s])), lo_SBK[s])
        for s, segment in enumerate(version.segments)
    ]
    row_n, slot_n, place_n = (np.concatenate(parts) for parts in zip(*found, strict=True))
    segment_n = np.repeat(np.arange(len(found)), [len(rows) for rows, _, _ in found])
    order = np.lexsort((segment_n, slot_n, row_n))
    row_n, slot_n, place_n, segment_n = row_n[order], slot_n[order], place_n[order], segment_n[order]
    num_valid = np.bincount(row_n, minlength=batch_size)
    at_n = np.arange(len(row_n)) - np.repeat(np.cumsum(num_valid) - num_valid, num_valid)
    kept = at_n < width
    row_n, slot_n, place_n, segment_n, at_n = row_n[kept], slot_n[kept], place_n[kept], segment_n[kept], at_n[kept]
    num_valid = np.minimum(num_valid, width).astype(np.int64)
    scores = np.full((batch_size, width), -np.inf, np.float32)
    codes = np.zeros((batch_size, width, version.num_levels), np.int64)
    scores[row_n, at_n] = scores_BK[row_n, slot_n]
    ids: list[NDArray[np.generic]] = []
    of_segment = [np.flatnonzero(segment_n == s) for s in range(len(found))]
    for s, (segment, mine) in enumerate(zip(version.segments, of_segment, strict=True)):
        if len(mine) or s == 0:
            rows, ats = row_n[mine], at_n[mine]
            codes[rows, ats] = segment.trie.codes_at(lo_SBK[s, rows, slot_n[mine]])
            ids.append(segment.trie.items.ids_of(segment.trie.items.order_N[place_n[mine]]))
    ids = [one for one in ids if len(one)] or ids[:1]
    item_ids = np.concatenate(ids)[np.argsort(np.concatenate(of_segment))] if len(ids) > 1 else ids[0]
    lists = np.split(item_ids, np.cumsum(num_valid)[:-1])
    return SearchResult(item_ids=lists, scores=scores, codes=codes, num_valid=num_valid, rounds_saved=rounds_saved)


def _places(
    trie: Trie,
    filters: Sequence[RequestFilter],
    live: tuple[NDArray[np.int64], ...],
    leaves_BK: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(request, slot, place) of every allowed item on the live leaves of one segment."""
    rows, slots = live
    if trie.items.leaf_indptr is None:  # a leaf is an item, and a legal leaf is an allowed one
        return rows, slots, leaves_BK[rows, slots]
    lists = [
        filters[row].allowed_ordinals(*trie.items.ordinals_of_leaf(int(leaves_BK[row, slot])))
        for row, slot in zip(rows, slots, strict=True)
    ]
    sizes = [len(one) for one in lists]
    places = np.array([place for one in lists for place in one], np.int64)
    return np.repeat(rows, sizes), np.repeat(slots, sizes), places
