"""An architecture: how its config and its tensors are read from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from leafbeam.json_reader import Json

Fields = Json  # of a config.json
Values = dict[str, Any]  # fields of a `ModelConfig`
Tensors = Iterator[tuple[str, Tensor]]


def as_stored(name: str, tensor: Tensor, _fields: Fields) -> Tensors:
    """Yield a tensor under the name that it has in its file; buffers of rotary positions are computed, not read."""
    if not name.endswith("rotary_emb.inv_freq"):
        yield name, tensor


def renamed(names: Mapping[str, str]) -> Callable[[str, Tensor, Fields], Tensors]:
    """Return the `tensors` of an architecture whose modules have other names in their file, which are the keys."""

    def tensors(name: str, tensor: Tensor, fields: Fields) -> Tensors:
        before, dot, last = name.removesuffix(".weight").rpartition(".")
        yield from as_stored(f"{before}{dot}{names[last]}.weight" if last in names else name, tensor, fields)

    return tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A family of checkpoints, by the `model_type` in their config.json.

    Attributes:
        read: Returns the fields of a `ModelConfig` from those of a config.json, or raises CheckpointError, which names a field
            that changes scores and is not implemented.
        tensors: Yields the tensors of a model (named as `leafbeam.model.decoder` names them) that a stored tensor holds, given
            its name, the tensor and the config's fields. `NAME:3` is part 3, counted from 0, of the stacked tensor NAME.
        norm_offset: The number that is added to the weights of norms.
        renamed: The names in config.json of fields of a `ModelConfig` that have others there, for messages.
    """

    read: Callable[[Fields], Values]
    tensors: Callable[[str, Tensor, Fields], Tensors] = as_stored
    norm_offset: float = 0.0
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
