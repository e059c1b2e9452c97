"""Codes and texts learnt together: what it is untrained, what its losses are, what it learns, what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch

from pleach.errors import ArgumentError, TrainingError
from pleach.model import Vocabulary
from pleach.train.dense import DenseRecipe, DenseRetriever
from pleach.train.histories import Histories
from pleach.train.liger import JointModel, JointRecipe, _losses, fit_joint
from pleach.train.recipe import Budget, Recipe
from pleach.train.trainer import Trainer
from tests.train.test_dense import histories_of, vectors

SIZES = (4, 5, 2)
TINY = Recipe(
    budget=Budget(steps=3),
    hidden_size=16,
    intermediate_size=32,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    max_items=6,
    batch_tokens=90,
    precision="fp32",
    dropout=0.0,
)
JOINT = JointRecipe(recipe=TINY, dense=DenseRecipe(negatives=8, dropout=0.0), state_dropout=0.0)
VOCABULARY = Vocabulary(codebook_sizes=SIZES)
SOLD = histories_of([[user % 40, (3 * user + 1) % 40, (user * user) % 40] for user in range(30)])


def all_codes() -> np.ndarray:
    return np.stack(np.unravel_index(np.arange(np.prod(SIZES)), SIZES), axis=1)


def model_of(joint: JointRecipe = JOINT) -> JointModel:
    return JointModel(all_codes(), vectors(), VOCABULARY, joint).eval()


def test_untrained_it_is_the_dense_retriever():
    histories = histories_of([[4], [1, 2, 5], [], [7, 8, 9, 10, 11, 12, 13, 14]])
    found = model_of().scores(histories, np.array([3, 6, 30]))
    expected = DenseRetriever(vectors()).scores(histories, np.array([3, 6, 30]), max_items=TINY.max_items)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_state_has_read_the_text_of_its_item_and_none_of_later_ones():
    one, other = vectors(), vectors()
    other[5] += 1
    items = torch.tensor([[2, 5, 7]])
    states, changed = (
        JointModel(all_codes(), texts, VOCABULARY, JOINT).eval().states(items)[0].detach() for texts in (one, other)
    )
    same = (states - changed).abs().amax(dim=1) < 1e-7
    assert same.tolist() == [True] * 6 + [False] * 4  # its last code's place is 1 + 3 + 2, and the states before spell it
    blind = dataclasses.replace(JOINT, reads_text=False)
    model = model_of(blind)
    tokens_BT, _ = VOCABULARY.prompts([all_codes()[[2, 5, 7]]])
    torch.testing.assert_close(model.states(items), model.backbone(torch.as_tensor(tokens_BT)))


def test_its_losses_are_those_of_the_trainer_and_of_the_retriever():
    joint = dataclasses.replace(JOINT, reads_text=False)
    model = model_of(joint)
    torch.nn.init.normal_(model.outlet_HD, generator=torch.Generator().manual_seed(1))
    items_BT, negatives = np.array([[3, 17, 5], [0, 39, 21]], np.int32), np.array([8, 9, 3])
    codes, dense = _losses(model, items_BT, negatives, torch.Generator())
    alone = Trainer(model.backbone, SOLD, all_codes(), TINY)
    assert codes.item() == pytest.approx(alone.loss(torch.as_tensor(items_BT, dtype=torch.int64)).item(), rel=1e-5)

    among = sorted({*items_BT.ravel().tolist(), *negatives.tolist()})
    nats: list[float] = []
    for row in items_BT.tolist():
        for place in (1, 2):
            cosines = model.scores(histories_of([row[:place]]), np.array(among))[0].astype(np.float64)
            nats.append(np.log(np.exp(10 * cosines).sum()) - 10 * cosines[among.index(row[place])])
    assert dense.item() == pytest.approx(np.mean(nats), rel=1e-4)


def test_both_heads_learn_and_the_state_corrects_what_texts_cannot_say():
    """Item 0 leads to 10 after item 1, and to 20 after item 2: the backbone can tell which, whatever the texts are."""
    sold = histories_of([[1, 0, 10], [2, 0, 20]] * 40)
    recipe = dataclasses.replace(TINY, budget=Budget(steps=150), learning_rate=1e-2)
    joint = JointRecipe(recipe=recipe, dense=DenseRecipe(negatives=8, learning_rate=1e-2), state_dropout=0.1)
    told: list[tuple[float, float, float]] = []
    model = fit_joint(sold, all_codes(), vectors(), VOCABULARY, joint, progress=lambda *one: told.append(one))
    best = model.scores(histories_of([[1, 0], [2, 0]]), np.arange(40)).argmax(axis=1)
    assert best.tolist() == [10, 20]
    assert told[-1][1] < 0.5 * told[0][1]
    assert told[-1][2] < 0.5 * told[0][2]
    assert len(told) == 150
    assert not model.training


def test_equal_seeds_give_equal_bits_and_others_do_not():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed + 100)  # the global generator has no part in it
        joint = JointRecipe(recipe=dataclasses.replace(TINY, seed=seed), dense=DenseRecipe(negatives=4))
        return fit_joint(SOLD, all_codes(), vectors(), VOCABULARY, joint).outlet_HD.detach()

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
    assert weights(0).abs().max() > 0


def test_a_budget_in_epochs_reads_the_log_so_many_times():
    told: list[float] = []
    joint = dataclasses.replace(JOINT, recipe=dataclasses.replace(TINY, budget=Budget(epochs=2)))
    fit_joint(SOLD, all_codes(), vectors(), VOCABULARY, joint, progress=lambda share, *_: told.append(share))
    assert len(told) == 2 * len(SOLD) / (90 // 9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"recipe": dataclasses.replace(TINY, architecture="encoder-decoder")}, "decoder-only"),
        ({"recipe": dataclasses.replace(TINY, num_users=5)}, "num_users=0"),
        ({"state_dropout": 1.0}, "state_dropout"),
        ({"code_weight": -1.0}, "code_weight"),
        ({"code_weight": 0.0, "dense_weight": 0.0}, "not both 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(wrong: dict[str, object], message: str):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(JOINT, **wrong)  # type: ignore[arg-type]


def test_what_cannot_be_trained_is_named():
    minutes = dataclasses.replace(JOINT, recipe=dataclasses.replace(TINY, budget=Budget(minutes=1)))
    with pytest.raises(ArgumentError, match="not in minutes"):
        fit_joint(SOLD, all_codes(), vectors(), VOCABULARY, minutes)
    with pytest.raises(ArgumentError, match="40 items have SIDs, but 39"):
        JointModel(all_codes(), vectors(39), VOCABULARY, JOINT)
    # one-item histories hold no pair: the budget runs out without an update, and nothing is learnt from nothing
    lonely = Histories(ptr_U1=np.array([0, 1, 2]), items_E=np.array([1, 2]), times_E=np.array([0, 1]))
    assert (fit_joint(lonely, all_codes(), vectors(), VOCABULARY, JOINT).outlet_HD == 0).all()
    wild = dataclasses.replace(JOINT, recipe=dataclasses.replace(TINY, learning_rate=1e30, budget=Budget(steps=9)))
    with pytest.raises(TrainingError, match="lower learning_rate"):
        fit_joint(SOLD, all_codes(), vectors(), VOCABULARY, wild)
