"""The children of a leaf range in compiled loops: their positions, which of them are alive, and their codes.

    listing: the entries rank(lo) to rank(hi)
    column: the leaves of [lo, hi) whose boundary bit is set ("leaves": every leaf is a node, so all of them)
    a child is alive iff the filter's leaves under it outnumber the denied ones

The kernels allocate nothing and are compiled without numba's reference counting (`_nrt=False`): counting the arrays in a
`LevelView` costs as much as the search. Python passes plain tuples, because numba unpacks those faster than named ones; a
kernel names the fields when it enters (`LevelView(*level)`), which costs nothing.

Shapes: W words, D denied leaves.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import bits_at, next_set, prev_set, rank, trailing_zeros, uint32_at, uint64_at
from leafbeam.jit import njit
from leafbeam.ops.constrain.levels import COLUMN, LEAVES, LISTING


class FilterAddresses(NamedTuple):
    """The filters of a batch: the address of each request's bitmap (0: no filter), and the ragged denied leaves."""

    words_B: NDArray[np.int64]
    before_B: NDArray[np.int64]
    denied_indptr: NDArray[np.int64]
    denied: NDArray[np.int64]


class AllowedLeaves(NamedTuple):
    """The leaves that one request may reach: those of its filter, if it has one, without the denied leaves (ascending)."""

    has_filter: bool
    words: NDArray[np.uint64]
    before: NDArray[np.uint32]
    denied_D: NDArray[np.int64]


def code_at(level, index):
    """Return the code at an index of a listing or column; packed codes (uint64 words) take `width` bits each."""
    raise NotImplementedError("compiled code only")


@overload(code_at, jit_options={"_nrt": False})
def _code_at(level, index):
    """Choose the way to read a code when the kernel is compiled, so that plain codes cost no test."""

    def packed(level, index):
        bits = bits_at(level.codes, index * level.width)
        return np.int64(bits & ((np.uint64(1) << np.uint64(level.width)) - np.uint64(1)))

    def plain(level, index):
        return np.int64(level.codes[index])

    return packed if level.types[1].dtype == types.uint64 else plain


@njit(nogil=True, _nrt=False)
def children_bounds(level, lo, hi):
    """Return where the children of [lo, hi) lie in `codes`: entries of the listing, or leaves of the column."""
    if level.layout == LISTING:
        return rank(level.words, level.before, lo), rank(level.words, level.before, hi)
    return lo, hi


@njit(nogil=True, _nrt=False)
def has_every_code(level, lo, hi, size):
    """Return whether a range has a child for each of the `size` codes of the codebook."""
    if hi - lo < size:
        return False
    if level.layout == LEAVES:
        return hi - lo == size
    return rank(level.words, level.before, hi) - rank(level.words, level.before, lo) == size


@njit(nogil=True, _nrt=False)
def child_range(level, index):
    """Return the leaf range of the child at an index of the listing or column."""
    if level.layout == LISTING:
        end = np.int64(level.firsts[index + 1]) if index + 1 < level.firsts.size else level.num_leaves
        return np.int64(level.firsts[index]), end
    if level.layout == COLUMN:
        return index, next_set(level.words, index + 1, level.num_leaves)
    return index, index + 1


@njit(nogil=True, _nrt=False)
def first_at_least(values, begin, end, value):
    """Return the first index of ascending int64 values[begin:end] that is at least `value`, without branches to mispredict.

    The sign of a difference says which half it is: LLVM compiles a choice between the two to a branch.
    """
    size = end - begin
    while size > 1:
        half = size >> 1
        begin += half & ((values[begin + half - 1] - value) >> np.int64(63))
        size -= half
    return begin + 1 if size == 1 and values[begin] < value else begin


@njit(nogil=True, _nrt=False)
def find_code(level, begin, end, code):
    """Return the index of `code` in the ascending codes[begin:end], or -1; searched as in `first_at_least`."""
    stop, size = end, end - begin
    while size > 1:
        half = size >> 1
        begin += half & ((code_at(level, begin + half - 1) - code) >> np.int64(63))
        size -= half
    begin = begin + 1 if size == 1 and code_at(level, begin) < code else begin
    return begin if begin < stop and code_at(level, begin) == code else np.int64(-1)


@njit(nogil=True, _nrt=False)
def find_codes(level, begin, end, codes, out_indices):
    """Write what `find_code` returns for each code. Sixteen searches take turns, so that none waits for another's memory."""
    for first in range(0, codes.size, 16):
        last = min(first + 16, codes.size)
        for number in range(first, last):
            out_indices[number] = begin
        size = end - begin
        while size > 1:
            half = size >> 1
            for number in range(first, last):
                is_below = (code_at(level, out_indices[number] + half - 1) - codes[number]) >> np.int64(63)
                out_indices[number] += half & is_below
            size -= half
        for number in range(first, last):
            index = out_indices[number]
            index = index + 1 if size == 1 and code_at(level, index) < codes[number] else index
            out_indices[number] = index if index < end and code_at(level, index) == codes[number] else np.int64(-1)


@njit(nogil=True, _nrt=False)
def denied_in(denied_D, lo, hi):
    """Return how many denied leaves lie in [lo, hi)."""
    size = denied_D.size
    return first_at_least(denied_D, 0, size, hi) - first_at_least(denied_D, 0, size, lo)


