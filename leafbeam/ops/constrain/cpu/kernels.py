"""One round over all rows of a batch, in compiled loops.

    for each request, each live beam in order:
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each legal child that can still be among the best: score = beam score + logit - lse; keep the K best

A row takes the cheaper of two ways to its children:
    collect: walk the children of the range; through a filter, one visit for each child that it leaves alive
    scan: walk the chunks of logits that beat the threshold and search each survivor among the children (for wide ranges);
        without a threshold yet, a guess that K children will most likely beat, and collecting if they do not
A beam over two segments is one row: a child of either is offered once, by its *index*: i of the base, or -1 - i of the delta
where the base does not have it; the range in the delta of a survivor that both have is found at the end.

Shapes: S segments, B requests, K beams, V codes, C children of a row.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import math
from typing import NamedTuple

import numpy as np

from leafbeam.index.bit_kernels import prefetch, trailing_zeros
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.children import (
    FilterAddresses,
    alive_in,
    allowed_of,
    bits_between,
    child_range,
    children_bounds,
    code_at,
    collect,
    find_code,
)
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK, codes_above, log_sum_exp
from leafbeam.ops.constrain.cpu.topk import (
    arrival_of,
    candidates_in,
    compact,
    is_excluded,
    kth_largest,
    offer,
    push,
    score_of,
    sort_descending,
)
from leafbeam.ops.constrain.levels import COLUMN, LISTING, LevelView
from leafbeam.ops.constrain.types import LOWEST


@njit(nogil=True, _nrt=False)
def _scan_pays(row, chunks, min_logit, children, alive, leaves):
    """Whether walking the chunks above the threshold is cheaper than collecting (at most `children` of) a range's children.

    A chunk costs about as much as 50 collected children; with a filter that leaves a share of 1/s, s times the survivors fail.
    """
    if alive * 4 < leaves or children * 16 < row.size:
        return False
    hot = 0
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        hot += chunks[chunk] >= min_logit
    return hot * 50 < min(children, row.size) + leaves // 64


@njit(nogil=True, _nrt=False)
def _guess(row, chunks, children, alive, leaves, num_beams, scratch):
    """A logit that about 3/2 K of a wide range's children beat; -inf where chunks are too few to tell, or children too few.

    Were values spread evenly, j of n chunks having a maximum above it would mean that n ln(n / (n - j)) values are.
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


class Beam(NamedTuple):
    """A row of the batch: its beam's score, the log-sum-exp of its logits, its number."""

    score: float
    lse: float
    number: int


@njit(nogil=True, _nrt=False)
def _scan(levels, allowed, restricted, bounds, row, beam, chunks, min_logit, candidates, count, threshold, num_beams):
    """Offer every code of the row that beats the threshold and is a legal child; returns (count, threshold)."""
    begin, end, begin_1, end_1 = bounds
    for chunk in range((row.size + CHUNK - 1) // CHUNK):
        if chunks[chunk] < min_logit:
            continue
        above = codes_above(row, chunk * CHUNK, min_logit)
        while above != np.uint64(0):
            code = chunk * CHUNK + np.int64(trailing_zeros(above))
            above &= above - np.uint64(1)
            score = beam.score + (row[code] - beam.lse)
            if score <= threshold:
                if is_excluded(row[code], threshold):
                    continue
                score = np.float32(LOWEST)
            index = find_code(levels[0], begin, end, code)
            if index >= 0 and restricted:
                child_lo, child_hi = child_range(levels[0], index)
                if alive_in(allowed[0], child_lo, child_hi) <= 0:
                    index = np.int64(-1)
            if index < 0:
                if begin_1 >= end_1:
                    continue
                index = find_code(levels[1], begin_1, end_1, code)
                if index < 0:
                    continue
                child_lo, child_hi = child_range(levels[1], index)
                if alive_in(allowed[1], child_lo, child_hi) <= 0:
                    continue
                index = -1 - index
            count, threshold = push(candidates, count, threshold, num_beams, score, beam.number, code, index)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _offer_column(level, lo, hi, row, beam, min_logit, candidates, count, threshold, num_beams):
    """Collect and offer in one walk: the children of [lo, hi) in a column, none of them restricted."""
    for word in range(lo >> 6, ((hi - 1) >> 6) + 1):
        bits = bits_between(level.words, word, lo, hi)
        while bits != np.uint64(0):
            index = (word << 6) + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            code = code_at(level, index)
            value = row[code]
            if value < min_logit:
                continue
            score = beam.score + (value - beam.lse)
            if score <= threshold:
                if is_excluded(value, threshold):
                    continue
                score = np.float32(LOWEST)
            count, threshold = push(candidates, count, threshold, num_beams, score, beam.number, code, index)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space):
    """Write (codes, indices) of a row's legal children in both segments to space[0], ascending by code; returns how many."""
    if lo_1 >= hi_1:
        return collect(levels[0], allowed[0], lo, hi, space[0, 0], space[0, 1])
    if lo >= hi:
        count = collect(levels[1], allowed[1], lo_1, hi_1, space[0, 0], space[0, 1])
        for child in range(count):
            space[0, 1, child] = -1 - space[0, 1, child]
        return count
    size = collect(levels[0], allowed[0], lo, hi, space[1, 0], space[1, 1])
    size_1 = collect(levels[1], allowed[1], lo_1, hi_1, space[2, 0], space[2, 1])
    count, one, other = 0, 0, 0
    while one < size or other < size_1:
        if other == size_1 or (one < size and space[1, 0, one] <= space[2, 0, other]):
            if other < size_1 and space[1, 0, one] == space[2, 0, other]:
                other += 1
            space[0, 0, count], space[0, 1, count] = space[1, 0, one], space[1, 1, one]
            one += 1
        else:
            space[0, 0, count], space[0, 1, count] = space[2, 0, other], -1 - space[2, 1, other]
            other += 1
        count += 1
    return count


