"""A deterministic finite automaton over bytes, minimal and without dead ends.

Shapes: X states, E edges, N strings, T bytes or tokens of all of them.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.determinize import used_bytes
from leafbeam.automata.minimize import Edges, minimize
from leafbeam.jit import njit


class DfaEdges(NamedTuple):
    """The edges of a `ByteDFA`.

    Args:
        class_256: The class of each byte; bytes of one class lead to the same state from every state. The edges of state x,
            ascending by class, are edge_indptr[x] to edge_indptr[x + 1] - 1.
    """

    class_256: NDArray[np.uint8]
    edge_indptr: NDArray[np.int32]
    label_E: NDArray[np.uint8]
    next_E: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ByteDFA:
    """The smallest DFA of a regular language of byte strings: state 0 is the start, the others follow breadth first.

    Cost: 5 bytes an edge and 5 a state; a transition is a binary search.

    Args:
        accepting_X: bool, the states in which a string may end. A language without strings has no states.

    Examples:
        >>> [ByteDFA.from_strings([b"ab", b"b"]).accepts(text) for text in (b"ab", b"b", b"a")]
        [True, True, False]
    """

    edges: DfaEdges
    accepting_X: NDArray[np.bool_]

    @classmethod
    def from_edges(
        cls,
        edge_indptr: NDArray[np.int64],
        byte_E: NDArray[np.uint8],
        next_E: NDArray[np.int32],
        accepting_X: NDArray[np.bool_],
        start: int,
    ) -> ByteDFA:
        """Build an automaton from edges: put bytes into classes, drop useless states, merge equal ones. Cost: O(E log X).

        The edges of state x are edge_indptr[x] to edge_indptr[x + 1] - 1, in any order, at most one for each byte.
        """
        class_256, consistent, seed = np.zeros(256, np.uint8), False, 0
        while not consistent:  # a hash of each byte's column, checked against every edge: a second seed is hardly ever needed
            seed += 1
            consistent = _classes(edge_indptr, byte_E, next_E, np.uint64(seed * 2 + 1), class_256)
        return cls.of_classes(class_256, Edges(*_by_class(edge_indptr, byte_E, next_E, class_256)), accepting_X, start)

    @classmethod
    def of_classes(cls, class_256: NDArray[np.uint8], edges: Edges, accepting_X: NDArray[np.bool_], start: int) -> ByteDFA:
        """Build an automaton from edges that are labelled with classes of bytes, and ascend by (from, label)."""
        block_X, edges = minimize(edges, accepting_X, start)
        num_blocks = int(block_X.max(initial=-1)) + 1
        accepting_Y = np.zeros(num_blocks, np.bool_)
        accepting_Y[block_X[accepting_X & (block_X >= 0)]] = True
        indptr = np.searchsorted(edges.from_E, np.arange(num_blocks + 1)).astype(np.int32)
        return cls(edges=DfaEdges(class_256, indptr, edges.label_E.astype(np.uint8), edges.to_E), accepting_X=accepting_Y)

    @classmethod
    def from_strings(cls, strings: Sequence[bytes]) -> ByteDFA:
        """Return the language of these strings; repeated ones count once. Cost: one sort and O(T log T)."""
        ordered = sorted(set(strings))
        parent_E, byte_E, accepting_X = prefix_tree(np.frombuffer(b"".join(ordered), np.uint8), indptr_of(ordered))
        edge_indptr = np.concatenate([[0], np.cumsum(np.bincount(parent_E, minlength=len(accepting_X)))])
        order = np.argsort(parent_E, kind="stable")
        return cls.from_edges(edge_indptr, byte_E[order], (order + 1).astype(np.int32), accepting_X, 0)

    @property
    def num_states(self) -> int:
        return len(self.accepting_X)

    @property
    def size(self) -> int:
        """Return the number of states, as of a network that is not yet determinised."""
        return self.num_states

    @property
    def is_empty(self) -> bool:
        return not len(self.accepting_X)

    @property
    def has_empty_string(self) -> bool:
        return bool(self.accepting_X[:1].any())

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.edges, self.accepting_X))

    @property
    def used_256(self) -> NDArray[np.bool_]:
        """Return the bytes that appear in some string of the language, as a mask."""
        return used_bytes(self.edges.class_256, self.edges.label_E)

    def accepts(self, text: bytes) -> bool:
        """Return whether the whole text is a string of the language."""
        if not self.num_states:
            return False
        state = run(self.edges, np.frombuffer(text, np.uint8), 0, len(text), 0)
        return state >= 0 and bool(self.accepting_X[state])

    def strings(self, max_count: int) -> list[bytes] | None:
        """Return the strings of the language, None if there are more than `max_count`."""
        class_256, indptr, label_E, next_E = self.edges
        found: list[bytes] = []
        waiting = [(0, b"")] if self.num_states else []
        while waiting:
            state, text = waiting.pop()
            if self.accepting_X[state]:
                found.append(text)
            if len(found) > max_count or len(text) > self.num_states:  # a string that visits a state twice: there is no end
                return None
            for edge in range(indptr[state], indptr[state + 1]):
                following = np.flatnonzero(class_256 == label_E[edge]).tolist()
                waiting += [(int(next_E[edge]), text + bytes([byte])) for byte in following]
        return sorted(found)

    def forced_bytes(self, state: int) -> bytes:
        """Return the bytes with which every string from a state begins: those before the first choice or end."""
        class_256, edge_indptr, label_E, next_E = self.edges
        forced = bytearray()
        while len(forced) < self.num_states and state >= 0 and not self.accepting_X[state]:
            edge = int(edge_indptr[state])
            candidates = np.flatnonzero(class_256 == label_E[edge]) if edge_indptr[state + 1] - edge == 1 else ()
            if len(candidates) != 1:
                break
            forced.append(int(candidates[0]))
            state = int(next_E[edge])
        return bytes(forced)

    def renumbered(self, number_X: NDArray[np.int32]) -> ByteDFA:
        """Return the same automaton under other state numbers (a permutation)."""
        class_256, edge_indptr, label_E, next_E = self.edges
        old_X = np.argsort(number_X)
        counts_X = np.diff(edge_indptr)[old_X]
        indptr = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts_X, dtype=np.int32)])
        order_E = np.repeat(edge_indptr[:-1][old_X] - indptr[:-1], counts_X) + np.arange(len(next_E))
        edges = DfaEdges(class_256, indptr, label_E[order_E], number_X[next_E[order_E]])
        return ByteDFA(edges=edges, accepting_X=self.accepting_X[old_X])


def indptr_of(strings: Sequence[bytes]) -> NDArray[np.int64]:
    """Return where each of some strings begins when they are joined, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.fromiter(map(len, strings), np.int64, len(strings)))])


