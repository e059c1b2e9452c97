"""Numba kernels that read and write bits: rank, neighbours of a position, packing.

Words are uint64, bit `i % 64` of word `i // 64` is position i. Every bitmap of N positions has `N // 64 + 1` words, so
that `rank(N)` needs no special case. Shapes: W words, N positions.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from leafbeam.jit import njit


def _instruction(result, argument, emit):
    """Return an intrinsic that is one LLVM instruction, `emit(context, builder, value)`."""

    @intrinsic
    def instruction(typing_context, value):
        def codegen(context, builder, signature, args):
            return emit(context, builder, args[0])

        return result(argument), codegen

    return instruction


# The number of set bits, and the zeros below the lowest and above the highest set bit, of a non-zero uint64.
popcount = _instruction(types.uint64, types.uint64, lambda context, builder, word: builder.ctpop(word))
trailing_zeros = _instruction(types.uint64, types.uint64, lambda context, builder, word: builder.cttz(word, cgutils.true_bit))
leading_zeros = _instruction(types.uint64, types.uint64, lambda context, builder, word: builder.ctlz(word, cgutils.true_bit))
# The bits of a float32 as an int32, and back.
float_bits = _instruction(types.int32, types.float32, lambda context, builder, x: builder.bitcast(x, ir.IntType(32)))
bits_float = _instruction(types.float32, types.int32, lambda context, builder, x: builder.bitcast(x, ir.FloatType()))


@intrinsic
def widened(typing_context, value):
    """Return a float32 as it is, or that of a bfloat16, whose bits are an int16."""
    is_narrow = value != types.float32

    def codegen(context, builder, signature, args):
        if not is_narrow:
            return args[0]
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(args[0], word), word(16)), ir.FloatType())

    return types.float32(types.int16 if is_narrow else value), codegen


@intrinsic
def stored_as(typing_context, like, value):
    """Return a float32 as it is if `like` is one, or the bits of the nearest bfloat16 if it is an int16; NaN stays NaN."""
    is_narrow = like != types.float32

    def codegen(context, builder, signature, args):
        if not is_narrow:
            return args[1]
        word = ir.IntType(32)
        bits = builder.bitcast(args[1], word)
        odd = builder.and_(builder.lshr(bits, word(16)), word(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, word(0x7FFF))), word(16))
        is_nan = builder.fcmp_unordered("uno", args[1], args[1])
        return builder.trunc(builder.select(is_nan, word(0x7FC0), rounded), ir.IntType(16))

    stored = types.int16 if is_narrow else types.float32
    return stored(stored, types.float32), codegen


@intrinsic
def prefetch(typing_context, array, position):
    """Prefetch the cache line of array[position], which may lie beyond its end."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        line = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        flag = ir.IntType(32)
        hint_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        hint = cgutils.get_or_insert_function(builder.module, hint_type, "llvm.prefetch.p0")
        builder.call(hint, [line, flag(0), flag(3), flag(1)])  # read, keep in all caches, data
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


