"""Sorted runs on disk, and the cuts that merge them: a table of any size is sorted a piece at a time.

    spill: sort what lies in memory by itself, write it down as one run, and remember every step-th row of it
    merge: choose keys from what was remembered, so that the rows between two of them, of all runs, fit into memory;
           read those rows run by run and sort them together; the pieces follow each other in order

Rows that are equal keep the order of the runs, and so the caller's. Shapes: R runs, P words a row, n rows of a run or piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.spill_file import SpillFile

__all__ = ["Piece", "Runs"]

_SAMPLES = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """One sorted run: `words` and `rows` are the offsets of its planes; samples_SP: every `step`-th row's words."""

    size: int
    words: tuple[int, ...]
    rows: int
    step: int
    samples_SP: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """Rows that come next in order, but not yet in order among themselves. rows_n: the caller's numbers."""

    words_Pn: list[NDArray[np.uint64]]
    rows_n: NDArray[np.uint32]


class Runs:
    """The runs of one table. Cost: 8 bytes a word and 4 bytes a row on disk, one write and one read of them."""

    def __init__(self, scratch: SpillFile, num_words: int) -> None:
        self._scratch = scratch
        self._num_words = num_words
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def put(self, words_Pn: Sequence[NDArray[np.uint64]], rows_n: NDArray[np.uint32]) -> None:
        """Write a run: its words in ascending order and the caller's row of each."""
        size = len(rows_n)
        step = -(-size // _SAMPLES)
        samples_SP = np.stack([word_n[::step] for word_n in words_Pn], axis=1)
        words = tuple(self._scratch.put(word_n) for word_n in words_Pn)
        rows = self._scratch.put(rows_n)
        self._runs.append(_Run(size=size, words=words, rows=rows, step=step, samples_SP=samples_SP))

    def pieces(self, most: int) -> Iterator[Piece]:
        """All rows in pieces of `most` at most, ascending from piece to piece, each run by run inside.

        (More than `most` only where there are nearly as many runs as samples of one, that is about a thousand.)
        """
        begins = [0] * len(self._runs)
        for ends, equal in self._cuts(most):
            sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
            yield from self._equal(begins, sizes, most) if equal else [self._read(begins, sizes)]
            begins = ends

    def _cuts(self, most: int) -> Iterator[tuple[list[int], bool]]:
        """How many rows of each run lie before each cut, and whether all rows since the cut before are equal.

        A run has fewer than `step` rows between neighbouring samples, so up to j samples between two keys mean at most
        (j + R) x step rows. We cut before every stride-th sample; equal samples before the first of two such keys can make it
        2 x stride of them. Where the same key is met twice, it has very many equal rows: we cut behind those too.
        """
        if not self._runs:
            return
        samples_SP = np.concatenate([run.samples_SP for run in self._runs])
        samples_SP = samples_SP[np.lexsort(samples_SP.T[::-1])]
        widest = max(run.step for run in self._runs)
        stride = max(1, (most // widest - len(self._runs)) // 2)
        keys = [tuple(int(word) for word in key) for key in samples_SP[stride::stride]]
        for place, key in enumerate(keys):
            if place > 0 and keys[place - 1] == key:
                continue
            yield [self._rank(run, key, False) for run in self._runs], False
            if place + 1 < len(keys) and keys[place + 1] == key:
                yield [self._rank(run, key, True) for run in self._runs], True
        yield [run.size for run in self._runs], False

    def _rank(self, run: _Run, key: tuple[int, ...], after: bool) -> int:
        """How many rows of a run are less than a key (`after`: or equal). Cost: a search among samples, then on disk."""
        begin, end = 0, run.size
        while begin < end:
            middle = (begin + end) // 2
            if middle % run.step == 0:
                found = tuple(int(word) for word in run.samples_SP[middle // run.step])
            elif end - begin > 2 * run.step:
                middle = middle // run.step * run.step  # stay among the samples, in memory
                found = tuple(int(word) for word in run.samples_SP[middle // run.step])
            else:
                found = tuple(int(self._scratch.take(offset + 8 * middle, 1, np.uint64)[0]) for offset in run.words)
            if found < key or (after and found == key):
                begin = middle + 1
            else:
                end = middle
        return begin

    def _read(self, begins: Sequence[int], sizes: Sequence[int]) -> Piece:
        total = sum(sizes)
        words_Pn = [np.empty(total, np.uint64) for _ in range(self._num_words)]
        rows_n = np.empty(total, np.uint32)
        at = 0
        for run, begin, size in zip(self._runs, begins, sizes, strict=True):
            for offset, word_n in zip(run.words, words_Pn, strict=True):
                self._scratch.take(offset + 8 * begin, size, np.uint64, word_n[at : at + size])
            self._scratch.take(run.rows + 4 * begin, size, np.uint32, rows_n[at : at + size])
            at += size
        return Piece(words_Pn=words_Pn, rows_n=rows_n)

    def _equal(self, begins: Sequence[int], sizes: Sequence[int], most: int) -> Iterator[Piece]:
        """Rows that are all equal, however many: run by run is their order, and no sort needs them together."""
        for number, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
            for start in range(0, size, most):
                here = [0] * len(self._runs)
                here[number] = begin + start
                yield self._read(here, [min(most, size - start) if run == number else 0 for run in range(len(self._runs))])
