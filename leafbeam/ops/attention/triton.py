"""Attention on a GPU: the prompt's keys are read once for all beams; `attend` takes two launches.

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1 before the first import), in float32 only, slowly.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam so far, H query heads, G key heads, R = H / G, E values of
a head, Z splits of a prompt, M = K x R.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.ops.attention.triton_kernels import prefix_kernel, suffix_kernel

__all__ = ["attend", "prefix_attention", "suffix_attention"]


class _PrefixSplits(NamedTuple):
    """Attention over each split of the prompt, float32; a split beyond the prompt's end has lse -inf and no values."""

    values_ZBGME: Tensor
    lse_ZBGM: Tensor


def attend(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor,
    suffix_key_BKSGE: Tensor,
    suffix_value_BKSGE: Tensor,
    ancestors_BKS: Tensor | None = None,
    *,
    splits: int | None = None,
) -> Tensor:
    """One softmax over prompt and codes -> (B, K, H, E): `reference.merge` of the two attentions.

    lengths_B: int64 on the device, tokens of each prompt that count, at least 1; the host does not read it. Suffix slots may be
    any view [B, at least K, S, G, E] with a contiguous last axis, the same for keys and values. splits: into how many parts a
    prompt is split, None: enough to occupy a large GPU.
    """
    parts = _split_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B, splits)
    return _merge(query_BKHE, parts, suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS)[0]


def prefix_attention(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor, *, splits: int | None = None
) -> tuple[Tensor, Tensor]:
    """Equals `ops.attention.reference.prefix_attention`: values (B, K, H, E), log-sum-exp (B, K, H)."""
    return _merge(query_BKHE, _split_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B, splits), None, None, None)


