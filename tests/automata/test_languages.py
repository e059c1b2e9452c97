"""Languages put together: concatenations, texts in a row, and sequences of tokens behind a language."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.automata import Automaton
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.languages import concatenate, free_text
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError
from tests.automata.languages import distances, members, patterns, spelled

LIMIT = 100_000


def strings(alphabet: str, longest: int) -> list[str]:
    return ["".join(letters) for n in range(longest + 1) for letters in itertools.product(alphabet, repeat=n)]


@pytest.mark.parametrize(
    "parts",
    [
        ["a", "b"],
        ["a*", "a"],
        ["a*", "b*", "a*"],
        ["(ab|a)", "(b|bc)?", "c"],
        ["(a|b)*", "a(a|b)(a|b)"],
        ["a?", "a?", "a?"],
        ["(abc|ab|b)*", "(c|bc)a*", "b"],
        ["", "a"],
    ],
)
def test_a_concatenation_is_that_of_the_patterns(parts: list[str]) -> None:
    found = concatenate([compile_pattern(part, LIMIT) for part in parts], LIMIT)
    whole = re.compile("".join(f"(?:{part})" for part in parts))
    for text in strings("abc", 6):
        assert found.accepts(text.encode()) == (whole.fullmatch(text) is not None), text
    assert found.num_states == compile_pattern("".join(f"(?:{part})" for part in parts), LIMIT).num_states  # minimal


def test_parts_of_different_alphabets_and_lists_of_texts() -> None:
    titles = ["tea cup", "tea", "red lamp", "日本"]
    found = concatenate([free_text("\n", None, LIMIT), ByteDFA.from_strings([t.encode() for t in titles])], LIMIT)
    for title in titles:
        assert found.accepts(f"thoughts: é\n{title}".encode())
        assert not found.accepts(f"thoughts{title}".encode())
        assert not found.accepts(f"two\nlines\n{title}".encode())
        assert not found.accepts(f"x\n{title}s".encode())


@pytest.mark.parametrize("stop", ["a", "ab", "aab", "aa", "abab", "é", "日a"])
@pytest.mark.parametrize("max_length", [None, 1, 3])
def test_free_text_ends_with_its_first_stop(stop: str, max_length: int | None) -> None:
    found = free_text(stop, max_length, LIMIT)
    for text in [*strings("ab", 7), *strings("é日a", 5)]:
        first = text.find(stop)
        expected = first >= 0 and first + len(stop) == len(text) and (max_length is None or first <= max_length)
        assert found.accepts(text.encode()) == expected, text


def test_free_text_is_unicode_up_to_its_length() -> None:
    found = free_text(None, 3, LIMIT)
    for text in strings("aé日\U0001f600", 4):
        assert found.accepts(text.encode()) == (len(text) <= 3)
    assert not found.accepts(b"\xff")
    assert not found.accepts("é".encode()[:1])
    assert free_text(None, None, LIMIT).accepts(b"any\nthing" * 20)


def test_what_takes_too_many_states_is_refused() -> None:
    hidden = [compile_pattern("(a|b)*", LIMIT), compile_pattern("a(a|b){14}", LIMIT)]  # 2^15 states
    with pytest.raises(AutomatonError, match="max_states=2,000"):
        concatenate(hidden, 2_000)
    with pytest.raises(AutomatonError, match="lower max_length"):
        free_text("stop", 100, 2_000)
    mistakes: list[tuple[Any, Any, str]] = [
        (None, 0, "at least 1"),
        (None, "5", "at least 1"),
        (None, True, "at least 1"),
        ("", None, "is empty"),
        (7, None, "expected text"),
        ("\ud800", None, "not Unicode"),
    ]
    for stop, max_length, says in mistakes:
        with pytest.raises(AutomatonError, match=says):
            free_text(stop, max_length, LIMIT)


def test_a_part_that_matches_nothing_leaves_nothing() -> None:
    nothing = ByteDFA.from_strings([])
    assert concatenate([compile_pattern("a", LIMIT), nothing], LIMIT).num_states == 0


VOCABULARY = [b"a", b"b", b"c", b"ab", b"\xc3\xa9", None, None]
FIRST, SECOND = 5, 6  # tokens without bytes
sequences = st.lists(st.lists(st.sampled_from([FIRST, SECOND, 0]), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=100)
@given(patterns, sequences, st.sampled_from([0.0, 1 / 64, 1.0]))
def test_the_language_is_the_concatenation(pattern: str, rows: list[list[int]], dense_share: float) -> None:
    rows = [[FIRST, *row] for row in rows]
    every = [one for length in range(5) for one in itertools.product(range(len(VOCABULARY)), repeat=length)]
    try:
        texts = Automaton.from_regex(pattern, VOCABULARY, dense_share=dense_share)
    except AutomatonError:  # nothing that it matches can be written
        return
    automaton = texts.then(Automaton.from_sequences(rows, len(VOCABULARY)))
    items = {tuple(row) for row in rows}

    def is_both(one: tuple[int, ...]) -> bool:
        halves = ((one[:at], one[at:]) for at in range(len(one)))
        return any(
            tail in items and (text := spelled(head, VOCABULARY)) is not None and re.fullmatch(pattern, text) is not None
            for head, tail in halves
        )

    assert members(automaton, every) == set(filter(is_both, every))
    assert (distances(automaton) >= 0).all()
    assert automaton.chains is not None
    states = np.arange(texts.num_states)
    forced = [texts.forced_bytes(int(state)) for state in states]
    assert [automaton.forced_bytes(int(state)) for state in states] == forced
    assert {automaton.forced_bytes(state) for state in range(texts.num_states, automaton.num_states)} <= {b""}


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (Automaton.from_sequences([[0, FIRST]], 7), "token 0 may go on with the text"),
        (Automaton.from_sequences([[FIRST]], 8), "over the same tokens"),
        (Automaton.from_sequences([[], [FIRST]], 7), "cannot follow"),
        (Automaton.from_choices(["a"], VOCABULARY), "expected one of from_sequences"),
    ],
)
def test_what_cannot_follow_is_named(last: Automaton, says: str) -> None:
    with pytest.raises(AutomatonError, match=says):
        Automaton.from_regex("a+", VOCABULARY).then(last)


def test_a_sequence_may_begin_with_a_token_of_a_text_that_has_ended() -> None:
    automaton = Automaton.from_regex("ab", VOCABULARY).then(Automaton.from_sequences([[0, FIRST]], 7))
    assert [3, 0, FIRST] in automaton
    assert [0, FIRST] not in automaton


def test_limits_hold() -> None:
    rows = [[FIRST, number] for number in range(5)] + [[SECOND, FIRST, FIRST, FIRST]]
    with pytest.raises(AutomatonError, match="max_states=3"):
        Automaton.from_regex("ab", VOCABULARY).then(Automaton.from_sequences(rows, 7), max_states=3)
