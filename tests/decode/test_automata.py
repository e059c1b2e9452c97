"""Searching regular languages: against a float64 oracle, against the trie of the same sequences, and through the head."""

import re
from typing import Any

import numpy as np
import pytest

from leafbeam.automata import Automaton
from leafbeam.decode.sequence_search import SequenceSearch
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu import automaton as automata
from tests.fixtures.automaton_model import END, PATTERNS, SIZE, VOCABULARY, Model


def oracle(automaton: Automaton, model: Model, width: int, scoring: str, rounds: int) -> list[tuple[float, tuple[int, ...]]]:
    """(score, codes with the end code), best first, in float64."""
    beams: list[tuple[float, tuple[int, ...], int]] = [(0.0, (), 0)]
    for _ in range(rounds):
        found: list[tuple[float, int, int, tuple[int, ...], int]] = []
        for parent, (score, prefix, state) in enumerate(beams):
            if END in prefix:
                found.append((score, parent, END, prefix, state))
                continue
            logits = model.logits(prefix).astype(np.float64)
            codes = sorted([*automaton.allowed(state).tolist(), *([END] if automaton.accepts(state) else [])])
            read = logits if scoring == "full" else logits[codes]
            lse = np.log(np.exp(read).sum())
            for code in codes:
                after = state if code == END else automaton.next(state, code)
                found.append((score + logits[code] - lse, parent, code, (*prefix, code), after))
        found.sort(key=lambda one: (-round(one[0], 9), one[1], one[2]))
        beams = [(score, prefix, state) for score, _, _, prefix, state in found[:width]]
    return [(score, prefix) for score, prefix, _ in beams]


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("dense_share", [0.0, 1.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_beams_are_the_oracles_and_are_in_the_language(pattern: str, dense_share: float, scoring: str) -> None:
    automaton = Automaton.from_regex(pattern, VOCABULARY, dense_share=dense_share)
    for seed, width in ((0, 1), (1, 3), (2, 40)):
        search = SequenceSearch(
            automaton,
            end_code=END,
            num_codes=SIZE,
            num_beams=width,
            max_tokens=6,
            scoring=scoring,  # type: ignore[arg-type]
        )
        result = search.run(model := Model(seed))
        expected = oracle(automaton, Model(seed), width, scoring, 6)
        count = int(result.num_valid[0])
        assert [tuple(one) for one in result.tokens[0]] == [codes[:-1] if codes[-1] == END else codes for _, codes in expected]
        np.testing.assert_allclose(result.scores[0, :count], [score for score, _ in expected], rtol=1e-5, atol=1e-5)
        assert result.finished[0, :count].tolist() == [END in codes for _, codes in expected]
        assert result.rounds == model.calls <= 6
        for tokens, ended in zip(result.tokens[0], result.finished[0], strict=False):
            text = b"".join(VOCABULARY[token] or b"" for token in tokens)
            assert not ended or re.fullmatch(pattern.encode(), text)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_two_languages_in_one_batch_and_the_head_for_legal_codes_alone(scoring: Any) -> None:
    chosen = [
        Automaton.from_regex(pattern, VOCABULARY, dense_share=share)
        for pattern, share in zip(PATTERNS[:2], (0, 1), strict=True)
    ]
    search = SequenceSearch(chosen, end_code=END, num_codes=SIZE, num_beams=5, max_tokens=7, scoring=scoring)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((SIZE, 12), np.float32)
    asked: list[tuple[int, ...]] = []

    def hidden(codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        shape = (2, 12) if codes is None else (*codes.shape, 12)
        asked.append(shape)
        drawn = np.random.default_rng(len(asked)).standard_normal(shape, np.float32)
        if codes is not None:
            drawn[codes == END] = np.nan  # nothing of a beam that has ended is looked at
        return drawn

    expected = search.run(lambda codes, parents: hidden(codes, parents) @ weight.T, batch_size=2)
    asked.clear()
    result = search.run(hidden, batch_size=2, head=weight)
    assert [[one.tolist() for one in row] for row in result.tokens] == [
        [one.tolist() for one in row] for row in expected.tokens
    ]
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5, atol=1e-5)
    for b, automaton in enumerate(chosen):
        alone = SequenceSearch(automaton, end_code=END, num_codes=SIZE, num_beams=5, max_tokens=7, scoring=scoring)
        asked.clear()
        single = alone.run(lambda codes, parents, b=b: (hidden_of(b, codes, asked)) @ weight.T)
        assert [one.tolist() for one in single.tokens[0]] == [one.tolist() for one in expected.tokens[b]]


def hidden_of(request: int, codes: np.ndarray | None, asked: list[tuple[int, ...]]) -> np.ndarray:
    """What the batch's hidden states are for one of its two requests."""
    shape = (2, 12) if codes is None else (2, codes.shape[1], 12)
    asked.append(shape)
    return np.random.default_rng(len(asked)).standard_normal(shape, np.float32)[request : request + 1]


def test_children_are_the_legal_codes_and_where_they_lead() -> None:
    automaton = Automaton.from_regex(PATTERNS[1], VOCABULARY)
    languages = automata.bind([automaton], end_code=END, num_codes=SIZE)
    states = np.array([[[0, automaton.num_states, *range(1, automaton.num_states), 0]]])
    ends = states + np.array([*[1] * (states.size - 1), 0])
    codes = automata.legal(languages, states, ends)
    row_indptr, code_C = codes.indptr_R1, codes.code_C
    assert row_indptr[-1] == row_indptr[-2]  # the dead one
    scores, logits = np.zeros(states.shape[1:], np.float32), np.zeros((1, states.size, SIZE), np.float32)
    found = automata.step(languages, 0, Beams.start(states, ends, scores), logits, None, num_beams=len(code_C), scoring="full")
    order = np.lexsort((found.code[0], found.parent[0]))
    assert found.parent[0, order].tolist() == np.repeat(np.arange(states.size), np.diff(row_indptr)).tolist()
    assert found.code[0, order].tolist() == code_C.tolist()
    lo_C, hi_C = found.lo[0, 0, order], found.hi[0, 0, order]
    for row, state in enumerate(states[0, 0, :-1].tolist()):
        codes = code_C[row_indptr[row] : row_indptr[row + 1]].tolist()
        if state == automaton.num_states:
            assert codes == [END]
            continue
        assert codes == sorted([*automaton.allowed(state).tolist(), *([END] if automaton.accepts(state) else [])])
        after = [automaton.num_states if code == END else automaton.next(state, code) for code in codes]
        assert lo_C[row_indptr[row] : row_indptr[row + 1]].tolist() == after
    assert np.array_equal(hi_C, lo_C + 1)


def test_what_does_not_fit_is_named() -> None:
    automaton = Automaton.from_regex("(ab)+", VOCABULARY)
    for call, message in (
        (lambda: SequenceSearch(automaton, end_code=0, num_codes=SIZE), "is a token of the language"),
        (
            lambda: SequenceSearch(Automaton.from_regex("a*", VOCABULARY, dense_share=0.0), end_code=0, num_codes=SIZE),
            "is a token of the language",
        ),
        (lambda: SequenceSearch(automaton, end_code=15, num_codes=15), "0 to 14"),
        (lambda: SequenceSearch(automaton, end_code=0, num_codes=3), "model has 3 codes"),
        (lambda: SequenceSearch(automaton, end_code=END, num_codes=SIZE, num_beams=0), "num_beams must be .* not 0"),
        (lambda: SequenceSearch(automaton, end_code=END, num_codes=SIZE, scoring="both"), "scoring"),
        (lambda: SequenceSearch([], end_code=END, num_codes=SIZE), "at least one"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    search = SequenceSearch([automaton, automaton], end_code=END, num_codes=SIZE)
    for error, call, message in (
        (ArgumentError, lambda: search.run(Model(0), batch_size=3), "one for each request"),
        (
            LogitsError,
            lambda: search.run(lambda codes, parents: np.full((2, SIZE), np.nan), batch_size=2),
            "beam 0 in round 0 hold NaN",
        ),
        (LogitsError, lambda: search.run(lambda codes, parents: np.zeros((2, SIZE - 1)), batch_size=2), "shape"),
        (
            LogitsError,
            lambda: search.run(lambda codes, parents: np.zeros((2, 5)), batch_size=2, head=np.zeros((SIZE, 4), np.float32)),
            "hidden states of shape",
        ),
        (
            LogitsError,
            lambda: search.run(
                lambda codes, parents: np.full((2, 4), np.nan), batch_size=2, head=np.ones((SIZE, 4), np.float32)
            ),
            "request 0, beam 0 hold NaN",
        ),
        (
            ArgumentError,
            lambda: search.run(lambda codes, parents: np.zeros((2, 5)), batch_size=2, head=np.zeros((4, 4), np.float32)),
            "the head has 4 codes",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
