"""Products inside numba kernels: of a few rows by `cpu.multiply_tiles`, of more rows by `sgemm` of torch's library.

torch's packages for Linux on x86 export MKL's; `is_available` is False where the function is missing. It runs on torch's number
of threads.

Shapes: N rows, V outputs, D inputs.
"""

# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false
from pathlib import Path

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from leafbeam.index.bit_kernels import float32_at
from leafbeam.jit import name_functions, njit
from leafbeam.ops.linear.cpu import multiply_tiles

__all__ = ["is_available", "multiply", "name_function", "sgemm"]

_SYMBOL = "sgemm_"
_FEW = 2, 32  # rows from which on and below which tiles are faster than the library, which copies the matrix


def name_function() -> bool:
    """Return whether torch's library has the function, and let kernels call it by name."""
    return name_functions(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), [_SYMBOL])


_IS_AVAILABLE = name_function()


def is_available() -> bool:
    """Return whether kernels may call `sgemm` and `multiply`."""
    return _IS_AVAILABLE


@intrinsic
def sgemm(typing_context, x, weight, out, rows, outputs, inputs, transposed, kept):
    """out (N, V) = kept * out + x (N, D) @ (transpose of weight (V, D) if transposed else weight (D, V))

    x, weight, out: addresses of contiguous float32. kept: 0 or 1.
    """
    signature = types.void(*[types.intp] * 6, types.boolean, types.float32)

    def codegen(context, builder, _, values):
        x, weight, out, rows, outputs, inputs, transposed, kept = values
        letter, word, real = ir.IntType(8), ir.IntType(32), ir.FloatType()

        def place(value):  # BLAS takes every argument by its address
            return builder.bitcast(cgutils.alloca_once_value(builder, value), cgutils.voidptr_t)

        def size(value):
            return place(builder.trunc(value, word))

        def address(value):
            return builder.inttoptr(value, cgutils.voidptr_t)

        # Arrays by rows are transposed to BLAS, which has them by columns: out^T = weight^T x^T.
        flag = builder.select(transposed, letter(ord("T")), letter(ord("N")))
        stride = builder.select(transposed, inputs, outputs)
        arguments = [place(flag), place(letter(ord("N"))), size(outputs), size(rows), size(inputs), place(real(1.0))]
        arguments += [address(weight), size(stride), address(x), size(inputs), place(kept), address(out), size(outputs)]
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] * len(arguments))
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, f"leafbeam_{_SYMBOL}"), arguments)
        return context.get_dummy_value()

    return signature, codegen


@njit(nogil=True, _nrt=False, error_model="numpy")
def multiply(begin, end, rows_ND, weight, out_NV, kept):
    """out[n] = kept * out[n] + weight @ rows[n] for begin <= n < end; weight: the address of (V, D); kept: 0 or 1"""
    inputs, outputs = rows_ND.shape[1], out_NV.shape[1]
    if _FEW[0] <= end - begin < _FEW[1]:
        multiply_tiles(begin, end, 0, outputs, rows_ND, float32_at(weight, outputs * inputs), out_NV, kept == 1)
        return
    x, out = rows_ND.ctypes.data + begin * inputs * 4, out_NV.ctypes.data + begin * outputs * 4
    sgemm(x, weight, out, end - begin, outputs, inputs, True, np.float32(kept))
