"""The largest number below each prefix of a trie. Shapes: N items, M leaves, S nodes of a level, n of one call, W words."""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import next_set, prev_set, rank
from leafbeam.index.level import Level
from leafbeam.index.lineage import Lineage
from leafbeam.index.trie import Trie
from leafbeam.jit import njit


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeMaxima:
    """The largest number of the items below each node of a trie, deleted items included.

    Memory: 4 bytes for each leaf and level; levels with few nodes take less.

    Args:
        levels: For each level float32, with an entry for each entry of `Level.codes`. Those are the nodes of a listing, or the
            leaves of a column, where only the first leaf of each node counts.
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

    def changed(self, trie: Trie, values_N: NDArray[np.float32], ordinals_n: NDArray[np.int64]) -> "NodeMaxima":
        """Return the maxima after the values of some items have changed.

        Cost: a copy, and a pass over the leaves below the prefixes of these items.

        Args:
            trie: The trie.
            values_N: All values, with the new ones.
            ordinals_n: The ordinals of the items whose values may have changed.
        """
        if not len(ordinals_n):
            return self
        indptr, leaves_n, leaves_M = trie.items.leaf_indptr, np.unique(ordinals_n), self.levels[-1].copy()
        if indptr is None:
            leaves_M[leaves_n] = values_N[leaves_n]
        else:
            leaves_n = np.unique(np.searchsorted(indptr, leaves_n, "right") - 1)
            leaves_M[leaves_n] = [values_N[indptr[leaf] : indptr[leaf + 1]].max() for leaf in leaves_n.tolist()]
        levels: list[NDArray[np.float32]] = []
        for level, before in zip(trie.levels, self.levels, strict=True):
            if level.boundary is None:
                levels.append(leaves_M)
                continue
            levels.append(before.copy())
            words_W, counts_W = level.boundary.words_W, level.boundary.before_W
            _change_nodes(words_W, counts_W, level.firsts is not None, leaves_n, leaves_M, levels[-1])
        return NodeMaxima(levels=tuple(levels), root=leaves_M.max())

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


@njit(cache=True, nogil=True, _nrt=False)
def _change_nodes(words_W, before_W, is_listing, leaves_n, leaves_M, maxima):
    """Write the maxima of the nodes that have these leaves, in order."""
    end = np.int64(-1)
    for leaf in leaves_n:
        if leaf < end:
            continue  # the same node as the leaf before
        start = prev_set(words_W, leaf)
        end = next_set(words_W, leaf + 1, np.int64(leaves_M.size))
        largest = leaves_M[start]
        for other in range(start + 1, end):
            largest = max(largest, leaves_M[other])
        maxima[rank(words_W, before_W, start) if is_listing else start] = largest
