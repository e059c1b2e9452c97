"""Attention of many beams over a shared prompt and over their own codes, in Triton.

    prefix_kernel  one program for a tile of the K x R queries that share a key head, and a stretch of the prompt: its keys are
                   read once for the whole tile; leaves values and log-sum-exp of the stretch
    suffix_kernel  one program for a beam and key head: its few codes (found through the table of ancestors), then the stretches
                   of the prompt, merged by their log-sum-exps
    follow_kernel  one program for a request and a part of every slot: the two passes of `reorder.two_passes`

How long each prompt is, is read on the device. Exponentials are of base 2, which is what the hardware has.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam so far, H query heads, G key heads, R = H / G, E values of
a head, Z stretches, M = K x R.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["follow_kernel", "prefix_kernel", "suffix_kernel"]

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def prefix_kernel(
    query_BKHE,
    key_BGET,
    value_BGTE,
    lengths_B,
    values_ZBGME,
    lse_ZBGM,
    query_b,
    query_k,
    query_h,
    key_b,
    key_g,
    key_e,
    value_b,
    value_g,
    value_t,
    num_rows,
    scale,
    GROUPS: tl.constexpr,
    R: tl.constexpr,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    STRETCH: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program (i, b x G + g, z): rows i x ROWS and following of request b and key head g, stretch z of the prompt."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request = (tl.program_id(1) // GROUPS).to(tl.int64)
    group = (tl.program_id(1) % GROUPS).to(tl.int64)
    first = tl.program_id(2) * STRETCH
    length = tl.load(lengths_B + request)
    out = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * num_rows + row
    if first >= length:
        tl.store(lse_ZBGM + out, float("-inf") + tl.zeros([ROWS], tl.float32), mask=row < num_rows)
        return
    e = tl.arange(0, E_PADDED)
    beam, head = (row // R).to(tl.int64), group * R + row % R
    at = request * query_b + beam * query_k + head * query_h
    query = tl.load(query_BKHE + at[:, None] + e[None, :], mask=(row < num_rows)[:, None] & (e < E)[None, :], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, E_PADDED], tl.float32)
    for start in range(0, STRETCH, TOKENS):
        token = first + start + tl.arange(0, TOKENS).to(tl.int64)
        inside = token < length
        key = tl.load(
            key_BGET + request * key_b + group * key_g + e[:, None] * key_e + token[None, :],
            mask=(e < E)[:, None] & inside[None, :],
            other=0.0,
        )
        score = tl.dot(query, key, input_precision="ieee") * (scale * _LOG2_E)
        score = tl.where(inside[None, :], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))  # the first token of a stretch counts, so this is a number
        weight = tl.exp2(score - highest[:, None])
        shrink = tl.exp2(top - highest)
        value = tl.load(
            value_BGTE + request * value_b + group * value_g + token[:, None] * value_t + e[None, :],
            mask=inside[:, None] & (e < E)[None, :],
            other=0.0,
        )
        values = tl.dot(weight.to(value.dtype), value, values * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weight, 1)
        top = highest
    tl.store(lse_ZBGM + out, (top + tl.log2(total)) * _LN_2, mask=row < num_rows)
    tl.store(
        values_ZBGME + out[:, None] * E + e[None, :], values / total[:, None], mask=(row < num_rows)[:, None] & (e < E)[None, :]
    )


@triton.jit
def _merged(values, lse, other_values, other_lse):
    """Two parts of a softmax as one; a part of nothing (lse = -inf) weighs nothing, whatever its values are."""
    highest = tl.maximum(lse, other_lse)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weight, other_weight = tl.exp(lse - shift), tl.exp(other_lse - shift)
    total = weight + other_weight
    share = tl.where(total > 0, weight / tl.maximum(total, 1e-30), 0.0)
    other_share = tl.where(total > 0, other_weight / tl.maximum(total, 1e-30), 0.0)
    values = tl.where((share > 0)[:, None], values * share[:, None], 0.0)
    values += tl.where((other_share > 0)[:, None], other_values * other_share[:, None], 0.0)
    return values, tl.where(highest == float("-inf"), highest, shift + tl.log(tl.maximum(total, 1.0)))


@triton.jit
def suffix_kernel(
    query_BKHE,
    key_BKSGE,
    value_BKSGE,
    ancestors_BKS,
    values_ZBGME,
    lse_ZBGM,
    out_BKHE,
    out_lse_BKH,
    query_b,
    query_k,
    query_h,
    slot_b,
    slot_k,
    slot_s,
    slot_g,
    beams,
    scale,
    CODES: tl.constexpr,
    STRETCHES: tl.constexpr,
    GROUPS: tl.constexpr,
    R: tl.constexpr,
    R_PADDED: tl.constexpr,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    TABLE: tl.constexpr,
):
    """Program (b x K + k, g): the R heads of beam k of request b that share key head g. CODES or STRETCHES may be 0."""
    request = (tl.program_id(0) // beams).to(tl.int64)
    beam = (tl.program_id(0) % beams).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    r = tl.arange(0, R_PADDED)
    e = tl.arange(0, E_PADDED)
    inside = (r < R)[:, None] & (e < E)[None, :]
    at = request * query_b + beam * query_k + (group * R + r) * query_h
    query = tl.load(query_BKHE + at[:, None] + e[None, :], mask=inside, other=0.0).to(tl.float32)
    lse = tl.full([R_PADDED], float("-inf"), tl.float32)
    values = tl.zeros([R_PADDED, E_PADDED], tl.float32)
    for code in tl.static_range(CODES):
        owner = beam
        if TABLE:
            owner = tl.load(ancestors_BKS + (request * beams + beam) * CODES + code)
        slot = request * slot_b + owner * slot_k + code * slot_s + group * slot_g
        key = tl.load(key_BKSGE + slot + e, mask=e < E, other=0.0).to(tl.float32)
        value = tl.load(value_BKSGE + slot + e, mask=e < E, other=0.0).to(tl.float32)
        score = tl.sum(query * key[None, :], 1) * scale
        values, lse = _merged(values, lse, tl.zeros([R_PADDED, E_PADDED], tl.float32) + value[None, :], score)
    for stretch in tl.static_range(STRETCHES):
        row = ((stretch * (tl.num_programs(0) // beams) + request) * GROUPS + group) * beams * R + beam * R + r
        part = tl.load(lse_ZBGM + row, mask=r < R, other=float("-inf"))
        there = inside & (part > float("-inf"))[:, None]  # of a stretch beyond the prompt nothing was written
        values, lse = _merged(values, lse, tl.load(values_ZBGME + row[:, None] * E + e[None, :], mask=there, other=0.0), part)
    head = (request * beams + beam) * GROUPS * R + group * R + r
    tl.store(out_BKHE + head[:, None] * E + e[None, :], values, mask=inside)
    tl.store(out_lse_BKH + head, lse, mask=r < R)


@triton.jit
def follow_kernel(slots_BKX, parents_BK, stride_b, stride_k, slots, beams, width, BLOCK: tl.constexpr):
    """Program (b, i): part i of every slot of request b, one slot after the other. Right for ascending parents."""
    request = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base = slots_BKX + request * stride_b + x
    slot = tl.program_id(0) * 0
    while slot < beams:
        parent = tl.load(parents_BK + request * beams + slot)
        if parent > slot:
            tl.store(base + slot * stride_k, tl.load(base + parent * stride_k, mask=x < width), mask=x < width)
        slot += 1
    while slot > 0:
        slot -= 1
        parent = tl.load(parents_BK + request * beams + slot)
        if parent < slot:
            tl.store(base + slot * stride_k, tl.load(base + parent * stride_k, mask=x < width), mask=x < width)
