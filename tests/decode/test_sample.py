"""Sampling without replacement, checked against the exact distribution of a small catalog."""

import itertools
from collections import Counter

import numpy as np
import pytest

from leafbeam import Sampler, Trie
from leafbeam.decode.sampling import Sampling
from leafbeam.errors import ArgumentError, LogitsError

SIZES = (3, 3)
SIDS = [(0, 0), (0, 2), (1, 1), (2, 0), (2, 1), (2, 2)]
RNG = np.random.default_rng(8)
ROOT = RNG.normal(size=3)
BELOW = RNG.normal(size=(3, 3))
DRAWS = 4000


def trie() -> Trie:
    return Trie.build(SIDS, SIZES)


class Model:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __call__(self, codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        return np.tile(ROOT, (self.batch_size, 1)) if codes is None else BELOW[codes]


def distribution(temperature: float, top_k: int | None, top_p: float | None, allowed: list[int]) -> dict[int, float]:
    """P(item) under the sampler's definition, by enumeration."""

    def cut(logits: dict[int, float]) -> dict[int, float]:
        weights = {code: np.exp(value / temperature) for code, value in logits.items()}
        total = sum(weights.values())
        ranked = sorted(weights, key=lambda code: -weights[code])
        if top_k is not None:
            ranked = ranked[:top_k]
        if top_p is not None:
            before = np.cumsum([0.0, *(weights[code] / total for code in ranked)])
            ranked = [code for code, mass in zip(ranked, before, strict=False) if mass < top_p]
        total = sum(weights[code] for code in ranked)
        return {code: weights[code] / total for code in ranked}

    sids = [SIDS[item] for item in allowed]
    first = cut({code: ROOT[code] for code in {sid[0] for sid in sids}})
    out: dict[int, float] = {}
    for code, p in first.items():
        below = cut({sid[1]: BELOW[code][sid[1]] for sid in sids if sid[0] == code})
        out |= {SIDS.index((code, last)): p * q for last, q in below.items()}
    return out


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "allowed"),
    [
        (1.0, None, None, range(6)),
        (0.5, None, None, range(6)),
        (2.0, 2, None, range(6)),
        (1.0, None, 0.7, range(6)),
        (1.0, 2, 0.8, range(6)),
        (1.0, None, None, [0, 3, 5]),
    ],
)
def test_ordered_pairs_are_drawn_as_often_as_drawing_without_replacement_says(
    temperature: float, top_k: int | None, top_p: float | None, allowed: range | list[int]
) -> None:
    index = trie()
    exact = distribution(temperature, top_k, top_p, list(allowed))
    sampler = Sampler(index, 2, temperature, top_k, top_p)
    chosen = index.filter(item_ids=list(allowed))
    result = sampler.run(Model(DRAWS), DRAWS, filters=chosen, rng=np.random.default_rng(0))
    drawn = Counter(tuple(int(item) for item in ids) for ids in result.item_ids)
    expected = {(a, b): exact[a] * exact[b] / (1 - exact[a]) for a, b in itertools.permutations(exact, 2)} or {
        (a,): 1.0 for a in exact
    }
    assert set(drawn) <= set(expected)
    for pair, p in expected.items():
        assert drawn[pair] / DRAWS == pytest.approx(p, abs=4.5 * np.sqrt(p * (1 - p) / DRAWS) + 1e-9)
    for ids, scores in zip(result.item_ids, result.scores, strict=True):
        np.testing.assert_allclose(scores[: len(ids)], [np.log(exact[int(item)]) for item in ids], atol=1e-5)


def test_the_same_seed_draws_the_same_items_on_both_backends() -> None:
    answers = [
        Sampler(trie(), 4, backend=backend).run(Model(50), 50, rng=np.random.default_rng(3)).item_ids
        for backend in ("cpu", "reference", "cpu")
    ]
    for ids in zip(*answers, strict=True):
        assert ids[0].tolist() == ids[1].tolist() == ids[2].tolist()


def test_more_samples_than_items_gives_every_item_once() -> None:
    result = Sampler(trie(), 20).run(Model(3), 3, rng=np.random.default_rng(0))
    assert result.num_valid.tolist() == [6, 6, 6]
    assert all(sorted(ids.tolist()) == list(range(6)) for ids in result.item_ids)


def test_an_empty_filter_draws_nothing() -> None:
    index = trie()
    result = Sampler(index, 2).run(Model(1), filters=index.filter(item_ids=[]), rng=np.random.default_rng(0))
    assert result.num_valid.tolist() == [0]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_samples": 0},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": np.inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        Sampler(trie(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_backend_without_ragged_children_is_refused_with_a_way_out(backend: str) -> None:
    pytest.importorskip(backend)
    with pytest.raises(ArgumentError, match="backend='cpu'"):
        Sampler(trie(), backend=backend)


def test_nan_logits_are_refused() -> None:
    with pytest.raises(LogitsError, match="NaN"):
        Sampler(trie()).run(lambda codes, parents: np.full((1, 3), np.nan), rng=np.random.default_rng(0))


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_at_a_tiny_temperature_the_best_codes_are_certain(temperature: float) -> None:
    logits, rows = np.array([3.0, 4.0, -np.inf, 2.0, 2.0, 1.0, -np.inf], np.float32), np.array([0, 0, 0, 1, 1, 1, 2])
    found = np.exp(Sampling(temperature=temperature).log_probabilities(logits, rows, ""))
    assert found.tolist() == pytest.approx([0, 1, 0, 0.5, 0.5, 0, 0])
