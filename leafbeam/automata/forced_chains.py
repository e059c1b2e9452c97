"""Forced chains: runs of states that allow exactly one token.

Shapes: S states.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import counted
from leafbeam.jit import njit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ForcedChains:
    """The forced chains of an automaton: a state is forced if one token is legal in it and no sequence may end there.

    Cost: 16 bytes a state.

    Args:
        token_S: int32, the only legal token of a forced state, -1 in others.
        next_S: int32, the state after that token (the state itself in states that are not forced).
        end_S: int32, the state in which the chain from each state ends, which is never forced.
        length_S: int32, the number of tokens of that chain.
    """

    token_S: NDArray[np.int32]
    next_S: NDArray[np.int32]
    end_S: NDArray[np.int32]
    length_S: NDArray[np.int32]

    @classmethod
    def of(cls, token_S: NDArray[np.int32], next_S: NDArray[np.int32]) -> ForcedChains:
        """Follow every chain to its end. Cost: O(S). Without dead ends a chain cannot be a cycle."""
        end_S, length_S = _ends(token_S, next_S)
        return cls(token_S=token_S, next_S=next_S, end_S=end_S, length_S=length_S)

    @classmethod
    def unknown(cls, num_states: int) -> ForcedChains:
        """Return chains that `follow` has still to find: `end_S` is -1."""
        nothing_S = np.full(num_states, -1, np.int32)
        return cls(
            token_S=nothing_S,
            next_S=np.arange(num_states, dtype=np.int32),
            end_S=nothing_S.copy(),
            length_S=np.zeros(num_states, np.int32),
        )

    def follow(self, states: Sequence[int], forced: Callable[[int], tuple[int, int] | None]) -> None:
        """Find the chains from some states: `forced` returns (the only token of a state, the state after it), or None.

        Threads that find the same chain write the same numbers.
        """
        for start in states:
            path, state = list[int](), start
            while state >= 0 and self.end_S[state] < 0 and (step := forced(state)) is not None:
                path.append(state)
                self.token_S[state], self.next_S[state] = step
                state = step[1]
            if state < 0:
                continue
            length, end = (int(self.length_S[state]), int(self.end_S[state])) if self.end_S[state] >= 0 else (0, state)
            self.end_S[state] = end
            for number, before in enumerate(reversed(path), 1):
                self.length_S[before], self.end_S[before] = length + number, end

    @property
    def nbytes(self) -> int:
        return self.token_S.nbytes + self.next_S.nbytes + self.end_S.nbytes + self.length_S.nbytes

    def __repr__(self) -> str:
        return f"ForcedChains({(self.token_S >= 0).sum():,} forced of {counted(len(self.token_S), 'state')})"


@njit(cache=True)
def _ends(token_S, next_S):
    end_S, length_S = np.full(len(token_S), -1, np.int32), np.zeros(len(token_S), np.int32)
    path = np.empty(len(token_S), np.int32)
    for start in range(len(token_S)):
        state, depth = start, 0
        while end_S[state] < 0 and token_S[state] >= 0:
            assert depth < len(path)
            path[depth] = state
            depth += 1
            state = next_S[state]
        end, length = end_S[state], length_S[state]
        if end < 0:
            end = np.int32(state)
            end_S[state] = end
        while depth:
            depth -= 1
            length += 1
            end_S[path[depth]], length_S[path[depth]] = end, length
    return end_S, length_S
