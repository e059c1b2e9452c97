"""The launches of a constrained round on a GPU, in Triton: every row alone, then every request alone; or all children.

    row_kernel, one program for each beam
        lse = log-sum-exp of the row ("full"), or of its legal children's logits ("allowed")
        for each child of the range that the filter leaves alive: key = (score, parent, code) as one integer
        with a boost the score has the largest boost below the child, less the largest below the beam: never positive
        keep the K largest keys; nothing of size V is ever written
    request_kernel, one program for each request
        keep the K largest of the rows' keys, put them in order, find their ranges in each segment

A key is the score made sortable (32 bits) above parent x V + code counted backwards (32 bits), so that one comparison of
integers gives (score desc, parent asc, code asc) and no two keys are equal. `min_key` is shared by the rows of a request: a row
with K keys raises it to its K-th, and later rows skip what is below. This changes which rows are read, but never the result.
`r` is the `Round`.

Shapes: S segments, B requests, R rows of a request (its beams), V codes, K beams kept, P the power of two that holds K.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from leafbeam.ops.constrain.triton.ranges import alive_in, boost_at, child, find, num_children
from leafbeam.ops.constrain.types import LOWEST

NO_KEY = -(1 << 63)
_NOTHING = tl.constexpr(NO_KEY)
_LOWEST = tl.constexpr(LOWEST)
_TIES = tl.constexpr(0xFFFFFFFF)


class Tiles(NamedTuple):
    """Sizes of vectors, known when a kernel is compiled.

    Args:
        P: The number of keys that are kept of a row.
        TILE: The number of candidates looked at together.
        NARROW: The same number where all candidates stay.
        BLOCK: The number of logits summed together.
    """

    P: tl.constexpr
    TILE: tl.constexpr
    NARROW: tl.constexpr
    BLOCK: tl.constexpr


class BeamChildren(NamedTuple):
    """The children of a beam: its request, and its range and first child and number of children in base and delta.

    Args:
        FORM_0, FORM_1: The forms of base and delta (see `form_of`).
        SEGMENTS: The number of segments.
        boosts: The `SegmentBoosts` of each segment; None without boosts.
        weight, bound: What the request's numbers are multiplied with, and the largest boost below the beam.
        BOOSTED: Whether there are boosts.
    """

    segments: tl.tuple
    request: tl.tensor
    lo: tl.tensor
    hi: tl.tensor
    first: tl.tensor
    count: tl.tensor
    lo_1: tl.tensor
    hi_1: tl.tensor
    first_1: tl.tensor
    count_1: tl.tensor
    FORM_0: tl.constexpr
    FORM_1: tl.constexpr
    SEGMENTS: tl.constexpr
    boosts: tl.tuple
    weight: tl.tensor
    bound: tl.tensor
    BOOSTED: tl.constexpr


class ChildLists(NamedTuple):
    """The ranges of all beams, and where their children are written: see `children` of `triton.step`."""

    lo_SR: Tensor
    hi_SR: Tensor
    row_indptr: Tensor
    code_C: Tensor
    lo_SC: Tensor
    hi_SC: Tensor
    rows: int
    num_rows: int
    total: int


@triton.jit
def key_of(score, tie):
    """Return the sortable key of a score; of equal scores the smaller `tie` wins."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # + 0.0 makes -0.0 equal to 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (_TIES - tie)


