"""Parallel Prefix-Verification (DISC-PPV, Ye et al. 2025): binary search in the sorted table for every candidate code.

    for each beam, each candidate code: search the code between the first and last row of the beam's prefix

Exact when all V codes are candidates (STATIC §5.2, method 3); with the 50 best logits alone, as in its own paper, legal codes
beyond them are lost (method 4). Lean where the reference code searches the prefix's rows again each step: a beam keeps them.

Shapes: B requests, K beams, F candidates a beam, V codes, L levels, M SIDs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection

__all__ = ["Ppv", "PpvPending", "PpvState"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PpvState:
    """lo_BK, hi_BK: int64, the rows that begin with the beam's prefix, reached by `level` codes."""

    level: int
    lo_BK: Tensor
    hi_BK: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class PpvPending:
    """first_BKF: int64, the first row of each candidate."""

    state: PpvState
    first_BKF: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Ppv:
    """codes_LM1: sorted, distinct SIDs, one row a level, and one column of padding. num_candidates: None for all V codes."""

    codes_LM1: Tensor
    num_candidates: int | None = None

    @classmethod
    def of_sorted(
        cls, codes_LM: NDArray[np.integer], num_candidates: int | None = None, device: torch.device | str = "cpu"
    ) -> Ppv:
        """From sorted, distinct SIDs, int16 or int32. Cost: one copy."""
        padded = np.concatenate([codes_LM, np.zeros((len(codes_LM), 1), codes_LM.dtype)], axis=1)
        return cls(codes_LM1=torch.from_numpy(padded).to(device), num_candidates=num_candidates)

    @property
    def exact(self) -> bool:
        """Return whether every code is verified."""
        return self.num_candidates is None

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.codes_LM1.nbytes

    def root(self, batch_size: int) -> PpvState:
        """All rows."""
        lo_BK = torch.zeros(batch_size, 1, dtype=torch.int64, device=self.codes_LM1.device)
        return PpvState(level=0, lo_BK=lo_BK, hi_BK=torch.full_like(lo_BK, self.codes_LM1.shape[1] - 1))

    def mask_step(self, state: PpvState, log_p_BKV: Tensor) -> tuple[PpvPending, Offers]:
        """Search every candidate; keep those that are found."""
        column_M1 = self.codes_LM1[state.level]
        size = log_p_BKV.shape[2]
        code_BKF: Tensor | None = None
        if self.num_candidates is not None and self.num_candidates < size:
            log_p_BKV, code_BKF = log_p_BKV.topk(self.num_candidates, dim=-1)
            wanted = code_BKF.to(column_M1.dtype)
        else:
            wanted = torch.arange(size, dtype=column_M1.dtype, device=column_M1.device).expand(log_p_BKV.shape)
        hi_BK1 = state.hi_BK[:, :, None]
        first_BKF = _lower_bound(column_M1, state.lo_BK[:, :, None].expand(wanted.shape), hi_BK1.expand(wanted.shape), wanted)
        found = (first_BKF < hi_BK1) & (column_M1[first_BKF] == wanted)
        offers = Offers(log_p_BKF=torch.where(found, log_p_BKV, -torch.inf), code_BKF=code_BKF)
        return PpvPending(state=state, first_BKF=first_BKF), offers

    def advance(self, pending: PpvPending, best: Selection) -> PpvState:
        """The rows of each kept beam: from its first row, already found, to the first of the next code."""
        state, (rows, _, width) = pending.state, pending.first_BKF.shape
        column_M1 = self.codes_LM1[state.level]
        lo_BK = pending.first_BKF.reshape(rows, -1).gather(1, best.parent_BK * width + best.slot_BK)
        hi_BK = _lower_bound(column_M1, lo_BK, state.hi_BK.gather(1, best.parent_BK), best.code_BK + 1)
        dead = best.scores_BK == -torch.inf
        return PpvState(level=state.level + 1, lo_BK=lo_BK.masked_fill(dead, 0), hi_BK=hi_BK.masked_fill(dead, 0))


def _lower_bound(column_M1: Tensor, lo: Tensor, hi: Tensor, wanted: Tensor) -> Tensor:
    """The first place of [lo, hi) whose code is at least `wanted`, else hi; as many halvings as the widest range takes."""
    for _ in range(int((hi - lo).max()).bit_length()):
        middle = (lo + hi) >> 1
        less = (column_M1[middle] < wanted) & (lo < hi)
        lo, hi = torch.where(less, middle + 1, lo), torch.where(less, hi, middle)
    return lo
