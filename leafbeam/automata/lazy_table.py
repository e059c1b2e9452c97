"""A transition table whose masks are computed when a search first reaches their states.

Shapes: S states, M masks of W words, R requested states.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import AutomatonLimits, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.set_masks import SetMasks
from leafbeam.automata.token_masks import RankedMasks
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.index.bitmap import Bitmap

_MAX_BYTES = 1 << 24  # of the masks of one table, over ranks and over tokens


def max_legal(dfa: ByteDFA, tokens: TokenTrie) -> int:
    """Return a bound of the number of legal tokens of all states together: those that begin with a byte that may follow.

    Cost: one pass over the edges.
    """
    begin_J = np.bincount(dfa.edges.class_256, weights=tokens.num_beginning, minlength=256)
    return int(begin_J[dfa.edges.label_E].sum())


class LazyTable:
    """The masks of the states of a composition that were asked for. Any number of threads may use it.

    A mask costs a walk over what is legal in its state, and less where a state like it has one. Above a few megabytes all masks
    are forgotten and begin anew.

    Args:
        dfa: The byte automaton, each byte of which is a token, so that tokens may end in all its states. `dfa` of this table is
            None unless its states are found on demand.
        tokens: The vocabulary.
        limits: The limits of the automaton; `max_bytes` bounds the masks.
    """

    def __init__(self, dfa: ByteDFA | LazyDFA, tokens: TokenTrie, limits: AutomatonLimits) -> None:
        self.tokens, self.limits, self._lock = tokens, limits, threading.Lock()
        self.dfa = dfa if isinstance(dfa, LazyDFA) else None
        self.num_states = dfa.max_states if isinstance(dfa, LazyDFA) else dfa.num_states
        self._masks = SetMasks(dfa, tokens) if isinstance(dfa, LazyDFA) else RankedMasks(dfa.num_states, dfa, tokens)
        self._num_words = tokens.vocabulary_size // 64 + 1
        self._max_masks = max(1, min(limits.max_bytes, _MAX_BYTES) // (16 * self._num_words))
        self._no_rows, self._mask_S = np.zeros(self.num_states + 1, np.int64), np.zeros(self.num_states, np.int32)
        self._mask_of = {-1: 0}

    @property
    def nbytes(self) -> int:
        """Return the bytes of the masks so far, and of what they are computed with."""
        return 16 * self._num_words * self._masks.count + self._masks.nbytes

    @property
    def accepting(self) -> Bitmap:
        """Return the states found so far in which a string may end."""
        assert self.dfa is not None
        words_W, count = np.zeros(self.num_states // 64 + 1, np.uint64), self.dfa.num_states
        words_W.view(np.uint8)[: -(-count // 8)] = np.packbits(self.dfa.sets.accepting_Y[:count], bitorder="little")
        return Bitmap.from_words(words_W, self.num_states)

    def table(self, states_R: NDArray[np.int64]) -> tuple[TransitionTable, NDArray[np.int64]]:
        """Return a table with the masks of these states, and the number of tokens of each mask. -1 is no state."""
        with self._lock:
            self._fill(states_R.tolist())
            empty = np.empty(0, np.int32)
            table = TransitionTable(self._no_rows, empty, empty, self._mask_S, self._masks.token_MW)
            return table, self._masks.count_M

    def masks(self, states_R: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the mask of each state, shape (R, W): bit v % 64 of word v // 64 is token v. State -1 has no tokens."""
        states = states_R.tolist()
        with self._lock:
            self._fill(states)
            mask_RW = self._masks.token_MW[[self._mask_of[state] for state in states]]
        if -1 in states:
            mask_RW[states_R < 0] = 0
        return mask_RW

    def _fill(self, states: Sequence[int]) -> None:
        """Compute the masks of these states that have none."""
        missing = [state for state in dict.fromkeys(states) if state not in self._mask_of]
        if not missing:
            return
        masks = self._masks.fill(missing, self._max_masks)
        if self._masks.count > self._max_masks:  # tables that were handed out keep their arrays
            self._clear()
            missing = [state for state in dict.fromkeys(states) if state >= 0]
            masks = self._masks.fill(missing, self._max_masks + len(missing))
        self._mask_of.update(zip(missing, masks, strict=True))
        self._mask_S[missing] = masks

    def _clear(self) -> None:
        self._masks.clear()
        self._mask_of = {-1: 0}
        self._mask_S = np.zeros(self.num_states, np.int32)
