"""One round over all rows of a batch, in compiled loops: what `cpu.step` and `cpu.children` run.

    for each request, each live beam in order:
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each legal child that can still be among the best: score = beam score + logit - lse; keep the K best

Two ways to meet a row's children, whichever is cheaper for it:
    collect: walk the children of the range; through a filter, one visit for each child that it leaves alive
    scan: walk the chunks of logits that beat the threshold and search each survivor among the children (a wide range); where
        there is no threshold yet, a guess that K children will most likely beat, and collecting if they do not
A beam over two segments is met as one row: what is found in either is offered once, known by its *place*: p of the base, or
-1 - p of the delta where the base does not have it; the delta's range of a survivor in both is found at the end.

Shapes: S segments, B requests, K beams, V codes, C children of a row.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import math

import numpy as np

from leafbeam.index.bit_kernels import prefetch, trailing_zeros
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.children import (
    COLUMN,
    LISTING,
    alive_in,
    allowed_of,
    child_range,
    children_bounds,
    code_at,
    collect,
    find_code,
)
from leafbeam.ops.constrain.logsumexp import CHUNK, codes_above, log_sum_exp
from leafbeam.ops.constrain.topk import arrival_of, compact, key_of, kth_largest, least_of_groups, score_of, sort_descending

__all__ = ["children_of_rows", "step_of_rows"]


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
def _guess(row, chunks, children, alive, leaves, num_beams, scratch):
    """A logit that about 3/2 K of a wide range's children beat; -inf where chunks are too few to tell, or children too few.

    Were values spread evenly, j of n chunks having a maximum above it would mean that n ln(n / (n - j)) values are.
    """
    chunk_count = (row.size + CHUNK - 1) // CHUNK
    if alive * 4 < leaves or children * 16 < row.size:
        return np.float32(-np.inf)
    wanted = 1.5 * num_beams * row.size * leaves / (children * alive)
    above = math.ceil(chunk_count * (1.0 - math.exp(-wanted / chunk_count)))
    if wanted > 4.0 * chunk_count or above > chunk_count:
        return np.float32(-np.inf)
    for chunk in range(chunk_count):
        scratch[chunk] = chunks[chunk]
    return kth_largest(scratch, chunk_count, above)


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
def _scan(levels, allowed, restricted, bounds, row, beam, chunks, least, candidates, count, threshold, num_beams):
    """Offer every code of the row that beats the threshold and is a legal child; returns (count, threshold)."""
    base, lse, parent = beam
    begin, end, begin_1, end_1 = bounds
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
            place = find_code(levels[0], begin, end, code)
            if place >= 0 and restricted:
                child_lo, child_hi = child_range(levels[0], place)
                if alive_in(allowed[0], child_lo, child_hi) <= 0:
                    place = np.int64(-1)
            if place < 0:
                if begin_1 >= end_1:
                    continue
                place = find_code(levels[1], begin_1, end_1, code)
                if place < 0:
                    continue
                child_lo, child_hi = child_range(levels[1], place)
                if alive_in(allowed[1], child_lo, child_hi) <= 0:
                    continue
                place = -1 - place
            count, threshold = _push(candidates, count, threshold, num_beams, score, parent, code, place)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _offer_column(level, lo, hi, row, beam, least, candidates, count, threshold, num_beams):
    """Collect and offer in one walk: the children of [lo, hi) in a column, none of them restricted."""
    codes, words, width = level[1], level[3], level[6]
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
            code = code_at(codes, width, place)
            value = row[code]
            if value < least:
                continue
            score = base + (value - lse)
            if score <= threshold:
                continue
            count, threshold = _push(candidates, count, threshold, num_beams, score, parent, code, place)
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


@njit(nogil=True, _nrt=False)
def _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space):
    """Write (codes, places) of a row's legal children in both segments to space[0], ascending by code; returns how many."""
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
def _ranges_of(levels, allowed_1, lo_1, hi_1, code, place):
    """(lo, hi) in the base and (lo, hi) in the delta of a child, whose parent has [lo_1, hi_1) in the delta."""
    if place < 0:
        child_lo, child_hi = child_range(levels[1], -1 - place)
        return np.int64(0), np.int64(0), child_lo, child_hi
    base_lo, base_hi = child_range(levels[0], place)
    if lo_1 < hi_1:
        begin, end = children_bounds(levels[1], lo_1, hi_1)
        place = find_code(levels[1], begin, end, code)
        if place >= 0:
            child_lo, child_hi = child_range(levels[1], place)
            if alive_in(allowed_1, child_lo, child_hi) > 0:
                return base_lo, base_hi, child_lo, child_hi
    return base_lo, base_hi, np.int64(0), np.int64(0)


@njit(nogil=True, _nrt=False)
def _range_in(lo_SBK, hi_SBK, segment, b, k):
    """The range of a beam in a segment; an empty one in a segment that is not there."""
    if segment >= lo_SBK.shape[0]:
        return np.int64(0), np.int64(0)
    return lo_SBK[segment, b, k], hi_SBK[segment, b, k]


