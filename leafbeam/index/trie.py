"""The trie of a catalog's Semantic IDs. Shapes: N items, M leaves (distinct SIDs), L levels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, FilterError, IndexFileError, counted
from leafbeam.html_table import html_table
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.filters import Filter, ItemSet
from leafbeam.index.integrity import find_problem, fingerprint
from leafbeam.index.items import ItemIds, ItemTable, check_item_ids
from leafbeam.index.level import MAX_ITEMS, Level, check_codes, check_sizes, code_dtype, code_width, packed_words
from leafbeam.index.level_builder import build_levels
from leafbeam.index.sequences import SequenceTable, check_end_codes
from leafbeam.index.tensor_file import FileKind, Tensors, expect, read, write
from leafbeam.json_reader import Json

KIND = FileKind(key="leafbeam", noun="index", writer="Trie.save", newest=2, has_digest=False)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Trie:
    """All Semantic IDs (SIDs) that may be decoded: the sorted list of SIDs, with an index for each level.

    A distinct SID is a *leaf*, numbered by its rank. A prefix is the *range* of the leaves below it: the root is (0,
    num_leaves), a dead end is empty, and the children of a range are the longer prefixes that start inside it.

    A trie is immutable. It takes about 15 bytes per item at 8 levels of 2,048 codes, 4 more for the caller's order, and the
    ids. `Trie.build` and `Trie.from_sequences` make one.

    Args:
        levels: The arrays of each level.
        items: The ids and the order of the items.
        num_leaves: The number of distinct SIDs.
        version: Sixteen hex digits that change with any SID or id.
        end_code: The code that ends a sequence, if the index holds sequences of different lengths (`from_sequences`).

    Examples:
        >>> index = Trie.build([[3, 1], [0, 2], [3, 0]], codebook_sizes=[4, 4], item_ids=["c", "a", "b"])
        >>> len(index), (3, 0) in index, index.codes_of(["a"]).tolist()
        (3, True, [[0, 2]])
    """

    levels: tuple[Level, ...]
    items: ItemTable
    num_leaves: int
    version: str
    end_code: int | None = None

    @classmethod
    def build(
        cls,
        codes: NDArray[np.integer] | Sequence[Sequence[int]],
        codebook_sizes: Sequence[int],
        item_ids: ItemIds | None = None,
        *,
        end_code: int | None = None,
        packed: bool = False,
        num_threads: int | None = None,
    ) -> "Trie":
        """Index a table of codes.

        Building takes less than 0.1 µs per item, and at most about 37 bytes per item, the index included, at 8 levels of 2,048
        codes.

        Args:
            codes: Shape (N, L), of any integer dtype and in any order. Rows may repeat, so that several items share a leaf; N
                may be 0.
            codebook_sizes: The number of codes of each level: 1 to 65 levels of 1 to 2^31 codes.
            item_ids: N distinct integers or strings. By default the ids are the row numbers.
            end_code: The last code of every level, if the rows are sequences that are padded with it (see `from_sequences`).
            packed: If true, the codes are bit-packed (see `packed()`).
            num_threads: The number of threads that build; by default all cores.

        Raises:
            CodesError: If the table has the wrong width or dtype, or a code is outside its codebook.
            ItemIdError: If the ids have the wrong number or types, or an id occurs twice.
        """
        table_NL, sizes = check_codes(codes, codebook_sizes)
        if end_code is not None:
            check_end_codes(table_NL, sizes, end_code)
        return cls.from_table(table_NL, sizes, item_ids, end_code=end_code, packed=packed, num_threads=num_threads)

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        vocabulary_size: int,
        item_ids: ItemIds | None = None,
        *,
        max_length: int | None = None,
        packed: bool = False,
        num_threads: int | None = None,
    ) -> "Trie":
        """Index token sequences of different lengths, such as titles, entity names or n-grams.

        The index has max_length + 1 levels of V + 1 codes; code V is the end code and fills all levels after a sequence's end.
        A search needs V + 1 logits, the last for the end code: with a language model, copy the logit of its end-of-sequence
        token there. A finished beam costs nothing. The `codes` of results are padded in the same way; `sequences_of` strips the
        padding. Building costs as much as `build`.

        Args:
            sequences: N sequences of 0 to 64 tokens each. One may be a prefix of another, and several may be equal.
            vocabulary_size: V; tokens are 0 to V - 1.
            item_ids: As for `build`.
            max_length: The longest sequence that may be inserted later; by default the longest of `sequences`.
            packed: As for `build`.
            num_threads: As for `build`.

        Raises:
            CodesError: If a sequence is too long or a token is outside the vocabulary.
            ItemIdError: As for `build`.
            ArgumentError: If vocabulary_size or max_length is out of range.

        Examples:
            >>> names = Trie.from_sequences([[7, 3], [7], []], vocabulary_size=10, item_ids=["ab", "a", ""])
            >>> [7] in names, [3] in names, names.codes_of(["ab"]).tolist()
            (True, False, [[7, 3, 10]])
        """
        table = SequenceTable.of(sequences, vocabulary_size, max_length)
        return cls.from_table(
            table, table.codebook_sizes, item_ids, end_code=table.end_code, packed=packed, num_threads=num_threads
        )

    @classmethod
    def from_table(
        cls,
        table_NL: NDArray[np.integer] | SequenceTable,
        sizes: tuple[int, ...],
        item_ids: ItemIds | None,
        *,
        end_code: int | None,
        packed: bool = False,
        num_threads: int | None = None,
        may_be_new: bool = True,
    ) -> "Trie":
        """Build a trie of codes that are checked already.

        Args:
            table_NL: The codes.
            sizes: The number of codes of each level.
            item_ids: The checked ids; None for row numbers.
            end_code: As for `build`.
            packed: As for `build`.
            num_threads: As for `build`.
            may_be_new: False for ids that are in an index already; they are kept even if the rules for new ids would refuse
                them.
        """
        ids = None if item_ids is None else check_item_ids(item_ids, len(table_NL), may_be_new=may_be_new)
        table = build_levels(table_NL, sizes, num_threads)
        items = ItemTable(ids=ids, order_N=table.order_N, leaf_indptr=table.leaf_indptr)
        items.check_unique()
        return cls.from_levels(table.levels, items, table.num_leaves, end_code=end_code, packed=packed)

    @classmethod
    def from_levels(
        cls, levels: tuple[Level, ...], items: ItemTable, num_leaves: int, *, end_code: int | None, packed: bool
    ) -> "Trie":
        """Return the trie of levels that are built already. This reads all arrays once, to compute the version."""
        levels = tuple(level.packed() for level in levels) if packed else levels
        version = fingerprint(levels, items, end_code)
        return cls(levels=levels, items=items, num_leaves=num_leaves, version=version, end_code=end_code)

    def packed(self) -> "Trie":
        """Return this index with bit-packed codes (11 bits instead of 16 for 2,048 codes).

        It is smaller, a little slower, and has a version of its own.
        """
        return Trie.from_levels(self.levels, self.items, self.num_leaves, end_code=self.end_code, packed=True)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file (docs/reference/file-formats.md), which replaces an older one atomically."""
        tensors: Tensors = {"items.order": self.items.order_N}
        for number, level in enumerate(self.levels):
            tensors[f"level.{number}.codes"] = level.codes
            if level.firsts is not None:
                tensors[f"level.{number}.firsts"] = level.firsts
            if level.boundary is not None:
                tensors[f"level.{number}.words"] = level.boundary.words_W
                tensors[f"level.{number}.before"] = level.boundary.before_W
        if self.items.leaf_indptr is not None:
            tensors["items.first"] = self.items.leaf_indptr
        kind = "rows" if self.items.ids is None else "int64" if self.items.ids.dtype.kind == "i" else "utf-8"
        if self.items.ids is not None:
            ids = np.ascontiguousarray(self.items.ids)
            tensors["items.ids"] = ids if kind == "int64" else ids.view(np.uint8).reshape(len(ids), ids.dtype.itemsize)
        header = {
            "format_version": 2 if self.end_code is not None or any(level.width for level in self.levels) else 1,
            "version": self.version,
            "num_leaves": self.num_leaves,
            "num_items": self.items.num_items,
            "levels": [
                {"size": level.size, "num_nodes": level.num_nodes, **({"width": level.width} if level.width else {})}
                for level in self.levels
            ],
            "ids": kind,
            **({} if self.end_code is None else {"end_code": self.end_code}),
        }
        write(Path(path), KIND, header, tensors)

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> "Trie":
        """Read a file that `save` wrote.

        Args:
            path: The file.
            verify: If true, the file is read into memory and checked, so that later changes of the file have no effect. If
                false, the file is memory-mapped in milliseconds and trusted: if it is damaged, or changed in place later,
                searches give wrong items or end the process.

        Raises:
            IndexFileError: If the file is missing or damaged, or has a newer format.
        """
        header, tensors = read(Path(path), KIND, mapped=not verify)
        try:
            trie = _trie_of(header, tensors)
        except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
            raise IndexFileError(f"{path} is damaged ({type(error).__name__}: {error}): build and save it again") from error
        if verify:
            trie.verify(str(path))
        return trie

    def verify(self, name: str = "the index") -> None:
        """Check the arrays against the version, and that every search over them is safe.

        This reads all arrays twice, in several threads: 0.2 s for 10^7 items on two cores.

        Args:
            name: The name of the index in the message.

        Raises:
            IndexFileError: If anything is wrong.
        """
        if problem := find_problem(self.levels, self.items, self.num_leaves, self.end_code, self.version):
            raise IndexFileError(f"{name} is damaged ({problem}): copy it again, or build and save it again")

    def filter(self, mask: NDArray[np.bool_] | Sequence[bool] | None = None, *, item_ids: ItemIds | None = None) -> Filter:
        """Return the set of items where a mask is true, or of the items with some ids.

        A mask costs one read of it and a few nanoseconds for each item of the set; ids cost a search each. The first filter of
        an index also computes the place of each item, which takes 4 bytes per item.

        Args:
            mask: One boolean per item, in the caller's item order.
            item_ids: The ids of the items, in any order; they may repeat.

        Raises:
            FilterError: If the mask has the wrong length or dtype.
            ItemIdError: If an id is unknown.
        """
        if (mask is None) == (item_ids is None):
            raise ArgumentError("filter() takes a boolean mask or item_ids=...: pass one of the two")
        if item_ids is not None:
            return self.filter_of_rows(self.items.known_rows_of(item_ids))
        mask_N = np.asarray(mask)
        if mask_N.shape != (self.num_items,):
            raise FilterError(f"the mask has shape {mask_N.shape}: expected ({self.num_items:,},), one entry for each item")
        if mask_N.dtype != np.bool_ and mask_N.size:
            raise FilterError(f"the mask has dtype {mask_N.dtype}: expected bool; for a list of ids use filter(item_ids=...)")
        return self.filter_of(self.items.ordinals_of(Bitmap.from_mask(mask_N.astype(np.bool_, copy=False))))

    def filter_of(self, ordinals: Bitmap) -> Filter:
        """Return the filter of the items with these ordinals."""
        return Filter(parts=(ItemSet(items=self.items, bitmap=ordinals),), index=self)

    def filter_of_rows(self, rows_n: NDArray[np.int64]) -> Filter:
        """Return the filter of the items in these rows, which may repeat."""
        return self.filter_of(Bitmap.from_positions(self.items.ordinal_N[rows_n], self.num_items))

    @property
    def all_items(self) -> Filter:
        """Return the filter of all items."""
        return Filter(parts=(ItemSet(items=self.items),), index=self)

    @property
    def identity(self) -> object:
        """Return the version: tries with equal arrays can share filters."""
        return self.version

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        return tuple(level.size for level in self.levels)

    @property
    def num_levels(self) -> int:
        return len(self.levels)

    @property
    def num_items(self) -> int:
        return self.items.num_items

    @property
    def item_ids(self) -> NDArray[np.generic]:
        """Return the ids in the caller's order."""
        return self.items.ids_of(np.arange(self.num_items))

    @property
    def nbytes(self) -> int:
        """Return the bytes of the levels, without the item table (`items.nbytes`)."""
        return sum(level.nbytes for level in self.levels)

    @property
    def bytes_per_item(self) -> float:
        """Return `nbytes` divided by the number of items."""
        return self.nbytes / max(1, self.num_items)

    def codes_at(self, leaves: NDArray[np.integer] | Iterable[int]) -> NDArray[np.int64]:
        """Return the SID of each leaf, shape (n, L)."""
        leaves_n = np.asarray(leaves, np.int64)
        codes_nL = np.empty((*leaves_n.shape, self.num_levels), np.int64)
        for number, level in enumerate(self.levels):
            codes_nL[..., number] = level.codes_at(leaves_n)
        return codes_nL

    def codes_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the SID of each item, shape (n, L).

        Raises:
            ItemIdError: If an id is unknown.
        """
        return self.codes_at(self.items.leaves_of(self.items.known_rows_of(item_ids)))

    def sequences_of(self, item_ids: ItemIds) -> list[NDArray[np.int64]]:
        """Return the codes of each item before its end code.

        Raises:
            ItemIdError: If an id is unknown.
        """
        codes_nL = self.codes_of(item_ids)
        return [row[: row.size if self.end_code is None else int((row != self.end_code).sum())] for row in codes_nL]

    def find(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the row of each id in the caller's order, -1 for an unknown id."""
        return self.items.rows_of(item_ids)

    def knows(self, item_ids: ItemIds) -> NDArray[np.bool_]:
        """Return for each id whether the index has it."""
        return self.find(item_ids) >= 0

    def leaf_of(self, codes: Sequence[int]) -> int:
        """Return the leaf of a SID, or -1 if no item has it. End codes may be left out. This costs L binary searches."""
        if self.end_code is not None:
            codes = [*codes, *[self.end_code] * (self.num_levels - len(codes))]
        if len(codes) != self.num_levels:
            return -1
        lo, hi = 0, self.num_leaves
        for level, code in zip(self.levels, codes, strict=True):
            if not 0 <= int(code) < level.size:
                return -1
            lo, hi = level.find(lo, hi, int(code))
            if lo == hi:
                return -1
        return lo

    def __len__(self) -> int:
        return self.num_items

    def __contains__(self, codes: Sequence[int]) -> bool:
        return self.leaf_of(codes) >= 0

    def __repr__(self) -> str:
        sizes = "x".join(str(size) for size in self.codebook_sizes)
        return (
            f"Trie({counted(self.num_items, 'item')}, {counted(self.num_leaves, 'leaf', 'leaves')} of {sizes}, "
            f"{counted(self.nbytes, 'byte')}, {self.version})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (number, size, level.num_nodes, level.nbytes)
            for number, (size, level) in enumerate(zip(self.codebook_sizes, self.levels, strict=True), 1)
        ]
        caption = f"Trie {self.version}: {counted(self.num_items, 'item')}, {self.num_leaves:,} Semantic IDs"
        return html_table(caption, ["level", "codebook size", "prefixes", "bytes"], rows)


