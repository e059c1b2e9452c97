"""From a table of codes to the arrays of a trie: check the codes, sort the SIDs, lay out the levels.

Shapes: N rows, L levels, P words a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import CodesError
from leafbeam.index.level_builder import LevelBuilder, SortedTable
from leafbeam.index.radix_sort import CodeTable, WordLayout, pack_sort_keys, sort_rows, threads_for

__all__ = [
    "MAX_CODEBOOK",
    "MAX_ITEMS",
    "MAX_LEVELS",
    "build_from_words",
    "build_levels",
    "check_codes",
    "check_sizes",
]

MAX_LEVELS = 65  # 64 tokens and the end of a sequence
MAX_CODEBOOK = 2**31
MAX_ITEMS = 2**32 - 1


def check_sizes(codebook_sizes: Sequence[int]) -> tuple[int, ...]:
    """The codebook sizes as ints; CodesError where they are not 1 to 65 sizes of 1 to 2^31 codes."""
    try:
        sizes = tuple(index(size) for size in codebook_sizes)
    except TypeError:
        raise CodesError(f"codebook_sizes={codebook_sizes!r}: expected whole numbers, one for each level") from None
    if not 1 <= len(sizes) <= MAX_LEVELS:
        raise CodesError(f"codebook_sizes has {len(sizes)} levels: expected 1 to {MAX_LEVELS}, one size for each level")
    for level, size in enumerate(sizes):
        if not 1 <= size <= MAX_CODEBOOK:
            raise CodesError(f"the codebook of level {level} has {size:,} codes: expected 1 to 2^31")
    return sizes


def check_codes(
    codes: NDArray[np.integer] | Sequence[Sequence[int]], codebook_sizes: Sequence[int]
) -> tuple[NDArray[np.integer], tuple[int, ...]]:
    """The table as a 2-D integer array and the codebook sizes as ints; CodesError where they are not. Codes are not read."""
    sizes = check_sizes(codebook_sizes)
    try:
        table = np.asarray(codes)
    except ValueError:
        raise CodesError(f"codes has rows of different lengths: expected {len(sizes)} codes in each") from None
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


def build_levels(codes_NL: CodeTable, sizes: tuple[int, ...], num_threads: int | None = None) -> SortedTable:
    """Sort a checked table and lay out its levels. Cost: O(N), about 37 bytes a row at 8 x 2,048, the result included."""
    threads = threads_for(len(codes_NL), num_threads)
    layout = WordLayout.of(sizes)
    return build_from_words(pack_sort_keys(codes_NL, sizes, layout, threads), layout, sizes, threads)


def build_from_words(words_PN: list[NDArray[np.uint64]], layout: WordLayout, sizes: Sequence[int], threads: int) -> SortedTable:
    """The same for packed rows; word 0 is sorted in place."""
    order_N = sort_rows(words_PN, threads)
    builder = LevelBuilder(layout, sizes, len(order_N), threads)
    builder.append(words_PN, order_N)
    words_PN.clear()
    return builder.finish(order_N)
