"""Attention on a GPU: the prompt's keys are read once for all beams; `attend` and `attend_prompt` take one or two launches.

    two launches  each part of a prompt alone, for tiles of beams; then each beam's codes, merged with all parts
    one launch    a tile of beams reads the whole prompt and then its codes (`AttentionCosts.one_launch`)

Prompt lengths are read on the device. Exponentials over the prompt use base 2, the hardware's. Without a GPU it runs under
Triton's interpreter (TRITON_INTERPRET=1 before the first import), in float32 only, slowly.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam so far, H query heads, G key heads, R = H / G, E values of
a head, Z splits of a prompt, M = K x R.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from leafbeam.errors import ArgumentError, counted
from leafbeam.ops.attention.costs import BLOCK, AttentionCosts, AttentionWork
from leafbeam.ops.attention.types import Attention

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)


def attention(costs: AttentionCosts | None = None) -> Attention:
    """Return these functions, as a captured decode takes them. costs: as for the `splits` of `attend`; launches and
    descriptors are chosen by them, for each shape, when the decode is captured."""
    return Attention(
        over_both=partial(attend, splits=costs), over_prompt=partial(attend_prompt, splits=costs), over_codes=attend_codes
    )


def attend(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor,
    suffix_key_BKSGE: Tensor,
    suffix_value_BKSGE: Tensor,
    ancestors_BKS: Tensor | None = None,
    *,
    splits: int | AttentionCosts | None = None,
) -> Tensor:
    """Return the attention over prompt and codes, one softmax: (B, K, H, E). It equals `ops.attention.reference.attend`.

    lengths_B: int64 on the device, tokens of each prompt that count, at least 1; the host does not read it. Suffix slots may be
    any view [B, at least K, S, G, E] with a contiguous last axis, the same for keys and values. splits: the largest number
    of parts of a prompt, or the costs by which to choose it; None takes the default costs.
    """
    _check_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B)
    _check_suffix(query_BKHE, suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS)
    codes = _Codes(suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS, None)
    return _over_prompt(query_BKHE, _Prompts(key_BGET, value_BGTE, lengths_B), codes, splits)


def attend_prompt(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor, *, splits: AttentionCosts | None = None
) -> Tensor:
    """Return the attention over the prompt alone, (B, K, H, E). The arguments are those of `attend`."""
    _check_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B)
    return _over_prompt(query_BKHE, _Prompts(key_BGET, value_BGTE, lengths_B), None, splits)


def attend_codes(query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor, bias_HS: Tensor) -> Tensor:
    """Return the attention of each beam over its own codes alone, with a bias on the scores; slots as for `attend`."""
    _check_suffix(query_BKHE, key_BKSGE, value_BKSGE, ancestors_BKS)
    expected = query_BKHE.shape[2], key_BKSGE.shape[2]
    if bias_HS.shape != expected or not bias_HS.is_contiguous():
        raise ArgumentError(f"the bias is {tuple(bias_HS.shape)}: expected contiguous {expected}")
    return _over_codes(query_BKHE, key_BKSGE.shape[3], _Codes(key_BKSGE, value_BKSGE, ancestors_BKS, bias_HS), None)


class _Rows(NamedTuple):
    """A tensor that a kernel reads by its first three strides."""

    data: Tensor
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, tensor: Tensor) -> "_Rows":
        return cls(tensor, tensor.stride()[:3])


class _Slots(NamedTuple):
    """The slots of the codes as a kernel reads them, with the strides of request, beam, code and group."""

    key_BKSGE: Tensor
    value_BKSGE: Tensor
    ancestors_BKS: Tensor
    strides: tuple[int, int, int, int]


class Heads(NamedTuple):
    """The constants of a kernel: G key heads, R query heads of each, E values of a head, padded; the codes of a beam."""

    GROUPS: int
    R: int
    E: int
    E_PADDED: int
    CODES: int


class PrefixForm(NamedTuple):
    """The constants of `prefix_kernel`: the tokens of a split, a tile's rows and tokens, and the forms that its text names."""

    SPLIT: int
    ROWS: int
    TOKENS: int
    WHOLE: bool
    TABLE: bool
    DESCRIPTORS: bool


