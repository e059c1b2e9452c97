"""A version and a batch's filters on a GPU, in memory that captured graphs go on reading when the contents change.

Shapes: S segments, B requests, K beams, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.fixed_shape.capacity import bucket

_MIN_DELTA = 1 << 13  # elements of each of a delta's arrays at least, so that it may grow from nothing
MAX_DENIED = 256  # of a request: space in every graph; a batch with more runs eagerly
Requests = Sequence[Filter]


class DeviceIndex:
    """The Triton backend's arrays of a version, with space up to the next power of two, for a delta of some thousand leaves.

    A delta does not fit where there was none, nor does a level whose layout has changed. options: of `triton.step.bind`.
    """

    def __init__(self, version: Version, device: torch.device | str, **options: Any) -> None:
        self._ops = import_module("leafbeam.ops.constrain.triton.step")
        arrays = self._ops.bind(version, device, **options)
        levels = (tuple(_with_space(level, s) for s, level in enumerate(pair)) for pair in arrays.levels)
        self._arrays: Any = replace(arrays, levels=tuple(levels))

    @property
    def num_segments(self) -> int:
        return self._arrays.num_segments

    def prepare(self, version: Version) -> Any:
        """Return another version's arrays on the device, beside this one's. This takes as much space as the segments that
        are new; any thread may call it.
        """
        return self._ops.bind(version, like=self._arrays)

    def fits(self, prepared: Any) -> bool:
        """Return whether prepared arrays fit into the memory of the present ones."""
        present, other = _levels(self._arrays), _levels(prepared)
        return len(present) == len(other) and all(
            (old.layout, old.width) == (new.layout, new.width)
            and all(len(after) <= len(before) for before, after in zip(old.tensors, new.tensors, strict=True))
            for old, new in zip(present, other, strict=True)
        )

    def replace(self, prepared: Any) -> None:
        """Copy what changed over the present arrays: no search may be running."""
        for old, new in zip(_levels(self._arrays), _levels(prepared), strict=True):
            for before, after in zip(old.tensors, new.tensors, strict=True):
                if before is not after:
                    before[: len(after)].copy_(after)
        self._arrays = replace(prepared, levels=self._arrays.levels)

    def filter_shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs that filters of this many requests need."""
        return self._ops.FilterArrays.shapes(self.num_segments, batch, batch * MAX_DENIED)

    def filters(self, tensors: Sequence[Tensor], host: Sequence[NDArray[np.int64]]) -> DeviceFilters:
        """Return filters in the memory of inputs of these shapes."""
        return DeviceFilters(self._ops.FilterArrays.of(tensors, host, filtered=True))

    def stage(self, filters: DeviceFilters, requests: Requests) -> bool:
        """Write a batch's filters to the inputs; False where these need more space than there is."""
        return self._ops.stage_filters(self._arrays, filters.arrays, requests)

    def launch(
        self, level: int, beams: Beams[Tensor], logits_BKV: Tensor, filters: DeviceFilters, *, num_beams: int, scoring: Scoring
    ) -> tuple[Beams[Tensor], Tensor]:
        """Call the backend's `launch`, and return (beams, bad)."""
        return self._ops.launch(self._arrays, level, beams, logits_BKV, filters.arrays, num_beams=num_beams, scoring=scoring)


@dataclass(frozen=True, eq=False)
class DeviceFilters:
    """The filters of a batch where a graph reads them. arrays: as the backend's `bind_filters` makes them."""

    arrays: Any


def _levels(arrays: Any) -> list[Any]:
    return [level for pair in arrays.levels for level in pair]


def _with_space(level: Any, segment: int) -> Any:
    """Return the level's arrays, in larger ones."""
    larger = level.tensors._make(
        tensor.new_zeros(bucket(len(tensor), _MIN_DELTA if segment else 1)) for tensor in level.tensors
    )
    for space, tensor in zip(larger, level.tensors, strict=True):
        space[: len(tensor)].copy_(tensor)
    return replace(level, tensors=larger)
