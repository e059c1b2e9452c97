"""Log-sum-exp of a row of logits, in compiled loops that vectorise.

    reference = max(first chunk of the row)
    one pass: total += exp(row - reference); the maximum of each chunk of 64
    top = max(chunk maxima);  lse = reference + log(total), at least top

There is one pass, because a row that the model has just written is in a slow cache. If the reference turns out to be more than
32 below the maximum (or is -inf), the row is read again with its maximum as reference. This depends on the row alone, so equal
rows have equal sums, on which ties depend. The chunks' maxima let a search skip chunks that cannot matter. exp is 2^n times a
polynomial of degree 4 (relative error 3e-6 at most; exactly 1 at 0, so that the reference itself has no error); sums are kept
in float32 lanes; tests compare with float64.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from leafbeam.index.bit_kernels import bits_float, float_bits
from leafbeam.jit import njit

CHUNK = 64
_LANES = 16  # a quarter of a chunk: two registers of AVX2, which is as much as hides the latency of its multiplications
_POLYNOMIAL = (0.04151351749897003, 0.16787710785865784, 0.5000302791595459, 0.9999666810035706, 1.0)
_MIN_EXPONENT = -87.0  # exp below it is as good as 0
_LOG2_E, _LN_2, _MAGIC = 1.4426950408889634, 0.6931471805599453, 12582912.0  # x + 1.5 * 2^23 holds round(x) in its low bits
_FAR = 32.0  # a reference further below the maximum than this would cost precision


@intrinsic
def _chunk_maximum(typing_context, row, start):
    """Return the largest of the 64 values from `start`, by a vector reduction; numba does not compile a loop to one."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        vector = ir.VectorType(ir.FloatType(), CHUNK)
        address = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        reduce_type = ir.FunctionType(ir.FloatType(), [vector])
        reduce = cgutils.get_or_insert_function(builder.module, reduce_type, f"llvm.vector.reduce.fmax.v{CHUNK}f32")
        return builder.call(reduce, [builder.load(address, align=4)], fastmath=("nnan", "nsz"))

    return types.float32(row, types.int64), codegen


@intrinsic
def _chunk_above(typing_context, row, start, min_logit):
    """Return which of the 64 values from `start` are at least `min_logit`, one bit each: eight comparisons of vectors."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        vector = ir.VectorType(ir.FloatType(), CHUNK)
        address = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, args[2], ir.IntType(32)(0))
        splat = builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), CHUNK), [0] * CHUNK))
        above = builder.fcmp_ordered(">=", builder.load(address, align=4), splat)
        return builder.bitcast(above, ir.IntType(CHUNK))

    return types.uint64(row, types.int64, types.float32), codegen


@njit(nogil=True, _nrt=False)
def codes_above(row_V, start, min_logit):
    """Return the codes of the chunk from `start` whose logit is at least `min_logit`: bit i is code start + i."""
    if start + CHUNK <= row_V.size:
        return _chunk_above(row_V, start, min_logit)
    above = np.uint64(0)
    for code in range(start, row_V.size):
        above |= np.uint64(row_V[code] >= min_logit) << np.uint64(code - start)
    return above


@njit(nogil=True, _nrt=False)
def chunk_maxima(row_V, out_chunks):
    """Write the maximum of each chunk of 64 and return the row's. A NaN may or may not show: the sum finds it."""
    size = row_V.size
    whole = size // CHUNK
    top = np.float32(-np.inf)
    for chunk in range(whole):
        best = _chunk_maximum(row_V, chunk * CHUNK)
        out_chunks[chunk] = best
        top = best if best > top else top
    if whole * CHUNK < size:
        best = row_V[whole * CHUNK]
        for i in range(whole * CHUNK, size):
            best = row_V[i] if row_V[i] > best else best
        out_chunks[whole] = best
        top = best if best > top else top
    return top


@njit(types.UniTuple(types.float32, 2)(types.float32), cache=True, fastmath={"contract"}, nogil=True, _nrt=False)
def _split(x):
    """Return (x - n ln 2, n + 1.5 * 2^23) for the integer n nearest to x / ln 2; n stands in the low bits of the second.

    A function of its own and compiled at once, because numba hands the flags of the first caller down, and with "reassoc"
    (x + magic) - magic becomes x.
    """
    magic = np.float32(_MAGIC)
    shifted = x * np.float32(_LOG2_E) + magic
    return x - (shifted - magic) * np.float32(_LN_2), shifted


@njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True, _nrt=False)
def sum_exp(row_V, top):
    """Return sum(exp(row - top)): at least 1 if `top` is the maximum of the row, NaN if the row holds NaN.

    So no flag here may assume that there is no NaN.
    """
    min_exponent = np.float32(_MIN_EXPONENT)
    total = np.float32(0.0)
    top = np.float32(top)
    for i in range(row_V.size):
        x = row_V[i] - top
        x = min_exponent if x < min_exponent else x
        f, shifted = _split(x)
        p = np.float32(_POLYNOMIAL[0])
        p = p * f + np.float32(_POLYNOMIAL[1])
        p = p * f + np.float32(_POLYNOMIAL[2])
        p = p * f + np.float32(_POLYNOMIAL[3])
        p = p * f + np.float32(_POLYNOMIAL[4])
        total += bits_float(float_bits(p) + (float_bits(shifted) << np.int32(23)))
    return total