class SuffixForm(NamedTuple):
    """The constants of `suffix_kernel`: the splits of a prompt, R padded, whether there is a table, and a bias."""

    SPLITS: int
    R_PADDED: int
    TABLE: bool
    BIAS: bool


class _Prompts(NamedTuple):
    """Keys and values of the prompts, and their lengths."""

    key_BGET: Tensor
    value_BGTE: Tensor
    lengths_B: Tensor


class _Parts(NamedTuple):
    """Attention over each part of the prompts; a part beyond a prompt's end has lse -inf and no values."""

    values_ZBGME: Tensor
    lse_ZBGM: Tensor


class _Codes(NamedTuple):
    """The slots of the codes, the table that finds them, and the bias on the scores."""

    key_BKSGE: Tensor
    value_BKSGE: Tensor
    ancestors_BKS: Tensor | None
    bias_HS: Tensor | None


def _over_prompt(query_BKHE: Tensor, prompts: _Prompts, codes: _Codes | None, splits: int | AttentionCosts | None) -> Tensor:
    """Return the attention over the prompts and the codes, in one launch or two."""
    (requests, beams, heads, size), (_, groups, _, tokens) = query_BKHE.shape, prompts.key_BGET.shape
    rows, device = beams * heads // groups, query_BKHE.device
    work = AttentionWork(requests=requests, tokens=tokens, beams=beams, heads=heads, groups=groups, size=size)
    costs = AttentionCosts() if splits is None or isinstance(splits, int) else splits
    num_parts = splits if isinstance(splits, int) else costs.splits(work)
    split = work.blocks_of_part(num_parts) * BLOCK
    num_splits = triton.cdiv(tokens, split)
    is_whole = costs.one_launch and num_splits == 1
    padded = max(16, triton.next_power_of_2(size))
    if is_whole:
        values_ZBGME = lse_ZBGM = torch.empty(query_BKHE.shape, dtype=query_BKHE.dtype, device=device)
    else:
        values_ZBGME = torch.empty(num_splits, requests, groups, rows, size, device=device)
        lse_ZBGM = torch.empty(num_splits, requests, groups, rows, device=device)
    with_codes = codes if is_whole else None
    code_key, code_value, ancestors, _ = with_codes or (query_BKHE, query_BKHE, None, None)  # read with codes alone
    keys, values = prompts.key_BGET, prompts.value_BGTE
    has_descriptors = costs.descriptors and _can_describe(keys) and _can_describe(values)
    prefix_kernel[(triton.cdiv(rows, work.tile), requests * groups, num_splits)](
        _Rows.of(query_BKHE),
        TensorDescriptor.from_tensor(keys, [1, 1, padded, BLOCK]) if has_descriptors else keys,
        keys.stride()[:3],
        TensorDescriptor.from_tensor(values, [1, 1, BLOCK, padded]) if has_descriptors else values,
        values.stride()[:3],
        prompts.lengths_B,
        _Parts(values_ZBGME, lse_ZBGM),
        _Slots(code_key, code_value, query_BKHE if ancestors is None else ancestors, code_key.stride()[:4]),
        rows,
        size**-0.5,
        H=Heads(groups, heads // groups, size, padded, 0 if with_codes is None else code_key.shape[2]),
        FORM=PrefixForm(split, work.tile, BLOCK, is_whole, ancestors is not None, has_descriptors),
        num_warps=4,
        num_stages=3,
    )
    return values_ZBGME if is_whole else _over_codes(query_BKHE, groups, codes, _Parts(values_ZBGME, lse_ZBGM))


def _can_describe(tensor: Tensor) -> bool:
    """Return whether a tensor can be read through a descriptor: on Hopper and later, at addresses that 16 bytes divide."""
    if tensor.device.type == "cuda" and torch.cuda.get_device_capability(tensor.device) < (9, 0):
        return False
    offsets = [tensor.data_ptr(), *(stride * tensor.itemsize for stride in tensor.stride()[:-1])]
    return tensor.stride(-1) == 1 and all(offset % 16 == 0 for offset in offsets)


def _over_codes(query_BKHE: Tensor, groups: int, codes: _Codes | None, parts: _Parts | None) -> Tensor:
    """Return the attention over the codes, merged with that over the parts; at least one of the two is given."""
    requests, beams, heads, size = query_BKHE.shape
    out_BKHE = torch.empty(query_BKHE.shape, dtype=query_BKHE.dtype, device=query_BKHE.device)
    key, value, ancestors, bias = codes or (query_BKHE, query_BKHE, None, None)  # a kernel reads no pointer without codes
    ratio = heads // groups
    suffix_kernel[(requests * beams, groups)](
        _Rows.of(query_BKHE),
        _Slots(key, value, query_BKHE if ancestors is None else ancestors, key.stride()[:4]),
        query_BKHE if bias is None else bias,
        _Parts(query_BKHE, query_BKHE) if parts is None else parts,
        out_BKHE,
        beams,
        size**-0.5,
        H=Heads(groups, ratio, size, triton.next_power_of_2(size), 0 if codes is None else key.shape[2]),
        FORM=SuffixForm(
            0 if parts is None else len(parts.lse_ZBGM), triton.next_power_of_2(ratio), ancestors is not None, bias is not None
        ),
        num_warps=1,
    )
    return out_BKHE


def _check_prefix(query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor) -> None:
    requests, _, heads, size = query_BKHE.shape
    groups, tokens = key_BGET.shape[1], key_BGET.shape[3]
    if key_BGET.shape != (requests, groups, size, tokens) or value_BGTE.shape != (requests, groups, tokens, size):
        raise ArgumentError(
            f"queries {tuple(query_BKHE.shape)}, keys {tuple(key_BGET.shape)} and values {tuple(value_BGTE.shape)} do not fit: "
            f"expected (B, K, H, E), (B, G, E, T) and (B, G, T, E)"
        )
    if heads % groups:
        raise ArgumentError(f"{counted(heads, 'query head')} on {counted(groups, 'key head')}: expected a multiple")
    if lengths_B.shape != (requests,) or lengths_B.dtype != torch.int64:
        raise ArgumentError(f"lengths are {lengths_B.dtype} {tuple(lengths_B.shape)}: expected int64 ({requests},)")
    for name, tensor in (("queries", query_BKHE), ("keys", key_BGET), ("values", value_BGTE)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ArgumentError(f"{name} have strides {tensor.stride()}: expected the last axis to be contiguous")


def _check_suffix(query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor | None) -> None:
    requests, beams, _, size = query_BKHE.shape
    slots, codes, groups = key_BKSGE.shape[1:4]
    if key_BKSGE.shape != (requests, slots, codes, groups, size) or value_BKSGE.shape != key_BKSGE.shape or slots < beams:
        raise ArgumentError(
            f"queries {tuple(query_BKHE.shape)}, keys {tuple(key_BKSGE.shape)}, values {tuple(value_BKSGE.shape)} do not fit: "
            f"expected (B, K, H, E) and twice (B, at least K, S, G, E)"
        )
    if codes < 1:
        raise ArgumentError(f"beams have {counted(codes, 'code')}: expected at least one code")
    if key_BKSGE.stride() != value_BKSGE.stride() or key_BKSGE.stride(-1) != 1 or query_BKHE.stride(-1) != 1:
        raise ArgumentError("suffix keys and values need equal strides, and every last axis to be contiguous")
    expected = requests, beams, codes
    if ancestors_BKS is not None and (
        ancestors_BKS.shape != expected or ancestors_BKS.dtype != torch.int64 or not ancestors_BKS.is_contiguous()
    ):
        raise ArgumentError(
            f"ancestors are {ancestors_BKS.dtype} {tuple(ancestors_BKS.shape)}: expected contiguous int64 {expected}"
        )


@triton.jit
def prefix_kernel(
    queries,
    key_BGET,
    key_strides,
    value_BGTE,
    value_strides,
    lengths_B,
    parts,
    codes,
    num_rows,
    scale,
    H: tl.constexpr,
    FORM: tl.constexpr,
):
    """t = tokens z x SPLIT to min((z + 1) x SPLIT, length[b]); scores = query[b, m, g] @ key[b, g, :, t] x scale
    values[z, b, g, m], lse[z, b, g, m] = softmax(scores) @ value[b, g, t], logsumexp(scores)

    Program (i, b x G + g, z): rows m = i x ROWS and following. A split beyond the prompt's end has lse -inf and no values.
    WHOLE: there is one split, and the codes join the same softmax, whose result [b, k, h] is written in place of `values`.
    DESCRIPTORS: keys and values are tensor descriptors.
    """
    ROWS: tl.constexpr = FORM.ROWS
    TOKENS: tl.constexpr = FORM.TOKENS
    E_PADDED: tl.constexpr = H.E_PADDED
    CODES: tl.constexpr = H.CODES
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    request = (tl.program_id(1) // H.GROUPS).to(tl.int64)
    group = (tl.program_id(1) % H.GROUPS).to(tl.int64)
    first = tl.program_id(2) * FORM.SPLIT
    length = tl.load(lengths_B + request)
    out = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * num_rows + row
    if first >= length:
        tl.store(parts.lse_ZBGM + out, float("-inf") + tl.zeros([ROWS], tl.float32), mask=row < num_rows)
        return
    e = tl.arange(0, E_PADDED)
    beam, head = (row // H.R).to(tl.int64), group * H.R + row % H.R
    at = request * queries.strides[0] + beam * queries.strides[1] + head * queries.strides[2]
    query = tl.load(queries.data + at[:, None] + e[None, :], mask=(row < num_rows)[:, None] & (e < H.E)[None, :], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, E_PADDED], tl.float32)
    for start in range(0, FORM.SPLIT, TOKENS):
        token = first + start + tl.arange(0, TOKENS).to(tl.int64)
        inside = token < length
        if FORM.DESCRIPTORS:
            key = key_BGET.load([request.to(tl.int32), group.to(tl.int32), 0, first + start]).reshape(E_PADDED, TOKENS)
        else:
            key = tl.load(
                key_BGET + request * key_strides[0] + group * key_strides[1] + e[:, None] * key_strides[2] + token[None, :],
                mask=(e < H.E)[:, None] & inside[None, :],
                other=0.0,
            )
        score = tl.dot(query, key, input_precision="ieee") * (scale * _LOG2_E)
        score = tl.where(inside[None, :], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))  # finite: the first token of the split counts
        weight = tl.exp2(score - highest[:, None])
        shrink = tl.exp2(top - highest)
        if FORM.DESCRIPTORS:
            value = value_BGTE.load([request.to(tl.int32), group.to(tl.int32), first + start, 0]).reshape(TOKENS, E_PADDED)
            value = tl.where(inside[:, None], value, 0.0)  # it may be NaN behind a prompt's end
        else:
            value = tl.load(
                value_BGTE
                + request * value_strides[0]
                + group * value_strides[1]
                + token[:, None] * value_strides[2]
                + e[None, :],
                mask=inside[:, None] & (e < H.E)[None, :],
                other=0.0,
            )
        values = tl.dot(weight.to(value.dtype), value, values * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weight, 1)
        top = highest
    within = (row < num_rows)[:, None] & (e < H.E)[None, :]
    if FORM.WHOLE:
        for code in tl.static_range(CODES):
            owner = beam
            if FORM.TABLE:
                owner = tl.load(
                    codes.ancestors_BKS + (request * (num_rows // H.R) + beam) * CODES + code, mask=row < num_rows, other=0
                )
            slot = request * codes.strides[0] + owner * codes.strides[1] + code * codes.strides[2] + group * codes.strides[3]
            code_key = tl.load(codes.key_BKSGE + slot[:, None] + e[None, :], mask=within, other=0.0).to(tl.float32)
            code_value = tl.load(codes.value_BKSGE + slot[:, None] + e[None, :], mask=within, other=0.0).to(tl.float32)
            score = tl.sum(query.to(tl.float32) * code_key, 1) * (scale * _LOG2_E)
            highest = tl.maximum(top, score)
            weight, shrink = tl.exp2(score - highest), tl.exp2(top - highest)
            values = values * shrink[:, None] + weight[:, None] * code_value
            total = total * shrink + weight
            top = highest
        out = (request * (num_rows // H.R) + beam) * H.GROUPS * H.R + head
    else:
        tl.store(parts.lse_ZBGM + out, (top + tl.log2(total)) * _LN_2, mask=row < num_rows)
    tl.store(parts.values_ZBGME + out[:, None] * H.E + e[None, :], values / total[:, None], mask=within)


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
    queries,
    codes,
    bias_HS,
    parts,
    out_BKHE,
    beams,
    scale,
    H: tl.constexpr,
    FORM: tl.constexpr,
):
    """owner[s] = ancestors[b, k, s] if TABLE else k; scores[s] = query[b, k, g] . key[b, owner[s], s, g] x scale (+ bias[:, s])
    out[b, k, g] = attention over these codes, merged with every split of the prompt

    Program (b x K + k, g): the R query heads of key head g.
    """
    R_PADDED: tl.constexpr = FORM.R_PADDED
    SPLITS: tl.constexpr = FORM.SPLITS
    E_PADDED: tl.constexpr = H.E_PADDED
    CODES: tl.constexpr = H.CODES
    request = (tl.program_id(0) // beams).to(tl.int64)
    beam = (tl.program_id(0) % beams).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    r = tl.arange(0, R_PADDED)
    e = tl.arange(0, E_PADDED)
    inside = (r < H.R)[:, None] & (e < H.E)[None, :]
    at = request * queries.strides[0] + beam * queries.strides[1] + (group * H.R + r) * queries.strides[2]
    query = tl.load(queries.data + at[:, None] + e[None, :], mask=inside, other=0.0).to(tl.float32)
    lse = tl.full([R_PADDED], float("-inf"), tl.float32)
    values = tl.zeros([R_PADDED, E_PADDED], tl.float32)
    for code in tl.static_range(CODES):
        owner = beam
        if FORM.TABLE:
            owner = tl.load(codes.ancestors_BKS + (request * beams + beam) * CODES + code)
        slot = request * codes.strides[0] + owner * codes.strides[1] + code * codes.strides[2] + group * codes.strides[3]
        key = tl.load(codes.key_BKSGE + slot + e, mask=e < H.E, other=0.0).to(tl.float32)
        value = tl.load(codes.value_BKSGE + slot + e, mask=e < H.E, other=0.0).to(tl.float32)
        score = tl.sum(query * key[None, :], 1) * scale
        if FORM.BIAS:
            score += tl.load(bias_HS + (group * H.R + r) * CODES + code, mask=r < H.R, other=0.0).to(tl.float32)
        values, lse = _merged(values, lse, tl.zeros([R_PADDED, E_PADDED], tl.float32) + value[None, :], score)
    for split in tl.static_range(SPLITS):
        row = ((split * (tl.num_programs(0) // beams) + request) * H.GROUPS + group) * beams * H.R + beam * H.R + r
        part = tl.load(parts.lse_ZBGM + row, mask=r < H.R, other=float("-inf"))
        written = inside & (part > float("-inf"))[:, None]  # a split beyond the prompt's end has no values
        split_values = tl.load(parts.values_ZBGME + row[:, None] * H.E + e[None, :], mask=written, other=0.0)
        values, lse = _merged(values, lse, split_values, part)
    head = (request * beams + beam) * H.GROUPS * H.R + group * H.R + r
    tl.store(out_BKHE + head[:, None] * H.E + e[None, :], values, mask=inside)
