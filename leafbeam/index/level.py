"""Codes, codebooks and the levels of a trie. Shapes: M leaves, S nodes of a level (prefixes that end there)."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import CodesError, counted
from leafbeam.index import bit_kernels as bits
from leafbeam.index.bitmap import Bitmap

MAX_LEVELS = 65  # 64 tokens and the end of a sequence
MAX_CODEBOOK = 2**31
MAX_ITEMS = 2**32 - 1


def code_dtype(codebook_size: int) -> type[np.uint8] | type[np.uint16] | type[np.uint32]:
    """Return the narrowest unsigned type that holds every code below `codebook_size`."""
    return np.uint8 if codebook_size <= 1 << 8 else np.uint16 if codebook_size <= 1 << 16 else np.uint32


def code_width(codebook_size: int) -> int:
    """Return the bits of a packed code."""
    return max(1, (codebook_size - 1).bit_length())


def packed_words(num_codes: int, width: int) -> int:
    """Return the uint64 words of packed codes, and one more that a read of the last code may touch."""
    return (num_codes * width + 63) // 64 + 1


def check_sizes(codebook_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the codebook sizes as ints; CodesError where they are not 1 to 65 sizes of 1 to 2^31 codes."""
    try:
        sizes = tuple(index(size) for size in codebook_sizes)
    except TypeError:
        raise CodesError(f"codebook_sizes={codebook_sizes!r}: expected whole numbers, one for each level") from None
    if not 1 <= len(sizes) <= MAX_LEVELS:
        raise CodesError(
            f"codebook_sizes has {counted(len(sizes), 'level')}: expected 1 to {MAX_LEVELS}, one size for each level"
        )
    for level, size in enumerate(sizes):
        if not 1 <= size <= MAX_CODEBOOK:
            raise CodesError(f"the codebook of level {level} has {counted(size, 'code')}: expected 1 to 2^31")
    return sizes


def check_codes(
    codes: NDArray[np.integer] | Sequence[Sequence[int]], codebook_sizes: Sequence[int]
) -> tuple[NDArray[np.integer], tuple[int, ...]]:
    """Return the table as a 2-D integer array and the codebook sizes as ints; CodesError where they are not. Codes are not
    read.
    """
    sizes = check_sizes(codebook_sizes)
    try:
        table = np.asarray(codes)
    except ValueError:
        raise CodesError(f"codes has rows of different lengths: expected {counted(len(sizes), 'code')} in each") from None
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
        raise CodesError(f"codes has {counted(len(table), 'row')}: one index holds at most {MAX_ITEMS:,} items")
    return table, sizes