@triton.jit
def _legal(c, lane):
    """Return (code, whether it may be taken, change of the score) of these children of a beam: those in the base, then those in
    the delta.
    """
    in_base = lane < c.count
    change = lane.to(tl.float32) * 0
    value = change - float("inf")
    code, begin, end = child(c.segments[0], c.lo, c.hi, c.first + lane, c.first + c.count, in_base, c.FORM_0)
    legal = in_base & (alive_in(c.segments[0], c.request, begin, end, in_base, c.FORM_0) > 0)
    if c.BOOSTED:  # noqa: SIM102 (BOOSTED is known when the kernel is compiled, the weight is not)
        if c.weight != 0:
            value = _boost_in(c, 0, begin, legal, c.FORM_0)
            if c.SEGMENTS > 1:  # noqa: SIM102
                if c.count_1 > 0:
                    low, high = find(c.segments[1], c.lo_1, c.hi_1, code, legal, c.FORM_1)
                    met = alive_in(c.segments[1], c.request, low, high, low < high, c.FORM_1) > 0
                    value = tl.maximum(value, _boost_in(c, 1, low, met, c.FORM_1))
    if c.SEGMENTS > 1:  # noqa: SIM102 (SEGMENTS is known when the kernel is compiled, count_1 is not)
        if c.count_1 > 0:
            in_delta = (lane >= c.count) & (lane < c.count + c.count_1)
            node = c.first_1 + lane - c.count
            code_1, begin, end = child(c.segments[1], c.lo_1, c.hi_1, node, c.first_1 + c.count_1, in_delta, c.FORM_1)
            legal_1 = alive_in(c.segments[1], c.request, begin, end, in_delta, c.FORM_1) > 0
            if c.BOOSTED:  # noqa: SIM102
                if c.weight != 0:
                    value = tl.where(in_delta, _boost_in(c, 1, begin, in_delta, c.FORM_1), value)
            # What is alive in the base was met there already.
            begin, end = find(c.segments[0], c.lo, c.hi, code_1, in_delta, c.FORM_0)
            met = alive_in(c.segments[0], c.request, begin, end, begin < end, c.FORM_0) > 0
            legal = tl.where(in_delta, legal_1 & (met == 0), legal)
            code = tl.where(in_delta, code_1, code)
    if c.BOOSTED:  # noqa: SIM102
        if c.weight != 0:  # a product that is fused with the difference may round equal boosts apart
            change = tl.where(legal, tl.minimum(c.weight * value - c.bound, 0.0), 0.0)
    return code, legal, change


@triton.jit
def _boost_in(c, s: tl.constexpr, lo, valid, FORM: tl.constexpr):
    """Return the largest boost below the nodes of segment `s` that begin at these leaves, not multiplied."""
    address = tl.load(c.boosts[s].values_B + c.request)
    return boost_at(address, c.segments[s].words, c.segments[s].before, lo, valid, FORM)


@triton.jit
def _bound_of(boosts, request, s: tl.constexpr, lo, hi, FORM: tl.constexpr):
    """Return the largest boost of segment `s` below a beam, -inf if its range there is empty."""
    address = tl.load(boosts[s].bounds_B + request)
    return boost_at(address, boosts[s].words, boosts[s].before, lo, lo < hi, FORM)


@triton.jit
def _sum_exp_at(logits, code, legal, top, summed):
    """Add the logits of legal codes to a sum of exponentials relative to the largest so far; return (largest, sum)."""
    values = tl.load(logits + code, mask=legal, other=float("-inf")).to(tl.float32)
    highest = tl.maximum(top, tl.max(values, 0))
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, summed * tl.exp(top - shift) + tl.sum(tl.exp(values - shift), 0)


@triton.jit
def _added(base, change):
    """Return the score base + change, at least `LOWEST`, without an overflow on the way."""
    return base + tl.maximum(change, -(base - _LOWEST))  # a constant on the left fails in Triton 3.7's interpreter


@triton.jit
def _key_at(logits, code, legal, change, base, lse, parent, size):
    """Return the keys of a beam's legal codes, `NO_KEY` for the others."""
    value = tl.load(logits + code, mask=legal, other=float("-inf")).to(tl.float32)
    score = _added(_added(base, value - lse), change)
    return tl.where(value > float("-inf"), key_of(score, parent * size + code), _NOTHING)


