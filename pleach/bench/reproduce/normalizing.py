"""The log-sum-exp of chosen rows, as the constrained step computes it: what is subtracted where the rest of a step is measured.

Shapes: B requests, K beams, V codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import math

from numba import njit

from pleach.ops.constrain.normalize import chunk_maxima, sum_exp

__all__ = ["normalize_rows"]


@njit(nogil=True)
def normalize_rows(logits_BKV, chosen_BK, out_chunks):
    """The sum of the log-sum-exps of the chosen rows. out_chunks: room for V / 64 + 1 maxima."""
    total = 0.0
    for request in range(logits_BKV.shape[0]):
        for beam in range(logits_BKV.shape[1]):
            if chosen_BK[request, beam]:
                row_V = logits_BKV[request, beam]
                top = chunk_maxima(row_V, out_chunks)
                total += top + math.log(sum_exp(row_V, top))
    return total
