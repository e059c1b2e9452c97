"""A version and the filters of a batch on a device, in memory that captured graphs go on reading when the contents change.

    TorchIndex    `ops.constrain.torch`: every size is a power of two, so most new versions fit where the old one stood
    TritonIndex   `ops.constrain.triton`, what a GPU runs: its arrays, with as much room behind them

Shapes: S segments, B requests, K beams (P before the round), V codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from leafbeam.index import Version
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring
from leafbeam.ops.constrain.fixed_shape import torch as torch_ops
from leafbeam.ops.constrain.fixed_shape.capacity import bucket

__all__ = ["DeviceFilters", "DeviceIndex", "TorchIndex", "TritonIndex"]

_DELTA = 1 << 13  # elements of each of a delta's arrays at least, so that it may grow from nothing
_MAX_DENIED = 256  # of a request: room in every graph; a batch with more runs eagerly
Requests = Sequence[tuple[RequestFilter, ...]]


class DeviceFilters(Protocol):
    """The filters of a batch where a graph reads them."""

    @property
    def nbytes(self) -> int: ...

    def refill(self, requests: Requests) -> bool:
        """Put another batch's filters there, at most as many requests as there is room for; False where they need more."""
        ...


class DeviceIndex(Protocol):
    """A version where a graph reads it."""

    @property
    def num_segments(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def prepared(self, version: Version) -> Any:
        """Another version's arrays on the device, beside this one's. Any thread may do it; it takes what `bind` takes."""
        ...

    def fits(self, arrays: Any) -> bool:
        """Whether these arrays fit into the room of those that are there."""
        ...

    def take(self, arrays: Any) -> None:
        """Copy them over what is there: no search may be running. Only what changed is copied."""
        ...

    def filters(self, batch: int) -> DeviceFilters: ...

    def step(
        self,
        level: int,
        lo_SBP: Tensor,
        hi_SBP: Tensor,
        scores_BP: Tensor,
        logits_BPV: Tensor,
        filters: Any,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Tensor], Tensor]:
        """A round, and the number + 1 of a live row that holds NaN or +inf (0: none); nothing waits for the device."""
        ...


class TorchIndex:
    """See DeviceIndex. delta_leaves: room for a delta of so many leaves, so that the first changes fit too."""

    def __init__(self, version: Version, device: torch.device | str, *, delta_leaves: int = 0) -> None:
        self._arrays = torch_ops.bind(version, device, delta_leaves=delta_leaves)

    @property
    def num_segments(self) -> int:
        return len(self._arrays.layouts)

    @property
    def nbytes(self) -> int:
        return self._arrays.nbytes

    def prepared(self, version: Version) -> torch_ops.VersionArrays:
        return torch_ops.bind(version, like=self._arrays)

    def fits(self, arrays: torch_ops.VersionArrays) -> bool:
        return arrays.capacity == self._arrays.capacity

    def take(self, arrays: torch_ops.VersionArrays) -> None:
        for mine, its in zip(_tensors(self._arrays.levels), _tensors(arrays.levels), strict=True):
            if mine.data_ptr() != its.data_ptr():
                mine.copy_(its)
        self._arrays = replace(arrays, levels=self._arrays.levels)

    def filters(self, batch: int) -> _TorchFilters:
        return _TorchFilters(self, batch)

    def bound(self, requests: Requests) -> torch_ops.FilterArrays:
        """A batch's filters, in memory of their own."""
        return torch_ops.bind_filters(self._arrays, requests)

    def step(
        self,
        level: int,
        lo_SBP: Tensor,
        hi_SBP: Tensor,
        scores_BP: Tensor,
        logits_BPV: Tensor,
        filters: _TorchFilters,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Tensor], Tensor]:
        given = lo_SBP, hi_SBP, scores_BP, logits_BPV
        return torch_ops.launch(self._arrays, level, *given, filters.arrays, num_beams=num_beams, scoring=scoring)


class _TorchFilters:
    """Room for a filter and `_MAX_DENIED` denied leaves of each request."""

    def __init__(self, index: TorchIndex, batch: int) -> None:
        self._index, self._batch = index, batch
        nothing = index.bound([()] * batch)
        room = {"slot_B": batch, "denied_BD": _MAX_DENIED, "dead_BD3": _MAX_DENIED}
        held: dict[int, Tensor] = {}  # what levels share, they go on sharing

        def roomy(name: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in held:
                shape = list(tensor.shape)
                shape[0 if name.endswith(("_FW", "_FHW")) else -2 if name == "dead_BD3" else -1] = room.get(
                    name, bucket(batch + 1)
                )
                held[id(tensor)] = tensor.new_zeros(shape)
            return held[id(tensor)]

        self.arrays = torch_ops.FilterArrays(
            levels=tuple(
                tuple(
                    replace(
                        one,
                        **{f.name: roomy(f.name, value) for f in fields(one) if (value := getattr(one, f.name)) is not None},
                    )
                    for one in pair
                )
                for pair in nothing.levels
            )
        )
        self._tensors = list(held.values())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors)

    def refill(self, requests: Requests) -> bool:
        if max((len(part.denied_D) for parts in requests for part in parts), default=0) > _MAX_DENIED:
            return False
        padded = [*requests, *[()] * (self._batch - len(requests))]
        # Levels share tensors: each is copied once.
        pairs = {
            id(mine): (mine, its)
            for mine, its in zip(_tensors(self.arrays.levels), _tensors(self._index.bound(padded).levels), strict=True)
        }
        for mine, its in pairs.values():
            if its.shape[0] == mine.shape[0] and its.shape != mine.shape:
                # A shorter list of denied leaves ends with -1; filters that nobody names may hold anything.
                mine.fill_(-1)
            mine[tuple(slice(size) for size in its.shape)].copy_(its)
        return True


