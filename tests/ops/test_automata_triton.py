"""Rounds over automata in Triton, under the interpreter, against the loops that have been compared with float64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.constrain.triton import automaton as triton_automata

VOCABULARY: list[bytes | None] = [
    *(bytes([one]) for one in b'ab"'),
    None,
    *(bytes([one]) for one in b"01-"),
    b"ab",
    b"a-01",
    None,
]
END, SIZE = 3, len(VOCABULARY) + 3
PATTERNS = ['"(a|ba|aba){1,3}"', "-?(0|1[01]*)", "(a-0)*1?", "(ab|ba|01){2,4}"]


pytestmark = pytest.mark.usefixtures("poison")


def states_of(rng: np.random.Generator, chosen: list[Automaton], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random states, ended ones and dead ones."""
    lo = np.stack([rng.integers(0, one.num_states + 1, rows) for one in chosen])[None]
    hi = lo + (rng.random(lo.shape) < 0.85)
    return np.where(hi > lo, lo, 0), np.where(hi > lo, hi, 0)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize(
    ("shares", "rows", "beams"),
    [((0.0, 0.0), 6, 4), ((1.0, 1.0), 6, 4), ((0.0, 1.0), 6, 4), ((0.0, 1.0), 1, 3), ((0.0, 1.0), 5, 40)],
)
def test_a_round_is_that_of_the_loops(scoring: Any, shares: tuple[float, float], rows: int, beams: int) -> None:
    rng = np.random.default_rng(rows + beams)
    first = rows % 2 * 2
    pair = zip(PATTERNS[first : first + 2], shares, strict=True)
    chosen = [Automaton.from_regex(pattern, VOCABULARY, dense_share=share) for pattern, share in pair]
    languages = automata.bind(chosen, end_code=END, num_codes=SIZE)
    arrays = triton_automata.bind(languages, "cpu")
    lo, hi = states_of(rng, chosen, rows)
    for ties in (False, True):  # the second finds what the first left behind
        drawn = rng.integers(0, 3, (2, rows, SIZE)) if ties else rng.normal(size=(2, rows, SIZE))
        given = (lo, hi, -rng.integers(0, 3, (2, rows)).astype(np.float32), drawn.astype(np.float32))
        expected = automata.step(languages, 0, Beams.start(*given[:3]), given[3], None, num_beams=beams, scoring=scoring)
        *ranges, logits = [torch.from_numpy(one) for one in given]
        found = triton_automata.step(arrays, 0, Beams.start(*ranges), logits, None, num_beams=beams, scoring=scoring)
        np.testing.assert_allclose(found.scores.numpy(), expected.scores, rtol=1e-5, atol=1e-5)
        for name in ("num_valid", "parent", "code", "lo", "hi"):
            if not ties:  # the last bit of a log-sum-exp decides what is equal
                assert np.array_equal(getattr(found, name).numpy(), getattr(expected, name)), name
        live = np.arange(beams) < expected.num_valid[:, None]
        for b, automaton in enumerate(chosen):
            kept = (found.parent[b].numpy(), found.code[b].numpy(), found.lo[0, b].numpy())
            for parent, code, after in zip(*(one[live[b]].tolist() for one in kept), strict=True):
                expected_state = automaton.num_states if code == END else automaton.next(int(lo[0, b, parent]), code)
                assert after == expected_state


def test_nan_is_named_and_the_next_round_is_clean() -> None:
    automaton = Automaton.from_sequences([[0, 1], [1]], vocabulary_size=2)
    arrays = triton_automata.bind(automata.bind([automaton, automaton], end_code=2, num_codes=3), "cpu")
    lo = torch.zeros(1, 2, 1, dtype=torch.int64)
    root = Beams.start(lo, lo + 1, torch.zeros(2, 1))
    logits = torch.zeros(2, 1, 3)
    logits[1, 0, 1] = torch.nan
    with np.errstate(invalid="ignore"), pytest.raises(LogitsError, match="request 1, beam 0 in round 4"):
        triton_automata.step(arrays, 4, root, logits, None, num_beams=2, scoring="full")
    clean = triton_automata.step(arrays, 4, root, torch.zeros(2, 1, 3), None, num_beams=2, scoring="full")
    assert clean.code.tolist() == [[0, 1], [0, 1]]


def test_what_does_not_fit_is_refused_before_a_launch() -> None:
    one = Automaton.from_regex("(ab)*", VOCABULARY, dense_share=0.0)
    other = Automaton.from_regex("(ab)*", [*VOCABULARY[:-2], b"b-", None], dense_share=0.0)
    with pytest.raises(ArgumentError, match="different vocabularies"):
        triton_automata.bind(automata.bind([one, other], end_code=END, num_codes=SIZE), "cpu")
    arrays = triton_automata.bind(automata.bind([one], end_code=END, num_codes=SIZE), "cpu")
    lo = torch.zeros(1, 1, 2, dtype=torch.int64)
    beams, logits = Beams.start(lo, lo, torch.zeros(1, 2)), torch.zeros(1, 2, SIZE)
    three = Beams.start(lo.expand(1, 3, 2), lo, torch.zeros(1, 2))
    launch = partial(triton_automata.launch, arrays, 0, filters=None, scoring="full")
    for error, call, message in (
        (ArgumentError, lambda: launch(beams, logits, num_beams=0), "num_beams is 0"),
        (ArgumentError, lambda: launch(three, logits, num_beams=2), "expected \\(1, 1, beams\\)"),
        (LogitsError, lambda: launch(beams, logits[..., 1:], num_beams=2), "shape"),
    ):
        with pytest.raises(error, match=message):
            call()
