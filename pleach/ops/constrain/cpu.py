"""The constrained step on a CPU: numba, one thread, no `[rows, V]` mask.

    for each request, each live beam in order:
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each legal child that can still be among the best: score = beam score + logit - lse; keep the K best

Three ways to meet a row's children, whichever is cheapest for it:
    collect: walk the children of the range (few of them, or no threshold yet)
    collect through the filter: walk the filter's leaves in the range (a filter that leaves few alive)
    scan: walk the chunks of logits that beat the threshold and search each survivor among the children (a wide range)

Shapes: B requests, K beams, V codes, L levels, W words, D denied leaves, C children of a row.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pleach.errors import LogitsError
from pleach.index import Trie
from pleach.index.bits import array_at, next_set, prev_set, rank
from pleach.ops.constrain.beams import Beams, RequestFilter, Scoring
from pleach.ops.constrain.normalize import CHUNK, chunk_maxima, sum_exp
from pleach.ops.constrain.select import compact, key_of, score_of

__all__ = ["FilterArrays", "TrieArrays", "bind", "bind_filters", "step"]

_LISTING, _COLUMN, _LEAVES = 0, 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class TrieArrays:
    """A trie's levels as the kernel reads them: (layout, codes, firsts, words, before, num_leaves) for each level."""

    levels: tuple[tuple[Any, ...], ...]
    num_leaves: int
    num_levels: int


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch as addresses, so that one compiled loop serves any number of different filters.

    words_B, before_B: addresses of each request's bitmap, 0 where it has none. denied_B1, denied: ragged denied leaves.
    """

    words_B: NDArray[np.int64]
    before_B: NDArray[np.int64]
    denied_B1: NDArray[np.int64]
    denied: NDArray[np.int64]
    alive: tuple[RequestFilter, ...]  # keeps the addressed memory


def bind(trie: Trie) -> TrieArrays:
    """View a trie's arrays; nothing is copied."""
    no_firsts, no_words = np.empty(0, np.uint32), np.empty(0, np.uint64)
    kinds = {"listing": _LISTING, "column": _COLUMN, "leaves": _LEAVES}
    levels = tuple(
        (
            kinds[level.layout],
            level.codes,
            no_firsts if level.firsts is None else level.firsts,
            no_words if level.boundary is None else level.boundary.words_W,
            no_firsts if level.boundary is None else level.boundary.before_W,
            trie.num_leaves,
        )
        for level in trie.levels
    )
    return TrieArrays(levels=levels, num_leaves=trie.num_leaves, num_levels=trie.num_levels)


def bind_filters(arrays: TrieArrays, filters: Sequence[RequestFilter]) -> FilterArrays:
    """Collect the addresses of a batch's filters, once for all rounds of a search."""
    words_B, before_B = np.zeros(len(filters), np.int64), np.zeros(len(filters), np.int64)
    for request, one in enumerate(filters):
        if one.leaves is not None:
            assert one.leaves.size == arrays.num_leaves
            words_B[request] = one.leaves.words_W.ctypes.data
            before_B[request] = one.leaves.before_W.ctypes.data
    denied_B1 = np.cumsum([0, *(len(one.denied_D) for one in filters)]).astype(np.int64)
    denied = np.concatenate([np.empty(0, np.int64), *(one.denied_D for one in filters)])
    return FilterArrays(words_B=words_B, before_B=before_B, denied_B1=denied_B1, denied=denied, alive=tuple(filters))


def step(
    arrays: TrieArrays,
    level: int,
    lo_BK: NDArray[np.int64],
    hi_BK: NDArray[np.int64],
    scores_BK: NDArray[np.float32],
    logits_BKV: NDArray[np.float32],
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> Beams[NDArray[Any]]:
    """One round of constrained beam search: see `pleach.ops.constrain.reference.step`, which this equals.

    Cost: one read of the logits for "full", plus a few reads for each child that beats the worst beam kept so far. A row
    whose beam score is already below that threshold is not read at all.
    Raises LogitsError where a row that was read holds NaN or +inf.
    """
    batch_size = lo_BK.shape[0]
    shape = (batch_size, num_beams)
    scores = np.full(shape, -np.inf, np.float32)
    parent, code, lo, hi = (np.zeros(shape, np.int64) for _ in range(4))
    num_valid_B = np.zeros(batch_size, np.int64)
    out = (parent, code, lo, hi, num_valid_B)
    on = (filters.words_B, filters.before_B, filters.denied_B1, filters.denied)
    bad = _step(arrays.levels[level], lo_BK, hi_BK, scores_BK, logits_BKV, on, scoring == "full", out, scores)
    if bad >= 0:
        request, beam = divmod(bad, lo_BK.shape[1])
        raise LogitsError(
            f"the logits of request {request}, beam {beam} at level {level} hold NaN or +inf: expected finite numbers, or -inf "
            f"for a code that must not be taken; look at the model's output"
        )
    return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid_B)