def suffix_attention(
    query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Equals `ops.attention.reference.suffix_attention`: values (B, K, H, E), log-sum-exp (B, K, H)."""
    return _merge(query_BKHE, None, key_BKSGE, value_BKSGE, ancestors_BKS)


def _split_prefix(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor, splits: int | None
) -> _PrefixSplits:
    """The first launch: every query against every split of its prompt."""
    _check_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B)
    requests, beams, heads, size = query_BKHE.shape
    groups, tokens = key_BGET.shape[1], key_BGET.shape[3]
    rows = beams * heads // groups
    tile = max(16, min(64, triton.next_power_of_2(rows)))
    block = 64
    programs = _cdiv(rows, tile) * requests * groups
    wanted = splits or max(1, min(_cdiv(tokens, 4 * block), _cdiv(264, programs), 16))
    split = _cdiv(_cdiv(tokens, wanted), block) * block
    num_splits = _cdiv(tokens, split)
    parts = _PrefixSplits(
        values_ZBGME=torch.empty(num_splits, requests, groups, rows, size, device=query_BKHE.device),
        lse_ZBGM=torch.empty(num_splits, requests, groups, rows, device=query_BKHE.device),
    )
    prefix_kernel[(_cdiv(rows, tile), requests * groups, num_splits)](
        query_BKHE,
        key_BGET,
        value_BGTE,
        lengths_B,
        parts.values_ZBGME,
        parts.lse_ZBGM,
        *query_BKHE.stride()[:3],
        *key_BGET.stride()[:3],
        *value_BGTE.stride()[:3],
        rows,
        size**-0.5,
        GROUPS=groups,
        R=heads // groups,
        E=size,
        E_PADDED=max(16, triton.next_power_of_2(size)),
        SPLIT=split,
        ROWS=tile,
        TOKENS=block,
        num_warps=4,
        num_stages=3,
    )
    return parts


def _cdiv(number: int, size: int) -> int:
    return -(-number // size)


def _merge(
    query_BKHE: Tensor,
    parts: _PrefixSplits | None,
    key_BKSGE: Tensor | None,
    value_BKSGE: Tensor | None,
    ancestors_BKS: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The second launch: attention over the suffix slots, merged with the prompt's splits."""
    requests, beams, heads, size = query_BKHE.shape
    codes, groups, strides = 0, 0, (0, 0, 0, 0)
    if key_BKSGE is not None and value_BKSGE is not None:
        _check_suffix(query_BKHE, key_BKSGE, value_BKSGE, ancestors_BKS)
        codes, groups, strides = key_BKSGE.shape[2], key_BKSGE.shape[3], key_BKSGE.stride()[:4]
    out_BKHE = torch.empty(query_BKHE.shape, dtype=query_BKHE.dtype, device=query_BKHE.device)
    out_lse_BKH = torch.empty(requests, beams, heads, device=query_BKHE.device)
    if parts is not None:
        groups = parts.lse_ZBGM.shape[2]
    suffix_kernel[(requests * beams, groups)](
        query_BKHE,
        query_BKHE if key_BKSGE is None else key_BKSGE,
        query_BKHE if value_BKSGE is None else value_BKSGE,
        out_lse_BKH if ancestors_BKS is None else ancestors_BKS,
        out_lse_BKH if parts is None else parts.values_ZBGME,
        out_lse_BKH if parts is None else parts.lse_ZBGM,
        out_BKHE,
        out_lse_BKH,
        *query_BKHE.stride()[:3],
        *strides,
        beams,
        size**-0.5,
        CODES=codes,
        SPLITS=0 if parts is None else len(parts.lse_ZBGM),
        GROUPS=groups,
        R=heads // groups,
        R_PADDED=triton.next_power_of_2(heads // groups),
        E=size,
        E_PADDED=triton.next_power_of_2(size),
        TABLE=ancestors_BKS is not None,
        num_warps=1,
    )
    return out_BKHE, out_lse_BKH


def _check_prefix(query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor) -> None:
    requests, _, heads, size = query_BKHE.shape
    groups, tokens = key_BGET.shape[1], key_BGET.shape[3]
    if key_BGET.shape != (requests, groups, size, tokens) or value_BGTE.shape != (requests, groups, tokens, size):
        raise ArgumentError(
            f"queries {tuple(query_BKHE.shape)}, keys {tuple(key_BGET.shape)} and values {tuple(value_BGTE.shape)} do not fit: "
            f"expected (B, K, H, E), (B, G, E, T) and (B, G, T, E)"
        )
    if heads % groups:
        raise ArgumentError(f"{heads} query heads on {groups} key heads: expected a multiple")
    if lengths_B.shape != (requests,) or lengths_B.dtype != torch.int64:
        raise ArgumentError(f"lengths are {lengths_B.dtype} {tuple(lengths_B.shape)}: expected int64 ({requests},)")
    for name, tensor in (("queries", query_BKHE), ("keys", key_BGET), ("values", value_BGTE)):
        if tensor.stride(-1) != 1:
            raise ArgumentError(f"{name} have strides {tensor.stride()}: expected the last axis to be contiguous")


def _check_suffix(query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor | None) -> None:
    requests, beams, heads, size = query_BKHE.shape
    slots, codes, groups = key_BKSGE.shape[1:4]
    if key_BKSGE.shape != (requests, slots, codes, groups, size) or value_BKSGE.shape != key_BKSGE.shape or slots < beams:
        raise ArgumentError(
            f"queries {tuple(query_BKHE.shape)}, keys {tuple(key_BKSGE.shape)}, values {tuple(value_BKSGE.shape)} do not fit: "
            f"expected (B, K, H, E) and twice (B, at least K, S, G, E)"
        )
    if heads % groups or codes < 1:
        raise ArgumentError(
            f"{heads} query heads, {groups} key heads, {codes} codes: expected a multiple, and at least one code"
        )
    if key_BKSGE.stride() != value_BKSGE.stride() or key_BKSGE.stride(-1) != 1 or query_BKHE.stride(-1) != 1:
        raise ArgumentError("suffix keys and values need equal strides, and every last axis to be contiguous")
    expected = requests, beams, codes
    if ancestors_BKS is not None and (
        ancestors_BKS.shape != expected or ancestors_BKS.dtype != torch.int64 or not ancestors_BKS.is_contiguous()
    ):
        raise ArgumentError(
            f"ancestors are {ancestors_BKS.dtype} {tuple(ancestors_BKS.shape)}: expected contiguous int64 {expected}"
        )
