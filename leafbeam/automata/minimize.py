"""Minimisation of partial deterministic automata.

A state is useful if it is reachable from the start and acceptance is reachable from it. Two states are in one block if no
continuation is accepted from one and not from the other. Partition refinement over blocks of states and *cords* of edges, each
taken as a splitter once, the smaller half renamed: O(E log X) for any number of labels (Valmari, "Fast brief practical DFA
minimization", 2012). Shapes: X states, E edges, Y blocks.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit


class Edges(NamedTuple):
    """Labelled transitions, int32; labels may be any integers."""

    from_E: NDArray[np.int32]
    label_E: NDArray[np.int32]
    to_E: NDArray[np.int32]

    def take(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> Edges:
        """Return the edges that a mask or an order selects."""
        return Edges(self.from_E[selected], self.label_E[selected], self.to_E[selected])


class _Partition(NamedTuple):
    """Sets of n elements. Set s is element_n[begin_s:end_s], of which the first marked_s are marked.

    Args:
        position_n: Where each element is in element_n.
        set_n: The set of each element.
        touched_s: A stack of sets with marks.
    """

    element_n: NDArray[np.int32]
    position_n: NDArray[np.int32]
    set_n: NDArray[np.int32]
    begin_s: NDArray[np.int32]
    end_s: NDArray[np.int32]
    marked_s: NDArray[np.int32]
    touched_s: NDArray[np.int32]


def minimize(edges: Edges, accepting_X: NDArray[np.bool_], start: int) -> tuple[NDArray[np.int32], Edges]:
    """Return (block_X, edges between blocks): the start is block 0, the others follow breadth first by label; useless states
    are -1.

    There is no block where nothing is accepted.
    """
    useful_X = useful_states(edges.from_E, edges.to_E, accepting_X, start)
    if not useful_X[start]:
        return np.full(len(accepting_X), -1, np.int32), edges.take(np.empty(0, np.int64))
    edges = edges.take(useful_X[edges.from_E] & useful_X[edges.to_E])
    label_E = edges.label_E
    narrow = len(label_E) and label_E.min() >= 0 and label_E.max() < 256  # sorted by counting
    by_label = edges.take(np.argsort(label_E.astype(np.uint8) if narrow else label_E, kind="stable"))
    block_X = _refine(by_label.from_E, by_label.label_E, by_label.to_E, accepting_X, useful_X)
    return block_X, Edges(*_merged(by_label.from_E, by_label.label_E, by_label.to_E, block_X, start))


@njit(cache=True)
def _merged(from_E, label_E, to_E, block_X, start):
    """Return the edges between blocks, ascending by (from, label), and number the blocks breadth first from the start's.

    The edges ascend by label.
    """
    num_blocks = block_X.max() + 1
    indptr, edge_E = adjacent(from_E, len(block_X))
    number_Y, state_Y = np.full(num_blocks, -1, np.int32), np.empty(num_blocks, np.int32)
    number_Y[block_X[start]], state_Y[0] = 0, start  # a state of each block, by the block's number
    from_e, label_e, to_e = np.empty(len(from_E), np.int32), np.empty(len(from_E), np.int32), np.empty(len(from_E), np.int32)
    count, num_edges, number = 1, 0, 0
    while number < count:
        for index in range(indptr[state_Y[number]], indptr[state_Y[number] + 1]):
            edge = edge_E[index]
            block = block_X[to_E[edge]]
            if number_Y[block] < 0:
                number_Y[block], state_Y[count] = count, to_E[edge]
                count += 1
            from_e[num_edges], label_e[num_edges], to_e[num_edges] = number, label_E[edge], number_Y[block]
            num_edges += 1
        number += 1
    for state in range(len(block_X)):
        if block_X[state] >= 0:
            block_X[state] = number_Y[block_X[state]]
    return from_e[:num_edges].copy(), label_e[:num_edges].copy(), to_e[:num_edges].copy()


@njit(cache=True)
def adjacent(state_E, num_states):
    """Return (indptr, edge_E): for each state the edges that have it at this end."""
    indptr = np.zeros(num_states + 1, np.int64)
    for edge in range(len(state_E)):
        indptr[state_E[edge] + 1] += 1
    for state in range(num_states):
        indptr[state + 1] += indptr[state]
    next_X = indptr[:-1].copy()
    edge_E = np.empty(len(state_E), np.int32)
    for edge in range(len(state_E)):
        state = state_E[edge]
        edge_E[next_X[state]] = edge
        next_X[state] += 1
    return indptr, edge_E


@njit(cache=True)
def _number(from_E, to_E, number_X, queue_X, count):
    """Number the states that edges reach from the `count` states of the queue, breadth first, from `count` on."""
    indptr, edge_E = adjacent(from_E, len(number_X))
    head = 0
    while head < count:
        state = queue_X[head]
        head += 1
        for index in range(indptr[state], indptr[state + 1]):
            other = to_E[edge_E[index]]
            if number_X[other] < 0:
                number_X[other] = count
                queue_X[count] = other
                count += 1


@njit(cache=True)
def _breadth_first(from_E, to_E, num_states, start):
    """Return the number of each state, -1 where it is not reached from the start; in order of the edges."""
    number_X, queue_X = np.full(num_states, -1, np.int32), np.empty(num_states, np.int32)
    number_X[start], queue_X[0] = 0, start
    _number(from_E, to_E, number_X, queue_X, 1)
    return number_X


@njit(cache=True)
def useful_states(from_E, to_E, accepting_X, start):
    """Return which states are useful. Cost: two passes over the edges."""
    num_states = len(accepting_X)
    reached_X = _breadth_first(from_E, to_E, num_states, start) >= 0
    number_X, queue_X = np.full(num_states, -1, np.int32), np.empty(num_states, np.int32)
    count = 0
    for state in range(num_states):
        if accepting_X[state] and reached_X[state]:
            number_X[state], queue_X[count] = count, state
            count += 1
    _number(to_E, from_E, number_X, queue_X, count)
    return reached_X & (number_X >= 0)


@njit(cache=True)
def _empty_partition(size):
    return _Partition(
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.full(size, -1, np.int32),
        np.empty(size + 1, np.int32),
        np.empty(size + 1, np.int32),
        np.zeros(size + 1, np.int32),
        np.empty(size + 1, np.int32),
    )


@njit(cache=True, nogil=True, _nrt=False)
def _mark(partition, element, num_touched):
    """Move an element into the marked front of its set; returns how many sets have marks."""
    group = partition.set_n[element]
    position, front = partition.position_n[element], partition.begin_s[group] + partition.marked_s[group]
    other = partition.element_n[front]
    partition.element_n[position], partition.position_n[other] = other, position
    partition.element_n[front], partition.position_n[element] = element, front
    if partition.marked_s[group] == 0:
        partition.touched_s[num_touched] = group
        num_touched += 1
    partition.marked_s[group] += 1
    return num_touched


@njit(cache=True, nogil=True, _nrt=False)
def _split(partition, num_touched, num_sets):
    """Split each set with marks into marked and unmarked; the smaller half becomes a new set. Returns the number of sets."""
    begin_s, end_s, marked_s = partition.begin_s, partition.end_s, partition.marked_s
    while num_touched:
        num_touched -= 1
        group = partition.touched_s[num_touched]
        middle = begin_s[group] + marked_s[group]
        if middle == end_s[group]:
            marked_s[group] = 0
            continue
        if marked_s[group] <= end_s[group] - middle:
            begin_s[num_sets], end_s[num_sets] = begin_s[group], middle
            begin_s[group] = middle
        else:
            begin_s[num_sets], end_s[num_sets] = middle, end_s[group]
            end_s[group] = middle
        for index in range(begin_s[num_sets], end_s[num_sets]):
            partition.set_n[partition.element_n[index]] = num_sets
        marked_s[group] = 0
        marked_s[num_sets] = 0
        num_sets += 1
    return num_sets


@njit(cache=True)
def _refine(from_E, label_E, to_E, accepting_X, useful_X):
    """Return the block of each useful state, -1 elsewhere; edges ascend by label and join useful states only."""
    num_states, num_edges = len(accepting_X), len(from_E)
    blocks, cords = _empty_partition(num_states), _empty_partition(num_edges)
    count = 0
    for state in range(num_states):
        if useful_X[state]:
            blocks.element_n[count], blocks.position_n[state], blocks.set_n[state] = state, count, 0
            count += 1
    blocks.begin_s[0], blocks.end_s[0] = 0, count
    num_touched = 0
    for state in range(num_states):
        if useful_X[state] and accepting_X[state]:
            num_touched = _mark(blocks, state, num_touched)
    num_blocks = _split(blocks, num_touched, 1)
    num_cords = 0
    for edge in range(num_edges):
        if edge == 0 or label_E[edge] != label_E[edge - 1]:
            cords.begin_s[num_cords] = edge
            num_cords += 1
        cords.element_n[edge], cords.position_n[edge], cords.set_n[edge] = edge, edge, num_cords - 1
        cords.end_s[num_cords - 1] = edge + 1
    into_indptr, into_E = adjacent(to_E, num_states)
    block, cord = 1, 0
    while cord < num_cords:
        num_touched = 0
        for index in range(cords.begin_s[cord], cords.end_s[cord]):
            num_touched = _mark(blocks, from_E[cords.element_n[index]], num_touched)
        num_blocks = _split(blocks, num_touched, num_blocks)
        cord += 1
        while block < num_blocks:
            num_touched = 0
            for index in range(blocks.begin_s[block], blocks.end_s[block]):
                state = blocks.element_n[index]
                for into in range(into_indptr[state], into_indptr[state + 1]):
                    num_touched = _mark(cords, into_E[into], num_touched)
            num_cords = _split(cords, num_touched, num_cords)
            block += 1
    return blocks.set_n
