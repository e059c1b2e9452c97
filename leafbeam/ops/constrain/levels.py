"""The levels of a trie as kernels read them, on a CPU and on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.level import Level

LISTING, COLUMN, LEAVES = 0, 1, 2  # the layouts of a level, as numbers


class LevelView(NamedTuple):
    """The arrays of one level of a trie and how they are laid out.

    Args:
        layout: `LISTING`, `COLUMN` or `LEAVES`.
        codes: The codes of the listing or column: plain integers, or uint64 words of packed codes.
        firsts: Shape (C,), uint32. The first leaf of each entry of a listing.
        words: Shape (W,), uint64. The words of the boundary bitmap.
        before: Shape (W,), uint32. The rank directory of that bitmap.
        num_leaves: The number of leaves of the trie.
        width: The bits of a packed code, 0 for plain codes.
    """

    layout: int
    codes: NDArray[np.integer]
    firsts: NDArray[np.uint32]
    words: NDArray[np.uint64]
    before: NDArray[np.uint32]
    num_leaves: int
    width: int

    @classmethod
    def of(cls, level: Level, num_leaves: int) -> LevelView:
        """Return a view of a level; an array that its layout does not have is replaced by a single zero."""
        no_firsts, no_words = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
        return cls(
            layout={"listing": LISTING, "column": COLUMN, "leaves": LEAVES}[level.layout],
            codes=level.codes,
            firsts=no_firsts if level.firsts is None else level.firsts,
            words=no_words if level.boundary is None else level.boundary.words_W,
            before=no_firsts if level.boundary is None else level.boundary.before_W,
            num_leaves=num_leaves,
            width=level.width,
        )
