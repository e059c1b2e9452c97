"""Walking a byte automaton and a token trie together: one step, and the arrays that it reads.

Shapes: X states, E edges, T states with a table row, C classes of bytes; P nodes of the trie.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import Any

import numpy as np

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.jit import njit

__all__ = ["living", "moves_of", "scratch_of", "tree_of"]

_NARROW = 8  # a state with at most so many edges, each of one byte, is looked up child by child

Arrays = tuple[Any, ...]


def moves_of(dfa: ByteDFA) -> Arrays:
    """(class_256, first_X1, byte_E, next_E, row_X, table_TC): edges with the one byte of their class; a table row for each
    state that has many edges, or one for several bytes, and -1 in `row_X` for the others."""
    size_256 = np.bincount(dfa.class_256, minlength=256)
    byte_256 = np.zeros(256, np.uint8)
    byte_256[dfa.class_256[::-1]] = np.arange(255, -1, -1)
    counts_X = np.diff(dfa.first_X1)
    wide_X = counts_X > _NARROW
    wide_X[np.repeat(np.arange(dfa.num_states), counts_X)[size_256[dfa.label_E] > 1]] = True
    row_X = np.where(wide_X, np.cumsum(wide_X) - 1, -1).astype(np.int32)
    table_TC = np.full((max(1, int(wide_X.sum())), int(dfa.class_256.max()) + 1), -1, np.int32)
    row_E = np.repeat(row_X, counts_X)
    table_TC[row_E[row_E >= 0], dfa.label_E[row_E >= 0]] = dfa.next_E[row_E >= 0]
    return dfa.class_256, dfa.first_X1, byte_256[dfa.label_E], dfa.next_E, row_X, table_TC


def tree_of(tokens: TokenTrie) -> Arrays:
    """(child_P, past_P, byte_P, lo_P, own_P, hi_P, height_P)."""
    return tokens.child_P, tokens.past_P, tokens.byte_P, tokens.lo_P, tokens.own_P, tokens.hi_P, tokens.height_P


def scratch_of(tokens: TokenTrie) -> Arrays:
    """(stack of nodes, stack of states, a node's living children, their states): a stack holds siblings on one path, no
    more."""
    depth = min(len(tokens.byte_P), 256 * (int(tokens.height_P[0]) + 1))
    return tuple(np.empty(size, np.int32) for size in (depth, depth, 256, 256))


@njit(cache=True, inline="always")
def living(node, state, class_256, first_X1, byte_E, next_E, row_X, table_TC, child_P, past_P, byte_P, child_256, state_256):
    """How many children of a trie node the automaton can follow from a state; which, and into which states, by byte."""
    begin, past = child_P[node], past_P[node]
    count = 0
    row = row_X[state]
    if row >= 0:
        for child in range(begin, past):
            target = table_TC[row, class_256[byte_P[child]]]
            child_256[count] = child
            state_256[count] = target
            count += target >= 0
    else:
        for edge in range(first_X1[state], first_X1[state + 1]):
            byte, low, high = byte_E[edge], begin, past
            while low < high:
                middle = (low + high) >> 1
                if byte_P[middle] < byte:
                    low = middle + 1
                else:
                    high = middle
            if low < past and byte_P[low] == byte:
                child_256[count] = low
                state_256[count] = next_E[edge]
                count += 1
    return count
