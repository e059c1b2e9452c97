"""Forced chains: where an automaton leaves no choice, several tokens are one step.

Shapes: S states, R states asked for, C tokens of all their chains.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit

__all__ = ["Chains"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chains:
    """Think of it as the automaton with its corridors cut out: a forced state (one legal token, and no text ends there) is only
    passed through, and `follow` says what is spoken on the way to the next state where something is decided.

    token_S: int32, the only legal token of a forced state, -1 in others. then_S: int32, where it leads (the state itself in
    others). end_S, length_S: int32, where the chain from a state ends (never in a forced state) and how many tokens it has.
    Cost: 16 bytes a state.
    """

    token_S: NDArray[np.int32]
    then_S: NDArray[np.int32]
    end_S: NDArray[np.int32]
    length_S: NDArray[np.int32]

    @classmethod
    def of(cls, token_S: NDArray[np.int32], then_S: NDArray[np.int32]) -> Chains:
        """Follow every chain to its end. Cost: O(S). Without dead ends a chain cannot run in a circle."""
        end_S, length_S = _ends(token_S, then_S)
        return cls(token_S=token_S, then_S=then_S, end_S=end_S, length_S=length_S)

    def follow(self, states_R: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """(pointer_R1, token_C, end_R): the forced tokens from each state, end to end, and the state behind them."""
        states = np.asarray(states_R, np.int64)
        pointer_R1 = np.concatenate([[0], np.cumsum(np.where(states < 0, 0, self.length_S[states]), dtype=np.int64)])
        token_C = np.empty(int(pointer_R1[-1]), np.int32)
        _fill(states, pointer_R1, self.token_S, self.then_S, token_C)
        return pointer_R1, token_C, np.where(states < 0, -1, self.end_S[states]).astype(np.int32)

    @property
    def num_forced(self) -> int:
        """How many states are only passed through."""
        return int((self.token_S >= 0).sum())

    @property
    def nbytes(self) -> int:
        return self.token_S.nbytes + self.then_S.nbytes + self.end_S.nbytes + self.length_S.nbytes


@njit(cache=True)
def _ends(token_S, then_S):
    end_S, length_S = np.full(len(token_S), -1, np.int32), np.zeros(len(token_S), np.int32)
    path = np.empty(len(token_S), np.int32)
    for start in range(len(token_S)):
        state, depth = start, 0
        while end_S[state] < 0 and token_S[state] >= 0:
            assert depth < len(path)
            path[depth] = state
            depth += 1
            state = then_S[state]
        end, length = end_S[state], length_S[state]
        if end < 0:
            end = np.int32(state)
            end_S[state] = end
        while depth:
            depth -= 1
            length += 1
            end_S[path[depth]], length_S[path[depth]] = end, length
    return end_S, length_S


@njit(cache=True)
def _fill(states_R, pointer_R1, token_S, then_S, token_C):
    for row in range(len(states_R)):
        state = states_R[row]
        for place in range(pointer_R1[row], pointer_R1[row + 1]):
            token_C[place] = token_S[state]
            state = then_S[state]
