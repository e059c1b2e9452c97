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
# Nats an item after each of the first steps, of every preset and architecture, from one run on 2026-12-01 (torch 2.13, CPU).
# Dropout took 16 bits for a value from then on. Without dropout the losses were those of the run before, to three digits.
GOLDEN: dict[tuple[str, str], list[float]] = {
    ("tiny", "decoder-only"): [3.706, 3.772, 4.018, 3.659, 3.587, 3.536, 3.607, 3.369],
    ("tiny", "encoder-decoder"): [4.416, 4.839, 4.357, 4.709, 3.319, 4.316, 3.554, 3.847],
    ("tiny", "item-history"): [3.442, 3.4, 3.663, 3.26, 3.46, 3.324, 3.319, 3.24],
    ("small", "decoder-only"): [3.593, 3.73, 4.599, 3.566, 3.784, 3.822, 3.558, 3.611],
    ("small", "encoder-decoder"): [4.922, 5.234, 6.381, 5.545, 4.272, 3.083, 4.523, 5.31],
    ("small", "item-history"): [3.366, 3.321, 4.001, 3.105, 3.777, 3.532, 3.317, 3.213],
    ("base", "decoder-only"): [3.867, 3.713, 5.552, 3.358, 4.288, 4.347, 3.697, 3.623],
    ("base", "encoder-decoder"): [5.216, 5.561, 10.833, 6.297, 5.463, 4.55, 3.897, 4.281],
    ("base", "item-history"): [3.638, 3.438, 5.645, 3.286, 4.351, 4.099, 3.525, 3.68],
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
    assert preset("tiny", budget=Budget(steps=3), seed=7) == dataclasses.replace(preset("tiny"), budget=Budget(steps=3), seed=7)
    sizes = [preset(name).hidden_size * preset(name).num_hidden_layers for name in ("tiny", "small", "base")]
    assert sizes == sorted(sizes)
    with pytest.raises(ArgumentError, match="the preset is 'huge'"):
        preset("huge")  # pyright: ignore[reportArgumentType]
