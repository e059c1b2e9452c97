import numpy as np
import pytest

from leafbeam.errors import ArgumentError
from leafbeam.train import Histories, RankingMetrics
from leafbeam.train.baselines import neighbour_ranks, popularity_ranks
from leafbeam.train.metrics import MISS, Estimate


def test_popularity_ranks_by_training_count_then_by_row():
    train = Histories(indptr_U1=np.array([0, 3, 6]), items_E=np.array([2, 2, 4, 4, 1, 2]), times_E=np.arange(6))
    # counts: item 2 three times, 4 twice, 1 once, 0 and 3 never
    assert popularity_ranks(train, np.arange(5), num_items=5).tolist() == [3, 2, 0, 4, 1]


def test_nearest_neighbours_rank_by_cosine_to_the_last_item_without_it():
    vectors = np.array([[1, 0], [10, 1], [0, 2], [1, 1], [0, 0], [-1, 0]], np.float64)
    last, targets = np.array([0, 0, 0, 0, 0, 2]), np.array([1, 3, 2, 4, 5, 3])
    # cosine to item 0: item 1 .995, item 3 .707, items 2 and 4 zero (row order), item 5 -1
    assert neighbour_ranks(vectors, last, targets, batch_users=4).tolist() == [0, 1, 2, 3, 4, 0]
    assert neighbour_ranks(vectors, np.array([1]), np.array([1])).tolist() == [MISS]


def test_nearest_neighbours_equal_a_full_sort_of_random_vectors():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((50, 6)).astype(np.float32)
    vectors[10] = vectors[11]
    last, targets = rng.integers(0, 50, 300), rng.integers(0, 50, 300)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for rank, item, target in zip(neighbour_ranks(vectors, last, targets, batch_users=7), last, targets, strict=True):
        cosine = units @ units[item]
        order = [row for row in sorted(range(50), key=lambda row: (-round(float(cosine[row]), 5), row)) if row != item]
        assert rank == (MISS if item == target else order.index(target))


def test_removed_seen_items_are_not_ranked_by_a_baseline():
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((20, 4)).astype(np.float32)
    lengths = rng.integers(1, 9, 60)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    seen = Histories(indptr_U1=ptr, items_E=rng.integers(0, 20, ptr[-1]), times_E=np.arange(ptr[-1]))
    last, targets = seen.items_E[ptr[1:] - 1], rng.integers(0, 20, 60)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = neighbour_ranks(vectors, last, targets, seen=seen, batch_users=7)
    popular = popularity_ranks(seen, targets, num_items=20, seen=seen)
    counts = np.bincount(seen.items_E, minlength=20)
    for user, target in enumerate(targets):
        items = set(seen[user].tolist())
        for ranks, score in ((nearest, units @ units[last[user]]), (popular, counts.astype(float))):
            order = [row for row in sorted(range(20), key=lambda row: (-round(float(score[row]), 5), row)) if row not in items]
            assert ranks[user] == (MISS if target in items else order.index(target))


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(ArgumentError, match="finite"):
        neighbour_ranks(np.array([[1.0, np.nan]]), np.array([0]), np.array([0]))


def test_ranking_metrics_equal_the_formulas():
    scores = RankingMetrics.from_ranks(np.array([0, 4, 5, 9, 10, MISS]))
    assert scores.users == 6
    assert scores.recall_1.mean == pytest.approx(1 / 6)
    assert scores.recall_5.mean == pytest.approx(2 / 6)
    assert scores.recall_10.mean == pytest.approx(4 / 6)
    assert scores.ndcg_5.mean == pytest.approx((1 + 1 / np.log2(6)) / 6)
    assert scores.ndcg_10.mean == pytest.approx((1 + 1 / np.log2(6) + 1 / np.log2(7) + 1 / np.log2(11)) / 6)
    share = 4 / 6
    assert scores.recall_10.error == pytest.approx(np.sqrt(share * (1 - share) / 5))
    assert list(scores.estimates) == ["Recall@1", "Recall@5", "Recall@10", "NDCG@5", "NDCG@10"]
    assert scores.estimates["NDCG@10"] is scores.ndcg_10


def test_the_standard_error_is_the_spread_of_the_mean_over_samples():
    rng = np.random.default_rng(1)
    estimates = [Estimate.from_values((rng.random(400) < 0.2).astype(float)) for _ in range(400)]
    spread = np.std([estimate.mean for estimate in estimates])
    assert np.mean([estimate.error for estimate in estimates]) == pytest.approx(spread, rel=0.1)


def test_metrics_of_no_user_are_refused():
    with pytest.raises(ArgumentError, match="no user"):
        RankingMetrics.from_ranks(np.zeros(0, np.int64))
