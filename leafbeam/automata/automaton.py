"""`Automaton`: any regular language over tokens as a constraint.

Shapes: S states, V tokens, R requested states, C legal tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import automaton_file, kernels, sources
from leafbeam.automata.append import append_sequences
from leafbeam.automata.arrays import AutomatonArrays, AutomatonLimits, Limits, SizeLimits, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.compose import compose, without_table
from leafbeam.automata.determinize import NetworkArrays
from leafbeam.automata.forced_chains import ForcedChains
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.automata.json_schema import MAX_DEPTH, compile_schema
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.lazy_table import LazyTable, max_legal
from leafbeam.automata.network import Language, Network, determinized
from leafbeam.automata.regex import compile_pattern
from leafbeam.automata.set_masks import forced_bytes, states_after
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError, IndexFileError, counted
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.tensor_file import digest

Vocabulary = Sequence[bytes | None] | TokenTrie
_MAX_EAGER_TOKENS = 1 << 17  # in all states together: a few milliseconds
_MAX_EAGER_STATES = 64  # of a network before it is determinised: less than a millisecond
_MAX_FOUND_STATES = 1 << 18  # of an automaton that is determinised on demand


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Automaton:
    """A set of token sequences as a minimal deterministic automaton. Loops are allowed, so the set may be infinite.

    State 0 is the start. State -1 is dead: nothing is legal in it, and it stays dead. Every other state can reach acceptance.
    `accepts` says where a sequence may end; the model's end-of-sequence token is not in the language, callers add it there.

    A state with few legal tokens has a row of (token, next state), 8 bytes each. A state with many has a bit mask, which it
    shares with the states that allow the same tokens; its next state is found by walking the byte automaton over the token's
    bytes (0.1 µs). `nbytes` is exact; `parts` splits it.

    Rows and masks are computed at once if they are few, and otherwise when a state is first reached, which `is_lazy` says. The
    states of a JSON Schema get their numbers then too, and `num_states` is only a bound. `filled` returns the same language
    with all states, rows and masks, which searches on devices use.

    Args:
        arrays: The arrays of the automaton.
        chains: The forced chains; None unless `compress` was called. Of a lazy automaton those that were asked for.
        lazy: The masks so far; None if all are in `arrays`.
        notes: The keywords of a JSON Schema that were ignored or bounded.

    Examples:
        >>> tokens = [b"a", b"b", b"ab", None]
        >>> automaton = Automaton.from_choices(["ab", "b"], tokens)
        >>> automaton.allowed(0).tolist(), [0, 1] in automaton, automaton.accepts(automaton.next(0, 2))
        ([0, 1, 2], True, True)
    """

    arrays: AutomatonArrays
    chains: ForcedChains | None = None
    lazy: LazyTable | None = None
    notes: tuple[SchemaNote, ...] = ()

    @classmethod
    def from_regex(cls, pattern: str, vocabulary: Vocabulary, *, compress: bool = False, **limits: Unpack[Limits]) -> Automaton:
        """Return the automaton of all ways to write a text that a pattern matches as a whole.

        Texts that the tokens cannot spell are not in the language. Most patterns take milliseconds, after 0.1 s for the
        vocabulary.

        Args:
            pattern: A pattern in the syntax of Rust's regex crate (docs/how-to/automata.md).
            vocabulary: The bytes of each token by its id, None for special tokens; or a `TokenTrie`, which several automata can
                share.
            compress: If true, forced chains are found too (see `compress`).
            limits: Bounds of the automaton's size: max_states (1,000,000) and max_bytes (2^30). States with more than the share
                dense_share (1/64) of the vocabulary legal get masks; at 1/64 a mask is as large as its row.

        Raises:
            AutomatonError: If the pattern or the vocabulary is invalid, the language is empty, or a limit is exceeded.
            MissingExtraError: If outlines-core is not installed.
        """
        bounds = AutomatonLimits(**limits)
        language = compile_pattern(pattern, bounds.max_states)
        return cls._over(language, vocabulary, bounds, "the pattern", compress)

    @classmethod
    def from_json_schema(
        cls,
        schema: Mapping[str, object] | bool | str,
        vocabulary: Vocabulary,
        *,
        compress: bool = False,
        max_depth: int = MAX_DEPTH,
        strict: bool = False,
        **limits: Unpack[Limits],
    ) -> Automaton:
        """Return an automaton of the texts of a JSON Schema's instances; docs/how-to/generate-json.md lists the keywords.

        Args:
            schema: The schema, as an object or as JSON text.
            vocabulary: As for `from_regex`.
            compress: As for `from_regex`.
            max_depth: How deeply lists and objects may nest in a value that the schema does not describe, and how often a
                schema may be inside itself.
            strict: If true, keywords and formats that JSON Schema does not define are refused, and schemas inside themselves.
                By default `notes` lists them.
            limits: As for `from_regex`.

        Raises:
            AutomatonError: If a keyword is not supported, with its JSON pointer; otherwise as for `from_regex`.
            MissingExtraError: If outlines-core is not installed.
        """
        bounds = AutomatonLimits(**limits)
        parts = compile_schema(schema, bounds.max_states, max_depth=max_depth, strict=strict)
        automaton = cls._over(parts.language, vocabulary, bounds, "the schema", compress)
        return replace(automaton, notes=parts.notes)

    @classmethod
    def from_choices(
        cls,
        choices: Sequence[str | bytes],
        vocabulary: Vocabulary,
        *,
        compress: bool = True,
        **limits: Unpack[Limits],
    ) -> Automaton:
        """Return the automaton of all ways to write one of some texts. It needs no optional package.

        Args:
            choices: The texts, as text or bytes.
            vocabulary: As for `from_regex`.
            compress: As for `from_regex`.
            limits: As for `from_regex`.

        Raises:
            AutomatonError: If there are no choices, or one is neither text nor bytes, or the tokens cannot spell it.
        """
        tokens = TokenTrie.of(vocabulary)
        language = sources.language_of_choices(choices, tokens)
        return cls._over(language, tokens, AutomatonLimits(**limits), "the list of choices", compress)

    @classmethod
    def from_language(
        cls, language: ByteDFA, vocabulary: Vocabulary, *, compress: bool = False, **limits: Unpack[Limits]
    ) -> Automaton:
        """Return the automaton of all ways to write a string of a byte automaton, such as those of `automata.languages`.

        Args:
            language: The byte automaton.
            vocabulary: As for `from_regex`.
            compress: As for `from_regex`.
            limits: As for `from_regex`.

        Raises:
            AutomatonError: As for `from_regex`.
        """
        return cls._over(language, vocabulary, AutomatonLimits(**limits), "the language", compress)

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        vocabulary_size: int,
        *,
        compress: bool = True,
        **limits: Unpack[SizeLimits],
    ) -> Automaton:
        """Return the language of some token sequences, with equal suffixes stored once.

        For item ids, filters and changes use `Trie.from_sequences`. Building costs one sort, and O(E log S) for E tokens.

        Args:
            sequences: The sequences, of up to 64 tokens each.
            vocabulary_size: The number of tokens of the vocabulary.
            compress: As for `from_regex`.
            limits: As for `from_regex`.

        Raises:
            CodesError: If a sequence has more than 64 tokens, or a token is outside the vocabulary.
            AutomatonError: If there are no sequences.
        """
        return cls._of(sources.from_sequences(sequences, vocabulary_size, AutomatonLimits(dense_share=1.0, **limits)), compress)

    @classmethod
    def _over(
        cls, language: Language, vocabulary: Vocabulary, limits: AutomatonLimits, source: str, compress: bool
    ) -> Automaton:
        """Return the automaton of a language over tokens; its states and masks come later if they would take long."""
        tokens = TokenTrie.of(vocabulary)
        if isinstance(language, Network):
            if language.size > _MAX_EAGER_STATES and tokens.has_bytes_of(network := language.arrays()):
                return cls._on_demand(network, tokens, limits, compress)
            language = determinized(language)
        if max_legal(language, tokens) <= _MAX_EAGER_TOKENS or not tokens.has_bytes_of(language):
            return cls._of(compose(language, tokens, limits, source), compress)
        arrays = without_table(language, tokens, limits)
        chains = ForcedChains.unknown(language.num_states) if compress else None
        return cls(arrays=arrays, chains=chains, lazy=LazyTable(language, tokens, limits))

    @classmethod
    def _on_demand(cls, network: NetworkArrays, tokens: TokenTrie, limits: AutomatonLimits, compress: bool) -> Automaton:
        """Return the automaton of a network whose states are found when a search reaches them."""
        dfa = LazyDFA(network, min(limits.max_states, _MAX_FOUND_STATES), limits.max_bytes)
        arrays = without_table(ByteDFA.from_strings([]), tokens, limits)
        chains = ForcedChains.unknown(dfa.max_states) if compress else None
        return cls(arrays=arrays, chains=chains, lazy=LazyTable(dfa, tokens, limits))

    @classmethod
    def _of(cls, arrays: AutomatonArrays, compress: bool) -> Automaton:
        automaton = cls(arrays=arrays)
        return automaton.compress() if compress else automaton

    def compress(self) -> Automaton:
        """Return the same automaton, with its forced chains: runs of states that allow exactly one token and no end.

        Taking a forced token without a call of the model is exact. Its log-probability is 0 where scores are normalised over
        legal tokens; over the whole vocabulary the chain still has to be scored. Sequences and choices are compressed by
        default. For text this is opt-in: if letters are tokens, the *text* inside a word is forced (`forced_bytes`), but no
        token is. Tokenising forced text again changes results.
        """
        if self.lazy is not None:
            return replace(self, chains=ForcedChains.unknown(self.num_states))
        all_states = np.arange(self.num_states)
        states = np.flatnonzero((self.num_allowed(all_states) == 1) & ~self.accepting.has(all_states))
        token_S, next_S = np.full(self.num_states, -1, np.int32), all_states.astype(np.int32)
        token_S[states] = self.legal(states)[1]
        next_S[states] = self.step(states, token_S[states])
        return replace(self, chains=ForcedChains.of(token_S, next_S))

    def then(self, sequences: Automaton, **limits: Unpack[SizeLimits]) -> Automaton:
        """Return the automaton of a sequence of this one followed by one of some sequences, with forced chains.

        Args:
            sequences: An automaton of `from_sequences`.
            limits: As for `from_regex`.

        Raises:
            AutomatonError: If the second automaton has another vocabulary, or loops or masks; if a token may both continue the
                first sequence and begin the second; or if a limit is exceeded.
        """
        other = sequences.arrays
        if other.vocabulary_size != self.vocabulary_size or other.dfa.num_states or sequences.accepts(0):
            raise AutomatonError(f"{sequences!r} cannot follow {self!r}: expected one of from_sequences over the same tokens")
        if self.is_lazy:
            return self.filled().then(sequences, **limits)
        ends_R = np.flatnonzero(self.accepting.has(np.arange(self.num_states)))
        indptr, code_C = self.legal(ends_R)
        states_C = np.repeat(ends_R, np.diff(indptr))
        arrays = append_sequences(self.arrays, other, ends_R, (states_C, code_C, self.step(states_C, code_C)))
        bounds = AutomatonLimits(**limits)
        bounds.check_states(len(arrays.table.mask_S))
        return Automaton._of(bounds.checked(arrays), compress=True)

    @property
    def is_lazy(self) -> bool:
        """Return whether legal tokens are computed when a state is first reached."""
        return self.lazy is not None

    def filled(self) -> Automaton:
        """Return the same automaton with the legal tokens of all states, computed now if they were not.

        Raises:
            AutomatonError: If it is larger than max_bytes.
        """
        return self if self.lazy is None else self._filled

    @cached_property
    def _filled(self) -> Automaton:
        assert self.lazy is not None
        limits, found = self.lazy.limits, self._dfa
        dfa = self.arrays.dfa if found is None else LazyDFA(found.network, limits.max_states).language()
        whole = Automaton._of(compose(dfa, self.lazy.tokens, limits, "the language"), self.chains is not None)
        return replace(whole, notes=self.notes)

    def table(self, states_R: NDArray[np.integer]) -> TransitionTable:
        """Return the transition table, in which these states have a row or a mask; -1 is no state."""
        return self._counted_table(self._states(states_R))[0]

    def _counted_table(self, states_R: NDArray[np.int64]) -> tuple[TransitionTable, NDArray[np.int64]]:
        """Return the table, and the number of tokens of each mask."""
        return (self.arrays.table, self._count_M) if self.lazy is None else self.lazy.table(states_R)

    def has_token(self, token: int) -> bool:
        """Return whether a token is legal in some state; it may not be if states are found on demand."""
        if not 0 <= token < self.vocabulary_size:
            return False
        if (dfa := self._dfa) is not None:  # its bytes are used somewhere
            text = self.arrays.bytes_T[self.arrays.token_indptr[token] : self.arrays.token_indptr[token + 1]]
            return len(text) > 0 and bool(dfa.network.used_256[text].all())
        if self.lazy is not None:
            states = np.arange(self.num_states)
            return bool((self.step(states, np.full(self.num_states, token)) >= 0).any())
        table = self.arrays.table
        in_masks = (table.mask_MW[:, token >> 6] >> np.uint64(token & 63)) & np.uint64(1)
        return bool((table.code_E == token).any() or in_masks.any())

    def chains_from(self, states_R: NDArray[np.integer]) -> ForcedChains | None:
        """Return the forced chains, those from these states among them; None unless `compress` was called."""
        if self.lazy is not None and self.chains is not None:
            self.chains.follow(self._states(states_R).tolist(), self._forced)
        return self.chains

    def _forced(self, state: int) -> tuple[int, int] | None:
        """Return the only legal token of a state and the state after it; None if there is a choice, or a sequence may end."""
        if self.accepts(state) or self.num_allowed(np.array([state]))[0] != 1:
            return None
        (token,) = self.allowed(state).tolist()
        return token, self.next(state, token)

    def allowed(self, state: int) -> NDArray[np.int32]:
        """Return the tokens that are legal in a state, ascending."""
        return self.legal(np.array([state]))[1]

    def next(self, state: int, token: int) -> int:
        """Return the state after a legal token.

        Raises:
            AutomatonError: If the token is not legal.
        """
        after = int(self.step(np.array([state]), np.array([token]))[0])
        if after < 0:
            raise AutomatonError(f"token {token} is not legal in state {state}: take one of allowed({state})")
        return after

    def accepts(self, state: int) -> bool:
        """Return whether a sequence may end in this state."""
        (number,) = self._states(np.array([state])).tolist()
        return number in self.accepting if self._dfa is None else number >= 0 and bool(self._dfa.sets.accepting_Y[number])

    def is_final(self, state: int) -> bool:
        """Return whether a sequence must end in this state, because it may end and no token is legal."""
        return self.accepts(state) and not self.num_allowed(np.array([state]))[0]

    def num_allowed(self, states_R: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of legal tokens of each state."""
        table, count_M = self._counted_table(states := self._states(states_R))
        return np.diff(kernels.legal_indptr(states, tuple(table), count_M))

    def legal(self, states_R: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return (indptr, code_C): the legal tokens of each state, ascending, one state after another.

        State -1 has none. The cost is 1 ns per token.

        Raises:
            AutomatonError: If a state is outside -1 to S - 1.
        """
        states = self._states(states_R)
        table, count_M = self._counted_table(states)
        indptr = kernels.legal_indptr(states, tuple(table), count_M)
        code_C = np.empty(int(indptr[-1]), np.int32)
        kernels.fill_legal(states, indptr, tuple(table), code_C)
        return indptr, code_C

    def masks(self, states_R: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the legal tokens of each state as bits, least significant first, int32 of shape (R, ceil(V / 32))."""
        states, num_words = self._states(states_R), (self.vocabulary_size + 31) // 32
        if self.lazy is not None:
            return np.ascontiguousarray(self.lazy.masks(states).view(np.int32)[:, :num_words])
        table, out_RU = self.arrays.table, np.empty((len(states), num_words), np.int32)
        kernels.fill_masks(states, tuple(table), table.mask_MW.view(np.uint32), out_RU.view(np.uint32))
        return out_RU

    def step(self, states_R: NDArray[np.integer], codes_R: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the state of each row after its token; -1 if the token is not legal or the state is -1.

        A row costs one binary search, or a walk over the token's bytes.

        Args:
            states_R: The state of each row.
            codes_R: The token of each row.

        Raises:
            AutomatonError: If a state or a token is out of range.
        """
        states = self._states(states_R)
        codes = kernels.checked_codes(codes_R, states, self.vocabulary_size)
        arrays, out_R = self.arrays, np.empty(len(states), np.int32)
        spelling = arrays.bytes_T, arrays.token_indptr
        if (dfa := self._dfa) is not None:
            return states_after(dfa, states, codes, *spelling)
        kernels.step_states(states, codes, tuple(arrays.table), tuple(arrays.dfa.edges), *spelling, out_R)
        return out_R

    def forced_bytes(self, state: int) -> bytes:
        """Return the text with which every completion from this state begins; it may end inside a character (see `compress`).

        It is empty for an automaton of sequences, which has no text.
        """
        (number,) = self._states(np.array([state])).tolist()
        return self.arrays.dfa.forced_bytes(number) if self._dfa is None else forced_bytes(self._dfa, number)

    @property
    def num_states(self) -> int:
        """Return the number of states; their largest number if they are found on demand."""
        return len(self.arrays.table.mask_S) if self.lazy is None else self.lazy.num_states

    @property
    def vocabulary_size(self) -> int:
        return self.arrays.vocabulary_size

    @property
    def accepting(self) -> Bitmap:
        """Return the states in which a sequence may end, those found so far."""
        return self.arrays.accepting if self.lazy is None or self._dfa is None else self.lazy.accepting

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes of rows, masks so far, accepting, walk (the byte automaton and tokens' bytes) and chains."""
        parts = {**self.arrays.parts, "chains": self.chains.nbytes if self.chains else 0}
        if self.lazy is not None:
            parts["masks"] += self.lazy.nbytes
        return parts

    @property
    def nbytes(self) -> int:
        return sum(self.parts.values())

    @cached_property
    def version(self) -> str:
        """Return sixteen hex digits that change with the automaton. The first use reads its arrays."""
        return digest(self._saved.tensors())

    @cached_property
    def _count_M(self) -> NDArray[np.int64]:
        return np.bitwise_count(self.arrays.table.mask_MW).sum(axis=1, dtype=np.int64)

    def save(self, path: str | Path) -> None:
        """Write the automaton into one safetensors file, which replaces an older one atomically."""
        automaton_file.save(Path(path), self._saved)

    @property
    def _saved(self) -> automaton_file.SavedAutomaton:
        network = None if self._dfa is None else self._dfa.network
        compressed = self.chains is not None
        return automaton_file.SavedAutomaton(self.arrays, compressed, self.is_lazy, self.notes, self.num_states, network)

    @property
    def _dfa(self) -> LazyDFA | None:
        """Return the automaton whose states are found on demand, None if they were found before."""
        return None if self.lazy is None else self.lazy.dfa

    @classmethod
    def load(cls, path: str | Path, vocabulary: TokenTrie | None = None, **limits: Unpack[Limits]) -> Automaton:
        """Read a file that `save` wrote. It is memory-mapped, and every array is read and checked once.

        Args:
            path: The file.
            vocabulary: The tokens of the file, for an automaton that is lazy. Without them they are sorted again, which takes
                0.1 s.
            limits: As for `from_regex`; of an automaton that is lazy.

        Raises:
            IndexFileError: If the file is missing, damaged, of another kind or of a newer format.
        """
        arrays, compressed, lazy, notes, num_states, network = automaton_file.load(Path(path))
        try:
            if lazy:
                tokens = vocabulary or TokenTrie.of(arrays.spellings())
                if not np.array_equal(tokens.spelling.bytes_T, arrays.bytes_T):
                    raise IndexFileError(f"{path} is over another vocabulary: expected the one that it was built with")
                bounds = AutomatonLimits(**limits)
                if network is not None:
                    bounds = replace(bounds, max_states=num_states)
                    return replace(cls._on_demand(network, tokens, bounds, compressed), notes=notes)
                table = LazyTable(arrays.dfa, tokens, bounds)
                automaton = cls(arrays=arrays, lazy=table, notes=notes)
                return automaton.compress() if compressed else automaton
            return replace(cls._of(arrays, compressed), notes=notes)
        except AssertionError as error:
            raise IndexFileError(f"{path} is damaged: a forced chain is a cycle; build and save it again") from error

    def __contains__(self, tokens: Sequence[int]) -> bool:
        state = 0
        for token in tokens:
            if state < 0 or not 0 <= token < self.vocabulary_size:
                return False
            state = int(self.step(np.array([state]), np.array([token]))[0])
        return state >= 0 and state in self.accepting

    def __repr__(self) -> str:
        states = f"{'' if self._dfa is None else 'up to '}{counted(self.num_states, 'state')}"
        return (
            f"Automaton({states} over {counted(self.vocabulary_size, 'token')}, "
            f"{counted(self.nbytes, 'byte')}{', legal tokens computed when a state is reached' if self.is_lazy else ''})"
        )

    def _states(self, states_R: NDArray[np.integer]) -> NDArray[np.int64]:
        return kernels.checked_states(states_R, self.num_states if self._dfa is None else self._dfa.num_states)
