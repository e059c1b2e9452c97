"""A version and a batch's filters on a device, in memory that captured graphs go on reading when the contents change.

    TorchIndex    backend "torch": every size is a power of two, so most new versions fit where the old one was
    TritonIndex   backend "triton", for GPUs: its arrays, with spare space behind them

Shapes: S segments, B requests, K beams, V codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from leafbeam.index import Version
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring
from leafbeam.ops.constrain.fixed_shape import torch as torch_ops
from leafbeam.ops.constrain.fixed_shape.capacity import bucket

__all__ = ["DeviceFilters", "DeviceIndex", "TorchIndex", "TritonIndex"]

_MIN_DELTA = 1 << 13  # elements of each of a delta's arrays at least, so that it may grow from nothing
_MAX_DENIED = 256  # of a request: space in every graph; a batch with more runs eagerly
Requests = Sequence[tuple[RequestFilter, ...]]


class DeviceFilters(Protocol):
    """The filters of a batch where a graph reads them. arrays: as the backend's `bind_filters` makes them."""

    arrays: Any

    @property
    def nbytes(self) -> int: ...

    def refill(self, requests: Requests) -> bool:
        """Overwrite them with another batch's filters; False where these need more space than there is."""
        ...


class DeviceIndex(Protocol):
    """A version where a graph reads it."""

    @property
    def num_segments(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def prepare(self, version: Version) -> Any:
        """Another version's arrays on the device, beside this one's; as much space as `bind` takes. From any thread."""
        ...

    def fits(self, arrays: Any) -> bool:
        """Whether these arrays fit into the memory of the present ones."""
        ...

    def replace(self, arrays: Any) -> None:
        """Copy what changed over the present arrays: no search may be running."""
        ...

    def filters(self, batch: int) -> DeviceFilters:
        """Space for the filters of so many requests."""
        ...

    def launch(
        self,
        level: int,
        beams: Beams[Tensor],
        logits_BKV: Tensor,
        filters: DeviceFilters,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Tensor], Tensor]:
        """The backend's `launch`: (beams, bad)."""
        ...


class _Launcher:
    """`launch` of a backend's module over its arrays."""

    _ops: Any
    _arrays: Any

    def launch(
        self,
        level: int,
        beams: Beams[Tensor],
        logits_BKV: Tensor,
        filters: DeviceFilters,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Tensor], Tensor]:
        arguments = (self._arrays, level, beams.lo, beams.hi, beams.scores, logits_BKV, filters.arrays)
        return self._ops.launch(*arguments, num_beams=num_beams, scoring=scoring)


class TorchIndex(_Launcher):
    """See DeviceIndex. delta_leaves: space for a delta of so many leaves, so that the first changes fit too."""

    def __init__(self, version: Version, device: torch.device | str, *, delta_leaves: int = 0) -> None:
        self._ops = torch_ops
        self._arrays: torch_ops.VersionArrays = torch_ops.bind(version, device, delta_leaves=delta_leaves)

    @property
    def num_segments(self) -> int:
        return len(self._arrays.layouts)

    @property
    def nbytes(self) -> int:
        return self._arrays.nbytes

    def prepare(self, version: Version) -> torch_ops.VersionArrays:
        return torch_ops.bind(version, like=self._arrays)

    def fits(self, arrays: torch_ops.VersionArrays) -> bool:
        return arrays.capacity == self._arrays.capacity

    def replace(self, arrays: torch_ops.VersionArrays) -> None:
        for old, new in zip(_tensors(self._arrays.levels), _tensors(arrays.levels), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)
        self._arrays = replace(arrays, levels=self._arrays.levels)

    def filters(self, batch: int) -> _TorchFilters:
        return _TorchFilters(self, batch)

    def bind_filters(self, requests: Requests) -> torch_ops.FilterArrays:
        """A batch's filters, in memory of their own."""
        return torch_ops.bind_filters(self._arrays, requests)


