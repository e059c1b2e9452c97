"""Building a trie from chunks in bounded memory. Shapes: N items in all, n of a chunk, P words a row."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, ItemIdError, counted
from leafbeam.ids import ID_KINDS
from leafbeam.index.external_sort import ExternalSort, SpilledArray, SpillFile
from leafbeam.index.items import ItemIds, ItemTable, check_item_ids, check_unique
from leafbeam.index.level import MAX_ITEMS, check_codes, check_sizes, code_dtype
from leafbeam.index.level_builder import Allocate, LevelBuilder, SortedTable, build_from_words
from leafbeam.index.radix_sort import WordLayout, pack_sort_keys, sort_rows, threads_for
from leafbeam.index.saved_runs import SavedRuns, open_runs
from leafbeam.index.sequences import check_end_codes
from leafbeam.index.trie import Trie

Progress = Callable[[str, float], None]  # (the current step, the share of the work that is done)


class TrieBuilder:
    """A builder of tries in bounded memory; its trie equals, bit for bit, what `Trie.build` makes of all chunks together.

    At most `memory_limit` bytes of rows are in memory; the others are in an unlinked temporary file, which disappears however
    the process ends. The index itself takes about 19 bytes per item, plus the ids. If that is more than `memory_limit` too, its
    arrays are mapped from that file.

    Args:
        codebook_sizes: The number of codes of each level.
        end_code: As for `Trie.build`.
        packed: As for `Trie.build`.
        memory_limit: The bytes of rows in memory.
        folder: The folder of the temporary file; by default that of the system.
        num_threads: As for `Trie.build`.
        saved: A file for the rows in place of the temporary one, which the builder leaves behind however it ends, until
            `SavedRuns.remove`. If it has rows of an interrupted build, `num_items` is the number of rows that are there
            already: `add` the rows after them. After `finish` the builder uses temporary files.

    Examples:
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
        saved: SavedRuns | None = None,
    ) -> None:
        if memory_limit < 1:
            raise ArgumentError(
                f"memory_limit is {counted(memory_limit, 'byte')}: expected at least 1 (64 MB and more are sensible)"
            )
        self.sizes = check_sizes(codebook_sizes)
        self.end_code = end_code
        self.packed = packed
        self.memory_limit = memory_limit
        self.num_items = 0
        self._folder = None if folder is None else Path(folder)
        self._num_threads = num_threads
        self._layout = WordLayout.of(self.sizes)
        self._max_rows = rows_within(memory_limit, self._layout)
        self._chunks: list[list[NDArray[np.uint64]]] = []  # the words of the rows that are in memory
        self._num_rows = 0
        self._ids = _IdColumn()
        self._file: SpillFile | None = None
        self._runs: ExternalSort | None = None
        self._saved = saved
        if saved is not None and saved.path.exists():
            self._restore(saved)

    def add(self, codes: NDArray[np.integer] | Sequence[Sequence[int]], item_ids: ItemIds | None = None) -> None:
        """Add the next rows, in the caller's order.

        After an error the builder is as it was before. `finish` finds ids that occur twice.

        Args:
            codes: Shape (n, L).
            item_ids: The ids of the rows; either all chunks have ids, or none.

        Raises:
            CodesError: As for `Trie.build`.
            ItemIdError: As for `Trie.build`.
            IndexFileError: If the disk is full.
        """
        table_nL, sizes = check_codes(codes, self.sizes)
        size = len(table_nL)
        if self.end_code is not None:
            check_end_codes(table_nL, sizes, self.end_code)
        if self.num_items + size > MAX_ITEMS:
            raise CodesError(f"{counted(self.num_items + size, 'row')}: one index holds at most {MAX_ITEMS:,} items")
        ids = None if item_ids is None else check_item_ids(item_ids, size, self.num_items)
        words_Pn = pack_sort_keys(table_nL, self.sizes, self._layout, threads_for(size, self._num_threads), self.num_items)
        self._ids.check(ids, size, self.num_items)
        begin = 0
        while begin < size:
            end = min(size, begin + self._max_rows - self._num_rows)
            self._ids.add(ids, begin, end)
            self._chunks.append([word_n[begin:end] for word_n in words_Pn])
            self._num_rows += end - begin
            begin = end
            if self._num_rows == self._max_rows:
                self._spill(self.num_items + end)
        self.num_items += size

    def finish(self, progress: Progress | None = None) -> Trie:
        """Return the index of all rows, and empty the builder.

        Args:
            progress: Called with the progress; see `Progress`.

        Raises:
            ItemIdError: If an id occurs twice.
        """
        report = progress or (lambda step, share: None)
        threads = threads_for(self.num_items, self._num_threads)
        if self._runs is not None and self._num_rows:
            self._spill(self.num_items)
        report("checking item ids", 0.0)
        allocate = self._allocator()
        ids = self._ids.joined(self.num_items, allocate)
        if ids is not None:
            check_unique(ids, self.memory_limit)
        if self._runs is None:
            report("sorting", 0.1)
            table = build_from_words(self._take_chunks(), self._layout, self.sizes, threads)
        else:
            table = self._merge(self._runs, allocate, threads, report)
        report("computing the version", 0.9)
        items = ItemTable(ids=ids, order_N=table.order_N, leaf_indptr=table.leaf_indptr)
        trie = Trie.from_levels(table.levels, items, table.num_leaves, end_code=self.end_code, packed=self.packed)
        self.close()
        self._saved = None  # the index may be mapped from that file
        report("done", 1.0)
        return trie

    def close(self) -> None:
        """Drop all rows, and free their memory and disk space; runs that are saved stay on disk."""
        if self._file is not None:
            if self._saved is not None and not self._runs:
                self._saved.remove()
            self._file.close()
        self._file = self._runs = None
        self._chunks.clear()
        self._num_rows = self.num_items = 0
        self._ids = _IdColumn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TrieBuilder({counted(self.num_items, 'item')}, {counted(len(self._runs or ()), 'run')} on disk)"

    def _spill(self, end: int) -> None:
        """Sort the rows in memory, the last of which is row `end - 1`, and write them to disk."""
        if self._file is None or self._runs is None:
            self._file, self._runs = self._open()
            if self._saved is not None:
                self._saved.begin(self._file, self._settings)
            self._ids.spill(self._file)
        first = end - self._num_rows
        words_Pn = self._take_chunks()
        order_n = sort_rows(words_Pn, threads_for(len(words_Pn[0]), self._num_threads))
        for word in range(1, len(words_Pn)):
            words_Pn[word] = words_Pn[word][order_n]
        order_n += np.uint32(first)
        run = self._runs.spill(words_Pn, order_n)
        if self._saved is not None:
            self._saved.append(end, run, self._ids.take_unsaved())

    def _open(self) -> tuple[SpillFile, ExternalSort]:
        file = SpillFile(self._folder) if self._saved is None else open_runs(self._saved.path)
        return file, ExternalSort(file, self._layout.num_words)

    @property
    def _settings(self) -> str:
        """Return the settings on which the runs depend."""
        return f"1 {self.sizes} {self._max_rows}"

    def _restore(self, saved: SavedRuns) -> None:
        """Go on from the runs of a build that was ended."""
        file, runs = self._open()
        for restored in saved.restore(file, self._settings):
            runs.add(restored.run)
            self._ids.restore(restored.ids)
            self.num_items = restored.num_rows
        if len(runs):
            self._file, self._runs = file, runs
            self._ids.spill(file)
        else:
            saved.remove()
            file.close()

    def _take_chunks(self) -> list[NDArray[np.uint64]]:
        """Return the rows in memory as one array a word; a chunk's memory is freed as it is copied."""
        words_Pn: list[NDArray[np.uint64]] = []
        empty = np.empty(0, np.uint64)
        for word in range(self._layout.num_words):
            words_Pn.append(np.concatenate([empty, *(chunk[word] for chunk in self._chunks)]))
            for chunk in self._chunks:
                chunk[word] = empty
        self._chunks.clear()
        self._num_rows = 0
        return words_Pn

    def _merge(self, runs: ExternalSort, allocate: Allocate, threads: int, report: Progress) -> SortedTable:
        order_N = allocate(self.num_items, np.uint32)
        builder = LevelBuilder(self._layout, self.sizes, self.num_items, threads, allocate)
        step = f"merging {len(runs)} run{'s' if len(runs) > 1 else ''}"
        for words_Pn, rows_n in runs.blocks(self._max_rows):
            begin = builder.num_rows
            order_n = sort_rows(words_Pn, threads_for(len(rows_n), self._num_threads))
            builder.append(words_Pn, order_n)
            order_N[begin : builder.num_rows] = rows_n[order_n]
            report(step, 0.1 + 0.8 * builder.num_rows / self.num_items)
        return builder.finish(order_N)

    def _allocator(self) -> Allocate:
        """Memory, or the disk where the index is larger than the limit."""
        nbytes = self.num_items * row_bytes(self.sizes, self._ids.width)
        return np.empty if self._file is None or nbytes <= self.memory_limit else self._file.allocate


