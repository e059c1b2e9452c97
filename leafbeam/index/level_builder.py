"""From sorted rows to the levels of a trie, in one pass over any number of pieces.

    for each row: the length of the longest common prefix (LCP) with the row before; every level from there on starts a node
    for each leaf, that is for each row that differs from the row before: its code at every level, appended to a column
    at the end, for each level: its column, with the bitmap of node starts, or a listing of its nodes where they are few

A piece is read in blocks that stay in the cache. Shapes: N rows, M leaves, L levels, P words a row, n rows of a piece, B of a
block, S nodes of a level.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import leading_zeros, uint64_at
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.level import Level, code_dtype
from leafbeam.index.radix_sort import CodeTable, WordLayout, addresses_of, in_threads, pack_sort_keys, sort_rows, threads_for
from leafbeam.jit import njit

Allocate = Callable[[int, Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SortedTable:
    """The levels of a sorted table, and the caller's rows on each leaf; `order_N`, `leaf_indptr`: see `ItemTable`."""

    levels: tuple[Level, ...]
    num_leaves: int
    order_N: NDArray[np.uint32]
    leaf_indptr: NDArray[np.uint32] | None


def layout_of(num_nodes: int, num_leaves: int) -> str:
    """Return the layout of a level (see `Level`): "leaves", a "listing" of few nodes, or a "column"."""
    return "leaves" if num_nodes == num_leaves else "listing" if num_nodes * 4 <= num_leaves else "column"


