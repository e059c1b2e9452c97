"""Automata over token ids: their languages, their states, and what their kernels look up."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError
from tests.automata.languages import LETTERS, distances, edges_of, members, patterns, same, spelled, vocabularies

_RANGES = ["[a-y]", "[^b]", "[^é-日]", r"[\x{7f}-\x{7ff}]", r"\x{800}", r"[\x{d7ff}-\x{10000}]", "[[a-z]&&[^\x02m]]", "[^\n]"]
_NAMED = [r"\d", r"[\w&&[^a]]", "[[:alpha:]]", "(?i:a)", r"\p{Greek}", r"\u00e9", r"\.", r"\n", "."]
all_patterns = st.recursive(
    st.sampled_from([*"ab3é日🙂", *_RANGES, *_NAMED]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


def test_a_byte_whose_only_edges_return_to_the_start_is_not_a_byte_without_edges() -> None:
    automaton = Automaton.from_regex("(a|b)*c", [b"a", b"b", b"ab", None, b"c", b" "])
    assert [0, 2, 1, 4] in automaton
    assert [0, 5, 4] not in automaton


@pytest.mark.slow
@settings(max_examples=150)
@given(patterns, vocabularies, st.sampled_from([0.0, 1 / 64, 0.4, 1.0]))
def test_every_short_sequence_is_in_the_language_iff_its_text_matches(
    pattern: str, vocabulary: list[bytes | None], dense_share: float
) -> None:
    tokens = range(len(vocabulary))
    sequences = [one for length in range(5) for one in itertools.product(tokens, repeat=length)][:3000]
    expected = {
        one for one in sequences if (text := spelled(one, vocabulary)) is not None and re.fullmatch(pattern, text) is not None
    }
    if not expected:
        try:
            automaton = Automaton.from_regex(pattern, vocabulary, dense_share=dense_share)
        except AutomatonError:
            return
    automaton = Automaton.from_regex(pattern, vocabulary, dense_share=dense_share)
    assert members(automaton, sequences) == expected
    assert (distances(automaton) >= 0).all()


@settings(max_examples=60)
@given(patterns, vocabularies)
def test_rows_and_masks_are_the_same_automaton(pattern: str, vocabulary: list[bytes | None]) -> None:
    tokens = TokenTrie.of([*vocabulary, b"a", b"b", b"c", b"\xc3", b"\xa9"])
    rows = Automaton.from_regex(pattern, tokens, dense_share=1.0)
    assert len(rows.arrays.table.mask_MW) == 0
    for share in (0.0, 0.2):
        same(rows, Automaton.from_regex(pattern, tokens, dense_share=share))
    assert len(np.unique(Automaton.from_regex(pattern, tokens, dense_share=0.0).arrays.table.mask_MW, axis=0)) == len(
        Automaton.from_regex(pattern, tokens, dense_share=0.0).arrays.table.mask_MW
    )


@settings(max_examples=60)
@given(patterns)
def test_no_two_states_are_equal(pattern: str) -> None:
    alphabet = [bytes([byte]) for byte in range(256)]
    automaton = Automaton.from_regex(pattern, alphabet)
    states = np.arange(automaton.num_states)
    targets = automaton.step(np.repeat(states, 256), np.tile(np.arange(256), len(states))).reshape(-1, 256)
    group = automaton.accepting.has(states).astype(np.int64)
    for _ in states:
        after = np.where(targets < 0, -1, group[targets])
        group = np.unique(np.column_stack([group, after]), axis=0, return_inverse=True)[1].reshape(-1)
    assert len(np.unique(group)) == len(states)


@settings(max_examples=60)
@given(st.lists(st.text("abcé", max_size=6), min_size=1, max_size=12), st.sampled_from([0.0, 1.0]))
def test_choices_are_all_spellings_of_their_texts(choices: list[str], dense_share: float) -> None:
    automaton = Automaton.from_choices(choices, LETTERS, dense_share=dense_share)
    short = [one for length in range(4) for one in itertools.product(range(len(LETTERS)), repeat=length)]
    assert members(automaton, short) == {one for one in short if spelled(one, LETTERS) in choices}
    assert all((one in automaton) == (spelled(one, LETTERS) in choices) for one in short[::40])
    for choice in choices:
        state = 0
        for byte in choice.encode():
            state = automaton.next(state, LETTERS.index(bytes([byte])))
        assert automaton.accepts(state)
    pattern = "|".join(choices)
    same(automaton, Automaton.from_regex(pattern, LETTERS, dense_share=dense_share))


@settings(max_examples=80)
@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=25))
def test_sequences_have_the_language_of_their_trie(sequences: list[list[int]]) -> None:
    automaton, trie = Automaton.from_sequences(sequences, 6), Trie.from_sequences(sequences, 6, max_length=5)
    reached = {(): 0}
    for _ in range(6):
        longer = {}
        for prefix, state in reached.items():
            assert automaton.accepts(state) == (prefix in trie)
            longer |= {(*prefix, int(token)): automaton.next(state, int(token)) for token in automaton.allowed(state)}
            expected = {one[len(prefix)] for one in sequences if len(one) > len(prefix) and tuple(one[: len(prefix)]) == prefix}
            assert set(automaton.allowed(state).tolist()) == expected
        reached = longer
    assert not reached


def test_equal_suffixes_are_stored_once() -> None:
    sequences = [[first, second, 7, 8, 9] for first in range(5) for second in range(5)]
    automaton = Automaton.from_sequences(sequences, 10)
    assert automaton.num_states == 6
    assert automaton.parts["rows"] == 8 * 7 + 8 * (5 + 5 + 3)


def test_a_match_that_might_have_ended_earlier_goes_on() -> None:
    alphabet = [bytes([byte]) for byte in range(256)]
    number = Automaton.from_regex(r"-?[0-9]+(\.[0-9]+)?", alphabet)
    assert [list(text) in number for text in (b"1", b"1.5", b"-12.25", b"1.", b"-", b"")] == [True] * 3 + [False] * 3
    assert [list(text) in Automaton.from_regex("a|ab|", alphabet) for text in (b"", b"a", b"ab", b"b")] == [True] * 3 + [False]
    assert [list(text) in Automaton.from_regex("(a+?|ab)*?", alphabet) for text in (b"", b"aaba", b"b")] == [True, True, False]


def test_a_pattern_that_would_be_searched_for_everywhere_is_compiled_from_its_start_only() -> None:
    assert Automaton.from_regex("x[a-z]{200}", [b"a", b"x"]).num_states == 202


def test_one_caret_and_one_dollar_around_a_pattern_change_nothing() -> None:
    alphabet = [bytes([byte]) for byte in range(128)]
    same(Automaton.from_regex("^ab?$", alphabet), Automaton.from_regex("ab?", alphabet))
    assert list(b"a$") in Automaton.from_regex(r"a\$", alphabet)
    assert list(b"a\\") in Automaton.from_regex(r"a\\$", alphabet)


def test_tokens_longer_than_masks_look_ahead_are_still_exact() -> None:
    lengths = [1, 2, 31, 32, 33, 34, 40, 64, 65]
    tokens = TokenTrie.of([b"a" * length for length in lengths for _ in range(17)] + [b"b", b"b" + b"a" * 50])
    pattern = "(?:a{0,70}b){0,3}"
    automaton = Automaton.from_regex(pattern, tokens, dense_share=0.0)
    same(automaton, Automaton.from_regex(pattern, tokens, dense_share=1.0))
    assert len(automaton.arrays.table.mask_MW) < automaton.num_states


@pytest.mark.parametrize("length", [62, 63, 64, 127, 191])
@pytest.mark.parametrize("kind", ["pattern", "choice", "schema", "sequence", "language"])
def test_every_state_says_whether_a_text_may_end_in_it(kind: str, length: int) -> None:
    """T1: also state 63 of each 64, whose bit is the last of a word."""
    alphabet = [bytes([byte]) for byte in range(128)]
    automaton, end = {
        "pattern": lambda: (Automaton.from_regex(f"a{{0,{length}}}", alphabet), length),
        "choice": lambda: (Automaton.from_choices(["a" * length], alphabet), length),
        "schema": lambda: (Automaton.from_json_schema({"const": "a" * (length - 2)}, alphabet).filled(), length),
        "sequence": lambda: (Automaton.from_sequences([[97] * min(length, 63)], 128), min(length, 63)),
        "language": lambda: (Automaton.from_language(ByteDFA.from_strings([b"a" * length, b"a"]), alphabet), length),
    }[kind]()
    assert automaton.accepts(end)
    assert automaton.is_final(end)
    states = np.arange(automaton.num_states)
    assert [automaton.accepts(int(state)) for state in states] == automaton.accepting.has(states).tolist()


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


@settings(max_examples=150)
@given(all_patterns)
def test_a_pattern_has_the_automaton_that_all_bytes_alone_give(pattern: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leafbeam.automata.regex.first_bytes", lambda _: np.arange(256))
        expected = compile_pattern(pattern, 10_000)
    assert edges_of(compile_pattern(pattern, 10_000)) == edges_of(expected)
