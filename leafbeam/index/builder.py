"""Building an index from chunks: more items than fit into memory as a table, or at all.

    add: check and pack a chunk of rows; when they fill the memory limit, sort them and write them to disk as a run
    finish: merge the runs piece by piece (`runs`) straight into the final arrays (`assemble`)

Shapes: N items in all, n of a chunk, P words a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, ItemIdError
from leafbeam.index.build import MAX_ITEMS, build_from_words, check_codes, check_sizes
from leafbeam.index.external_sort import Runs
from leafbeam.index.id_hash import check_unique
from leafbeam.index.items import ItemIds, ItemTable, check_item_ids
from leafbeam.index.level import code_dtype
from leafbeam.index.level_builder import Allocate, LevelBuilder, SortedTable
from leafbeam.index.radix_sort import WordLayout, pack_sort_keys, sort_rows, threads_for
from leafbeam.index.sequences import check_end_codes
from leafbeam.index.spill_file import SpillFile
from leafbeam.index.trie import Trie, fingerprint

__all__ = ["TrieBuilder"]

Progress = Callable[[str, float], None]


class TrieBuilder:
    """Builds the trie that `Trie.build` would build of all chunks together, to the last bit, in bounded memory.

    Think of it as a sorter with a desk of `memory_limit` bytes: a full desk is sorted and put away on disk (in `folder`, by
    default the system's for temporary files), and in the end the sorted stacks are dealt together. While everything fits on the
    desk, nothing touches the disk. Beside the desk stands the index itself, about 19 bytes an item and the ids; where that is
    more than `memory_limit` too, its arrays are mapped from temporary files, and memory holds what is being read of them.

    Nothing is left on the disk, whatever ends the process: the files have no names.

    >>> with TrieBuilder([256] * 4, memory_limit=1 << 30) as builder:
    ...     for codes, item_ids in chunks:
    ...         builder.add(codes, item_ids)
    ...     index = builder.finish()
    """

    def __init__(
        self,
        codebook_sizes: Sequence[int],
        *,
        end_code: int | None = None,
        packed: bool = False,
        memory_limit: int = 4 << 30,
        folder: str | Path | None = None,
        num_threads: int | None = None,
    ) -> None:
        if memory_limit < 1:
            raise ArgumentError(f"memory_limit is {memory_limit:,} bytes: expected at least 1 (64 MB and more are sensible)")
        self.sizes = check_sizes(codebook_sizes)
        self.end_code = end_code
        self.packed = packed
        self.memory_limit = memory_limit
        self.num_items = 0
        self._folder = None if folder is None else Path(folder)
        self._threads = num_threads
        self._layout = WordLayout.of(self.sizes)
        # The words of a row, its key a second time, its number twice, and what long ties need.
        self._most = max(1, memory_limit // (8 * self._layout.num_words + 24))
        self._chunks: list[list[NDArray[np.uint64]]] = []
        self._waiting = 0
        self._ids = _IdColumn()
        self._scratch: SpillFile | None = None
        self._runs: Runs | None = None

    def add(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds | None = None) -> None:
        """The next rows, in the caller's order; with ids for all chunks or for none.

        Cost: one read of the codes, and a sort whenever the memory is full. Raises CodesError and ItemIdError, after which the
        chunk is as if it had not been given (whether ids are distinct is found by `finish`), and IndexFileError (a full disk).
        """
        table_nL, sizes = check_codes(codes, self.sizes)
        size = len(table_nL)
        if self.end_code is not None:
            check_end_codes(table_nL, sizes, self.end_code)
        if self.num_items + size > MAX_ITEMS:
            raise CodesError(f"{self.num_items + size:,} rows: one index holds at most {MAX_ITEMS:,} items")
        ids = None if item_ids is None else check_item_ids(item_ids, size)
        self._ids.check(ids, size, self.num_items)
        words_Pn = pack_sort_keys(table_nL, self.sizes, self._layout, threads_for(size, self._threads), self.num_items)
        self._ids.add(ids, size, self.num_items, self._scratch)
        begin = 0
        while begin < size:
            end = min(size, begin + self._most - self._waiting)
            self._chunks.append([word_n[begin:end] for word_n in words_Pn])
            self._waiting += end - begin
            begin = end
            if self._waiting == self._most:
                self._spill(self.num_items + end)
        self.num_items += size

    def finish(self, progress: Progress | None = None) -> Trie:
        """The index of all rows added; the builder is empty afterwards and may be used again.

        progress(what, share done) is called from time to time. Raises ItemIdError where an id occurs twice.
        """
        tell = progress or _silent
        num_items = self.num_items
        threads = threads_for(num_items, self._threads)
        tell("checking item ids", 0.0)
        allocate = self._allocator()
        ids = self._ids.whole(num_items, self._scratch, allocate)
        if ids is not None:
            check_unique(ids, self.memory_limit)
        if self._runs is None:
            tell("sorting", 0.1)
            table = build_from_words(self._take_chunks(), self._layout, self.sizes, threads)
        else:
            if self._waiting:
                self._spill(num_items)
            table = self._merge(allocate, threads, tell)
        tell("computing the version", 0.9)
        items = ItemTable(ids=ids, order_N=table.order_N, leaf_indptr=table.leaf_indptr)
        levels = tuple(level.packed() for level in table.levels) if self.packed else table.levels
        version = fingerprint(levels, items, self.end_code)
        self.close()
        tell("done", 1.0)
        return Trie(levels=levels, items=items, num_leaves=table.num_leaves, version=version, end_code=self.end_code)

    def close(self) -> None:
        """Forget all rows and give their memory and disk space back."""
        if self._scratch is not None:
            self._scratch.close()
        self._scratch = self._runs = None
        self._chunks.clear()
        self._waiting = self.num_items = 0
        self._ids = _IdColumn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _spill(self, end: int) -> None:
        """Sort the waiting rows, the last of which is row `end - 1`, and write them down."""
        if self._scratch is None or self._runs is None:
            self._scratch = SpillFile(self._folder)
            self._runs = Runs(self._scratch, self._layout.num_words)
            self._ids.move(self._scratch)
        first = end - self._waiting
        words_Pn = self._take_chunks()
        order_n = sort_rows(words_Pn, threads_for(len(words_Pn[0]), self._threads))
        for word in range(1, len(words_Pn)):
            words_Pn[word] = words_Pn[word][order_n]
        order_n += np.uint32(first)
        self._runs.put(words_Pn, order_n)

    def _take_chunks(self) -> list[NDArray[np.uint64]]:
        """The waiting rows as one array a word; a chunk's memory is freed as it is copied."""
        words_Pn: list[NDArray[np.uint64]] = []
        none = np.empty(0, np.uint64)
        for word in range(self._layout.num_words):
            words_Pn.append(np.concatenate([none, *(chunk[word] for chunk in self._chunks)]))
            for chunk in self._chunks:
                chunk[word] = none
        self._chunks.clear()
        self._waiting = 0
        return words_Pn

    def _merge(self, allocate: Allocate, threads: int, tell: Progress) -> SortedTable:
        assert self._runs is not None
        num_items = self.num_items
        order_N = allocate(num_items, np.uint32)
        assembly = LevelBuilder(self._layout, self.sizes, num_items, threads, allocate)
        for piece in self._runs.pieces(self._most):
            at = assembly.num_rows
            order_n = sort_rows(piece.words_Pn, threads_for(len(piece.rows_n), self._threads))
            assembly.append(piece.words_Pn, order_n)
            order_N[at : assembly.num_rows] = piece.rows_n[order_n]
            tell(
                f"merging {len(self._runs)} run{'s' if len(self._runs) > 1 else ''}", 0.1 + 0.8 * assembly.num_rows / num_items
            )
        return assembly.finish(order_N)

    def _allocator(self) -> Allocate:
        """Memory, or the disk where the index is larger than the limit."""
        nbytes = self.num_items * (5 + sum(np.dtype(code_dtype(size)).itemsize for size in self.sizes) + self._ids.width)
        if self._scratch is None or nbytes <= self.memory_limit:
            return np.empty
        return self._scratch.allocate


class _IdColumn:
    """The ids of all chunks, in memory or on disk; strings of different widths until the widest is known."""

    def __init__(self) -> None:
        self._dtype: np.dtype[Any] | None = None
        self._parts: list[NDArray[np.generic]] = []
        self._spilled: list[tuple[int, int, np.dtype[Any]]] = []

    @property
    def width(self) -> int:
        """Bytes of an id."""
        return 0 if self._dtype is None else self._dtype.itemsize

    def check(self, ids: NDArray[np.generic] | None, size: int, before: int) -> None:
        """Raise ItemIdError where a chunk's ids are not like those of the chunks before (empty chunks are like any)."""
        if size == 0 or before == 0:
            return
        if (ids is None) != (self._dtype is None):
            raise ItemIdError("some chunks have item_ids and some have none: give them with all chunks, or with none")
        if ids is not None and self._dtype is not None and ids.dtype.kind != self._dtype.kind:
            kinds = {"i": "integers", "S": "strings"}
            raise ItemIdError(
                f"the item ids of this chunk are {kinds[ids.dtype.kind]}, those before were {kinds[self._dtype.kind]}: "
                f"expected all integers or all strings"
            )

    def add(self, ids: NDArray[np.generic] | None, size: int, before: int, scratch: SpillFile | None) -> None:
        """The ids of a chunk of `size` rows that follows `before` others, after `check`."""
        if before == 0:
            self._dtype = None if ids is None else ids.dtype
        if ids is None or size == 0 or self._dtype is None:
            return
        if self._dtype.itemsize < ids.dtype.itemsize:
            self._dtype = ids.dtype
        if scratch is None:
            self._parts.append(ids.copy())
        else:
            self._spilled.append((scratch.put(ids), size, ids.dtype))

    def move(self, scratch: SpillFile) -> None:
        """Put what is in memory on disk."""
        self._spilled = [(scratch.put(ids), len(ids), ids.dtype) for ids in self._parts]
        self._parts.clear()

    def whole(self, num_items: int, scratch: SpillFile | None, allocate: Allocate) -> NDArray[np.generic] | None:
        """All ids as one array; the parts are freed as they are copied."""
        if self._dtype is None:
            return None
        ids_N = allocate(num_items, self._dtype)
        at = 0
        for number, ids in enumerate(self._parts):
            ids_N[at : at + len(ids)] = ids
            at += len(ids)
            self._parts[number] = ids_N[:0]
        for offset, size, dtype in self._spilled:
            assert scratch is not None
            ids_N[at : at + size] = scratch.take(offset, size * dtype.itemsize, np.uint8).view(dtype)
            at += size
        assert at == num_items
        return ids_N


def _silent(what: str, share: float) -> None:
    pass
