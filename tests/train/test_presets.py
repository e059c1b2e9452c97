"""Presets: their first steps give the losses that they gave when they were written down."""

import dataclasses

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError
from leafbeam.model import Vocabulary, new_model
from leafbeam.train import Budget, Recipe, Trainer, preset
from tests.train.small_trainer import all_codes, walks

SIZES = (4, 5, 2)
STEPS = 8
# Nats an item after each of the first steps, of every preset and architecture, from one run on 2026-11-22 (torch 2.13, CPU);
# item-history on 2026-11-30.
GOLDEN: dict[tuple[str, str], list[float]] = {
    ("tiny", "decoder-only"): [3.737, 3.736, 3.96, 3.625, 3.612, 3.573, 3.554, 3.172],
    ("tiny", "encoder-decoder"): [5.125, 4.674, 4.518, 4.936, 3.782, 4.148, 3.365, 4.785],
    ("tiny", "item-history"): [3.428, 3.383, 3.727, 3.331, 3.435, 3.244, 3.222, 3.332],
    ("small", "decoder-only"): [3.615, 3.714, 4.648, 3.519, 3.941, 3.808, 3.614, 3.552],
    ("small", "encoder-decoder"): [4.369, 5.519, 5.203, 5.682, 4.503, 3.341, 4.708, 5.53],
    ("small", "item-history"): [3.352, 3.296, 4.033, 3.313, 3.945, 3.613, 3.41, 3.152],
    ("base", "decoder-only"): [3.876, 3.889, 5.489, 3.264, 4.444, 4.362, 3.609, 3.603],
    ("base", "encoder-decoder"): [6.245, 5.179, 6.291, 6.865, 5.18, 5.725, 3.41, 4.417],
    ("base", "item-history"): [3.751, 3.477, 5.432, 3.247, 4.425, 4.309, 3.471, 3.614],
}


def losses_of(recipe: Recipe) -> list[float]:
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(recipe.seed))
    trainer = Trainer(model, walks(60), all_codes(), recipe)
    losses: list[float] = []
    for _ in range(STEPS):
        before, stats = trainer.state.loss, trainer.step()
        losses.append(stats.loss if stats.step == 1 else (stats.loss - 0.98 * before) / 0.02)
    return losses


@pytest.mark.parametrize("architecture", ["decoder-only", "encoder-decoder", "item-history"])
@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_the_first_losses_equal_the_recorded_ones(name: str, architecture: str):
    recipe = preset(name, budget=Budget(steps=STEPS), architecture=architecture)
    recipe = dataclasses.replace(recipe, batch_tokens=90, max_items=6, precision="fp32", warmup=0.1, teacher_weight=0.0)
    recorded = {"tiny": 0.1, "small": 0.4, "base": 0.2}
    recipe = dataclasses.replace(recipe, dropout=recorded[name])
    np.testing.assert_allclose(losses_of(recipe), GOLDEN[name, architecture], rtol=0.03)


def test_a_preset_takes_another_budget_and_seed_and_refuses_unknown_names():
    assert preset("small") == Recipe()
    assert preset("base").patience > 0
    assert preset("tiny", budget=Budget(steps=3), seed=7) == dataclasses.replace(preset("tiny"), budget=Budget(steps=3), seed=7)
    sizes = [preset(name).hidden_size * preset(name).num_hidden_layers for name in ("tiny", "small", "base")]
    assert sizes == sorted(sizes)
    with pytest.raises(ArgumentError, match="the preset is 'huge'"):
        preset("huge")  # pyright: ignore[reportArgumentType]
