"""Small vocabularies, patterns and views of automata that their tests share."""

from functools import cache

import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.vocabulary import real_vocabulary
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.errors import MissingExtraError

# Letters, pieces of words, the two halves of é and the whole, a token twice, one with an end inside é, and one that is no text.
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