@triton.jit
def _merge(best, keys, scratch, num_beams, P: tl.constexpr):
    """Return (the `num_beams` largest of two vectors of keys, how many there are, the smallest of them), through P elements of
    memory.

    The threshold is searched between the smallest and the largest key until exactly so many lie above it.
    """
    is_best, is_other = best > _NOTHING, keys > _NOTHING
    above = tl.sum(is_best.to(tl.int32), 0) + tl.sum(is_other.to(tl.int32), 0)
    high = tl.maximum(tl.max(best, 0), tl.max(keys, 0)) + 1
    low = tl.minimum(tl.min(tl.where(is_best, best, high), 0), tl.min(tl.where(is_other, keys, high), 0))
    while above > num_beams:
        middle = (low & high) + ((low ^ high) >> 1)
        reached = tl.sum((best >= middle).to(tl.int32), 0) + tl.sum((keys >= middle).to(tl.int32), 0)
        enough = reached >= num_beams
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        above = tl.where(enough, reached, above)
    is_best, is_other = is_best & (best >= low), is_other & (keys >= low)
    at = tl.cumsum(is_best.to(tl.int32), 0)
    tl.store(scratch + at - 1, best, mask=is_best)
    at = tl.sum(is_best.to(tl.int32), 0) + tl.cumsum(is_other.to(tl.int32), 0)
    tl.store(scratch + at - 1, keys, mask=is_other)
    tl.debug_barrier()  # what other threads have stored is about to be read
    lane = tl.arange(0, P)
    best = tl.load(scratch + lane, mask=lane < above, other=_NOTHING)
    tl.debug_barrier()
    return best, above, low


@triton.jit
def _keep(best, kept, min_key, keys, scratch, num_beams, P: tl.constexpr):
    """Merge in the keys from `min_key` on; return (best, how many, min_key), which rises once there are K keys."""
    keys = tl.where(keys >= min_key, keys, _NOTHING)
    if tl.max(keys, 0) > _NOTHING:
        best, kept, lowest = _merge(best, keys, scratch, num_beams, P)
        min_key = tl.where(kept >= num_beams, tl.maximum(min_key, lowest), min_key)
    return best, kept, min_key


@triton.jit
def start_row(r):
    """Return (request, parent, flat row) of this program: p works on beam p // B of request p % B, so the best beams come
    first.
    """
    program = tl.program_id(0).to(tl.int64)
    request = program % r.batch_size
    parent = program // r.batch_size
    row = request * r.num_rows + parent
    tl.store(r.count_BR + row, 0)
    return request, parent, row


@triton.jit
def search_row(r, request, parent, min_key, total, children, LEGAL: tl.constexpr, FULL: tl.constexpr, tiles):
    """Write up to P keys of a row and their number; some may be `NO_KEY`. A row with NaN or +inf is noted in `bad`.

    LEGAL(children, lane): (code, whether it may be taken, what else is added to its score) of these of the row's `total`
    candidates. A full row raises the bound below which no key of its request counts.
    """
    row = request * r.num_rows + parent
    base = tl.load(r.scores_BR + row)
    logits = r.logits_BRV + request * r.stride_b + parent * r.stride_r
    top, summed = base * 0 - float("inf"), base * 0
    start = 0
    if FULL:
        while start < r.size:
            code = start + tl.arange(0, tiles.BLOCK)
            top, summed = _sum_exp_at(logits, code, code < r.size, top, summed)
            start += tiles.BLOCK
    else:
        while start < total:
            code, legal, _ = LEGAL(children, start + tl.arange(0, tiles.TILE).to(tl.int64))
            top, summed = _sum_exp_at(logits, code, legal, top, summed)
            start += tiles.TILE
    if (summed != summed) | (top == float("inf")):
        tl.store(r.bad, row + 1)
        return
    lse = top + tl.log(tl.maximum(summed, 1.0))  # never below the row's largest logit
    if (top == float("-inf")) | (key_of(_added(base, top - lse), row * 0) < min_key):
        return
    keys_P = r.keys_BRP + row * tiles.P
    start = 0
    if total <= tiles.P:
        while start < total:
            lane = start + tl.arange(0, tiles.NARROW).to(tl.int64)
            code, legal, change = LEGAL(children, lane)
            key = _key_at(logits, code, legal, change, base, lse, parent, r.size)
            tl.store(keys_P + lane, key, mask=lane < total)
            start += tiles.NARROW
        tl.store(r.count_BR + row, total.to(tl.int32))
    else:
        best = tl.full([tiles.P], _NOTHING, tl.int64)
        kept = tl.sum(tl.zeros([tiles.P], tl.int32), 0)
        while start < total:
            code, legal, change = LEGAL(children, start + tl.arange(0, tiles.TILE).to(tl.int64))
            key = _key_at(logits, code, legal, change, base, lse, parent, r.size)
            best, kept, min_key = _keep(best, kept, min_key, key, keys_P, r.num_beams, tiles.P)
            start += tiles.TILE
        tl.store(r.count_BR + row, kept)
        if kept >= r.num_beams:
            tl.atomic_max(r.min_key_B + request, min_key, sem="relaxed")


