"""The CUDA study log's two kernels, as it describes them (its sections 3.1 and 3.2), for one row and for a batch.

A tiled matrix product with a mask of the vocabulary. Block level: a program whose block of codes has no legal one returns at
once. Column level: inside a block, the weights of codes that are not legal are not loaded either. The output is a table of
R x V of which only the legal entries are written.

In a batch a block is skipped, or a column not loaded, where no row of the tile may take it; the log stops at one row. They are
here to be measured against: `ops.head.triton` multiplies the legal codes alone, without a mask or a table.

Shapes: R rows, V codes, D hidden.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.errors import LogitsError

__all__ = ["masked_logits"]


@triton.jit
def masked_kernel(
    hidden_RD,
    weight_VD,
    mask_RV,
    out_RV,
    rows,
    codes,
    stride_hidden,
    stride_weight,
    stride_mask,
    BY_COLUMN: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    code = tl.program_id(1) * CODES + tl.arange(0, CODES).to(tl.int64)
    inside = (row < rows)[:, None] & (code < codes)[None, :]
    mask = tl.load(mask_RV + row[:, None] * stride_mask + code[None, :], mask=inside, other=0).to(tl.int32)
    column = tl.max(mask, 0)
    if tl.max(column, 0) == 0:
        return
    logits = tl.zeros([ROWS, CODES], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        hidden = tl.load(
            hidden_RD + row[:, None] * stride_hidden + d[None, :], mask=(row < rows)[:, None] & (d < D)[None, :], other=0.0
        )
        wanted = (code < codes)[None, :] & (d < D)[:, None]
        if BY_COLUMN:
            wanted = wanted & (column > 0)[None, :]
        weight = tl.load(weight_VD + code[None, :] * stride_weight + d[:, None], mask=wanted, other=0.0)
        logits = tl.dot(hidden, weight, logits, input_precision="ieee")
    tl.store(out_RV + row[:, None] * codes + code[None, :], logits, mask=inside & (mask > 0))


def masked_logits(
    hidden_RD: Tensor, weight_VD: Tensor, mask_RV: Tensor, *, level: Literal["block", "column"], block: int = 32
) -> Tensor:
    """Logits (R, V) float32 where the mask is set; what stands elsewhere is undefined.

    mask_RV: bool or uint8, one row for each hidden state, or one for all (1, V), as in the log. block: codes of a block.
    """
    rows, codes = len(hidden_RD), len(weight_VD)
    if mask_RV.shape not in ((rows, codes), (1, codes)):
        raise LogitsError(
            f"the mask has shape {tuple(mask_RV.shape)}: expected ({rows} or 1, {codes:,}), one entry for each code"
        )
    out_RV = torch.empty(rows, codes, device=hidden_RD.device)
    tile = max(16, min(64, triton.next_power_of_2(rows)))
    mask_RV = mask_RV.view(torch.uint8) if mask_RV.dtype == torch.bool else mask_RV
    masked_kernel[(triton.cdiv(rows, tile), triton.cdiv(codes, block))](
        hidden_RD,
        weight_VD,
        mask_RV,
        out_RV,
        rows,
        codes,
        hidden_RD.stride(0),
        weight_VD.stride(0),
        mask_RV.stride(0) if len(mask_RV) == rows else 0,
        BY_COLUMN=level == "column",
        D=weight_VD.shape[1],
        ROWS=tile,
        CODES=block,
        BLOCK_D=64,
    )
    return out_RV