@njit(cache=True, nogil=True, _nrt=False)
def children_of_rows(levels, lo_SBK, hi_SBK, filters, space, row_indptr, code_C, lo_SC, hi_SC):
    """All rows' legal children; returns how many."""
    count = 0
    num_segments, batch_size, num_rows = lo_SBK.shape
    for b in range(batch_size):
        allowed = (allowed_of(filters[0], b, levels[0][5]), allowed_of(filters[1], b, levels[1][5]))
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
def step_of_rows(levels, lo_SBK, hi_SBK, scores_BK, logits_BKV, filters, full, work, out):
    """All requests of a batch; returns -1, or the flat number of a row that holds NaN or +inf."""
    parent_code, ranges, out_scores, num_valid_B = out
    level = levels[0]
    num_segments, batch_size, num_rows = lo_SBK.shape
    num_beams = out_scores.shape[1]
    keys, scratch = work[0][0], work[0][1]
    parents, chosen, places = work[1][0], work[1][1], work[1][2]
    space = work[2]
    child_logits, chunks = work[3][0], work[3][1]
    candidates = (keys, parents, chosen, places, scratch)
    nothing = np.float32(-np.inf)
    for b in range(batch_size):
        out_scores[b] = nothing
        allowed = (allowed_of(filters[0], b, level[5]), allowed_of(filters[1], b, levels[1][5]))
        count, threshold = 0, nothing
        for k in range(num_rows):
            if count >= 2 * num_beams or (threshold == nothing and count >= num_beams):
                threshold = compact(keys, parents, chosen, places, count, num_beams, scratch)
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
            forced = hi - lo == 1 and lo_1 >= hi_1 and level[0] != LISTING  # a leaf: one child, and where it is
            if full:
                # The codes of the next row's children arrive while this row is summed.
                if k + 1 < num_rows and level[0] != LISTING:
                    next_lo, next_hi = lo_SBK[0, b, k + 1], hi_SBK[0, b, k + 1]
                    prefetch(level[3], next_lo >> 6)
                    for leaf in range(next_lo, min(next_hi, next_lo + 1024), 32):
                        prefetch(level[1], leaf if level[6] == 0 else (leaf * level[6]) >> 6)
                top, lse = log_sum_exp(row, chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
                beam = (base, lse, k)
                if forced:
                    code = code_at(level[1], level[6], lo)
                    score = base + (row[code] - lse)
                    if score > threshold:
                        count, threshold = _push(candidates, count, threshold, num_beams, score, k, code, lo)
                    continue
                if (threshold > nothing or count == 0) and alive > 0:
                    begin, end = children_bounds(level, lo, hi)
                    guessed = threshold == nothing
                    if guessed:
                        least = _guess(row, chunks, end - begin, alive, hi - lo, num_beams, child_logits)
                        threshold = base + (least - lse)
                    else:
                        # It may let a chunk too many through; the scan compares scores exactly.
                        least = threshold - base + lse
                        least -= np.float32(1e-5) * (abs(threshold) + abs(base) + abs(lse))
                    if least > nothing if guessed else _scan_pays(row, chunks, least, end - begin, alive, hi - lo):
                        begin_1, end_1 = children_bounds(levels[1], lo_1, hi_1) if lo_1 < hi_1 else (np.int64(0), np.int64(0))
                        count, threshold = _scan(
                            levels,
                            allowed,
                            alive < hi - lo,
                            (begin, end, begin_1, end_1),
                            row,
                            beam,
                            chunks,
                            least,
                            candidates,
                            count,
                            threshold,
                            num_beams,
                        )
                        if not guessed or count >= num_beams:
                            continue  # K children beat the guess: no other can be among the best
                    if guessed:
                        count, threshold = 0, nothing
                    if not guessed and level[0] == COLUMN and alive == hi - lo and not allowed[0][0] and lo_1 >= hi_1:
                        count, threshold = _offer_column(
                            level, lo, hi, row, beam, least, candidates, count, threshold, num_beams
                        )
                        continue
                found = _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space)
            elif forced:
                code = code_at(level[1], level[6], lo)
                if not row[code] < np.float32(np.inf):
                    return b * num_rows + k
                if row[code] > nothing:  # among the legal codes it is certain
                    count, threshold = _push(candidates, count, threshold, num_beams, base, k, code, lo)
                continue
            else:
                found = _collect_row(levels, allowed, lo, hi, lo_1, hi_1, space)
                for child in range(found):
                    child_logits[child] = row[space[0, 0, child]]
                top, lse = log_sum_exp(child_logits[:found], chunks)
                if math.isnan(lse):
                    return b * num_rows + k
                if top == nothing or base + (top - lse) <= threshold:
                    continue
                beam = (base, lse, k)
            count, threshold = _offer(
                row, beam, space[0, 0, :found], space[0, 1, :found], candidates, count, threshold, num_beams
            )
        if count > num_beams:
            compact(keys, parents, chosen, places, count, num_beams, scratch)
            count = num_beams
        num_valid_B[b] = count
        sort_descending(keys, count)
        for slot in range(count):
            candidate = arrival_of(keys[slot])
            parent, code = parents[candidate], chosen[candidate]
            out_scores[b, slot] = score_of(keys[slot])
            parent_code[0, b, slot], parent_code[1, b, slot] = parent, code
            lo_1, hi_1 = _range_in(lo_SBK, hi_SBK, 1, b, parent)
            found_in = _ranges_of(levels, allowed[1], lo_1, hi_1, code, places[candidate])
            ranges[0, 0, b, slot], ranges[1, 0, b, slot] = found_in[0], found_in[1]
            if num_segments > 1:
                ranges[0, 1, b, slot], ranges[1, 1, b, slot] = found_in[2], found_in[3]
    return -1
