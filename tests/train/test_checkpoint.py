"""Checkpoints: saved in one step, and refused where they are damaged or of another run."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from leafbeam.errors import CheckpointError
from leafbeam.model import Transformer, Vocabulary
from leafbeam.train import Checkpoint, Trainer
from leafbeam.train.checkpoint import checksum
from tests.train.small_trainer import TINY, all_codes, trainer_of, walks


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    trainer = trainer_of()
    trainer.step()
    trainer.checkpoint().save(tmp_path / "checkpoint")
    saved = Checkpoint.load(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="another log"):
        trainer_of(histories=walks(60, seed=9)).resume(saved)
    with pytest.raises(CheckpointError, match=r"learning_rate: 0.5, 0.01"):
        trainer_of(dataclasses.replace(TINY, learning_rate=0.5)).resume(saved)
    vocabulary = Vocabulary(codebook_sizes=(4, 5, 3))
    other = Trainer(Transformer(TINY.model_config(vocabulary), vocabulary), walks(60), all_codes(), TINY)
    with pytest.raises(CheckpointError, match=r"codebooks \(4, 5, 2\).*\(4, 5, 3\)"):
        other.resume(saved)


@pytest.mark.parametrize("damage", ["cut", "missing", "empty", "no header", "a tensor's bit", "a digit of the run"])
def test_a_damaged_checkpoint_is_a_named_error(tmp_path: Path, damage: str):
    trainer_of().checkpoint().save(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "training.safetensors"
    content = path.read_bytes()
    path.unlink()
    assert b"step" in content
    damaged = {
        "cut": content[: len(content) // 2],
        "empty": b"",
        "no header": b"{}",
        "a tensor's bit": content[:-1] + bytes([content[-1] ^ 1]),
        "a digit of the run": content.replace(rb"\"batch\": 0", rb"\"batch\": 1"),
    }
    if damage != "missing":
        assert damaged[damage] != content
        path.write_bytes(damaged[damage])
    with pytest.raises(CheckpointError):
        Checkpoint.load(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocabulary": []},
        {"state": {"step": "x"}},
        {"state": {"epoch": -1}},
        {"state": {"batch": 1.5}},
        {"state": {"seconds": float("nan")}},
        {"state": {"seconds": 10**400}},
        {"state": {"best_recall": None}},
        {"state": {"batch": [1]}},
    ],
)
def test_a_checkpoint_with_a_value_of_another_type_is_refused_by_name(tmp_path: Path, wrong: dict[str, object]):
    trainer_of().checkpoint().save(tmp_path)
    rewrite(tmp_path, wrong)
    with pytest.raises(CheckpointError, match=r"training\.safetensors has values"):
        Checkpoint.load(tmp_path)


def rewrite(directory: Path, changed: dict[str, object]) -> None:
    """Change what a checkpoint says of its run."""
    path = directory / "training.safetensors"
    with safe_open(path, "pt") as file:
        run = json.dumps(json.loads(file.metadata()["run"]) | changed)
    tensors = load_file(path)
    save_file(tensors, path, {"run": run, "sha256": checksum(run, tensors)})


def test_a_checkpoint_from_when_training_stopped_early_is_read(tmp_path: Path):
    saved = trainer_of().checkpoint()
    saved.save(tmp_path)
    state, recipe = (dataclasses.asdict(part) for part in (saved.state, saved.recipe))
    rewrite(tmp_path, {"state": {**state, "worse": 0}, "recipe": {**recipe, "patience": 8}})
    read = Checkpoint.load(tmp_path)
    assert (read.state, read.recipe) == (saved.state, saved.recipe)
    trainer_of().resume(read)


def test_a_checkpoint_that_is_a_fifo_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "training.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint.load(tmp_path)


def test_a_checkpoint_of_an_earlier_version_is_refused_and_not_passed_over(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    assert Checkpoint.exists(tmp_path)
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize("kind", ["average", "best", "exp_avg", "exp_avg_sq", "step"])
@pytest.mark.parametrize("damage", ["shape", "dtype", "lacks", "extra"])
def test_a_checkpoint_with_tensors_of_another_model_is_refused(kind: str, damage: str):
    trainer = trainer_of()
    trainer.step()
    saved = trainer.checkpoint()
    tensors = dict(saved.tensors) | {f"best/{name}": weight for name, weight in saved.of("weights").items()}
    name = next(name for name in tensors if name.startswith(f"{kind}/"))
    changed = {"shape": tensors[name][None, ..., :0] if kind != "step" else torch.zeros(3), "dtype": tensors[name].long()}
    if damage == "extra":
        tensors[f"{kind}/other"] = tensors[name]
    elif (other := changed.get(damage)) is None:
        del tensors[name]
    else:
        tensors[name] = other
    with pytest.raises(CheckpointError, match="not those of this model"):
        trainer_of().resume(dataclasses.replace(saved, tensors=tensors))


def test_a_checkpoint_behind_the_last_batch_is_refused():
    saved = trainer_of().checkpoint()
    with pytest.raises(CheckpointError, match="batch 1,000,000"):
        trainer_of().resume(dataclasses.replace(saved, state=dataclasses.replace(saved.state, batch=10**6)))


def test_saving_over_a_checkpoint_leaves_only_the_newest(tmp_path: Path):
    trainer, directory = trainer_of(), tmp_path / "checkpoint"
    directory.mkdir()
    (directory / ".training.safetensors.0123456789abcdef.part").touch()  # of a save that was killed: no checkpoint
    assert not Checkpoint.exists(directory)
    for _ in range(3):
        trainer.step()
        trainer.checkpoint().save(directory)
    assert [path.name for path in directory.iterdir()] == ["training.safetensors"]
    assert Checkpoint.load(directory).state.step == 3


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = trainer_of()
    trainer.checkpoint().save(tmp_path)
    trainer.step()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        trainer.checkpoint().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training.safetensors"]
    assert Checkpoint.load(tmp_path).state.step == 0
