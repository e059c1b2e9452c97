"""One round over all rows of a batch, in compiled loops.

    for each request, each live beam in order:
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed"), unless every code is legal
        for each legal child that can still be among the best: score = beam score + logit - lse; keep the K best

A row takes the cheaper of two ways to its children:
    collect: walk the children of the range; through a filter, one visit for each child that it leaves alive
    scan: walk the chunks of logits that beat the threshold and search the survivors among the children (for wide ranges);
        without a threshold yet, a guess that K children will most likely beat, and collecting if they do not
A beam over two segments is one row: a child of either is offered once, by its *index*: i of the base, or -1 - i of the delta
where the base does not have it; the range in the delta of a survivor that both have is found at the end.

Shapes: S segments, B requests, K beams, V codes, C children of a row.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import math
from typing import NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import prefetch, trailing_zeros
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.boosts import Boost, boost_of, has_boost, with_boost
from leafbeam.ops.constrain.cpu.children import (
    AllowedLeaves,
    FilterAddresses,
    alive_in,
    allowed_of,
    bits_between,
    child_range,
    children_bounds,
    code_at,
    collect,
    find_alive,
    find_codes,
    has_every_code,
    is_alive,
)
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK, codes_above, log_sum_exp
from leafbeam.ops.constrain.cpu.topk import (
    Candidates,
    arrival_of,
    candidates_in,
    compact,
    is_excluded,
    kth_largest,
    offer,
    push,
    score_of,
    sort_best,
)
from leafbeam.ops.constrain.levels import COLUMN, LISTING, LevelView
from leafbeam.ops.constrain.types import LOWEST


@njit(nogil=True, _nrt=False)
def _scan_pays(row, chunks, min_logit, children, alive, leaves):
    """Return whether walking the chunks above the threshold is cheaper than collecting (at most `children` of) a range's
    children.

    A chunk costs about as much as 35 collected children; with a filter that leaves a share of 1/s, s times the survivors fail.
    """
    if alive * 4 < leaves or children * 16 < row.size:
        return False
    hot = 0
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        hot += chunks[chunk] >= min_logit
    return hot * 35 < min(children, row.size) + leaves // 64


@njit(nogil=True, _nrt=False)
def _guess(row, chunks, children, alive, leaves, num_beams, scratch):
    """Return a logit that about 3/2 K of a wide range's children beat; -inf where chunks are too few to tell, or children too
    few.

    If values are spread evenly, and j of n chunks have a maximum above a logit, then n ln(n / (n - j)) values are above it.
    """
    chunk_count = (row.size + CHUNK - 1) // CHUNK
    if alive * 4 < leaves or children * 16 < row.size:
        return np.float32(-np.inf)
    expected = 1.5 * num_beams * row.size * leaves / (children * alive)
    above = math.ceil(chunk_count * (1.0 - math.exp(-expected / chunk_count)))
    if expected > 4.0 * chunk_count or above > chunk_count:
        return np.float32(-np.inf)
    for chunk in range(chunk_count):
        scratch[chunk] = chunks[chunk]
    return kth_largest(scratch, chunk_count, above)


class Search(NamedTuple):
    """The search of one request: the levels of base and delta, the leaves allowed in them, the candidates, and the boost."""

    levels: tuple[LevelView, LevelView]
    allowed: tuple[AllowedLeaves, AllowedLeaves]
    candidates: Candidates
    num_beams: int
    boost: Boost | None


class Ranges(NamedTuple):
    """The ranges of a beam in base and delta, (0, 0) where nothing is alive, and the leaves alive in the base."""

    lo: int
    hi: int
    lo_1: int
    hi_1: int
    alive: int


class Beam(NamedTuple):
    """A row of the batch: the score of its beam, the log-sum-exp of its logits, its number."""

    score: float
    lse: float
    number: int


@njit(nogil=True, _nrt=False)
def _score(beam, logit, threshold):
    """Return the score of a child, at least `LOWEST`; -inf if it is not above the threshold or the model excludes it."""
    score = beam.score + (logit - beam.lse)
    if score <= threshold:
        return np.float32(-np.inf) if is_excluded(logit, threshold) else np.float32(LOWEST)
    return score


@njit(nogil=True, _nrt=False)
def _least_logit(beam, threshold):
    """Return a logit below which no child of a row beats the threshold; others are compared by their scores."""
    least = threshold - beam.score + beam.lse
    return least - np.float32(1e-5) * (abs(threshold) + abs(beam.score) + abs(beam.lse))


@njit(nogil=True, _nrt=False)
def _places_above(values, chunks, least, out_places):
    """Write the places of the values that are at least `least`, by the maxima of their chunks; returns how many."""
    size = 0
    for chunk in range((values.size + CHUNK - 1) // CHUNK):
        if chunks[chunk] < least:
            continue
        above = codes_above(values, chunk * CHUNK, least)
        while above != np.uint64(0):
            out_places[size] = chunk * CHUNK + np.int64(trailing_zeros(above))
            above &= above - np.uint64(1)
            size += 1
    return size


@njit(nogil=True, _nrt=False)
def _keep_above(child_logits, chunks, min_logit, space):
    """Keep the collected children with a logit of at least `min_logit` in space[0]; returns how many."""
    places = space[1, 0]
    size = _places_above(child_logits, chunks, min_logit, places)
    for child in range(size):
        space[0, 0, child], space[0, 1, child] = space[0, 0, places[child]], space[0, 1, places[child]]
    return size


@njit(nogil=True, _nrt=False)
def _collect_above(search, ranges, row, chunks, min_logit, space):
    """Write (codes, indices) of the legal children with a logit of at least `min_logit` to space[0]; returns how many."""
    begin, end = children_bounds(search.levels[0], ranges.lo, ranges.hi)
    begin_1, end_1 = np.int64(0), np.int64(0)
    if ranges.lo_1 < ranges.hi_1:
        begin_1, end_1 = children_bounds(search.levels[1], ranges.lo_1, ranges.hi_1)
    codes, indices = space[0, 0], space[0, 1]
    size = _places_above(row, chunks, min_logit, codes)
    if search.levels[0].layout != COLUMN and end - begin == row.size:  # every code is a child: its place is known
        for child in range(size):
            indices[child] = begin + codes[child]
    else:
        find_codes(search.levels[0], begin, end, codes[:size], indices)
    every, kept = ranges.alive == ranges.hi - ranges.lo, 0
    for child in range(size):
        code, index = codes[child], indices[child]
        if index < 0 or not (every or is_alive(search.levels[0], search.allowed[0], index)):
            if begin_1 == end_1:
                continue
            found = find_alive(search.levels[1], search.allowed[1], begin_1, end_1, code)
            if found < 0:
                continue
            index = -1 - found
        codes[kept], indices[kept] = code, index
        kept += 1
    return kept


@njit(nogil=True, _nrt=False)
def _offer_column(search, ranges, row, beam, min_logit, count, threshold):
    """Collect and offer in one walk the children of a range in a column, all of which are alive; returns (count, threshold)."""
    level, lo, hi = search.levels[0], ranges.lo, ranges.hi
    for word in range(lo >> 6, ((hi - 1) >> 6) + 1):
        bits = bits_between(level.words, word, lo, hi)
        while bits != np.uint64(0):
            index = (word << 6) + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            code = code_at(level, index)
            if row[code] < min_logit:
                continue
            score = _score(beam, row[code], threshold)
            if score > np.float32(-np.inf):
                score = with_boost(search, ranges, beam, code, index, score, threshold)
            if score > np.float32(-np.inf):
                count, threshold = push(search.candidates, count, threshold, search.num_beams, score, beam.number, code, index)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _scan_row(search, ranges, row, beam, chunks, scratch, space, count, threshold):
    """Offer a row's children without collecting them first, if that pays; returns (whether it did, count, threshold)."""
    neg_inf, level = np.float32(-np.inf), search.levels[0]
    lo, hi, alive, num_beams = ranges.lo, ranges.hi, ranges.alive, search.num_beams
    if alive == 0 or (threshold == neg_inf and count > 0):
        return False, count, threshold
    begin, end = children_bounds(level, lo, hi)
    if threshold == neg_inf:
        min_logit = _guess(row, chunks, end - begin, alive, hi - lo, num_beams, scratch)
        if min_logit > neg_inf:
            guess = beam.score + (min_logit - beam.lse)
            size = _collect_above(search, ranges, row, chunks, min_logit, space)
            count, threshold = offer_children(search, ranges, row, beam, space[0, :, :size], count, guess)
            if count >= num_beams:  # K children beat the guess: no other can be among the best
                return True, count, threshold
        return False, 0, neg_inf
    min_logit = _least_logit(beam, threshold)
    if _scan_pays(row, chunks, min_logit, end - begin, alive, hi - lo):
        size = _collect_above(search, ranges, row, chunks, min_logit, space)
        count, threshold = offer_children(search, ranges, row, beam, space[0, :, :size], count, threshold)
        return True, count, threshold
    if level.layout == COLUMN and alive == hi - lo and not search.allowed[0].has_filter and ranges.lo_1 >= ranges.hi_1:
        count, threshold = _offer_column(search, ranges, row, beam, min_logit, count, threshold)
        return True, count, threshold
    return False, count, threshold


