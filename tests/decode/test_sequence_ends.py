"""Several end codes are one event: a search with them equals that of a model whose one end code has the mass of all."""

from typing import Any

import numpy as np
import pytest

from leafbeam.automata import Automaton
from leafbeam.decode import Sampling, SequenceSampler, SequenceSearch
from leafbeam.errors import ArgumentError
from tests.fixtures.automaton_model import END, PATTERNS, SIZE, VOCABULARY, Model

ENDS = [END, len(VOCABULARY) - 1, SIZE - 1]  # before, among and behind the tokens


class Folded(Model):
    """The same model, whose first end code has the mass of all."""

    def logits(self, prefix: tuple[int, ...]) -> np.ndarray:
        logits = super().logits(prefix)
        logits[END] = np.logaddexp.reduce(logits[ENDS].astype(np.float64))
        logits[ENDS[1:]] = -np.inf
        return logits


class Several(Model):
    """A model whose sequences end by any of the end codes: behind one of them its logits are not read."""

    def __call__(self, codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        logits = super().__call__(codes, parents)
        return np.where(np.isnan(logits), np.float32(0), logits)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("dense_share", [0.0, 1.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_several_end_codes_are_one_event(pattern: str, dense_share: float, scoring: Any) -> None:
    """T5: from logits, and from hidden states through a head."""
    automaton = Automaton.from_regex(pattern, VOCABULARY, dense_share=dense_share)
    common: dict[str, Any] = {"num_codes": SIZE, "max_tokens": 6, "scoring": scoring}
    for seed, width in ((0, 1), (1, 3), (2, 40)):
        one = SequenceSearch(automaton, end_code=END, num_beams=width, **common).run(Folded(seed))
        several = SequenceSearch(automaton, end_code=ENDS, num_beams=width, **common).run(Several(seed))
        assert [row.tolist() for row in several.tokens[0]] == [row.tolist() for row in one.tokens[0]]
        np.testing.assert_allclose(several.scores, one.scores, atol=1e-5)
        assert np.array_equal(several.finished, one.finished)
        through_head = SequenceSearch(automaton, end_code=ENDS, num_beams=width, **common).run(
            Several(seed), head=np.eye(SIZE, dtype=np.float32)
        )
        assert [row.tolist() for row in through_head.tokens[0]] == [row.tolist() for row in one.tokens[0]]
        np.testing.assert_allclose(through_head.scores, one.scores, atol=1e-5)


def test_drawing_ends_with_the_probability_of_all_end_codes() -> None:
    """T5: the scores of drawn sequences are those of a search that lists them all."""
    automaton = Automaton.from_regex("(ab|a)?", VOCABULARY)
    found = SequenceSearch(automaton, end_code=ENDS, num_codes=SIZE, num_beams=40, max_tokens=4, scoring="allowed").run(
        Several(4)
    )
    scores = {tuple(row.tolist()): score for row, score in zip(found.tokens[0], found.scores[0].tolist(), strict=False)}
    assert sum(np.exp(list(scores.values()))) == pytest.approx(1, abs=1e-5)
    sampler = SequenceSampler(
        automaton, end_code=ENDS, num_codes=SIZE, sampling=Sampling(), num_samples=2_000, max_tokens=4, seed=1
    )
    drawn = sampler.run(Several(4))
    texts = [tuple(row.tolist()) for row in drawn.tokens[0]]
    for text, score in zip(texts, drawn.scores[0].tolist(), strict=True):
        assert score == pytest.approx(scores[text], abs=1e-4)
    for text, score in scores.items():
        assert texts.count(text) / 2_000 == pytest.approx(np.exp(score), abs=0.05)


def test_end_codes_that_do_not_fit_are_named() -> None:
    automaton = Automaton.from_regex("(ab)+", VOCABULARY)
    for ends in ([], [END, SIZE], [-1]):
        with pytest.raises(ArgumentError, match="expected a code of the model"):
            SequenceSearch(automaton, end_code=ends, num_codes=SIZE)