# A level is passed as (layout, codes, firsts, words, before, num_leaves), a request's filter as
# (has_filter, words, before, denied): tuples cost nothing in compiled code and keep the signatures readable.


@njit(nogil=True)
def _children_bounds(level, lo, hi):
    """Where the children of [lo, hi) lie in `codes`: entries of the listing, or leaves of the column."""
    layout, _, _, words, before, _ = level
    if layout == _LISTING:
        return rank(words, before, lo), rank(words, before, hi)
    return lo, hi


@njit(nogil=True)
def _child_range(level, place):
    """The leaf range of the child that stands at `place` of the listing or column."""
    layout, _, firsts, words, _, num_leaves = level
    if layout == _LISTING:
        return np.int64(firsts[place]), (np.int64(firsts[place + 1]) if place + 1 < firsts.size else num_leaves)
    if layout == _COLUMN:
        return place, next_set(words, place + 1, num_leaves)
    return place, place + 1


@njit(nogil=True)
def _denied_in(denied_D, lo, hi):
    """How many denied leaves lie in [lo, hi)."""
    return np.searchsorted(denied_D, hi) - np.searchsorted(denied_D, lo)


@njit(nogil=True)
def _alive(allowed, lo, hi):
    """How many leaves of [lo, hi) may be shown."""
    has_filter, words, before, denied_D = allowed
    count = rank(words, before, hi) - rank(words, before, lo) if has_filter else hi - lo
    return count - _denied_in(denied_D, lo, hi) if denied_D.size > 0 else count


@njit(nogil=True)
def _collect(level, allowed, lo, hi, alive, out_codes, out_places):
    """Write code and place of every legal child of [lo, hi), ascending by code; returns how many."""
    layout, codes, firsts, words, before, num_leaves = level
    has_filter, filter_words, _, denied_D = allowed
    count = 0
    if has_filter and alive * 4 < hi - lo:  # few leaves are left: visit those instead of the children
        leaf = next_set(filter_words, lo, hi)
        while leaf < hi:
            if denied_D.size > 0 and _denied_in(denied_D, leaf, leaf + 1) > 0:
                leaf = next_set(filter_words, leaf + 1, hi)
                continue
            place = leaf
            if layout == _LISTING:
                place = rank(words, before, leaf + 1) - 1
            elif layout == _COLUMN:
                place = prev_set(words, leaf)
            out_codes[count] = codes[place]
            out_places[count] = place
            count += 1
            leaf = next_set(filter_words, _child_range(level, place)[1], hi)
        return count
    begin, end = _children_bounds(level, lo, hi)
    place = begin
    while place < end:
        after = place + 1 if layout != _COLUMN else next_set(words, place + 1, end)
        keep = True
        if alive < hi - lo:
            child_lo, child_hi = _child_range(level, place)
            keep = _alive(allowed, child_lo, child_hi) > 0
        if keep:
            out_codes[count] = codes[place]
            out_places[count] = place
            count += 1
        place = after
    return count


@njit(nogil=True)
def _first_at_least(codes, begin, end, code):
    """The first place of ascending codes[begin:end] whose code is at least `code`."""
    size = end - begin
    while size > 0:
        half = size >> 1
        if codes[begin + half] < code:
            begin += half + 1
            size -= half + 1
        else:
            size = half
    return begin


@njit(nogil=True)
def _log_sum_exp(row, chunks):
    """(largest logit, log-sum-exp); NaN where the row holds NaN or +inf; the chunks' maxima are left in `chunks`."""
    top = chunk_maxima(row, chunks)
    total = sum_exp(row, top if top > np.float32(-np.inf) else np.float32(0.0))
    if not total < np.float32(np.inf) or top == np.float32(np.inf):
        return top, np.float32(np.nan)
    return top, top + np.float32(math.log(total))


@njit(nogil=True)
def _scan(level, allowed, restricted, begin, end, row, base, lse, parent, chunks, candidates, count, threshold, num_beams):
    """Offer every code of the row that beats the threshold and is a legal child; returns (count, threshold)."""
    codes = level[1]
    keys, parents, chosen, places, scratch = candidates
    # `least` may let a chunk too many through; the comparison of scores below is exact.
    least = threshold - base + lse
    least -= np.float32(1e-5) * (abs(threshold) + abs(base) + abs(lse))
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        if chunks[chunk] < least:
            continue
        for code in range(chunk * CHUNK, min(row.size, chunk * CHUNK + CHUNK)):
            score = base + (row[code] - lse)
            if score <= threshold:
                continue
            place = _first_at_least(codes, begin, end, code)
            if place == end or codes[place] != code:
                continue
            if restricted:
                child_lo, child_hi = _child_range(level, place)
                if _alive(allowed, child_lo, child_hi) <= 0:
                    continue
            keys[count] = key_of(score, count)
            parents[count], chosen[count], places[count] = parent, code, place
            count += 1
            if count == keys.size:
                threshold = compact(keys, parents, chosen, places, count, num_beams, scratch)
                count = num_beams
    return count, threshold


