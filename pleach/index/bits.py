"""Reading and writing bits inside compiled loops: the numba half of `Bitmap`.

    rank(i)       = how many set bits lie before position i
    next_set(i)   = the first set bit at or after i
    prev_set(i)   = the last set bit at or before i

Words are uint64, bit `i % 64` of word `i // 64` is position i. Every bitmap of N positions has `N // 64 + 1` words, so
that `rank(N)` needs no special case. Shapes: W words, N positions.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false
from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "array_at",
    "bits_float",
    "float_bits",
    "leading_zeros",
    "next_set",
    "pack_bits",
    "pack_bits_ordered",
    "popcount",
    "positions_of",
    "prev_set",
    "rank",
    "rank_directory",
    "rank_many",
    "trailing_zeros",
    "word_hash",
]


@intrinsic
def popcount(typing_context, word):
    """How many bits of a uint64 are set (one instruction)."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def trailing_zeros(typing_context, word):
    """The position of the lowest set bit of a non-zero uint64 (one instruction)."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], cgutils.true_bit)

    return types.uint64(types.uint64), codegen


@intrinsic
def leading_zeros(typing_context, word):
    """How many zeros stand above the highest set bit of a non-zero uint64 (one instruction)."""

    def codegen(context, builder, signature, args):
        return builder.ctlz(args[0], cgutils.true_bit)

    return types.uint64(types.uint64), codegen


@intrinsic
def float_bits(typing_context, value):
    """The bits of a float32 as an int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), codegen


@intrinsic
def bits_float(typing_context, bits):
    """The float32 that has these int32 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


@intrinsic
def _pointer(typing_context, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@njit(inline="always")
def array_at(address, length, dtype):
    """The array of `length` values at a memory address; whoever passes the address keeps the array alive."""
    return carray(_pointer(address), length, dtype)


@njit(cache=True, nogil=True)
def rank(words_W, before_W, position):
    """How many set bits lie before `position` (0 <= position <= N). Two reads, no search."""
    word = position >> 6
    below = (np.uint64(1) << np.uint64(position & 63)) - np.uint64(1)
    return np.int64(before_W[word]) + np.int64(popcount(words_W[word] & below))


@njit(cache=True, nogil=True)
def next_set(words_W, position, end):
    """The first set bit at or after `position`, or `end` where none lies before `end`."""
    if position >= end:
        return end
    word = position >> 6
    last = (end - 1) >> 6
    bits = words_W[word] >> np.uint64(position & 63)
    if bits != np.uint64(0):
        found = position + np.int64(trailing_zeros(bits))
        return found if found < end else end
    word += 1
    while word <= last:
        bits = words_W[word]
        if bits != np.uint64(0):
            found = (word << 6) + np.int64(trailing_zeros(bits))
            return found if found < end else end
        word += 1
    return end


@njit(cache=True, nogil=True)
def prev_set(words_W, position):
    """The last set bit at or before `position`, which must exist."""
    word = position >> 6
    bits = words_W[word] << np.uint64(63 - (position & 63))
    if bits != np.uint64(0):
        return position - np.int64(leading_zeros(bits))
    word -= 1
    while words_W[word] == np.uint64(0):
        word -= 1
    return (word << 6) + 63 - np.int64(leading_zeros(words_W[word]))


@njit(cache=True, nogil=True)
def rank_directory(words_W, before_W):
    """Fill `before_W` with the set bits before each word and return their total."""
    total = np.int64(0)
    for word in range(words_W.size):
        before_W[word] = total
        total += np.int64(popcount(words_W[word]))
    return total


@njit(cache=True, nogil=True)
def pack_bits(mask_N, words_W):
    """Set bit i of `words_W` iff `mask_N[i]`; every word is written."""
    size = mask_N.size
    for word in range(words_W.size):
        bits = np.uint64(0)
        start = word << 6
        for bit in range(min(64, size - start)):
            if mask_N[start + bit]:
                bits |= np.uint64(1) << np.uint64(bit)
        words_W[word] = bits


@njit(cache=True, nogil=True)
def pack_bits_ordered(mask_N, order_N, words_W):
    """Set bit i of `words_W` iff `mask_N[order_N[i]]`; every word is written."""
    size = order_N.size
    for word in range(words_W.size):
        bits = np.uint64(0)
        start = word << 6
        for bit in range(min(64, size - start)):
            bits |= np.uint64(mask_N[order_N[start + bit]]) << np.uint64(bit)  # no branch: the reads overlap
        words_W[word] = bits


@njit(cache=True, nogil=True)
def positions_of(words_W, out_M):
    """Write the positions of all set bits, in order."""
    count = 0
    for word in range(words_W.size):
        bits = words_W[word]
        while bits != np.uint64(0):
            out_M[count] = (word << 6) + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            count += 1
    return count


@njit(cache=True, nogil=True)
def rank_many(words_W, before_W, positions_M, out_M):
    """`rank` of many positions."""
    for i in range(positions_M.size):
        out_M[i] = rank(words_W, before_W, np.int64(positions_M[i]))


@njit(cache=True, nogil=True)
def word_hash(words_W, seed):
    """A 64-bit hash of an array of uint64 that depends on their order. Cost: one read; not for adversaries."""
    state = np.uint64(seed)
    for word in range(words_W.size):
        state = (state ^ words_W[word]) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return state
