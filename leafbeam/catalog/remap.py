"""Sets of items moved between numberings: rows of the table, ordinals of a trie, ordinals of the trie that replaces it.

Shapes: R row numbers of the table, N items of a trie, O items of an older one, n items of one call, W words of 64 positions.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Filter, Trie, Version

__all__ = ["old_rows_of", "remap", "scatter", "with_bits"]


def scatter(matches_R: NDArray[np.uint8], ordinal_R: NDArray[np.uint32], trie: Trie) -> Filter:
    """The items whose row matches. ordinal_R: the leaf-order position of each row's item; N if the trie has no such item.

    Cost: 2 ns a row.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    _scatter(matches_R, ordinal_R, words_W)
    words_W[-1] &= np.uint64((1 << (trie.num_items & 63)) - 1)
    return _filter(trie, words_W)


def with_bits(old: Filter, ordinals_n: NDArray[np.integer], bits_n: NDArray[np.bool_], trie: Trie) -> Filter:
    """The filter with some bits set or cleared; the same object if nothing changes. Cost: one copy of the bitmap."""
    ordinals = ordinals_n.astype(np.int64)
    if np.array_equal(old.ordinals.has(ordinals), bits_n):
        return old
    words_W = old.ordinals.words_W.copy()
    masks_n = np.uint64(1) << (ordinals & 63).astype(np.uint64)
    np.bitwise_and.at(words_W, ordinals[~bits_n] >> 6, ~masks_n[~bits_n])
    np.bitwise_or.at(words_W, ordinals[bits_n] >> 6, masks_n[bits_n])
    return _filter(trie, words_W)


def old_rows_of(trie: Trie, version: Version) -> NDArray[np.int64]:
    """The row of each of a trie's items in an older version, -1 if it is not there; rows count across segments.

    The rows of a merged trie are in the order of the segments that it was merged from, so one pass over both finds nearly all;
    the rest is looked up by id. Cost: 2 ns an item for integer ids, 10 for text.
    """
    old_row_N = np.full(trie.num_items, -1, np.int64)
    ids_N = _ids(trie)
    done, first = 0, 0
    for segment in version.segments:
        old = segment.trie
        if old.num_items <= 2 * trie.num_items and done < trie.num_items:
            begin = done
            done = _match(ids_N, _ids(old), begin, first, old_row_N)
            if segment.live is not None and done > begin:
                ordinals = old.items.ordinal_N[old_row_N[begin:done] - first]
                deleted = begin + np.flatnonzero(~segment.live.ordinals.has(ordinals))
                _look_up(old_row_N, deleted, ids_N, version, keep_unknown=True)
        first += old.num_items
    _look_up(old_row_N, np.arange(done, trie.num_items), ids_N, version, keep_unknown=False)
    return old_row_N


def remap(filters: Sequence[Filter], version: Version, trie: Trie, old_row_N: NDArray[np.int64]) -> Filter:
    """A set of items of a version (a filter for each segment, deleted items included) as one of a trie.

    Cost: 4 ns an item of the trie.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    first = 0
    for segment, old in zip(version.segments, filters, strict=True):
        _gather(old_row_N, first, old.ordinals.words_W, segment.trie.items.ordinal_N, trie.items.ordinal_N, words_W)
        first += segment.trie.num_items
    return _filter(trie, words_W)


def _filter(trie: Trie, words_W: NDArray[np.uint64]) -> Filter:
    return Filter(ordinals=Bitmap.from_words(words_W, trie.num_items), items=trie.items, index_version=trie.version)


def _ids(trie: Trie) -> NDArray[np.generic]:
    return np.arange(trie.num_items) if trie.items.ids is None else np.ascontiguousarray(trie.items.ids)


def _match(ids_N: NDArray, old_ids_O: NDArray, begin: int, first: int, old_row_N: NDArray[np.int64]) -> int:
    """Match rows from `begin` on with a segment's, both in order; returns the first row that the segment does not have."""
    if (ids_N.dtype.kind == "S") != (old_ids_O.dtype.kind == "S"):
        return begin
    if ids_N.dtype.kind == "S":
        return int(_match_texts(_bytes_of(ids_N), _bytes_of(old_ids_O), begin, first, old_row_N))
    return int(_match_integers(ids_N, old_ids_O, begin, first, old_row_N))


def _bytes_of(ids_N: NDArray) -> NDArray[np.uint8]:
    return ids_N.view(np.uint8).reshape(len(ids_N), ids_N.dtype.itemsize)


def _look_up(
    old_row_N: NDArray[np.int64], rows_n: NDArray[np.int64], ids_N: NDArray, version: Version, *, keep_unknown: bool
) -> None:
    """Set old rows by id among the live items; an id that is not among them keeps its old row, or gets -1."""
    if not len(rows_n):
        return
    segment_n, row_n = version.locate(ids_N[rows_n])
    first = np.cumsum([0, *(segment.trie.num_items for segment in version.segments)])
    found = segment_n >= 0
    old_row_N[rows_n[found]] = first[segment_n[found]] + row_n[found]
    if not keep_unknown:
        old_row_N[rows_n[~found]] = -1


@njit(cache=True, nogil=True)
def _scatter(matches_R, ordinal_R, words_W):
    for row in range(ordinal_R.size):
        ordinal = np.int64(ordinal_R[row])
        words_W[ordinal >> 6] |= np.uint64(matches_R[row]) << np.uint64(ordinal & 63)


@njit(cache=True, nogil=True)
def _gather(old_row_N, first, words_W, ordinal_O, ordinal_N, out_W):
    for row in range(old_row_N.size):
        old = old_row_N[row] - first
        if 0 <= old < ordinal_O.size:
            ordinal = np.int64(ordinal_O[old])
            bit = (words_W[ordinal >> 6] >> np.uint64(ordinal & 63)) & np.uint64(1)
            ordinal = np.int64(ordinal_N[row])
            out_W[ordinal >> 6] |= bit << np.uint64(ordinal & 63)


@njit(cache=True, nogil=True)
def _match_integers(ids_N, old_ids_O, begin, first, old_row_N):
    old = 0
    for row in range(begin, ids_N.size):
        while old < old_ids_O.size and old_ids_O[old] != ids_N[row]:
            old += 1
        if old == old_ids_O.size:
            return row
        old_row_N[row] = first + old
        old += 1
    return ids_N.size


@njit(cache=True, nogil=True)
def _match_texts(ids_NC, old_ids_OC, begin, first, old_row_N):
    old = 0
    for row in range(begin, ids_NC.shape[0]):
        while old < old_ids_OC.shape[0] and not _equal(ids_NC[row], old_ids_OC[old]):
            old += 1
        if old == old_ids_OC.shape[0]:
            return row
        old_row_N[row] = first + old
        old += 1
    return ids_NC.shape[0]


@njit(cache=True, nogil=True)
def _equal(left, right):
    """Whether two texts are equal, the shorter one padded with zeros."""
    if left.size > right.size:
        left, right = right, left
    for at in range(left.size):
        if left[at] != right[at]:
            return False
    for at in range(left.size, right.size):  # noqa: SIM110 (compiled: no generators)
        if right[at] != 0:
            return False
    return True