@njit(nogil=True)
def _offer(row, base, lse, parent, child_codes, child_places, candidates, count, threshold, num_beams):
    """Offer the collected children; returns (count, threshold)."""
    keys, parents, chosen, places, scratch = candidates
    for child in range(child_codes.size):
        score = base + (row[child_codes[child]] - lse)
        if score <= threshold:
            continue
        keys[count] = key_of(score, count)
        parents[count], chosen[count], places[count] = parent, child_codes[child], child_places[child]
        count += 1
        if count == keys.size:
            threshold = compact(keys, parents, chosen, places, count, num_beams, scratch)
            count = num_beams
    return count, threshold


@njit(cache=True, nogil=True)
def _step(level, lo_BK, hi_BK, scores_BK, logits_BKV, filters, full, out, out_scores):
    """All requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf."""
    num_leaves = level[5]
    filter_words_B, filter_before_B, denied_B1, denied = filters
    out_parent, out_code, out_lo, out_hi, num_valid_B = out
    batch_size, num_rows = lo_BK.shape
    num_codes, num_beams = logits_BKV.shape[2], out_scores.shape[1]
    capacity = 4 * num_beams + 64
    keys, scratch = np.empty(capacity, np.uint64), np.empty(capacity, np.uint64)
    parents, chosen, places = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    candidates = (keys, parents, chosen, places, scratch)
    most = min(num_codes, num_leaves)
    child_codes, child_places = np.empty(most, np.int64), np.empty(most, np.int64)
    child_logits = np.empty(most, np.float32)
    chunks = np.empty(num_codes // CHUNK + 1, np.float32)
    num_words = num_leaves // 64 + 1
    nothing = np.float32(-np.inf)
    for b in range(batch_size):
        has_filter = filter_words_B[b] != 0
        allowed = (
            has_filter,
            array_at(filter_words_B[b], num_words if has_filter else 0, np.uint64),
            array_at(filter_before_B[b], num_words if has_filter else 0, np.uint32),
            denied[denied_B1[b] : denied_B1[b + 1]],
        )
        count, threshold = 0, nothing
        for k in range(num_rows):
            lo, hi, base = lo_BK[b, k], hi_BK[b, k], scores_BK[b, k]
            # No step can raise a score (lse >= every logit of the row, in float32 too), so such a beam is out.
            if lo >= hi or base <= threshold:
                continue
            alive = _alive(allowed, lo, hi)
            if alive <= 0:
                continue
            row = logits_BKV[b, k]
            if full:
                top, lse = _log_sum_exp(row, chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
                begin, end = _children_bounds(level, lo, hi)
                if threshold > nothing and (end - begin) * 16 > num_codes and alive * 4 >= hi - lo:
                    count, threshold = _scan(
                        level, allowed, alive < hi - lo, begin, end, row, base, lse, k, chunks, candidates, count, threshold, num_beams
                    )  # fmt: skip
                    continue
                found = _collect(level, allowed, lo, hi, alive, child_codes, child_places)
            else:
                found = _collect(level, allowed, lo, hi, alive, child_codes, child_places)
                for child in range(found):
                    child_logits[child] = row[child_codes[child]]
                top, lse = _log_sum_exp(child_logits[:found], chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
            count, threshold = _offer(
                row, base, lse, k, child_codes[:found], child_places[:found], candidates, count, threshold, num_beams
            )
            if count >= 2 * num_beams or (threshold == nothing and count >= num_beams):
                threshold = compact(keys, parents, chosen, places, count, num_beams, scratch)
                count = num_beams
        if count > num_beams:
            compact(keys, parents, chosen, places, count, num_beams, scratch)
            count = num_beams
        num_valid_B[b] = count
        best = np.argsort(keys[:count])
        for slot in range(count):
            candidate = best[count - 1 - slot]
            out_scores[b, slot] = score_of(keys[candidate])
            out_parent[b, slot] = parents[candidate]
            out_code[b, slot] = chosen[candidate]
            out_lo[b, slot], out_hi[b, slot] = _child_range(level, places[candidate])
    return -1
