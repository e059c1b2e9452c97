"""Bits from one numbering of the items to another: rows of the table, places of a trie, places of its successor.

Shapes: R row numbers of the table, N items of a trie, n items of one call, W words of 64 places.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Filter, Trie, Version
from leafbeam.jit import njit

__all__ = ["carried", "patched", "picked", "sources_of"]


def picked(chosen_R: NDArray[np.uint8], place_R: NDArray[np.uint32], trie: Trie) -> Filter:
    """The items whose row is chosen. place_R: the place of each row's item; N where the trie has no such item.

    Cost: 2 ns a row.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    _scatter(chosen_R, place_R, words_W)
    words_W[-1] &= np.uint64((1 << (trie.num_items & 63)) - 1)
    return _filter(trie, words_W)


def patched(chosen: Filter, places_n: NDArray[np.integer], is_in_n: NDArray[np.bool_], trie: Trie) -> Filter:
    """The filter with some places set or cleared; the same one where that changes nothing. Cost: one copy of the bitmap."""
    places = places_n.astype(np.int64)
    if np.array_equal(chosen.ordinals.has(places), is_in_n):
        return chosen
    words_W = chosen.ordinals.words_W.copy()
    bits = np.uint64(1) << (places & 63).astype(np.uint64)
    np.bitwise_and.at(words_W, places[~is_in_n] >> 6, ~bits[~is_in_n])
    np.bitwise_or.at(words_W, places[is_in_n] >> 6, bits[is_in_n])
    return _filter(trie, words_W)


def sources_of(trie: Trie, version: Version) -> NDArray[np.int64]:
    """Where a version had the items of a trie, in the order of its rows.

    A row of segment s counts from the number of all rows of the segments before; -1: not there. A successor's rows stand in the
    order of the segments that it came from, so one walk over both finds nearly all; what it does not find is looked up.
    Cost: 2 ns an item for whole numbers, 10 for text.
    """
    source_N = np.full(trie.num_items, -1, np.int64)
    ids_N = _ids(trie)
    at, first = 0, 0
    for number, segment in enumerate(version.segments):
        old = segment.trie
        if old.num_items <= 2 * trie.num_items and at < trie.num_items:
            begin = at
            at = _walk(ids_N, _ids(old), at, first, source_N)
            if segment.live is not None and at > begin:
                _look_up(source_N, begin + _dead(source_N[begin:at] - first, segment.live), ids_N, version, number)
        first += old.num_items
    if at < trie.num_items:
        _look_up(source_N, np.arange(at, trie.num_items), ids_N, version, -1)
    return source_N


def carried(parts: Sequence[Filter], version: Version, trie: Trie, source_N: NDArray[np.int64]) -> Filter:
    """A set of items of a version (one part a segment, dead items included) as one of a trie.

    Cost: 4 ns an item of the trie.
    """
    words_W = np.zeros(trie.num_items // 64 + 1, np.uint64)
    first = 0
    for segment, part in zip(version.segments, parts, strict=True):
        _gather(source_N, first, part.ordinals.words_W, segment.trie.items.ordinal_N, trie.items.ordinal_N, words_W)
        first += segment.trie.num_items
    return _filter(trie, words_W)


def _filter(trie: Trie, words_W: NDArray[np.uint64]) -> Filter:
    return Filter(ordinals=Bitmap.from_words(words_W, trie.num_items), items=trie.items, index_version=trie.version)


def _ids(trie: Trie) -> NDArray[np.generic]:
    return np.arange(trie.num_items) if trie.items.ids is None else np.ascontiguousarray(trie.items.ids)


def _walk(ids_N: NDArray, old_N: NDArray, begin: int, first: int, source_N: NDArray[np.int64]) -> int:
    """Match rows from `begin` on with a segment's, both in order; returns the first row that it does not hold."""
    if (ids_N.dtype.kind == "S") != (old_N.dtype.kind == "S"):
        return begin
    if ids_N.dtype.kind == "S":
        return int(_walk_texts(_bytes_of(ids_N), _bytes_of(old_N), begin, first, source_N))
    return int(_walk_numbers(ids_N, old_N, begin, first, source_N))


def _bytes_of(ids_N: NDArray) -> NDArray[np.uint8]:
    return ids_N.view(np.uint8).reshape(len(ids_N), ids_N.dtype.itemsize)


def _dead(rows_n: NDArray[np.int64], live: Filter) -> NDArray[np.int64]:
    """Which of these rows of a segment (-1: none) are not alive there."""
    found = np.flatnonzero(rows_n >= 0)
    return found[~live.ordinals.has(live.items.ordinal_N[rows_n[found]])]


def _look_up(source_N: NDArray[np.int64], rows_n: NDArray[np.int64], ids_N: NDArray, version: Version, dead_in: int) -> None:
    """Find rows by id among the live items; one matched with a dead item of segment `dead_in` keeps it where there is none."""
    if not len(rows_n):
        return
    segment_n, row_n = version.locate(ids_N[rows_n])
    first = np.cumsum([0, *(segment.trie.num_items for segment in version.segments)])
    found = segment_n >= 0
    source_N[rows_n[found]] = first[segment_n[found]] + row_n[found]
    if dead_in < 0:
        source_N[rows_n[~found]] = -1


@njit(cache=True, nogil=True)
def _scatter(chosen_R, place_R, words_W):
    for row in range(place_R.size):
        place = np.int64(place_R[row])
        words_W[place >> 6] |= np.uint64(chosen_R[row]) << np.uint64(place & 63)


@njit(cache=True, nogil=True)
def _gather(source_N, first, words_W, place_O, ordinal_N, out_W):
    for row in range(source_N.size):
        old = source_N[row] - first
        if 0 <= old < place_O.size:
            place = np.int64(place_O[old])
            bit = (words_W[place >> 6] >> np.uint64(place & 63)) & np.uint64(1)
            place = np.int64(ordinal_N[row])
            out_W[place >> 6] |= bit << np.uint64(place & 63)


@njit(cache=True, nogil=True)
def _walk_numbers(ids_N, old_O, begin, first, source_N):
    old = 0
    for row in range(begin, ids_N.size):
        while old < old_O.size and old_O[old] != ids_N[row]:
            old += 1
        if old == old_O.size:
            return row
        source_N[row] = first + old
        old += 1
    return ids_N.size


@njit(cache=True, nogil=True)
def _walk_texts(ids_NC, old_OC, begin, first, source_N):
    old = 0
    for row in range(begin, ids_NC.shape[0]):
        while old < old_OC.shape[0] and not _equal(ids_NC[row], old_OC[old]):
            old += 1
        if old == old_OC.shape[0]:
            return row
        source_N[row] = first + old
        old += 1
    return ids_NC.shape[0]


@njit(cache=True, nogil=True)
def _equal(one, other):
    """The same text, the shorter one padded with zeros."""
    width = min(one.size, other.size)
    for at in range(width):
        if one[at] != other[at]:
            return False
    for at in range(width, one.size):
        if one[at] != 0:
            return False
    for at in range(width, other.size):  # noqa: SIM110 (compiled: no generators)
        if other[at] != 0:
            return False
    return True
