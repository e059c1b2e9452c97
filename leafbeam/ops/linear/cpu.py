"""Products of a few float32 rows with a large matrix on a CPU, of float32 or of bfloat16, which is half as many bytes.

Most of the time of few rows goes into reading the matrix. A library reads it several times, or copies it; `linear` reads it
once, and multiplies two or three rows at a time by four outputs, whose sums stay in registers. Which of them is faster depends
on the processor: `is_faster` measures it once for each shape of a matrix.

Shapes: N rows, V outputs, D inputs.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from leafbeam.index.bit_kernels import widened
from leafbeam.jit import njit
from leafbeam.ops import openmp

MEASURED_ROWS = 1, 2, 3, 4, 8, 16, 32, 64, 128, 256  # of more, a library's product is as fast
_MANY = 32  # rows from which on, once a library is faster, it stays so
_MEASURED_WEIGHTS = 1 << 22  # of a larger matrix, so many are measured
RUNS = 4  # of each product that is measured, each with another matrix; the fastest counts
MIN_MEASURED_WEIGHTS = 1 << 18  # weights below which nothing is measured: in float32 a library takes microseconds too
_FEW = 4  # rows, from two on, that are multiplied by one output of bfloat16 at a time: each weight is widened once
_SPLIT = 1 << 18  # weights of a part that is worth another thread
_FAST = {"reassoc", "contract", "nsz"}


def is_faster(num_rows: int, weight_DV: Tensor, threads: int) -> bool:
    """Return whether `linear` is faster than torch's product, which first widens a matrix of bfloat16.

    weight_DV: the matrix as its caller keeps it, transposed; a view of it would take longer than this answer. Cost: for a shape
    and a number of threads that are new to the process, some 0.1 s of measurement.
    """
    if num_rows > MEASURED_ROWS[-1]:
        return False
    if weight_DV.numel() < MIN_MEASURED_WEIGHTS:
        return weight_DV.dtype == torch.bfloat16
    inputs, outputs = weight_DV.shape
    faster = faster_rows(outputs, inputs, weight_DV.dtype, threads)
    return next(rows for rows in MEASURED_ROWS if rows >= num_rows) in faster


def faster_rows(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> frozenset[int]:
    """Return the numbers of MEASURED_ROWS at which `linear` is faster with a matrix of this shape; measured once."""
    return rows_faster(measured_outputs(outputs, inputs), inputs, dtype, threads, fastest_run)


def measured_outputs(outputs: int, inputs: int) -> int:
    """Return the number of outputs that are measured in place of all outputs of a matrix."""
    return min(outputs, max(1, _MEASURED_WEIGHTS // inputs))


def fastest_run(multiply: Callable[[Tensor], object], weights: Sequence[Tensor]) -> float:
    """Return the shortest time of a product with one of these matrices, none of which is in a cache; the first may compile."""
    found: list[float] = []
    for weight_VD in weights:
        started = time.perf_counter()
        multiply(weight_VD)
        found.append(time.perf_counter() - started)
    return min(found)


@lru_cache(maxsize=256)
def rows_faster(
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    threads: int,
    seconds: Callable[[Callable[[Tensor], object], Sequence[Tensor]], float],
) -> frozenset[int]:
    """Return the measured numbers of rows at which `linear` is faster with matrices of this shape."""
    weights, widened_VD = torch.ones(RUNS, outputs, inputs, dtype=dtype).unbind(), torch.ones(outputs, inputs)

    def library(weight_VD: Tensor, rows_ND: Tensor) -> Tensor:
        return functional.linear(rows_ND, weight_VD if dtype == torch.float32 else widened_VD.copy_(weight_VD))

    found: set[int] = set()
    for rows in MEASURED_ROWS:
        rows_ND, out_NV = torch.ones(rows, inputs), torch.empty(rows, outputs)
        own = partial(linear, rows_ND, out_NV=out_NV, threads=threads)
        if seconds(own, weights) < seconds(partial(library, rows_ND=rows_ND), weights):
            found.add(rows)
        elif rows >= _MANY:
            break
    return frozenset(found)


def linear(rows_ND: Tensor, weight_VD: Tensor, out_NV: Tensor, *, add: bool = False, threads: int = 1) -> None:
    """Write rows @ weight.T to `out_NV`, or add it; the result equals the product in float64 up to rounding.

    rows_ND, out_NV: float32, contiguous rows. weight_VD: bfloat16 or float32, contiguous, on the CPU. threads: the number of
    threads that share the outputs of a large matrix. Cost: one pass over the weights for up to 4 rows.
    """
    rows, out = rows_ND.numpy(), out_NV.numpy()
    weights = (weight_VD.view(torch.int16) if weight_VD.dtype == torch.bfloat16 else weight_VD).numpy()
    threads = max(1, min(threads, weights.size // _SPLIT)) if openmp.is_available() else 1
    is_few = 1 < len(rows) <= _FEW and weight_VD.dtype == torch.bfloat16
    (_few if is_few else _tiles)(rows, weights, out, add, threads)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _few(rows_ND, weight_VD, out_NV, add, threads):
    """for each output: out[row] (+)= rows[row] . widened weight, of two to four rows"""
    openmp.fork(_few_of, threads, len(weight_VD), (rows_ND, weight_VD, out_NV, add))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _few_of(begin, end, rows_ND, weight_VD, out_NV, add):
    num_rows = len(rows_ND)
    row_c, row_e = min(2, num_rows - 1), min(3, num_rows - 1)
    for v in range(begin, end):
        a = b = c = e = np.float32(0)
        for d in range(weight_VD.shape[1]):
            weight = widened(weight_VD[v, d])
            a += rows_ND[0, d] * weight
            b += rows_ND[1, d] * weight
            c += rows_ND[row_c, d] * weight
            e += rows_ND[row_e, d] * weight
        _write_rows(out_NV, v, add, a, b, c, e)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _tiles(rows_ND, weight_VD, out_NV, add, threads):
    openmp.fork(_tiles_of, threads, (len(weight_VD) + 3) // 4, (rows_ND, weight_VD.reshape(-1), out_NV, add))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _tiles_of(begin, end, rows_ND, weights, out_NV, add):
    """Return begin and end of a part of the outputs, by fours, so that no sum depends on the number of threads."""
    multiply_tiles(0, len(rows_ND), begin * 4, min(end * 4, out_NV.shape[1]), rows_ND, weights, out_NV, add)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def multiply_tiles(first_row, last_row, first, last, rows_ND, weights, out_NV, add):
    """for each four outputs, for each two or three rows: out[row, output] (+)= rows[row] . widened weight of the output

    weights: flat (V, D). Twelve sums and four factors are what the registers of AVX2 hold.
    """
    size = rows_ND.shape[1]
    whole = first if last_row - first_row == 1 else last - (last - first) % 4  # a single row, and the rest: output by output
    for v in range(first, whole, 4):
        n = first_row
        while n < last_row:
            left = last_row - n
            if left == 3 or left > 4:
                _three_rows(n, v, rows_ND, weights, out_NV, add)
                n += 3
            else:
                _two_rows(n, v, rows_ND, weights, out_NV, add)
                n += 2
    for v in range(whole, last):
        weight_D = weights[v * size : (v + 1) * size]
        for n in range(first_row, last_row):
            a = np.float32(0)
            for d in range(size):
                a += rows_ND[n, d] * widened(weight_D[d])
            out_NV[n, v] = out_NV[n, v] + a if add else a


# Inlined by numba, because calls with that many arrays take a fifth of the time.
@njit(inline="always", nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _three_rows(n, v, rows_ND, weights, out_NV, add):
    x_D, y_D, z_D, size = rows_ND[n], rows_ND[n + 1], rows_ND[n + 2], rows_ND.shape[1]
    first_D, second_D, third_D, fourth_D = _four_rows(v, size, weights)
    a = a2 = a3 = a4 = b = b2 = b3 = b4 = c = c2 = c3 = c4 = np.float32(0)
    for d in range(size):
        x, y, z = x_D[d], y_D[d], z_D[d]
        weight = widened(first_D[d])
        a += x * weight
        b += y * weight
        c += z * weight
        weight = widened(second_D[d])
        a2 += x * weight
        b2 += y * weight
        c2 += z * weight
        weight = widened(third_D[d])
        a3 += x * weight
        b3 += y * weight
        c3 += z * weight
        weight = widened(fourth_D[d])
        a4 += x * weight
        b4 += y * weight
        c4 += z * weight
    _write_outputs(out_NV[n], v, add, a, a2, a3, a4)
    _write_outputs(out_NV[n + 1], v, add, b, b2, b3, b4)
    _write_outputs(out_NV[n + 2], v, add, c, c2, c3, c4)


@njit(inline="always", nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _two_rows(n, v, rows_ND, weights, out_NV, add):
    x_D, y_D, size = rows_ND[n], rows_ND[n + 1], rows_ND.shape[1]
    first_D, second_D, third_D, fourth_D = _four_rows(v, size, weights)
    a = a2 = a3 = a4 = b = b2 = b3 = b4 = np.float32(0)
    for d in range(size):
        x, y = x_D[d], y_D[d]
        weight = widened(first_D[d])
        a += x * weight
        b += y * weight
        weight = widened(second_D[d])
        a2 += x * weight
        b2 += y * weight
        weight = widened(third_D[d])
        a3 += x * weight
        b3 += y * weight
        weight = widened(fourth_D[d])
        a4 += x * weight
        b4 += y * weight
    _write_outputs(out_NV[n], v, add, a, a2, a3, a4)
    _write_outputs(out_NV[n + 1], v, add, b, b2, b3, b4)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _four_rows(v, size, weights):
    at = v * size
    second, third, fourth = at + size, at + 2 * size, at + 3 * size
    return weights[at:second], weights[second:third], weights[third:fourth], weights[fourth : fourth + size]


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _write_outputs(out_V, v, add, a, b, c, e):
    """Write or add four outputs of a row."""
    if add:
        a += out_V[v]
        b += out_V[v + 1]
        c += out_V[v + 2]
        e += out_V[v + 3]
    out_V[v], out_V[v + 1], out_V[v + 2], out_V[v + 3] = a, b, c, e


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _write_rows(out_NV, v, add, a, b, c, e):
    """Write or add an output of two to four rows."""
    rows = len(out_NV)
    out_NV[0, v] = out_NV[0, v] + a if add else a
    out_NV[1, v] = out_NV[1, v] + b if add else b
    if rows > 2:
        out_NV[2, v] = out_NV[2, v] + c if add else c
    if rows > 3:
        out_NV[3, v] = out_NV[3, v] + e if add else e
