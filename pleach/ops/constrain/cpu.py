"""The constrained step on a CPU: numba, one thread, no `[rows, V]` mask.

    for each request, each live beam in order:
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each legal child that can still be among the best: score = beam score + logit - lse; keep the K best

Two ways to meet a row's children, whichever is cheaper for it:
    collect: walk the children of the range; through a filter, one visit for each child that it leaves alive
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
from pleach.index.bits import array_at, next_set, prev_set, rank, trailing_zeros
from pleach.ops.constrain.beams import Beams, RequestFilter, Scoring
from pleach.ops.constrain.normalize import CHUNK, chunk_maxima, sum_exp
from pleach.ops.constrain.select import compact, key_of, score_of

__all__ = ["FilterArrays", "TrieArrays", "bind", "bind_filters", "children", "step"]

_LISTING, _COLUMN, _LEAVES = 0, 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class TrieArrays:
    """A trie's levels as the kernel reads them: (layout, codes, firsts, words, before, num_leaves) for each level."""

    levels: tuple[tuple[Any, ...], ...]
    sizes: tuple[int, ...]
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
    return TrieArrays(levels=levels, sizes=trie.codebook_sizes, num_leaves=trie.num_leaves, num_levels=trie.num_levels)


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


def children(
    arrays: TrieArrays, level: int, lo_BK: NDArray[np.int64], hi_BK: NDArray[np.int64], filters: FilterArrays
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Every legal child of every range, ragged: see `pleach.ops.constrain.reference.children`, which this equals.

    Cost: a few reads a child; memory for min(range, codebook) children a row at most.
    """
    most = int(np.minimum(hi_BK - lo_BK, arrays.sizes[level]).sum())
    row_R1 = np.zeros(lo_BK.size + 1, np.int64)
    code_C, lo_C, hi_C = (np.empty(most, np.int64) for _ in range(3))
    on = (filters.words_B, filters.before_B, filters.denied_B1, filters.denied)
    count = _children(arrays.levels[level], lo_BK, hi_BK, on, row_R1, code_C, lo_C, hi_C)
    return row_R1, code_C[:count], lo_C[:count], hi_C[:count]


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
def _collect_allowed(level, allowed, lo, hi, out_codes, out_places):
    """`_collect` through a filter: one visit for each child that is alive, none for the others."""
    layout, codes, _, words, before, _ = level
    _, filter_words, _, denied_D = allowed
    count = 0
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


@njit(nogil=True)
def _collect(level, allowed, lo, hi, out_codes, out_places):
    """Write code and place of every legal child of [lo, hi), ascending by code; returns how many."""
    layout, codes, _, words, _, _ = level
    has_filter, _, _, denied_D = allowed
    if has_filter:
        return _collect_allowed(level, allowed, lo, hi, out_codes, out_places)
    begin, end = _children_bounds(level, lo, hi)
    count = 0
    if layout == _COLUMN:
        first, last = begin >> 6, (end - 1) >> 6
        for word in range(first, last + 1):
            bits = words[word]
            if word == first:
                bits &= ~np.uint64(0) << np.uint64(begin & 63)
            if word == last:
                bits &= ~np.uint64(0) >> np.uint64(63 - ((end - 1) & 63))
            while bits != np.uint64(0):
                place = (word << 6) + np.int64(trailing_zeros(bits))
                bits &= bits - np.uint64(1)
                out_codes[count] = codes[place]
                out_places[count] = place
                count += 1
    else:
        count = end - begin
        for child in range(count):
            out_codes[child] = codes[begin + child]
            out_places[child] = begin + child
    if denied_D.size > 0:
        kept = 0
        for child in range(count):
            child_lo, child_hi = _child_range(level, out_places[child])
            # Only a child with no more leaves than there are denied ones can be denied altogether.
            if child_hi - child_lo > denied_D.size or _denied_in(denied_D, child_lo, child_hi) < child_hi - child_lo:
                out_codes[kept], out_places[kept] = out_codes[child], out_places[child]
                kept += 1
        count = kept
    return count


@njit(nogil=True)
def _first_at_least(codes, begin, end, code):
    """The first place of ascending codes[begin:end] whose code is at least `code`; no branch that could be mispredicted."""
    size = end - begin
    while size > 1:
        half = size >> 1
        begin = begin + half if codes[begin + half - 1] < code else begin
        size -= half
    return begin + 1 if size == 1 and codes[begin] < code else begin


@njit(nogil=True)
def _scan_pays(row, chunks, least, children, alive, leaves):
    """Whether walking the chunks above the threshold is cheaper than collecting (at most `children` of) a range's children.

    A chunk costs about as much as 60 collected children; with a filter that leaves a share of 1/s, s times the survivors fail.
    """
    if alive * 4 < leaves or children * 16 < row.size:
        return False
    hot = 0
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        hot += chunks[chunk] >= least
    return hot * 60 < min(children, row.size) + leaves // 64


@njit(nogil=True)
def _log_sum_exp(row, chunks):
    """(largest logit, log-sum-exp); NaN where the row holds NaN or +inf; the chunks' maxima are left in `chunks`."""
    top = chunk_maxima(row, chunks)
    total = sum_exp(row, top if top > np.float32(-np.inf) else np.float32(0.0))
    if not total < np.float32(np.inf) or top == np.float32(np.inf):
        return top, np.float32(np.nan)
    return top, top + np.float32(math.log(total))


@njit(nogil=True)
def _scan(level, allowed, restricted, begin, end, row, beam, chunks, least, candidates, count, threshold, num_beams):
    """Offer every code of the row that beats the threshold and is a legal child; returns (count, threshold)."""
    codes = level[1]
    base, lse, parent = beam
    keys, parents, chosen, places, scratch = candidates
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
def _offer(row, beam, child_codes, child_places, candidates, count, threshold, num_beams):
    """Offer the collected children; returns (count, threshold)."""
    base, lse, parent = beam
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


@njit(nogil=True)
def _allowed_of(filters, request, num_leaves):
    """One request's (has_filter, words, before, denied)."""
    words_B, before_B, denied_B1, denied = filters
    has_filter = words_B[request] != 0
    num_words = num_leaves // 64 + 1 if has_filter else 0
    words = array_at(words_B[request], num_words, np.uint64)
    before = array_at(before_B[request], num_words, np.uint32)
    return has_filter, words, before, denied[denied_B1[request] : denied_B1[request + 1]]


@njit(cache=True, nogil=True)
def _children(level, lo_BK, hi_BK, filters, row_R1, code_C, lo_C, hi_C):
    """All rows' legal children; returns how many."""
    count = 0
    for b in range(lo_BK.shape[0]):
        allowed = _allowed_of(filters, b, level[5])
        for k in range(lo_BK.shape[1]):
            lo, hi = lo_BK[b, k], hi_BK[b, k]
            if lo < hi and _alive(allowed, lo, hi) > 0:
                found = _collect(level, allowed, lo, hi, code_C[count:], lo_C[count:])
                for child in range(count, count + found):
                    lo_C[child], hi_C[child] = _child_range(level, lo_C[child])
                count += found
            row_R1[b * lo_BK.shape[1] + k + 1] = count
    return count


@njit(cache=True, nogil=True)
def _step(level, lo_BK, hi_BK, scores_BK, logits_BKV, filters, full, out, out_scores):
    """All requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf."""
    num_leaves = level[5]
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
    nothing = np.float32(-np.inf)
    for b in range(batch_size):
        allowed = _allowed_of(filters, b, num_leaves)
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
                beam = (base, lse, k)
                if threshold > nothing:
                    begin, end = _children_bounds(level, lo, hi)
                    # `least` may let a chunk too many through; the scan compares scores exactly.
                    least = threshold - base + lse
                    least -= np.float32(1e-5) * (abs(threshold) + abs(base) + abs(lse))
                    if _scan_pays(row, chunks, least, end - begin, alive, hi - lo):
                        count, threshold = _scan(
                            level,
                            allowed,
                            alive < hi - lo,
                            begin,
                            end,
                            row,
                            beam,
                            chunks,
                            least,
                            candidates,
                            count,
                            threshold,
                            num_beams,
                        )
                        continue
                found = _collect(level, allowed, lo, hi, child_codes, child_places)
            else:
                found = _collect(level, allowed, lo, hi, child_codes, child_places)
                for child in range(found):
                    child_logits[child] = row[child_codes[child]]
                top, lse = _log_sum_exp(child_logits[:found], chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
                beam = (base, lse, k)
            count, threshold = _offer(
                row, beam, child_codes[:found], child_places[:found], candidates, count, threshold, num_beams
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
