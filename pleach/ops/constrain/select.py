"""Keeping the K best candidates of a request, in compiled loops.

    candidates arrive in the order (parent, code); an unsorted buffer of a few times K fills up
    when it is full: keep the K best in their order of arrival; the K-th best score is the new threshold
    a later candidate has to be strictly better than the threshold, because ties go to the one that came first

A candidate's key is its score made sortable (32 bits) above its arrival counted backwards (32 bits), so that one integer
comparison gives (score desc, parent asc, code asc).
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

import numpy as np
from numba import njit

from pleach.index.bits import bits_float, float_bits

__all__ = ["compact", "key_of", "score_of"]


@njit(nogil=True)
def key_of(score, arrival):
    """The sortable key of a candidate."""
    bits = np.int64(float_bits(score + np.float32(0.0)))  # + 0.0 makes -0.0 equal to 0.0
    if bits < 0:
        bits = ~bits
    else:
        bits |= np.int64(0x80000000)
    return (np.uint64(bits & np.int64(0xFFFFFFFF)) << np.uint64(32)) | np.uint64(np.int64(0xFFFFFFFF) - arrival)


@njit(nogil=True)
def score_of(key):
    """The score in a key."""
    bits = np.int64(key >> np.uint64(32))
    if bits & np.int64(0x80000000):
        bits &= np.int64(0x7FFFFFFF)
    else:
        bits = ~bits
    return bits_float(np.int32(bits))


@njit(nogil=True)
def _kth_largest(keys, count, k):
    """Reorder keys[:count] so that the k-th largest (from 1) stands at k - 1, and return it. O(count) on average."""
    left, right, target = 0, count - 1, k - 1
    while left < right:
        pivot = keys[(left + right) >> 1]
        i, j = left, right
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if target <= j:
            right = j
        elif target >= i:
            left = i
        else:
            break
    return keys[target]


@njit(nogil=True)
def compact(keys, parents, codes, places, count, k, scratch):
    """Keep the k best of `count` > k candidates in their order of arrival; returns the k-th best score."""
    for i in range(count):
        scratch[i] = keys[i]
    least = _kth_largest(scratch, count, k)
    kept = 0
    for i in range(count):
        if keys[i] >= least:
            keys[kept] = (keys[i] & np.uint64(0xFFFFFFFF00000000)) | np.uint64(np.int64(0xFFFFFFFF) - kept)
            parents[kept] = parents[i]
            codes[kept] = codes[i]
            places[kept] = places[i]
            kept += 1
    return score_of(least)
