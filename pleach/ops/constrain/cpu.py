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
from pleach.index.bits import prefetch, trailing_zeros
from pleach.ops.constrain.beams import Beams, RequestFilter, Scoring
from pleach.ops.constrain.normalize import CHUNK, chunk_maxima, codes_above, sum_exp
from pleach.ops.constrain.ranges import (
    COLUMN,
    LEAVES,
    LISTING,
    alive_in,
    allowed_of,
    child_range,
    children_bounds,
    collect,
    first_at_least,
)
from pleach.ops.constrain.select import arrival_of, compact, key_of, least_of_groups, score_of, sort_descending

__all__ = ["FilterArrays", "TrieArrays", "bind", "bind_filters", "children", "step"]


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
    kinds = {"listing": LISTING, "column": COLUMN, "leaves": LEAVES}
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
    scores = np.empty(shape, np.float32)
    taken = np.zeros((4, *shape), np.int64)
    num_valid_B = np.zeros(batch_size, np.int64)
    on = (filters.words_B, filters.before_B, filters.denied_B1, filters.denied)
    candidates, children = _work_space(num_beams, logits_BKV.shape[2], arrays.num_leaves)
    full = scoring == "full"
    bad = _step(
        arrays.levels[level], lo_BK, hi_BK, scores_BK, logits_BKV, on, full, candidates, children, taken, scores, num_valid_B
    )
    if bad >= 0:
        request, beam = divmod(bad, lo_BK.shape[1])
        raise LogitsError(
            f"the logits of request {request}, beam {beam} at level {level} hold NaN or +inf: expected finite numbers, or -inf "
            f"for a code that must not be taken; look at the model's output"
        )
    parent, code, lo, hi = taken
    return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid_B)


