"""Where automata come from: patterns, schemas, texts and token sequences, brought to the same arrays.

Shapes: S states, E entries of rows, M masks of W words, V tokens, T bytes of all tokens, X states and F edges of the byte
automaton, N sequences.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA, prefix_tree
from leafbeam.automata.compose import compose
from leafbeam.automata.json_schema import schema_pattern
from leafbeam.automata.minimize import minimised
from leafbeam.automata.regex import check_pattern, compile_pattern
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import ArgumentError, AutomatonError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.sequences import SequenceTable
from leafbeam.jit import njit

__all__ = ["Limits", "Rows", "from_choices", "from_pattern", "from_schema", "from_sequences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large an automaton may become, and what share of the vocabulary makes a mask of a row."""

    max_states: int
    max_bytes: int
    dense_share: float

    def __post_init__(self) -> None:
        if self.max_states < 1 or self.max_bytes < 1:
            raise ArgumentError(f"max_states is {self.max_states} and max_bytes {self.max_bytes}: expected 1 or more of each")
        if not (0 <= self.dense_share <= 1 and math.isfinite(self.dense_share)):
            raise ArgumentError(f"dense_share is {self.dense_share}: expected 0 (masks only) to 1 (rows only)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The arrays of an automaton.

    row_ptr_S1: int64; code_E, next_E: int32: the legal tokens of state s, ascending, and their next states are entries
    row_ptr_S1[s] to row_ptr_S1[s + 1] - 1; none in states with a mask.
    mask_S: int32, the mask of a state, -1 where its row says all. mask_MW: uint64, bit v % 64 of word v // 64 is token v.
    dfa: the byte automaton behind it, whose states below S are those of the automaton; without states where there is none.
    bytes_T, start_V1: the bytes of token v are bytes_T[start_V1[v] : start_V1[v + 1]]; only where there are masks.
    """

    vocabulary_size: int
    row_ptr_S1: NDArray[np.int64]
    code_E: NDArray[np.int32]
    next_E: NDArray[np.int32]
    accepting: Bitmap
    mask_S: NDArray[np.int32]
    mask_MW: NDArray[np.uint64]
    dfa: ByteDFA
    bytes_T: NDArray[np.uint8]
    start_V1: NDArray[np.int32]

    @property
    def parts(self) -> dict[str, int]:
        return {
            "rows": self.row_ptr_S1.nbytes + self.code_E.nbytes + self.next_E.nbytes,
            "masks": self.mask_S.nbytes + self.mask_MW.nbytes,
            "accepting": self.accepting.nbytes,
            "walk": self.dfa.nbytes + self.bytes_T.nbytes + self.start_V1.nbytes,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        return {
            "row_ptr": self.row_ptr_S1,
            "code": self.code_E,
            "next": self.next_E,
            "accepting": self.accepting.words_W,
            "mask_of": self.mask_S,
            "masks": self.mask_MW,
            "dfa.class": self.dfa.class_256,
            "dfa.first": self.dfa.first_X1,
            "dfa.label": self.dfa.label_E,
            "dfa.next": self.dfa.next_E,
            "dfa.accepting": self.dfa.accepting_X.view(np.uint8),
            "token.bytes": self.bytes_T,
            "token.start": self.start_V1,
        }


def from_pattern(pattern: str, tokens: TokenTrie, limits: Limits) -> Rows:
    check_pattern(pattern, limits.max_states)
    return _composed(compile_pattern(pattern, limits.max_states), tokens, limits, "the pattern")


def from_schema(schema: Mapping[str, Any] | str, tokens: TokenTrie, limits: Limits) -> Rows:
    dfa = compile_pattern(schema_pattern(schema, limits.max_states), limits.max_states)
    return _composed(dfa, tokens, limits, "the schema")


def from_choices(choices: Sequence[str | bytes], tokens: TokenTrie, limits: Limits) -> Rows:
    if isinstance(choices, (str, bytes)) or not len(choices):
        raise AutomatonError(f"choices is {choices!r}: expected a list with at least one text")
    texts: list[bytes] = []
    for place, choice in enumerate(choices):
        if not isinstance(choice, (str, bytes)):
            raise AutomatonError(f"choice {place} is {choice!r}: expected text or bytes (for token ids: from_sequences)")
        try:
            texts.append(choice.encode() if isinstance(choice, str) else choice)
        except UnicodeEncodeError as error:
            raise AutomatonError(f"choice {place} is {choice!r}, which is not Unicode text: {error}") from error
    dfa = ByteDFA.from_strings(texts)
    if (dfa.used_256 & ~tokens.single_bytes).any():
        start_N1 = np.concatenate([[0], np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))])
        tree = (tokens.child_P, tokens.past_P, tokens.byte_P, tokens.lo_P, tokens.own_P)
        place = _unwritable(np.frombuffer(b"".join(texts), np.uint8), start_N1, *tree)
        if place >= 0:
            raise AutomatonError(f"choice {place}, {choices[place]!r}, cannot be written with the tokens of this vocabulary")
    return _composed(dfa, tokens, limits, "the list of choices")


def from_sequences(sequences: Sequence[Sequence[int] | NDArray[np.integer]], vocabulary_size: int, limits: Limits) -> Rows:
    table = SequenceTable.of(sequences, vocabulary_size)
    if not len(table):
        raise AutomatonError("there are no sequences: expected at least one")
    order = np.lexsort(table[:].T[::-1])
    lengths_N = np.diff(table.starts_N1)[order]
    start_N1 = np.concatenate([[0], np.cumsum(lengths_N)])
    places_T = np.repeat(table.starts_N1[:-1][order] - start_N1[:-1], lengths_N) + np.arange(len(table.tokens_T))
    parent_E, token_E, accepting_X = prefix_tree(table.tokens_T[places_T].astype(np.int32), start_N1)
    edges = (parent_E, token_E, np.arange(1, len(accepting_X), dtype=np.int32))
    block_X, (from_E, code_E, next_E) = minimised(edges, accepting_X, 0)
    num_states = int(block_X.max()) + 1
    accepting_S = np.zeros(num_states, np.bool_)
    accepting_S[block_X[accepting_X]] = True
    _check_states(num_states, limits.max_states)
    rows = Rows(
        vocabulary_size=vocabulary_size,
        row_ptr_S1=np.searchsorted(from_E, np.arange(num_states + 1)),
        code_E=code_E,
        next_E=next_E,
        accepting=Bitmap.from_mask(accepting_S),
        mask_S=np.full(num_states, -1, np.int32),
        mask_MW=np.empty((0, vocabulary_size // 64 + 1), np.uint64),
        dfa=ByteDFA.from_strings([]),
        bytes_T=np.empty(0, np.uint8),
        start_V1=np.zeros(1, np.int32),
    )
    return _within(rows, limits.max_bytes)


def _composed(dfa: ByteDFA, tokens: TokenTrie, limits: Limits, what: str) -> Rows:
    if not dfa.num_states:
        raise AutomatonError(f"{what} matches nothing: expected at least one text")
    made = compose(dfa, tokens, dense_share=limits.dense_share, max_states=limits.max_states, max_bytes=limits.max_bytes)
    if made is None:
        raise AutomatonError(
            f"nothing that {what} matches can be written with this vocabulary of {tokens.num_tokens:,} tokens with bytes"
        )
    masked = len(made.mask_MW) > 0
    rows = Rows(
        vocabulary_size=tokens.vocabulary_size,
        row_ptr_S1=made.row_ptr_S1,
        code_E=made.code_E,
        next_E=made.next_E,
        accepting=Bitmap.from_mask(made.dfa.accepting_X[: len(made.mask_S)]),
        mask_S=made.mask_S,
        mask_MW=made.mask_MW,
        dfa=made.dfa,
        bytes_T=tokens.bytes_T if masked else np.empty(0, np.uint8),
        start_V1=tokens.start_V1 if masked else np.zeros(1, np.int32),
    )
    return _within(rows, limits.max_bytes)


def _check_states(num_states: int, max_states: int) -> None:
    if num_states > max_states:
        raise AutomatonError(f"the automaton has {num_states:,} states: expected at most max_states={max_states:,}; raise it")


def _within(rows: Rows, max_bytes: int) -> Rows:
    taken = sum(rows.parts.values())
    if taken > max_bytes:
        raise AutomatonError(f"the automaton takes {taken:,} bytes: expected at most max_bytes={max_bytes:,}; raise it")
    return rows


@njit(cache=True)
def _unwritable(bytes_T, start_N1, child_P, past_P, byte_P, lo_P, own_P):
    """The first text that no sequence of tokens spells, -1 where there is none."""
    for row in range(len(start_N1) - 1):
        begin, end = start_N1[row], start_N1[row + 1]
        reached = np.zeros(end - begin + 1, np.bool_)
        reached[0] = True
        for place in range(begin, end):
            if not reached[place - begin]:
                continue
            node, ahead = 0, place
            while ahead < end:
                child = child_P[node]
                while child < past_P[node] and byte_P[child] != bytes_T[ahead]:
                    child += 1
                if child == past_P[node]:
                    break
                node = child
                ahead += 1
                if own_P[node] > lo_P[node]:
                    reached[ahead - begin] = True
        if not reached[end - begin]:
            return row
    return -1
