"""STATIC's arrays from a sorted table of SIDs, filled in place: 10^8 items need the arrays and two bytes an item beside them.

    number the distinct prefixes of each length, level by level: a first code c is node c, then every longer prefix in order
    first d levels:  a dense mask and (d = 2) the node of every pair of codes
    other levels:    one [code, next node] row for each edge, and for each node where its rows begin (§4.2, A.1)

`static.build_arrays` makes the same from an unsorted table, with more memory.

Shapes: M SIDs, L levels, V codes, E edges, S nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

__all__ = ["CsrArrays"]

_CHUNK = 4_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class CsrArrays:
    """edges_E2: int32 [code, next node], padded by the largest branch. row_S1: int32. branches: the largest of each level.

    first_V, second_VV: bool. second_node_VV: int32. The last two are None where only one level is dense.
    """

    edges_E2: NDArray[np.int32]
    row_S1: NDArray[np.int32]
    branches: tuple[int, ...]
    first_V: NDArray[np.bool_]
    second_VV: NDArray[np.bool_] | None
    second_node_VV: NDArray[np.int32] | None
    codebook_size: int
    dense_levels: int

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], codebook_size: int, dense_levels: int = 2) -> CsrArrays:
        """From sorted, distinct SIDs, one row a level. Cost: a pass over the table for each level."""
        if dense_levels not in (1, 2):
            raise ArgumentError(f"dense_levels is {dense_levels}: expected 1 or 2, what the paper's code supports")
        levels, size = codes_LM.shape
        dense = min(dense_levels, levels)
        first_change_M = _first_changes(codes_LM)
        nodes_L = np.cumsum(np.bincount(first_change_M, minlength=levels))[:levels]
        offset_L = np.concatenate([[0, codebook_size], codebook_size + np.cumsum(nodes_L[1:])])[:levels]
        widest = _largest_branches(first_change_M, levels)
        edges_E2 = _aligned((int(nodes_L[dense:].sum()) + max(widest), 2), np.int32)
        edges_E2[len(edges_E2) - max(widest) :] = codebook_size - 1
        row_S1 = _aligned((int(offset_L[-1]) + 1,), np.int32)
        first_V = np.zeros(codebook_size, np.bool_)
        first_V[codes_LM[0, first_change_M <= 0] if size else []] = True
        second_VV = second_node_VV = None
        if dense == 2:
            starts = first_change_M <= 1
            pair = codes_LM[0, starts].astype(np.int64), codes_LM[1, starts].astype(np.int64)
            second_VV = _aligned((codebook_size, codebook_size), np.bool_)
            second_node_VV = _aligned((codebook_size, codebook_size), np.int32)
            second_VV[pair] = True
            second_node_VV[pair] = codebook_size + np.arange(len(pair[0]), dtype=np.int32)
        edge = 0
        for level in range(dense, levels):
            node = int(offset_L[level - 1])
            first_edge, next_node = edge, int(offset_L[level])
            counts_V = np.zeros(codebook_size + 1, np.int64)
            for begin in range(0, size, _CHUNK):
                change = first_change_M[begin : begin + _CHUNK]
                child = change <= level
                count = int(child.sum())
                edges_E2[edge : edge + count, 0] = codes_LM[level, begin : begin + _CHUNK][child]
                edges_E2[edge : edge + count, 1] = np.arange(next_node, next_node + count)
                if level == 1:  # the parent's number is its code: codes without items have no children
                    counts_V[1:] += np.bincount(codes_LM[0, begin : begin + _CHUNK][child], minlength=codebook_size)
                else:
                    opens = np.flatnonzero(change[child] < level)
                    row_S1[node : node + len(opens)] = edge + opens
                    node += len(opens)
                edge, next_node = edge + count, next_node + count
            if level == 1:
                row_S1[: codebook_size + 1] = first_edge + np.cumsum(counts_V)
        row_S1[-1] = edge
        return cls(
            edges_E2=edges_E2,
            row_S1=row_S1,
            branches=tuple(widest),
            first_V=first_V,
            second_VV=second_VV,
            second_node_VV=second_node_VV,
            codebook_size=codebook_size,
            dense_levels=dense,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, with the dense masks counted as bits as in the paper's Appendix B."""
        dense = len(self.first_V) // 8
        if self.second_VV is not None and self.second_node_VV is not None:
            dense += self.second_VV.size // 8 + self.second_node_VV.nbytes
        return self.edges_E2.nbytes + self.row_S1.nbytes + dense

    @staticmethod
    def needs(nodes_L: list[int], codebook_size: int, dense_levels: int = 2) -> int:
        """Bytes that the arrays hold in memory, with masks of one byte an entry, before any is made."""
        deep = 8 * sum(nodes_L[dense_levels:]) + 4 * (codebook_size + sum(nodes_L[1:-1]))
        return deep + 5 * codebook_size**2 * (dense_levels == 2)


def _aligned(shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
    """Zeros that begin at a multiple of 64 bytes, which JAX can use in place."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


def _first_changes(codes_LM: NDArray[np.integer]) -> NDArray[np.int8]:
    """The first level at which each SID differs from the one before; 0 for the first."""
    levels, size = codes_LM.shape
    first_change_M = np.zeros(size, np.int8)
    for begin in range(1, size, _CHUNK):
        end = min(size, begin + _CHUNK)
        for level in range(levels - 1, -1, -1):
            first_change_M[begin:end][codes_LM[level, begin:end] != codes_LM[level, begin - 1 : end - 1]] = level
    return first_change_M


def _largest_branches(first_change_M: NDArray[np.int8], levels: int) -> list[int]:
    """How many children the widest node of each level has, at least 1 so that a slice has a width."""
    largest = [int((first_change_M <= 0).sum())]
    for level in range(1, levels):
        most, open_since = 0, 0  # children of the node that is still open where a chunk begins
        for begin in range(0, len(first_change_M), _CHUNK):
            change = first_change_M[begin : begin + _CHUNK]
            change = change[change <= level]
            opens = np.flatnonzero(change < level)
            sizes = np.diff(np.concatenate([[-open_since], opens, [len(change)]]))
            most = max(most, int(sizes[:-1].max(initial=0)))
            open_since = int(sizes[-1])
        largest.append(max(most, open_since))
    return [max(1, branch) for branch in largest]
