"""Languages joined at nodes, as one byte automaton: sequences, unions, options and repetitions without a pattern's text.

    network = Network(max_states)
    item, done = network.node(), network.node()
    network.add_text(START, b"[", item)
    network.add(item, integers, done)          # a byte automaton between two nodes
    network.add_text(done, b",", item)         # a repetition is a path back
    network.add_text(done, b"]", END)
    network.language()

The language has the string of every path from START to END. A part is copied each time it is used. One determinisation (Rabin
and Scott, 1959) of all paths merges what they have in common, and the result is minimised.

Shapes: X states of the copies and nodes, E edges, F edges without a byte, J classes of bytes, Z members of all sets.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.minimize import Edges
from leafbeam.errors import AutomatonError, counted
from leafbeam.jit import njit

START, END = 0, 1
_SPARE = 4  # before minimisation there may be this many times more states than the limit
_MAX_MEMBERS = 1 << 26


class Network:
    """Nodes, and the languages between them; `language` ends the construction.

    Args:
        what: The name of what is built, for errors.
        pointer: The JSON pointer of what is built, for errors.

    Examples:
        >>> network = Network(100)
        >>> for text in (b"ab", b"b"):
        ...     network.add_text(START, text, END)
        >>> [network.language().accepts(text) for text in (b"ab", b"b", b"a")]
        [True, True, False]
    """

    def __init__(self, max_states: int, what: str = "the language", *, pointer: str | None = None) -> None:
        self._max_states, self._what, self._pointer = max_states, what, pointer
        self._num_states = 2
        self._parts: list[tuple[ByteDFA, int]] = []  # with the number of their first state
        self._texts: list[tuple[int, bytes, int, int]] = []  # (node, text, number of the first inner state, node)
        self._skips: list[tuple[int, int]] = []

    def node(self) -> int:
        """Return a new node."""
        return self._numbered(1)

    def add(self, node: int, language: ByteDFA, to: int) -> None:
        """Join two nodes by the strings of a language; an empty language joins nothing."""
        if not language.num_states:
            return
        first = self._numbered(language.num_states)
        self._parts.append((language, first))
        self._skips.append((node, first))
        self._skips += [(first + state, to) for state in np.flatnonzero(language.accepting_X).tolist()]

    def add_text(self, node: int, text: bytes, to: int) -> None:
        """Join two nodes by one string."""
        if not text:
            self._skips.append((node, to))
            return
        self._texts.append((node, text, self._numbered(len(text) - 1), to))

    def skip(self, node: int, to: int) -> None:
        """Let paths go from one node to another without a byte."""
        self._skips.append((node, to))

    def language(self) -> ByteDFA:
        """Return the language of all paths from START to END. Raises AutomatonError above the limit of states.

        Cost: linear in the copies if a string can be in only a few of them at a time; exponential at worst, up to the limit.
        """
        class_256, first_J = self._classes()
        edges = self._edges(class_256, first_J)
        skip_F2 = np.array(self._skips, np.int32).reshape(-1, 2)
        skip_F2 = skip_F2[np.argsort(skip_F2[:, 0], kind="stable")]
        numbers = np.arange(self._num_states + 1)
        from_e, label_e, to_e, accepting_Y = _determinize(
            np.searchsorted(edges.from_E, numbers),
            edges.label_E,
            edges.to_E,
            np.searchsorted(skip_F2[:, 0], numbers),
            np.ascontiguousarray(skip_F2[:, 1]),
            len(first_J),
            _SPARE * self._max_states,
        )
        if len(accepting_Y) > _SPARE * self._max_states:
            raise self._too_large()
        if not len(accepting_Y):
            return ByteDFA.from_strings([])
        dfa = ByteDFA.of_classes(class_256, Edges(from_e, label_e, to_e), accepting_Y, 0)
        if dfa.num_states > self._max_states:
            raise self._too_large()
        return dfa

    def _numbered(self, count: int) -> int:
        first, self._num_states = self._num_states, self._num_states + count
        if self._num_states > 2 * _SPARE * self._max_states:
            raise self._too_large()
        return first

    def _too_large(self) -> AutomatonError:
        return AutomatonError(
            f"{self._what} unrolls to more than max_states={counted(self._max_states, 'state')}: simplify it, "
            "bound repetitions more "
            "tightly, or raise the limit",
            pointer=self._pointer,
        )

    def _classes(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return (class_256, first_J): classes of bytes that all parts and texts treat alike, and each class's first byte."""
        used = sorted({byte for _, text, _, _ in self._texts for byte in text})
        text_256 = np.zeros(256, np.int64)
        text_256[used] = np.arange(1, len(used) + 1)
        return common_classes([text_256, *{id(part): part.edges.class_256 for part, _ in self._parts}.values()])

    def _edges(self, class_256: NDArray[np.uint8], first_J: NDArray[np.int64]) -> Edges:
        """Return the edges of all copies, ascending by state; labels are classes."""
        relabelled = {id(part): relabel(part, first_J) for part, _ in self._parts}
        parts = [Edges(*(np.empty(0, np.int32) for _ in range(3)))]
        for part, first in self._parts:
            edges = relabelled[id(part)]
            parts.append(Edges(edges.from_E + np.int32(first), edges.label_E, edges.to_E + np.int32(first)))
        for node, text, first, to in self._texts:
            inner = np.arange(first, first + len(text) - 1, dtype=np.int32)
            path = np.concatenate([np.array([node], np.int32), inner, np.array([to], np.int32)])
            parts.append(Edges(path[:-1], class_256[np.frombuffer(text, np.uint8)].astype(np.int32), path[1:]))
        edges = Edges(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        return edges.take(np.argsort(edges.from_E, kind="stable"))


def common_classes(classes: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (class_256, first_J): classes of bytes that share a class in every table, and each class's first byte."""
    class_256, first_J = np.zeros(256, np.int64), np.zeros(1, np.int64)
    for column in classes:
        _, first_J, class_256 = np.unique(class_256 * 257 + column, return_index=True, return_inverse=True)
        class_256 = class_256.reshape(-1)
    return class_256.astype(np.uint8), first_J


def relabel(dfa: ByteDFA, first_J: NDArray[np.int64]) -> Edges:
    """Return the edges, labelled with finer classes, whose first bytes are given."""
    indptr, label_E, next_E = dfa.edges.edge_indptr, dfa.edges.label_E, dfa.edges.next_E
    coarse_J = dfa.edges.class_256[first_J]
    order_J = np.argsort(coarse_J, kind="stable")
    begin_E, end_E = (np.searchsorted(coarse_J[order_J], label_E, side=side) for side in ("left", "right"))
    edge_e = np.repeat(np.arange(len(label_E)), end_E - begin_E)
    within_e = np.arange(len(edge_e)) - np.repeat(np.cumsum(end_E - begin_E) - (end_E - begin_E), end_E - begin_E)
    from_E = np.repeat(np.arange(dfa.num_states, dtype=np.int32), np.diff(indptr))
    return Edges(from_E[edge_e], order_J[begin_E[edge_e] + within_e].astype(np.int32), next_E[edge_e])


@njit(cache=True)
def _doubled(array):
    return np.concatenate((array, np.empty_like(array)))


@njit(cache=True)
def _hashed(members):
    state = np.uint64(len(members))
    for member in members:
        state = (state ^ np.uint64(member)) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return state


@njit(cache=True)
def _determinize(indptr, label_E, to_E, skip_indptr, skip_F, num_labels, max_sets):
    """Return (from, label, to, accepting): the sets of states that strings from START reach, edges ascending by (from, label).

    Sets contain only states that have an edge, and END. The search stops above `max_sets`, or when sets have too many members.
    """
    num_states = len(indptr) - 1
    set_X = np.full(num_states, -1, np.int32)  # the set of a single state and the states it reaches without a byte; -2: no set
    stamp_X, stamp = np.zeros(num_states, np.int64), np.int64(0)
    stack_X, closed_X = np.empty(num_states, np.int32), np.empty(num_states, np.int32)
    member_Z, begin_Y = np.empty(1024, np.int32), np.zeros(1024, np.int64)
    slot_H, hash_Y = np.full(1 << 12, -1, np.int32), np.empty(1024, np.uint64)
    from_e, label_e, to_e = np.empty(4096, np.int32), np.empty(4096, np.int32), np.empty(4096, np.int32)
    bucket_J, target_e = np.zeros(num_labels + 1, np.int64), np.empty(1024, np.int32)
    targets = np.zeros(1, np.int32)  # START
    count, num_edges, source, label = 0, 0, -1, 0
    while True:
        # For each label of the source, the set of its targets; at the beginning, that of START.
        while label < num_labels:
            if source >= 0:
                targets = target_e[bucket_J[label] : bucket_J[label + 1]]
            if len(targets) == 0:
                label += 1
                continue
            known = set_X[targets[0]] if len(targets) == 1 else np.int32(-1)
            if known == -1:
                stamp += 1
                size, depth = 0, 0
                for target in targets:
                    if stamp_X[target] != stamp:
                        stamp_X[target], stack_X[depth] = stamp, target
                        depth += 1
                while depth:
                    depth -= 1
                    state = stack_X[depth]
                    if indptr[state + 1] > indptr[state] or state == END:
                        closed_X[size] = state
                        size += 1
                    for index in range(skip_indptr[state], skip_indptr[state + 1]):
                        other = skip_F[index]
                        if stamp_X[other] != stamp:
                            stamp_X[other], stack_X[depth] = stamp, other
                            depth += 1
                members = closed_X[:size]
                members.sort()
                hashed = _hashed(members)
                slot = np.int64(hashed & np.uint64(len(slot_H) - 1))
                while size and slot_H[slot] >= 0:
                    other = slot_H[slot]
                    if hash_Y[other] == hashed and np.array_equal(member_Z[begin_Y[other] : begin_Y[other + 1]], members):
                        break
                    slot = (slot + 1) & (len(slot_H) - 1)
                if size == 0:
                    known = np.int32(-2)
                elif slot_H[slot] >= 0:
                    known = slot_H[slot]
                else:
                    known = np.int32(count)
                    slot_H[slot] = known
                    while begin_Y[count] + size > len(member_Z):
                        member_Z = _doubled(member_Z)
                    if count + 2 > len(begin_Y):
                        begin_Y, hash_Y = _doubled(begin_Y), _doubled(hash_Y)
                    member_Z[begin_Y[count] : begin_Y[count] + size] = members
                    begin_Y[count + 1], hash_Y[count] = begin_Y[count] + size, hashed
                    count += 1
                    if 2 * count > len(slot_H):
                        slot_H = np.full(2 * len(slot_H), -1, np.int32)
                        for other in range(count):
                            slot = np.int64(hash_Y[other] & np.uint64(len(slot_H) - 1))
                            while slot_H[slot] >= 0:
                                slot = (slot + 1) & (len(slot_H) - 1)
                            slot_H[slot] = other
                if len(targets) == 1:
                    set_X[targets[0]] = known
            if source < 0:
                break
            if known >= 0:
                if num_edges == len(from_e):
                    from_e, label_e, to_e = _doubled(from_e), _doubled(label_e), _doubled(to_e)
                from_e[num_edges], label_e[num_edges], to_e[num_edges] = source, label, known
                num_edges += 1
            label += 1
        source, label = source + 1, 0
        if source >= count or count > max_sets or begin_Y[count] > _MAX_MEMBERS:
            break
        # The targets of all members by label.
        bucket_J[:] = 0
        for index in range(begin_Y[source], begin_Y[source + 1]):
            for edge in range(indptr[member_Z[index]], indptr[member_Z[index] + 1]):
                bucket_J[label_E[edge] + 1] += 1
        for at in range(num_labels):
            bucket_J[at + 1] += bucket_J[at]
        while bucket_J[num_labels] > len(target_e):
            target_e = _doubled(target_e)
        for index in range(begin_Y[source], begin_Y[source + 1]):
            for edge in range(indptr[member_Z[index]], indptr[member_Z[index] + 1]):
                target_e[bucket_J[label_E[edge]]] = to_E[edge]
                bucket_J[label_E[edge]] += 1
        for at in range(num_labels, 0, -1):  # back to where each label begins
            bucket_J[at] = bucket_J[at - 1]
        bucket_J[0] = 0
    accepting_Y = np.zeros(max(count, max_sets + 1 if begin_Y[count] > _MAX_MEMBERS else 0), np.bool_)
    for number in range(count):
        for index in range(begin_Y[number], begin_Y[number + 1]):
            accepting_Y[number] |= member_Z[index] == END
    return from_e[:num_edges].copy(), label_e[:num_edges].copy(), to_e[:num_edges].copy(), accepting_Y
