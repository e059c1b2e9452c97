"""The constrained step in plain torch: short, obvious, slow, and the truth that every other backend is compared with.

Shapes: S segments, B requests, K beams, V codes of the level, L levels, M leaves, C candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leafbeam.errors import LogitsError
from leafbeam.index import Filter, Trie, Version
from leafbeam.ops.constrain.types import LOWEST, Beams, Boosts, Scoring


@dataclass(frozen=True, kw_only=True, eq=False)
class TrieArrays:
    """The sorted table of SIDs, unpacked.

    Args:
        codes_ML: int64.
        starts_LM: bool, whether a prefix of length t + 1 starts there.
    """

    codes_ML: Tensor
    starts_LM: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestArrays:
    """The filters and the boosts of a batch.

    Args:
        alive: For each segment bool (B, M), the leaves that each request may reach.
        boosts: For each segment float32 (B, M), the largest boost of each leaf; None without boosts.
    """

    alive: tuple[Tensor, ...]
    boosts: tuple[Tensor, ...] | None = None


def bind(index: Trie | Version, device: torch.device | str = "cpu") -> tuple[TrieArrays, ...]:
    """Unpack the segments of a version: 9 bytes for each leaf and level."""
    return tuple(_unpack(segment.trie, device) for segment in Version.of(index).segments)


def _unpack(trie: Trie, device: torch.device | str) -> TrieArrays:
    codes_ML = torch.from_numpy(trie.codes_at(np.arange(trie.num_leaves)))
    starts_LM = torch.ones(trie.num_levels, trie.num_leaves, dtype=torch.bool)
    for level, same in enumerate((codes_ML[1:] == codes_ML[:-1]).cumprod(dim=1).T):
        starts_LM[level, 1:] = same == 0
    return TrieArrays(codes_ML=codes_ML.to(device), starts_LM=starts_LM.to(device))


def bind_filters(arrays: tuple[TrieArrays, ...], filters: Sequence[Filter], boosts: Boosts = None) -> RequestArrays:
    """Return what each request may reach, and what it prefers."""
    alive: list[Tensor] = []
    for number, segment in enumerate(arrays):
        alive_BM = torch.zeros(len(filters), len(segment.codes_ML), dtype=torch.bool)
        for request, item_filter in enumerate(filters):
            alive_BM[request, torch.from_numpy(item_filter.parts[number].leaf_positions())] = True
        alive.append(alive_BM.to(segment.codes_ML.device))
    return RequestArrays(alive=tuple(alive), boosts=None if boosts is None else _leaf_boosts(filters, boosts))


def _leaf_boosts(filters: Sequence[Filter], boosts: Boosts) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for number, part in enumerate(filters[0].parts):
        boosts_BM = torch.zeros(len(filters), part.items.num_leaves)
        for row_M, column in zip(boosts_BM, boosts or (), strict=True):
            if column is not None:
                values_N = torch.from_numpy(column.at(np.arange(part.items.num_items), number))
                ordinals = np.arange(part.items.num_leaves + 1) if part.items.leaf_indptr is None else part.items.leaf_indptr
                for leaf in range(part.items.num_leaves):
                    row_M[leaf] = values_N[int(ordinals[leaf]) : int(ordinals[leaf + 1])].max()
        found.append(boosts_BM)
    return tuple(found)


def _largest(filters: RequestArrays, request: int, lo_S: Tensor, hi_S: Tensor) -> float:
    """Return the largest boost of a request below a node; 0 for an empty one."""
    pairs = zip(filters.boosts or (), lo_S.tolist(), hi_S.tolist(), strict=False)
    return max((float(boosts_BM[request, lo:hi].max()) for boosts_BM, lo, hi in pairs if lo < hi), default=0.0)


def children(
    arrays: tuple[TrieArrays, ...], level: int, lo_SBK: Tensor, hi_SBK: Tensor, filters: RequestArrays
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List the legal children of every beam: (row_indptr, code_C, lo_SC, hi_SC).

        for each beam, row by row, and each segment: the positions inside its range where a longer prefix starts, if a leaf
        under it is alive; a code found in two segments is one child with a range in each

    row_indptr: int64, where each of the B x K rows begins and, last, C. Ascending by code within a row. (0, 0) is no range.
    """
    num_segments, *shape = lo_SBK.shape
    rows: list[Tensor] = []
    for request, beam in np.ndindex(*shape):
        by_segment = [
            _children_of(segment, alive_BM[request], level, int(lo_SBK[s, request, beam]), int(hi_SBK[s, request, beam]))
            for s, (segment, alive_BM) in enumerate(zip(arrays, filters.alive, strict=True))
        ]
        codes_C = torch.cat([code for code, _, _ in by_segment]).unique()
        row = lo_SBK.new_zeros(1 + 2 * num_segments, len(codes_C))
        row[0] = codes_C
        for s, (code, lo, hi) in enumerate(by_segment):
            at = torch.searchsorted(codes_C, code)
            row[1 + s, at], row[1 + num_segments + s, at] = lo, hi
        rows.append(row)
    sizes = torch.tensor([0, *(row.shape[1] for row in rows)])
    ragged = torch.cat([*rows, lo_SBK.new_empty(1 + 2 * num_segments, 0)], dim=1)
    return sizes.cumsum(0), ragged[0], ragged[1 : 1 + num_segments], ragged[1 + num_segments :]


