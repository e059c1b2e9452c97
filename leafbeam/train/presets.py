"""Recipes with names: models of three sizes, each with the training that suits it."""

from dataclasses import replace
from typing import Literal, get_args

from leafbeam.errors import ArgumentError
from leafbeam.train.recipe import Architecture, Budget, Recipe

__all__ = ["PresetName", "preset"]

PresetName = Literal["tiny", "small", "base"]

_SIZES: dict[PresetName, Recipe] = {
    "tiny": Recipe(
        budget=Budget(minutes=1),
        hidden_size=64,
        intermediate_size=192,
        num_attention_heads=2,
        num_key_value_heads=2,
        batch_tokens=1024,
        learning_rate=4e-3,
    ),
    "small": Recipe(),
    "base": Recipe(
        budget=Budget(epochs=40),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        dropout=0.2,
        batch_tokens=8192,
        learning_rate=1e-3,
        validations=10,
        validation_users=5000,
        patience=4,
    ),
}


def preset(
    name: PresetName, *, budget: Budget | None = None, seed: int = 0, architecture: Architecture = "decoder-only"
) -> Recipe:
    """The recipe of a preset, as it is or with another budget, seed or architecture (`dataclasses.replace` for the rest).

    tiny: one layer of 64, a minute; to try things out. small: one layer of 128, ten minutes of one CPU core; the defaults of
    `Recipe`, and what did best there. base: four layers of 256, 40 passes with early stopping; for a GPU.
    Raises ArgumentError for another name.
    """
    if name not in _SIZES:
        raise ArgumentError(f"preset {name!r}: choose one of {', '.join(map(repr, get_args(PresetName)))}")
    recipe = _SIZES[name]
    return replace(recipe, budget=budget or recipe.budget, seed=seed, architecture=architecture)
