"""Sequences behind texts: the language is every text followed by every sequence."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.automata import Automaton
from leafbeam.errors import AutomatonError
from tests.automata.languages import distances, members, patterns, spelled

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


def test_saved_and_loaded_it_is_the_same(tmp_path) -> None:
    automaton = Automaton.from_regex("(a|b)+", VOCABULARY).then(Automaton.from_sequences([[FIRST, SECOND]], len(VOCABULARY)))
    automaton.save(tmp_path / "automaton")
    assert Automaton.load(tmp_path / "automaton").version == automaton.version


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
