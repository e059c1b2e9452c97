"""`leafbeam train`: settings of the preset, a file, words and options make one recipe."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leafbeam.cli import app
from leafbeam.config_file import settings_of
from leafbeam.train import Recipe, preset


def printed(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["train", "--print-config", *words])
    assert result.exit_code == 0, result.output
    return tomllib.loads(result.stdout)


def test_a_recipe_is_that_of_the_preset_with_changes() -> None:
    base = printed("--preset", "base")
    assert (base["hidden_size"], base["budget"]) == (preset("base").hidden_size, {"epochs": 40})
    changed = printed("--preset", "base", "--set", "learning_rate=0.5", "--set", "betas=[0.5, 0.6]", "--layers", "1")
    assert changed == base | {"learning_rate": 0.5, "betas": [0.5, 0.6], "num_hidden_layers": 1}


def test_an_option_overrides_a_word_and_a_word_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("seed = 1\nmax_items = 7\nnum_hidden_layers = 3\n[budget]\nepochs = 2\n")
    words = ("--config", str(path), "--set", "max_items=8", "--set", "seed=2")
    recipe = printed(*words, "--seed", "3", "--steps", "5")
    assert [recipe[name] for name in ("seed", "max_items", "num_hidden_layers", "budget")] == [3, 8, 3, {"steps": 5}]
    assert printed(*words)["budget"] == {"epochs": 2}


def test_every_setting_says_what_it_means() -> None:
    assert [setting.name for setting in settings_of(Recipe) if not setting.meaning] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "num_experts=2"), "only the architecture 'encoder-decoder' has experts"),
        (("--set", "architecture=rnn"), "architecture is 'rnn': expected decoder-only, encoder-decoder or item-history"),
        (("--set", "betas=[1, 2, 3]"), "betas must be two numbers"),
        (("--set", 'betas=["a", "b"]'), "betas is 'a': expected a number"),
        (("--set", "budget.steps=1", "--set", "budget.epochs=1"), "exactly one of steps, epochs and minutes"),
        (("--set", "learning_rat=1"), "did you mean learning_rate"),
        (("--set", "dropout=1"), "dropout must be at least 0 and below 1"),
    ],
)
def test_a_wrong_setting_is_named(words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["train", "--print-config", *words], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