class _TorchFilters:
    """Space for a filter and `_MAX_DENIED` denied leaves of each request."""

    def __init__(self, index: TorchIndex, batch: int) -> None:
        self._index, self._batch = index, batch
        empty = index.bind_filters([()] * batch)
        sizes = {"slot_B": batch, "denied_BD": _MAX_DENIED, "dead_BD3": _MAX_DENIED}
        allocated: dict[int, Tensor] = {}  # levels go on sharing what they share

        def allocate(name: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in allocated:
                shape = list(tensor.shape)
                axis = 0 if name.endswith(("_FW", "_FHW")) else -2 if name == "dead_BD3" else -1
                shape[axis] = sizes.get(name, bucket(batch + 1))
                allocated[id(tensor)] = tensor.new_zeros(shape)
            return allocated[id(tensor)]

        def space_for(filters: Any) -> Any:
            named = {field.name: getattr(filters, field.name) for field in fields(filters)}
            return replace(filters, **{name: allocate(name, one) for name, one in named.items() if one is not None})

        self.arrays = torch_ops.FilterArrays(levels=tuple(tuple(map(space_for, pair)) for pair in empty.levels))
        self._allocated = list(allocated.values())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._allocated)

    def refill(self, requests: Requests) -> bool:
        if max((len(part.denied_D) for parts in requests for part in parts), default=0) > _MAX_DENIED:
            return False
        bound = self._index.bind_filters([*requests, *[()] * (self._batch - len(requests))])
        # Levels share tensors: each is copied once.
        pairs = {id(old): (old, new) for old, new in zip(_tensors(self.arrays.levels), _tensors(bound.levels), strict=True)}
        for old, new in pairs.values():
            if new.shape[0] == old.shape[0] and new.shape != old.shape:
                # A shorter list of denied leaves ends with -1; unused filters may hold anything.
                old.fill_(-1)
            old[tuple(slice(size) for size in new.shape)].copy_(new)
        return True


class TritonIndex(_Launcher):
    """See DeviceIndex. Each array has space up to the next power of two, those of a delta for some thousand leaves.

    A delta does not fit where there was none, nor does a level whose layout has changed.
    """

    def __init__(self, version: Version, device: torch.device | str) -> None:
        self._ops = import_module("leafbeam.ops.constrain.triton.step")
        self._device = device
        self._tries = [segment.trie for segment in version.segments]
        arrays = self._ops.bind(version, device)
        levels = (tuple(_with_space(one, s) for s, one in enumerate(pair)) for pair in arrays.levels)
        self._arrays: Any = replace(arrays, levels=tuple(levels))

    @property
    def num_segments(self) -> int:
        return self._arrays.num_segments

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for one in _flat(self._arrays) for tensor in one.tensors)

    def prepare(self, version: Version) -> Any:
        tries, columns = [segment.trie for segment in version.segments], [*zip(*self._arrays.levels, strict=True)]
        for s, trie in enumerate(tries):
            if s >= len(columns) or trie is not self._tries[s]:  # the others stay where they are
                columns[s : s + 1] = [tuple(one for (one,) in self._ops.bind(trie, self._device).levels)]
        return tries, replace(self._arrays, levels=tuple(zip(*columns[: len(tries)], strict=True)))

    def fits(self, arrays: Any) -> bool:
        present, other = _flat(self._arrays), _flat(arrays[1])
        return len(present) == len(other) and all(
            (old.layout, old.width) == (new.layout, new.width)
            and all(len(after) <= len(before) for before, after in zip(old.tensors, new.tensors, strict=True))
            for old, new in zip(present, other, strict=True)
        )

    def replace(self, arrays: Any) -> None:
        self._tries = arrays[0]
        for old, new in zip(_flat(self._arrays), _flat(arrays[1]), strict=True):
            for before, after in zip(old.tensors, new.tensors, strict=True):
                if before is not after:
                    before[: len(after)].copy_(after)

    def filters(self, batch: int) -> _TritonFilters:
        return _TritonFilters(self._ops, self._arrays, batch)


def _flat(arrays: Any) -> list[Any]:
    return [one for pair in arrays.levels for one in pair]


def _with_space(level: Any, segment: int) -> Any:
    """The level's arrays, in larger ones."""
    larger = tuple(one.new_zeros(bucket(len(one), _MIN_DELTA if segment else 1)) for one in level.tensors)
    for space, tensor in zip(larger, level.tensors, strict=True):
        space[: len(tensor)].copy_(tensor)
    return replace(level, tensors=larger)


class _TritonFilters:
    def __init__(self, ops: Any, arrays: Any, batch: int) -> None:
        self._ops, self._batch, self._max_denied = ops, batch, batch * _MAX_DENIED
        self._empty = (RequestFilter.none(),) * arrays.num_segments
        self.arrays = ops.bind_filters(arrays, [self._empty] * batch, max_denied=self._max_denied)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for segment in self.arrays.segments for tensor in segment)

    def refill(self, requests: Requests) -> bool:
        if any(sum(len(part.denied_D) for part in parts) > self._max_denied for parts in zip(*requests, strict=True)):
            return False
        self._ops.refill(self.arrays, [*requests, *[self._empty] * (self._batch - len(requests))])
        return True


def _tensors(levels: Any) -> Iterator[Tensor]:
    for pair in levels:
        for one in pair:
            yield from (value for value in vars(one).values() if isinstance(value, Tensor))
