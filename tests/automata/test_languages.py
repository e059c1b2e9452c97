"""Free text and concatenations, against Python's regular expressions on every short string."""

import itertools
import re
from typing import Any

import pytest

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.languages import concatenate, free_text
from leafbeam.automata.regex import compile_pattern
from leafbeam.errors import AutomatonError

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
