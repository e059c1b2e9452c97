"""One level of a trie: the codes that extend a prefix, found by leaf range.

Shapes: M leaves, S nodes of this level (prefixes that end here), W words of 64 leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pleach.index.bitmap import Bitmap

__all__ = ["Level", "code_dtype"]


def code_dtype(codebook_size: int) -> type[np.uint8] | type[np.uint16] | type[np.uint32]:
    """The narrowest unsigned type that holds every code below `codebook_size`."""
    return np.uint8 if codebook_size <= 1 << 8 else np.uint16 if codebook_size <= 1 << 16 else np.uint32


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """The nodes of one level, in one of three layouts; the children of a range are the nodes that start inside it.

    listing (few nodes): `codes` and `firsts` have one entry for each node; a range's first child is `boundary.rank(lo)`.
    column (many nodes): `codes` has one entry for each leaf, read where `boundary` has a bit; `firsts` is None.
    column, every leaf a node: as above with `boundary` None.

    codes: uint8, uint16 or uint32. firsts: uint32, the first leaf of each node.
    """

    size: int
    num_nodes: int
    codes: NDArray[np.unsignedinteger]
    firsts: NDArray[np.uint32] | None
    boundary: Bitmap | None

    def __post_init__(self) -> None:
        assert self.codes.dtype == code_dtype(self.size)
        assert self.firsts is None or (self.boundary is not None and len(self.firsts) == len(self.codes) == self.num_nodes)
        assert self.boundary is None or self.boundary.count == self.num_nodes

    @property
    def layout(self) -> str:
        """ "listing", "column" or "leaves" (a column in which every leaf is a node)."""
        return "listing" if self.firsts is not None else "leaves" if self.boundary is None else "column"

    def codes_at(self, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """The code of this level on the path to each leaf. Cost: one or two reads a leaf."""
        if self.firsts is None:
            return self.codes[leaves].astype(np.int64)
        return self.codes[np.searchsorted(self.firsts, leaves, side="right") - 1].astype(np.int64)

    def find(self, lo: int, hi: int, code: int) -> tuple[int, int]:
        """The range of the child of [lo, hi) that has this code; an empty range where there is none. Cost: two searches."""
        if self.firsts is not None:
            assert self.boundary is not None
            begin, end = self.boundary.rank(lo), self.boundary.rank(hi)
            node = begin + int(np.searchsorted(self.codes[begin:end], code))
            if node == end or int(self.codes[node]) != code:
                return lo, lo
            return int(self.firsts[node]), int(self.firsts[node + 1]) if node + 1 < end else hi
        column = self.codes[lo:hi]
        return lo + int(np.searchsorted(column, code)), lo + int(np.searchsorted(column, code, side="right"))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, first leaves and boundary."""
        firsts = 0 if self.firsts is None else self.firsts.nbytes
        return self.codes.nbytes + firsts + (0 if self.boundary is None else self.boundary.nbytes)