@njit(nogil=True, _nrt=False)
def _ranges_of(levels, allowed_1, lo_1, hi_1, code, index):
    """(lo, hi) in the base and (lo, hi) in the delta of a child, whose parent has [lo_1, hi_1) in the delta."""
    if index < 0:
        child_lo, child_hi = child_range(levels[1], -1 - index)
        return np.int64(0), np.int64(0), child_lo, child_hi
    base_lo, base_hi = child_range(levels[0], index)
    if lo_1 < hi_1:
        begin, end = children_bounds(levels[1], lo_1, hi_1)
        index = find_code(levels[1], begin, end, code)
        if index >= 0:
            child_lo, child_hi = child_range(levels[1], index)
            if alive_in(allowed_1, child_lo, child_hi) > 0:
                return base_lo, base_hi, child_lo, child_hi
    return base_lo, base_hi, np.int64(0), np.int64(0)


@njit(nogil=True, _nrt=False)
def _range_in(lo_SBK, hi_SBK, segment, b, k):
    """The range of a beam in a segment; an empty one in a segment that is not there."""
    if segment >= lo_SBK.shape[0]:
        return np.int64(0), np.int64(0)
    return lo_SBK[segment, b, k], hi_SBK[segment, b, k]


@njit(nogil=True, _nrt=False)
def _named(levels, filters):
    """((base, delta) levels, (base, delta) filters) with names for their fields."""
    views = LevelView(*levels[0]), LevelView(*levels[1])
    return views, (FilterAddresses(*filters[0]), FilterAddresses(*filters[1]))


@njit(nogil=True, _nrt=False)
def _allowed_in(levels, filters, request):
    """The `AllowedLeaves` of a request in base and delta."""
    base = allowed_of(filters[0], request, levels[0].num_leaves)
    return base, allowed_of(filters[1], request, levels[1].num_leaves)


@njit(cache=True, nogil=True, _nrt=False)
def children_of_rows(levels, lo_SBK, hi_SBK, filters, space, row_indptr, code_C, lo_SC, hi_SC):
    """All rows' legal children; returns how many."""
    count = 0
    levels, filters = _named(levels, filters)
    num_segments, batch_size, num_rows = lo_SBK.shape
    for b in range(batch_size):
        allowed = _allowed_in(levels, filters, b)
        for k in range(num_rows):
            lo, hi = lo_SBK[0, b, k], hi_SBK[0, b, k]
            lo_1, hi_1 = _range_in(lo_SBK, hi_SBK, 1, b, k)
            found = _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space) if lo < hi or lo_1 < hi_1 else 0
            for child in range(found):
                code_C[count] = space[0, 0, child]
                ranges = _ranges_of(levels, allowed[1], lo_1, hi_1, space[0, 0, child], space[0, 1, child])
                lo_SC[0, count], hi_SC[0, count] = ranges[0], ranges[1]
                if num_segments > 1:
                    lo_SC[1, count], hi_SC[1, count] = ranges[2], ranges[3]
                count += 1
            row_indptr[b * num_rows + k + 1] = count
    return count