@njit(nogil=True, _nrt=False)
def _collect_row(levels, allowed, ranges, space):
    """Write (codes, indices) of a row's legal children in both segments to space[0], ascending by code; returns how many."""
    lo, hi, lo_1, hi_1 = ranges.lo, ranges.hi, ranges.lo_1, ranges.hi_1
    if lo_1 >= hi_1:
        return collect(levels[0], allowed[0], lo, hi, space[0, 0], space[0, 1])
    if lo >= hi:
        count = collect(levels[1], allowed[1], lo_1, hi_1, space[0, 0], space[0, 1])
        for child in range(count):
            space[0, 1, child] = -1 - space[0, 1, child]
        return count
    size = collect(levels[0], allowed[0], lo, hi, space[1, 0], space[1, 1])
    size_1 = collect(levels[1], allowed[1], lo_1, hi_1, space[2, 0], space[2, 1])
    count, base, delta = 0, 0, 0
    while base < size or delta < size_1:
        if delta == size_1 or (base < size and space[1, 0, base] <= space[2, 0, delta]):
            if delta < size_1 and space[1, 0, base] == space[2, 0, delta]:
                delta += 1
            space[0, 0, count], space[0, 1, count] = space[1, 0, base], space[1, 1, base]
            base += 1
        else:
            space[0, 0, count], space[0, 1, count] = space[2, 0, delta], -1 - space[2, 1, delta]
            delta += 1
        count += 1
    return count