def rows_within(memory_limit: int, layout: WordLayout) -> int:
    """Return how many rows a builder sorts at a time: their words, keys a second time, numbers twice, and long ties."""
    return max(1, memory_limit // (8 * layout.num_words + 24))


def row_bytes(sizes: Sequence[int], id_bytes: int) -> int:
    """Return the bytes of a row of the index while its levels are built: codes, common prefix, place and id."""
    return 5 + sum(np.dtype(code_dtype(size)).itemsize for size in sizes) + id_bytes


class _IdColumn:
    """The ids of all chunks, in memory or, with a file, on disk; strings of different widths until the widest is known."""

    def __init__(self) -> None:
        self.file: SpillFile | None = None
        self._dtype: np.dtype[np.generic] | None = None
        self._parts: list[NDArray[np.generic] | SpilledArray] = []
        self._num_saved = 0

    @property
    def width(self) -> int:
        """Return the bytes of an id."""
        return 0 if self._dtype is None else self._dtype.itemsize

    def check(self, ids: NDArray[np.generic] | None, size: int, before: int) -> None:
        """Take the kind of a chunk that follows `before` rows. Raises ItemIdError where it is not the kind of those."""
        if before == 0:
            self._dtype = None if ids is None else ids.dtype
        elif size and (ids is None) != (self._dtype is None):
            raise ItemIdError("some chunks have item_ids and some have none: give them with all chunks, or with none")
        if ids is None or size == 0 or self._dtype is None:
            return
        if ids.dtype.kind != self._dtype.kind:
            raise ItemIdError(
                f"the item ids of this chunk are {ID_KINDS[ids.dtype.kind]}, those before were {ID_KINDS[self._dtype.kind]}: "
                f"expected all integers or all strings"
            )
        self._dtype = max(self._dtype, ids.dtype, key=lambda dtype: dtype.itemsize)

    def add(self, ids: NDArray[np.generic] | None, begin: int, end: int) -> None:
        """Add the ids of some rows of a chunk that was checked."""
        if ids is None:
            return
        part = ids[begin:end]
        if len(part) < len(ids) and ids.dtype.kind == "S":  # a run has the width of its own ids, whatever follows
            part = part.astype(f"S{max(1, int(np.char.str_len(part.astype(np.bytes_)).max()))}")
        self._parts.append(part.copy() if self.file is None else self.file.append(part))

    def spill(self, file: SpillFile) -> None:
        """Move the ids in memory to disk, and later ones too."""
        self.file = file
        self._parts = [file.append(part) if isinstance(part, np.ndarray) else part for part in self._parts]

    def restore(self, parts: Sequence[SpilledArray]) -> None:
        """Add parts that are on disk already."""
        for part in parts:
            self._dtype = max(self._dtype or part.dtype, part.dtype, key=lambda dtype: dtype.itemsize)
        self._parts += parts
        self._num_saved = len(self._parts)

    def take_unsaved(self) -> list[SpilledArray]:
        """Return the parts on disk that were added since the last call."""
        parts = [part for part in self._parts[self._num_saved :] if isinstance(part, SpilledArray)]
        self._num_saved = len(self._parts)
        return parts

    def joined(self, num_items: int, allocate: Allocate) -> NDArray[np.generic] | None:
        """Return all ids as one array; the parts are freed as they are copied."""
        if self._dtype is None:
            return None
        ids_N = allocate(num_items, self._dtype)
        begin = 0
        for number, part in enumerate(self._parts):
            ids = part if isinstance(part, np.ndarray) else part.read(0, np.empty(len(part), part.dtype))
            ids_N[begin : begin + len(ids)] = ids
            begin += len(ids)
            self._parts[number] = ids_N[:0]
        assert begin == num_items
        return ids_N
