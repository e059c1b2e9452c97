"""Triton kernels for the logits of legal codes.

Sums are float32 for every dtype of the weight. D is a compile-time constant.

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
    """for each row r and each of its entries i: logit[i] = hidden[r] @ weight[code[i]]

    Program (r, i): entries i x CODES and following of row r, without matrix units.
    """
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
        element = code[:, None] * stride_weight + d[None, :]
        weight = tl.load(weight_VD + element, mask=(at < end)[:, None] & (d < D)[None, :], other=0.0)
        total += weight.to(tl.float32) * hidden[None, :]
    tl.store(logit_C + at, tl.sum(total, 1), mask=at < end)


@triton.jit
def token_kernel(
    hidden_RD,
    weight_VD,
    indptr_V1,
    row_C,
    entry_C,
    logit_C,
    stride_hidden,
    stride_weight,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """for i in range(indptr[v], indptr[v + 1]): logit[entry[i]] = hidden[row[i]] @ weight[v]

    Program v: code v, whose weights stay in registers.
    """
    code = tl.program_id(0).to(tl.int64)
    at = tl.load(indptr_V1 + code)
    end = tl.load(indptr_V1 + code + 1)
    if at >= end:
        return
    d = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_VD + code * stride_weight + d, mask=d < D, other=0.0).to(tl.float32)
    while at < end:
        row = tl.load(row_C + at)
        hidden = tl.load(hidden_RD + row * stride_hidden + d, mask=d < D, other=0.0).to(tl.float32)
        tl.store(logit_C + tl.load(entry_C + at), tl.sum(weight * hidden, 0))
        at += 1


@triton.jit
def _first_at_least(code_C, begin, end, code):
    """begin + searchsorted(code_C[begin:end], code) for each row, by binary search"""
    position = begin
    size = end - begin
    while tl.max(size, 0) > 1:
        half = size >> 1
        looks = half > 0
        go = looks & (tl.load(code_C + position + half - 1, mask=looks, other=0) < code)
        position = tl.where(go, position + half, position)
        size -= half
    one = size == 1
    return tl.where(one & (tl.load(code_C + position, mask=one, other=0) < code), position + 1, position)


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
    """logits = hidden @ weight[block].T; logit[i] = logits of the legal codes in the block
    if FULL: top[:, n] = max(logits); sum[:, n] = sum(exp(logits - top))

    Program (i, n): rows i x ROWS and following, block n of CODES codes, on matrix units. SKIP: return at once if no row may
    take a code of the block. A row's codes of a block are found by two binary searches, because they are ascending.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    block = tl.program_id(1)
    first = block * CODES
    begin = tl.load(indptr_R1 + row, mask=row < rows, other=0)
    end = tl.load(indptr_R1 + row + 1, mask=row < rows, other=0)
    begin = _first_at_least(code_C, begin, end, first)
    end = _first_at_least(code_C, begin, end, first + CODES)
    if SKIP:  # noqa: SIM102 (a compile-time constant)
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
    column = tl.load(code_C + at, mask=legal, other=first) - first
    tl.store(logit_C + at, tl.gather(logits, column.to(tl.int32), 1), mask=legal)


@triton.jit
def sums_kernel(logit_C, indptr_R1, top_RN, sum_RN, lse_R, num_blocks, FULL: tl.constexpr, BLOCK: tl.constexpr):
    """lse[r] = logsumexp(row r's legal logits), or over its blocks if FULL: log(sum(sum_RN[r] x exp(top_RN[r])))

    Program r; -inf for an empty row.
    """
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
        i = at + tl.arange(0, BLOCK)
        if FULL:
            value = tl.load(top_RN + i, mask=i < end, other=float("-inf"))
            weight = tl.load(sum_RN + i, mask=i < end, other=0.0)
        else:
            value = tl.load(logit_C + i, mask=i < end, other=float("-inf"))
            weight = tl.where(i < end, 1.0, 0.0)
        highest = tl.maximum(top, tl.max(value, 0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)
        summed = summed * tl.exp(top - shift) + tl.sum(weight * tl.exp(value - shift), 0)
        top = highest
        at += BLOCK
    tl.store(lse_R + row, tl.where(top == float("-inf"), top, top + tl.log(tl.maximum(summed, 1.0))))
