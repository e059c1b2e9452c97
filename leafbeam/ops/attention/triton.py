"""Attention on a GPU: the prompt's keys once for all beams, the beams' own codes, one merge; two launches for `attend`.

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1 before the first import), float32 alone, slowly.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam so far, H query heads, G key heads, R = H / G, E values of
a head, Z stretches of a prompt, M = K x R.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.ops.attention.triton_kernels import follow_kernel, prefix_kernel, suffix_kernel

__all__ = ["Parts", "attend", "follow_in_place", "prefix_attention", "prefix_parts", "suffix_attention"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What each stretch of the prompt gives every query: values (Z, B, G, M, E) and log-sum-exp (Z, B, G, M), float32.

    The lse of a stretch beyond a prompt's end is -inf, and its values are whatever was in memory.
    """

    values_ZBGME: Tensor
    lse_ZBGM: Tensor


def prefix_parts(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor, *, stretches: int | None = None
) -> Parts:
    """One launch: every query against every stretch of its prompt.

    lengths_B: int64 on the device, tokens of each prompt that count, at least 1; no host looks at it. stretches: into how many
    parts the T places of a prompt are cut, None: so many that a large GPU has work for all its processors.
    """
    _check_prefix(query_BKHE, key_BGET, value_BGTE, lengths_B)
    requests, beams, heads, size = query_BKHE.shape
    groups, tokens = key_BGET.shape[1], key_BGET.shape[3]
    rows = beams * heads // groups
    tile = max(16, min(64, triton.next_power_of_2(rows)))
    block = 64
    if stretches is None:
        programs = _parts_of(rows, tile) * requests * groups
        stretches = max(1, min(_parts_of(tokens, 4 * block), _parts_of(264, programs), 16))
    stretch = _parts_of(_parts_of(tokens, stretches), block) * block
    stretches = _parts_of(tokens, stretch)
    parts = Parts(
        values_ZBGME=torch.empty(stretches, requests, groups, rows, size, device=query_BKHE.device),
        lse_ZBGM=torch.empty(stretches, requests, groups, rows, device=query_BKHE.device),
    )
    prefix_kernel[(_parts_of(rows, tile), requests * groups, stretches)](
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
        STRETCH=stretch,
        ROWS=tile,
        TOKENS=block,
        num_warps=4,
        num_stages=3,
    )
    return parts


def attend(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor,
    suffix_key_BKSGE: Tensor,
    suffix_value_BKSGE: Tensor,
    ancestors_BKS: Tensor | None = None,
    *,
    stretches: int | None = None,
) -> Tensor:
    """Attention over prompt and suffix together (B, K, H, E): what `reference.merge` makes of the two, in two launches.

    Suffix slots may be any view [B, at least K, S, G, E] whose last axis is contiguous, one for keys and values alike.
    """
    parts = prefix_parts(query_BKHE, key_BGET, value_BGTE, lengths_B, stretches=stretches)
    return _finish(query_BKHE, parts, suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS)[0]


def prefix_attention(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor, *, stretches: int | None = None
) -> tuple[Tensor, Tensor]:
    """See `ops.attention.reference.prefix_attention`, which this equals: values (B, K, H, E), log-sum-exp (B, K, H)."""
    parts = prefix_parts(query_BKHE, key_BGET, value_BGTE, lengths_B, stretches=stretches)
    return _finish(query_BKHE, parts, None, None, None)


def suffix_attention(
    query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See `ops.attention.reference.suffix_attention`, which this equals: values (B, K, H, E), log-sum-exp (B, K, H)."""
    return _finish(query_BKHE, None, key_BKSGE, value_BKSGE, ancestors_BKS)


def follow_in_place(slots_BKX: Tensor, parents_BK: Tensor) -> None:
    """`reorder.two_passes` in one launch, without a look at the parents: they must be ascending (`reorder.by_parent`).

    slots_BKX: contiguous behind [B, at least K]. Cost: each slot that changes is read and written once, one after the other
    within a request; K of them take as long as K reads that wait for each other.
    """
    if not slots_BKX.is_contiguous() or not parents_BK.is_contiguous() or parents_BK.dtype != torch.int64:
        raise ArgumentError("follow_in_place needs contiguous slots and contiguous int64 parents")
    if parents_BK.shape[1] > slots_BKX.shape[1]:
        raise ArgumentError(f"{parents_BK.shape[1]} beams and {slots_BKX.shape[1]} slots: make room for the widest round")
    width = slots_BKX[0, 0].numel()
    follow_kernel[(len(slots_BKX), _parts_of(width, 1024))](
        slots_BKX, parents_BK, *slots_BKX.stride()[:2], slots_BKX.shape[1], parents_BK.shape[1], width, BLOCK=1024
    )


def _parts_of(number: int, size: int) -> int:
    """How many parts of a size hold so many."""
    return -(-number // size)


def _finish(
    query_BKHE: Tensor, parts: Parts | None, key_BKSGE: Tensor | None, value_BKSGE: Tensor | None, ancestors_BKS: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The second launch: suffix slots and the prompt's stretches, merged."""
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
        STRETCHES=0 if parts is None else len(parts.lse_ZBGM),
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
    if ancestors_BKS is not None and (
        ancestors_BKS.shape != (requests, beams, codes)
        or ancestors_BKS.dtype != torch.int64
        or not ancestors_BKS.is_contiguous()
    ):
        raise ArgumentError(
            f"ancestors are {ancestors_BKS.dtype} {tuple(ancestors_BKS.shape)}: "
            f"expected contiguous int64 {(requests, beams, codes)}"
        )
