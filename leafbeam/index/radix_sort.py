"""Sorting Semantic IDs: codes packed into 64-bit words, then a stable most-significant-digit radix sort.

    word 0 holds as many leading codes as fit into 64 bits, word 1 the next, and so on
    all rows are scattered by the top digit of word 0, then every bucket is sorted on its own while it lies in the cache
    rows equal in word 0 are sorted by word 1, and so on

The sort moves (word 0, row number) pairs; later words are read only for ties. Kernels release the GIL, so threads share the
work. Shapes: N rows, L levels, P words a row.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import leading_zeros, uint64_at
from leafbeam.index.level import check_in_codebooks
from leafbeam.jit import njit


class CodeTable(Protocol):
    """An (N, L) array of codes, or an object that returns blocks of its rows."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> NDArray[np.integer]: ...


@dataclass(frozen=True, kw_only=True)
class WordLayout:
    """The position of each level's code in the packed words: `(words[word_L[t]] >> shift_L[t]) & mask_L[t]`, never in two."""

    word_L: NDArray[np.int64]
    shift_L: NDArray[np.int64]
    mask_L: NDArray[np.uint64]
    num_words: int

    @classmethod
    def of(cls, codebook_sizes: Sequence[int]) -> "WordLayout":
        word, free = 0, 64
        positions: list[tuple[int, int, int]] = []
        for size in codebook_sizes:
            width = max(1, (size - 1).bit_length())
            if width > free:
                word, free = word + 1, 64
            free -= width
            positions.append((word, free, (1 << width) - 1))
        word_L, shift_L, mask_L = np.ascontiguousarray(np.array(positions, np.int64).T)
        return cls(word_L=word_L, shift_L=shift_L, mask_L=mask_L.astype(np.uint64), num_words=word + 1)


Part = TypeVar("Part")
Result = TypeVar("Result")


def in_threads(task: Callable[[int, int], int | None], size: int, threads: int) -> list[int | None]:
    """Call `task(begin, end)` for `threads` even parts of `range(size)`; returns the results in order."""
    cuts = np.linspace(0, size, threads + 1).astype(np.int64).tolist()
    return _map(lambda part: task(*part), pairwise(cuts), threads)


