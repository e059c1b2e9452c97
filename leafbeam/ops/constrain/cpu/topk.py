"""Keeping the K best candidates of a request, in compiled loops; tries and automata share them.

    candidates arrive in the order (parent, code); an unsorted buffer of a few times K fills up
    when it is full: keep the K best in their order of arrival; the K-th best score is the new threshold
    a later candidate has to be strictly better than the threshold, because ties go to the one that came first

A candidate's key is its score made sortable (32 bits) above its arrival counted backwards (32 bits), so that one integer
comparison gives (score desc, parent asc, code asc).

The kernels allocate nothing, so they are compiled without numba's reference counting (`_nrt=False`), which would cost more than
the work itself.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import bits_float, float_bits
from leafbeam.jit import njit
from leafbeam.ops.constrain.types import LOWEST


class Scratch(threading.local):
    """The arrays of each thread, by name and shape. New large arrays would be pages that the system clears at every round."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, tuple[int, ...]], NDArray[np.generic]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an array with any content. The next call of this thread with the same name and shape returns it again."""
        kept = self._arrays.get((name, shape))
        if kept is None:
            kept = self._arrays[name, shape] = np.empty(shape, dtype)
        return kept


class Candidates(NamedTuple):
    """The buffer of a request's candidates.

    Args:
        indices: The index of each child in its level, for tries.
    """

    keys: NDArray[np.uint64]
    scratch: NDArray[np.uint64]
    parents: NDArray[np.int64]
    codes: NDArray[np.int64]
    indices: NDArray[np.int64]


def candidate_buffers(num_beams: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Allocate the `Candidates` of `num_beams` beams: uint64 (2, C) and int64 (3, C)."""
    capacity = 4 * num_beams + 64
    return np.empty((2, capacity), np.uint64), np.empty((3, capacity), np.int64)


@njit(nogil=True, _nrt=False)
def candidates_in(buffers):
    """Return the `Candidates` in the arrays of `candidate_buffers`."""
    keys, numbers = buffers
    return Candidates(keys[0], keys[1], numbers[0], numbers[1], numbers[2])


@njit(nogil=True, _nrt=False)
def key_of(score, arrival):
    """Return the sortable key of a candidate."""
    bits = np.int64(float_bits(score + np.float32(0.0)))  # + 0.0 makes -0.0 equal to 0.0
    if bits < 0:
        bits = ~bits
    else:
        bits |= np.int64(0x80000000)
    return (np.uint64(bits & np.int64(0xFFFFFFFF)) << np.uint64(32)) | np.uint64(np.int64(0xFFFFFFFF) - arrival)


@njit(nogil=True, _nrt=False)
def score_of(key):
    """Return the score in a key."""
    bits = np.int64(key >> np.uint64(32))
    if bits & np.int64(0x80000000):
        bits &= np.int64(0x7FFFFFFF)
    else:
        bits = ~bits
    return bits_float(np.int32(bits))


@njit(nogil=True, _nrt=False)
def arrival_of(key):
    """Return the arrival in a key."""
    return np.int64(0xFFFFFFFF) - np.int64(key & np.uint64(0xFFFFFFFF))


@njit(nogil=True, _nrt=False)
def sort_descending(keys, count):
    """Sort keys[:count] in place, largest first: Shell's sort, for a few hundred keys."""
    gap = 1
    while gap * 3 + 1 < count:
        gap = gap * 3 + 1
    while gap > 0:
        for i in range(gap, count):
            key = keys[i]
            j = i
            while j >= gap and keys[j - gap] < key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 3


@njit(nogil=True, _nrt=False)
def kth_largest(keys, count, k):
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


@njit(nogil=True, _nrt=False)
def compact(candidates, count, num_beams):
    """Keep the best `num_beams` of `count` > `num_beams` candidates in their order of arrival; returns the worst kept score."""
    keys, scratch = candidates.keys, candidates.scratch
    for i in range(count):
        scratch[i] = keys[i]
    kth = kth_largest(scratch, count, num_beams)
    kept = 0
    for i in range(count):
        if keys[i] >= kth:
            keys[kept] = (keys[i] & np.uint64(0xFFFFFFFF00000000)) | np.uint64(np.int64(0xFFFFFFFF) - kept)
            candidates.parents[kept] = candidates.parents[i]
            candidates.codes[kept] = candidates.codes[i]
            candidates.indices[kept] = candidates.indices[i]
            kept += 1
    return score_of(kth)


@njit(nogil=True, _nrt=False)
def sort_best(candidates, count, num_beams):
    """Sort the keys of the best `num_beams` of `count` candidates, best first; returns how many there are."""
    if count > num_beams:
        compact(candidates, count, num_beams)
        count = num_beams
    sort_descending(candidates.keys, count)
    return count


@njit(nogil=True, _nrt=False)
def push(candidates, count, threshold, num_beams, score, parent, code, index):
    """Add a candidate that beats the threshold, and compact the buffer when it is full; returns (count, threshold)."""
    candidates.keys[count] = key_of(score, count)
    candidates.parents[count], candidates.codes[count], candidates.indices[count] = parent, code, index
    if count + 1 < candidates.keys.size:
        return count + 1, threshold
    return num_beams, compact(candidates, count + 1, num_beams)


@njit(nogil=True, _nrt=False)
def is_excluded(value, threshold):
    """Return whether a child whose score is not above the threshold is dropped; it is kept if only overflow made it -inf."""
    return threshold > np.float32(-np.inf) or not value > np.float32(-np.inf)


@njit(nogil=True, _nrt=False)
def offer(logits, positions, codes, indices, base, lse, parent, candidates, count, threshold, num_beams):
    """Push the children of a row that beat the threshold; returns (count, threshold).

    The logit of child i is logits[positions[i]]; its score is base + logit - lse, at least `LOWEST` if the logit is finite.
    """
    if threshold == np.float32(-np.inf) and codes.size >= 4 * num_beams:
        # The first row of many children: a threshold that at least K of them reach saves most of the sorting.
        threshold = _kth_of_groups(logits, positions, base, lse, num_beams, candidates.scratch)
    for child in range(codes.size):
        value = logits[positions[child]]
        score = base + (value - lse)
        if score <= threshold:
            if is_excluded(value, threshold):
                continue
            score = np.float32(LOWEST)
        code, index = codes[child], indices[child]
        count, threshold = push(candidates, count, threshold, num_beams, score, parent, code, index)
    return count, threshold


@njit(nogil=True, _nrt=False)
def _kth_of_groups(logits, positions, base, lse, num_beams, scratch):
    """Return a score just below one that at least K children reach: the K-th largest of the maxima of 2K groups of children."""
    groups = 2 * num_beams
    size = positions.size // groups
    for group in range(groups):
        best = np.float32(-np.inf)
        for child in range(group * size, group * size + size):
            value = logits[positions[child]]
            best = value if value > best else best
        scratch[group] = key_of(base + (best - lse), 0)
    kth = kth_largest(scratch, groups, num_beams)
    score = score_of(kth)
    if score == np.float32(-np.inf):
        return score
    if score == np.float32(0.0):
        return np.float32(-1e-37)  # one key less would be -0.0, which equals 0.0
    # One key less in the score's bits is the next smaller float32: what ties with the K-th is still let in.
    return score_of(kth - (np.uint64(1) << np.uint64(32)))
