"""The children of a leaf range, in compiled loops: where they lie, which are alive, all of them.

    listing: the entries rank(lo) to rank(hi)
    column: the leaves of [lo, hi) whose boundary bit is set ("leaves": where every leaf is a node, all of them)
    a child is alive iff the filter's leaves under it outnumber the denied ones

A level is passed as (layout, codes, firsts, words, before, num_leaves, width), a request's filter as (has_filter, words,
before, denied): tuples cost nothing in compiled code and keep the signatures readable. The kernels allocate nothing and are
compiled without numba's reference counting (`_nrt=False`): counting the arrays in those tuples cost as much as the search.

Shapes: W words, D denied leaves.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from leafbeam.index.bit_kernels import bits_at, next_set, prev_set, rank, trailing_zeros, uint32_at, uint64_at
from leafbeam.jit import njit

__all__ = [
    "COLUMN",
    "LEAVES",
    "LISTING",
    "alive_in",
    "allowed_of",
    "child_range",
    "children_bounds",
    "code_at",
    "collect",
    "find_code",
    "first_at_least",
]

LISTING, COLUMN, LEAVES = 0, 1, 2


def code_at(codes, width, place):
    """The code at a place of a listing or column; packed codes (uint64 words) take `width` bits each."""
    raise NotImplementedError("compiled code only")


@overload(code_at, jit_options={"_nrt": False})
def _code_at(codes, width, place):
    """Which of the two it is, is known when a kernel is compiled: plain codes cost no test."""

    def packed(codes, width, place):
        return np.int64(bits_at(codes, place * width) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1)))

    def plain(codes, width, place):
        return np.int64(codes[place])

    return packed if codes.dtype == types.uint64 else plain


@njit(nogil=True, _nrt=False)
def children_bounds(level, lo, hi):
    """Where the children of [lo, hi) lie in `codes`: entries of the listing, or leaves of the column."""
    layout, _, _, words, before, _, _ = level
    if layout == LISTING:
        return rank(words, before, lo), rank(words, before, hi)
    return lo, hi


@njit(nogil=True, _nrt=False)
def child_range(level, place):
    """The leaf range of the child that stands at `place` of the listing or column."""
    layout, _, firsts, words, _, num_leaves, _ = level
    if layout == LISTING:
        return np.int64(firsts[place]), (np.int64(firsts[place + 1]) if place + 1 < firsts.size else num_leaves)
    if layout == COLUMN:
        return place, next_set(words, place + 1, num_leaves)
    return place, place + 1


@njit(nogil=True, _nrt=False)
def first_at_least(values, begin, end, value):
    """The first place of ascending values[begin:end] that is at least `value`; no branch that could be mispredicted."""
    size = end - begin
    while size > 1:
        half = size >> 1
        begin = begin + half if values[begin + half - 1] < value else begin
        size -= half
    return begin + 1 if size == 1 and values[begin] < value else begin


@njit(nogil=True, _nrt=False)
def find_code(level, begin, end, code):
    """The first of the (ascending) codes[begin:end] that is `code`, -1 where none is; searched as `first_at_least`."""
    codes, width = level[1], level[6]
    stop, size = end, end - begin
    while size > 1:
        half = size >> 1
        begin = begin + half if code_at(codes, width, begin + half - 1) < code else begin
        size -= half
    begin = begin + 1 if size == 1 and code_at(codes, width, begin) < code else begin
    return begin if begin < stop and code_at(codes, width, begin) == code else np.int64(-1)


@njit(nogil=True, _nrt=False)
def denied_in(denied_D, lo, hi):
    """How many denied leaves lie in [lo, hi)."""
    size = denied_D.size
    return first_at_least(denied_D, 0, size, hi) - first_at_least(denied_D, 0, size, lo)


@njit(nogil=True, _nrt=False)
def alive_in(allowed, lo, hi):
    """How many leaves of [lo, hi) may be shown."""
    has_filter, words, before, denied_D = allowed
    count = rank(words, before, hi) - rank(words, before, lo) if has_filter else hi - lo
    return count - denied_in(denied_D, lo, hi) if denied_D.size > 0 else count


@njit(nogil=True, _nrt=False)
def _collect_allowed(level, allowed, lo, hi, out_codes, out_places):
    """`collect` through a filter: one visit for each child that is alive, none for the others."""
    layout, codes, _, words, before, _, width = level
    _, filter_words, _, denied_D = allowed
    count = 0
    leaf = next_set(filter_words, lo, hi)
    while leaf < hi:
        if denied_D.size > 0 and denied_in(denied_D, leaf, leaf + 1) > 0:
            leaf = next_set(filter_words, leaf + 1, hi)
            continue
        place = leaf
        if layout == LISTING:
            place = rank(words, before, leaf + 1) - 1
        elif layout == COLUMN:
            place = prev_set(words, leaf)
        out_codes[count] = code_at(codes, width, place)
        out_places[count] = place
        count += 1
        leaf = next_set(filter_words, child_range(level, place)[1], hi)
    return count


@njit(nogil=True, _nrt=False)
def _keep_alive(level, allowed, lo, hi, count, codes, places):
    """Drop those of all `count` children of [lo, hi) that have no leaf alive; returns how many stay.

    One rank a child, none waiting for another: the end of a child is the start of the next.
    """
    listing, firsts = level[0] == LISTING, level[2]
    has_filter, words, before, denied_D = allowed
    kept = 0
    start, alive_before = lo, rank(words, before, lo) if has_filter else lo
    for child in range(count):
        end = hi
        if child + 1 < count:
            end = np.int64(firsts[places[child + 1]]) if listing else places[child + 1]
        alive_after = rank(words, before, end) if has_filter else end
        alive = alive_after - alive_before
        # Only a child with no more leaves than there are denied ones can be denied altogether.
        if denied_D.size > 0 and 0 < alive <= denied_D.size:
            alive -= denied_in(denied_D, start, end)
        codes[kept], places[kept] = codes[child], places[child]
        kept += alive > 0
        start, alive_before = end, alive_after
    return kept


@njit(nogil=True, _nrt=False)
def collect(level, allowed, lo, hi, out_codes, out_places):
    """Write code and place of every legal child of [lo, hi), ascending by code; returns how many."""
    layout, codes, _, words, _, _, width = level
    has_filter, _, _, denied_D = allowed
    begin, end = children_bounds(level, lo, hi)
    if has_filter and alive_in(allowed, lo, hi) * 4 < end - begin:
        return _collect_allowed(level, allowed, lo, hi, out_codes, out_places)
    count = 0
    if layout == COLUMN:
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
                out_codes[count] = code_at(codes, width, place)
                out_places[count] = place
                count += 1
    else:
        count = end - begin
        for child in range(count):
            out_codes[child] = code_at(codes, width, begin + child)
            out_places[child] = begin + child
    if has_filter or denied_D.size > 0:
        return _keep_alive(level, allowed, lo, hi, count, out_codes, out_places)
    return count


@njit(nogil=True, _nrt=False)
def allowed_of(filters, request, num_leaves):
    """One request's (has_filter, words, before, denied)."""
    words_B, before_B, denied_B1, denied = filters
    has_filter = words_B[request] != 0
    num_words = num_leaves // 64 + 1 if has_filter else 0
    words = uint64_at(words_B[request], num_words)
    before = uint32_at(before_B[request], num_words)
    return has_filter, words, before, denied[denied_B1[request] : denied_B1[request + 1]]
