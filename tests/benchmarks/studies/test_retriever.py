import numpy as np
import pytest

from benchmarks.studies.retriever import DenseRecipe, DenseRetriever, fit_dense
from leafbeam.train import Histories

pytestmark = pytest.mark.slow


def histories_of(rows: list[list[int]]) -> Histories:
    items = np.concatenate([np.asarray(row, np.int32) for row in rows]) if rows else np.empty(0, np.int32)
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Histories(indptr_U1=ptr, items_E=items, times_E=np.arange(len(items)))


def vectors(items: int = 40, dims: int = 8, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(items, dims)).astype(np.float32)


def test_untrained_it_is_text_nearest_neighbours_of_the_faded_history():
    texts = vectors()
    texts[3] = 0  # no text
    units = texts / np.maximum(np.linalg.norm(texts, axis=1, keepdims=True), 1e-9)
    histories = histories_of([[4], [1, 2, 5], [], [7, 8, 9, 10, 11]])
    scores = DenseRetriever(texts).scores(histories, np.array([3, 6, 30]), max_items=3)
    fade = 1 / (1 + np.exp(-1.0))
    for user, items in enumerate([[4], [1, 2, 5], [], [9, 10, 11]]):
        point = sum((fade**age * units[item] for age, item in enumerate(reversed(items))), np.zeros(8))
        expected = units[[3, 6, 30]] @ point / max(np.linalg.norm(point), 1e-9)
        np.testing.assert_allclose(scores[user], expected, atol=1e-5)
    assert (scores[:, 0] == 0).all()


def test_learning_from_warm_items_transfers_to_cold_ones():
    """A shampoo is followed by the conditioner of its brand, never by its like: the texts of new ones suffice to know it."""
    rng = np.random.default_rng(0)
    brands = rng.normal(size=(60, 12))
    kind = np.concatenate([np.tile([6.0, 0.0], (60, 1)), np.tile([0.0, 6.0], (60, 1))])
    texts = np.concatenate([kind, np.tile(brands, (2, 1))], axis=1).astype(np.float32)  # item b is a shampoo, 60 + b its mate
    sold = histories_of([[int(brand), 60 + int(brand)] for brand in rng.integers(0, 50, 1500)])
    histories, cold = histories_of([[brand] for brand in range(50, 60)]), np.arange(110, 120)
    every = np.concatenate([np.arange(50, 60), cold])
    before = DenseRetriever(texts).scores(histories, every).argmax(axis=1)
    model = fit_dense(sold, texts, DenseRecipe(epochs=10, negatives=64, batch_items=128, learning_rate=1e-2))
    after = model.scores(histories, every).argmax(axis=1)
    assert (before == np.arange(10, 20)).mean() < 0.2
    assert (after == np.arange(10, 20)).mean() > 0.5
    assert not model.training