@njit(nogil=True, _nrt=False)
def _ranges_of(levels, allowed_1, parent, code, index):
    """Return (lo, hi) in the base and (lo, hi) in the delta of a child; parent: the `Ranges` of its beam."""
    if index < 0:
        child_lo, child_hi = child_range(levels[1], -1 - index)
        return np.int64(0), np.int64(0), child_lo, child_hi
    base_lo, base_hi = child_range(levels[0], index)
    if parent.lo_1 < parent.hi_1:
        begin, end = children_bounds(levels[1], parent.lo_1, parent.hi_1)
        index = find_alive(levels[1], allowed_1, begin, end, code)
        if index >= 0:
            child_lo, child_hi = child_range(levels[1], index)
            return base_lo, base_hi, child_lo, child_hi
    return base_lo, base_hi, np.int64(0), np.int64(0)


@njit(nogil=True, _nrt=False, inline="always")
def _ranges_in(lo_SBK, hi_SBK, b, k):
    """Return the `Ranges` of a beam; the delta's is empty if there is no delta, and all leaves count as alive."""
    lo, hi = lo_SBK[0, b, k], hi_SBK[0, b, k]
    if lo_SBK.shape[0] == 1:
        return Ranges(lo, hi, np.int64(0), np.int64(0), hi - lo)
    return Ranges(lo, hi, lo_SBK[1, b, k], hi_SBK[1, b, k], hi - lo)


@njit(nogil=True, _nrt=False, inline="always")
def _alive_ranges(allowed, ranges):
    """Return the ranges of a beam without those in which nothing is alive."""
    lo, hi, lo_1, hi_1 = ranges.lo, ranges.hi, ranges.lo_1, ranges.hi_1
    alive = alive_in(allowed[0], lo, hi)
    if alive <= 0:
        lo, hi, alive = np.int64(0), np.int64(0), np.int64(0)
    if lo_1 < hi_1 and alive_in(allowed[1], lo_1, hi_1) <= 0:
        lo_1, hi_1 = np.int64(0), np.int64(0)
    return Ranges(lo, hi, lo_1, hi_1, alive)


@njit(nogil=True, _nrt=False)
def _named(levels, filters):
    """Return ((base, delta) levels, (base, delta) filters) with names for their fields."""
    views = LevelView(*levels[0]), LevelView(*levels[1])
    return views, (FilterAddresses(*filters[0]), FilterAddresses(*filters[1]))


