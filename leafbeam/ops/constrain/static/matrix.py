"""STATIC's index of a set of Semantic IDs, built in numpy (Sections 4.2 and 4.3, Appendices A.1.1 and A.1.2).

A node is a prefix; its depth is the prefix's length, d the number of dense levels.

    depth < d:   the node is its prefix read as a number in base V. A bit mask over the codes says which children exist.
    depth = d:   a table gives the node of each prefix of d codes.
    depth >= d:  nodes are numbered level by level, in sorted order, from 1; 0 is no node. A row of the CSR matrix lists the
                 children as [code, node] pairs.

Shapes: M Semantic IDs, L levels, P prefixes of some depth, V codes of a level, E edges, S nodes, n nodes of one depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, counted

_CHUNK = 4_000_000
_MAX_ENTRIES = 2**31 - 1  # nodes and entries of the table are int32


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionMatrix:
    """The arrays of STATIC.

    Args:
        edges_E2: int32 [code, next node], padded by the largest branch factor of a sparse level.
        indptr_S1: int32, where each node's edges begin.
        max_branches: The largest number of children of a node of each depth, at least 1.
        masks: For each dense level, uint8 [P, H = V / 8], code c is bit c // H of byte c % H.
        node_of_P: int32, the node of each prefix of d codes, 0 if there is no such node; None if d is 0.
        first_node: The first node of each depth 0 to L; 0 where nodes are prefixes.
    """

    edges_E2: NDArray[np.int32]
    indptr_S1: NDArray[np.int32]
    max_branches: tuple[int, ...]
    masks: tuple[NDArray[np.uint8], ...]
    node_of_P: NDArray[np.int32] | None
    first_node: tuple[int, ...]
    codebook_sizes: tuple[int, ...]

    @property
    def dense_levels(self) -> int:
        """Return d, the number of dense levels."""
        return len(self.masks)

    @property
    def nbytes(self) -> int:
        """Return the bytes of STATIC's own arrays."""
        dense = sum(mask.nbytes for mask in self.masks) + (0 if self.node_of_P is None else self.node_of_P.nbytes)
        return self.edges_E2.nbytes + self.indptr_S1.nbytes + dense

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], codebook_sizes: Sequence[int], dense_levels: int = 2) -> TransitionMatrix:
        """Build the matrix of sorted, distinct SIDs, one row a level. Cost: a pass over the table for each level, and its
        arrays' memory.

        dense_levels: d, reduced to L if it is larger. Raises ArgumentError where the dense levels would need 2^31 entries.
        """
        sizes = tuple(int(size) for size in codebook_sizes)
        levels, size = codes_LM.shape
        if dense_levels < 0:
            raise ArgumentError(f"dense_levels is {dense_levels}: expected 0 or more")
        d = min(dense_levels, levels)
        if prod(sizes[:d]) > _MAX_ENTRIES or size * levels > _MAX_ENTRIES:
            raise ArgumentError(
                f"{counted(d, 'dense level')} of codebooks {sizes} would need "
                f"{counted(prod(sizes[:d]), 'entry', 'entries')}, {size:,} Semantic IDs up to "
                f"{counted(size * levels, 'node')}: STATIC numbers at most {_MAX_ENTRIES:,}; "
                "use fewer dense_levels or another backend"
            )
        change_M = _first_changes(codes_LM)
        nodes_L = np.cumsum(np.bincount(np.maximum(change_M, 0), minlength=levels))[:levels].tolist() if size else [0] * levels
        depths = [1, *nodes_L]  # nodes of each depth
        first_node = [0] * d + [1 + sum(depths[d:depth]) for depth in range(d, levels + 1)]
        masks: list[NDArray[np.uint8]] = []
        for level in range(d):
            firsts_n = np.flatnonzero(change_M <= level)
            num_bytes = -(-sizes[level] // 8)
            exists_PV = np.zeros((prod(sizes[:level]), 8 * num_bytes), np.bool_)
            exists_PV[prefix_numbers(codes_LM, firsts_n, sizes[:level]), codes_LM[level, firsts_n]] = True
            masks.append(np.packbits(exists_PV.reshape(-1, 8, num_bytes), axis=1, bitorder="little")[:, 0])
        node_of_P = None
        if d:
            firsts_n = np.flatnonzero(change_M < d)
            node_of_P = _aligned((prod(sizes[:d]),), np.int32)
            node_of_P[prefix_numbers(codes_LM, firsts_n, sizes[:d])] = first_node[d] + np.arange(len(firsts_n))
        max_branches = _max_branches(change_M, levels)
        edges_E2, indptr_S1 = _edges(codes_LM, change_M, d, first_node, sum(nodes_L[d:]), max(max_branches[d:], default=1))
        return cls(
            edges_E2=edges_E2,
            indptr_S1=indptr_S1,
            max_branches=tuple(max_branches),
            masks=tuple(masks),
            node_of_P=node_of_P,
            first_node=tuple(first_node),
            codebook_sizes=sizes,
        )


def _aligned(shape: tuple[int, ...], dtype: type[np.int32]) -> NDArray[np.int32]:
    """Return zeros that begin at a multiple of 64 bytes, which JAX can use in place."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


def _first_changes(codes_LM: NDArray[np.integer]) -> NDArray[np.int8]:
    """Return the first level at which each SID differs from the one before; -1 for the first."""
    levels, size = codes_LM.shape
    change_M = np.full(size, -1, np.int8)
    for begin in range(1, size, _CHUNK):
        end = min(size, begin + _CHUNK)
        for level in range(levels - 1, -1, -1):
            change_M[begin:end][codes_LM[level, begin:end] != codes_LM[level, begin - 1 : end - 1]] = level
    return change_M


def prefix_numbers(codes_LM: NDArray[np.integer], leaves_n: NDArray[np.integer], sizes: Sequence[int]) -> NDArray[np.int32]:
    """Return the prefix of each leaf as a number, the first code most significant."""
    prefix_n = np.zeros(len(leaves_n), np.int64)
    for level, size in enumerate(sizes):
        prefix_n = prefix_n * size + codes_LM[level, leaves_n]
    return prefix_n.astype(np.int32)


def _edges(
    codes_LM: NDArray[np.integer], change_M: NDArray[np.int8], d: int, first_node: list[int], num_edges: int, padding: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (edges_E2, indptr_S1), filled in place and in chunks: 10^8 SIDs need little beside the arrays themselves."""
    levels, size = codes_LM.shape
    edges_E2 = _aligned((num_edges + padding, 2), np.int32)
    indptr_S1 = _aligned((first_node[-1] + 1,), np.int32)
    edge = 0
    for level in range(d, levels):
        node, next_node = first_node[level], first_node[level + 1]
        for begin in range(0, size, _CHUNK):
            change = change_M[begin : begin + _CHUNK]
            child = change <= level
            count = int(child.sum())
            edges_E2[edge : edge + count, 0] = codes_LM[level, begin : begin + _CHUNK][child]
            edges_E2[edge : edge + count, 1] = np.arange(next_node, next_node + count)
            opens = np.flatnonzero(change[child] < level)
            indptr_S1[node : node + len(opens)] = edge + opens
            node, edge, next_node = node + len(opens), edge + count, next_node + count
    indptr_S1[-1] = edge
    return edges_E2, indptr_S1


def _max_branches(change_M: NDArray[np.int8], levels: int) -> list[int]:
    """Return the most children of a node of each depth, at least 1 so that a slice has a width."""
    largest: list[int] = []
    for level in range(levels):
        longest, open_since = 0, 0  # children of the node that is still open where a chunk begins
        for begin in range(0, len(change_M), _CHUNK):
            change = change_M[begin : begin + _CHUNK]
            change = change[change <= level]
            opens = np.flatnonzero(change < level)
            sizes = np.diff(np.concatenate([[-open_since], opens, [len(change)]]))
            longest, open_since = max(longest, int(sizes[:-1].max(initial=0))), int(sizes[-1])
        largest.append(max(1, longest, open_since))
    return largest
