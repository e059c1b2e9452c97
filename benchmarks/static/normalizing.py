"""The log-sum-exp of chosen rows, as the constrained step computes it: what is subtracted where the rest of a step is measured.

Shapes: B requests, K beams, V codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from numba import njit

from leafbeam.ops.constrain.cpu.logsumexp import log_sum_exp

__all__ = ["normalize_rows"]


@njit(cache=True, nogil=True, _nrt=False)
def normalize_rows(logits_BKV, chosen_BK, out_chunks):
    """The sum of the log-sum-exps of the chosen rows. out_chunks: room for V / 64 + 1 maxima."""
    total = 0.0
    for request in range(logits_BKV.shape[0]):
        for beam in range(logits_BKV.shape[1]):
            if chosen_BK[request, beam]:
                total += log_sum_exp(logits_BKV[request, beam], out_chunks)[1]
    return total
