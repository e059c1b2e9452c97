"""The legal children of every beam, written out, in Triton: one program counts those of a row, or writes them.

Shapes: S segments, R rows (all beams of all requests), C children of all rows.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from leafbeam.ops.constrain.triton.ranges import alive_in, child, find, num_children

__all__ = ["children_kernel"]


@triton.jit
def children_kernel(
    segments,
    lo_SR,
    hi_SR,
    row_indptr,
    code_C,
    lo_SC,
    hi_SC,
    rows,
    num_rows,
    total,
    FORM_0: tl.constexpr,
    FORM_1: tl.constexpr,
    SEGMENTS: tl.constexpr,
    WRITE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program r counts row r's children into row_indptr[r + 1], or writes them from row_indptr[r] on, the delta's own last."""
    row = tl.program_id(0).to(tl.int64)
    request = row // num_rows
    lo, hi = tl.load(lo_SR + row), tl.load(hi_SR + row)
    found = tl.sum(tl.zeros([TILE], tl.int64), 0)
    if WRITE:
        found += tl.load(row_indptr + row)
    first, count = num_children(segments[0], lo, hi, FORM_0)
    start = 0
    while start < count:
        lane = start + tl.arange(0, TILE).to(tl.int64)
        valid = lane < count
        code, begin, end = child(segments[0], lo, hi, first + lane, first + count, valid, FORM_0)
        legal = valid & (alive_in(segments[0], request, begin, end, valid, FORM_0) > 0)
        if WRITE:
            at = found + tl.cumsum(legal.to(tl.int64), 0) - 1
            tl.store(code_C + at, code, mask=legal)
            tl.store(lo_SC + at, begin, mask=legal)
            tl.store(hi_SC + at, end, mask=legal)
            if SEGMENTS > 1:
                lo_1, hi_1 = tl.load(lo_SR + rows + row), tl.load(hi_SR + rows + row)
                begin, end = find(segments[1], lo_1, hi_1, code, legal, FORM_1)
                alive = alive_in(segments[1], request, begin, end, begin < end, FORM_1) > 0
                tl.store(lo_SC + total + at, tl.where(alive, begin, 0), mask=legal)
                tl.store(hi_SC + total + at, tl.where(alive, end, 0), mask=legal)
        found += tl.sum(legal.to(tl.int64), 0)
        start += TILE
    if SEGMENTS > 1:
        lo_1, hi_1 = tl.load(lo_SR + rows + row), tl.load(hi_SR + rows + row)
        first, count = num_children(segments[1], lo_1, hi_1, FORM_1)
        start = 0
        while start < count:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            valid = lane < count
            code, begin, end = child(segments[1], lo_1, hi_1, first + lane, first + count, valid, FORM_1)
            legal = valid & (alive_in(segments[1], request, begin, end, valid, FORM_1) > 0)
            begin_0, end_0 = find(segments[0], lo, hi, code, legal, FORM_0)
            legal = legal & (alive_in(segments[0], request, begin_0, end_0, begin_0 < end_0, FORM_0) <= 0)
            if WRITE:
                at = found + tl.cumsum(legal.to(tl.int64), 0) - 1
                tl.store(code_C + at, code, mask=legal)
                tl.store(lo_SC + at, begin * 0, mask=legal)
                tl.store(hi_SC + at, begin * 0, mask=legal)
                tl.store(lo_SC + total + at, begin, mask=legal)
                tl.store(hi_SC + total + at, end, mask=legal)
            found += tl.sum(legal.to(tl.int64), 0)
            start += TILE
    if not WRITE:
        tl.store(row_indptr + row + 1, found)
