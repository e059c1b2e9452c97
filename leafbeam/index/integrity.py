"""Checks that a trie's arrays are as they were saved, and safe to search. Shapes: N items, M leaves, W words.

The hash finds damage, but an author can write a matching one. So all that the kernels rely on is checked too: afterwards no
search reads outside an array or returns an item that the file does not hold.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOptionalMemberAccess=false
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import CodesError, ItemIdError, counted
from leafbeam.index.bit_kernels import bits_at, popcount, word_hash
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemTable, check_utf8
from leafbeam.index.level import Level
from leafbeam.index.radix_sort import threads_for
from leafbeam.index.sequences import check_end_codes
from leafbeam.jit import njit

log = logging.getLogger("leafbeam.index")

_SLICE = 1 << 20  # rows
_REPORT = 1 << 30  # bytes between two lines of progress


def fingerprint(levels: Sequence[Level], items: ItemTable, end_code: int | None = None) -> str:
    """Sixteen hex digits that change with any SID, order, id or end code. Cost: one read of all arrays (2.5 GB/s)."""
    arrays: list[NDArray[np.generic] | None] = [items.order_N, items.leaf_indptr, items.ids]
    for level in levels:
        arrays += [level.codes, level.firsts]
        arrays += [] if level.boundary is None else [level.boundary.words_W, level.boundary.before_W]
    state, done, total = 0, 0, sum(array.nbytes for array in arrays if array is not None)
    for array in arrays:
        raw = np.empty(0, np.uint8) if array is None else np.ascontiguousarray(array).view(np.uint8)
        whole = len(raw) // 8 * 8
        tail = np.zeros(8, np.uint8)
        tail[: len(raw) - whole] = raw[whole:]
        state = (state + len(raw)) % 2**64
        for begin in range(0, whole, _REPORT):
            part = raw[begin : min(whole, begin + _REPORT)]
            state = int(word_hash(part.view(np.uint64), np.uint64(state)))
            before, done = done, done + len(part)
            if done // _REPORT > before // _REPORT:
                log.info("hashed %.0f of %.0f GB of the index", done / 1e9, total / 1e9)
        state = int(word_hash(tail.view(np.uint64), np.uint64(state)))
    numbers = [number for level in levels for number in (level.size, level.num_nodes)]
    shape = np.array(numbers if end_code is None else [*numbers, end_code], np.uint64)
    return f"{int(word_hash(shape, np.uint64(state))):016x}"


def find_problem(
    levels: Sequence[Level],
    items: ItemTable,
    num_leaves: int,
    end_code: int | None,
    version: str,
) -> str:
    """Return what is wrong with the arrays, "" where nothing is. Lengths and dtypes have been checked (`Trie.load`).

    The version is the hash of the arrays. Of each level: before_W counts the bits of words_W; every node of the level above
    begins a node; firsts are the set bits; codes are below the codebook's size, ascend under one parent, and are one number
    over a node's leaves. Every leaf is a node of the last level. The items' order is a permutation, every leaf has an item, and
    text is UTF-8. Cost: two reads of all arrays, shared by threads: about 0.2 s for 10^7 items of 8 x 2,048 on two.
    """
    all_leaves = Bitmap.full(num_leaves)
    if levels[-1].num_nodes != num_leaves:
        return f"the last level has {counted(levels[-1].num_nodes, 'node')} for {counted(num_leaves, 'leaf', 'leaves')}"

    def has_other_hash() -> str:
        computed = fingerprint(levels, items, end_code)
        return "" if computed == version else f"it claims version {version}, but its arrays hash to {computed}"

    checks: list[Callable[[], str]] = [has_other_hash, partial(_item_problem, items)]
    above = Bitmap.from_positions(np.zeros(min(1, num_leaves), np.int64), num_leaves)
    for number, level in enumerate(levels):
        checks.append(partial(_level_problem, number, level, above.words_W, all_leaves.words_W))
        above = level.boundary or all_leaves
    with ThreadPoolExecutor(threads_for(num_leaves)) as pool:
        problems = list(pool.map(lambda check: check(), checks))
    return next(filter(None, problems), "") or (_end_problem(levels, num_leaves, end_code) if end_code is not None else "")


def _item_problem(items: ItemTable) -> str:
    if not _is_permutation(items.order_N, np.zeros(items.num_items // 64 + 1, np.uint64)):
        return "items.order does not name every row once"
    indptr = items.leaf_indptr
    if indptr is not None and (indptr[0] != 0 or indptr[-1] != items.num_items or (indptr[1:] <= indptr[:-1]).any()):
        return f"items.first does not ascend from 0 to {items.num_items:,}"
    try:
        if items.ids is not None:
            check_utf8(items.ids)
    except ItemIdError as error:
        return str(error)
    return ""


def _level_problem(number: int, level: Level, above_W: NDArray[np.uint64], all_leaves_W: NDArray[np.uint64]) -> str:
    """Return what is wrong with a level, "" if nothing is. above_W: the leaves where a node of the level above begins."""
    words_W, num_leaves, firsts = all_leaves_W, level.num_nodes, np.empty(0, np.uint32)
    if level.boundary is not None:
        words_W, num_leaves = level.boundary.words_W, level.boundary.size
        if int(words_W[-1]) >> (num_leaves & 63) or not _is_ranked(words_W, level.boundary.before_W, above_W, level.num_nodes):
            return (
                f"the boundary of level {number} is not a bitmap of {counted(level.num_nodes, 'node')} under those of the "
                "level above"
            )
    elif (above_W & ~words_W).any():
        return f"level {number} begins nodes beyond the last leaf"
    if level.firsts is not None:
        firsts = level.firsts
    leaf = _first_bad_leaf(level.codes, level.width, level.size, firsts, words_W, above_W, num_leaves)
    return "" if leaf < 0 else f"level {number} has no valid code or first leaf at leaf {leaf:,}"


def _end_problem(levels: Sequence[Level], num_leaves: int, end_code: int) -> str:
    for begin in range(0, num_leaves, _SLICE):
        leaves = np.arange(begin, min(num_leaves, begin + _SLICE))
        codes_nL = np.stack([level.codes_at(leaves) for level in levels], axis=-1)
        try:
            check_end_codes(codes_nL, [level.size for level in levels], end_code)
        except CodesError as error:
            return str(error)
    return ""


@njit(cache=True, nogil=True, _nrt=False)
def _is_permutation(order_N, seen_W):
    """Return whether every number below N is there once; seen_W: zeros, a bit for each."""
    for index in range(order_N.size):
        row = np.int64(order_N[index])
        bit = np.uint64(1) << np.uint64(row & 63)
        if row >= order_N.size or seen_W[row >> 6] & bit:
            return False
        seen_W[row >> 6] |= bit
    return True


@njit(cache=True, nogil=True, _nrt=False)
def _is_ranked(words_W, before_W, above_W, num_nodes):
    """Return whether before_W counts the bits before each word, num_nodes of them in all, and every bit of above_W is set."""
    count = np.int64(0)
    for word in range(words_W.size):
        if before_W[word] != count or above_W[word] & ~words_W[word]:
            return False
        count += np.int64(popcount(words_W[word]))
    return count == num_nodes


@njit(cache=True, nogil=True, _nrt=False)
def _first_bad_leaf(codes, width, size, firsts, words_W, above_W, num_leaves):
    """Return the first leaf whose code is not below `size`, or not above the sibling's before (equal inside a node); -1: none.

    firsts: of a listing, whose codes have an entry for each node; else empty, and codes have an entry for each leaf.
    """
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    entry, before = 0, np.int64(-1)
    for leaf in range(num_leaves):
        word, bit = leaf >> 6, np.uint64(leaf & 63)
        starts = (words_W[word] >> bit) & np.uint64(1)
        if firsts.size and not starts:
            continue
        code = np.int64(bits_at(codes, entry * width) & mask) if width else np.int64(codes[entry])
        is_first = (above_W[word] >> bit) & np.uint64(1)
        if code >= size or not (is_first or (code > before if starts else code == before)):
            return leaf
        if firsts.size and firsts[entry] != leaf:
            return leaf
        entry += 1
        before = code
    return -1
