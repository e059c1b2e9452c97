"""Hashes of item ids, and the check that ids are unique in bounded memory.

Each id's hash assigns it to a part; equal ids are in one part, where a sort brings them together.
Shapes: N ids, w bytes of a string.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError
from leafbeam.jit import njit

__all__ = ["check_unique", "hash_ids", "is_ascending", "raise_duplicates"]

_SLICE = 1 << 20


def check_unique(ids_N: NDArray[np.generic], memory_limit: int) -> None:
    """Raise ItemIdError where an id occurs twice. ids_N: int64, or UTF-8 bytes of fixed width.

    Cost: one read where they ascend; else a read for each `memory_limit` of 16 bytes an id, and their sorts.
    """
    if is_ascending(ids_N):
        return
    num_parts = -(-len(ids_N) * 16 // max(1, memory_limit))
    slices = [ids_N[begin : begin + _SLICE] for begin in range(0, len(ids_N), _SLICE)]
    repeated: list[NDArray[np.uint64]] = []
    for part in range(num_parts):
        hashes = np.concatenate([_of_part(hash_ids(ids), part, num_parts) for ids in slices])
        hashes.sort()
        repeated.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
    repeated_H = np.sort(np.concatenate(repeated))
    if repeated_H.size == 0:
        return
    # Equal hashes are nearly always equal ids: compare the ids themselves.
    candidates: list[NDArray[np.generic]] = []
    for ids in slices:
        hashes = hash_ids(ids)
        at = np.minimum(np.searchsorted(repeated_H, hashes), repeated_H.size - 1)
        candidates.append(ids[repeated_H[at] == hashes])
    raise_duplicates(np.sort(np.concatenate(candidates)))


def raise_duplicates(sorted_ids: NDArray[np.generic]) -> None:
    """Raise ItemIdError where neighbours of an ascending array are equal."""
    same = np.flatnonzero(sorted_ids[1:] == sorted_ids[:-1])
    if same.size:
        item_id = sorted_ids[same[0]].item()
        name = item_id.decode() if isinstance(item_id, bytes) else item_id
        raise ItemIdError(
            f"{same.size:,} item ids occur more than once, {name!r} among them: each row needs its own id "
            f"(several items may share one Semantic ID, but not one item id)"
        )


def is_ascending(ids_N: NDArray[np.generic]) -> bool:
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
    else:
        _hash_bytes(ids_n.view(np.uint8).reshape(len(ids_n), ids_n.dtype.itemsize), hashes_n)
    return hashes_n


def _of_part(hashes_n: NDArray[np.uint64], part: int, num_parts: int) -> NDArray[np.uint64]:
    return hashes_n if num_parts == 1 else hashes_n[hashes_n % np.uint64(num_parts) == part]


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
