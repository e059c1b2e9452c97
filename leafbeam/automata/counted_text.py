"""Texts whose characters are counted while they are read, so that `minLength` and `maxLength` beside a pattern cost nothing.

The product of a pattern's automaton with that of a length has a state for each pair. Here the automaton of the pattern stays
as it is, and a network's copy of it counts characters (`determinize`). What a state must know, so that no text comes to a dead
end, is how many characters its strings have: at least `shortest_X`, at most `longest_X`, and at most `max_gap` between one
length and the next. If the bounds leave out fewer lengths than that, there is always a string that fits between them.

Shapes: X states, E edges.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.minimize import adjacent
from leafbeam.jit import njit

ENDLESS = 2**30  # the length of the longest string where there is none
_MAX_WORK = 1 << 26  # edges that are followed to find the lengths of all strings


@dataclass(frozen=True, kw_only=True, eq=False)
class CountedText:
    """A byte automaton whose characters are counted.

    Args:
        dfa: The automaton. A byte that is not the first of a character in UTF-8 does not begin a character.
        begins_E: Whether an edge begins a character.
        shortest_X, longest_X: The numbers of characters of the shortest and the longest string of a state.
        low, high: The smallest and largest number of characters; None for no bound.
    """

    dfa: ByteDFA
    begins_E: NDArray[np.bool_]
    shortest_X: NDArray[np.int32]
    longest_X: NDArray[np.int32]
    low: int
    high: int | None

    @classmethod
    def of(cls, dfa: ByteDFA, num_plain: int, low: int, high: int | None) -> CountedText | None:
        """Return the strings of `low` to `high` characters; None if these bounds might leave dead ends.

        The states from `num_plain` on are behind a backslash: none of their edges begins a character.
        """
        next_E, from_E = dfa.edges.next_E, np.repeat(np.arange(dfa.num_states), np.diff(dfa.edges.edge_indptr))
        begins_E = _begins(dfa) & (from_E < num_plain)
        last = max(low if high is None else high, dfa.num_states) + 1
        if last * (len(next_E) + dfa.num_states) > _MAX_WORK:
            return None
        shortest_X, longest_X, max_gap = _lengths(from_E, begins_E, next_E, dfa.accepting_X, last)
        if high is not None and max_gap > high - low + 1:
            return None
        return cls(dfa=dfa, begins_E=begins_E, shortest_X=shortest_X, longest_X=longest_X, low=low, high=high)

    @property
    def is_empty(self) -> bool:
        """Return whether no string has so many characters."""
        shortest, longest = (int(array[0]) if len(array) else -1 for array in (self.shortest_X, self.longest_X))
        return longest < self.low or (self.high is not None and shortest > self.high)

    @property
    def size(self) -> int:
        """Return the number of states of one turn."""
        return self.dfa.num_states

    @property
    def has_empty_string(self) -> bool:
        return not self.low and self.dfa.has_empty_string

    @property
    def num_turns(self) -> int:
        """Return how many numbers of characters are told apart."""
        return 1 + (self.low if self.high is None else self.high)

    @property
    def margin(self) -> int:
        """Return how far before the ends of the bounds states are told apart: as many characters as a string may still need."""
        return int(max(self.shortest_X.max(), self.longest_X[self.longest_X < ENDLESS].max(initial=0)))


def finite_lengths(strings: ByteDFA) -> tuple[int, int] | None:
    """Return the numbers of characters of the shortest and the longest string; None without a longest. Cost: O(E)."""
    shortest, longest = _span(strings.edges.edge_indptr, strings.edges.next_E, _begins(strings), strings.accepting_X)
    return None if longest < 0 else (int(shortest), int(longest))


def _begins(dfa: ByteDFA) -> NDArray[np.bool_]:
    """Return which edges begin a character in UTF-8."""
    byte_J = np.zeros(256, np.int64)
    byte_J[dfa.edges.class_256[::-1]] = np.arange(255, -1, -1)
    return byte_J[dfa.edges.label_E] & 0xC0 != 0x80


@njit(cache=True)
def _span(edge_indptr, next_E, begins_E, accepting_X):
    """Return (shortest, longest) of the lengths of all strings, (-1, -1) without a longest: a state leads back to itself."""
    num_states = len(accepting_X)
    into_X, order_X, count = np.zeros(num_states, np.int64), np.empty(num_states, np.int64), 0
    for edge in range(len(next_E)):
        into_X[next_E[edge]] += 1
    for state in range(num_states):
        if into_X[state] == 0:
            order_X[count] = state
            count += 1
    head = 0
    while head < count:
        for edge in range(edge_indptr[order_X[head]], edge_indptr[order_X[head] + 1]):
            into_X[next_E[edge]] -= 1
            if into_X[next_E[edge]] == 0:
                order_X[count] = next_E[edge]
                count += 1
        head += 1
    if count < num_states or not count:
        return np.int64(-1), np.int64(-1)
    shortest_X, longest_X = np.full(num_states, ENDLESS, np.int64), np.full(num_states, -ENDLESS, np.int64)
    for index in range(count - 1, -1, -1):
        state = order_X[index]
        if accepting_X[state]:
            shortest_X[state] = longest_X[state] = 0
        for edge in range(edge_indptr[state], edge_indptr[state + 1]):
            shortest_X[state] = min(shortest_X[state], shortest_X[next_E[edge]] + begins_E[edge])
            longest_X[state] = max(longest_X[state], longest_X[next_E[edge]] + begins_E[edge])
    return shortest_X[0], longest_X[0]


@njit(cache=True)
def _lengths(from_E, begins_E, next_E, accepting_X, last):
    """Return (shortest, longest, the largest gap) of the lengths of the strings from each state, looking at most at `last`.

    Length after length, it finds the states that have strings of this length, from those with one character less.
    """
    num_states = len(accepting_X)
    into_indptr, into_E = adjacent(next_E, num_states)
    shortest_X, longest_X = np.full(num_states, -1, np.int32), np.full(num_states, -1, np.int32)
    state_n, before_n, gap, count = np.empty(num_states, np.int32), np.empty(num_states, np.int32), 0, 0
    for number in range(last + 1):
        before_n, state_n, num_before, count, num_kept = state_n, before_n, count, 0, 0
        for index in range(max(num_before, num_states if number == 0 else 0)):
            state = index if number == 0 else before_n[index]
            if number == 0 and accepting_X[state]:
                state_n[count], shortest_X[state], longest_X[state] = state, 0, 0
                count += 1
            for into in range(into_indptr[state], into_indptr[state + 1] if number else into_indptr[state]):
                other = from_E[into_E[into]]
                if begins_E[into_E[into]] and longest_X[other] < number:
                    gap = _reach(other, number, gap, shortest_X, longest_X)
                    state_n[count] = other
                    count += 1
        index = 0
        while index < count:  # the other bytes of a character, and letters behind a backslash
            for into in range(into_indptr[state_n[index]], into_indptr[state_n[index] + 1]):
                other = from_E[into_E[into]]
                if not begins_E[into_E[into]] and longest_X[other] < number:
                    gap = _reach(other, number, gap, shortest_X, longest_X)
                    state_n[count] = other
                    count += 1
            index += 1
        for index in range(num_before):
            num_kept += longest_X[before_n[index]] == number
        if number and num_kept == num_before == count:  # each further length has the same states
            for index in range(count):
                longest_X[state_n[index]] = ENDLESS
            break
    for state in range(num_states):
        if longest_X[state] > num_states:
            longest_X[state] = ENDLESS
    return shortest_X, longest_X, gap


@njit(cache=True, nogil=True, _nrt=False)
def _reach(state, number, gap, shortest_X, longest_X):
    """Note that a state has a string of a length; returns the largest gap so far."""
    if shortest_X[state] < 0:
        shortest_X[state] = number
    else:
        gap = max(gap, number - longest_X[state])
    longest_X[state] = number
    return gap