def _trie_of(header: Json, tensors: Tensors) -> Trie:
    num_leaves, num_items = int(header["num_leaves"]), int(header["num_items"])
    if not 0 <= num_leaves <= num_items <= MAX_ITEMS:
        raise ValueError(f"{counted(num_items, 'item')} on {counted(num_leaves, 'leaf', 'leaves')}")
    check_sizes([entry["size"] for entry in header["levels"]])
    levels = tuple(_level_of(number, entry, num_leaves, tensors) for number, entry in enumerate(header["levels"]))
    indptr = expect(tensors, "items.first", np.uint32, num_leaves + 1) if "items.first" in tensors else None
    if indptr is None and num_items != num_leaves:
        raise ValueError(f"{counted(num_items, 'item')} on {counted(num_leaves, 'leaf', 'leaves')} without items.first")
    ids = _ids_of(header["ids"], num_items, tensors)
    items = ItemTable(ids=ids, order_N=expect(tensors, "items.order", np.uint32, num_items), leaf_indptr=indptr)
    end_code = None if header.get("end_code") is None else int(header["end_code"])
    if end_code is not None and {level.size for level in levels} != {end_code + 1}:
        raise ValueError(f"end code {end_code} is not the last code of every level")
    return Trie(levels=levels, items=items, num_leaves=num_leaves, version=str(header["version"]), end_code=end_code)


