"""Patterns and formats beside bounds of lengths: characters are counted while a text is read."""

import pytest

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.counted_text import finite_lengths
from leafbeam.automata.json_schema import schema_language
from leafbeam.automata.json_strings import Strings, format_lengths
from leafbeam.automata.json_text import FORMATS
from leafbeam.automata.network import END, START, Network
from tests.automata.languages import edges_of

PATTERNS = [
    r"^[a-z]*$",
    r"^(ab)+$",
    r"^(a|\n)b$",
    r"^(an|\n)$",
    r"^(?:\S+\s+){0,3}\S+$",
    r"^a{2,5}$",
    r"^(.{4})(-..)?(-..)?$",
    r"b",
    r"^x",
    r"é$",
    r"^(a{7}|a{3}|b*c)$",
    r"^[^,]+$",
    r"^$|^a+$",
    '^"+\\\\?$',
    r"^(aaa|é{2}🙂*)$",
]
BOUNDS = [(0, 0), (0, 3), (1, None), (3, None), (2, 2), (4, 9), (6, 8), (5, 40), (11, None), (40, 41)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_a_counted_text_has_the_strings_of_the_product_with_a_length(pattern: str, low: int, high: int | None) -> None:
    strings = Strings(max_states=10_000)
    values = strings.writable(strings.matching(pattern))
    product = strings.escaped(strings.both(values, strings.of_length(low, high)))[0]
    counted = strings.counted(values, low, high)
    if counted is None:
        assert pattern in (PATTERNS[1], PATTERNS[6], PATTERNS[10], PATTERNS[14]), "these have gaps between their lengths"
        return
    assert counted.is_empty == product.is_empty
    networks = Network(100_000), Network(100_000)
    networks[0].add_counted(START, counted, END)
    networks[1].add(START, product, END)
    assert edges_of(networks[0].language()) == edges_of(networks[1].language())


@pytest.mark.parametrize(
    ("texts", "lengths"),
    [(["a"], (1, 1)), (["", "éé"], (0, 2)), (["abc", "🙂", "ab"], (1, 3)), (["b" * 70, "a" * 69 + "é"], (70, 70))],
)
def test_the_lengths_of_finite_languages_are_those_of_their_strings(texts: list[str], lengths: tuple[int, int]) -> None:
    assert finite_lengths(ByteDFA.from_strings([text.encode() for text in texts])) == lengths


def test_a_language_without_a_longest_string_has_no_lengths() -> None:
    strings = Strings(max_states=1000)
    assert finite_lengths(strings.matching("^ab*$")) is None
    assert finite_lengths(strings.matching("^(a|b)+c$")) is None


@pytest.mark.parametrize("name", FORMATS)
def test_bounds_that_leave_out_no_string_of_a_format_change_nothing(name: str) -> None:
    alone = schema_language({"type": "string", "format": name}, 1_000_000)
    first, last = format_lengths(name)
    for bounds in [{"maxLength": last + 1 if last else 10_000}, {"minLength": first}]:
        bounded = schema_language({"type": "string", "format": name, **bounds}, 1_000_000)
        if last or "minLength" in bounds:
            assert edges_of(bounded) == edges_of(alone), (name, bounds)
    if last:
        tight = schema_language({"type": "string", "format": name, "maxLength": last - 1}, 1_000_000) if last > first else None
        assert tight is None or tight.num_states > 0
        if tight is not None:
            assert edges_of(tight) != edges_of(alone), "the longest string is left out"