def _children_of(segment: TrieArrays, alive_M: Tensor, level: int, lo: int, hi: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (code, lo, hi) of the children of one range that have a leaf alive."""
    firsts_C = lo + segment.starts_LM[level, lo:hi].nonzero().squeeze(1)
    lasts_C = torch.cat([firsts_C[1:], firsts_C.new_full((min(1, len(firsts_C)),), hi)])
    before_M1 = torch.nn.functional.pad(alive_M.cumsum(0), (1, 0))
    alive_C = before_M1[lasts_C] > before_M1[firsts_C]
    return segment.codes_ML[firsts_C, level][alive_C], firsts_C[alive_C], lasts_C[alive_C]


def step(
    arrays: tuple[TrieArrays, ...],
    level: int,
    beams: Beams[Tensor],
    logits_BKV: Tensor,
    filters: RequestArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> Beams[Tensor]:
    """Extend every live beam by every legal code and keep the best: one round of constrained beam search.

        for each request, each live beam, each child that the filter leaves alive:
            score = beam score + log_softmax(logits)[code]       over all columns, or over the children ("allowed")
            with a boost: + the largest boost below the child - the largest below the beam, which is not positive
        keep the `num_beams` best by (score desc, parent asc, code asc)

    (STATIC, Algorithm 1, phases 1 to 4, with the mask replaced by enumeration; "allowed" is xGR's normalisation, §6.)

    Raises LogitsError where a live row holds NaN or +inf.

    Args:
        beams: The beams before the round: `lo`, `hi` and `scores` are read. The ranges of a dead beam are empty.
        logits_BKV: float32, of `num_columns`. A logit of -inf is a code that the model itself excludes.
    """
    device, logits_BKV = beams.lo.device, logits_BKV.float()
    num_segments, batch_size, num_rows = beams.lo.shape
    shape = (batch_size, num_beams)
    out = Beams(
        scores=torch.full(shape, -torch.inf, device=device),
        parent=torch.zeros(shape, dtype=torch.int64, device=device),
        code=torch.zeros(shape, dtype=torch.int64, device=device),
        lo=torch.zeros((num_segments, *shape), dtype=torch.int64, device=device),
        hi=torch.zeros((num_segments, *shape), dtype=torch.int64, device=device),
        num_valid=torch.zeros(shape[0], dtype=torch.int64, device=device),
    )
    row_indptr, code_C, lo_SC, hi_SC = children(arrays, level, beams.lo, beams.hi, filters)
    for request in range(batch_size):
        candidates: list[tuple[Tensor, Tensor, Tensor]] = []  # (score, parent, number among all children)
        for beam in range(num_rows):
            row = request * num_rows + beam
            child_C = torch.arange(int(row_indptr[row]), int(row_indptr[row + 1]), device=device)
            if len(child_C) == 0 or bool(beams.scores[request, beam].isneginf()):
                continue
            row_V = logits_BKV[request, beam]
            read = row_V if scoring != "allowed" else row_V[code_C[child_C]]
            if bool(read.isnan().any()) or bool(read.isposinf().any()):
                raise LogitsError.not_finite(request, beam, f"at level {level}")
            logit_C = row_V[code_C[child_C]]
            scores_C = beams.scores[request, beam] + (logit_C - read.logsumexp(0))
            if filters.boosts is not None:
                before = _largest(filters, request, beams.lo[:, request, beam], beams.hi[:, request, beam])
                bounds = [_largest(filters, request, lo_SC[:, child], hi_SC[:, child]) for child in child_C.tolist()]
                scores_C = scores_C + (torch.tensor(bounds, device=device) - before)
            scores_C = scores_C.clamp(min=LOWEST)
            live_C = (logit_C > -torch.inf) & ~scores_C.isnan()
            candidates.append((scores_C[live_C], torch.full_like(child_C, beam)[live_C], child_C[live_C]))
        if not candidates:
            continue
        scores_C, parents_C, child_C = (torch.cat(parts) for parts in zip(*candidates, strict=True))
        best = scores_C.argsort(descending=True, stable=True)[:num_beams]  # they stand in (parent, code) order already
        count, child_C = len(best), child_C[best]
        out.scores[request, :count], out.parent[request, :count] = scores_C[best], parents_C[best]
        out.code[request, :count], out.num_valid[request] = code_C[child_C], count
        out.lo[:, request, :count], out.hi[:, request, :count] = lo_SC[:, child_C], hi_SC[:, child_C]
    return out
