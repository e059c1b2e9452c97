"""Drawn sequences: as often as the distribution says, the same for a seed whatever the batch, and through the head."""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from leafbeam.automata import Automaton
from leafbeam.decode import Sampling, SequenceSampler, SequenceSearch
from leafbeam.errors import ArgumentError, LogitsError

LETTERS = [b"a", b"b", None, b"ab", b"c"]
END, SIZE, DRAWS = 2, 6, 4000
CHOICES = Automaton.from_choices(["a", "ab", "abc", "b", "cc"], LETTERS)


@functools.cache
def logits_of(prefix: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([7, len(prefix), *prefix]).normal(scale=1.5, size=SIZE).astype(np.float32)


class Model:
    """Logits from a hash of the prefix, NaN behind the end code. shift: makes requests of a batch different."""

    def __init__(self, batch_size: int = 1, first: int = 0) -> None:
        self.prefixes: list[list[tuple[int, ...]]] = [[(100 + first + b,)] for b in range(batch_size)]

    def __call__(self, codes: Any, parents: Any) -> np.ndarray:
        if codes is not None:
            pairs = zip(self.prefixes, zip(codes, parents, strict=True), strict=True)
            self.prefixes = [
                [(*before[parent], int(code)) for code, parent in zip(*pair, strict=True)] for before, pair in pairs
            ]
        junk = np.full(SIZE, np.nan, np.float32)
        return np.stack([[junk if END in one else logits_of(one) for one in row] for row in self.prefixes])


def distribution(automaton: Automaton, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The probability of every sequence, by enumeration."""
    found: dict[tuple[int, ...], float] = {}

    def walk(prefix: tuple[int, ...], state: int, p: float) -> None:
        codes = sorted([*automaton.allowed(state).tolist(), *([END] if automaton.accepts(state) else [])])
        weights = np.exp(logits_of((100, *prefix))[codes].astype(np.float64) / sampling.temperature)
        weights /= weights.sum()
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        kept = order[(np.arange(len(order)) < (sampling.top_k or SIZE)) & (before < (sampling.top_p or 2))]
        for index in kept.tolist():
            share = p * weights[index] / weights[kept].sum()
            if codes[index] == END:
                found[prefix] = found.get(prefix, 0) + share
            else:
                walk((*prefix, codes[index]), automaton.next(state, codes[index]), share)

    walk((), 0, 1.0)
    return found


def sampler(sampling: Sampling = Sampling(), automaton: Any = CHOICES, **options: Any) -> SequenceSampler:  # noqa: B008
    return SequenceSampler(automaton, end_code=END, num_codes=SIZE, sampling=sampling, **options)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.4), Sampling(top_k=2), Sampling(temperature=2.0, top_p=0.6)]
)
def test_sequences_are_drawn_as_often_as_the_distribution_says(sampling: Sampling) -> None:
    exact = distribution(CHOICES, sampling)
    assert sum(exact.values()) == pytest.approx(1)
    result = sampler(sampling, num_samples=DRAWS, max_tokens=5, seed=3).run(Model())
    assert result.finished.all()
    drawn = Counter(tuple(tokens.tolist()) for tokens in result.tokens[0])
    assert set(drawn) <= set(exact)
    for tokens, p in exact.items():
        assert drawn[tokens] / DRAWS == pytest.approx(p, abs=4.5 * math.sqrt(p * (1 - p) / DRAWS) + 1e-9)
    expected = [math.log(exact[tuple(tokens.tolist())]) for tokens in result.tokens[0]]
    np.testing.assert_allclose(result.scores[0], expected, atol=1e-5)


def test_a_request_is_drawn_with_its_seed_alone_whatever_else_is_in_the_batch() -> None:
    number = Automaton.from_regex("(a|b){8}c?", LETTERS, compress=True)
    automata, seeds = [CHOICES, number, CHOICES], [5, 6, -7]
    together = sampler(automaton=automata, num_samples=3, max_tokens=12, seed=seeds).run(Model(3), 3)
    for b, (automaton, seed) in enumerate(zip(automata, seeds, strict=True)):
        alone = sampler(automaton=automaton, num_samples=3, max_tokens=12, seed=seed).run(Model(first=b))
        cut = sampler(automaton=automaton, num_samples=2, max_tokens=3, seed=seed).run(Model(first=b))
        for k in range(3):
            assert alone.tokens[0][k].tolist() == together.tokens[b][k].tolist()
        for k in range(2):
            assert cut.tokens[0][k].tolist() == alone.tokens[0][k].tolist()[:3]
    other = sampler(automaton=number, num_samples=3, max_tokens=12, seed=8).run(Model(first=1))
    assert len({tuple(tokens.tolist()) for tokens in [*other.tokens[0], *together.tokens[1]]}) > 3


def test_the_head_over_legal_codes_draws_the_same() -> None:
    rng = np.random.default_rng(0)
    head_VD, hidden_D = rng.normal(size=(SIZE, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)

    def hidden(codes: Any, parents: Any) -> np.ndarray:
        return np.tile(hidden_D, (1, 1) if codes is None else (*codes.shape, 1))

    def logits(codes: Any, parents: Any) -> np.ndarray:
        return hidden(codes, parents) @ head_VD.T

    drawn = sampler(num_samples=50, max_tokens=5)
    one, other = drawn.run(logits), drawn.run(hidden, head=head_VD)
    assert [tokens.tolist() for tokens in one.tokens[0]] == [tokens.tolist() for tokens in other.tokens[0]]


def test_a_low_temperature_is_greedy() -> None:
    greedy = SequenceSearch(CHOICES, end_code=END, num_codes=SIZE, num_beams=1, max_tokens=5, scoring="allowed").run(Model())
    drawn = sampler(Sampling(temperature=1e-6), num_samples=4, max_tokens=5).run(Model())
    assert all(tokens.tolist() == greedy.tokens[0][0].tolist() for tokens in drawn.tokens[0])


def test_mistakes_are_named() -> None:
    for error, call, message in (
        (ArgumentError, lambda: sampler(num_samples=0), "num_samples must be"),
        (ArgumentError, lambda: Sampling(temperature=0.0), "temperature is 0"),
        (ArgumentError, lambda: sampler(seed=[1, 2]).run(Model()), "2 seeds for a batch of 1"),
        (LogitsError, lambda: sampler().run(lambda codes, parents: np.full((1, SIZE), np.nan)), "NaN"),
        (LogitsError, lambda: sampler().run(lambda codes, parents: np.full((1, SIZE), -np.inf)), "exclude every legal code"),
    ):
        with pytest.raises(error, match=message):
            call()