@njit(cache=True, nogil=True, _nrt=False)
def step_of_rows(levels, lo_SBK, hi_SBK, scores_BK, logits_BKV, filters, full, buffers, space, floats, out):
    """All requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf.

    buffers: of `candidate_buffers`. space: for codes and indices of a row's children. floats: (2, ...), for a row's logits and
    the maxima of its chunks. out: (parent and code, lo and hi, scores, num_valid), written.
    """
    parent_code, ranges, out_scores, num_valid_B = out
    levels, filters = _named(levels, filters)
    level = levels[0]
    num_segments, batch_size, num_rows = lo_SBK.shape
    num_beams = out_scores.shape[1]
    candidates = candidates_in(buffers)
    child_logits, chunks = floats[0], floats[1]
    neg_inf = np.float32(-np.inf)
    for b in range(batch_size):
        out_scores[b] = neg_inf
        allowed = _allowed_in(levels, filters, b)
        count, threshold = 0, neg_inf
        for k in range(num_rows):
            if count >= 2 * num_beams or (threshold == neg_inf and count >= num_beams):
                threshold = compact(candidates, count, num_beams)
                count = num_beams
            lo, hi, base = lo_SBK[0, b, k], hi_SBK[0, b, k], scores_BK[b, k]
            lo_1, hi_1 = _range_in(lo_SBK, hi_SBK, 1, b, k)
            # No step can raise a score (lse >= every logit of the row, in float32 too), so such a beam is out.
            if (lo >= hi and lo_1 >= hi_1) or base <= threshold:
                continue
            alive = alive_in(allowed[0], lo, hi)
            if alive <= 0:
                lo, hi, alive = np.int64(0), np.int64(0), np.int64(0)
            if lo_1 < hi_1 and alive_in(allowed[1], lo_1, hi_1) <= 0:
                lo_1, hi_1 = np.int64(0), np.int64(0)
            if alive == 0 and lo_1 >= hi_1:
                continue
            row = logits_BKV[b, k]
            forced = hi - lo == 1 and lo_1 >= hi_1 and level.layout != LISTING  # a leaf: one child, and where it is
            if full:
                # The codes of the next row's children arrive while this row is summed.
                if k + 1 < num_rows and level.layout != LISTING:
                    next_lo, next_hi = lo_SBK[0, b, k + 1], hi_SBK[0, b, k + 1]
                    prefetch(level.words, next_lo >> 6)
                    for leaf in range(next_lo, min(next_hi, next_lo + 1024), 32):
                        prefetch(level.codes, leaf if level.width == 0 else (leaf * level.width) >> 6)
                top, lse = log_sum_exp(row, chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == neg_inf or (threshold > neg_inf and base + (top - lse) <= threshold):
                    continue
                beam = Beam(base, lse, k)
                if forced:
                    code = code_at(level, lo)
                    score = beam.score + (row[code] - beam.lse)
                    if score <= threshold and not is_excluded(row[code], threshold):
                        score = np.float32(LOWEST)
                    if score > threshold:
                        count, threshold = push(candidates, count, threshold, num_beams, score, k, code, lo)
                    continue
                if (threshold > neg_inf or count == 0) and alive > 0:
                    begin, end = children_bounds(level, lo, hi)
                    guessed = threshold == neg_inf
                    if guessed:
                        min_logit = _guess(row, chunks, end - begin, alive, hi - lo, num_beams, child_logits)
                        threshold = base + (min_logit - lse)
                    else:
                        # It may let a chunk too many through; the scan compares scores exactly.
                        min_logit = threshold - base + lse
                        min_logit -= np.float32(1e-5) * (abs(threshold) + abs(base) + abs(lse))
                    if min_logit > neg_inf if guessed else _scan_pays(row, chunks, min_logit, end - begin, alive, hi - lo):
                        begin_1, end_1 = children_bounds(levels[1], lo_1, hi_1) if lo_1 < hi_1 else (np.int64(0), np.int64(0))
                        count, threshold = _scan(
                            levels,
                            allowed,
                            alive < hi - lo,
                            (begin, end, begin_1, end_1),
                            row,
                            beam,
                            chunks,
                            min_logit,
                            candidates,
                            count,
                            threshold,
                            num_beams,
                        )
                        if not guessed or count >= num_beams:
                            continue  # K children beat the guess: no other can be among the best
                    if guessed:
                        count, threshold = 0, neg_inf
                    if (
                        not guessed
                        and level.layout == COLUMN
                        and alive == hi - lo
                        and not allowed[0].has_filter
                        and lo_1 >= hi_1
                    ):
                        count, threshold = _offer_column(
                            level, lo, hi, row, beam, min_logit, candidates, count, threshold, num_beams
                        )
                        continue
                found = _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space)
            elif forced:
                code = code_at(level, lo)
                if not row[code] < np.float32(np.inf):
                    return b * num_rows + k
                if row[code] > neg_inf:  # among the legal codes it is certain
                    count, threshold = push(candidates, count, threshold, num_beams, base, k, code, lo)
                continue
            else:
                found = _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space)
                for child in range(found):
                    child_logits[child] = row[space[0, 0, child]]
                top, lse = log_sum_exp(child_logits[:found], chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == neg_inf or (threshold > neg_inf and base + (top - lse) <= threshold):
                    continue
            codes, indices = space[0, 0, :found], space[0, 1, :found]
            count, threshold = offer(row, codes, codes, indices, base, lse, k, candidates, count, threshold, num_beams)
        if count > num_beams:
            compact(candidates, count, num_beams)
            count = num_beams
        num_valid_B[b] = count
        sort_descending(candidates.keys, count)
        for slot in range(count):
            key = candidates.keys[slot]
            candidate = arrival_of(key)
            parent, code = candidates.parents[candidate], candidates.codes[candidate]
            out_scores[b, slot] = score_of(key)
            parent_code[0, b, slot], parent_code[1, b, slot] = parent, code
            lo_1, hi_1 = _range_in(lo_SBK, hi_SBK, 1, b, parent)
            found_in = _ranges_of(levels, allowed[1], lo_1, hi_1, code, candidates.indices[candidate])
            ranges[0, 0, b, slot], ranges[1, 0, b, slot] = found_in[0], found_in[1]
            if num_segments > 1:
                ranges[0, 1, b, slot], ranges[1, 1, b, slot] = found_in[2], found_in[3]
    return -1