@triton.jit
def row_kernel(
    segments,
    r,
    boosts,
    weight_B,
    FORM_0: tl.constexpr,
    FORM_1: tl.constexpr,
    SEGMENTS: tl.constexpr,
    FULL: tl.constexpr,
    P: tl.constexpr,
    TILE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK: tl.constexpr,
    BOOSTED: tl.constexpr,
    BEFORE_0: tl.constexpr,
    BEFORE_1: tl.constexpr,
):
    """`search_row` over the children of a beam's ranges. BEFORE_0, BEFORE_1: the forms of the level before, with boosts."""
    request, parent, row = start_row(r)
    lo, hi = tl.load(r.lo_SBR + row), tl.load(r.hi_SBR + row)
    lo_1, hi_1 = lo * 0, lo * 0
    if SEGMENTS > 1:
        rows = r.batch_size * r.num_rows
        lo_1, hi_1 = tl.load(r.lo_SBR + rows + row), tl.load(r.hi_SBR + rows + row)
    base = tl.load(r.scores_BR + row)
    min_key = tl.load(r.min_key_B + request, cache_modifier=".cg")
    # No step can raise a score, so a beam whose own is too low is out, unread.
    if ((lo >= hi) & (lo_1 >= hi_1)) | (base == float("-inf")) | (key_of(base, lo * 0) < min_key):
        return
    first, count = num_children(segments[0], lo, hi, FORM_0)
    first_1, count_1 = lo_1, hi_1 - lo_1
    if SEGMENTS > 1:
        first_1, count_1 = num_children(segments[1], lo_1, hi_1, FORM_1)
    weight, bound = base * 0, base * 0
    if BOOSTED:
        weight = tl.load(weight_B + request)
        if weight != 0:
            bound = _bound_of(boosts, request, 0, lo, hi, BEFORE_0)
            if SEGMENTS > 1:
                bound = tl.maximum(bound, _bound_of(boosts, request, 1, lo_1, hi_1, BEFORE_1))
            bound = weight * bound
    # A tuple that is assigned to a name would lose its constants.
    search_row(
        r,
        request,
        parent,
        min_key,
        count + count_1,
        BeamChildren(
            segments,
            request,
            lo,
            hi,
            first,
            count,
            lo_1,
            hi_1,
            first_1,
            count_1,
            FORM_0,
            FORM_1,
            SEGMENTS,
            boosts,
            weight,
            bound,
            BOOSTED,
        ),
        _legal,
        FULL,
        Tiles(P, TILE, NARROW, BLOCK),
    )