def check_in_codebooks(codes_NL: NDArray[np.integer], sizes: Sequence[int], first_row: int = 0) -> None:
    """Raise CodesError at the first code outside its level's codebook. first_row: the number of row 0 in the message."""
    for row, level in np.argwhere((codes_NL < 0) | (codes_NL >= np.array(sizes)))[:1]:
        raise CodesError(
            f"row {first_row + row:,} has code {codes_NL[row, level]:,} at level {level}, whose codebook has "
            f"{counted(sizes[level], 'code')}: expected 0 <= code < {sizes[level]:,}; check the codes or use larger codebooks"
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Level:
    """The nodes of one level, in one of three layouts; the children of a leaf range are the nodes that start inside it.

    "listing" (few nodes): `codes` and `firsts` have an entry for each node; a range's first child is `boundary.rank(lo)`.
    "column" (many nodes): `codes` has an entry for each leaf, read where `boundary` has a bit; `firsts` is None. "leaves"
    (every leaf a node): a column with `boundary` None.

    Args:
        codes: uint8, uint16 or uint32; or packed, `width` bits each, in uint64 words (width 0: not packed).
        firsts: uint32, the first leaf of each node.
    """

    size: int
    num_nodes: int
    codes: NDArray[np.unsignedinteger]
    firsts: NDArray[np.uint32] | None
    boundary: Bitmap | None
    width: int = 0

    def __post_init__(self) -> None:
        assert self.width in (0, code_width(self.size))
        assert self.codes.dtype == (np.uint64 if self.width else code_dtype(self.size))
        assert len(self.codes) == (packed_words(self.num_codes, self.width) if self.width else self.num_codes)
        assert self.firsts is None or (self.boundary is not None and len(self.firsts) == self.num_nodes)
        assert self.boundary is None or self.boundary.count == self.num_nodes

    @property
    def layout(self) -> str:
        """ "listing", "column" or "leaves"."""
        return "listing" if self.firsts is not None else "leaves" if self.boundary is None else "column"

    @property
    def num_codes(self) -> int:
        """Return the entries of the listing, or the leaves of the column."""
        return self.num_nodes if self.firsts is not None or self.boundary is None else self.boundary.size

    @property
    def plain_codes(self) -> NDArray[np.unsignedinteger]:
        """Return the codes, unpacked where they are packed. Cost: none, or a copy."""
        return self._entries(np.arange(self.num_codes)).astype(code_dtype(self.size)) if self.width else self.codes

    def codes_at(self, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the code of this level on the path to each leaf. Cost: one or two reads a leaf."""
        # Leaves of another type would make numpy copy all of `firsts`.
        firsts = self.firsts
        entries = leaves if firsts is None else np.searchsorted(firsts, leaves.astype(firsts.dtype), side="right") - 1
        return self._entries(entries).astype(np.int64)

    def find(self, lo: int, hi: int, code: int) -> tuple[int, int]:
        """Return the range of the child of [lo, hi) with this code, or an empty range. Cost: two searches."""
        if self.firsts is not None:
            assert self.boundary is not None
            begin, end = self.boundary.rank(lo), self.boundary.rank(hi)
            node = self._first_at_least(begin, end, code)
            if node == end or self._first_at_least(node, end, code + 1) == node:
                return lo, lo
            return int(self.firsts[node]), int(self.firsts[node + 1]) if node + 1 < end else hi
        return self._first_at_least(lo, hi, code), self._first_at_least(lo, hi, code + 1)

    def _first_at_least(self, begin: int, end: int, code: int) -> int:
        if self.width:
            return bisect_left(range(end), code, begin, end, key=lambda entry: int(self._entries(np.array([entry]))[0]))
        return begin + int(np.searchsorted(self.codes[begin:end], code))

    def _entries(self, entries_n: NDArray[np.integer]) -> NDArray[np.unsignedinteger]:
        if not self.width:
            return self.codes[entries_n]
        bits_n = entries_n.astype(np.uint64) * np.uint64(self.width)
        words, shifts = bits_n >> np.uint64(6), bits_n & np.uint64(63)
        # Two shifts, because a shift by 64 is not defined; the word after the last code is there to be read.
        values = (self.codes[words] >> shifts) | (self.codes[words + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shifts))
        return values & np.uint64((1 << self.width) - 1)

    def packed(self) -> "Level":
        """Return the same level with its codes packed, or itself where that saves nothing. Cost: one pass over the codes."""
        width = code_width(self.size)
        if self.width or width == 8 * self.codes.dtype.itemsize:
            return self
        words_W = np.empty(packed_words(self.num_codes, width), np.uint64)
        bits.pack_code_bits(self.codes, width, words_W)
        return replace(self, codes=words_W, width=width)

    @property
    def nbytes(self) -> int:
        """Return the bytes of codes, first leaves and boundary."""
        return sum(part.nbytes for part in (self.codes, self.firsts, self.boundary) if part is not None)

    def __repr__(self) -> str:
        return (
            f"Level({counted(self.num_nodes, 'node')} of {counted(self.size, 'code')}, {self.layout}, "
            f"{counted(self.nbytes, 'byte')})"
        )
