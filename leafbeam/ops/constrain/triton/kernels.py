"""The two launches of a constrained round on a GPU, in Triton: every row alone, then every request alone.

    row_kernel, one program for each beam
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each child of the range that the filter leaves alive: key = (score, parent, code) as one integer
        keep the K largest keys; nothing of size V is ever written
    request_kernel, one program for each request
        keep the K largest of the rows' keys, put them in order, find their ranges in each segment

A key is the score made sortable (32 bits) above parent x V + code counted backwards (32 bits), so that one comparison of
integers gives (score desc, parent asc, code asc) and no two keys are equal. `least` is shared by the rows of a request: a row
with K keys raises it to its K-th, and later rows skip what is below. That changes what is read, never what is found. `r` is
the `Round`.

Shapes: S segments, B requests, R rows of a request (its beams), V codes, K beams kept, P the power of two that holds K.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

from leafbeam.ops.constrain.triton.ranges import alive_in, child, find, num_children

__all__ = [
    "NO_KEY",
    "best_of_request",
    "keep",
    "key_at",
    "key_of",
    "request_kernel",
    "row_kernel",
    "start_row",
    "store_best",
    "sum_exp_at",
    "sum_exp_of_row",
]

NO_KEY = -(1 << 63)
_NOTHING = tl.constexpr(NO_KEY)
_TIES = tl.constexpr(0xFFFFFFFF)


@triton.jit
def key_of(score, tie):
    """The sortable key of a score; of equal scores the smaller `tie` wins."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # + 0.0 makes -0.0 equal to 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (_TIES - tie)


@triton.jit
def _legal(segments, beam, lane, FORM_0: tl.constexpr, FORM_1: tl.constexpr, SEGMENTS: tl.constexpr):
    """(code, whether it may be taken) of these children of a beam: those in the base, then those in the delta."""
    request, lo, hi, first, count, lo_1, hi_1, first_1, count_1 = beam
    in_base = lane < count
    code, begin, end = child(segments[0], lo, hi, first + lane, first + count, in_base, FORM_0)
    legal = in_base & (alive_in(segments[0], request, begin, end, in_base, FORM_0) > 0)
    if SEGMENTS > 1:  # noqa: SIM102 (SEGMENTS is known when the kernel is compiled, count_1 is not)
        if count_1 > 0:
            in_delta = (lane >= count) & (lane < count + count_1)
            node = first_1 + lane - count
            code_1, begin, end = child(segments[1], lo_1, hi_1, node, first_1 + count_1, in_delta, FORM_1)
            legal_1 = alive_in(segments[1], request, begin, end, in_delta, FORM_1) > 0
            # What is alive in the base was met there already.
            begin, end = find(segments[0], lo, hi, code_1, in_delta, FORM_0)
            met = alive_in(segments[0], request, begin, end, begin < end, FORM_0) > 0
            legal = tl.where(in_delta, legal_1 & (met == 0), legal)
            code = tl.where(in_delta, code_1, code)
    return code, legal


@triton.jit
def sum_exp_at(logits, code, legal, top, summed):
    """Add the logits of legal codes to a sum of exponentials that is kept relative to the largest so far -> (largest, sum)."""
    values = tl.load(logits + code, mask=legal, other=float("-inf")).to(tl.float32)
    highest = tl.maximum(top, tl.max(values, 0))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, summed * tl.exp(top - shift) + tl.sum(tl.exp(values - shift), 0)


@triton.jit
def key_at(logits, code, legal, base, lse, parent, size):
    """The keys of a beam's legal codes, `NO_KEY` for the others."""
    score = base + (tl.load(logits + code, mask=legal, other=float("-inf")).to(tl.float32) - lse)
    return tl.where(score > float("-inf"), key_of(score, parent * size + code), _NOTHING)


@triton.jit
def merge(best, keys, scratch, num_beams, P: tl.constexpr):
    """The `num_beams` largest of two vectors of keys, through P places of memory -> (best, how many, the least of them).

    The threshold is searched between the smallest and the largest key until exactly so many lie above it.
    """
    some, others = best > _NOTHING, keys > _NOTHING
    above = tl.sum(some.to(tl.int32), 0) + tl.sum(others.to(tl.int32), 0)
    high = tl.maximum(tl.max(best, 0), tl.max(keys, 0)) + 1
    low = tl.minimum(tl.min(tl.where(some, best, high), 0), tl.min(tl.where(others, keys, high), 0))
    while above > num_beams:
        middle = (low & high) + ((low ^ high) >> 1)
        reached = tl.sum((best >= middle).to(tl.int32), 0) + tl.sum((keys >= middle).to(tl.int32), 0)
        enough = reached >= num_beams
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        above = tl.where(enough, reached, above)
    some, others = some & (best >= low), others & (keys >= low)
    at = tl.cumsum(some.to(tl.int32), 0)
    tl.store(scratch + at - 1, best, mask=some)
    at = tl.sum(some.to(tl.int32), 0) + tl.cumsum(others.to(tl.int32), 0)
    tl.store(scratch + at - 1, keys, mask=others)
    tl.debug_barrier()  # what other threads have stored is about to be read
    lane = tl.arange(0, P)
    best = tl.load(scratch + lane, mask=lane < above, other=_NOTHING)
    tl.debug_barrier()
    return best, above, low


