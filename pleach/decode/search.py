"""What every way of decoding shares: the contract with the model, and how ranges become items.

Shapes: B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pleach.errors import ArgumentError, LogitsError
from pleach.index import Filter, Trie
from pleach.index.items import ItemIds
from pleach.ops.backend import to_numpy
from pleach.ops.constrain import RequestFilter, request_filters

__all__ = ["SearchResult", "StepFn", "check_batch", "check_logits", "collect_items"]

StepFn = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """Ranked items of a batch of requests.

    item_ids: one array for each request, best first, of length `num_valid[b]`: fewer legal items than beams give a short
    answer, never an item that may not be shown. scores: float32 (B, K), -inf beyond `num_valid`. codes: int64 (B, K, L), 0
    beyond. num_valid: int64 (B,). Items that share a Semantic ID follow each other with equal scores, in the caller's order.
    """

    item_ids: list[NDArray[Any]]
    scores: NDArray[np.float32]
    codes: NDArray[np.int64]
    num_valid: NDArray[np.int64]


def check_batch(
    trie: Trie, batch_size: int, filters: Filter | Sequence[Filter | None] | None, deny: Sequence[ItemIds | None] | None
) -> list[RequestFilter]:
    """One RequestFilter a request, after checking that the lists are as long as the batch."""
    if batch_size < 1:
        raise ArgumentError(f"batch_size is {batch_size}: expected at least 1 request")
    for name, values in (("filters", filters), ("deny", deny)):
        if values is not None and not isinstance(values, Filter) and len(values) != batch_size:
            raise ArgumentError(f"{name} has {len(values)} entries: expected one for each of the {batch_size} requests")
    return request_filters(trie, batch_size, filters, deny)


def check_logits(logits: Any, level: int, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """The model's answer as contiguous float32 [B, K, V], or a LogitsError that says what shape was expected."""
    array = to_numpy(logits)
    if level == 0 and array.ndim == 2:
        array = array[:, None, :]
    if array.shape != shape:
        raise LogitsError(
            f"step_fn returned logits of shape {tuple(array.shape)} at level {level}: expected {shape}, that is "
            f"(requests, beams, codes of level {level})"
        )
    if array.dtype.kind not in "fiu":
        raise LogitsError(f"step_fn returned logits of dtype {array.dtype} at level {level}: expected floating point numbers")
    return np.ascontiguousarray(array, np.float32)


def collect_items(
    trie: Trie,
    filters: Sequence[RequestFilter],
    leaves_BK: NDArray[np.int64],
    scores_BK: NDArray[np.float32],
    num_valid_B: NDArray[np.int64],
    width: int,
) -> SearchResult:
    """Turn ranked leaves into ranked items; a leaf with several allowed items lists them all, up to `width` in total."""
    batch_size = len(filters)
    live_BK = np.arange(leaves_BK.shape[1]) < num_valid_B[:, None]
    if trie.items.first_M1 is None:  # a leaf is an item, and a legal leaf is an allowed one
        rows, slots = np.nonzero(live_BK)
        places, leaf_scores, num_valid = leaves_BK[rows, slots], scores_BK[rows, slots], num_valid_B
        leaves = places
    else:
        lists = [
            [filters[request].allowed_places(*trie.items.places_of_leaf(int(leaf))) for leaf in leaves_BK[request, :count]]
            for request, count in enumerate(num_valid_B)
        ]
        taken = [_first_items(one, width) for one in lists]
        num_valid = np.array([len(one) for one in taken], np.int64)
        rows = np.repeat(np.arange(batch_size), num_valid)
        slots = np.concatenate([np.empty(0, np.int64), *(np.arange(len(one)) for one in taken)])
        places = np.array([place for one in taken for place, _ in one], np.int64)
        at = (rows, np.array([slot for one in taken for _, slot in one], np.int64))
        leaves, leaf_scores = leaves_BK[at], scores_BK[at]
    scores = np.full((batch_size, width), -np.inf, np.float32)
    codes = np.zeros((batch_size, width, trie.num_levels), np.int64)
    scores[rows, slots] = leaf_scores
    codes[rows, slots] = trie.codes_at(leaves)
    item_ids = trie.items.ids_of(trie.items.order_N[places])
    return SearchResult(item_ids=np.split(item_ids, np.cumsum(num_valid)[:-1]), scores=scores, codes=codes, num_valid=num_valid)


def _first_items(places_of_slots: list[list[int]], width: int) -> list[tuple[int, int]]:
    """The first `width` (place, slot) of a request's leaves."""
    return [(place, slot) for slot, places in enumerate(places_of_slots) for place in places][:width]
