"""Logits of legal codes on a GPU, in Triton.

Sums are float32 for every dtype of the weight; D is a compile-time constant. Without a GPU it runs under Triton's interpreter
(TRITON_INTERPRET=1 before the first import), in float32 only, slowly.

Shapes: R rows, V codes, D hidden, C legal codes, N blocks of codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.ops.constrain.triton.ranges import first_at_least
from leafbeam.ops.head.cost import HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize, check_inputs, check_path

# Measured by benchmarks/head_costs.py on an H200, bfloat16 weights of 131,072 x 3,072.
DEVICE_COSTS = HeadCosts(
    dense=((1, 0.00051), (64, 0.00058), (128, 0.0006), (256, 0.00079)),
    gather=0.0007,
    call=10_000.0,
)
_FUSED_ROWS = 16  # for more, a library's product and a pass over its logits are faster (140 rows, V = 131,072, H200: 2.5 times)
_BLOCK = 64  # codes of a program of the fused product
_GATHERED = 4  # legal codes of a program
_SUMMED = 4096  # logits of a program of that pass
_PATHS = Literal["dense", "gather"]
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def head(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    legal_codes: LegalCodes[Tensor],
    normalize: Normalize,
    *,
    costs: HeadCosts | None = None,
    path: HeadPath | None = None,
) -> HeadLogits[Tensor]:
    """Return the logits of each row's legal codes and its log-sum-exp; equals `leafbeam.ops.head.reference.head`.

    The device is not synchronised. Cost: two launches. Raises ArgumentError, LogitsError, before any launch.

    Args:
        hidden_RD, weight_VD: float32, bfloat16 or float16 on one device, with contiguous rows; a slice of a larger head works.
            Logits are summed in float32.
        costs: The costs of this GPU; None takes `DEVICE_COSTS`.
        path: The path to take instead of the cheapest one ("full" is always dense).
    """
    check_inputs(hidden_RD, weight_VD, legal_codes.num_rows, normalize)
    _check(hidden_RD, weight_VD, legal_codes)
    (rows, hidden), codes = hidden_RD.shape, len(weight_VD)
    if path is None:
        work = Workload(rows=rows, codes=codes, hidden=hidden, legal=legal_codes.count)
        path = cheapest_path(costs or DEVICE_COSTS, work, normalize)
    check_path(path, normalize, _PATHS)
    full = normalize == "full"
    if path == "dense" and (rows > _FUSED_ROWS or not full):
        logit_C, sums = _library_product(hidden_RD, weight_VD, legal_codes, full=full)
    else:
        logit_C = torch.empty(legal_codes.count, device=hidden_RD.device)
        sums = _block_sums(rows, triton.cdiv(codes, _BLOCK) if full else 0, hidden_RD.device)
        product = Product(
            hidden_RD=hidden_RD,
            weight_VD=weight_VD,
            indptr_R1=legal_codes.indptr_R1,
            code_C=legal_codes.code_C,
            logit_C=logit_C,
            stride_hidden=hidden_RD.stride(0),
            stride_weight=weight_VD.stride(0),
        )
        if path == "dense":
            product_kernel[(sums.num_blocks,)](
                product, sums, rows, codes, D=hidden, ROWS=_FUSED_ROWS, CODES=_BLOCK, BLOCK_D=64, num_warps=4, num_stages=4
            )
        else:
            grid = rows, max(1, triton.cdiv(legal_codes.max_row, _GATHERED))
            block = min(1024, triton.next_power_of_2(hidden))
            csr_kernel[grid](product, D=hidden, CODES=_GATHERED, BLOCK_D=block, num_warps=4)
    lse_R = torch.empty(rows, device=hidden_RD.device)
    sums_kernel[(rows,)](logit_C, legal_codes.indptr_R1, sums, lse_R, FULL=full, BLOCK=1024)
    return HeadLogits(legal_codes=legal_codes, logit_C=logit_C, lse_R=lse_R, path=path)


class Product(NamedTuple):
    """A product of hidden states and weights for legal codes, as kernels read and write it."""

    hidden_RD: Tensor
    weight_VD: Tensor
    indptr_R1: Tensor
    code_C: Tensor
    logit_C: Tensor
    stride_hidden: int
    stride_weight: int


class BlockSums(NamedTuple):
    """The largest logit of each row and block of codes, and the sum of exp(logit - largest), float32, (R, N)."""

    top_RN: Tensor
    sum_RN: Tensor
    num_blocks: int


def _block_sums(rows: int, num_blocks: int, device: torch.device) -> BlockSums:
    """Allocate the sums of a product, for 0 blocks if it needs no sums."""
    top_RN, sum_RN = torch.empty((2, rows, num_blocks) if num_blocks else (2, 1, 1), device=device)
    return BlockSums(top_RN=top_RN, sum_RN=sum_RN, num_blocks=num_blocks)


def _library_product(
    hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor], *, full: bool
) -> tuple[Tensor, BlockSums]:
    """Multiply all codes with a product of torch; returns the legal logits and, if `full`, the sums of all."""
    (rows, _), codes = hidden_RD.shape, len(weight_VD)
    row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff(), output_size=legal_codes.count)
    exact = {} if hidden_RD.dtype == torch.float32 else {"out_dtype": torch.float32}
    logits_RV = torch.mm(hidden_RD, weight_VD.T, **exact)
    sums = _block_sums(rows, triton.cdiv(codes, _SUMMED) if full else 0, hidden_RD.device)
    if full:
        partial_sums_kernel[(rows, sums.num_blocks)](logits_RV, sums, codes, BLOCK=_SUMMED)
    return logits_RV[row_C, legal_codes.code_C], sums


def _check(hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor]) -> None:
    for name, tensor in (("hidden states", hidden_RD), ("the head's weight", weight_VD)):
        if tensor.dtype not in _DTYPES:
            raise ArgumentError(f"{name}: expected float32, bfloat16 or float16, got {tensor.dtype}")
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ArgumentError(f"{name}: expected contiguous rows, got strides {tensor.stride()}: use .contiguous()")
    if hidden_RD.dtype != weight_VD.dtype:
        raise ArgumentError(f"hidden states are {hidden_RD.dtype} and the weight is {weight_VD.dtype}: expected one dtype")
    devices = {str(array.device) for array in (hidden_RD, weight_VD, legal_codes.indptr_R1, legal_codes.code_C)}
    if len(devices) > 1:
        raise ArgumentError(f"hidden states, weight and legal codes are on {sorted(devices)}: expected one device")
    for name, tensor in (("indptr_R1", legal_codes.indptr_R1), ("code_C", legal_codes.code_C)):
        if tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ArgumentError(f"{name} is {tensor.dtype}: expected contiguous int64")


@triton.jit
def csr_kernel(p, D: tl.constexpr, CODES: tl.constexpr, BLOCK_D: tl.constexpr):
    """for each row r and each of its entries i: logit[i] = hidden[r] @ weight[code[i]]

    Program (r, i): entries i x CODES and following of row r, without matrix units.
    """
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(p.indptr_R1 + row) + tl.program_id(1) * CODES
    end = tl.load(p.indptr_R1 + row + 1)
    if first >= end:
        return
    at = first + tl.arange(0, CODES)
    code = tl.load(p.code_C + at, mask=at < end, other=0)
    total = tl.zeros([CODES, BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        hidden = tl.load(p.hidden_RD + row * p.stride_hidden + d, mask=d < D, other=0.0).to(tl.float32)
        element = code[:, None] * p.stride_weight + d[None, :]
        weight = tl.load(p.weight_VD + element, mask=(at < end)[:, None] & (d < D)[None, :], other=0.0)
        total += weight.to(tl.float32) * hidden[None, :]
    tl.store(p.logit_C + at, tl.sum(total, 1), mask=at < end)


@triton.jit
def product_kernel(
    p,
    sums,
    rows,
    codes,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """logits = hidden @ weight[block].T; logit[i] = logits of the legal codes in the block
    top[:, n] = max(logits); sum[:, n] = sum(exp(logits - top))

    Program n: all rows, block n of CODES codes, on matrix units. A row's codes of a block are found by two binary searches,
    because they are ascending.
    """
    row = tl.arange(0, ROWS).to(tl.int64)
    block = tl.program_id(0)
    first = block * CODES
    begin = tl.load(p.indptr_R1 + row, mask=row < rows, other=0)
    end = tl.load(p.indptr_R1 + row + 1, mask=row < rows, other=0)
    begin = first_at_least(p.code_C, begin, end, first, row < rows, 0)
    end = first_at_least(p.code_C, begin, end, first + CODES, row < rows, 0)
    code = first + tl.arange(0, CODES).to(tl.int64)
    logits = tl.zeros([ROWS, CODES], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        hidden = tl.load(
            p.hidden_RD + row[:, None] * p.stride_hidden + d[None, :], mask=(row < rows)[:, None] & (d < D)[None, :], other=0.0
        )
        weight = tl.load(
            p.weight_VD + code[None, :] * p.stride_weight + d[:, None],
            mask=(code < codes)[None, :] & (d < D)[:, None],
            other=0.0,
        )
        logits = tl.dot(hidden, weight, logits, input_precision="ieee")
    inside = tl.where((code < codes)[None, :], logits, float("-inf"))
    top = tl.max(inside, 1)
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(sums.top_RN + row * sums.num_blocks + block, top, mask=row < rows)
    tl.store(sums.sum_RN + row * sums.num_blocks + block, tl.sum(tl.exp(inside - shift[:, None]), 1), mask=row < rows)
    at = begin[:, None] + tl.arange(0, CODES)[None, :]
    legal = at < end[:, None]
    column = tl.load(p.code_C + at, mask=legal, other=first) - first
    tl.store(p.logit_C + at, tl.gather(logits, column.to(tl.int32), 1), mask=legal)


@triton.jit
def partial_sums_kernel(logits_RV, sums, codes, BLOCK: tl.constexpr):
    """top[r, n] = max(logits[r, block n]); sum[r, n] = sum(exp(logits[r, block n] - top[r, n]))

    Program (r, n): row r, block n of BLOCK codes.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    code = block * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits_RV + row * codes + code, mask=code < codes, other=float("-inf"))
    top = tl.max(logit, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(sums.top_RN + row * sums.num_blocks + block, top)
    tl.store(sums.sum_RN + row * sums.num_blocks + block, tl.sum(tl.exp(logit - shift), 0))


@triton.jit
def sums_kernel(logit_C, indptr_R1, sums, lse_R, FULL: tl.constexpr, BLOCK: tl.constexpr):
    """lse[r] = logsumexp(row r's legal logits), or over its blocks if FULL: log(sum(sum_RN[r] x exp(top_RN[r])))

    Program r; -inf for an empty row.
    """
    row = tl.program_id(0).to(tl.int64)
    top = tl.max(tl.full([BLOCK], float("-inf"), tl.float32), 0)
    summed = tl.sum(tl.zeros([BLOCK], tl.float32), 0)
    if FULL:
        at = row * sums.num_blocks
        end = at + sums.num_blocks
    else:
        at = tl.load(indptr_R1 + row)
        end = tl.load(indptr_R1 + row + 1)
    while at < end:
        i = at + tl.arange(0, BLOCK)
        if FULL:
            value = tl.load(sums.top_RN + i, mask=i < end, other=float("-inf"))
            weight = tl.load(sums.sum_RN + i, mask=i < end, other=0.0)
        else:
            value = tl.load(logit_C + i, mask=i < end, other=float("-inf"))
            weight = tl.where(i < end, 1.0, 0.0)
        highest = tl.maximum(top, tl.max(value, 0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        summed = summed * tl.exp(top - shift) + tl.sum(weight * tl.exp(value - shift), 0)
        top = highest
        at += BLOCK
    tl.store(lse_R + row, tl.where(top == float("-inf"), top, top + tl.log(tl.maximum(summed, 1.0))))
