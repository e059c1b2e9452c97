"""Small vocabularies, patterns and views of automata that their tests share."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.vocabulary import real_vocabulary
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.errors import MissingExtraError

# Letters, pieces of words, the two halves of é and the whole, a token twice, one with an end inside é, one that is not text.
LETTERS = [None, b"a", b"b", b"c", b"ab", b"bc", b"\xc3", b"\xa9", b"\xc3\xa9", b"ab", b"a\xc3"]

atoms = st.sampled_from(["a", "b", "c", "é", "ab", "[ab]", "[^a]", "[a-c]", ".", "(?:)"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "??"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
vocabularies = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=7).filter(any)


@cache
def tokens_131k() -> TokenTrie:
    try:
        return TokenTrie.of(real_vocabulary())
    except MissingExtraError as error:
        pytest.skip(str(error))


def spelled(tokens: tuple[int, ...], vocabulary: list[bytes | None]) -> str | None:
    """The text of some tokens, None where it is none."""
    parts = [vocabulary[token] for token in tokens]
    try:
        return None if None in parts else b"".join(filter(None, parts)).decode()
    except UnicodeDecodeError:
        return None


def members(automaton: Automaton, sequences: list[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those of the sequences that are in the language, all of one length at a time."""
    found = set()
    for length in {len(one) for one in sequences}:
        chosen = [one for one in sequences if len(one) == length]
        states = np.zeros(len(chosen), np.int64)
        for codes in np.array(chosen, np.int64).reshape(len(chosen), length).T:
            states = automaton.step(states, codes)
        ends = (states >= 0) & automaton.accepting.has(np.maximum(states, 0))
        found |= {one for one, end in zip(chosen, ends, strict=True) if end}
    return found


def edges_of(language: ByteDFA) -> list[tuple[list[tuple[int, int]], bool]]:
    """Return the edges of a minimal automaton by bytes, and where strings end: the same for the same language."""
    class_256, indptr, label_E, next_E = language.edges
    rows: list[list[tuple[int, int]]] = [
        sorted(
            (byte, int(next_E[edge]))
            for edge in range(begin, end)
            for byte in np.flatnonzero(class_256 == label_E[edge]).tolist()
        )
        for begin, end in pairwise(indptr.tolist())
    ]
    order, number = [0][: len(rows)], {0: 0}
    for state in order:
        for _, to in rows[state]:
            if to not in number:
                number[to] = len(order)
                order.append(to)
    return [([(byte, number[to]) for byte, to in rows[state]], bool(language.accepting_X[state])) for state in order]


def distances(automaton: Automaton) -> np.ndarray:
    """How many tokens each state is from a place where a sequence may end, -1 where there is none."""
    states = np.arange(automaton.num_states)
    pointer, codes = automaton.legal(states)
    origins = np.repeat(states, np.diff(pointer))
    targets = automaton.step(origins, codes)
    assert (targets >= 0).all()
    found = np.where(automaton.accepting.has(states), 0, -1)
    for distance in range(1, automaton.num_states + 1):
        found[np.setdiff1d(origins[found[targets] == distance - 1], np.flatnonzero(found >= 0))] = distance
    return found


def same(first: Automaton, second: Automaton) -> None:
    """Equal state by state, whatever the layout."""
    states = np.arange(first.num_states)
    assert first.num_states == second.num_states
    assert first.accepting == second.accepting
    for ours, theirs in zip(first.legal(states), second.legal(states), strict=True):
        assert np.array_equal(ours, theirs)
    pointer, codes = first.legal(states)
    origins = np.repeat(states, np.diff(pointer))
    assert np.array_equal(first.step(origins, codes), second.step(origins, codes))
    assert np.array_equal(first.masks(states), second.masks(states))


def walked(language: ByteDFA, rng: np.random.Generator) -> str | None:
    """A random text of a language, None for one that does not end soon."""
    class_256, indptr, label_E, next_E = language.edges
    state, text = 0, bytearray()
    while len(text) < 400:
        edges = range(indptr[state], indptr[state + 1])
        if language.accepting_X[state] and (not edges or rng.random() < 0.5):
            return text.decode()
        candidates = [
            (byte, int(next_E[edge])) for edge in edges for byte in np.flatnonzero(class_256 == label_E[edge]).tolist()
        ]
        closing = [pair for pair in candidates if pair[0] in b'"]}'] if len(text) > 40 or rng.random() < 0.3 else []
        plain = [pair for pair in candidates if 32 <= pair[0] < 127]
        byte, state = (closing or plain or candidates)[rng.integers(len(closing or plain or candidates))]
        text.append(byte)
    return None
