"""The smallest automaton for a language: what is useless goes, what cannot be told apart becomes one.

    useful      reachable from the start, and acceptance is reachable from it
    same block  no continuation is accepted from one and not from the other

Partition refinement over edges, splitters taken once each and the smaller half renamed: O(E log X) whatever the number of
labels, and the automaton may be partial (Valmari, "Fast brief practical DFA minimization", 2012).
Shapes: X states, E edges, Y blocks.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit

__all__ = ["Edges", "minimised", "trimmed"]

Edges = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]  # from_E, label_E, to_E


def trimmed(edges: Edges, accepting_X: NDArray[np.bool_], start: int) -> NDArray[np.bool_]:
    """Which states are useful. Cost: two passes over the edges."""
    return _useful(edges[0], edges[2], accepting_X, start)


def minimised(edges: Edges, accepting_X: NDArray[np.bool_], start: int) -> tuple[NDArray[np.int32], Edges]:
    """(block_X, edges between blocks): the start is block 0, the others follow breadth first by label; useless states are -1.

    The edges ascend by (from, label). There is no block where nothing is accepted.
    """
    from_E, label_E, to_E = edges
    useful_X = _useful(from_E, to_E, accepting_X, start)
    if not useful_X[start]:
        nothing = np.empty(0, np.int32)
        return np.full(len(accepting_X), -1, np.int32), (nothing, nothing, nothing)
    kept = useful_X[from_E] & useful_X[to_E]
    from_E, label_E, to_E = from_E[kept], label_E[kept], to_E[kept]
    order = np.argsort(label_E, kind="stable")
    block_X = _refine(from_E[order], label_E[order], to_E[order], accepting_X, useful_X)
    first_Y = np.full(int(block_X.max()) + 1, -1, np.int32)
    first_Y[block_X[useful_X]] = np.flatnonzero(useful_X)  # any member stands for its block
    kept = first_Y[block_X[from_E]] == from_E
    from_e, label_e, to_e = block_X[from_E[kept]], label_E[kept], block_X[to_E[kept]]
    order = np.lexsort((label_e, from_e))
    number_Y = _breadth_first(from_e[order], to_e[order], len(first_Y), int(block_X[start]))
    block_X[useful_X] = number_Y[block_X[useful_X]]
    from_e, to_e = number_Y[from_e], number_Y[to_e]
    order = np.lexsort((label_e, from_e))
    return block_X, (from_e[order], label_e[order], to_e[order])


@njit(cache=True)
def _adjacent(ends_E, num_states):
    """(first_X1, edge_E): the edges that have each state at that end."""
    first_X1 = np.zeros(num_states + 1, np.int64)
    for edge in range(len(ends_E)):
        first_X1[ends_E[edge] + 1] += 1
    for state in range(num_states):
        first_X1[state + 1] += first_X1[state]
    place_X = first_X1[:-1].copy()
    edge_E = np.empty(len(ends_E), np.int32)
    for edge in range(len(ends_E)):
        state = ends_E[edge]
        edge_E[place_X[state]] = edge
        place_X[state] += 1
    return first_X1, edge_E


@njit(cache=True)
def _spread(first_X1, edge_E, far_E, seen_X, queue_X, count):
    """Mark everything that edges lead to from the `count` states in the queue."""
    head = 0
    while head < count:
        state = queue_X[head]
        head += 1
        for place in range(first_X1[state], first_X1[state + 1]):
            other = far_E[edge_E[place]]
            if not seen_X[other]:
                seen_X[other] = True
                queue_X[count] = other
                count += 1


@njit(cache=True)
def _useful(from_E, to_E, accepting_X, start):
    num_states = len(accepting_X)
    queue_X = np.empty(num_states, np.int32)
    reached_X = np.zeros(num_states, np.bool_)
    reached_X[start] = True
    queue_X[0] = start
    first_X1, edge_E = _adjacent(from_E, num_states)
    _spread(first_X1, edge_E, to_E, reached_X, queue_X, 1)
    ends_X = np.zeros(num_states, np.bool_)
    count = 0
    for state in range(num_states):
        if accepting_X[state] and reached_X[state]:
            ends_X[state] = True
            queue_X[count] = state
            count += 1
    first_X1, edge_E = _adjacent(to_E, num_states)
    _spread(first_X1, edge_E, from_E, ends_X, queue_X, count)
    return reached_X & ends_X


@njit(cache=True)
def _breadth_first(from_E, to_E, num_blocks, start):
    """The new number of each block; edges ascend by (from, label), all blocks are reachable."""
    first_Y1, edge_E = _adjacent(from_E, num_blocks)
    number_Y = np.full(num_blocks, -1, np.int32)
    queue_Y = np.empty(num_blocks, np.int32)
    queue_Y[0] = start
    number_Y[start] = 0
    head, count = 0, 1
    while head < count:
        block = queue_Y[head]
        head += 1
        for place in range(first_Y1[block], first_Y1[block + 1]):
            other = to_E[edge_E[place]]
            if number_Y[other] < 0:
                number_Y[other] = count
                queue_Y[count] = other
                count += 1
    return number_Y


# A partition of n elements into sets: `member` lists them set by set, `place` is where each stands in it, `of` the set of each;
# set s is member[first[s]:past[s]], of which the first marked[s] are marked.


@njit(cache=True)
def _mark(element, member, place, of, first, marked, touched, num_touched):
    """Move an element into the marked front of its set; how many sets are touched now."""
    group = of[element]
    here, front = place[element], first[group] + marked[group]
    other = member[front]
    member[here], place[other] = other, here
    member[front], place[element] = element, front
    if marked[group] == 0:
        touched[num_touched] = group
        num_touched += 1
    marked[group] += 1
    return num_touched


@njit(cache=True)
def _split(member, of, first, past, marked, touched, num_touched, num_sets):
    """Split each touched set into marked and unmarked; the smaller half becomes a new set. How many sets there are now."""
    while num_touched:
        num_touched -= 1
        group = touched[num_touched]
        middle = first[group] + marked[group]
        if middle == past[group]:
            marked[group] = 0
            continue
        if marked[group] <= past[group] - middle:
            first[num_sets], past[num_sets] = first[group], middle
            first[group] = middle
        else:
            first[num_sets], past[num_sets] = middle, past[group]
            past[group] = middle
        for index in range(first[num_sets], past[num_sets]):
            of[member[index]] = num_sets
        marked[group] = 0
        marked[num_sets] = 0
        num_sets += 1
    return num_sets


@njit(cache=True)
def _refine(from_E, label_E, to_E, accepting_X, useful_X):
    """The block of each useful state, -1 elsewhere; edges ascend by label and join useful states only."""
    num_states, num_edges = len(accepting_X), len(from_E)
    member, place, of = np.empty(num_states, np.int32), np.empty(num_states, np.int32), np.full(num_states, -1, np.int32)
    first, past = np.empty(num_states + 1, np.int32), np.empty(num_states + 1, np.int32)
    marked, touched = np.zeros(num_states + 1, np.int32), np.empty(num_states + 1, np.int32)
    count = 0
    for state in range(num_states):
        if useful_X[state]:
            member[count], place[state], of[state] = state, count, 0
            count += 1
    first[0], past[0] = 0, count
    num_touched = 0
    for state in range(num_states):
        if useful_X[state] and accepting_X[state]:
            num_touched = _mark(state, member, place, of, first, marked, touched, num_touched)
    num_blocks = _split(member, of, first, past, marked, touched, num_touched, 1)

    edge_member, edge_place, edge_of = (
        np.arange(num_edges).astype(np.int32),
        np.arange(num_edges).astype(np.int32),
        np.empty(num_edges, np.int32),
    )
    edge_first, edge_past = np.empty(num_edges + 1, np.int32), np.empty(num_edges + 1, np.int32)
    edge_marked, edge_touched = np.zeros(num_edges + 1, np.int32), np.empty(num_edges + 1, np.int32)
    num_cords = 0
    for edge in range(num_edges):
        if edge == 0 or label_E[edge] != label_E[edge - 1]:
            edge_first[num_cords] = edge
            num_cords += 1
        edge_of[edge] = num_cords - 1
        edge_past[num_cords - 1] = edge + 1

    into_X1, into_E = _adjacent(to_E, num_states)
    block, cord = 1, 0
    while cord < num_cords:
        num_touched = 0
        for index in range(edge_first[cord], edge_past[cord]):
            num_touched = _mark(from_E[edge_member[index]], member, place, of, first, marked, touched, num_touched)
        num_blocks = _split(member, of, first, past, marked, touched, num_touched, num_blocks)
        cord += 1
        while block < num_blocks:
            num_touched = 0
            for index in range(first[block], past[block]):
                state = member[index]
                for spot in range(into_X1[state], into_X1[state + 1]):
                    num_touched = _mark(
                        into_E[spot], edge_member, edge_place, edge_of, edge_first, edge_marked, edge_touched, num_touched
                    )
            num_cords = _split(edge_member, edge_of, edge_first, edge_past, edge_marked, edge_touched, num_touched, num_cords)
            block += 1
    return of