def _level_of(number: int, entry: Json, num_leaves: int, tensors: Tensors) -> Level:
    size, num_nodes, width = int(entry["size"]), int(entry["num_nodes"]), int(entry.get("width", 0))
    if width not in (0, code_width(size)) or not 0 <= num_nodes <= num_leaves:
        raise ValueError(
            f"level {number} has {counted(num_nodes, 'node')} on {counted(num_leaves, 'leaf', 'leaves')}, "
            f"and codes of {counted(width, 'bit')} below {size}"
        )
    prefix, num_words = f"level.{number}.", num_leaves // 64 + 1
    firsts = expect(tensors, prefix + "firsts", np.uint32, num_nodes) if prefix + "firsts" in tensors else None
    num_codes = num_leaves if firsts is None else num_nodes
    length = packed_words(num_codes, width) if width else num_codes
    codes = expect(tensors, prefix + "codes", np.uint64 if width else code_dtype(size), length)
    boundary = None
    if prefix + "words" in tensors:
        words_W = expect(tensors, prefix + "words", np.uint64, num_words)
        before_W = expect(tensors, prefix + "before", np.uint32, num_words)
        boundary = Bitmap(words_W=words_W, before_W=before_W, size=num_leaves, count=num_nodes)
    elif num_nodes != num_leaves or firsts is not None:
        raise ValueError(
            f"level {number} has {counted(num_nodes, 'node')} on {counted(num_leaves, 'leaf', 'leaves')} and no boundary"
        )
    return Level(size=size, num_nodes=num_nodes, codes=codes, firsts=firsts, boundary=boundary, width=width)


def _ids_of(kind: str, num_items: int, tensors: Tensors) -> NDArray[np.generic] | None:
    if kind == "rows":
        return None
    if kind == "int64":
        return expect(tensors, "items.ids", np.int64, num_items)
    ids = tensors["items.ids"]
    if kind != "utf-8" or ids.dtype != np.uint8 or ids.ndim != 2 or len(ids) != num_items:
        raise ValueError(f"expected the ids of {counted(num_items, 'item')}, found {kind} {ids.dtype} {ids.shape}")
    return ids.view(f"S{ids.shape[1]}").reshape(-1)
