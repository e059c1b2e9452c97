"""Functions that move sets of items between numberings: rows of the table, ordinals of a trie, ordinals of the trie
that replaces it.

Shapes: R row numbers of the table, N items of a trie, O items of an older one, n items of one call, C columns of an id.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Filter, Trie, Version
from leafbeam.jit import njit


def scatter(matches_R: NDArray[np.uint8], ordinal_R: NDArray[np.uint32], trie: Trie) -> Filter:
    """Return the items whose row matches. `ordinal_R` has the ordinal of each row's item, N if the trie does not have
    it. Cost: 2 ns a row.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    _scatter(matches_R, ordinal_R, words_W)
    words_W[-1] &= np.uint64((1 << (trie.num_items & 63)) - 1)
    return trie.filter_of(Bitmap.from_words(words_W, trie.num_items))


def with_bits(old: Filter, ordinals_n: NDArray[np.integer], bits_n: NDArray[np.bool_], trie: Trie) -> Filter:
    """Return the filter with some bits set or cleared; the same object if nothing changes. Cost: one copy of the bitmap."""
    ordinals = ordinals_n.astype(np.int64)
    if np.array_equal(old.ordinals.has(ordinals), bits_n):
        return old
    words_W, lineage = old.ordinals.words_W.copy(), old.ordinals.lineage.changed(np.unique(ordinals >> 6))
    masks_n = np.uint64(1) << (ordinals & 63).astype(np.uint64)
    np.bitwise_and.at(words_W, ordinals[~bits_n] >> 6, ~masks_n[~bits_n])
    np.bitwise_or.at(words_W, ordinals[bits_n] >> 6, masks_n[bits_n])
    return trie.filter_of(Bitmap.from_words(words_W, trie.num_items, lineage))


def old_rows_of(trie: Trie, version: Version) -> NDArray[np.int64]:
    """Return the row of each of a trie's items in an older version, -1 if it is not there; rows count across segments.

    The rows of a merged trie are in the order of the segments that it was merged from, so one pass over both finds nearly all;
    the rest is looked up by id. Cost: 4 ns an item for integer ids, 12 for text.
    """
    old_row_N = np.full(trie.num_items, -1, np.int64)
    ids_N = trie.items.ids_N
    done, first = 0, 0
    for segment in version.segments:
        old = segment.trie
        if 0 < old.num_items <= 2 * trie.num_items and done < trie.num_items and old.items.kind == trie.items.kind:
            begin, old_ids_O = done, old.items.ids_N
            dtype = max(ids_N.dtype, old_ids_O.dtype, key=lambda dtype: dtype.itemsize)
            done = _match(_as_matrix(ids_N, dtype), _as_matrix(old_ids_O, dtype), begin, first, old_row_N)
            if segment.live is not None and done > begin:
                ordinals = old.items.ordinal_N[old_row_N[begin:done] - first]
                deleted = begin + np.flatnonzero(~segment.live.ordinals.has(ordinals))
                _look_up(old_row_N, deleted, ids_N, version)
        first += old.num_items
    _look_up(old_row_N, np.arange(done, trie.num_items), ids_N, version)
    return old_row_N


def remap(filters: Sequence[Filter], version: Version, trie: Trie, old_row_N: NDArray[np.int64]) -> Filter:
    """Return a set of a version's items as a filter of a trie. The set is a filter for each segment, deleted items
    included. Cost: 4 ns an item.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    first = 0
    for segment, old in zip(version.segments, filters, strict=True):
        _gather(old_row_N, first, old.ordinals.words_W, segment.trie.items.ordinal_N, trie.items.ordinal_N, words_W)
        first += segment.trie.num_items
    return trie.filter_of(Bitmap.from_words(words_W, trie.num_items))


def _as_matrix(ids_N: NDArray, dtype: np.dtype) -> NDArray:
    """Return ids of a dtype as a matrix: one column of integers, or one for each byte of a text."""
    return np.ascontiguousarray(ids_N, dtype).view(np.uint8 if dtype.kind == "S" else dtype).reshape(len(ids_N), -1)


def _look_up(old_row_N: NDArray[np.int64], rows_n: NDArray[np.int64], ids_N: NDArray, version: Version) -> None:
    """Set old rows by id among the live items; an id that is not among them keeps its old row."""
    segment_n, row_n = version.locate(ids_N[rows_n])
    first = np.cumsum([0, *(segment.trie.num_items for segment in version.segments)])
    is_known = segment_n >= 0
    old_row_N[rows_n[is_known]] = first[segment_n[is_known]] + row_n[is_known]


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
def _match(ids_NC, old_ids_OC, begin, first, old_row_N):
    """Match rows from `begin` on with a segment's, both in order, and return the first row that the segment does not have."""
    size, width = ids_NC.shape
    old, old_size = 0, old_ids_OC.shape[0]
    for row in range(begin, size):
        at = 0
        while old < old_size and at < width:
            if ids_NC[row, at] == old_ids_OC[old, at]:
                at += 1
            else:
                old, at = old + 1, 0
        if old == old_size:
            return row
        old_row_N[row] = first + old
        old += 1
    return size
