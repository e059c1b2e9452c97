"""Bad input to automata: named errors that say what was expected."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.errors import ArgumentError, AutomatonError, CodesError, LeafbeamError, MissingExtraError
from tests.automata.languages import LETTERS, distances


def refused(match: str, make, *arguments, **keywords) -> None:
    with pytest.raises(AutomatonError, match=match):
        make(*arguments, **keywords)


def test_vocabularies_that_are_none_are_refused() -> None:
    for vocabulary, match in (
        ([], "expected 1 token"),
        ([None], "expected 1 token"),
        ([b"a", b""], "token 1 .* at least one"),
        ([b"a", "b"], "token 1 .* expected its bytes"),
        (b"abc", "one string"),
        ("abc", "one string"),
        ([b"a", 3], "token 1"),
    ):
        refused(match, Automaton.from_regex, "a", vocabulary)
        refused(match, Automaton.from_choices, ["a"], vocabulary)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("(a", "does not close 1 of its brackets"),
        ("a)|(?:b", "closes a bracket at 1"),
        ("[a", "does not close the class"),
        ("a(?=b)", "refuses the pattern"),
        (r"(a)\1", "refuses the pattern"),
        ("*", "refuses the pattern"),
        ("a{2", "refuses the pattern"),
        ("\\", "refuses the pattern"),
        (r"\bab", "looks back"),
        (r"a|^b", "looks back"),
        (r"\Aa", "looks back"),
        ("[b&&c]", "refuses the pattern|matches nothing"),
        ("a$b", "refuses the pattern|matches nothing"),
        ("a{1000000000}", "unrolls to"),
        ("(?:(?:a{1000}){1000}){1000}", "unrolls to"),
        (3, "expected a string"),
        (b"a", "expected a string"),
        (None, "expected a string"),
    ],
)
def test_patterns_that_are_none_are_refused(pattern: str, match: str) -> None:
    refused(match, Automaton.from_regex, pattern, LETTERS)


@settings(max_examples=200)
@given(st.text("ab()[]{}|*+?\\^$.-,0159é&~:<>P\n", max_size=12))
def test_any_text_is_a_pattern_or_an_error(pattern: str) -> None:
    try:
        automaton = Automaton.from_regex(pattern, [b"a", b"b", b"0"], max_states=2000)
    except LeafbeamError:
        return
    assert (distances(automaton) >= 0).all()


def test_an_empty_allowed_set_is_refused() -> None:
    refused("nothing that the pattern matches can be written", Automaton.from_regex, "[xyz]+", LETTERS)
    refused("nothing that the schema matches can be written", Automaton.from_json_schema, {"type": "null"}, LETTERS)
    refused("choice 1, 'xyz', cannot be written", Automaton.from_choices, ["a", "xyz"], LETTERS)
    refused("choice 0, 'b', cannot be written", Automaton.from_choices, ["b"], [b"a", b"ab"])
    assert Automaton.from_choices(["aab", "ab"], [b"a", b"ab"]).num_states > 1


def test_choices_and_sequences_that_are_none_are_refused() -> None:
    refused("expected a list", Automaton.from_choices, [], LETTERS)
    refused("expected a list", Automaton.from_choices, "ab", LETTERS)
    refused("choice 1 is 3", Automaton.from_choices, ["a", 3], LETTERS)
    refused("from_sequences", Automaton.from_choices, [[1, 2]], LETTERS)
    refused("not Unicode", Automaton.from_choices, ["\ud800"], LETTERS)
    refused("no sequences", Automaton.from_sequences, [], 5)
    with pytest.raises(CodesError):
        Automaton.from_sequences([[5]], 5)
    with pytest.raises(CodesError):
        Automaton.from_sequences([[0] * 65], 5)
    with pytest.raises(ArgumentError):
        Automaton.from_sequences([[0]], 0)


def test_what_is_larger_than_its_budget_is_refused() -> None:
    refused("expected at most max_states=5", Automaton.from_regex, "a{1,5}b", LETTERS, max_states=5)
    refused("expected at most max_states=3", Automaton.from_choices, ["abcabc"], LETTERS, max_states=3)
    refused("expected at most max_states=2", Automaton.from_sequences, [[1, 2, 3]], 9, max_states=2)
    letters = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in itertools.product(b"abcdefgh", repeat=2)] * 30
    for share in (0.0, 1.0):
        for budget in (1, 500, 4000):
            refused("bytes", Automaton.from_regex, "[a-z]{0,40}", letters, max_bytes=budget, dense_share=share)
    assert Automaton.from_regex("[a-z]{0,40}", letters, dense_share=0.0).nbytes < 30_000
    refused("expected at most max_bytes", Automaton.from_sequences, [[1, 2, 3]], 9, max_bytes=10)


@pytest.mark.parametrize("limits", [{"max_states": 0}, {"max_bytes": 0}, {"dense_share": -0.1}, {"dense_share": float("nan")}])
def test_limits_out_of_range_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Automaton.from_choices(["a"], LETTERS, **limits)


def test_states_and_tokens_out_of_range_are_refused() -> None:
    automaton = Automaton.from_choices(["ab"], LETTERS)
    for state in (-2, automaton.num_states, 2**40):
        refused("is not in the automaton", automaton.allowed, state)
        refused("is not in the automaton", automaton.accepts, state)
        refused("is not in the automaton", automaton.masks, np.array([0, state]))
        refused("is not in the automaton", automaton.forced_bytes, state)
    for token in (-1, len(LETTERS), 2**40):
        refused("is not in the vocabulary", automaton.next, 0, token)
        refused("is not in the vocabulary", TokenTrie.of(LETTERS).bytes_of, token)
        assert [token] not in automaton
    refused("is not legal in state 0", automaton.next, 0, 2)
    refused("one for each state", automaton.step, np.array([0]), np.array([1, 2]))
    refused("expected integers", automaton.step, np.array([0]), np.array([1.0]))
    refused("expected a list of integers", automaton.legal, np.array([0.0]))
    refused("expected a list of integers", automaton.legal, np.array([[0]]))


def test_without_outlines_core_patterns_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "outlines_core", None)
    with pytest.raises(MissingExtraError, match=r"leafbeam\[automata\]"):
        Automaton.from_regex("a", LETTERS)
    assert [1] in Automaton.from_choices(["a"], LETTERS)