def _map(task: Callable[[Part], Result], parts: Iterable[Part], threads: int) -> list[Result]:
    """Return the results of `task`, called by that many threads; by the caller's own where it is one."""
    if threads == 1:
        return [task(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(task, parts))


def threads_for(num_rows: int, num_threads: int | None = None) -> int:
    """Return `num_threads`, by default one for each core, but at most one for every 100,000 rows."""
    return max(1, min(num_threads or os.cpu_count() or 1, 1 + num_rows // 100_000))


def addresses_of(words_PN: Sequence[NDArray[np.uint64]]) -> NDArray[np.int64]:
    """Return the addresses of the words' arrays, so that one compiled loop takes any number. The caller keeps the arrays."""
    return np.array([word_N.ctypes.data for word_N in words_PN], np.int64)


def pack_sort_keys(
    codes_NL: CodeTable, sizes: Sequence[int], layout: WordLayout, threads: int, first_row: int = 0
) -> list[NDArray[np.uint64]]:
    """Return the words of all rows. Raises CodesError for a code outside its codebook. first_row: the number of row 0."""
    size = len(codes_NL)
    words_PN = [np.empty(size, np.uint64) for _ in range(layout.num_words)]
    addresses_P = addresses_of(words_PN)
    sizes_L = np.array(sizes, np.int64)

    def pack(begin: int, end: int) -> int | None:
        step = 1 << 12  # a copy of one block at a time, which stays in the processor's cache
        for start in range(begin, end, step):
            block_nL = np.array(codes_NL[start : min(end, start + step)], np.int64, order="C")
            if not _pack(block_nL, sizes_L, layout.word_L, layout.shift_L, addresses_P, start, size):
                return start + int(np.argmax(((block_nL < 0) | (block_nL >= sizes_L)).any(axis=1)))
        return None

    for bad in in_threads(pack, size, threads):
        if bad is not None:
            check_in_codebooks(codes_NL[bad : bad + 1], sizes, first_row + bad)
    return words_PN


@njit(cache=True, nogil=True)
def _pack(codes_nL, sizes_L, word_L, shift_L, addresses_P, start, size):
    """Write the words of the rows from `start` on; whether every code is in its codebook."""
    bad = False
    for level in range(sizes_L.size):
        word_n = uint64_at(addresses_P[word_L[level]], size)[start : start + codes_nL.shape[0]]
        limit, shift = np.uint64(sizes_L[level]), np.uint64(shift_L[level])
        if level == 0 or word_L[level] != word_L[level - 1]:
            word_n[:] = np.uint64(0)
        for row in range(codes_nL.shape[0]):
            code = np.uint64(codes_nL[row, level])  # a negative code becomes a very large one
            bad |= code >= limit
            word_n[row] |= code << shift
    return not bad


def sort_rows(words_PN: list[NDArray[np.uint64]], threads: int) -> NDArray[np.uint32]:
    """Return the caller's row at each position of the sorted table, stably; sorts word 0 in place. Memory: 20 bytes a row."""
    keys_N = words_PN[0]
    size = keys_N.size
    if size < 2:
        return np.arange(size, dtype=np.uint32)
    order_N, other_keys_N, other_order_N = np.empty(size, np.uint32), np.empty_like(keys_N), np.empty(size, np.uint32)
    if size <= 1 << 12:
        order_N[:] = np.arange(size)
        _sort_bucket(keys_N, order_N, other_keys_N, other_order_N, 0, size, 64, False)
    else:
        _scatter_and_sort(keys_N, order_N, other_keys_N, other_order_N, threads)
    for word in range(1, len(words_PN)):
        addresses_P = addresses_of(words_PN[: word + 1])

        def sort_ties(begin: int, end: int, addresses_P: NDArray[np.int64] = addresses_P) -> None:
            _sort_ties(addresses_P, order_N, other_keys_N, keys_N, other_order_N, begin, end)

        in_threads(sort_ties, size, threads)
    return order_N


def _scatter_and_sort(keys_N, order_N, other_keys_N, other_order_N, threads) -> None:
    """Scatter by the first digit with all threads, then sort the buckets, each in one thread."""
    # Few enough buckets that their ends stay in the cache while they are written, and otherwise as many as possible.
    digit_bits = max(8, min(11, (keys_N.size >> 15).bit_length()))
    shift = 64 - digit_bits
    cuts = np.linspace(0, keys_N.size, threads + 1).astype(np.int64)
    counts_TD = np.zeros((threads, 1 << digit_bits), np.int64)
    _map(lambda part: _count_digits(keys_N[cuts[part] : cuts[part + 1]], shift, counts_TD[part]), range(threads), threads)
    ends_D = np.cumsum(counts_TD.sum(axis=0))
    starts_D = ends_D - counts_TD.sum(axis=0)
    next_TD = starts_D + np.cumsum(counts_TD, axis=0) - counts_TD

    def scatter(part: int) -> None:
        _scatter(keys_N, other_keys_N, other_order_N, cuts[part], cuts[part + 1], shift, next_TD[part])

    _map(scatter, range(threads), threads)

    def sort_group(group: tuple[int, int]) -> None:
        for bucket in range(*group):
            begin, end = starts_D[bucket], ends_D[bucket]
            if end > begin:
                _sort_bucket(keys_N, order_N, other_keys_N, other_order_N, begin, end, shift, True)

    # Buckets in groups of about equal size, many more groups than threads, so that a frequent code cannot stall a thread.
    groups = np.unique(np.searchsorted(ends_D, np.linspace(0, keys_N.size, 32 * threads + 1)[1:-1]))
    _map(sort_group, pairwise([0, *(groups + 1).tolist(), len(ends_D)]), threads)


@njit(cache=True, nogil=True)
def _count_digits(keys_N, shift, counts_D):
    for row in range(keys_N.size):
        counts_D[keys_N[row] >> np.uint64(shift)] += 1


@njit(cache=True, nogil=True)
def _scatter(keys_N, to_keys_N, to_order_N, begin, end, shift, next_D):
    for row in range(begin, end):
        digit = keys_N[row] >> np.uint64(shift)
        position = next_D[digit]
        next_D[digit] = position + 1
        to_keys_N[position] = keys_N[row]
        to_order_N[position] = row


@njit(cache=True, nogil=True)
def _bit_length(number):
    return 64 - np.int64(leading_zeros(np.uint64(number)))


@njit(cache=True, nogil=True)
def _insertion_sort(keys_N, order_N, begin, end):
    for i in range(begin + 1, end):
        key = keys_N[i]
        if keys_N[i - 1] > key:
            row = order_N[i]
            j = i - 1
            while j >= begin and keys_N[j] > key:
                keys_N[j + 1] = keys_N[j]
                order_N[j + 1] = order_N[j]
                j -= 1
            keys_N[j + 1] = key
            order_N[j + 1] = row


@njit(cache=True, nogil=True)
def _sort_bucket(keys_N, order_N, other_keys_N, other_order_N, begin, end, bits_left, in_other):
    """Sort [begin, end), whose rows agree above bit `bits_left` and lie in the `other` arrays iff `in_other`, into `keys_N`.

    A bucket that fits into the cache is scattered into about as many as it has rows, so that one pass of insertion sort over
    all of them moves few rows. A larger one is scattered into a few hundred first.
    """
    small, max_bits = 24, 15
    offsets = np.empty((1 << min(max_bits, _bit_length(end - begin))) + 1, np.uint32)
    # Work left: (begin, end, bits left, whether in the other arrays); -1 bits: adjacent small buckets, scattered already.
    stack = [(begin, end, bits_left, in_other)]
    while len(stack) > 0:
        lo, hi, left, there = stack.pop()
        size = hi - lo
        if size <= small or left <= 0:
            if there:
                keys_N[lo:hi] = other_keys_N[lo:hi]
                order_N[lo:hi] = other_order_N[lo:hi]
            if left != 0:
                _insertion_sort(keys_N, order_N, lo, hi)
            continue
        digit_bits = min(left, 9 if size > 1 << 16 else min(max_bits, _bit_length(size)))
        shift = np.uint64(left - digit_bits)
        mask = (np.uint64(1) << np.uint64(digit_bits)) - np.uint64(1)
        buckets = 1 << digit_bits
        offsets[: buckets + 1] = 0
        if there:
            from_keys, from_order, to_keys, to_order = other_keys_N, other_order_N, keys_N, order_N
        else:
            from_keys, from_order, to_keys, to_order = keys_N, order_N, other_keys_N, other_order_N
        for i in range(lo, hi):
            offsets[np.int64((from_keys[i] >> shift) & mask) + 1] += np.uint32(1)
        largest = np.uint32(0)
        total = np.uint32(0)
        for digit in range(1, buckets + 1):
            largest = max(largest, offsets[digit])
            total += offsets[digit]
            offsets[digit] = total
        for i in range(lo, hi):
            key = from_keys[i]
            digit = np.int64((key >> shift) & mask)
            position = lo + np.int64(offsets[digit])
            offsets[digit] += np.uint32(1)
            to_keys[position] = key
            to_order[position] = from_order[i]
        # offsets[digit] is now the end of that digit's bucket. Adjacent small buckets are finished together.
        start = lo
        if largest > small:
            stop = lo
            for digit in range(buckets):
                next_stop = lo + np.int64(offsets[digit])
                if next_stop - stop > small:
                    if stop > start:
                        stack.append((start, stop, -1, not there))
                    stack.append((stop, next_stop, left - digit_bits, not there))
                    start = next_stop
                stop = next_stop
        if hi > start:
            if not there:
                keys_N[start:hi] = other_keys_N[start:hi]
                order_N[start:hi] = other_order_N[start:hi]
            _insertion_sort(keys_N, order_N, start, hi)


@njit(cache=True, nogil=True)
def _sort_ties(addresses_P, order_N, tie_keys_N, sorted_word_0_N, other_order_N, first, stop):
    """Sort each run of rows equal in all words but the last by that word: the runs that begin in [first, stop)."""
    size = order_N.size
    last = addresses_P.size - 1
    other_keys = np.empty(0, np.uint64)
    begin = first
    while 0 < begin < size and sorted_word_0_N[begin] == sorted_word_0_N[begin - 1]:
        begin += 1  # a run that began in the part before belongs to it
    # A run that begins in this part is finished here, beyond `stop` too.
    while begin < size and (begin < stop or sorted_word_0_N[begin] == sorted_word_0_N[begin - 1]):
        while begin + 1 < stop and sorted_word_0_N[begin + 1] != sorted_word_0_N[begin]:
            begin += 1
        end = begin + 1
        while end < size and sorted_word_0_N[end] == sorted_word_0_N[begin]:
            equal = True
            for word in range(1, last):
                word_N = uint64_at(addresses_P[word], size)
                if word_N[order_N[end]] != word_N[order_N[begin]]:
                    equal = False
                    break
            if not equal:
                break
            end += 1
        if end - begin > 1:
            last_N = uint64_at(addresses_P[last], size)
            for i in range(begin, end):
                tie_keys_N[i] = last_N[order_N[i]]
            if end - begin <= 24:
                _insertion_sort(tie_keys_N, order_N, begin, end)
            else:
                if other_keys.size < size:
                    other_keys = np.empty(size, np.uint64)
                _sort_bucket(tie_keys_N, order_N, other_keys, other_order_N, begin, end, 64, False)
        begin = end