def _work_space(num_beams: int, num_codes: int, num_leaves: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """[keys, scratch] and [parents, codes, places] of candidates; [codes, places] and [logits, chunk maxima] of a row."""
    capacity = 4 * num_beams + 64
    most = min(num_codes, num_leaves)
    candidates = (np.empty((2, capacity), np.uint64), np.empty((3, capacity), np.int64))
    return candidates, (np.empty((2, most), np.int64), np.empty((2, max(most, num_codes // CHUNK + 1)), np.float32))


@njit(nogil=True, _nrt=False)
def _scan_pays(row, chunks, least, children, alive, leaves):
    """Whether walking the chunks above the threshold is cheaper than collecting (at most `children` of) a range's children.

    A chunk costs about as much as 50 collected children; with a filter that leaves a share of 1/s, s times the survivors fail.
    """
    if alive * 4 < leaves or children * 16 < row.size:
        return False
    hot = 0
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        hot += chunks[chunk] >= least
    return hot * 50 < min(children, row.size) + leaves // 64


@njit(nogil=True, _nrt=False)
def _log_sum_exp(row, chunks):
    """(largest logit, log-sum-exp); NaN where the row holds NaN or +inf; the chunks' maxima are left in `chunks`."""
    top = chunk_maxima(row, chunks)
    total = sum_exp(row, top if top > np.float32(-np.inf) else np.float32(0.0))
    if not total < np.float32(np.inf) or top == np.float32(np.inf):
        return top, np.float32(np.nan)
    return top, top + np.float32(math.log(total))


@njit(nogil=True, _nrt=False)
def _push(candidates, count, threshold, num_beams, score, parent, code, place):
    """Add a candidate that beats the threshold, and compact the buffer when it is full; returns (count, threshold)."""
    keys, parents, chosen, places, scratch = candidates
    keys[count] = key_of(score, count)
    parents[count], chosen[count], places[count] = parent, code, place
    if count + 1 < keys.size:
        return count + 1, threshold
    return num_beams, compact(keys, parents, chosen, places, count + 1, num_beams, scratch)


@njit(nogil=True, _nrt=False)
def _scan(level, allowed, restricted, begin, end, row, beam, chunks, least, candidates, count, threshold, num_beams):
    """Offer every code of the row that beats the threshold and is a legal child; returns (count, threshold)."""
    codes = level[1]
    base, lse, parent = beam
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        if chunks[chunk] < least:
            continue
        above = codes_above(row, chunk * CHUNK, least)
        while above != np.uint64(0):
            code = chunk * CHUNK + np.int64(trailing_zeros(above))
            above &= above - np.uint64(1)
            score = base + (row[code] - lse)
            if score <= threshold:
                continue
            place = first_at_least(codes, begin, end, code)
            if place == end or codes[place] != code:
                continue
            if restricted:
                child_lo, child_hi = child_range(level, place)
                if alive_in(allowed, child_lo, child_hi) <= 0:
                    continue
            count, threshold = _push(candidates, count, threshold, num_beams, score, parent, code, place)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _offer_column(codes, words, lo, hi, row, beam, least, candidates, count, threshold, num_beams):
    """Collect and offer in one walk: the children of [lo, hi) in a column, none of them restricted."""
    base, lse, parent = beam
    first, last = lo >> 6, (hi - 1) >> 6
    for word in range(first, last + 1):
        bits = words[word]
        if word == first:
            bits &= ~np.uint64(0) << np.uint64(lo & 63)
        if word == last:
            bits &= ~np.uint64(0) >> np.uint64(63 - ((hi - 1) & 63))
        while bits != np.uint64(0):
            place = (word << 6) + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            value = row[codes[place]]
            if value < least:
                continue
            score = base + (value - lse)
            if score <= threshold:
                continue
            count, threshold = _push(candidates, count, threshold, num_beams, score, parent, codes[place], place)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _offer(row, beam, child_codes, child_places, candidates, count, threshold, num_beams):
    """Offer the collected children; returns (count, threshold)."""
    base, lse, parent = beam
    if threshold == np.float32(-np.inf) and child_codes.size >= 4 * num_beams:
        # The first row of many children: a threshold that at least K of them reach saves most of the sorting.
        threshold = least_of_groups(row, base, lse, child_codes, num_beams, candidates[4])
    for child in range(child_codes.size):
        score = base + (row[child_codes[child]] - lse)
        if score <= threshold:
            continue
        code, place = child_codes[child], child_places[child]
        count, threshold = _push(candidates, count, threshold, num_beams, score, parent, code, place)
    return count, threshold


@njit(cache=True, nogil=True, _nrt=False)
def _children(level, lo_BK, hi_BK, filters, row_R1, code_C, lo_C, hi_C):
    """All rows' legal children; returns how many."""
    count = 0
    for b in range(lo_BK.shape[0]):
        allowed = allowed_of(filters, b, level[5])
        for k in range(lo_BK.shape[1]):
            lo, hi = lo_BK[b, k], hi_BK[b, k]
            if lo < hi and alive_in(allowed, lo, hi) > 0:
                found = collect(level, allowed, lo, hi, code_C[count:], lo_C[count:])
                for child in range(count, count + found):
                    lo_C[child], hi_C[child] = child_range(level, lo_C[child])
                count += found
            row_R1[b * lo_BK.shape[1] + k + 1] = count
    return count


@njit(cache=True, nogil=True, _nrt=False)
def _step(level, lo_BK, hi_BK, scores_BK, logits_BKV, filters, full, work, children, taken, out_scores, num_valid_B):
    """All requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf."""
    num_leaves = level[5]
    out_parent, out_code, out_lo, out_hi = taken[0], taken[1], taken[2], taken[3]
    batch_size, num_rows = lo_BK.shape
    num_beams = out_scores.shape[1]
    keys, scratch = work[0][0], work[0][1]
    parents, chosen, places = work[1][0], work[1][1], work[1][2]
    child_codes, child_places = children[0][0], children[0][1]
    child_logits, chunks = children[1][0], children[1][1]
    candidates = (keys, parents, chosen, places, scratch)
    nothing = np.float32(-np.inf)
    for b in range(batch_size):
        out_scores[b] = nothing
        allowed = allowed_of(filters, b, num_leaves)
        count, threshold = 0, nothing
        for k in range(num_rows):
            lo, hi, base = lo_BK[b, k], hi_BK[b, k], scores_BK[b, k]
            # No step can raise a score (lse >= every logit of the row, in float32 too), so such a beam is out.
            if lo >= hi or base <= threshold:
                continue
            alive = alive_in(allowed, lo, hi)
            if alive <= 0:
                continue
            row = logits_BKV[b, k]
            if full:
                # The codes of the next row's children arrive while this row is summed.
                if k + 1 < num_rows and level[0] != LISTING:
                    prefetch(level[3], lo_BK[b, k + 1] >> 6)
                    for leaf in range(lo_BK[b, k + 1], min(hi_BK[b, k + 1], lo_BK[b, k + 1] + 1024), 32):
                        prefetch(level[1], leaf)
                top, lse = _log_sum_exp(row, chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
                beam = (base, lse, k)
                if threshold > nothing:
                    begin, end = children_bounds(level, lo, hi)
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
                    if level[0] == COLUMN and alive == hi - lo and not allowed[0]:
                        count, threshold = _offer_column(
                            level[1], level[3], lo, hi, row, beam, least, candidates, count, threshold, num_beams
                        )
                        continue
                found = collect(level, allowed, lo, hi, child_codes, child_places)
            else:
                found = collect(level, allowed, lo, hi, child_codes, child_places)
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
        sort_descending(keys, count)
        for slot in range(count):
            candidate = arrival_of(keys[slot])
            out_scores[b, slot] = score_of(keys[slot])
            out_parent[b, slot] = parents[candidate]
            out_code[b, slot] = chosen[candidate]
            out_lo[b, slot], out_hi[b, slot] = child_range(level, places[candidate])
    return -1