@triton.jit
def keep(best, kept, least, keys, scratch, num_beams, P: tl.constexpr):
    """Merge in what is not below `least`, which rises once there are K keys -> (best, how many, least)."""
    keys = tl.where(keys >= least, keys, _NOTHING)
    if tl.max(keys, 0) > _NOTHING:
        best, kept, lowest = merge(best, keys, scratch, num_beams, P)
        least = tl.where(kept >= num_beams, tl.maximum(least, lowest), least)
    return best, kept, least


@triton.jit
def start_row(r):
    """(request, parent, flat row) of this program: p works on beam p // B of request p % B, so the best beams come first."""
    program = tl.program_id(0).to(tl.int64)
    request = program % r.batch_size
    parent = program // r.batch_size
    row = request * r.num_rows + parent
    tl.store(r.count_BR + row, 0)
    return request, parent, row


@triton.jit
def sum_exp_of_row(logits, size, top, summed, BLOCK: tl.constexpr):
    """(largest, sum of exponentials relative to it) of all logits of a row."""
    start = 0
    while start < size:
        code = start + tl.arange(0, BLOCK)
        top, summed = sum_exp_at(logits, code, code < size, top, summed)
        start += BLOCK
    return top, summed


@triton.jit
def store_best(r, request, row, kept, least):
    """Note how many keys a row has; a full row raises the bound below which no key of its request counts."""
    tl.store(r.count_BR + row, kept)
    if kept >= r.num_beams:
        tl.atomic_max(r.least_B + request, least, sem="relaxed")


