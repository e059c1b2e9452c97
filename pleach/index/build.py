"""From a table of codes to the arrays of a trie: check, sort, one pass.

    sort the SIDs; a leaf is a place in the sorted, de-duplicated table
    for each leaf: the first level at which it differs from the leaf before; every deeper level starts a node there
    for each level: a column of codes and the bitmap of node starts, or a listing of its nodes where they are few

(DESIGN §1.1 to §1.3.) Shapes: N rows, M leaves, L levels, S nodes of a level.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pleach.errors import CodesError
from pleach.index.bitmap import Bitmap
from pleach.index.bits import leading_zeros, uint64_at
from pleach.index.level import Level, code_dtype
from pleach.index.sort import Table, WordLayout, addresses_of, in_threads, pack_codes, sort_rows

__all__ = ["MAX_CODEBOOK", "MAX_ITEMS", "MAX_LEVELS", "SortedTable", "build_levels", "check_codes", "check_sizes", "layout_of"]

MAX_LEVELS = 65  # 64 tokens and the end of a sequence
MAX_CODEBOOK = 2**31
MAX_ITEMS = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class SortedTable:
    """What the sort leaves behind: the levels, and which of the caller's rows stand on which leaf.

    order_N: uint32, the caller's row at each place of the sorted table.
    first_M1: uint32, the place of each leaf's first item and, last, N; None where every SID occurs once.
    """

    levels: tuple[Level, ...]
    num_leaves: int
    order_N: NDArray[np.uint32]
    first_M1: NDArray[np.uint32] | None


def check_sizes(codebook_sizes: Sequence[int]) -> tuple[int, ...]:
    """The codebook sizes as ints, or a CodesError that says what is wrong."""
    sizes = tuple(int(size) for size in codebook_sizes)
    if not 1 <= len(sizes) <= MAX_LEVELS:
        raise CodesError(f"codebook_sizes has {len(sizes)} levels: expected 1 to {MAX_LEVELS}, one size for each level")
    for level, size in enumerate(sizes):
        if not 1 <= size <= MAX_CODEBOOK:
            raise CodesError(f"the codebook of level {level} has {size:,} codes: expected 1 to 2^31")
    return sizes


def layout_of(num_nodes: int, num_leaves: int) -> str:
    """The layout that a level gets (see `Level`): a column without a boundary, a listing of few nodes, or a column."""
    return "leaves" if num_nodes == num_leaves else "listing" if num_nodes * 4 <= num_leaves else "column"


def check_codes(codes: NDArray[np.integer], codebook_sizes: Sequence[int]) -> tuple[NDArray[np.integer], tuple[int, ...]]:
    """The table as a 2-D integer array and the codebook sizes as ints, or a CodesError that says what is wrong."""
    table = np.asarray(codes)
    sizes = check_sizes(codebook_sizes)
    if table.size == 0 and table.ndim <= 2:
        table = np.empty((0, len(sizes)), np.int64)
    if table.ndim != 2 or table.shape[1] != len(sizes):
        raise CodesError(
            f"codes has shape {table.shape}: expected (N, {len(sizes)}), one row for each item and one column for each of the "
            f"{len(sizes)} codebook_sizes"
        )
    if not np.issubdtype(table.dtype, np.integer):
        raise CodesError(f"codes has dtype {table.dtype}: expected integers (convert with codes.astype(np.int64))")
    if len(table) > MAX_ITEMS:
        raise CodesError(f"codes has {len(table):,} rows: one index holds at most {MAX_ITEMS:,} items")
    return table, sizes


def build_levels(codes_NL: Table, sizes: tuple[int, ...], num_threads: int | None = None) -> SortedTable:
    """Sort a checked table and lay out its levels. Cost: O(N), about 33 bytes a row beside the result."""
    threads = max(1, min(num_threads or os.cpu_count() or 1, 1 + len(codes_NL) // 100_000))
    layout = WordLayout.of(sizes)
    words_PN = pack_codes(codes_NL, sizes, layout, threads)
    order_N = sort_rows(words_PN, layout, threads)
    for word in range(1, layout.num_words):
        words_PN[word] = _gather(words_PN[word], order_N, threads)
    differs_N = np.empty(len(order_N), np.uint8)
    nodes_by_level = _first_differences(words_PN, layout, differs_N, threads)
    num_leaves = len(order_N)
    first_M1 = None
    if nodes_by_level[len(sizes)] > 0:
        num_leaves = int(nodes_by_level[:-1].sum())
        first_M1 = np.empty(num_leaves + 1, np.uint32)
        _first_places(differs_N, len(sizes), first_M1)
        differs_N = _gather(differs_N, first_M1[:-1], threads)
        words_PN = [_gather(word_N, first_M1[:-1], threads) for word_N in words_PN]
    levels: list[Level] = []
    num_nodes = 0
    for level, size in enumerate(sizes):
        num_nodes += int(nodes_by_level[level])
        word_M = words_PN[layout.word_L[level]]
        levels.append(
            _lay_out(word_M, int(layout.shift_L[level]), layout.mask_L[level], differs_N, level, size, num_nodes, threads)
        )
    return SortedTable(levels=tuple(levels), num_leaves=num_leaves, order_N=order_N, first_M1=first_M1)


def _gather(word_N, order_N, threads: int):
    """word_N[order_N], by all threads."""
    sorted_N = np.empty(len(order_N), word_N.dtype)

    def gather(begin: int, end: int) -> int:
        _gather_part(word_N, order_N, begin, end, sorted_N)
        return 0

    in_threads(gather, len(order_N), threads)
    return sorted_N


@njit(cache=True, nogil=True)
def _first_places(differs_N, num_levels, first_M1):
    """The places that start a leaf and, last, N."""
    leaf = 0
    for place in range(differs_N.size):
        if differs_N[place] < num_levels:
            first_M1[leaf] = place
            leaf += 1
    first_M1[leaf] = differs_N.size


@njit(cache=True, nogil=True)
def _gather_part(word_N, order_N, begin, end, sorted_N):
    for row in range(begin, end):
        sorted_N[row] = word_N[order_N[row]]


def _first_differences(words_PN, layout: WordLayout, differs_N, threads: int) -> NDArray[np.int64]:
    """Fill differs_N[i] with the first level at which row i differs from the row before: 0 for the first, L for an equal one.

    Returns how many rows have each value: the nodes that a level adds, and, last, the rows that repeat a SID.
    """
    num_levels = len(layout.word_L)
    level_of_bit = np.full((layout.num_words, 64), num_levels, np.uint8)
    for level in range(num_levels):
        top = 64 - int(layout.shift_L[level])
        level_of_bit[layout.word_L[level], top - int(layout.mask_L[level]).bit_length() : top] = level
    addresses_P = addresses_of(words_PN)
    counts: list[NDArray[np.int64]] = []

    def compare(begin: int, end: int) -> int:
        count_L1 = np.zeros(num_levels + 1, np.int64)
        counts.append(count_L1)
        _compare(addresses_P, level_of_bit, begin, end, differs_N, count_L1)
        return 0

    in_threads(compare, len(differs_N), threads)
    return np.sum(counts, axis=0)


@njit(cache=True, nogil=True)
def _compare(addresses_P, level_of_bit, begin, end, differs_N, count_L1):
    num_levels = count_L1.size - 1
    size = differs_N.size
    for row in range(begin, end):
        level = np.int64(0 if row == 0 else num_levels)
        if row > 0:
            for word in range(addresses_P.size):
                words_N = uint64_at(addresses_P[word], size)
                difference = words_N[row] ^ words_N[row - 1]
                if difference != np.uint64(0):
                    level = np.int64(level_of_bit[word, leading_zeros(difference)])
                    break
        differs_N[row] = level
        count_L1[level] += 1


def _lay_out(word_M, shift: int, mask, differs_M, level: int, size: int, num_nodes: int, threads: int) -> Level:
    """One level's column (and boundary), or its listing where it has at most a quarter as many nodes as leaves."""
    num_leaves = len(word_M)
    dtype = code_dtype(size)
    layout = layout_of(num_nodes, num_leaves)
    boundary = None
    if layout != "leaves":
        words_W = np.empty(num_leaves // 64 + 1, np.uint64)

        def mark(begin: int, end: int) -> int:
            _mark_starts(differs_M, level, begin, end, words_W)
            return 0

        in_threads(mark, len(words_W), threads)
        boundary = Bitmap.from_words(words_W, num_leaves)
    if layout == "listing":
        codes_S, firsts_S = np.empty(num_nodes, dtype), np.empty(num_nodes, np.uint32)
        _list_nodes(word_M, np.uint64(shift), mask, differs_M, level, codes_S, firsts_S)
        return Level(size=size, num_nodes=num_nodes, codes=codes_S, firsts=firsts_S, boundary=boundary)
    codes_M = np.empty(num_leaves, dtype)

    def extract(begin: int, end: int) -> int:
        _extract(word_M, np.uint64(shift), mask, begin, end, codes_M)
        return 0

    in_threads(extract, num_leaves, threads)
    return Level(size=size, num_nodes=num_nodes, codes=codes_M, firsts=None, boundary=boundary)


@njit(cache=True, nogil=True)
def _mark_starts(differs_M, level, begin, end, words_W):
    size = differs_M.size
    for word in range(begin, end):
        bits = np.uint64(0)
        start = word << 6
        for bit in range(min(64, size - start)):
            bits |= np.uint64(differs_M[start + bit] <= level) << np.uint64(bit)
        words_W[word] = bits


@njit(cache=True, nogil=True)
def _list_nodes(word_M, shift, mask, differs_M, level, codes_S, firsts_S):
    node = 0
    for leaf in range(word_M.size):
        if differs_M[leaf] <= level:
            codes_S[node] = (word_M[leaf] >> shift) & mask
            firsts_S[node] = leaf
            node += 1


@njit(cache=True, nogil=True)
def _extract(word_M, shift, mask, begin, end, codes_M):
    for leaf in range(begin, end):
        codes_M[leaf] = (word_M[leaf] >> shift) & mask
