"""Triton kernels for attention of many beams over a shared prompt and over their own codes.

Prompt lengths are read on the device. Exponentials use base 2, the hardware's.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam so far, H query heads, G key heads, R = H / G, E values of
a head, Z splits of a prompt, M = K x R.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["prefix_kernel", "suffix_kernel"]

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
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """t = tokens z x SPLIT to min((z + 1) x SPLIT, length[b]); scores = query[b, m, g] @ key[b, g, :, t] x scale
    values[z, b, g, m], lse[z, b, g, m] = softmax(scores) @ value[b, g, t], logsumexp(scores)

    Program (i, b x G + g, z): rows m = i x ROWS and following. A split beyond the prompt's end has lse -inf and no values.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request = (tl.program_id(1) // GROUPS).to(tl.int64)
    group = (tl.program_id(1) % GROUPS).to(tl.int64)
    first = tl.program_id(2) * SPLIT
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
    for start in range(0, SPLIT, TOKENS):
        token = first + start + tl.arange(0, TOKENS).to(tl.int64)
        inside = token < length
        key = tl.load(
            key_BGET + request * key_b + group * key_g + e[:, None] * key_e + token[None, :],
            mask=(e < E)[:, None] & inside[None, :],
            other=0.0,
        )
        score = tl.dot(query, key, input_precision="ieee") * (scale * _LOG2_E)
        score = tl.where(inside[None, :], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))  # finite: the first token of the split counts
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
    """merge(values, lse, other_values, other_lse), logaddexp(lse, other_lse); a part with lse -inf is ignored, even NaN."""
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
    SPLITS: tl.constexpr,
    GROUPS: tl.constexpr,
    R: tl.constexpr,
    R_PADDED: tl.constexpr,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    TABLE: tl.constexpr,
):
    """owner[s] = ancestors[b, k, s] if TABLE else k; scores[s] = query[b, k, g] . key[b, owner[s], s, g] x scale
    out[b, k, g], out_lse[b, k, g] = attention over these codes, merged with every split of the prompt

    Program (b x K + k, g): the R query heads of key head g. CODES or SPLITS may be 0.
    """
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
    for split in tl.static_range(SPLITS):
        row = ((split * (tl.num_programs(0) // beams) + request) * GROUPS + group) * beams * R + beam * R + r
        part = tl.load(lse_ZBGM + row, mask=r < R, other=float("-inf"))
        written = inside & (part > float("-inf"))[:, None]  # a split beyond the prompt's end has no values
        split_values = tl.load(values_ZBGME + row[:, None] * E + e[None, :], mask=written, other=0.0)
        values, lse = _merged(values, lse, split_values, part)
    head = (request * beams + beam) * GROUPS * R + group * R + r
    tl.store(out_BKHE + head[:, None] * E + e[None, :], values, mask=inside)
    tl.store(out_lse_BKH + head, lse, mask=r < R)
