"""Functions on the values of a segment's items, which are bits in a Filter or numbers in an ItemColumn. The values move between
numberings (rows of the table, ordinals of a trie, ordinals of the trie that replaces it), and change for some items.

Shapes: R row numbers of the table, N items of a trie, O items of an older one, n items of one call, C columns of an id.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Filter, ItemColumn, Trie, Version
from leafbeam.index import bit_kernels as bits
from leafbeam.jit import njit

# The values of a trie's items: a set, or a number for each item.
SegmentValues = Filter | ItemColumn


def scatter(values_R: NDArray[np.generic], ordinal_R: NDArray[np.uint32], trie: Trie, empty: np.generic) -> SegmentValues:
    """Return the values of the items' rows, empty ones for items without a row.

    `ordinal_R` has the ordinal of each row's item, N if the trie does not have it. Cost: 5 ns a row, for bits only of those
    that are set.
    """
    if values_R.dtype == np.bool_:
        words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
        bits.scatter_bits(Bitmap.from_mask(values_R).words_W, ordinal_R, words_W)
        words_W[-1] &= np.uint64((1 << (trie.num_items & 63)) - 1)
        return trie.filter_of(Bitmap.from_words(words_W, trie.num_items))
    values_N = np.full(trie.num_items + 1, empty)
    values_N[ordinal_R] = values_R
    return ItemColumn(parts=(values_N[:-1],), index=trie)


def of_items(values_N: NDArray[np.generic], trie: Trie) -> SegmentValues:
    """Return the values of a trie's items, given by row."""
    if values_N.dtype == np.bool_:
        return trie.filter(values_N)
    return ItemColumn(parts=(values_N[trie.items.order_N],), index=trie)


def values_at(segment: SegmentValues, ordinals_n: NDArray[np.integer]) -> NDArray[np.generic]:
    """Return the values of items by their ordinals."""
    if isinstance(segment, Filter):
        return segment.ordinals.has(ordinals_n)
    return segment.parts[0][ordinals_n.astype(np.int64)]


def as_set(segment: SegmentValues, trie: Trie) -> Filter:
    """Return the items whose value is not 0."""
    return segment if isinstance(segment, Filter) else trie.filter_of(Bitmap.from_mask(segment.parts[0] != 0))


def empty_of(segment: SegmentValues) -> np.generic:
    """Return the value of an item without a row."""
    if isinstance(segment, Filter):
        return np.False_
    return segment.parts[0].dtype.type(-1 if segment.parts[0].dtype == np.int32 else 0)


def with_values(
    old: SegmentValues, ordinals_n: NDArray[np.integer], values_n: NDArray[np.generic], trie: Trie
) -> SegmentValues:
    """Return the values with those of some items replaced; the same object if nothing changes. Cost: one copy."""
    ordinals = ordinals_n.astype(np.int64)
    if np.array_equal(values_at(old, ordinals), values_n):
        return old
    if isinstance(old, ItemColumn):
        return old.with_values(ordinals, values_n, trie)
    words_W, lineage = old.ordinals.words_W.copy(), old.ordinals.lineage.changed(np.unique(ordinals >> 6))
    masks_n, bits_n = np.uint64(1) << (ordinals & 63).astype(np.uint64), values_n.astype(np.bool_)
    np.bitwise_and.at(words_W, ordinals[~bits_n] >> 6, ~masks_n[~bits_n])
    np.bitwise_or.at(words_W, ordinals[bits_n] >> 6, masks_n[bits_n])
    return trie.filter_of(Bitmap.from_words(words_W, trie.num_items, lineage))


def make_bounds(values: SegmentValues, before: SegmentValues, trie: Trie) -> None:
    """Make the bounds of a boost's new values if those of its last ones were used, so that no request waits for them."""
    both_are_columns = isinstance(values, ItemColumn) and isinstance(before, ItemColumn)
    if both_are_columns and before.has_bounds and not are_equal(values, before):
        values.bounds([trie])


def are_equal(left: SegmentValues, right: SegmentValues) -> bool:
    """Return whether two segments have the same values."""
    if isinstance(left, Filter) or isinstance(right, Filter):
        return left == right
    return np.array_equal(left.parts[0], right.parts[0])


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


def remap(parts: Sequence[SegmentValues], version: Version, trie: Trie, old_row_N: NDArray[np.int64]) -> SegmentValues:
    """Return the values of a version's items, given for each segment with deleted items included, for the items of a trie.

    Cost: 4 ns an item.
    """
    first, is_set = 0, isinstance(parts[0], Filter)
    words_W, values_N = (
        np.zeros(trie.num_items // 64 + 1, np.uint64),
        np.full(0 if is_set else trie.num_items, empty_of(parts[0])),
    )
    for segment, old in zip(version.segments, parts, strict=True):
        ordinal_O, ordinal_N = segment.trie.items.ordinal_N, trie.items.ordinal_N
        if is_set:
            _gather(old_row_N, first, old.ordinals.words_W, ordinal_O, ordinal_N, words_W)
        else:
            _gather_values(old_row_N, first, old.parts[0], ordinal_O, ordinal_N, values_N)
        first += segment.trie.num_items
    if is_set:
        return trie.filter_of(Bitmap.from_words(words_W, trie.num_items))
    return ItemColumn(parts=(values_N,), index=trie)


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
def _gather(old_row_N, first, words_W, ordinal_O, ordinal_N, out_W):
    for row in range(old_row_N.size):
        old = old_row_N[row] - first
        if 0 <= old < ordinal_O.size:
            ordinal = np.int64(ordinal_O[old])
            bit = (words_W[ordinal >> 6] >> np.uint64(ordinal & 63)) & np.uint64(1)
            ordinal = np.int64(ordinal_N[row])
            out_W[ordinal >> 6] |= bit << np.uint64(ordinal & 63)


@njit(cache=True, nogil=True)
def _gather_values(old_row_N, first, values_O, ordinal_O, ordinal_N, out_N):
    for row in range(old_row_N.size):
        old = old_row_N[row] - first
        if 0 <= old < ordinal_O.size:
            out_N[ordinal_N[row]] = values_O[ordinal_O[old]]


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
