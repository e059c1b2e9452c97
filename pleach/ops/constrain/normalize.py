"""Log-sum-exp of a row of logits, in compiled loops that vectorise.

    top = max(row);  lse = top + log(sum(exp(row - top)))

The largest logit of each chunk of 64 comes for free and lets a search skip chunks that cannot matter. exp is 2^n times a
polynomial of degree 4 (relative error 3e-6 at most, exactly 1 at 0, so that the largest term has none); sums are kept in
float32 lanes; tests compare with float64.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from pleach.index.bits import bits_float, float_bits

__all__ = ["CHUNK", "chunk_maxima", "codes_above", "sum_exp"]

CHUNK = 64


@intrinsic
def _chunk_maximum(typing_context, row, start):
    """The largest of the 64 values from `start`: one vector reduction, which a loop of constant length does not become."""

    def codegen(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        vector = ir.VectorType(ir.FloatType(), CHUNK)
        address = builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())
        reduce_type = ir.FunctionType(ir.FloatType(), [vector])
        reduce = cgutils.get_or_insert_function(builder.module, reduce_type, f"llvm.vector.reduce.fmax.v{CHUNK}f32")
        return builder.call(reduce, [builder.load(address, align=4)], fastmath=("nnan", "nsz"))

    return types.float32(row, types.int64), codegen


@intrinsic
def _chunk_above(typing_context, row, start, least):
    """Which of the 64 values from `start` are at least `least`, one bit each: eight comparisons of vectors."""

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
def codes_above(row_V, start, least):
    """The codes of the chunk from `start` whose logit is at least `least`: bit i is code start + i."""
    if start + CHUNK <= row_V.size:
        return _chunk_above(row_V, start, least)
    above = np.uint64(0)
    for code in range(start, row_V.size):
        above |= np.uint64(row_V[code] >= least) << np.uint64(code - start)
    return above


@njit(nogil=True, _nrt=False)
def chunk_maxima(row_V, out_chunks):
    """Write the maximum of each chunk of 64 and return the row's. A NaN may or may not show: `sum_exp` finds it."""
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


@njit(types.UniTuple(types.float32, 2)(types.float32), fastmath={"contract"}, nogil=True, _nrt=False)
def _split(x):
    """(x - n ln 2, n + 1.5 * 2^23) for the integer n nearest to x / ln 2; n stands in the low bits of the second.

    A function of its own and compiled at once, because numba hands the flags of the first caller down, and with "reassoc"
    (x + magic) - magic becomes x.
    """
    magic = np.float32(12582912.0)
    shifted = x * np.float32(1.4426950408889634) + magic
    return x - (shifted - magic) * np.float32(0.6931471805599453), shifted


@njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True, _nrt=False)
def sum_exp(row_V, top):
    """sum(exp(row - top)), at least 1 where `top` is the row's maximum; NaN where the row holds one.

    So no flag here may assume that there is no NaN.
    """
    least = np.float32(-87.0)
    total = np.float32(0.0)
    top = np.float32(top)
    for i in range(row_V.size):
        x = row_V[i] - top
        x = least if x < least else x
        f, shifted = _split(x)
        p = np.float32(0.04151351749897003)
        p = p * f + np.float32(0.16787710785865784)
        p = p * f + np.float32(0.5000302791595459)
        p = p * f + np.float32(0.9999666810035706)
        p = p * f + np.float32(1.0)
        total += bits_float(float_bits(p) + (float_bits(shifted) << np.int32(23)))
    return total