@njit(nogil=True, _nrt=False)
def alive_in(allowed, lo, hi):
    """Return how many leaves of [lo, hi) may be shown."""
    count = hi - lo
    if allowed.has_filter:
        count = rank(allowed.words, allowed.before, hi) - rank(allowed.words, allowed.before, lo)
    return count - denied_in(allowed.denied_D, lo, hi) if allowed.denied_D.size > 0 else count


@njit(nogil=True, _nrt=False)
def is_alive(level, allowed, index):
    """Return whether a leaf below the child at an index of the listing or column may be shown."""
    child_lo, child_hi = child_range(level, index)
    return alive_in(allowed, child_lo, child_hi) > 0


@njit(nogil=True, _nrt=False)
def find_alive(level, allowed, begin, end, code):
    """Return what `find_code` returns, and -1 also for a child below which no leaf may be shown."""
    index = find_code(level, begin, end, code)
    return index if index >= 0 and is_alive(level, allowed, index) else np.int64(-1)


@njit(nogil=True, _nrt=False)
def _collect_allowed(level, allowed, lo, hi, out_codes, out_indices):
    """Collect the children of a range through a filter, with one visit for each child that is alive."""
    denied_D = allowed.denied_D
    count = 0
    leaf = next_set(allowed.words, lo, hi)
    while leaf < hi:
        if denied_D.size > 0 and denied_in(denied_D, leaf, leaf + 1) > 0:
            leaf = next_set(allowed.words, leaf + 1, hi)
            continue
        index = leaf
        if level.layout == LISTING:
            index = rank(level.words, level.before, leaf + 1) - 1
        elif level.layout == COLUMN:
            index = prev_set(level.words, leaf)
        out_codes[count] = code_at(level, index)
        out_indices[count] = index
        count += 1
        leaf = next_set(allowed.words, child_range(level, index)[1], hi)
    return count


@njit(nogil=True, _nrt=False)
def _keep_alive(level, allowed, lo, hi, count, codes, indices):
    """Drop those of the `count` children of [lo, hi) that have no leaf alive, and return how many stay.

    This takes one rank per child, because the end of a child is the start of the next.
    """
    listing, denied_D = level.layout == LISTING, allowed.denied_D
    kept = 0
    start, alive_before = lo, rank(allowed.words, allowed.before, lo) if allowed.has_filter else lo
    for child in range(count):
        end = hi
        if child + 1 < count:
            end = np.int64(level.firsts[indices[child + 1]]) if listing else indices[child + 1]
        alive_after = rank(allowed.words, allowed.before, end) if allowed.has_filter else end
        alive = alive_after - alive_before
        # Only a child with no more leaves than there are denied ones can be denied altogether.
        if denied_D.size > 0 and 0 < alive <= denied_D.size:
            alive -= denied_in(denied_D, start, end)
        codes[kept], indices[kept] = codes[child], indices[child]
        kept += alive > 0
        start, alive_before = end, alive_after
    return kept


@njit(nogil=True, _nrt=False)
def bits_between(words, word, begin, end):
    """Return one word of a bitmap without its bits outside [begin, end)."""
    bits = words[word]
    if word == begin >> 6:
        bits &= ~np.uint64(0) << np.uint64(begin & 63)
    if word == (end - 1) >> 6:
        bits &= ~np.uint64(0) >> np.uint64(63 - ((end - 1) & 63))
    return bits


@njit(nogil=True, _nrt=False)
def collect(level, allowed, lo, hi, out_codes, out_indices):
    """Write code and index of every legal child of [lo, hi), ascending by code; returns how many."""
    begin, end = children_bounds(level, lo, hi)
    if allowed.has_filter and alive_in(allowed, lo, hi) * 4 < end - begin:
        return _collect_allowed(level, allowed, lo, hi, out_codes, out_indices)
    count = 0
    if level.layout == COLUMN:
        for word in range(begin >> 6, ((end - 1) >> 6) + 1):
            bits = bits_between(level.words, word, begin, end)
            while bits != np.uint64(0):
                index = (word << 6) + np.int64(trailing_zeros(bits))
                bits &= bits - np.uint64(1)
                out_codes[count] = code_at(level, index)
                out_indices[count] = index
                count += 1
    else:
        count = end - begin
        for child in range(count):
            out_codes[child] = code_at(level, begin + child)
            out_indices[child] = begin + child
    if allowed.has_filter or allowed.denied_D.size > 0:
        return _keep_alive(level, allowed, lo, hi, count, out_codes, out_indices)
    return count


@njit(nogil=True, _nrt=False)
def allowed_of(filters, request, num_leaves):
    """Return the `AllowedLeaves` of one request of a batch's `FilterAddresses`."""
    has_filter = filters.words_B[request] != 0
    num_words = num_leaves // 64 + 1 if has_filter else 0
    words = uint64_at(filters.words_B[request], num_words)
    before = uint32_at(filters.before_B[request], num_words)
    denied_D = filters.denied[filters.denied_indptr[request] : filters.denied_indptr[request + 1]]
    return AllowedLeaves(has_filter, words, before, denied_D)
