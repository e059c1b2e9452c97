"""Look-ups in many states at once, and forced chains."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.automata import Automaton, TokenTrie
from tests.automata.languages import LETTERS, same


def test_look_ups_of_many_states_are_those_of_each() -> None:
    automaton = Automaton.from_regex("(?:ab|b)*c?", LETTERS, dense_share=0.3)
    states = np.array([0, -1, *range(automaton.num_states), 0], np.int32)
    pointer, codes = automaton.legal(states)
    for place, state in enumerate(states):
        expected = [] if state < 0 else automaton.allowed(int(state)).tolist()
        assert codes[pointer[place] : pointer[place + 1]].tolist() == expected
        bits = np.unpackbits(automaton.masks(states[place : place + 1]).view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == expected
        for token in range(len(LETTERS)):
            after = int(automaton.step(np.array([state]), np.array([token]))[0])
            assert (after >= 0) == (token in expected)
    assert automaton.num_allowed(states).tolist() == np.diff(pointer).tolist()
    assert codes.dtype == np.int32
    assert pointer.dtype == np.int64
    assert automaton.masks(states).dtype == np.int32


def test_no_states_are_looked_up_in_no_time() -> None:
    automaton = Automaton.from_choices(["a"], LETTERS)
    nothing = np.empty(0, np.int64)
    assert automaton.legal(nothing)[0].tolist() == [0]
    assert len(automaton.step(nothing, nothing)) == 0
    assert automaton.masks(nothing).shape == (0, 1)


def test_the_empty_text_alone_is_a_language() -> None:
    automaton = Automaton.from_choices([""], LETTERS)
    assert automaton.is_final(0)
    assert [] in automaton
    assert [1] not in automaton
    same(automaton, Automaton.from_regex("", LETTERS))


def test_tokens_with_equal_bytes_are_legal_together() -> None:
    automaton = Automaton.from_choices(["ab"], LETTERS)
    assert automaton.allowed(0).tolist() == [1, 4, 9]
    assert automaton.next(0, 4) == automaton.next(0, 9)
    assert TokenTrie.of(LETTERS).repeated == 1


def test_tokens_without_bytes_are_never_legal() -> None:
    automaton = Automaton.from_regex(".*", LETTERS, dense_share=0.0)
    assert 0 not in automaton.allowed(0)
    assert TokenTrie.of(LETTERS).num_tokens == len(LETTERS) - 1


# Forced chains.


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12))
def test_a_chain_says_what_single_steps_would(sequences: list[list[int]]) -> None:
    automaton = Automaton.from_sequences(sequences, 4)
    chains = automaton.chains
    assert chains is not None
    for state in range(automaton.num_states):
        at = state
        for _ in range(chains.length_S[state]):
            token = int(chains.token_S[at])
            assert not automaton.accepts(at)
            assert automaton.allowed(at).tolist() == [token]
            assert chains.next_S[at] == automaton.next(at, token)
            at = automaton.next(at, token)
        assert at == chains.end_S[state]
        assert automaton.accepts(at) or len(automaton.allowed(at)) != 1


def test_chains_are_found_by_default_for_choices_and_sequences_only() -> None:
    assert Automaton.from_choices(["abc"], [b"a", b"b", b"c"]).chains is not None
    assert Automaton.from_choices(["abc"], [b"a", b"b", b"c"], compress=False).chains is None
    plain = Automaton.from_regex('"(?:true|false)"', [bytes([byte]) for byte in range(128)])
    assert plain.chains is None
    chains = plain.compress().chains
    assert chains is not None
    assert (chains.token_S[0], chains.length_S[0]) == (ord('"'), 1)
    assert (chains.token_S >= 0).sum() == plain.num_states - 2  # all but the choice and the end
    assert plain.compress().nbytes == plain.nbytes + 16 * plain.num_states
    masked = Automaton.from_regex("abc", [b"a", b"b", b"c"], compress=True, dense_share=0.0)
    assert masked.chains is not None
    assert (masked.chains.token_S[0], masked.chains.length_S[0]) == (0, 3)
