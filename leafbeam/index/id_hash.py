"""Hashes of item ids, and whether ids are distinct: in little memory, by one pass for each part of them that fits.

    a hash of each id says which part it belongs to; equal ids are in one part, where a sort brings them together

Shapes: N ids, w bytes of a string.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError
from leafbeam.jit import njit

__all__ = ["ascends", "check_distinct", "hash_ids", "raise_repeated"]

_SLICE = 1 << 20


def check_distinct(ids_N: NDArray[np.generic], memory_limit: int) -> None:
    """Raise ItemIdError where an id occurs twice. ids_N: int64, or UTF-8 bytes of fixed width.

    Cost: one read where they ascend already; else a read for each `memory_limit` of 16 bytes an id, and their sorts.
    """
    size = len(ids_N)
    if ascends(ids_N):
        return
    parts = -(-size * 16 // max(1, memory_limit))
    suspects: list[NDArray[np.uint64]] = []
    for part in range(parts):
        hashes = np.concatenate(
            [_of_part(hash_ids(ids_N[begin : begin + _SLICE]), part, parts) for begin in range(0, size, _SLICE)]
        )
        hashes.sort()
        suspects.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
    suspect_S = np.sort(np.concatenate(suspects))
    if suspect_S.size == 0:
        return
    # Equal hashes are nearly always equal ids; look at the ids themselves.
    found: list[NDArray[np.generic]] = []
    for begin in range(0, size, _SLICE):
        ids = ids_N[begin : begin + _SLICE]
        hashes = hash_ids(ids)
        at = np.minimum(np.searchsorted(suspect_S, hashes), suspect_S.size - 1)
        found.append(ids[suspect_S[at] == hashes])
    raise_repeated(np.sort(np.concatenate(found)))


def raise_repeated(sorted_ids: NDArray[np.generic]) -> None:
    """Raise ItemIdError where neighbours of an ascending array are equal."""
    same = np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])
    if same.size:
        one = sorted_ids[same[0]].item()
        name = one.decode() if isinstance(one, bytes) else one
        raise ItemIdError(
            f"{same.size:,} item ids occur more than once, {name!r} among them: each row needs its own id "
            f"(several items may share one Semantic ID, but not one item id)"
        )


def ascends(ids_N: NDArray[np.generic]) -> bool:
    """Whether each id is larger than the one before. Cost: one read, up to the first that is not."""
    for begin in range(0, len(ids_N) - 1, _SLICE):
        ids = ids_N[begin : begin + _SLICE + 1]
        if not bool(np.greater(ids[1:], ids[:-1]).all()):
            return False
    return True


def hash_ids(ids_n: NDArray[np.generic]) -> NDArray[np.uint64]:
    """64 bits of each id: equal for equal ids (strings: whatever the array's width), different for different numbers."""
    ids_n = np.ascontiguousarray(ids_n)
    hashes_n = np.empty(len(ids_n), np.uint64)
    if ids_n.dtype.kind == "i":
        _hash_numbers(ids_n.view(np.uint64), hashes_n)
        return hashes_n
    _hash_bytes(ids_n.view(np.uint8).reshape(len(ids_n), ids_n.dtype.itemsize), hashes_n)
    return hashes_n


def _of_part(hashes_n: NDArray[np.uint64], part: int, parts: int) -> NDArray[np.uint64]:
    return hashes_n if parts == 1 else hashes_n[hashes_n % np.uint64(parts) == part]


@njit(cache=True, nogil=True)
def _hash_numbers(ids_n, hashes_n):
    for row in range(ids_n.size):
        state = ids_n[row] * np.uint64(0x9E3779B97F4A7C15)
        hashes_n[row] = state ^ (state >> np.uint64(32))


@njit(cache=True, nogil=True)
def _hash_bytes(bytes_nw, hashes_n):
    for row in range(bytes_nw.shape[0]):
        state = np.uint64(0xCBF29CE484222325)
        length = bytes_nw.shape[1]
        while length > 0 and bytes_nw[row, length - 1] == 0:
            length -= 1
        for at in range(length):
            state = (state ^ np.uint64(bytes_nw[row, at])) * np.uint64(0x9E3779B97F4A7C15)
            state ^= state >> np.uint64(29)
        hashes_n[row] = state
