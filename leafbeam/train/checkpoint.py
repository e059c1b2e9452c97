"""Checkpoints of a training run: weights, optimizer moments, progress, and the recipe and data to which they belong."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.files import check_checksums, open_regular, read_json, write_checksums, write_json, write_tensors
from leafbeam.model import AnyVocabulary, vocabulary_from_dict
from leafbeam.train.histories import Histories
from leafbeam.train.recipe import Recipe, check_number, check_whole

_FORMAT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """The progress of a run; with the seed it determines everything random that follows.

    Attributes:
        step: The number of updates made.
        epoch: The epoch of the next batch.
        batch: The next batch.
        seconds: The seconds of training so far.
        loss: The running mean of the loss, in nats per item.
        best_recall: The recall of the best weights so far, -1 before the first validation.
        best_step: The step of the best weights so far.
        worse: The number of validations since then.
        validated_step: The step of the last validation.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    validated_step: int = 0
    best_recall: float = -1.0
    best_step: int = -1
    worse: int = 0

    def __post_init__(self) -> None:
        for name in ("step", "epoch", "batch", "validated_step", "worse"):
            check_whole(name, getattr(self, name), low=0)
        check_whole("best_step", self.best_step, low=-1)
        for name, low in (("seconds", 0), ("loss", -1e300), ("best_recall", -1)):
            check_number(name, getattr(self, name), low=low)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checkpoint:
    """A snapshot of a run: resuming it gives the weights, bit for bit, of a run that never stopped.

    `tensors` holds weights, AdamW's moments, averaged and best weights, named "kind/parameter". `data` is the `fingerprint` of
    the training data.
    """

    state: TrainState
    recipe: Recipe
    vocabulary: AnyVocabulary
    data: str
    bf16: bool
    tensors: Mapping[str, Tensor] = field(repr=False)

    def save(self, directory: str | Path) -> None:
        """Write the directory atomically: a reader sees the previous checkpoint or this one, complete."""
        directory, partial, previous = _paths(directory)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        write_tensors(partial / "tensors.safetensors", tensors, save_file)
        content = {"format": _FORMAT, "state": asdict(self.state), "recipe": asdict(self.recipe)}
        content |= {"vocabulary": self.vocabulary.to_dict(), "data": self.data, "bf16": self.bf16}
        write_json(partial / "run.json", content)
        write_checksums(partial, ("run.json", "tensors.safetensors"))
        shutil.rmtree(previous, ignore_errors=True)
        if directory.exists():
            os.replace(directory, previous)
        os.replace(partial, directory)
        shutil.rmtree(previous, ignore_errors=True)

    @classmethod
    def load(cls, directory: str | Path) -> "Checkpoint":
        """Read a checkpoint that `save` wrote. Raises CheckpointError if it is missing, truncated or of another format."""
        directory, _, previous = _paths(directory)
        if previous.exists() and not directory.exists():
            directory = previous  # `save` stopped between its two renames
        check_checksums(directory)
        try:
            content: object = read_json(directory / "run.json")
            open_regular(directory / "tensors.safetensors").close()  # safetensors would wait for a FIFO
            tensors = load_file(directory / "tensors.safetensors")
        except (OSError, ValueError, RecursionError, SafetensorError) as error:
            raise CheckpointError(f"{directory} is not a complete checkpoint ({error}): train from the start") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(f"{directory} is not of format {_FORMAT}: train again, or use the leafbeam that wrote it")
        try:
            return cls(
                state=TrainState(**content["state"]),
                recipe=Recipe.from_json(json.dumps(content["recipe"])),
                vocabulary=vocabulary_from_dict(content["vocabulary"]),
                data=str(content["data"]),
                bf16=bool(content["bf16"]),
                tensors=tensors,
            )
        except (ArgumentError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{directory / 'run.json'} is not a checkpoint's ({error}): train from the start") from error

    @staticmethod
    def exists(directory: str | Path) -> bool:
        """Return whether `load` would find a checkpoint."""
        directory, _, previous = _paths(directory)
        return directory.exists() or previous.exists()

    @staticmethod
    def remove(directory: str | Path) -> None:
        """Delete the checkpoint, if there is one."""
        for path in _paths(directory):
            shutil.rmtree(path, ignore_errors=True)

    def of(self, kind: str) -> dict[str, Tensor]:
        """Return the tensors of one kind, by parameter name."""
        return {name.removeprefix(f"{kind}/"): x for name, x in self.tensors.items() if name.startswith(f"{kind}/")}

    def check(self, *, recipe: Recipe, vocabulary: AnyVocabulary, data: str) -> None:
        """Raise CheckpointError unless it belongs to this recipe (apart from when it stops), vocabulary and data."""
        different = "on another log or other Semantic IDs" if data != self.data else ""
        if vocabulary != self.vocabulary:
            different = f"with codebooks {self.vocabulary.codebook_sizes}, not {vocabulary.codebook_sizes}"
        if settings := recipe.differences(self.recipe):
            different = f"with another recipe ({'; '.join(settings)})"
        if different:
            raise CheckpointError(f"the checkpoint was made {different}: resume with the same, or train from the start")


def _paths(directory: str | Path) -> tuple[Path, Path, Path]:
    """Return the paths of the checkpoint, of the one that is being written, and of the one that it replaces."""
    directory = Path(directory)
    return directory, directory.with_name(f"{directory.name}.partial"), directory.with_name(f"{directory.name}.old")


def fingerprint(histories: Histories, codes_NL: NDArray[np.int64], users_U: NDArray[np.int64] | None = None) -> str:
    """Return 16 hexadecimal digits of a hash of the training data: histories, SIDs and user tokens."""
    digest = sha256()
    for array in (histories.indptr_U1, histories.items_E, codes_NL, *(() if users_U is None else (users_U,))):
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
