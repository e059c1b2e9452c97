"""Products of a few float32 rows with a large matrix on a CPU, of float32 or of bfloat16, which is half as many bytes.

What few rows take is the reading of the matrix. A library reads it several times, or slowly; `linear` reads it once.

Shapes: N rows, V outputs, D inputs, T outputs whose weights are widened together.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from concurrent.futures import Executor

import numpy as np
import torch
from torch import Tensor

from leafbeam.index.bit_kernels import widened
from leafbeam.jit import njit

_MOST_ROWS = 64  # of more, a library's product is faster, with the matrix widened first
_ROWS_FLOAT32 = range(2, 21)  # of other numbers, a library's product of float32 is as fast
_LARGE = 1 << 18  # weights of float32 below which a library takes microseconds too
_FEW = 8  # rows for which a weight that is widened for every four of them is cheaper than one that is stored widened
_TOGETHER = 8
_SPLIT = 1 << 18  # weights of a part that is worth another thread
_FAST = {"reassoc", "contract", "nsz"}


def is_faster(num_rows: int, weight: Tensor) -> bool:
    """Whether `linear` is faster than a library's product."""
    if weight.dtype == torch.float32:
        return num_rows in _ROWS_FLOAT32 and weight.numel() >= _LARGE
    return num_rows <= _MOST_ROWS


def linear(
    rows_ND: Tensor,
    weight_VD: Tensor,
    out_NV: Tensor,
    *,
    add: bool = False,
    executor: Executor | None = None,
    threads: int = 1,
) -> None:
    """Write rows @ weight.T, or add it to what is there; equals `leafbeam.ops.linear.reference.linear` up to rounding.

    rows_ND, out_NV: float32, contiguous rows. weight_VD: bfloat16 or float32, contiguous, on the CPU. executor: runs parts of
    a large matrix on `threads` - 1 threads beside the caller's. Cost: one pass over the weights for up to 8 rows.
    """
    rows, out = rows_ND.numpy(), out_NV.numpy()
    weights = (weight_VD.view(torch.int16) if weight_VD.dtype == torch.bfloat16 else weight_VD).numpy()
    kernel = _multiply_few if len(rows) <= _FEW else _multiply_many
    parts = 1 if executor is None else max(1, min(threads, weights.size // _SPLIT))
    size = -(-len(weights) // parts)
    bounds = [(begin, min(begin + size, len(weights))) for begin in range(0, len(weights), size)]

    def run(begin: int, end: int) -> None:
        kernel(rows, weights[begin:end], out[:, begin:end], add, np.empty((_TOGETHER, weights.shape[1]), np.float32))

    others = [executor.submit(run, *bound) for bound in bounds[1:]] if executor is not None else []
    run(*bounds[0])
    for other in others:
        other.result()


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _multiply_few(rows_ND, weight_VD, out_NV, add, wide_TD):
    """for each output, for each four rows: out[row] (+)= rows[row] . widened weight"""
    num_rows = len(rows_ND)
    for v in range(len(weight_VD)):
        for n in range(0, num_rows, 4):
            a = b = c = e = np.float32(0)
            if num_rows - n == 1:
                for d in range(weight_VD.shape[1]):
                    a += rows_ND[n, d] * widened(weight_VD[v, d])
            else:
                row_b, row_c, row_e = min(n + 1, num_rows - 1), min(n + 2, num_rows - 1), min(n + 3, num_rows - 1)
                for d in range(weight_VD.shape[1]):
                    weight = widened(weight_VD[v, d])
                    a += rows_ND[n, d] * weight
                    b += rows_ND[row_b, d] * weight
                    c += rows_ND[row_c, d] * weight
                    e += rows_ND[row_e, d] * weight
            _write(out_NV, n, v, add, a, b, c, e)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _multiply_many(rows_ND, weight_VD, out_NV, add, wide_TD):
    """The same, with T weights widened once for all rows, and two of them multiplied by four rows at a time."""
    num_rows, num_outputs, size = len(rows_ND), *weight_VD.shape
    for begin in range(0, num_outputs, len(wide_TD)):
        count = min(len(wide_TD), num_outputs - begin)
        for t in range(count):
            for d in range(size):
                wide_TD[t, d] = widened(weight_VD[begin + t, d])
        for n in range(0, num_rows, 4):
            row_b, row_c, row_e = min(n + 1, num_rows - 1), min(n + 2, num_rows - 1), min(n + 3, num_rows - 1)
            for t in range(0, count, 2):
                second = min(t + 1, count - 1)
                a = b = c = e = np.float32(0)
                a2 = b2 = c2 = e2 = np.float32(0)
                for d in range(size):
                    weight, other = wide_TD[t, d], wide_TD[second, d]
                    w, x, y, z = rows_ND[n, d], rows_ND[row_b, d], rows_ND[row_c, d], rows_ND[row_e, d]
                    a += w * weight
                    b += x * weight
                    c += y * weight
                    e += z * weight
                    a2 += w * other
                    b2 += x * other
                    c2 += y * other
                    e2 += z * other
                _write(out_NV, n, begin + t, add, a, b, c, e)
                if second > t:
                    _write(out_NV, n, begin + second, add, a2, b2, c2, e2)


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
