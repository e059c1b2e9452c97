"""Checkpoints: saved in one step, and refused where they are damaged or of another run."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch

from leafbeam.errors import CheckpointError
from leafbeam.files import CHECKSUMS
from leafbeam.model import Transformer, Vocabulary
from leafbeam.train import (
    Checkpoint,
    Trainer,
)
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


@pytest.mark.parametrize("file", ["run.json", "tensors.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "missing", "empty"])
def test_a_damaged_checkpoint_is_a_named_error(tmp_path: Path, file: str, damage: str):
    trainer_of().checkpoint().save(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / file
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"{}")
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
        {"state": {"worse": [1]}},
    ],
)
def test_a_checkpoint_with_a_value_of_another_type_is_refused_by_name(tmp_path: Path, wrong: dict[str, object]):
    directory = tmp_path / "checkpoint"
    trainer_of().checkpoint().save(directory)
    (directory / CHECKSUMS).unlink()
    path = directory / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(CheckpointError, match=r"run\.json"):
        Checkpoint.load(directory)


def test_a_checkpoint_whose_tensors_are_a_fifo_is_refused_at_once(tmp_path: Path):
    directory = tmp_path / "checkpoint"
    trainer_of().checkpoint().save(directory)
    (directory / "tensors.safetensors").unlink()
    os.mkfifo(directory / "tensors.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint.load(directory)


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
    trainer = trainer_of()
    for _ in range(3):
        trainer.step()
        trainer.checkpoint().save(tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert Checkpoint.load(tmp_path / "checkpoint").state.step == 3


def test_a_save_that_was_stopped_between_its_renames_is_found(tmp_path: Path):
    trainer_of().checkpoint().save(tmp_path / "checkpoint")
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    assert Checkpoint.exists(tmp_path / "checkpoint")
    assert Checkpoint.load(tmp_path / "checkpoint").state.step == 0
