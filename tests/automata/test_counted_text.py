"""Patterns and formats beside bounds of lengths: characters are counted while a text is read."""

from itertools import pairwise

import numpy as np
import pytest

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.json_strings import Strings
from leafbeam.automata.network import END, START, Network

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
