"""The encoder-decoder in training: what a window teaches it, its loss by hand, resuming, and what belongs to something else."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.model import EncoderDecoder
from leafbeam.train import Budget, Checkpoint, Recipe, TrainStats
from leafbeam.train.batches import Batches
from tests.train.small_trainer import SIZES, TINY, all_codes, trainer_of, walks

ENCODER_DECODER = dataclasses.replace(
    TINY, budget=Budget(steps=10), architecture="encoder-decoder", max_items=4, num_key_value_heads=2
)
EXPERTS = dataclasses.replace(ENCODER_DECODER, num_experts=3, num_experts_per_tok=2)


def test_every_interaction_is_the_end_of_one_window():
    histories = walks(30)
    batches = Batches(histories=histories, max_items=3, num_levels=3, batch_tokens=60, seed=0, last_only=True)
    windows = sorted(tuple(row) for items_BT in batches.epoch(0) for row in items_BT.tolist())
    expected = sorted(
        tuple(histories[user][max(0, end - 4) : end].tolist())
        for user in range(30)
        for end in range(1, int(histories.lengths_U[user]) + 1)
    )
    assert windows == expected
    assert len(windows) == len(histories.items_E)


@pytest.mark.parametrize("recipe", [ENCODER_DECODER, EXPERTS], ids=["dense", "experts"])
def test_the_loss_is_the_last_items_cross_entropy_given_the_others(recipe: Recipe):
    trainer = trainer_of(dataclasses.replace(recipe, dropout=0.0))
    model, codes = trainer.model.eval(), all_codes()
    assert isinstance(model, EncoderDecoder)
    items_BT = torch.tensor([[3, 17, 5], [0, 39, 21]])
    nats: list[torch.Tensor] = []
    for *history, last in items_BT.tolist():
        prompt = [model.vocabulary.bos, *model.vocabulary.tokens(codes[history]).reshape(-1).tolist()]
        target = model.vocabulary.tokens(codes[last]).tolist()
        for level in range(3):
            hidden = model(torch.tensor([prompt]), torch.tensor([target[:level]], dtype=torch.int64))[0, -1]
            log_p = torch.log_softmax(model.head(hidden, level).double(), -1)
            nats.append(-0.95 * log_p[codes[last, level]] - 0.05 * log_p.mean())
    by_hand = torch.stack(nats).sum().item() / 2
    penalty = trainer.loss(items_BT).item() - by_hand
    if recipe.num_experts:
        assert 0.01 * 0.9 < penalty < 0.01 * recipe.num_experts
    else:
        assert abs(penalty) < 1e-4


@pytest.mark.slow
def test_a_log_that_can_be_learned_is_learned():
    budget = Budget(steps=250)
    recipe = dataclasses.replace(EXPERTS, budget=budget, learning_rate=5e-3, hidden_size=32, dropout=0.0, label_smoothing=0.0)
    history: list[TrainStats] = []
    trainer = trainer_of(recipe)
    trainer.run(progress=history.append)
    assert history[0].loss == pytest.approx(np.log(SIZES).sum(), rel=0.25)
    assert history[-1].loss < 0.65 * history[0].loss  # the first item of a walk cannot be foreseen
    codes = all_codes()
    tokens_BT, _ = trainer.model.vocabulary.prompts([codes[[item, item + 1]] for item in range(30)])
    first_code = trainer.model.start(torch.as_tensor(tokens_BT)).step_fn().argmax(-1)
    assert (first_code.numpy() == codes[2:32, 0]).mean() > 0.7  # a guess is right in 1 of 4


def test_a_checkpoint_of_another_architecture_is_refused_by_name(tmp_path: Path):
    decoder = dataclasses.replace(ENCODER_DECODER, architecture="decoder-only")
    trainer_of(decoder).checkpoint().save(tmp_path / "one")
    with pytest.raises(CheckpointError, match="architecture: encoder-decoder, decoder-only"):
        trainer_of(ENCODER_DECODER).resume(Checkpoint.load(tmp_path / "one"))
    trainer_of(EXPERTS).checkpoint().save(tmp_path / "two")
    with pytest.raises(CheckpointError, match="num_experts: 0, 3"):
        trainer_of(ENCODER_DECODER).resume(Checkpoint.load(tmp_path / "two"))


def test_bf16_trains_too():
    trainer = trainer_of(dataclasses.replace(EXPERTS, precision="bf16"))
    exact = trainer_of(EXPERTS)
    first = [one.step().loss for one in (trainer, exact)]
    assert trainer.bf16
    assert first[0] == pytest.approx(first[1], rel=0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "encoder"}, "expected 'decoder-only', 'encoder-decoder' or 'item-history'"),
        ({"architecture": "decoder-only", "num_experts": 4}, "only the architecture 'encoder-decoder' has experts"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "raise num_experts"),
        ({"num_experts": -1}, "at least 0"),
    ],
)
def test_contradictory_recipes_are_refused(fields: dict[str, object], message: str):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(ENCODER_DECODER, **fields)  # type: ignore[arg-type]


def test_a_recipe_without_an_architecture_is_decoder_only():
    assert Recipe.from_json('{"budget": {"steps": 3}}').architecture == "decoder-only"
