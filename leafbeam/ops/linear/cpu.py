"""Products of a few float32 rows with a large matrix on a CPU, of float32 or of bfloat16, which is half as many bytes.

What few rows take is the reading of the matrix. A library reads it several times, or slowly; `linear` reads it once for up to
four rows. More rows are multiplied four at a time by four outputs, whose sums stay in registers. Which of them is faster
depends on the processor: `is_faster` measures it once for each shape of a matrix.

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
_FEW = 4  # rows that are multiplied by one output at a time
_SPLIT = 1 << 18  # weights of a part that is worth another thread
_FAST = {"reassoc", "contract", "nsz"}


def is_faster(num_rows: int, weight_DV: Tensor, threads: int) -> bool:
    """Whether `linear` is faster than torch's product, for which a matrix of bfloat16 is widened first.

    weight_DV: the matrix as its caller keeps it, transposed; a view of it would take longer than this answer. Cost: for a shape
    and a number of threads that are new to the process, some 0.1 s of measurement.
    """
    if num_rows > MEASURED_ROWS[-1]:
        return False
    if weight_DV.numel() < MIN_MEASURED_WEIGHTS:
        return weight_DV.dtype == torch.bfloat16
    inputs, outputs = weight_DV.shape
    faster = rows_faster(measured_outputs(outputs, inputs), inputs, weight_DV.dtype, threads, fastest_run)
    return next(rows for rows in MEASURED_ROWS if rows >= num_rows) in faster


def measured_outputs(outputs: int, inputs: int) -> int:
    """The outputs of a matrix that are measured in its place."""
    return min(outputs, max(1, _MEASURED_WEIGHTS // inputs))


def fastest_run(multiply: Callable[[Tensor], object], weights: Sequence[Tensor]) -> float:
    """The fastest of the products with these matrices, each of which the caches have lost; the first may compile."""
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
    """The numbers of rows, of those that are measured, at which `linear` is faster with matrices like this."""
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
    """Write rows @ weight.T, or add it to what is there; equals `leafbeam.ops.linear.reference.linear` up to rounding.

    rows_ND, out_NV: float32, contiguous rows. weight_VD: bfloat16 or float32, contiguous, on the CPU. threads: that share the
    outputs of a large matrix. Cost: one pass over the weights for up to 4 rows.
    """
    rows, out = rows_ND.numpy(), out_NV.numpy()
    weights = (weight_VD.view(torch.int16) if weight_VD.dtype == torch.bfloat16 else weight_VD).numpy()
    threads = max(1, min(threads, weights.size // _SPLIT)) if openmp.is_available() else 1
    (_few if len(rows) <= _FEW else _tiles)(rows, weights, out, add, threads)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _few(rows_ND, weight_VD, out_NV, add, threads):
    """for each output: out[row] (+)= rows[row] . widened weight, of up to four rows"""
    openmp.fork(_few_of, threads, len(weight_VD), (rows_ND, weight_VD, out_NV, add))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _few_of(begin, end, rows_ND, weight_VD, out_NV, add):
    num_rows = len(rows_ND)
    row_b, row_c, row_e = min(1, num_rows - 1), min(2, num_rows - 1), min(3, num_rows - 1)
    for v in range(begin, end):
        a = b = c = e = np.float32(0)
        if num_rows == 1:
            for d in range(weight_VD.shape[1]):
                a += rows_ND[0, d] * widened(weight_VD[v, d])
        else:
            for d in range(weight_VD.shape[1]):
                weight = widened(weight_VD[v, d])
                a += rows_ND[0, d] * weight
                b += rows_ND[row_b, d] * weight
                c += rows_ND[row_c, d] * weight
                e += rows_ND[row_e, d] * weight
        _write(out_NV, 0, v, add, a, b, c, e)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _tiles(rows_ND, weight_VD, out_NV, add, threads):
    """for each four outputs, for each four rows: out[row, output] (+)= rows[row] . widened weight of the output"""
    openmp.fork(_tiles_of, threads, len(weight_VD), (rows_ND, weight_VD, out_NV, add))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _tiles_of(begin, end, rows_ND, weight_VD, out_NV, add):
    num_rows = len(rows_ND)
    for v in range(begin, end, 4):
        v2, v3, v4 = min(v + 1, end - 1), min(v + 2, end - 1), min(v + 3, end - 1)
        for n in range(0, num_rows, 4):
            row_b, row_c, row_e = min(n + 1, num_rows - 1), min(n + 2, num_rows - 1), min(n + 3, num_rows - 1)
            a = b = c = e = np.float32(0)
            a2 = b2 = c2 = e2 = np.float32(0)
            a3 = b3 = c3 = e3 = np.float32(0)
            a4 = b4 = c4 = e4 = np.float32(0)
            for d in range(weight_VD.shape[1]):
                w, x, y, z = rows_ND[n, d], rows_ND[row_b, d], rows_ND[row_c, d], rows_ND[row_e, d]
                first, second = widened(weight_VD[v, d]), widened(weight_VD[v2, d])
                third, fourth = widened(weight_VD[v3, d]), widened(weight_VD[v4, d])
                a += w * first
                b += x * first
                c += y * first
                e += z * first
                a2 += w * second
                b2 += x * second
                c2 += y * second
                e2 += z * second
                a3 += w * third
                b3 += x * third
                c3 += y * third
                e3 += z * third
                a4 += w * fourth
                b4 += x * fourth
                c4 += y * fourth
                e4 += z * fourth
            _write(out_NV, n, v, add, a, b, c, e)
            if v2 > v:
                _write(out_NV, n, v2, add, a2, b2, c2, e2)
            if v3 > v2:
                _write(out_NV, n, v3, add, a3, b3, c3, e3)
            if v4 > v3:
                _write(out_NV, n, v4, add, a4, b4, c4, e4)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _write(out_NV, n, v, add, a, b, c, e):
    """Write or add the output v of up to four rows from n on."""
    rows = len(out_NV) - n
    base = out_NV[n, v] if add else np.float32(0)
    out_NV[n, v] = base + a
    if rows > 1:
        base = out_NV[n + 1, v] if add else np.float32(0)
        out_NV[n + 1, v] = base + b
    if rows > 2:
        base = out_NV[n + 2, v] if add else np.float32(0)
        out_NV[n + 2, v] = base + c
    if rows > 3:
        base = out_NV[n + 3, v] if add else np.float32(0)
        out_NV[n + 3, v] = base + e