class TritonIndex:
    """See DeviceIndex. Each array has room up to the next power of two, those of a delta for some thousand leaves.

    A delta where there was none does not fit, and neither does a level that has come to be laid out in another way.
    """

    def __init__(self, version: Version, device: torch.device | str) -> None:
        self._ops = import_module("leafbeam.ops.constrain.triton.step")
        self._device = device
        self._tries = [segment.trie for segment in version.segments]
        self._arrays: Any = self._roomy(self._ops.bind(version, device))

    @property
    def num_segments(self) -> int:
        return self._arrays.num_segments

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for one in self._flat(self._arrays) for tensor in one.tensors)

    def prepared(self, version: Version) -> Any:
        tries, columns = [segment.trie for segment in version.segments], [*zip(*self._arrays.levels, strict=True)]
        for s, trie in enumerate(tries):
            if s >= len(columns) or trie is not self._tries[s]:  # the others stay where they are
                columns[s : s + 1] = [tuple(one for (one,) in self._ops.bind(trie, self._device).levels)]
        return tries, replace(self._arrays, levels=tuple(zip(*columns[: len(tries)], strict=True)))

    def fits(self, arrays: Any) -> bool:
        mine, its = self._flat(self._arrays), self._flat(arrays[1])
        return len(mine) == len(its) and all(
            (one.layout, one.width) == (other.layout, other.width)
            and all(len(new) <= len(old) for old, new in zip(one.tensors, other.tensors, strict=True))
            for one, other in zip(mine, its, strict=True)
        )

    def take(self, arrays: Any) -> None:
        self._tries = arrays[0]
        for one, other in zip(self._flat(self._arrays), self._flat(arrays[1]), strict=True):
            for old, new in zip(one.tensors, other.tensors, strict=True):
                if old is not new:
                    old[: len(new)].copy_(new)

    def filters(self, batch: int) -> _TritonFilters:
        return _TritonFilters(self._ops, self._arrays, batch)

    def step(
        self,
        level: int,
        lo_SBP: Tensor,
        hi_SBP: Tensor,
        scores_BP: Tensor,
        logits_BPV: Tensor,
        filters: _TritonFilters,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Tensor], Tensor]:
        bound = filters.arrays
        return self._ops.launch(
            self._arrays, level, lo_SBP, hi_SBP, scores_BP, logits_BPV, bound, num_beams=num_beams, scoring=scoring
        )

    @staticmethod
    def _flat(arrays: Any) -> list[Any]:
        return [one for pair in arrays.levels for one in pair]

    def _roomy(self, arrays: Any) -> Any:
        def roomy(one: Any, segment: int) -> Any:
            tensors = tuple(tensor.new_zeros(bucket(len(tensor), _DELTA if segment else 1)) for tensor in one.tensors)
            for room, tensor in zip(tensors, one.tensors, strict=True):
                room[: len(tensor)].copy_(tensor)
            return replace(one, tensors=tensors)

        return replace(arrays, levels=tuple(tuple(roomy(one, s) for s, one in enumerate(pair)) for pair in arrays.levels))


class _TritonFilters:
    def __init__(self, ops: Any, arrays: Any, batch: int) -> None:
        self._ops, self._batch, self._most = ops, batch, batch * _MAX_DENIED
        nowhere = np.empty(0, np.int64)
        nothing = RequestFilter(leaves=None, denied_D=nowhere, filter=None, denied_places=nowhere)
        self._nothing = (nothing,) * arrays.num_segments
        self.arrays = ops.bind_filters(arrays, [self._nothing] * batch, max_denied=self._most)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for segment in self.arrays.segments for tensor in segment)

    def refill(self, requests: Requests) -> bool:
        for number in range(len(self._nothing)):
            if sum(len(parts[number].denied_D) for parts in requests) > self._most:
                return False
        self._ops.refill(self.arrays, [*requests, *[self._nothing] * (self._batch - len(requests))])
        return True


def _tensors(levels: Any) -> Iterator[Tensor]:
    for pair in levels:
        for one in pair:
            yield from (value for value in vars(one).values() if isinstance(value, Tensor))
