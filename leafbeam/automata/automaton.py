"""Any regular language over tokens: which may come next, and where they lead.

Shapes: S states, E entries of rows, M masks of W words, V tokens, R states asked for, C legal tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import automaton_file
from leafbeam.automata import kernels as lookup
from leafbeam.automata import sources as automaton_source
from leafbeam.automata.forced_chains import Chains
from leafbeam.automata.sources import Limits, Rows
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError, IndexFileError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.tensor_file import digest

__all__ = ["Automaton"]

Vocabulary = Sequence[bytes | None] | TokenTrie


@dataclass(frozen=True, kw_only=True, eq=False)
class Automaton:
    """A set of token sequences as a graph: a state is all that matters of what was said so far, and knows what may follow.

    Think of it as the trie of all legal sequences in which equal subtrees are one: it may have loops, so the set may be
    infinite. State 0 is the start. There are no dead ends: from every state something can be completed. `accepts` says where a
    sequence may end; the model's end-of-sequence token is not part of the language and is the caller's to add there. State -1
    is dead: nothing is legal in it, and it stays so.

    Few legal tokens in a state are a row of (token, next state), 8 bytes each; many are a bit mask, which states that allow the
    same tokens share, and the next state is found by walking the byte automaton over the token's bytes (0.1 µs).

    rows: the arrays (`Rows`). chains: forced chains, None unless `compress` was asked for.
    Immutable. `nbytes` is exact; `parts` says by what.

    >>> tokens = [b"a", b"b", b"ab", None]
    >>> automaton = Automaton.from_choices(["ab", "b"], tokens)
    >>> automaton.allowed(0).tolist(), [0, 1] in automaton, automaton.accepts(automaton.next(0, 2))
    ([0, 1, 2], True, True)
    """

    rows: Rows
    chains: Chains | None = None

    @classmethod
    def from_regex(
        cls,
        pattern: str,
        vocabulary: Vocabulary,
        *,
        compress: bool = False,
        max_states: int = 1_000_000,
        max_bytes: int = 1 << 30,
        dense_share: float = 1 / 64,
    ) -> Automaton:
        """Every way to write a text that `pattern` matches as a whole.

        pattern: the syntax of Rust's regex crate (docs/automata.md). vocabulary: the bytes of each token by its id, None for
        tokens that never stand for text; make a `TokenTrie` of it where several automata share one. What cannot be written
        with the vocabulary's tokens is not in the language. compress: see `compress`. max_states, max_bytes: the budget.
        dense_share: states with more of the vocabulary legal than this get masks; at 1/64 a mask is as large as the row that
        it stands for.

        Raises AutomatonError (pattern, vocabulary, nothing left, over budget), MissingExtraError without outlines-core.
        Cost: docs/automata.md; milliseconds for most, after 0.1 s for the vocabulary.
        """
        limits = Limits(max_states=max_states, max_bytes=max_bytes, dense_share=dense_share)
        return cls._of(automaton_source.from_pattern(pattern, TokenTrie.of(vocabulary), limits), compress)

    @classmethod
    def from_json_schema(
        cls,
        schema: Mapping[str, Any] | str,
        vocabulary: Vocabulary,
        *,
        compress: bool = False,
        max_states: int = 1_000_000,
        max_bytes: int = 1 << 30,
        dense_share: float = 1 / 64,
    ) -> Automaton:
        """Every way to write an instance of a JSON Schema, as far as the schema is regular (`schema_pattern` says what that
        is).

        Raises AutomatonError, with its place, for what cannot be held to, and as `from_regex` does.
        """
        limits = Limits(max_states=max_states, max_bytes=max_bytes, dense_share=dense_share)
        return cls._of(automaton_source.from_schema(schema, TokenTrie.of(vocabulary), limits), compress)

    @classmethod
    def from_choices(
        cls,
        choices: Sequence[str | bytes],
        vocabulary: Vocabulary,
        *,
        compress: bool = True,
        max_states: int = 1_000_000,
        max_bytes: int = 1 << 30,
        dense_share: float = 1 / 64,
    ) -> Automaton:
        """Every way to write one of some texts. Needs no optional package.

        Raises AutomatonError where there are none, or one is neither text nor bytes or cannot be written with the vocabulary.
        """
        limits = Limits(max_states=max_states, max_bytes=max_bytes, dense_share=dense_share)
        return cls._of(automaton_source.from_choices(choices, TokenTrie.of(vocabulary), limits), compress)

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        vocabulary_size: int,
        *,
        compress: bool = True,
        max_states: int = 1_000_000,
        max_bytes: int = 1 << 30,
    ) -> Automaton:
        """Some token sequences and no others: the language of `Trie.from_sequences`, with equal suffixes stored once.

        It has no item ids, filters or changes, which is what `Trie` is for. Cost: one sort and O(E log S).
        Raises CodesError for a sequence that is not one (more than 64 tokens, a token outside the vocabulary), AutomatonError
        where there are none.
        """
        limits = Limits(max_states=max_states, max_bytes=max_bytes, dense_share=1.0)
        return cls._of(automaton_source.from_sequences(sequences, vocabulary_size, limits), compress)

    @classmethod
    def _of(cls, rows: Rows, compress: bool) -> Automaton:
        made = cls(rows=rows)
        return made.compress() if compress else made

    def compress(self) -> Automaton:
        """The same automaton with its forced chains found (`chains`): states with one legal token, where no sequence may end.

        Taking such a token without asking the model cannot change which sequences are found: it is the only legal one. Its
        log-probability is 0 where scores are normalised over legal tokens; over the whole vocabulary the chain still has to
        be scored, in one pass. For sequences and choices this is on by default.

        For text it is opt-in, and no saving to count on: where every letter is a token, several tokens are legal even in the
        middle of a fixed word. There the *text* may be forced (`forced_bytes`) though no token is. Writing that text down and
        re-tokenising it saves rounds, but the model then continues from tokens that it might not have chosen, and its answers
        change: a decision for the caller.
        """
        counts_S = self.num_allowed(np.arange(self.num_states))
        forced_S = (counts_S == 1) & ~self.accepting.has(np.arange(self.num_states))
        states = np.flatnonzero(forced_S)
        token_S, then_S = np.full(self.num_states, -1, np.int32), np.arange(self.num_states, dtype=np.int32)
        token_S[states] = self.legal(states)[1]
        then_S[states] = self.step(states, token_S[states])
        return replace(self, chains=Chains.of(token_S, then_S))

    def allowed(self, state: int) -> NDArray[np.int32]:
        """The tokens that are legal in a state, ascending."""
        return self.legal(np.array([state]))[1]

    def next(self, state: int, token: int) -> int:
        """The state after a legal token; AutomatonError where it is not legal."""
        after = int(self.step(np.array([state]), np.array([token]))[0])
        if after < 0:
            raise AutomatonError(f"token {token} is not legal in state {state}: take one of allowed({state})")
        return after

    def accepts(self, state: int) -> bool:
        """May a sequence end in this state?"""
        return self._states(np.array([state]))[0] in self.accepting

    def is_final(self, state: int) -> bool:
        """Must a sequence end in this state (it may, and no token is legal)?"""
        return self.accepts(state) and not self.num_allowed(np.array([state]))[0]

    def num_allowed(self, states_R: NDArray[np.integer]) -> NDArray[np.int64]:
        """How many tokens are legal in each state."""
        return np.diff(lookup.row_pointers(self._states(states_R), self.rows.row_ptr_S1, self.rows.mask_S, self._count_M))

    def legal(self, states_R: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(pointer_R1, code_C): the legal tokens of each state, ascending, end to end; none for state -1.

        Cost: 1 ns a token. Raises AutomatonError for a state outside -1 to S - 1.
        """
        states, rows = self._states(states_R), self.rows
        pointer_R1 = lookup.row_pointers(states, rows.row_ptr_S1, rows.mask_S, self._count_M)
        code_C = np.empty(int(pointer_R1[-1]), np.int32)
        lookup.fill_rows(states, pointer_R1, rows.row_ptr_S1, rows.code_E, rows.mask_S, rows.mask_MW, code_C)
        return pointer_R1, code_C

    def masks(self, states_R: NDArray[np.integer]) -> NDArray[np.int32]:
        """The legal tokens of each state as bits, int32 [R, ceil(V / 32)], least significant first: what serving engines
        take."""
        states, rows = self._states(states_R), self.rows
        out_RU = np.empty((len(states), (self.vocabulary_size + 31) // 32), np.uint32)
        lookup.fill_masks(states, rows.row_ptr_S1, rows.code_E, rows.mask_S, rows.mask_MW.view(np.uint32), out_RU)
        return out_RU.view(np.int32)

    def step(self, states_R: NDArray[np.integer], codes_R: NDArray[np.integer]) -> NDArray[np.int32]:
        """The state of each row after its token; -1 where that was not legal, or the state was -1.

        Cost: one binary search a row, or a walk over the token's bytes. Raises AutomatonError for states and tokens out of
        range.
        """
        states, codes = self._states(states_R), np.asarray(codes_R)
        if codes.shape != states.shape or codes.dtype.kind not in "iu":
            raise AutomatonError(f"codes are {codes.dtype} of shape {codes.shape}: expected integers, one for each state")
        if codes.size and not 0 <= codes.min() <= codes.max() < self.vocabulary_size:
            bad = codes[(codes < 0) | (codes >= self.vocabulary_size)][0]
            raise AutomatonError(f"token {bad} is not in the vocabulary: expected 0 <= token < {self.vocabulary_size:,}")
        rows, out_R = self.rows, np.empty(len(states), np.int32)
        dfa = rows.dfa
        walk = (dfa.class_256, dfa.first_X1, dfa.label_E, dfa.next_E, rows.bytes_T, rows.start_V1)
        table = (rows.row_ptr_S1, rows.code_E, rows.next_E, rows.mask_S, rows.mask_MW)
        lookup.step_states(states, codes.astype(np.int64), table, walk, out_R)
        return out_R

    def forced_bytes(self, state: int) -> bytes:
        """The text that every completion from this state begins with; it may end within a character. Read `compress` first.

        Empty for an automaton of sequences, which has no text.
        """
        return self.rows.dfa.forced(int(self._states(np.array([state]))[0]))

    @property
    def num_states(self) -> int:
        return len(self.rows.mask_S)

    @property
    def vocabulary_size(self) -> int:
        return self.rows.vocabulary_size

    @property
    def accepting(self) -> Bitmap:
        """The states where a sequence may end."""
        return self.rows.accepting

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part: rows, masks, accepting, walk (byte automaton and the tokens' bytes, which automata may share),
        chains."""
        return {**self.rows.parts, "chains": self.chains.nbytes if self.chains else 0}

    @property
    def nbytes(self) -> int:
        return sum(self.parts.values())

    @cached_property
    def version(self) -> str:
        """Sixteen hex digits that change with the automaton. Cost: one read of its arrays, once."""
        return digest(self.rows.tensors())

    @cached_property
    def _count_M(self) -> NDArray[np.int64]:
        return np.bitwise_count(self.rows.mask_MW).sum(axis=1, dtype=np.int64)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, replacing an old one in a single step."""
        automaton_file.save(Path(path), self.rows, compressed=self.chains is not None)

    @classmethod
    def load(cls, path: str | Path) -> Automaton:
        """Read a file written by `save`: mapped, but every array is read once and checked.

        Raises IndexFileError where the file is missing, damaged, of another kind or of a newer format.
        """
        rows, compressed = automaton_file.load(Path(path))
        try:
            return cls._of(rows, compressed)
        except AssertionError as error:
            raise IndexFileError(f"{path} is damaged: a forced chain runs in a circle; build and save it again") from error

    def __contains__(self, tokens: Sequence[int]) -> bool:
        state = 0
        for token in tokens:
            if state < 0 or not 0 <= token < self.vocabulary_size:
                return False
            state = int(self.step(np.array([state]), np.array([token]))[0])
        return state >= 0 and state in self.accepting

    def __repr__(self) -> str:
        rows = self.rows
        return (
            f"Automaton({self.num_states:,} states over {self.vocabulary_size:,} tokens, {len(rows.code_E):,} row entries, "
            f"{len(rows.mask_MW):,} masks of {int((rows.mask_S >= 0).sum()):,} states, {self.nbytes:,} bytes)"
        )

    def _states(self, states_R: NDArray[np.integer]) -> NDArray[np.int64]:
        states = np.asarray(states_R)
        if states.ndim != 1 or (states.dtype.kind not in "iu" and states.size):
            raise AutomatonError(f"states are {states.dtype} of shape {states.shape}: expected a list of integers")
        if states.size and not -1 <= states.min() <= states.max() < self.num_states:
            bad = states[(states < -1) | (states >= self.num_states)][0]
            raise AutomatonError(f"state {bad} is not in the automaton: expected -1 (dead) to {self.num_states - 1:,}")
        return states.astype(np.int64)