@njit(nogil=True, _nrt=False)
def _allowed_in(levels, filters, request):
    """Return the `AllowedLeaves` of a request in base and delta."""
    base = allowed_of(filters[0], request, levels[0].num_leaves)
    return base, allowed_of(filters[1], request, levels[1].num_leaves)


@njit(cache=True, nogil=True, _nrt=False)
def children_of_rows(levels, lo_SBK, hi_SBK, filters, space, row_indptr, code_C, lo_SC, hi_SC):
    """Write the legal children of all rows; returns how many there are."""
    count = 0
    levels, filters = _named(levels, filters)
    num_segments, batch_size, num_rows = lo_SBK.shape
    for b in range(batch_size):
        allowed = _allowed_in(levels, filters, b)
        for k in range(num_rows):
            ranges = _ranges_in(lo_SBK, hi_SBK, b, k)
            size = 0
            if ranges.lo < ranges.hi or ranges.lo_1 < ranges.hi_1:
                size = _collect_row(levels, allowed, ranges, space)
            for child in range(size):
                code_C[count] = space[0, 0, child]
                reached = _ranges_of(levels, allowed[1], ranges, space[0, 0, child], space[0, 1, child])
                lo_SC[0, count], hi_SC[0, count] = reached[0], reached[1]
                if num_segments > 1:
                    lo_SC[1, count], hi_SC[1, count] = reached[2], reached[3]
                count += 1
            row_indptr[b * num_rows + k + 1] = count
    return count


class BestChildren(NamedTuple):
    """The output of a round: (parent, code), (lo, hi), scores, and the number of valid beams of each request."""

    parent_code: NDArray[np.int64]
    ranges: NDArray[np.int64]
    scores_BK: NDArray[np.float32]
    num_valid_B: NDArray[np.int64]


@njit(nogil=True, _nrt=False)
def _prefetch_codes(level, lo, hi):
    """Load the codes of a range's children into the cache while something else is computed."""
    prefetch(level.words, lo >> 6)
    for leaf in range(lo, min(hi, lo + 1024), 32):
        prefetch(level.codes, leaf if level.width == 0 else (leaf * level.width) >> 6)


@njit(nogil=True, _nrt=False)
def _sole_logit(level, index, row):
    """Return (logit, log-sum-exp) of a row with one legal child; NaN where the logit is NaN or +inf."""
    logit = row[code_at(level, index)]
    return logit, logit if logit < np.float32(np.inf) else np.float32(np.nan)


def offer_children(search, ranges, row, beam, children, count, threshold) -> tuple[int, float]:
    """Offer the collected children of a row, (codes, indices); returns (count, threshold)."""
    raise NotImplementedError("compiled code only")


@overload(offer_children, jit_options={"_nrt": False})
def _offer_children(search, ranges, row, beam, children, count, threshold):
    def plain(search, ranges, row, beam, children, count, threshold):
        codes, indices, base, lse = children[0], children[1], beam.score, beam.lse
        candidates, num_beams = search.candidates, search.num_beams
        return offer(row, codes, codes, indices, base, lse, beam.number, candidates, count, threshold, num_beams)

    def boosted(search, ranges, row, beam, children, count, threshold):
        for child in range(children.shape[1]):
            code, index = children[0, child], children[1, child]
            score = _score(beam, row[code], threshold)
            if score > np.float32(-np.inf):
                score = with_boost(search, ranges, beam, code, index, score, threshold)
            if score > np.float32(-np.inf):
                count, threshold = push(search.candidates, count, threshold, search.num_beams, score, beam.number, code, index)
        return count, threshold

    return boosted if has_boost(search) else plain


@njit(nogil=True, _nrt=False, inline="always")
def _write_best(search, count, lo_SBK, hi_SBK, b, best):
    """Write the best candidates of a request in order, with the ranges that they reach."""
    candidates = search.candidates
    count = sort_best(candidates, count, search.num_beams)
    best.num_valid_B[b] = count
    for slot in range(count):
        key = candidates.keys[slot]
        candidate = arrival_of(key)
        parent, code = candidates.parents[candidate], candidates.codes[candidate]
        best.scores_BK[b, slot] = score_of(key)
        best.parent_code[0, b, slot], best.parent_code[1, b, slot] = parent, code
        ranges = _ranges_in(lo_SBK, hi_SBK, b, parent)
        reached = _ranges_of(search.levels, search.allowed[1], ranges, code, candidates.indices[candidate])
        best.ranges[0, 0, b, slot], best.ranges[1, 0, b, slot] = reached[0], reached[1]
        if lo_SBK.shape[0] > 1:
            best.ranges[0, 1, b, slot], best.ranges[1, 1, b, slot] = reached[2], reached[3]


