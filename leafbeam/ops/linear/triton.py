"""Rows rounded to float8 on a GPU, in Triton: one launch, where torch takes five.

Shapes: N rows, D inputs.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportAttributeAccessIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.ops.linear.rounded import LIMITS, TINY


def round_rows(rows_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `rounded.round_rows` returns for float8, up to the rounding of a division."""
    rows_ND = rows_ND.contiguous()
    out_ND = torch.empty(rows_ND.shape, dtype=torch.float8_e4m3fn, device=rows_ND.device)
    scale_N = torch.empty(len(rows_ND), device=rows_ND.device)
    size = rows_ND.shape[1]
    if len(rows_ND):
        limit = LIMITS[torch.float8_e4m3fn]
        round_kernel[(len(rows_ND),)](rows_ND, out_ND, scale_N, size, limit, TINY, BLOCK=triton.next_power_of_2(size))
    return out_ND, scale_N


@triton.jit
def round_kernel(rows_ND, out_ND, scale_N, size, limit, tiny, BLOCK: tl.constexpr):
    """out[n] = rows[n] / scale[n], scale[n] = the largest magnitude of the row / limit

    Magnitudes have the order of their bits, and NaN is above all. Quotients are rounded to the steps of float8 here, to even
    ones: a GPU's conversion would do it, but that of Triton's interpreter cuts digits off.
    """
    row = tl.program_id(0).to(tl.int64)
    input = tl.arange(0, BLOCK)
    value = tl.load(rows_ND + row * size + input, mask=input < size, other=0.0).to(tl.float32)
    top = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0).to(tl.float32, bitcast=True)
    scale = tl.where(top / limit < tiny, tiny, top / limit)
    value = value / scale
    power = (value.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    whole = tl.maximum(power, 0.015625) * 1572864.0  # 1.5 * 2^23 steps: adding it leaves no digits below a step
    tl.store(out_ND + row * size + input, ((value + whole) - whole).to(tl.float8e4nv), mask=input < size)
    tl.store(scale_N + row, scale)