class LevelBuilder:
    """Builds the levels of a trie from ascending rows: `append` each piece, then `finish`.

    Args:
        allocate: The function that allocates the columns.
    """

    def __init__(self, layout: WordLayout, sizes: Sequence[int], num_rows: int, threads: int, allocate: Allocate = np.empty):
        self.layout = layout
        self.sizes = tuple(sizes)
        self.threads = threads
        self.columns = [allocate(num_rows, code_dtype(size)) for size in sizes]
        self.lcp_N = allocate(num_rows, np.uint8)
        self.num_rows = 0
        self.num_leaves = 0
        self._allocate = allocate
        self._last_P = np.zeros(layout.num_words, np.uint64)
        self._count_L1 = np.zeros(len(sizes) + 1, np.int64)  # rows by their LCP
        self._level_of_bit = np.full((layout.num_words, 64), len(sizes), np.uint8)
        for level in range(len(sizes)):
            top = 64 - int(layout.shift_L[level])
            self._level_of_bit[layout.word_L[level], top - int(layout.mask_L[level]).bit_length() : top] = level

    def append(self, words_Pn: Sequence[NDArray[np.uint64]], order_n: NDArray[np.uint32]) -> None:
        """Return the next rows: word 0 of each in ascending order, the other words at `order_n`."""
        size = len(order_n)
        if size == 0:
            return
        addresses_P = addresses_of(words_Pn)
        counts: dict[int, NDArray[np.int64]] = {}

        def extract(begin: int, end: int) -> None:
            counts[begin] = self._extract(addresses_P, order_n, begin, end)

        in_threads(extract, size, 1 if size < 50_000 else self.threads)
        # Each thread wrote its leaves as if no row before its first were equal to another: close the gaps.
        base, leaves = self.num_leaves, 0
        for begin, count_L1 in sorted(counts.items()):
            self._count_L1 += count_L1
            kept = int(count_L1[:-1].sum())
            if leaves < begin:
                for column in self.columns:
                    column[base + leaves : base + leaves + kept] = column[base + begin : base + begin + kept]
            leaves += kept
        last = int(order_n[-1])
        self._last_P[:] = [words_Pn[0][-1], *(word_n[last] for word_n in words_Pn[1:])]
        self.num_rows += size
        self.num_leaves += leaves

    def _extract(self, addresses_P: NDArray[np.int64], order_n: NDArray[np.uint32], begin: int, end: int) -> NDArray[np.int64]:
        """Write the codes of the rows [begin, end) of a piece, block by block; returns count_L1, the rows of each LCP."""
        layout, num_words = self.layout, self.layout.num_words
        buffer_PB = np.empty((num_words, max(1024, (1 << 15) // num_words)), np.uint64)
        count_L1 = np.zeros_like(self._count_L1)
        before_P = self._last_P.copy()
        if begin > 0:
            _gather_words(addresses_P, order_n, begin - 1, begin, buffer_PB)
            before_P[:] = buffer_PB[:, 0]
        start, leaf = self.num_rows, self.num_leaves + begin
        is_first = start + begin == 0
        for first in range(begin, end, buffer_PB.shape[1]):
            stop = min(end, first + buffer_PB.shape[1])
            _gather_words(addresses_P, order_n, first, stop, buffer_PB)
            lcp_B = self.lcp_N[start + first : start + stop]
            kept = _compare(buffer_PB, before_P, is_first, self._level_of_bit, lcp_B, count_L1)
            is_first = False
            for level, column in enumerate(self.columns):
                word_B = buffer_PB[layout.word_L[level], :kept]
                _unpack(word_B, np.uint64(layout.shift_L[level]), layout.mask_L[level], column[leaf : leaf + kept])
            leaf += kept
        return count_L1

    def finish(self, order_N: NDArray[np.uint32]) -> SortedTable:
        """Return the levels of all rows that were appended. order_N: the caller's row at each position."""
        assert self.num_rows == len(self.lcp_N) == len(order_N)
        num_levels, num_leaves = len(self.sizes), self.num_leaves
        leaf_indptr, lcp_M = None, self.lcp_N
        if num_leaves < self.num_rows:
            leaf_indptr = self._allocate(num_leaves + 1, np.uint32)
            lcp_M = self._allocate(num_leaves, np.uint8)
            _leaf_starts(self.lcp_N, num_levels, leaf_indptr, lcp_M)
        nodes_L = np.cumsum(self._count_L1[:-1]).tolist()
        levels = tuple(self._lay_out(level, nodes_L[level], lcp_M) for level in range(num_levels))
        return SortedTable(levels=levels, num_leaves=num_leaves, order_N=order_N, leaf_indptr=leaf_indptr)

    def _lay_out(self, level: int, num_nodes: int, lcp_M: NDArray[np.uint8]) -> Level:
        size, num_leaves = self.sizes[level], self.num_leaves
        column, self.columns[level] = self.columns[level], np.empty(0, code_dtype(size))
        layout = layout_of(num_nodes, num_leaves)
        boundary = None
        if layout != "leaves":
            words_W = self._allocate(num_leaves // 64 + 1, np.uint64)
            in_threads(lambda begin, end: _mark_starts(lcp_M, level, begin, end, words_W), len(words_W), self.threads)
            boundary = Bitmap.from_words(words_W, num_leaves)
        if layout == "listing" and boundary is not None:
            codes_S, firsts_S = self._allocate(num_nodes, column.dtype), self._allocate(num_nodes, np.uint32)
            firsts_S[:] = boundary.positions()
            codes_S[:] = column[firsts_S]
            return Level(size=size, num_nodes=num_nodes, codes=codes_S, firsts=firsts_S, boundary=boundary)
        codes_M = column[:num_leaves]
        if num_leaves * 8 < len(column) * 7:  # a view would keep the whole column in memory
            codes_M = self._allocate(num_leaves, column.dtype)
            codes_M[:] = column[:num_leaves]
        return Level(size=size, num_nodes=num_nodes, codes=codes_M, firsts=None, boundary=boundary)


def build_levels(codes_NL: CodeTable, sizes: tuple[int, ...], num_threads: int | None = None) -> SortedTable:
    """Sort a checked table and lay out its levels. Cost: O(N), about 37 bytes a row at 8 x 2,048, the result included."""
    threads = threads_for(len(codes_NL), num_threads)
    layout = WordLayout.of(sizes)
    return build_from_words(pack_sort_keys(codes_NL, sizes, layout, threads), layout, sizes, threads)


def build_from_words(words_PN: list[NDArray[np.uint64]], layout: WordLayout, sizes: Sequence[int], threads: int) -> SortedTable:
    """Return the same for packed rows; word 0 is sorted in place."""
    order_N = sort_rows(words_PN, threads)
    builder = LevelBuilder(layout, sizes, len(order_N), threads)
    builder.append(words_PN, order_N)
    words_PN.clear()
    return builder.finish(order_N)


@njit(cache=True, nogil=True)
def _gather_words(addresses_P, order_n, begin, end, buffer_PB):
    """Return the words of the rows [begin, end): word 0 is in order, the others at order_n."""
    word_n = uint64_at(addresses_P[0], order_n.size)
    for row in range(begin, end):
        buffer_PB[0, row - begin] = word_n[row]
    for word in range(1, addresses_P.size):
        word_n = uint64_at(addresses_P[word], order_n.size)
        for row in range(begin, end):
            buffer_PB[word, row - begin] = word_n[order_n[row]]


@njit(cache=True, nogil=True)
def _compare(buffer_PB, before_P, is_first, level_of_bit, lcp_B, count_L1):
    """Fill lcp_B with each row's LCP with the row before, in levels (0 for the very first row; L: equal); count every value.

    Moves the rows that differ to the front of the buffer, leaves the last row in `before_P`, returns how many differ.
    """
    num_words = before_P.size
    num_levels = count_L1.size - 1
    for row in range(lcp_B.size):
        level = np.int64(num_levels)
        difference = buffer_PB[0, row] ^ (buffer_PB[0, row - 1] if row > 0 else before_P[0])
        if difference != np.uint64(0):
            level = np.int64(level_of_bit[0, leading_zeros(difference)])
        else:
            for word in range(1, num_words):
                difference = buffer_PB[word, row] ^ (buffer_PB[word, row - 1] if row > 0 else before_P[word])
                if difference != np.uint64(0):
                    level = np.int64(level_of_bit[word, leading_zeros(difference)])
                    break
        lcp_B[row] = level
        count_L1[level] += 1
    if is_first:
        count_L1[lcp_B[0]] -= 1
        lcp_B[0] = 0
        count_L1[0] += 1
    for word in range(num_words):
        before_P[word] = buffer_PB[word, lcp_B.size - 1]
    kept = 0
    for row in range(lcp_B.size):
        kept += lcp_B[row] < num_levels
    if kept < lcp_B.size:
        for word in range(num_words):
            leaf = 0
            for row in range(lcp_B.size):
                buffer_PB[word, leaf] = buffer_PB[word, row]
                leaf += lcp_B[row] < num_levels
    return kept


@njit(cache=True, nogil=True)
def _unpack(word_B, shift, mask, codes_B):
    for leaf in range(word_B.size):
        codes_B[leaf] = (word_B[leaf] >> shift) & mask


@njit(cache=True, nogil=True)
def _leaf_starts(lcp_N, num_levels, leaf_indptr, lcp_M):
    """Return the rows that start a leaf and, last, N; and the LCP of each leaf and the leaf before."""
    leaf = 0
    for row in range(lcp_N.size):
        if lcp_N[row] < num_levels:
            leaf_indptr[leaf] = row
            lcp_M[leaf] = lcp_N[row]
            leaf += 1
    leaf_indptr[leaf] = lcp_N.size


@njit(cache=True, nogil=True)
def _mark_starts(lcp_M, level, begin, end, words_W):
    """Write the words [begin, end) of the bitmap of leaves with lcp_M <= level (below 128), eight leaves at a time.

    With its highest bit set, a byte less `level + 1` keeps that bit iff its value is more than `level`; the product moves the
    highest bit of byte i to bit 56 + i.
    """
    size = lcp_M.size
    eights = lcp_M[: size // 8 * 8].view(np.uint64)
    high, less = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101) * np.uint64(level + 1)
    for word in range(begin, end):
        bits = np.uint64(0)
        start = word << 6
        if start + 64 <= size:
            for eight in range(8):
                starts = ~((eights[word * 8 + eight] | high) - less) & high
                bits |= (((starts >> np.uint64(7)) * np.uint64(0x0102040810204080)) >> np.uint64(56)) << np.uint64(8 * eight)
        else:
            for bit in range(size - start):
                bits |= np.uint64(lcp_M[start + bit] <= level) << np.uint64(bit)
        words_W[word] = bits
