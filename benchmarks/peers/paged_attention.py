"""Paged attention of a decode step in Triton: one program for a beam and key head walks the beam's own pages.

What a serving engine without shared prompts runs for a beam search (vLLM's paged attention, one query a sequence, query heads
of a key head together). Every beam has its own copy of the prompt in its own pages.

Shapes: B requests, K beams, H query heads, G key heads, R = H / G, E values of a head, P tokens of a page, N pages of a beam, X
pages in all.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["PagedBeams"]


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
        page = tl.load(table_SN + sequence * pages + n)
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


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedBeams:
    """Every beam's prompt and codes in pages of its own. key_XGPE, value_XGPE: (X, G, P, E). table_BKN: int64."""

    key_XGPE: Tensor
    value_XGPE: Tensor
    table_BKN: Tensor
    length: int

    @classmethod
    def of(cls, key_BGET: Tensor, value_BGTE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, page: int = 64) -> PagedBeams:
        """Copy the prompt into the pages of every beam, and its codes behind it; pages in random order, as a server's are."""
        requests, beams, codes, groups, size = key_BKSGE.shape
        length = key_BGET.shape[3] + codes
        pages = -(-length // page)
        order = torch.randperm(requests * beams * pages, device=key_BGET.device)
        stores: list[Tensor] = []
        for prompt_BGTE, slots_BKSGE in ((key_BGET.transpose(2, 3), key_BKSGE), (value_BGTE, value_BKSGE)):
            store = prompt_BGTE.new_empty(requests * beams * pages, groups, page, size)
            table = order.view(requests, beams, pages)
            for request in range(requests):
                whole = prompt_BGTE.new_zeros(beams, groups, pages * page, size)
                whole[:, :, : length - codes] = prompt_BGTE[request]
                whole[:, :, length - codes : length] = slots_BKSGE[request].transpose(1, 2)
                store[table[request].flatten()] = whole.unflatten(2, (pages, page)).transpose(1, 2).flatten(0, 1)
            stores.append(store)
        return cls(key_XGPE=stores[0], value_XGPE=stores[1], table_BKN=order.view(requests, beams, pages), length=length)

    def attend(self, query_BKHE: Tensor) -> Tensor:
        """(B, K, H, E)."""
        requests, beams, heads, size = query_BKHE.shape
        groups, page = self.key_XGPE.shape[1:3]
        pages = self.table_BKN.shape[2]
        out = torch.empty_like(query_BKHE)
        paged_kernel[(requests * beams, groups)](
            query_BKHE.contiguous(),
            self.key_XGPE,
            self.value_XGPE,
            self.table_BKN,
            self.length,
            out,
            pages,
            size**-0.5,
            GROUPS=groups,
            R=heads // groups,
            E=size,
            PAGE=page,
            NUM_PAGES=pages,
            num_warps=4,
            num_stages=3,
        )
        return out

    @property
    def nbytes(self) -> int:
        """What one call reads of keys and values, and what they take."""
        return self.key_XGPE.nbytes + self.value_XGPE.nbytes
