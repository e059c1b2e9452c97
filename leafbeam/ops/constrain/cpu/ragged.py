"""A round in which every beam's legal codes have a logit of their own: from a head, an engine or a sampler.

    for each request, each live beam in order:
        for each legal code: score = beam score + logit - lse; keep the K best

Tries and automata list their legal codes and find out where a code leads in different ways; choosing among them is the same.

Shapes: S segments, B requests, K beams, R = B x K rows, C legal codes of all rows.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.topk import (
    arrival_of,
    candidate_buffers,
    candidates_in,
    compact,
    offer,
    push,
    score_of,
    sort_best,
)
from leafbeam.ops.constrain.legal_codes import LegalCodes
from leafbeam.ops.constrain.types import Beams, HostBeams

HostCodes = LegalCodes[NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrieChildren:
    """The legal children of every beam of a trie.

    Args:
        legal: The codes of the children, by row.
        lo_SC: Shape (S, C), int64. The first leaf of each child in each segment.
        hi_SC: Shape (S, C), int64. The end of each child's leaves; (0, 0) is an empty range.
        num_rows: The number of beams of a request.
    """

    legal: HostCodes
    lo_SC: NDArray[np.int64]
    hi_SC: NDArray[np.int64]
    num_rows: int

    def beams_at(self, slots_BK: NDArray[np.int64], scores_BK: NDArray[np.floating]) -> HostBeams:
        """Return the children at these positions of C as beams; -1 is a dead beam."""
        return Beams(
            scores=scores_BK,
            parent=parents_at(self.legal, slots_BK, self.num_rows),
            code=take(self.legal.code_C, slots_BK),
            lo=take(self.lo_SC, slots_BK),
            hi=take(self.hi_SC, slots_BK),
            num_valid=(slots_BK >= 0).sum(axis=1),
        )


def take(values_C: NDArray[np.generic], slots_BK: NDArray[np.int64]) -> NDArray[np.generic]:
    """Return the values at these positions of the last axis; 0 for position -1."""
    live_BK = slots_BK >= 0
    taken_BK = np.zeros((*values_C.shape[:-1], *slots_BK.shape), values_C.dtype)
    taken_BK[..., live_BK] = values_C[..., slots_BK[live_BK]]
    return taken_BK


def parents_at(legal: HostCodes, slots_BK: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return the beam that has the legal code at each of these positions; 0 for position -1."""
    row_BK = np.searchsorted(legal.indptr_R1, slots_BK, side="right") - 1
    return np.where(slots_BK >= 0, row_BK % num_rows, 0)


def extend_ragged(
    legal: HostCodes,
    logit_C: NDArray[np.float32],
    lse_R: NDArray[np.float32],
    scores_BK: NDArray[np.float32],
    *,
    num_beams: int,
    ended_BK: NDArray[np.bool_] | None = None,
    where: str = "",
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Extend every live beam by each of its legal codes and keep the best `num_beams` of each request.

    Ties go to the smaller beam, then to the smaller code. Rows whose beam cannot be among the best are not read.

    Args:
        legal: The legal codes of every row; dead beams have none.
        logit_C: Shape (C,). The logits of these codes, in their order; -inf excludes a code.
        lse_R: Shape (R,). What is subtracted from the logits of each row, and never below the largest of them: a log-sum-exp
            over all codes ("full") or over the legal ones ("allowed").
        scores_BK: Shape (B, K). The scores of the beams, -inf for dead ones.
        num_beams: The number of beams to keep.
        ended_BK: Shape (B, K). The beams that are certain of their first legal code, whatever its logit.
        where: The round, for messages.

    Returns:
        The positions in C of the chosen codes, best first, and their scores, each of shape (B, num_beams). A dead slot has
        position -1 and score -inf.

    Raises:
        LogitsError: If a row that was read holds NaN or +inf.
    """
    batch_size, num_rows = scores_BK.shape
    slots_BK = np.full((batch_size, num_beams), -1, np.int64)
    best_BK = np.full((batch_size, num_beams), -np.inf, np.float32)
    ended_BK = np.zeros(scores_BK.shape, np.bool_) if ended_BK is None else ended_BK
    positions_C, buffers = np.arange(legal.max_row), candidate_buffers(num_beams)
    scores_BK = np.ascontiguousarray(scores_BK, np.float32)
    bad = _extend(legal.indptr_R1, logit_C, lse_R, positions_C, scores_BK, ended_BK, buffers, slots_BK, best_BK)
    if bad >= 0:
        raise LogitsError.not_finite(*divmod(bad, num_rows), where)
    return slots_BK, best_BK


@njit(nogil=True, _nrt=False)
def _is_finite(logits, lse):
    """Return whether a row holds neither NaN nor +inf."""
    finite = lse < np.float32(np.inf)
    for i in range(logits.size):
        finite &= logits[i] < np.float32(np.inf)
    return finite


@njit(cache=True, nogil=True, _nrt=False)
def _extend(indptr_R1, logit_C, lse_R, positions_C, scores_BK, ended_BK, buffers, slots_BK, best_BK):
    """Write positions and scores of the best codes; returns -1, or the number of a row that holds NaN or +inf.

    positions_C: 0, 1, ... as far as the longest row goes.
    """
    batch_size, num_rows = scores_BK.shape
    num_beams = slots_BK.shape[1]
    candidates = candidates_in(buffers)
    for b in range(batch_size):
        count, threshold = 0, np.float32(-np.inf)
        for k in range(num_rows):
            row, base = b * num_rows + k, scores_BK[b, k]
            begin, end = indptr_R1[row], indptr_R1[row + 1]
            if begin == end or base <= threshold:
                continue
            if ended_BK[b, k]:
                count, threshold = push(candidates, count, threshold, num_beams, base, k, 0, 0)
                continue
            logits, lse, positions = logit_C[begin:end], lse_R[row], positions_C[: end - begin]
            if not _is_finite(logits, lse):
                return row
            if lse > np.float32(-np.inf):
                count, threshold = offer(
                    logits, positions, positions, positions, base, lse, k, candidates, count, threshold, num_beams
                )
                if count > num_beams:
                    threshold, count = compact(candidates, count, num_beams), num_beams
        count = sort_best(candidates, count, num_beams)
        for slot in range(count):
            key = candidates.keys[slot]
            candidate = arrival_of(key)
            begin = indptr_R1[b * num_rows + candidates.parents[candidate]]
            slots_BK[b, slot], best_BK[b, slot] = begin + candidates.indices[candidate], score_of(key)
    return -1
