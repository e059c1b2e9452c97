"""Ranges, ranks, filters and children on a GPU, in Triton: as `cpu.children` has them on a CPU.

    rank:    one word and one directory entry, anywhere
    select:  its inverse, a binary search of the directory between two words and six halvings inside one
    child number n of [lo, hi): an entry of a listing; the leaf select(n) of a column; leaf n where every leaf is a node

FORM is known when a kernel is compiled and holds layout, code width and whether anything is filtered (`form_of`). Words are
uint64, directories and firsts uint32, positions int64.

Everything works on lanes or on single values, and under Triton's interpreter too. Triton has no popcount: the compiler
recognises the one that is written out here, and turns it into one instruction.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from leafbeam.ops.constrain.levels import COLUMN, LISTING


class Segment(NamedTuple):
    """A level of one segment, and the filters of a batch: addresses of each request's bitmap (0: none), denied leaves."""

    codes: Tensor
    firsts: Tensor
    words: Tensor
    before: Tensor
    filter_words_B: Tensor
    filter_before_B: Tensor
    denied_indptr: Tensor
    denied: Tensor


_LISTING, _COLUMN = tl.constexpr(LISTING), tl.constexpr(COLUMN)


def form_of(layout: int, width: int, filtered: bool) -> int:
    """Return the number for which a kernel is compiled: layout, filtering and width."""
    return layout | filtered << 2 | width << 3


class SegmentBoosts(NamedTuple):
    """The boosts of a batch in one segment: addresses of each request's numbers of a level, and of the level before.

    Args:
        values_B: int64, of a float32 for each child (see `boost_at`).
        bounds_B: The same for the level before; of the root's number before level 0.
        words, before: The bitmap of the level before.
    """

    values_B: Tensor
    bounds_B: Tensor
    words: Tensor
    before: Tensor


@triton.jit
def _popcount(word):
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((word * 0x0101010101010101) >> 56).to(tl.int64)


@triton.jit
def _rank(words, before, position, valid):
    """Return how many positions of a bitmap lie before `position`; 0 where not `valid`."""
    word = tl.load(words + (position >> 6), mask=valid, other=0)
    directory = tl.load(before + (position >> 6), mask=valid, other=0).to(tl.int64)
    one = word * 0 + 1
    below = (one << (position & 63).to(tl.uint64)) - one
    return directory + _popcount(word & below)


@triton.jit
def _halve(rest, bits, position, WIDTH: tl.constexpr):
    """Drop the lowest WIDTH bits if the bit to find is above them: one halving of `_select`."""
    low = _popcount(bits & ((1 << WIDTH) - 1))
    above = rest >= low
    rest = tl.where(above, rest - low, rest)
    bits = tl.where(above, bits >> WIDTH, bits)
    return rest, bits, tl.where(above, position + WIDTH, position)


@triton.jit
def _select(words, before, first_word, last_word, number, valid):
    """Return the position of bit `number` (from 0) of a bitmap, which lies between two words (single values)."""
    word = number * 0 + first_word
    size = last_word - first_word + 1
    while size > 1:
        half = size >> 1
        directory = tl.load(before + word + half, mask=valid, other=0).to(tl.int64)
        word = tl.where(directory <= number, word + half, word)
        size -= half
    rest = number - tl.load(before + word, mask=valid, other=0).to(tl.int64)
    bits = tl.load(words + word, mask=valid, other=0)
    position = word << 6
    rest, bits, position = _halve(rest, bits, position, 32)
    rest, bits, position = _halve(rest, bits, position, 16)
    rest, bits, position = _halve(rest, bits, position, 8)
    rest, bits, position = _halve(rest, bits, position, 4)
    rest, bits, position = _halve(rest, bits, position, 2)
    rest, bits, position = _halve(rest, bits, position, 1)
    return position


@triton.jit
def _code_at(codes, index, valid, FORM: tl.constexpr):
    """Return the code at an index of a listing or column; packed codes take `width` bits each of uint64 words."""
    width: tl.constexpr = FORM >> 3
    if width == 0:
        code = tl.load(codes + index, mask=valid, other=0).to(tl.int64)
    else:
        bit = index * width
        shift = (bit & 63).to(tl.uint64)
        low = tl.load(codes + (bit >> 6), mask=valid, other=0) >> shift
        # Two shifts, because a shift by 64 is not defined; the word after the last code is there to be read.
        high = tl.load(codes + (bit >> 6) + 1, mask=valid, other=0) << 1 << (63 - shift)
        code = ((low | high) & ((1 << width) - 1)).to(tl.int64)
    return code