@triton.jit
def row_kernel(
    segments,
    r,
    FORM_0: tl.constexpr,
    FORM_1: tl.constexpr,
    SEGMENTS: tl.constexpr,
    FULL: tl.constexpr,
    P: tl.constexpr,
    TILE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write up to P keys of a row and their number; some may be `NO_KEY`. A row with NaN or +inf is noted in `bad`."""
    request, parent, row = start_row(r)
    lo, hi = tl.load(r.lo_SBR + row), tl.load(r.hi_SBR + row)
    lo_1, hi_1 = lo * 0, lo * 0
    if SEGMENTS > 1:
        rows = r.batch_size * r.num_rows
        lo_1, hi_1 = tl.load(r.lo_SBR + rows + row), tl.load(r.hi_SBR + rows + row)
    base = tl.load(r.scores_BR + row)
    least = tl.load(r.least_B + request, cache_modifier=".cg")
    # No step can raise a score, so a beam whose own is too low is out, unread.
    if ((lo >= hi) & (lo_1 >= hi_1)) | (base == float("-inf")) | (key_of(base, lo * 0) < least):
        return
    logits = r.logits_BRV + request * r.stride_b + parent * r.stride_r
    first, count = num_children(segments[0], lo, hi, FORM_0)
    first_1, count_1 = lo_1, hi_1 - lo_1
    if SEGMENTS > 1:
        first_1, count_1 = num_children(segments[1], lo_1, hi_1, FORM_1)
    total = count + count_1
    beam = (request, lo, hi, first, count, lo_1, hi_1, first_1, count_1)

    top, summed = base * 0 - float("inf"), base * 0
    if FULL:
        top, summed = sum_exp_of_row(logits, r.size, top, summed, BLOCK)
    else:
        start = 0
        while start < total:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            code, legal = _legal(segments, beam, lane, FORM_0, FORM_1, SEGMENTS)
            top, summed = sum_exp_at(logits, code, legal, top, summed)
            start += TILE
    if (summed != summed) | (top == float("inf")):
        tl.store(r.bad, row + 1)
        return
    lse = top + tl.log(tl.maximum(summed, 1.0))  # never below the row's largest logit
    if (top == float("-inf")) | (key_of(base + (top - lse), lo * 0) < least):
        return

    keys_P = r.keys_BRP + row * P
    if total <= P:
        start = 0
        while start < total:
            lane = start + tl.arange(0, NARROW).to(tl.int64)
            code, legal = _legal(segments, beam, lane, FORM_0, FORM_1, SEGMENTS)
            key = key_at(logits, code, legal, base, lse, parent, r.size)
            tl.store(keys_P + lane, key, mask=lane < total)
            start += NARROW
        tl.store(r.count_BR + row, total.to(tl.int32))
    else:
        best = tl.full([P], _NOTHING, tl.int64)
        kept = tl.sum(tl.zeros([P], tl.int32), 0)
        start = 0
        while start < total:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            code, legal = _legal(segments, beam, lane, FORM_0, FORM_1, SEGMENTS)
            key = key_at(logits, code, legal, base, lse, parent, r.size)
            best, kept, least = keep(best, kept, least, key, keys_P, r.num_beams, P)
            start += TILE
        store_best(r, request, row, kept, least)


@triton.jit
def best_of_request(r, request, P: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, CHUNK: tl.constexpr):
    """(slot, whether it is live, parent, code) of the best keys of all rows; writes their scores, parents, codes and number.

    Leaves `least_B` as the next round needs it.
    """
    scratch = r.scratch_BP + request * P
    least = tl.load(r.least_B + request)
    best = tl.full([P], _NOTHING, tl.int64)
    kept = tl.sum(tl.zeros([P], tl.int32), 0)
    first_row = 0
    while first_row < r.num_rows:
        row = first_row + tl.arange(0, ROWS).to(tl.int64)
        count = tl.load(r.count_BR + request * r.num_rows + row, mask=row < r.num_rows, other=0)
        start = 0
        while start < tl.max(count, 0):
            entry = start + tl.arange(0, ENTRIES)
            at = (request * r.num_rows + row)[:, None] * P + entry[None, :]
            keys = tl.load(r.keys_BRP + at, mask=entry[None, :] < count[:, None], other=_NOTHING)
            best, kept, least = keep(best, kept, least, tl.reshape(keys, [ROWS * ENTRIES]), scratch, r.num_beams, P)
            start += ENTRIES
        first_row += ROWS
    tl.store(r.least_B + request, _NOTHING)
    tl.store(r.out_num_valid_B + request, kept.to(tl.int64))
    lane = tl.arange(0, P)
    live = lane < kept
    slot = tl.zeros([P], tl.int32)  # a key's slot is how many are larger
    start = 0
    while start < kept:
        other = start + tl.arange(0, CHUNK)
        keys = tl.load(scratch + other, mask=other < kept, other=_NOTHING)
        slot += tl.sum((keys[None, :] > best[:, None]).to(tl.int32), 1)
        start += CHUNK
    slot = tl.where(live, slot, lane)
    tie = _TIES - (best & _TIES)
    bits = (best >> 32).to(tl.int32)
    score = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    parent, code = tl.where(live, tie // r.size, 0), tl.where(live, tie % r.size, 0)
    out, inside = request * r.num_beams + slot, slot < r.num_beams
    tl.store(r.out_scores_BK + out, tl.where(live, score, float("-inf")), mask=inside)
    tl.store(r.out_parent_BK + out, parent, mask=inside)
    tl.store(r.out_code_BK + out, code, mask=inside)
    return slot, live, parent, code


@triton.jit
def _write_ranges(segment, lo_R, hi_R, out_lo, out_hi, request, parent, code, live, at, num_beams, FORM: tl.constexpr):
    """Write the ranges in one segment of the children that were kept; (0, 0) where nothing of one is alive there."""
    lo, hi = tl.load(lo_R + parent, mask=live, other=0), tl.load(hi_R + parent, mask=live, other=0)
    begin, end = find(segment, lo, hi, code, live, FORM)
    alive = alive_in(segment, request, begin, end, begin < end, FORM) > 0
    tl.store(out_lo + at, tl.where(alive, begin, 0), mask=at < num_beams)
    tl.store(out_hi + at, tl.where(alive, end, 0), mask=at < num_beams)


@triton.jit
def request_kernel(
    segments,
    r,
    FORM_0: tl.constexpr,
    FORM_1: tl.constexpr,
    SEGMENTS: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program b writes the new beams of request b."""
    request = tl.program_id(0).to(tl.int64)
    slot, live, parent, code = best_of_request(r, request, P, ROWS, ENTRIES, CHUNK)
    for segment in tl.static_range(SEGMENTS):
        rows, slots = (segment * r.batch_size + request) * r.num_rows, (segment * r.batch_size + request) * r.num_beams
        _write_ranges(
            segments[segment],
            r.lo_SBR + rows,
            r.hi_SBR + rows,
            r.out_lo_SBK + slots,
            r.out_hi_SBK + slots,
            request,
            parent,
            code,
            live,
            slot,
            r.num_beams,
            FORM_0 if segment == 0 else FORM_1,
        )
