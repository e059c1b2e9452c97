"""The moves of a byte automaton, as walks over a token trie take them.

Shapes: X states, E edges, T states with a table row, C classes of bytes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.jit import njit

_NARROW = 8  # a state with at most so many edges, each of one byte, has no table row


class DfaMoves(NamedTuple):
    """The moves of a byte automaton: edges with the one byte of their class, and table rows for wide states.

    Args:
        row_X: The table row of a state that has many edges, or an edge for several bytes; -1 for the other states.
    """

    class_256: NDArray[np.uint8]
    edge_indptr: NDArray[np.int32]
    byte_E: NDArray[np.uint8]
    next_E: NDArray[np.int32]
    row_X: NDArray[np.int32]
    table_TC: NDArray[np.int32]


def moves_of(dfa: ByteDFA) -> DfaMoves:
    """Return the moves of a byte automaton. Cost: a pass over the edges, and 4 bytes for each class of a wide state."""
    class_256, edge_indptr, label_E, next_E = dfa.edges
    size_256 = np.bincount(class_256, minlength=256)
    byte_256 = np.zeros(256, np.uint8)
    byte_256[class_256[::-1]] = np.arange(255, -1, -1)
    counts_X = np.diff(edge_indptr)
    wide_X = counts_X > _NARROW
    wide_X[np.repeat(np.arange(dfa.num_states), counts_X)[size_256[label_E] > 1]] = True
    row_X = np.where(wide_X, np.cumsum(wide_X) - 1, -1).astype(np.int32)
    table_TC = np.full((max(1, int(wide_X.sum())), int(class_256.max()) + 1), -1, np.int32)
    row_E = np.repeat(row_X, counts_X)
    table_TC[row_E[row_E >= 0], label_E[row_E >= 0]] = next_E[row_E >= 0]
    return DfaMoves(class_256, edge_indptr, byte_256[label_E], next_E, row_X, table_TC)


@njit(cache=True, inline="always")
def move(state, byte, class_256, edge_indptr, byte_E, next_E, row_X, table_TC):
    """Return the state after a byte; -1 if no edge has the byte, or the state is -1."""
    target = np.int32(-1)
    if state >= 0:
        row = row_X[state]
        if row >= 0:
            target = table_TC[row, class_256[byte]]
        else:
            for edge in range(edge_indptr[state], edge_indptr[state + 1]):
                if byte_E[edge] == byte:
                    target = next_E[edge]
    return target
