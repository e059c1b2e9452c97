"""A version and a batch's filters on a GPU, in memory that captured graphs go on reading when the contents change.

Shapes: S segments, B requests, K beams, V codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.fixed_shape.capacity import bucket

_MIN_DELTA = 1 << 13  # elements of each of a delta's arrays at least, so that it may grow from nothing
MAX_DENIED = 256  # of a request: space in every graph; a batch with more runs eagerly
Requests = Sequence[Filter]


class DeviceIndex:
    """The Triton backend's arrays of a version, with space up to the next power of two, for a delta of some thousand leaves.

    A delta does not fit where there was none, nor does a level whose layout has changed.
    """

    def __init__(self, version: Version, device: torch.device | str) -> None:
        self._ops = import_module("leafbeam.ops.constrain.triton.step")
        self._device = device
        self._tries = [segment.trie for segment in version.segments]
        arrays = self._ops.bind(version, device)
        levels = (tuple(_with_space(level, s) for s, level in enumerate(pair)) for pair in arrays.levels)
        self._arrays: Any = replace(arrays, levels=tuple(levels))

    @property
    def num_segments(self) -> int:
        return self._arrays.num_segments

    def prepare(self, version: Version) -> Any:
        """Return another version's arrays on the device, beside this one's. This takes as much space; any thread may call
        it."""
        tries, columns = [segment.trie for segment in version.segments], [*zip(*self._arrays.levels, strict=True)]
        for s, trie in enumerate(tries):
            if s >= len(columns) or trie is not self._tries[s]:  # the others stay where they are
                columns[s : s + 1] = [tuple(level for (level,) in self._ops.bind(trie, self._device).levels)]
        return tries, replace(self._arrays, levels=tuple(zip(*columns[: len(tries)], strict=True)))

    def fits(self, prepared: Any) -> bool:
        """Return whether prepared arrays fit into the memory of the present ones."""
        present, other = _levels(self._arrays), _levels(prepared[1])
        return len(present) == len(other) and all(
            (old.layout, old.width) == (new.layout, new.width)
            and all(len(after) <= len(before) for before, after in zip(old.tensors, new.tensors, strict=True))
            for old, new in zip(present, other, strict=True)
        )

    def replace(self, prepared: Any) -> None:
        """Copy what changed over the present arrays: no search may be running."""
        self._tries = prepared[0]
        for old, new in zip(_levels(self._arrays), _levels(prepared[1]), strict=True):
            for before, after in zip(old.tensors, new.tensors, strict=True):
                if before is not after:
                    before[: len(after)].copy_(after)

    def filters(self, batch: int) -> DeviceFilters:
        """Return space for the filters of this many requests."""
        return DeviceFilters(self._ops, self._arrays, batch)

    def launch(
        self, level: int, beams: Beams[Tensor], logits_BKV: Tensor, filters: DeviceFilters, *, num_beams: int, scoring: Scoring
    ) -> tuple[Beams[Tensor], Tensor]:
        """Call the backend's `launch`, and return (beams, bad)."""
        return self._ops.launch(self._arrays, level, beams, logits_BKV, filters.arrays, num_beams=num_beams, scoring=scoring)


class DeviceFilters:
    """The filters of a batch where a graph reads them. arrays: as the backend's `bind_filters` makes them."""

    def __init__(self, ops: Any, arrays: Any, batch: int) -> None:
        self._ops, self._max_denied = ops, batch * MAX_DENIED
        self.arrays = ops.bind_filters(arrays, [], batch_size=batch, max_denied=self._max_denied)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for segment in self.arrays.segments for tensor in segment)

    def refill(self, requests: Requests) -> bool:
        """Overwrite them with another batch's filters; False where these need more space than there is."""
        parts_SB = zip(*(request.parts for request in requests), strict=True)
        if any(sum(len(part.denied_D) for part in parts_B) > self._max_denied for parts_B in parts_SB):
            return False
        self._ops.refill(self.arrays, requests)
        return True


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