@njit(cache=True, nogil=True, _nrt=False)
def step_of_rows(levels, lo_SBK, hi_SBK, scores_BK, logits_BKV, filters, boosts, full, buffers, space, floats, out):
    """Run a round for all requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf.

    boosts: the fields of `BoostAddresses`, or None. buffers: of `candidate_buffers`. space: for codes and indices of a row's
    children. floats: (2, ...), for a row's logits and the maxima of its chunks. out: the fields of `BestChildren`, written.
    """
    levels, filters = _named(levels, filters)
    best, candidates, level, neg_inf = BestChildren(*out), candidates_in(buffers), levels[0], np.float32(-np.inf)
    _, batch_size, num_rows = lo_SBK.shape
    num_beams = best.scores_BK.shape[1]
    child_logits, chunks = floats[0], floats[1]
    for b in range(batch_size):
        best.scores_BK[b] = neg_inf
        search = Search(levels, _allowed_in(levels, filters, b), candidates, num_beams, boost_of(boosts, levels, b))
        count, threshold = 0, neg_inf
        for k in range(num_rows):
            if 2 * count >= 3 * num_beams or (threshold == neg_inf and count >= num_beams):
                threshold = compact(candidates, count, num_beams)
                count = num_beams
            base = scores_BK[b, k]
            ranges = _ranges_in(lo_SBK, hi_SBK, b, k)
            # No step can raise a score (lse >= every logit of the row, in float32 too), so such a beam is out.
            if (ranges.lo >= ranges.hi and ranges.lo_1 >= ranges.hi_1) or base <= threshold:
                continue
            ranges = _alive_ranges(search.allowed, ranges)
            if ranges.alive == 0 and ranges.lo_1 >= ranges.hi_1:
                continue
            row, size = logits_BKV[b, k], 0
            # A leaf has one child, whose index is known.
            is_forced = ranges.hi - ranges.lo == 1 and ranges.lo_1 >= ranges.hi_1 and level.layout != LISTING
            reads_row = full  # or every code is legal, so that both scorings read the same logits
            if not full and ranges.alive == ranges.hi - ranges.lo and ranges.lo_1 >= ranges.hi_1:
                reads_row = has_every_code(level, ranges.lo, ranges.hi, row.size)
            if k + 1 < num_rows and level.layout != LISTING:
                _prefetch_codes(level, lo_SBK[0, b, k + 1], hi_SBK[0, b, k + 1])
            if reads_row:
                top, lse = log_sum_exp(row, chunks)
            elif is_forced:
                top, lse = _sole_logit(level, ranges.lo, row)
            else:
                size = _collect_row(levels, search.allowed, ranges, space)
                for child in range(size):
                    child_logits[child] = row[space[0, 0, child]]
                top, lse = log_sum_exp(child_logits[:size], chunks)
            if math.isnan(lse):
                return b * num_rows + k
            if top == neg_inf or (threshold > neg_inf and base + (top - lse) <= threshold):
                continue
            beam = Beam(base, lse, k)
            if is_forced:
                code = code_at(level, ranges.lo)
                score = with_boost(search, ranges, beam, code, ranges.lo, _score(beam, row[code], threshold), threshold)
                if score > threshold:
                    count, threshold = push(candidates, count, threshold, num_beams, score, k, code, ranges.lo)
                continue
            if reads_row:
                is_done, count, threshold = _scan_row(search, ranges, row, beam, chunks, child_logits, space, count, threshold)
                if is_done:
                    continue
                size = _collect_row(levels, search.allowed, ranges, space)
            elif threshold > neg_inf:
                size = _keep_above(child_logits[:size], chunks, _least_logit(beam, threshold), space)
            count, threshold = offer_children(search, ranges, row, beam, space[0, :, :size], count, threshold)
        _write_best(search, count, lo_SBK, hi_SBK, b, best)
    return -1
