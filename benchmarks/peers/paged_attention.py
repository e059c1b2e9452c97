"""Paged attention of a decode step in Triton: one program for a beam and key head walks the beam's own pages.

What a serving engine runs for a beam search (vLLM's paged attention, one query a sequence, query heads of a key head together).
Beams share the pages of their prompt, and each reads all of them.

Shapes: B requests, K beams, H query heads, G key heads, R = H / G, E values of a head, P tokens of a page, N pages of a beam, X
pages in all.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.peers.paged_beams import PagedBeams

__all__ = ["attend"]


@triton.jit
def paged_kernel(
    query_SHE,
    key_XGPE,
    value_XGPE,
    table_SN,
    length,
    out_SHE,
    pages,
    scale,
    GROUPS: tl.constexpr,
    R: tl.constexpr,
    E: tl.constexpr,
    PAGE: tl.constexpr,
    NUM_PAGES: tl.constexpr,
):
    sequence = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    r, e, p = tl.arange(0, 16), tl.arange(0, E), tl.arange(0, PAGE)
    head = sequence * GROUPS * R + group * R + r
    query = tl.load(query_SHE + head[:, None] * E + e[None, :], mask=(r < R)[:, None], other=0.0)
    top = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    values = tl.zeros([16, E], tl.float32)
    for n in range(NUM_PAGES):
        page = tl.load(table_SN + sequence * pages + n).to(tl.int64)
        at = (page * GROUPS + group) * PAGE * E + p[:, None] * E + e[None, :]
        inside = n * PAGE + p < length
        key = tl.load(key_XGPE + at, mask=inside[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - highest[:, None])
        shrink = tl.exp(top - highest)
        value = tl.load(value_XGPE + at, mask=inside[:, None], other=0.0)
        values = tl.dot(weight.to(value.dtype), value, values * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weight, 1)
        top = highest
    tl.store(out_SHE + head[:, None] * E + e[None, :], values / total[:, None], mask=(r < R)[:, None])


def attend(pages: PagedBeams, query_BKHE: Tensor) -> Tensor:
    """(B, K, H, E)."""
    requests, beams, heads, size = query_BKHE.shape
    groups, page = pages.key_XGPE.shape[1:3]
    count = pages.table_BKN.shape[2]
    out = torch.empty_like(query_BKHE)
    paged_kernel[(requests * beams, groups)](
        query_BKHE.contiguous(),
        pages.key_XGPE,
        pages.value_XGPE,
        pages.table_BKN.contiguous(),
        pages.length,
        out,
        count,
        size**-0.5,
        GROUPS=groups,
        R=heads // groups,
        E=size,
        PAGE=page,
        NUM_PAGES=count,
        num_warps=4,
        num_stages=3,
    )
    return out
