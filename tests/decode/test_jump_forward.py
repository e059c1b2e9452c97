"""Jumps over forced chains: the same answer as round by round, to the last bit, with fewer calls of the model."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import BeamSearch, Trie
from leafbeam.automata import Automaton
from leafbeam.decode import SequenceResult, SequenceSearch
from leafbeam.errors import LogitsError
from tests.fixtures.automaton_model import END, SINGLES, SIZE, VOCABULARY, Forecaster


def assert_equal(one: SequenceResult, other: SequenceResult) -> None:
    assert [[row.tolist() for row in rows] for rows in one.tokens] == [[row.tolist() for row in rows] for rows in other.tokens]
    assert one.num_valid.tolist() == other.num_valid.tolist()
    assert np.array_equal(one.scores, other.scores)
    assert np.array_equal(one.finished, other.finished)


def both(search: SequenceSearch, seed: int, **kwargs: Any) -> tuple[SequenceResult, SequenceResult]:
    """(with jumps, round by round), after the counts were checked."""
    batch_size = kwargs.get("batch_size", 1)
    fast, slow = Forecaster(seed, **kwargs), Forecaster(seed, **kwargs)
    result, expected = search.run(fast, batch_size, suffix_fn=fast.suffix_fn), search.run(slow, batch_size)
    assert (expected.rounds, expected.rounds_saved, slow.passes) == (slow.calls, 0, 0)
    assert result.rounds == fast.calls
    assert result.rounds + result.rounds_saved == expected.rounds
    assert_equal(result, expected)
    return result, expected


# Corridors at the beginning, in the middle, at the end; around loops; of different lengths side by side; none at all.
PATTERNS = [
    '"ab-(0|1)-ab"',
    "aab(0011|1-)*b1b1",
    "(ab|ba|01){2,4}-----",
    "b(0000|1111111)*",
    "a{9}",
    "-?(0|1[01]*)",
    "",
    "(0(ab01|b)-a){1,2}|1",
]


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("vocabulary", [SINGLES, VOCABULARY], ids=["letters", "words"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_answer_is_that_of_the_rounds(pattern: str, vocabulary: list[bytes | None], scoring: Any) -> None:
    for share in (0.0, 1.0):
        automaton = Automaton.from_regex(pattern, vocabulary, dense_share=share, compress=True)
        for seed, width in ((0, 1), (1, 3), (2, 30)):
            for ties in (False, True):
                search = SequenceSearch(
                    automaton, end_code=END, num_codes=SIZE, num_beams=width, max_tokens=14, scoring=scoring
                )
                both(search, seed, ties=ties)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_limit_of_tokens_cuts_off_where_the_rounds_do(scoring: Any) -> None:
    automaton = Automaton.from_regex("a(b01-b0|001)*-----", SINGLES, compress=True)
    for limit in range(1, 20):
        search = SequenceSearch(automaton, end_code=END, num_codes=SIZE, num_beams=4, max_tokens=limit, scoring=scoring)
        result, _ = both(search, limit)
        assert max(len(row) for row in result.tokens[0]) <= limit


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=8).map(tuple), min_size=1, max_size=12, unique=True),
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from(["full", "allowed"]),
    st.booleans(),
)
def test_sequences_of_every_shape_are_found_as_in_their_trie(
    words: list[tuple[int, ...]], seed: int, width: int, scoring: Any, ties: bool
) -> None:
    trie, automaton = Trie.from_sequences(words, 5), Automaton.from_sequences(words, 5)
    limit = trie.num_levels
    search = SequenceSearch(automaton, end_code=5, num_codes=6, num_beams=width, max_tokens=limit, scoring=scoring)
    result, _ = both(search, seed, ties=ties, size=6, end=5)
    model = Forecaster(seed, ties, size=6, end=5)
    items = BeamSearch(trie, width, scoring=scoring).run(model, suffix_fn=model.suffix_fn)
    count = int(items.num_valid[0])
    assert result.num_valid[0] == count
    padded = [(*tokens.tolist(), *[5] * (limit - len(tokens))) for tokens in result.tokens[0]]
    assert padded == [tuple(codes) for codes in items.codes[0, :count].tolist()]
    np.testing.assert_allclose(result.scores[0, :count], items.scores[0, :count], rtol=2e-6, atol=2e-6)
    assert result.rounds <= model.calls  # a leaf is forced, and so are corridors above the leaves


@settings(max_examples=100)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 3), max_size=7).map(tuple), min_size=1, max_size=4), min_size=2, max_size=3),
    st.integers(0, 2**32),
    st.sampled_from(["full", "allowed"]),
)
def test_a_batch_jumps_as_far_as_all_its_requests_may(languages: list[list[tuple[int, ...]]], seed: int, scoring: Any) -> None:
    chosen = [Automaton.from_sequences(words, 4) for words in languages]
    search = SequenceSearch(chosen, end_code=4, num_codes=5, num_beams=3, max_tokens=8, scoring=scoring)
    both(search, seed, size=5, end=4, batch_size=len(chosen))


class Wide(Forecaster):
    """Excludes some codes after the third."""

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        drawn = super().logits(prefix)
        if len(prefix) < 3:
            return drawn
        return np.where(np.random.default_rng([self.seed, 7, *prefix]).random(len(drawn)) < 0.2, -np.inf, drawn)


def test_codes_that_the_model_excludes_in_a_corridor_end_the_beam_there() -> None:
    ended = passes = 0
    for seed in range(30):
        words = np.random.default_rng(seed).integers(0, 4, (6, 7)).tolist()
        automaton = Automaton.from_sequences(words, 4)
        search = SequenceSearch(automaton, end_code=4, num_codes=5, num_beams=4, max_tokens=9)
        fast, slow = Wide(seed, size=5, end=4), Wide(seed, size=5, end=4)
        result, expected = search.run(fast, suffix_fn=fast.suffix_fn), search.run(slow)
        assert_equal(result, expected)
        passes += fast.passes
        ended += int(expected.num_valid[0] < 4)
    assert ended > 10 < passes


@pytest.mark.parametrize(("scoring", "passes"), [("full", [6, 4]), ("allowed", [6])])
def test_one_pass_for_each_corridor(scoring: Any, passes: list[int]) -> None:
    """The prompt; `b0000` and the choice behind; `bbb` and the end, where that has a score."""
    automaton = Automaton.from_regex("ab0000(1|-)bbb", SINGLES, compress=True)
    search = SequenceSearch(automaton, end_code=END, num_codes=SIZE, num_beams=3, scoring=scoring)
    fast = Forecaster(0)
    asked: list[int] = []

    def suffix_fn(codes_BKT: np.ndarray, parents_BK: np.ndarray) -> list[np.ndarray]:
        asked.append(codes_BKT.shape[2])
        return fast.suffix_fn(codes_BKT, parents_BK)

    result = search.run(fast, suffix_fn=suffix_fn)
    assert asked == passes
    assert (result.rounds, result.rounds_saved) == (1 + len(passes), 11 - 1 - len(passes))
    assert result.finished.tolist() == [[True, True, False]]


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_languages_without_chains_are_asked_round_by_round(scoring: Any) -> None:
    plain, jumped = Automaton.from_regex("a{9}", SINGLES), Automaton.from_regex("a{9}", SINGLES, compress=True)
    for chosen, saved in (([plain] * 2, False), ([jumped, plain], False), ([jumped] * 2, True)):
        search = SequenceSearch(chosen, end_code=END, num_codes=SIZE, scoring=scoring)
        result, _ = both(search, 0, batch_size=2)
        assert bool(result.rounds_saved) == saved


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_jumps_through_the_head_for_legal_codes_alone(scoring: Any) -> None:
    automaton = Automaton.from_regex(PATTERNS[3], SINGLES, compress=True)
    weight_VD = np.random.default_rng(1).standard_normal((SIZE, SIZE), np.float32)
    search = SequenceSearch(automaton, end_code=END, num_codes=SIZE, num_beams=4, max_tokens=20, scoring=scoring)
    fast, slow = Forecaster(5), Forecaster(5)
    result = search.run(fast, head=weight_VD, suffix_fn=fast.suffix_fn)
    expected = search.run(slow, head=weight_VD)
    assert result.rounds_saved
    assert_equal(result, expected)


def test_a_model_in_torch_is_given_tensors() -> None:
    automaton = Automaton.from_regex("ab0000(1|-)bbb", SINGLES, compress=True)
    model = Forecaster(0)
    kinds: list[Any] = []

    def step_fn(codes_BK: Any, parents_BK: Any) -> torch.Tensor:
        kinds.extend([codes_BK, parents_BK] if codes_BK is not None else [])
        given = (None, None) if codes_BK is None else (codes_BK.numpy(), parents_BK.numpy())
        return torch.from_numpy(model(*given))

    def suffix_fn(codes_BKT: Any, parents_BK: Any) -> list[torch.Tensor]:
        kinds.extend([codes_BKT, parents_BK])
        return [torch.from_numpy(one) for one in model.suffix_fn(codes_BKT.numpy(), parents_BK.numpy())]

    search = SequenceSearch(automaton, end_code=END, num_codes=SIZE)
    result = search.run(step_fn, suffix_fn=suffix_fn)
    assert kinds
    assert all(one.dtype == torch.int64 for one in kinds)
    assert_equal(result, search.run(Forecaster(0)))


def test_a_pass_that_answers_too_little_is_named() -> None:
    search = SequenceSearch(Automaton.from_sequences([[1, 2, 3]], 4), end_code=4, num_codes=5)
    with pytest.raises(LogitsError, match="suffix_fn returned the logits of 0 levels: expected 3"):
        search.run(lambda codes, parents: np.zeros((1, 5)), suffix_fn=lambda codes, parents: [])