@intrinsic
def bits_at(typing_context, words, bit):
    """Return the 57 or more bits of a uint64 array that start at a bit position: one unaligned read of 8 bytes and a shift."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte = builder.gep(builder.bitcast(data, cgutils.voidptr_t), [builder.lshr(args[1], ir.Constant(ir.IntType(64), 3))])
        word = builder.load(builder.bitcast(byte, ir.IntType(64).as_pointer()))
        word.align = 1
        return builder.lshr(word, builder.and_(args[1], ir.Constant(ir.IntType(64), 7)))

    return types.uint64(words, types.int64), codegen


def _array_at(dtype):
    """Return an intrinsic (address, length) -> array over that memory."""

    @intrinsic
    def array_at(typing_context, address, length):
        def codegen(context, builder, signature, args):
            array_type = signature.return_type
            array = context.make_array(array_type)(context, builder)
            element = context.get_data_type(array_type.dtype)
            item_size = context.get_constant(types.intp, context.get_abi_sizeof(element))
            data = builder.inttoptr(args[0], element.as_pointer())
            arrayobj.populate_array(array, data, [args[1]], [item_size], item_size, meminfo=None)
            return array._getvalue()

        return types.Array(dtype, 1, "C")(types.int64, types.int64), codegen

    return array_at


# The array of `length` words at an address, whose memory the caller keeps alive. (numba's own `carray` needs the reference
# counting that these loops do without.)
uint64_at = _array_at(types.uint64)
uint32_at = _array_at(types.uint32)
int64_at = _array_at(types.int64)
float32_at = _array_at(types.float32)


@njit(cache=True, nogil=True, _nrt=False)
def rank(words_W, before_W, position):
    """Return how many set bits lie before `position` (0 <= position <= N). Two reads, no search."""
    word = position >> 6
    below = (np.uint64(1) << np.uint64(position & 63)) - np.uint64(1)
    return np.int64(before_W[word]) + np.int64(popcount(words_W[word] & below))


@njit(cache=True, nogil=True, _nrt=False)
def next_set(words_W, position, end):
    """Return the first set bit at or after `position`, or `end` where none lies before `end`."""
    if position >= end:
        return end
    word = position >> 6
    last = (end - 1) >> 6
    bits = words_W[word] >> np.uint64(position & 63) << np.uint64(position & 63)
    while bits == np.uint64(0) and word < last:
        word += 1
        bits = words_W[word]
    return min(end, (word << 6) + np.int64(trailing_zeros(bits))) if bits != np.uint64(0) else end


@njit(cache=True, nogil=True, _nrt=False)
def prev_set(words_W, position):
    """Return the last set bit at or before `position`, which must exist."""
    word = position >> 6
    bits = words_W[word] << np.uint64(63 - (position & 63))
    if bits != np.uint64(0):
        return position - np.int64(leading_zeros(bits))
    word -= 1
    while words_W[word] == np.uint64(0):
        word -= 1
    return (word << 6) + 63 - np.int64(leading_zeros(words_W[word]))


@njit(cache=True, nogil=True, _nrt=False)
def rank_directory(words_W, before_W):
    """Fill `before_W` with the set bits before each word and return their total."""
    total = np.int64(0)
    for word in range(words_W.size):
        before_W[word] = total
        total += np.int64(popcount(words_W[word]))
    return total


@njit(cache=True, nogil=True, _nrt=False)
def scatter_bits(from_W, position_N, words_W):
    """Set bit `position_N[i]` of `words_W` for each set bit i of `from_W`."""
    for word in range(from_W.size):
        bits = from_W[word]
        while bits != np.uint64(0):
            position = np.int64(position_N[(word << 6) + np.int64(trailing_zeros(bits))])
            words_W[position >> 6] |= np.uint64(1) << np.uint64(position & 63)
            bits &= bits - np.uint64(1)


@njit(cache=True, nogil=True, _nrt=False)
def set_bits(positions_M, words_W):
    """Set the bits at some positions, which may repeat."""
    for i in range(positions_M.size):
        position = np.int64(positions_M[i])
        words_W[position >> 6] |= np.uint64(1) << np.uint64(position & 63)


@njit(cache=True, nogil=True, _nrt=False)
def invert(order_N, begin, end, inverse_N):
    """Set `inverse_N[order_N[i]] = i` for i in [begin, end)."""
    for i in range(begin, end):
        inverse_N[order_N[i]] = i


@njit(cache=True, nogil=True, _nrt=False)
def pack_code_bits(codes_M, width, words_W):
    """Write the codes side by side, `width` bits each, from the lowest bit of the first word on."""
    filled, word, out = 0, np.uint64(0), 0
    for index in range(codes_M.size):
        code = np.uint64(codes_M[index])
        word |= code << np.uint64(filled)
        filled += width
        if filled >= 64:
            words_W[out] = word
            out += 1
            filled -= 64
            word = code >> np.uint64(width - filled)  # the bits that did not fit; none of them where filled is 0
    words_W[out:] = np.uint64(0)
    words_W[out] = word


@njit(cache=True, nogil=True, _nrt=False)
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


@njit(cache=True, nogil=True, _nrt=False)
def rank_many(words_W, before_W, positions_M, out_M):
    """Return the rank of many positions."""
    for i in range(positions_M.size):
        out_M[i] = rank(words_W, before_W, np.int64(positions_M[i]))


@njit(cache=True, nogil=True, _nrt=False)
def _bits_from(words_W, position):
    """Return the 64 bits that begin at `position` (below N); beyond the last word they are 0."""
    word, shift = position >> 6, np.uint64(position & 63)
    bits = words_W[word] >> shift
    if shift != np.uint64(0) and word + 1 < words_W.size:
        bits |= words_W[word + 1] << (np.uint64(64) - shift)
    return bits


@njit(cache=True, nogil=True, _nrt=False)
def any_by_group(words_W, indptr, out_W, before_W):
    """Set bit g of `out_W` iff a position of indptr[g] to indptr[g + 1] - 1 (never none) is set; returns how many are."""
    count = indptr.size - 1
    total = np.int64(0)
    for word in range(out_W.size):
        group = word << 6
        end = min(group + 64, count)
        bits = np.uint64(0)
        if end == group + 64 and indptr[end] - indptr[group] == 64:
            bits = _bits_from(words_W, np.int64(indptr[group]))
        else:
            start = np.int64(indptr[group])
            for g in range(group, end):
                stop = np.int64(indptr[g + 1])
                set_bits = _bits_from(words_W, start) & (~np.uint64(0) >> np.uint64(64 - min(stop - start, 64)))
                while stop - start > 64 and set_bits == np.uint64(0):
                    start += 64
                    set_bits = _bits_from(words_W, start) & (~np.uint64(0) >> np.uint64(64 - min(stop - start, 64)))
                bits |= np.uint64(set_bits != np.uint64(0)) << np.uint64(g - group)
                start = stop
        before_W[word] = total
        total += np.int64(popcount(bits))
        out_W[word] = bits
    return total


@njit(cache=True, nogil=True, _nrt=False)
def word_hash(words_W, seed):
    """Return a 64-bit hash of an array of uint64 that depends on their order. Cost: one read; not for adversaries."""
    state = np.uint64(seed)
    for word in range(words_W.size):
        state = (state ^ words_W[word]) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return state
