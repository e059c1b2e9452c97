"""The constrained step in plain torch: short, obvious, slow, and the truth that every other backend is compared with.

Shapes: B requests, K beams, V codes of the level, L levels, M leaves, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pleach.errors import LogitsError
from pleach.index import Trie
from pleach.ops.constrain.beams import Beams, RequestFilter, Scoring

__all__ = ["FilterArrays", "TrieArrays", "bind", "bind_filters", "children", "step"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrieArrays:
    """The sorted table of SIDs, unpacked. codes_ML: int64. starts_LM: bool, whether a prefix of length t + 1 starts there."""

    codes_ML: Tensor
    starts_LM: Tensor
    num_leaves: int
    num_levels: int


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """alive_BM: bool, which leaves each request may reach."""

    alive_BM: Tensor


def bind(trie: Trie, device: torch.device | str = "cpu") -> TrieArrays:
    """Unpack a trie: 9 bytes for each leaf and level."""
    codes_ML = torch.from_numpy(trie.codes_at(np.arange(trie.num_leaves)))
    starts_LM = torch.ones(trie.num_levels, trie.num_leaves, dtype=torch.bool)
    for level, same in enumerate((codes_ML[1:] == codes_ML[:-1]).cumprod(dim=1).T):
        starts_LM[level, 1:] = same == 0
    return TrieArrays(
        codes_ML=codes_ML.to(device), starts_LM=starts_LM.to(device), num_leaves=trie.num_leaves, num_levels=trie.num_levels
    )


def bind_filters(arrays: TrieArrays, filters: Sequence[RequestFilter]) -> FilterArrays:
    """Unpack a batch's filters: one byte for each request and leaf."""
    alive_BM = torch.ones(len(filters), arrays.num_leaves, dtype=torch.bool)
    for request, one in enumerate(filters):
        if one.leaves is not None:
            alive_BM[request] = False
            alive_BM[request, torch.from_numpy(one.leaves.positions())] = True
        alive_BM[request, torch.from_numpy(one.denied_D)] = False
    return FilterArrays(alive_BM=alive_BM.to(arrays.codes_ML.device))


def children(
    arrays: TrieArrays, level: int, lo_BK: Tensor, hi_BK: Tensor, filters: FilterArrays
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every legal child of every range, ragged: (row_R1, code_C, lo_C, hi_C).

        for each range, row by row: the places inside it where a longer prefix starts, if a leaf under it is alive

    row_R1: int64, where each of the B x K rows begins and, last, C. Ascending by code within a row.
    """
    rows: list[Tensor] = []
    for request, beam in np.ndindex(*lo_BK.shape):
        lo, hi = int(lo_BK[request, beam]), int(hi_BK[request, beam])
        firsts_C = lo + arrays.starts_LM[level, lo:hi].nonzero().squeeze(1)
        lasts_C = torch.cat([firsts_C[1:], firsts_C.new_full((min(1, len(firsts_C)),), hi)])
        before_M1 = torch.nn.functional.pad(filters.alive_BM[request].cumsum(0), (1, 0))
        alive_C = before_M1[lasts_C] > before_M1[firsts_C]
        rows.append(torch.stack([arrays.codes_ML[firsts_C, level], firsts_C, lasts_C])[:, alive_C])
    sizes = torch.tensor([0, *(row.shape[1] for row in rows)])
    code_C, lo_C, hi_C = torch.cat([*rows, lo_BK.new_empty(3, 0)], dim=1)
    return sizes.cumsum(0), code_C, lo_C, hi_C


def step(
    arrays: TrieArrays,
    level: int,
    lo_BK: Tensor,
    hi_BK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> Beams[Tensor]:
    """One round of constrained beam search: extend every live beam by every legal code, keep the best.

        for each request, each live beam, each child of its range that the filter leaves alive:
            score = beam score + log_softmax(logits)[code]       over the level's codebook ("full") or the children ("allowed")
        keep the `num_beams` best by (score desc, parent asc, code asc)

    (STATIC, Algorithm 1, phases 1 to 4, with the mask replaced by enumeration; "allowed" is xGR's normalisation, §6.)

    lo_BK, hi_BK: int64 leaf ranges, empty for a dead beam. scores_BK, logits_BKV: float32. A logit of -inf is a code that the
    model itself excludes. Raises LogitsError where a live row holds NaN or +inf.
    """
    device = lo_BK.device
    shape = (lo_BK.shape[0], num_beams)
    out = Beams(
        scores=torch.full(shape, -torch.inf, device=device),
        parent=torch.zeros(shape, dtype=torch.int64, device=device),
        code=torch.zeros(shape, dtype=torch.int64, device=device),
        lo=torch.zeros(shape, dtype=torch.int64, device=device),
        hi=torch.zeros(shape, dtype=torch.int64, device=device),
        num_valid=torch.zeros(shape[0], dtype=torch.int64, device=device),
    )
    row_R1, code_C, lo_C, hi_C = children(arrays, level, lo_BK, hi_BK, filters)
    for request in range(shape[0]):
        found: list[tuple[Tensor, Tensor, Tensor]] = []  # (score, parent, number among all children)
        for beam in range(lo_BK.shape[1]):
            row = request * lo_BK.shape[1] + beam
            mine_C = torch.arange(int(row_R1[row]), int(row_R1[row + 1]), device=device)
            if len(mine_C) == 0 or bool(scores_BK[request, beam].isneginf()):
                continue
            row_V = logits_BKV[request, beam]
            read = row_V if scoring == "full" else row_V[code_C[mine_C]]
            if bool(read.isnan().any()) or bool(read.isposinf().any()):
                raise LogitsError(
                    f"the logits of request {request}, beam {beam} at level {level} hold NaN or +inf: expected finite numbers, "
                    f"or -inf for a code that must not be taken; look at the model's output"
                )
            scores_C = scores_BK[request, beam] + (row_V[code_C[mine_C]] - read.logsumexp(0))
            live_C = scores_C > -torch.inf  # neither -inf nor, in a row of nothing else, NaN
            found.append((scores_C[live_C], torch.full_like(mine_C, beam)[live_C], mine_C[live_C]))
        if not found:
            continue
        scores_C, parents_C, mine_C = (torch.cat(parts) for parts in zip(*found, strict=True))
        best = scores_C.argsort(descending=True, stable=True)[:num_beams]  # they stand in (parent, code) order already
        count, mine_C = len(best), mine_C[best]
        out.scores[request, :count], out.parent[request, :count] = scores_C[best], parents_C[best]
        out.code[request, :count], out.lo[request, :count] = code_C[mine_C], lo_C[mine_C]
        out.hi[request, :count], out.num_valid[request] = hi_C[mine_C], count
    return out
