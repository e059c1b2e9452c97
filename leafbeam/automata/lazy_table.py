"""A transition table whose masks are computed when a search first reaches their states.

Shapes: S states, M masks of W words, R requested states.
"""

from __future__ import annotations

import threading

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
        self._ranked = SetMasks(dfa, tokens) if isinstance(dfa, LazyDFA) else RankedMasks(dfa.num_states, dfa, tokens)
        self._num_words = tokens.vocabulary_size // 64 + 1
        self._max_masks = max(1, min(limits.max_bytes, _MAX_BYTES) // (16 * self._num_words))
        self._clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the masks so far, and of what they are computed with."""
        return 16 * self._num_words * self._ranked.count + self._ranked.nbytes

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
            states = states_R[states_R >= 0]
            states = np.unique(states) if len(states) > 1 else states
            missing = states[~self._has_mask_S[states]]
            if len(missing):
                self._fill(missing)
                if self._ranked.count > self._max_masks:  # tables that were handed out keep their arrays
                    self._clear()
                    self._fill(states)
            empty = np.empty(0, np.int32)
            return TransitionTable(self._no_rows, empty, empty, self._mask_S, self._mask_MW), self._count_M

    def _fill(self, states: NDArray[np.int64]) -> None:
        before = self._ranked.count
        mask_D = self._ranked.fill(states, self._max_masks + len(states))
        count = self._ranked.count
        if count > len(self._mask_MW):
            grown = max(count, 2 * len(self._mask_MW))
            self._mask_MW = np.concatenate([self._mask_MW, np.empty((grown - len(self._mask_MW), self._num_words), np.uint64)])
            self._count_M = np.concatenate([self._count_M, np.empty(grown - len(self._count_M), np.int64)])
        self._mask_MW[before:count] = self._ranked.by_token(before)
        self._count_M[before:count] = np.bitwise_count(self._mask_MW[before:count]).sum(axis=1, dtype=np.int64)
        self._mask_S[states], self._has_mask_S[states] = mask_D, True

    def _clear(self) -> None:
        self._ranked.clear()
        self._mask_S, self._has_mask_S = np.zeros(self.num_states, np.int32), np.zeros(self.num_states, np.bool_)
        self._mask_MW, self._count_M = np.empty((16, self._num_words), np.uint64), np.empty(16, np.int64)
        self._no_rows = np.zeros(self.num_states + 1, np.int64)