def _splat(vector, value):
    return ir.Constant(vector, [float(np.float32(value)) if isinstance(vector.element, ir.FloatType) else value] * vector.count)


def _exp(builder, x, vector, integers):
    """Emit exp of a vector, as `sum_exp` computes it; NaN stays NaN."""
    fused = ("contract",)  # multiply and add may become one instruction, where there is one; nothing is reordered
    x = builder.select(builder.fcmp_ordered("<", x, _splat(vector, _MIN_EXPONENT)), _splat(vector, _MIN_EXPONENT), x)
    shifted = builder.fadd(builder.fmul(x, _splat(vector, _LOG2_E), flags=fused), _splat(vector, _MAGIC), flags=fused)
    n = builder.fsub(shifted, _splat(vector, _MAGIC))
    f = builder.fsub(x, builder.fmul(n, _splat(vector, _LN_2), flags=fused), flags=fused)
    p = _splat(vector, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = builder.fadd(builder.fmul(p, f, flags=fused), _splat(vector, coefficient), flags=fused)
    exponent = builder.shl(builder.bitcast(shifted, integers), _splat(integers, 23))
    return builder.bitcast(builder.add(builder.bitcast(p, integers), exponent), vector)


@intrinsic
def _sum_and_maxima(typing_context, row, num_chunks, reference, out_chunks):
    """Return (max(row), sum(exp(row - reference))) of the first chunks of a row, whose maxima are written to `out_chunks`.

    for each chunk: for each quarter: sums += exp(quarter - reference), best = max(best, quarter); out = max(best)

    A loop of vectors written out, because numba has none and LLVM keeps only one of sum and maxima in vectors.
    """

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        out = context.make_array(signature.args[3])(context, builder, args[3])
        vector, integers = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(ir.IntType(32), _LANES)
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, args[2], ir.IntType(32)(0))
        reference_V = builder.shuffle_vector(first, undefined, ir.Constant(integers, [0] * _LANES))
        sums = cgutils.alloca_once_value(builder, _splat(vector, 0.0))
        top = cgutils.alloca_once_value(builder, args[2])
        maximum = _reduction(builder, "fmax", [vector])
        with cgutils.for_range(builder, args[1]) as loop:
            start = builder.mul(loop.index, ir.Constant(loop.index.type, CHUNK))
            best = None
            for lane in range(0, CHUNK, _LANES):
                address = builder.gep(array.data, [builder.add(start, ir.Constant(start.type, lane))])
                values = builder.load(builder.bitcast(address, vector.as_pointer()), align=4)
                best = values if best is None else builder.select(builder.fcmp_ordered(">", values, best), values, best)
                added = _exp(builder, builder.fsub(values, reference_V), vector, integers)
                builder.store(builder.fadd(builder.load(sums), added), sums)
            largest = builder.call(maximum, [best], fastmath=("nnan", "nsz"))
            builder.store(largest, builder.gep(out.data, [loop.index]))
            now = builder.load(top)
            builder.store(builder.select(builder.fcmp_ordered(">", largest, now), largest, now), top)
        added = _reduction(builder, "fadd", [ir.FloatType(), vector])
        total = builder.call(added, [ir.FloatType()(0.0), builder.load(sums)], fastmath=("reassoc",))
        return context.make_tuple(builder, signature.return_type, [builder.load(top), total])

    return types.UniTuple(types.float32, 2)(row, types.int64, types.float32, out_chunks), codegen


def _reduction(builder, name, taken):
    """Return LLVM's function that reduces a vector to one float."""
    kind = ir.FunctionType(ir.FloatType(), taken)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.{name}.v{taken[-1].count}f32")


@njit(cache=True, nogil=True, _nrt=False)
def log_sum_exp(row_V, out_chunks):
    """Return (largest logit, log-sum-exp) of a row; NaN where it holds NaN or +inf; the maxima of its chunks are left in
    `out_chunks`.

    The log-sum-exp is never below the largest logit, in float32 either: no step can raise a score.
    """
    size = row_V.size
    whole = size // CHUNK
    if whole > 0:
        reference = _chunk_maximum(row_V, 0)
        top, total = _sum_and_maxima(row_V, whole, reference, out_chunks)
        if whole * CHUNK < size:
            rest = row_V[whole * CHUNK :]
            best = chunk_maxima(rest, out_chunks[whole:])
            top = best if best > top else top
            total += sum_exp(rest, reference)
        if top - reference <= np.float32(_FAR) and total < np.float32(np.inf):
            lse = reference + np.float32(math.log(total))
            return top, lse if lse > top else top
    top = chunk_maxima(row_V, out_chunks)
    total = sum_exp(row_V, top if top > np.float32(-np.inf) else np.float32(0.0))
    if not total < np.float32(np.inf) or top == np.float32(np.inf):
        return top, np.float32(np.nan)
    return top, top + np.float32(math.log(total))