@njit(cache=True, nogil=True, _nrt=False)
def run(edges, bytes_T, begin, end, state):
    """Return the state after bytes_T[begin:end], or -1 if they are not the beginning of a string."""
    for index in range(begin, end):
        label = edges.class_256[bytes_T[index]]
        low, high = edges.edge_indptr[state], edges.edge_indptr[state + 1]
        stop = high
        while low < high:
            middle = (low + high) >> 1
            if edges.label_E[middle] < label:
                low = middle + 1
            else:
                high = middle
        if low == stop or edges.label_E[low] != label:
            return -1
        state = edges.next_E[low]
    return state


@njit(cache=True)
def _mixed(first, second, seed):
    """Return a hash of two numbers."""
    state = (np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(second)) * seed
    state = (state ^ (state >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return state ^ (state >> np.uint64(29))


@njit(cache=True)
def _classes(edge_indptr, byte_E, next_E, seed, class_256):
    """Fill `class_256` from hashes of what each byte does; return whether every edge agrees with the classes."""
    column_256 = np.zeros(256, np.uint64)
    for state in range(len(edge_indptr) - 1):
        for edge in range(edge_indptr[state], edge_indptr[state + 1]):
            column_256[byte_E[edge]] += _mixed(state + 1, next_E[edge], seed)  # never 0, the hash of no edge
    first_256 = np.empty(256, np.int64)  # the first byte of each class
    count = 0
    for byte in range(256):
        number = 0
        while number < count and column_256[first_256[number]] != column_256[byte]:
            number += 1
        if number == count:
            first_256[count] = byte
            count += 1
        class_256[byte] = number
    size_256 = np.bincount(class_256, minlength=256)
    target_256, seen_256 = np.empty(256, np.int64), np.empty(256, np.int64)
    for state in range(len(edge_indptr) - 1):
        seen_256[:count] = 0
        for edge in range(edge_indptr[state], edge_indptr[state + 1]):
            number = class_256[byte_E[edge]]
            if seen_256[number] and target_256[number] != next_E[edge]:
                return False
            target_256[number] = next_E[edge]
            seen_256[number] += 1
        for number in range(count):
            if seen_256[number] and seen_256[number] != size_256[number]:
                return False
    return True


@njit(cache=True)
def _by_class(edge_indptr, byte_E, next_E, class_256):
    """Return one edge for each state and class, in place of one for each byte: (from, label, to)."""
    lowest_256 = np.full(256, 256, np.int64)
    for byte in range(255, -1, -1):
        lowest_256[class_256[byte]] = byte
    from_e, label_e, to_e = np.empty(len(byte_E), np.int32), np.empty(len(byte_E), np.int32), np.empty(len(byte_E), np.int32)
    count = 0
    for state in range(len(edge_indptr) - 1):
        for edge in range(edge_indptr[state], edge_indptr[state + 1]):
            label = class_256[byte_E[edge]]
            if lowest_256[label] == byte_E[edge]:
                from_e[count], label_e[count], to_e[count] = state, label, next_E[edge]
                count += 1
    return from_e[:count].copy(), label_e[:count].copy(), to_e[:count].copy()


@njit(cache=True)
def prefix_tree(labels_T, indptr):
    """Return a state for each prefix of some sequences, the empty one first: (parent, label) of each other, and where sequences
    end.

    Sequence n is labels_T[indptr[n] : indptr[n + 1]]; those with a common prefix follow each other.
    """
    parent_E, label_E = np.empty(len(labels_T), np.int32), np.empty(len(labels_T), labels_T.dtype)
    accepting_X = np.zeros(len(labels_T) + 1, np.bool_)
    longest = 0
    for row in range(len(indptr) - 1):
        longest = max(longest, indptr[row + 1] - indptr[row])
    path = np.zeros(longest + 1, np.int32)
    count = 1
    for row in range(len(indptr) - 1):
        begin, length = indptr[row], indptr[row + 1] - indptr[row]
        shared = 0
        if row:
            before = indptr[row - 1]
            while shared < min(length, begin - before) and labels_T[before + shared] == labels_T[begin + shared]:
                shared += 1
        for depth in range(shared, length):
            parent_E[count - 1], label_E[count - 1] = path[depth], labels_T[begin + depth]
            path[depth + 1] = count
            count += 1
        accepting_X[path[length]] = True
    return parent_E[: count - 1].copy(), label_E[: count - 1].copy(), accepting_X[:count].copy()
