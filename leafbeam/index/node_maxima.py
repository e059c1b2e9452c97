"""The largest number below each prefix of a trie. Shapes: N items, M leaves, S nodes of a level, n of one call."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.level import Level
from leafbeam.index.lineage import Lineage
from leafbeam.index.trie import Trie


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeMaxima:
    """The largest number of the items below each node of a trie, deleted items included.

    Memory: 4 bytes for each leaf and level; levels with few nodes take less.

    Args:
        levels: For each level float32, with an entry for each code of `Level.codes`: the nodes of a listing, or the leaves of a
            column, of which the first one of each node counts.
        root: The largest number of all.
        lineage: A key by which devices know the maxima that they have.
    """

    levels: tuple[NDArray[np.float32], ...]
    root: np.float32
    lineage: Lineage = field(default_factory=Lineage, repr=False)

    @classmethod
    def of(cls, trie: Trie, values_N: NDArray[np.float32]) -> "NodeMaxima":
        """Return the maxima of values by ordinal. Cost: a pass over the leaves for each level."""
        if not trie.num_leaves:
            return cls(levels=tuple(np.zeros(1, np.float32) for _ in trie.levels), root=np.float32(-np.inf))
        indptr = trie.items.leaf_indptr
        leaves_M = np.ascontiguousarray(values_N if indptr is None else np.maximum.reduceat(values_N, indptr[:-1]), np.float32)
        return cls(levels=tuple(_of_level(level, leaves_M) for level in trie.levels), root=leaves_M.max())

    def at(self, trie: Trie, level: int, lo_n: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the values of nodes of a level, by their first leaves. Cost: a rank for each node."""
        return self.levels[level][_entries_of(trie.levels[level], lo_n)]


def _entries_of(level: Level, lo_n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the nodes that begin at these leaves stand in `Level.codes`."""
    if level.firsts is None:
        return lo_n
    assert level.boundary is not None
    return level.boundary.ranks(lo_n).astype(np.int64)


def _of_level(level: Level, leaves_M: NDArray[np.float32]) -> NDArray[np.float32]:
    if level.boundary is None:  # every leaf is a node
        return leaves_M
    if level.firsts is not None:
        return np.maximum.reduceat(leaves_M, level.firsts)
    starts_S = level.boundary.positions()
    maxima_M = leaves_M.copy()
    maxima_M[starts_S] = np.maximum.reduceat(leaves_M, starts_S)
    return maxima_M
