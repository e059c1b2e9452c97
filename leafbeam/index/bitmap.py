"""Bitmaps over leaves, with rank: the set type of the index. Shapes: W words of 64 positions, N positions, M of them set."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import counted
from leafbeam.index import bit_kernels as bits
from leafbeam.index.lineage import Lineage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Bitmap:
    """A set of positions that counts how many of them lie before any position.

    Memory: 1.5 bits for each position, whatever the set. `rank` reads two words; `&`, `|`, `-` and `~` read each word once.

    Args:
        words_W: uint64, `size // 64 + 1` of them; position i is bit `i % 64` of word `i // 64`; bits beyond `size` are 0.
        before_W: uint32, the rank directory: the number of positions of the set before each word.
        lineage: How the bitmap was made from others; devices know their bitmaps by it.

    Examples:
        >>> Bitmap.from_mask(np.array([True, False, True])).rank(2)
        1
    """

    words_W: NDArray[np.uint64]
    before_W: NDArray[np.uint32]
    size: int
    count: int
    lineage: Lineage = field(default_factory=Lineage)

    @classmethod
    def from_words(cls, words_W: NDArray[np.uint64], size: int, lineage: Lineage | None = None) -> "Bitmap":
        """Take words whose bits beyond `size` are 0 and add the rank directory. Cost: one read of the words."""
        assert words_W.shape == (size // 64 + 1,)
        before_W = np.empty(words_W.shape, np.uint32)
        count = int(bits.rank_directory(words_W, before_W))
        return cls(words_W=words_W, before_W=before_W, size=size, count=count, lineage=lineage or Lineage())

    @classmethod
    def from_mask(cls, mask_N: NDArray[np.bool_]) -> "Bitmap":
        """Return the positions where a boolean array is true."""
        words_W = np.zeros(mask_N.size // 64 + 1, np.uint64)
        words_W.view(np.uint8)[: -(-mask_N.size // 8)] = np.packbits(mask_N, bitorder="little")
        return cls.from_words(words_W, mask_N.size)

    @classmethod
    def from_positions(cls, positions_M: NDArray[np.integer], size: int) -> "Bitmap":
        """Return these positions, each below `size`, in any order; repeated ones count once."""
        words_W = np.zeros(size // 64 + 1, np.uint64)
        bits.set_bits(positions_M, words_W)
        return cls.from_words(words_W, size)

    @classmethod
    def full(cls, size: int) -> "Bitmap":
        """Return every position below `size`."""
        words_W = np.full(size // 64 + 1, np.iinfo(np.uint64).max, np.uint64)
        return cls.from_words(_cleared_beyond(words_W, size), size, Lineage.of_full(size))

    def any_by_group(self, group_indptr: NDArray[np.uint32]) -> "Bitmap":
        """Return the groups that hold a position of the set. Group g is positions indptr[g] to indptr[g + 1] - 1; no group is
        empty.
        """
        size = len(group_indptr) - 1
        words_W = np.empty(size // 64 + 1, np.uint64)
        before_W = np.empty(words_W.shape, np.uint32)
        count = int(bits.any_by_group(self.words_W, group_indptr, words_W, before_W))
        lineage = self.lineage.grouped(group_indptr)
        return Bitmap(words_W=words_W, before_W=before_W, size=size, count=count, lineage=lineage)

    def rank(self, position: int) -> int:
        """Return how many positions of the set are smaller than `position` (0 <= position <= size). Two reads, no search."""
        assert 0 <= position <= self.size
        position = int(position)  # a shift by 63 of numpy's int64 overflows
        word = int(self.words_W[position >> 6]) & ((1 << (position & 63)) - 1)
        return int(self.before_W[position >> 6]) + word.bit_count()

    def ranks(self, positions_n: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the rank of many positions."""
        out_n = np.empty(len(positions_n), np.int64)
        bits.rank_many(self.words_W, self.before_W, positions_n, out_n)
        return out_n

    def has(self, positions_n: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which of the positions, each below `size`, are in the set."""
        words_n, bits_n = _word_and_bit(positions_n)
        return (self.words_W[words_n] & bits_n) != 0

    def without(self, positions_n: NDArray[np.integer]) -> "Bitmap":
        """Return the set without some positions. Cost: one copy of the words."""
        words_W = self.words_W.copy()
        words_n, bits_n = _word_and_bit(positions_n)
        np.bitwise_and.at(words_W, words_n, ~bits_n)
        return Bitmap.from_words(words_W, self.size, self.lineage.changed(np.unique(words_n)))

    def positions(self) -> NDArray[np.int64]:
        """Return all positions of the set, ascending."""
        out_M = np.empty(self.count, np.int64)
        bits.positions_of(self.words_W, out_M)
        return out_M

    @property
    def nbytes(self) -> int:
        """Return the bytes of the words and of the rank directory."""
        return self.words_W.nbytes + self.before_W.nbytes

    def __contains__(self, position: int) -> bool:
        if not 0 <= position < self.size:
            return False
        position = int(position)  # a shift of numpy's int64 takes no word above 2^63
        return bool((int(self.words_W[position >> 6]) >> (position & 63)) & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitmap) and self.size == other.size and np.array_equal(self.words_W, other.words_W)

    def __hash__(self) -> int:
        return hash((self.size, self.words_W.tobytes()))

    def __and__(self, other: "Bitmap") -> "Bitmap":
        lineage = Lineage.combined("and", self.lineage, other.lineage)
        return Bitmap.from_words(self.words_W & self._same_size(other).words_W, self.size, lineage)

    def __or__(self, other: "Bitmap") -> "Bitmap":
        lineage = Lineage.combined("or", self.lineage, other.lineage)
        return Bitmap.from_words(self.words_W | self._same_size(other).words_W, self.size, lineage)

    def __sub__(self, other: "Bitmap") -> "Bitmap":
        lineage = Lineage.combined("minus", self.lineage, other.lineage)
        return Bitmap.from_words(self.words_W & ~self._same_size(other).words_W, self.size, lineage)

    def __invert__(self) -> "Bitmap":
        lineage = Lineage.combined("minus", Lineage.of_full(self.size), self.lineage)
        return Bitmap.from_words(_cleared_beyond(~self.words_W, self.size), self.size, lineage)

    def __repr__(self) -> str:
        return f"Bitmap({self.count:,} of {counted(self.size, 'position')})"

    def _same_size(self, other: "Bitmap") -> "Bitmap":
        assert self.size == other.size, (self.size, other.size)
        return other


def _cleared_beyond(words_W: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Return the words, in place, with the bits beyond `size` set to 0."""
    words_W[-1] &= np.uint64((1 << (size & 63)) - 1)
    return words_W


def _word_and_bit(positions_n: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the word that holds each position, and the position's bit in it."""
    positions = positions_n.astype(np.int64, copy=False)
    return positions >> 6, np.uint64(1) << (positions & 63).astype(np.uint64)
