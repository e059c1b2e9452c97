import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.studies.sasrec import SasRec, SasRecRecipe, fit_sasrec, sampled_softmax, sasrec_scores
from leafbeam.train import EvaluationSet, RankingMetrics, Split, leave_one_out
from leafbeam.train.baselines import rank_targets
from tests.fixtures.logs import walks

pytestmark = pytest.mark.slow

TINY = SasRecRecipe(hidden=16, layers=1, max_items=6, dropout=0.1, learning_rate=1e-2, batch_items=200, epochs=40)


@pytest.fixture(scope="module")
def split() -> Split:
    return leave_one_out(walks(150))


def recall_of(model: SasRec, eval_set: EvaluationSet) -> RankingMetrics:
    ranks = rank_targets(sasrec_scores(model), eval_set.histories, eval_set.targets_U, num_items=30)
    return RankingMetrics.from_ranks(ranks.removed)


@pytest.mark.parametrize("negatives", [10, 1024])
def test_it_learns_what_follows_from_the_last_item(split: Split, negatives: int):
    recipe = dataclasses.replace(TINY, negatives=negatives)
    model, how = fit_sasrec(split, 30, recipe)
    test_set = EvaluationSet.from_split(split, "test")
    scores = recall_of(model, test_set)
    assert scores.recall_5.mean > 0.7
    assert scores.recall_1.mean > 0.3
    assert how["valid_recall_10"] > 0.7
    assert recall_of(SasRec(30, recipe, torch.Generator().manual_seed(0)), test_set).recall_5.mean < 0.5


def test_scores_are_those_of_one_history_at_a_time(split: Split):
    model = SasRec(30, TINY, torch.Generator().manual_seed(3)).eval()
    histories = EvaluationSet.from_split(split, "test").histories
    scores_UN = sasrec_scores(model)(histories)
    for index in range(0, len(histories), 11):
        items = torch.as_tensor(histories[index][-6:].astype(np.int64))[None]
        with torch.inference_mode():
            scores_N = (model(items)[0, -1] @ model.items.weight.T).numpy()
        np.testing.assert_allclose(scores_UN[index], scores_N, atol=1e-5)


def test_the_sampled_loss_estimates_the_full_one():
    generator = torch.Generator().manual_seed(0)
    full = SasRec(4000, dataclasses.replace(TINY, negatives=4000), generator)
    sampled = SasRec(4000, dataclasses.replace(TINY, negatives=1000), generator)
    sampled.load_state_dict(full.state_dict())
    state_XD, target_X = 10 * torch.randn(50, 16, generator=generator), torch.arange(50)
    expected = sampled_softmax(full, state_XD, target_X, generator).item()
    found = [sampled_softmax(sampled, state_XD, target_X, generator).item() for _ in range(20)]
    assert np.mean(found) == pytest.approx(expected, abs=0.02)


def test_no_state_depends_on_later_items():
    model = SasRec(30, TINY, torch.Generator().manual_seed(0)).eval()
    with torch.inference_mode():
        one, other = model(torch.tensor([[3, 4, 5, 6]])), model(torch.tensor([[3, 4, 9, 8]]))
    torch.testing.assert_close(one[:, :2], other[:, :2])
    assert not torch.allclose(one[:, 2], other[:, 2])


def test_it_stops_after_patience_and_keeps_the_best_weights(split: Split):
    recipe = dataclasses.replace(TINY, epochs=500, validate_every=1, patience=3, learning_rate=3e-2)
    model, how = fit_sasrec(split, 30, recipe)
    assert how["epochs"] == how["best_epoch"] + 3 < 500
    again = recall_of(model, EvaluationSet.from_split(split, "valid", sample=recipe.validation_users)).recall_10.mean
    assert again == pytest.approx(how["valid_recall_10"])
