"""Checkpoints of a training run: weights, optimizer moments, progress, and the recipe and data to which they belong."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from leafbeam.errors import ArgumentError, CheckpointError, check_number, check_whole
from leafbeam.files import read_tensors, write_tensors
from leafbeam.json_reader import parse_json
from leafbeam.model import AnyVocabulary, vocabulary_from_dict
from leafbeam.train.histories import Histories
from leafbeam.train.recipe import Recipe

_FORMAT = 3
_FILE = "training.safetensors"


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

    def __post_init__(self) -> None:
        check_whole(0, **{name: getattr(self, name) for name in ("step", "epoch", "batch", "validated_step")})
        check_whole(-1, best_step=self.best_step)
        check_number(seconds=self.seconds)
        check_number(-1e300, loss=self.loss)
        check_number(-1, best_recall=self.best_recall)


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
        """Write the file of the directory atomically: a reader sees the previous checkpoint or this one, complete."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        content = {"format": _FORMAT, "state": asdict(self.state), "recipe": asdict(self.recipe)}
        content |= {"vocabulary": self.vocabulary.to_dict(), "data": self.data, "bf16": self.bf16}
        run = json.dumps(content, allow_nan=False)
        write_tensors(directory / _FILE, tensors, save_file, {"run": run, "sha256": checksum(run, tensors)})
        for part in directory.glob(f".{_FILE}.*.part"):  # of saves that were killed
            part.unlink()

    @classmethod
    def load(cls, directory: str | Path) -> "Checkpoint":
        """Read a checkpoint that `save` wrote. Raises CheckpointError if it is missing, truncated or of another format."""
        path = Path(directory) / _FILE
        try:
            metadata, tensors = read_tensors(path, "pt")
            content: object = parse_json(metadata.get("run", ""))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a complete checkpoint ({error}): train from the start") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(f"{path} is not of format {_FORMAT}: train again, or use the leafbeam that wrote it")
        if metadata.get("sha256") != checksum(metadata["run"], tensors):
            raise CheckpointError(f"{path} is not the file that was saved (its hash is another): copy it again")
        try:
            return cls(
                state=TrainState(**{name: x for name, x in content["state"].items() if name != "worse"}),  # an old field
                recipe=Recipe.from_json(json.dumps(content["recipe"])),
                vocabulary=vocabulary_from_dict(content["vocabulary"]),
                data=str(content["data"]),
                bf16=bool(content["bf16"]),
                tensors=tensors,
            )
        except (ArgumentError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} has values that no checkpoint has ({error}): train from the start") from error

    @staticmethod
    def exists(directory: str | Path) -> bool:
        """Return whether `load` would find a checkpoint."""
        return any(Path(directory).glob("[!.]*"))

    @staticmethod
    def remove(directory: str | Path) -> None:
        """Delete the checkpoint, if there is one."""
        shutil.rmtree(directory, ignore_errors=True)

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


def checksum(run: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the description of a run and of its tensors' bytes, as hexadecimal digits."""
    digest = sha256(run.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fingerprint(histories: Histories, codes_NL: NDArray[np.int64], users_U: NDArray[np.int64] | None = None) -> str:
    """Return 16 hexadecimal digits of a hash of the training data: histories, SIDs and user tokens."""
    digest = sha256()
    for array in (histories.indptr_U1, histories.items_E, codes_NL, *(() if users_U is None else (users_U,))):
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]
