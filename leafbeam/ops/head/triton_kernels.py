"""Logits of legal codes alone on a GPU, in Triton.

    csr_kernel      one program for each row and few of its codes: gathered rows of the weight, float32 sums, no matrix unit
    token_kernel    one program for each code: its weights stay in registers for all the rows that want it
    product_kernel  one program for a tile of rows x a block of codes on the matrix unit; skips a block that no row of the tile
                    may take, keeps each row's largest logit and sum of exponentials of the block, and writes legal logits only:
                    where a row's codes of a block stand is two binary searches, because they are ascending
    sums_kernel     log-sum-exp of each row: of its legal logits, or of what the blocks left

Sums are float32 whatever the weight is. D is known when a kernel is compiled.

Shapes: R rows, V codes, D hidden, C legal codes, N blocks of codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["csr_kernel", "product_kernel", "sums_kernel", "token_kernel"]


@triton.jit
def csr_kernel(
    hidden_RD,
    weight_VD,
    indptr_R1,
    code_C,
    logit_C,
    stride_hidden,
    stride_weight,
    D: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (r, i): codes i x CODES and following of row r."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(indptr_R1 + row) + tl.program_id(1) * CODES
    end = tl.load(indptr_R1 + row + 1)
    if first >= end:
        return
    at = first + tl.arange(0, CODES)
    code = tl.load(code_C + at, mask=at < end, other=0)
    total = tl.zeros([CODES, BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        hidden = tl.load(hidden_RD + row * stride_hidden + d, mask=d < D, other=0.0).to(tl.float32)
        places = code[:, None] * stride_weight + d[None, :]
        weight = tl.load(weight_VD + places, mask=(at < end)[:, None] & (d < D)[None, :], other=0.0)
        total += weight.to(tl.float32) * hidden[None, :]
    tl.store(logit_C + at, tl.sum(total, 1), mask=at < end)


@triton.jit
def token_kernel(
    hidden_RD,
    weight_VD,
    begin_V1,
    row_C,
    place_C,
    logit_C,
    stride_hidden,
    stride_weight,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program v: the logits of code v for the rows row_C[begin_V1[v] : begin_V1[v + 1]], written to their places."""
    code = tl.program_id(0).to(tl.int64)
    at = tl.load(begin_V1 + code)
    end = tl.load(begin_V1 + code + 1)
    if at >= end:
        return
    d = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_VD + code * stride_weight + d, mask=d < D, other=0.0).to(tl.float32)
    while at < end:
        row = tl.load(row_C + at)
        hidden = tl.load(hidden_RD + row * stride_hidden + d, mask=d < D, other=0.0).to(tl.float32)
        tl.store(logit_C + tl.load(place_C + at), tl.sum(weight * hidden, 0))
        at += 1


@triton.jit
def _first_at_least(code_C, begin, end, code):
    """The first place of each row's ascending code_C[begin:end] that is at least `code` (one value)."""
    place = begin
    size = end - begin
    while tl.max(size, 0) > 1:
        half = size >> 1
        looks = half > 0
        go = looks & (tl.load(code_C + place + half - 1, mask=looks, other=0) < code)
        place = tl.where(go, place + half, place)
        size -= half
    one = size == 1
    return tl.where(one & (tl.load(code_C + place, mask=one, other=0) < code), place + 1, place)


@triton.jit
def product_kernel(
    hidden_RD,
    weight_VD,
    indptr_R1,
    code_C,
    logit_C,
    top_RN,
    sum_RN,
    rows,
    codes,
    num_blocks,
    stride_hidden,
    stride_weight,
    FULL: tl.constexpr,
    SKIP: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    CODES: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (i, n): rows i x ROWS and following, codes n x CODES and following."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    block = tl.program_id(1)
    first = block * CODES
    begin = tl.load(indptr_R1 + row, mask=row < rows, other=0)
    end = tl.load(indptr_R1 + row + 1, mask=row < rows, other=0)
    begin = _first_at_least(code_C, begin, end, first)
    end = _first_at_least(code_C, begin, end, first + CODES)
    if SKIP:  # noqa: SIM102 (known when the kernel is compiled; the other is not)
        if tl.max(end - begin, 0) == 0:
            return
    code = first + tl.arange(0, CODES).to(tl.int64)
    logits = tl.zeros([ROWS, CODES], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        hidden = tl.load(
            hidden_RD + row[:, None] * stride_hidden + d[None, :], mask=(row < rows)[:, None] & (d < D)[None, :], other=0.0
        )
        weight = tl.load(
            weight_VD + code[None, :] * stride_weight + d[:, None], mask=(code < codes)[None, :] & (d < D)[:, None], other=0.0
        )
        logits = tl.dot(hidden, weight, logits, input_precision="ieee")
    if FULL:
        inside = tl.where((code < codes)[None, :], logits, float("-inf"))
        top = tl.max(inside, 1)
        shift = tl.where(top == float("-inf"), 0.0, top)
        tl.store(top_RN + row * num_blocks + block, top, mask=row < rows)
        tl.store(sum_RN + row * num_blocks + block, tl.sum(tl.exp(inside - shift[:, None]), 1), mask=row < rows)
    at = begin[:, None] + tl.arange(0, CODES)[None, :]
    legal = at < end[:, None]
    chosen = tl.load(code_C + at, mask=legal, other=first) - first
    tl.store(logit_C + at, tl.gather(logits, chosen.to(tl.int32), 1), mask=legal)


@triton.jit
def sums_kernel(logit_C, indptr_R1, top_RN, sum_RN, lse_R, num_blocks, FULL: tl.constexpr, BLOCK: tl.constexpr):
    """Program r: row r's log-sum-exp; -inf where it has nothing."""
    row = tl.program_id(0).to(tl.int64)
    top = tl.max(tl.full([BLOCK], float("-inf"), tl.float32), 0)
    summed = tl.sum(tl.zeros([BLOCK], tl.float32), 0)
    if FULL:
        at = row * num_blocks
        end = at + num_blocks
    else:
        at = tl.load(indptr_R1 + row)
        end = tl.load(indptr_R1 + row + 1)
    while at < end:
        place = at + tl.arange(0, BLOCK)
        if FULL:
            value = tl.load(top_RN + place, mask=place < end, other=float("-inf"))
            weight = tl.load(sum_RN + place, mask=place < end, other=0.0)
        else:
            value = tl.load(logit_C + place, mask=place < end, other=float("-inf"))
            weight = tl.where(place < end, 1.0, 0.0)
        highest = tl.maximum(top, tl.max(value, 0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        summed = summed * tl.exp(top - shift) + tl.sum(weight * tl.exp(value - shift), 0)
        top = highest
        at += BLOCK
    tl.store(lse_R + row, tl.where(top == float("-inf"), top, top + tl.log(tl.maximum(summed, 1.0))))