@triton.jit
def best_of_request(r, request, P: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, CHUNK: tl.constexpr):
    """Return (slot, whether it is live, parent, code) of the best keys of all rows; writes their scores, parents, codes and
    number.

    Leaves `min_key_B` as the next round needs it.
    """
    scratch = r.scratch_BP + request * P
    min_key = tl.load(r.min_key_B + request)
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
            best, kept, min_key = _keep(best, kept, min_key, tl.reshape(keys, [ROWS * ENTRIES]), scratch, r.num_beams, P)
            start += ENTRIES
        first_row += ROWS
    tl.store(r.min_key_B + request, _NOTHING)
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
    for s in tl.static_range(SEGMENTS):  # (0, 0) where nothing of a child is alive in a segment
        rows, slots = (s * r.batch_size + request) * r.num_rows, (s * r.batch_size + request) * r.num_beams
        lo = tl.load(r.lo_SBR + rows + parent, mask=live, other=0)
        hi = tl.load(r.hi_SBR + rows + parent, mask=live, other=0)
        begin, end = find(segments[s], lo, hi, code, live, FORM_0 if s == 0 else FORM_1)
        alive = alive_in(segments[s], request, begin, end, begin < end, FORM_0 if s == 0 else FORM_1) > 0
        tl.store(r.out_lo_SBK + slots + slot, tl.where(alive, begin, 0), mask=slot < r.num_beams)
        tl.store(r.out_hi_SBK + slots + slot, tl.where(alive, end, 0), mask=slot < r.num_beams)


@triton.jit
def children_kernel(
    segments,
    lists,
    FORM_0: tl.constexpr,
    FORM_1: tl.constexpr,
    SEGMENTS: tl.constexpr,
    WRITE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program r counts row r's children (C in all rows) into row_indptr[r + 1], or writes them from row_indptr[r] on.

    The delta's own children come last.
    """
    row = tl.program_id(0).to(tl.int64)
    request = row // lists.num_rows
    count_so_far = tl.sum(tl.zeros([TILE], tl.int64), 0)
    if WRITE:
        count_so_far += tl.load(lists.row_indptr + row)
    for s in tl.static_range(SEGMENTS):
        lo, hi = tl.load(lists.lo_SR + s * lists.rows + row), tl.load(lists.hi_SR + s * lists.rows + row)
        first, count = num_children(segments[s], lo, hi, FORM_0 if s == 0 else FORM_1)
        start = 0
        while start < count:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            valid = lane < count
            code, begin, end = child(segments[s], lo, hi, first + lane, first + count, valid, FORM_0 if s == 0 else FORM_1)
            legal = valid & (alive_in(segments[s], request, begin, end, valid, FORM_0 if s == 0 else FORM_1) > 0)
            if SEGMENTS > 1:
                other_lo, other_hi = (
                    tl.load(lists.lo_SR + (1 - s) * lists.rows + row),
                    tl.load(lists.hi_SR + (1 - s) * lists.rows + row),
                )
                low, high = find(segments[1 - s], other_lo, other_hi, code, legal, FORM_1 if s == 0 else FORM_0)
                alive = alive_in(segments[1 - s], request, low, high, low < high, FORM_1 if s == 0 else FORM_0) > 0
                if s == 1:
                    legal = legal & (alive == 0)  # what is alive in the base was written there
            if WRITE:
                at = count_so_far + tl.cumsum(legal.to(tl.int64), 0) - 1
                tl.store(lists.code_C + at, code, mask=legal)
                tl.store(lists.lo_SC + s * lists.total + at, begin, mask=legal)
                tl.store(lists.hi_SC + s * lists.total + at, end, mask=legal)
                if SEGMENTS > 1:
                    tl.store(lists.lo_SC + (1 - s) * lists.total + at, tl.where(alive, low, 0), mask=legal)
                    tl.store(lists.hi_SC + (1 - s) * lists.total + at, tl.where(alive, high, 0), mask=legal)
            count_so_far += tl.sum(legal.to(tl.int64), 0)
            start += TILE
    if not WRITE:
        tl.store(lists.row_indptr + row + 1, count_so_far)
