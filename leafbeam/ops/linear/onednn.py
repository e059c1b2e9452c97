"""Products with matrices in oneDNN's blocked layout, in float32 or bfloat16, on a CPU.

A product with a plain matrix rearranges it each time, which takes as long as the product itself where the rows are few; a
packed matrix is rearranged once. torch has these functions for its compiler and promises nothing about them: `is_faster`
measures them beside plain products, and is False where they are missing.

Shapes: N rows, V outputs, D inputs.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from leafbeam.ops.linear import cpu

MEASURED_ROWS = 4, 16, 64, 256  # of beams or prompts; one row alone is as fast plain
_FUNCTIONS = "_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported"
_PLANNED_ROWS = 128  # the layout suits any number of rows; oneDNN wants one
_GAIN = 1.05  # what a packed matrix must gain: another product for few rows is out of reach then
_TURNS = 3  # of the measured matrices: each number of rows is planned on its first product, which takes milliseconds


def is_available(dtype: torch.dtype) -> bool:
    """Return whether this build of torch and this processor multiply packed matrices of a dtype."""
    if not torch.backends.mkldnn.is_available() or not all(hasattr(torch.ops.mkldnn, name) for name in _FUNCTIONS):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight_VD: Tensor) -> Tensor:
    """Return a copy of a matrix in oneDNN's layout, for `linear`. Needs `is_available`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_VD.contiguous(), _PLANNED_ROWS)


def unpack(weight_VD: Tensor) -> Tensor:
    """Return the plain matrix of a packed one; a plain one is returned unchanged."""
    return weight_VD.to_dense() if weight_VD.is_mkldnn else weight_VD


def linear(rows_ND: Tensor, packed_VD: Tensor) -> Tensor:
    """Return rows @ weight.T, newly allocated; it equals the product in float64 up to rounding.

    rows_ND: of the matrix's dtype, which the product is rounded to. packed_VD: from `pack`.
    """
    return torch.ops.mkldnn._linear_pointwise(rows_ND, packed_VD, None, "none", [], "")


def is_faster(weight_VD: Tensor, threads: int) -> bool:
    """Return whether a packed matrix of this shape and dtype is faster than a plain one, for 4 to 256 rows.

    Cost: some 0.3 s of measurement for each new shape, dtype and number of threads. Small matrices are not measured: packing
    does not make them faster.
    """
    if not is_available(weight_VD.dtype) or weight_VD.numel() < cpu.MIN_MEASURED_WEIGHTS:
        return False
    outputs, inputs = weight_VD.shape
    return gain(cpu.measured_outputs(outputs, inputs), inputs, weight_VD.dtype, threads, cpu.fastest_run) >= _GAIN


@lru_cache(maxsize=256)
def gain(
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    threads: int,
    seconds: Callable[[Callable[[Tensor], object], Sequence[Tensor]], float],
) -> float:
    """Return the geometric mean of the speed-up by packing such a matrix, over the faster plain product."""
    weights = torch.ones(cpu.RUNS, outputs, inputs, dtype=dtype).unbind()
    packed = [pack(weight_VD) for weight_VD in weights] * _TURNS
    weights *= _TURNS
    gains: list[float] = []
    for rows in MEASURED_ROWS:
        rows_ND = torch.ones(rows, inputs, dtype=dtype)
        plain = seconds(partial(functional.linear, rows_ND), weights)
        if dtype == torch.float32:
            own = partial(cpu.linear, rows_ND, out_NV=torch.empty(rows, outputs), threads=threads)
            plain = min(plain, seconds(own, weights))
        gains.append(plain / seconds(partial(linear, rows_ND), packed))
    return statistics.geometric_mean(gains)
