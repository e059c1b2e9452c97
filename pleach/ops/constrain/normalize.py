"""Log-sum-exp of a row of logits, in compiled loops that vectorise.

    top = max(row);  lse = top + log(sum(exp(row - top)))

The largest logit of each chunk of 64 comes for free and lets a search skip chunks that cannot matter. exp is 2^n times a
polynomial of degree 5 (relative error 2e-7, checked against float64 in tests); sums are kept in float32 lanes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

import numpy as np
from numba import njit

from pleach.index.bits import bits_float, float_bits, truncate

__all__ = ["CHUNK", "chunk_maxima", "sum_exp"]

CHUNK = 64


@njit(fastmath=True, nogil=True)
def chunk_maxima(row_V, out_chunks):
    """Write the maximum of each chunk of 64 and return the row's. A NaN may or may not show: `sum_exp` finds it."""
    size = row_V.size
    whole = size // CHUNK
    top = np.float32(-np.inf)
    for chunk in range(whole):
        best = row_V[chunk * CHUNK]
        for i in range(CHUNK):
            value = row_V[chunk * CHUNK + i]
            best = value if value > best else best
        out_chunks[chunk] = best
        top = best if best > top else top
    if whole * CHUNK < size:
        best = row_V[whole * CHUNK]
        for i in range(whole * CHUNK, size):
            value = row_V[i]
            best = value if value > best else best
        out_chunks[whole] = best
        top = best if best > top else top
    return top


@njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True)
def sum_exp(row_V, top):
    """sum(exp(row - top)), NaN where the row holds one (so no flag here may assume that there is none)."""
    log2_e = np.float32(1.4426950408889634)
    least = np.float32(-126.0)
    half = np.float32(0.5)
    total = np.float32(0.0)
    for i in range(row_V.size):
        x = (row_V[i] - top) * log2_e
        x = least if x < least else x
        whole = truncate(x - half)
        f = x - np.float32(whole)
        p = np.float32(0.0013400432653725147)
        p = p * f + np.float32(0.009676037356257439)
        p = p * f + np.float32(0.05550327152013779)
        p = p * f + np.float32(0.2402210682630539)
        p = p * f + np.float32(0.6931471824645996)
        p = p * f + np.float32(1.0000001192092896)
        total += bits_float(float_bits(p) + (whole << np.int32(23)))
    return total
