import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.studies.sasrec import SasRec, SasRecRecipe, fit_sasrec, sasrec_ranks
from leafbeam.errors import ArgumentError
from leafbeam.train import EvaluationSet, RankingMetrics, Split, leave_one_out
from leafbeam.train.metrics import MISS
from tests.train.test_evaluation import walks

TINY = SasRecRecipe(hidden=16, layers=1, max_items=6, dropout=0.1, learning_rate=1e-2, batch_items=200, epochs=40)


@pytest.fixture(scope="module")
def split() -> Split:
    return leave_one_out(walks(150))


@pytest.mark.parametrize("loss", ["bce", "softmax"])
def test_it_learns_what_follows_from_the_last_item(split: Split, loss: str):
    recipe = SasRecRecipe(**{**_settings(), "loss": loss})
    model, how = fit_sasrec(split, 30, recipe)
    scores = RankingMetrics.from_ranks(sasrec_ranks(model, EvaluationSet.from_split(split, "test")))
    # One negative at a time tells near items apart slowly; all at once, quickly.
    assert scores.recall_5.mean > 0.7
    assert scores.recall_1.mean > (0.1 if loss == "bce" else 0.3)
    assert how["valid_recall_10"] > 0.7
    untrained = SasRec(30, recipe, torch.Generator().manual_seed(0))
    assert RankingMetrics.from_ranks(sasrec_ranks(untrained, EvaluationSet.from_split(split, "test"))).recall_5.mean < 0.5


def test_ranks_are_those_of_all_items_scored_one_user_at_a_time(split: Split):
    model = SasRec(30, TINY, torch.Generator().manual_seed(3)).eval()
    eval_set = EvaluationSet.from_split(split, "test")
    ranks = sasrec_ranks(model, eval_set, batch_users=7)
    for index in range(0, len(ranks), 11):
        items = torch.as_tensor(eval_set.histories[index][-6:].astype(np.int64))[None]
        with torch.inference_mode():
            scores = (model(items)[0, -1] @ model.items.weight.T).numpy()
        assert ranks[index] == (scores > scores[eval_set.targets_U[index]]).sum()


def test_seen_items_are_excluded(split: Split):
    model = SasRec(30, TINY, torch.Generator().manual_seed(3)).eval()
    eval_set = EvaluationSet.from_split(split, "test")
    again_U = eval_set.histories.items_E[eval_set.histories.indptr_U1[:-1]]  # the oldest item, every tenth time
    targets_U = np.where(np.arange(len(again_U)) % 10, eval_set.targets_U, again_U)
    eval_set = dataclasses.replace(eval_set, targets_U=targets_U)
    ranks = sasrec_ranks(model, eval_set, remove_seen=True, batch_users=7)
    kept = sasrec_ranks(model, eval_set)
    for index in range(0, len(ranks), 5):
        history, target = eval_set.histories[index], eval_set.targets_U[index]
        items = torch.as_tensor(history[-6:].astype(np.int64))[None]
        with torch.inference_mode():
            scores = (model(items)[0, -1] @ model.items.weight.T).numpy()
        if target in history:
            assert ranks[index] == MISS
            continue
        above = np.flatnonzero(scores > scores[target])
        assert ranks[index] == len(set(above.tolist()) - set(history.tolist())) <= kept[index]
    assert (ranks == MISS).sum() >= len(ranks) / 10
    assert ((ranks >= 0) & (ranks < kept)).any()


def test_no_state_depends_on_later_items():
    model = SasRec(30, TINY, torch.Generator().manual_seed(0)).eval()
    with torch.inference_mode():
        one, other = model(torch.tensor([[3, 4, 5, 6]])), model(torch.tensor([[3, 4, 9, 8]]))
    torch.testing.assert_close(one[:, :2], other[:, :2])
    assert not torch.allclose(one[:, 2], other[:, 2])


def test_it_stops_after_patience_and_keeps_the_best_weights(split: Split):
    recipe = SasRecRecipe(**{**_settings(), "epochs": 500, "validate_every": 1, "patience": 3, "learning_rate": 3e-2})
    model, how = fit_sasrec(split, 30, recipe)
    assert how["epochs"] == how["best_epoch"] + 3 < 500
    again = RankingMetrics.from_ranks(
        sasrec_ranks(model, EvaluationSet.from_split(split, "valid", sample=recipe.validation_users))
    ).recall_10.mean
    assert again == pytest.approx(how["valid_recall_10"])


def test_equal_seeds_give_equal_bits(split: Split):
    recipe = SasRecRecipe(**{**_settings(), "epochs": 2})
    one, other = (fit_sasrec(split, 30, recipe)[0].state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_bad_settings_are_named():
    with pytest.raises(ArgumentError, match="multiple of heads"):
        SasRecRecipe(hidden=9)
    with pytest.raises(ArgumentError, match="loss='mse'"):
        SasRecRecipe(loss="mse")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="epochs=0"):
        SasRecRecipe(epochs=0)


def _settings() -> dict[str, object]:
    return {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