@triton.jit
def num_children(segment, lo, hi, FORM: tl.constexpr):
    """Return (number of the first child of [lo, hi) among the level's nodes, how many there are), of one range."""
    first, count = lo, hi - lo
    if FORM & 3 <= _COLUMN:
        is_range = lo < hi
        first = _rank(segment.words, segment.before, lo, is_range)
        count = _rank(segment.words, segment.before, hi, is_range) - first
    return first, count


@triton.jit
def child(segment, lo, hi, node, stop, valid, FORM: tl.constexpr):
    """Return (code, first leaf, leaf after the last) of nodes below `stop`, the number after the last child of [lo, hi)."""
    follows = valid & (node + 1 < stop)
    begin, index, end = node, node, node + 1
    if FORM & 3 == _LISTING:
        begin = tl.load(segment.firsts + node, mask=valid, other=0).to(tl.int64)
        end = tl.where(follows, tl.load(segment.firsts + node + 1, mask=follows, other=0).to(tl.int64), hi)
    if FORM & 3 == _COLUMN:
        last_word = (hi - 1) >> 6
        begin = _select(segment.words, segment.before, lo >> 6, last_word, node, valid)
        end = tl.where(follows, _select(segment.words, segment.before, lo >> 6, last_word, node + 1, follows), hi)
        index = begin
    return _code_at(segment.codes, index, valid, FORM), begin, end


@triton.jit
def first_at_least(codes, begin, end, code, valid, FORM: tl.constexpr):
    """Return the first index of each lane's ascending codes[begin:end] that is at least its `code`; FORM 0: plain codes."""
    index = begin
    size = tl.where(valid, end - begin, 0)
    while tl.max(size, 0) > 1:
        half = size >> 1
        looks = half > 0
        go = looks & (_code_at(codes, index + half - 1, looks, FORM) < code)
        index = tl.where(go, index + half, index)
        size -= half
    is_single = size == 1
    return tl.where(is_single & (_code_at(codes, index, is_single, FORM) < code), index + 1, index)


@triton.jit
def find(segment, lo, hi, code, valid, FORM: tl.constexpr):
    """Return the range of each lane's child of [lo, hi) that has its `code`; (0, 0) where there is none. Cost: two searches."""
    lo += code * 0  # lanes, where it was one value
    hi += code * 0
    valid = valid & (lo < hi)
    if FORM & 3 == _LISTING:
        begin = _rank(segment.words, segment.before, lo, valid)
        end = _rank(segment.words, segment.before, hi, valid)
        node = first_at_least(segment.codes, begin, end, code, valid, FORM)
        valid = valid & (node < end)
        valid = valid & (_code_at(segment.codes, node, valid, FORM) == code)
        first = tl.load(segment.firsts + node, mask=valid, other=0).to(tl.int64)
        follows = valid & (node + 1 < end)
        last = tl.where(follows, tl.load(segment.firsts + node + 1, mask=follows, other=0).to(tl.int64), hi)
    else:
        first = first_at_least(segment.codes, lo, hi, code, valid, FORM)
        last = first_at_least(segment.codes, first, hi, code + 1, valid, FORM)
        valid = valid & (first < last)
    return tl.where(valid, first, 0), tl.where(valid, last, 0)


@triton.jit
def _denied_before(denied, begin, end, leaf):
    """Return the first index of the ascending denied[begin:end] (single values) that is at least `leaf`."""
    index = leaf * 0 + begin
    size = end - begin
    while size > 1:
        half = size >> 1
        index = tl.where(tl.load(denied + index + half - 1) < leaf, index + half, index)
        size -= half
    return tl.where(tl.load(denied + index) < leaf, index + 1, index)


@triton.jit
def alive_in(segment, request, lo, hi, valid, FORM: tl.constexpr):
    """Return how many leaves of [lo, hi) a request may be shown: two rank look-ups, and two searches where it denies some."""
    count = tl.where(valid, hi - lo, 0)
    if FORM & 4:
        address = tl.load(segment.filter_words_B + request)
        if address != 0:
            words = address.to(tl.pointer_type(tl.uint64))
            before = tl.load(segment.filter_before_B + request).to(tl.pointer_type(tl.uint32))
            count = _rank(words, before, hi, valid) - _rank(words, before, lo, valid)
        begin = tl.load(segment.denied_indptr + request)
        end = tl.load(segment.denied_indptr + request + 1)
        if begin < end:
            count -= _denied_before(segment.denied, begin, end, hi) - _denied_before(segment.denied, begin, end, lo)
    return count


@triton.jit
def boost_at(address, words, before, lo, valid, FORM: tl.constexpr):
    """Return the largest boost below the nodes that begin at these leaves, -inf where not `valid`."""
    index = lo
    if FORM & 3 == _LISTING:
        index = _rank(words, before, lo, valid)
    return tl.load(address.to(tl.pointer_type(tl.float32)) + index, mask=valid, other=float("-inf"))
