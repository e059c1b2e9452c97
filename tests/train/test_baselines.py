import numpy as np
import pytest
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.retrieve import ItemMemory
from leafbeam.train import Histories, RankingMetrics
from leafbeam.train.baselines import ScoreFn, popularity, rank_targets, text_neighbours, transition_baselines
from leafbeam.train.metrics import MISS, Estimate


def histories_of(*items: list[int]) -> Histories:
    flat = np.concatenate(items).astype(np.int32)
    return Histories(indptr_U1=np.cumsum([0, *map(len, items)]), items_E=flat, times_E=np.arange(len(flat)))


def kept_ranks(scores: ScoreFn, last: list[int], targets: list[int], num_items: int) -> list[int]:
    histories = histories_of(*([item] for item in last))
    return rank_targets(scores, histories, np.array(targets), num_items=num_items).kept.tolist()


def test_popularity_ranks_by_training_count_and_a_target_after_those_of_its_count():
    scores = popularity(histories_of([2, 2, 4], [4, 1, 2]), 5)
    # counts: item 2 three times, 4 twice, 1 once, 0 and 3 never
    assert kept_ranks(scores, [0] * 5, list(range(5)), 5) == [4, 2, 0, 4, 1]


def test_text_neighbours_rank_by_cosine_to_the_last_item_without_it():
    vectors = np.array([[1, 0], [10, 1], [0, 2], [1, 1], [0, 0], [-1, 0]], np.float64)
    # cosine to item 0: item 1 .995, item 3 .707, items 2 and 4 zero, item 5 -1
    assert kept_ranks(text_neighbours(vectors), [0, 0, 0, 0, 0, 2], [1, 3, 2, 4, 5, 3], 6) == [0, 1, 3, 3, 4, 0]
    assert kept_ranks(text_neighbours(vectors), [1], [1], 6) == [MISS]


def test_ranks_of_both_lists_equal_a_full_sort():
    rng = np.random.default_rng(2)
    histories = histories_of(*(rng.integers(0, 20, length).tolist() for length in rng.integers(1, 9, 60)))
    targets = rng.integers(0, 20, 60)
    table = rng.integers(0, 12, (20, 20)).astype(np.float32)  # many ties
    table[:, 7] = -np.inf

    def scores(chosen: Histories) -> NDArray[np.float32]:
        return table[chosen.items_E[chosen.indptr_U1[1:] - 1]]

    ranks = rank_targets(scores, histories, targets, num_items=20)
    for user, target in enumerate(targets):
        score, seen = table[histories[user][-1]], set(histories[user].tolist())
        for rank, others in ((ranks.kept[user], range(20)), (ranks.removed[user], set(range(20)) - seen)):
            listed = target in others and target != 7
            assert rank == (sum(score[item] >= score[target] for item in others if item != target) if listed else MISS)


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(ArgumentError, match="finite"):
        text_neighbours(np.array([[1.0, np.nan]]))


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


def test_transition_baselines_find_what_followed_and_what_reads_alike():
    train = histories_of([0, 1, 2], [0, 1], [3, 0])
    memory = ItemMemory.fit(range(5), train.indptr_U1, train.items_E, texts=["red shoe", "", "", "", "red shoe"])
    ranks = {
        name: kept_ranks(scores, [0] * 5, [1, 2, 3, 4, 0], 5) for name, scores in transition_baselines(memory, train).items()
    }
    assert ranks == {  # item 1 followed twice, 2 after one other, 3 came before
        "transitions": [0, MISS, MISS, MISS, MISS],
        "graph": [0, 1, 2, MISS, MISS],
        "graph_text": [1, 2, 3, 1, MISS],
    }
    assert "graph_text" not in transition_baselines(ItemMemory.fit(range(5), train.indptr_U1, train.items_E), train)
