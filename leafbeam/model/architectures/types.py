"""An architecture: how its config and its tensors are read from a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


def as_stored(name: str, tensor: Any, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a tensor under the name that it has in its file; buffers of rotary positions are computed, not read."""
    del fields
    if not name.endswith("rotary_emb.inv_freq"):
        yield name, tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A family of checkpoints, by the `model_type` in their config.json.

    Attributes:
        read: Returns the fields of a `ModelConfig` from those of a config.json, or raises CheckpointError, which names a field
            that changes scores and is not implemented.
        tensors: Yields the tensors of a model (named as `leafbeam.model.decoder` names them) that a stored tensor holds, given
            its name, the tensor and the config's fields. `NAME:3` is part 3, counted from 0, of the stacked tensor NAME.
        norm_offset: What is added to the weights of norms.
        renamed: The names in config.json of fields of a `ModelConfig` that have others there, for messages.
    """

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    tensors: Callable[[str, Any, Mapping[str, Any]], Iterator[tuple[str, Any]]] = as_stored
    norm_offset: float = 0.0
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
