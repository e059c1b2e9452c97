"""Captured decodes without a GPU: `DeviceIndex` and `DeviceFilters` over the torch backend, and a capturer that runs again.

What such a "graph" shows is what fixed shapes cost (padding to a bucket, all levels of all beams). What a replay saves, the
launches of its kernels, only a GPU can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from leafbeam.engine.graphs.static_decode import MAX_DENIED, Requests, StaticDecode
from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Boosts
from leafbeam.ops.constrain.fixed_shape import torch as torch_ops

_STACKS = ("_FW", "_FHW", "_FM", "_FE", "_FG")  # the ends of the names of arrays with a row for each filter or boost

__all__ = ["RunAgain", "TorchIndex"]


class TorchIndex:
    """`DeviceIndex` over the torch backend. options: of its `bind`."""

    def __init__(self, version: Version, device: torch.device | str, **options: Any) -> None:
        self._version = version
        self._arrays: torch_ops.VersionArrays = torch_ops.bind(version, device, **options)

    @property
    def num_segments(self) -> int:
        return len(self._arrays.layouts)

    def prepare(self, version: Version) -> torch_ops.VersionArrays:
        return torch_ops.bind(version, like=self._arrays)

    def fits(self, arrays: torch_ops.VersionArrays) -> bool:
        return arrays.capacity == self._arrays.capacity

    def replace(self, arrays: torch_ops.VersionArrays) -> None:
        for old, new in zip(_tensors(self._arrays.levels), _tensors(arrays.levels), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)
        self._arrays = replace(arrays, levels=self._arrays.levels)

    def filter_shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Filters and boosts are arrays of this backend, which `stage` fills: they need no inputs of the decode."""
        return [(batch,)]

    def filters(self, tensors: Sequence[Tensor], host: Sequence[Any]) -> _TorchFilters:
        return _TorchFilters(self, len(tensors[0]))

    def stage(self, filters: _TorchFilters, requests: Requests, boosts: Boosts) -> bool:
        return filters.refill(requests, boosts)

    def launch(self, level: int, beams: Any, logits_BKV: Tensor, filters: Any, **search: Any) -> Any:
        return torch_ops.launch(self._arrays, level, beams, logits_BKV, filters.arrays, **search)

    def bind_filters(self, requests: Requests, batch: int, boosts: Boosts = None) -> torch_ops.FilterArrays:
        """Return a batch's filters and boosts in memory of their own; further requests get none."""
        more = batch - len(requests)
        filters = [*requests, *[Filter(parts=(), index=self._version)] * more]
        return torch_ops.bind_filters(self._arrays, filters, [*(boosts or [None] * len(requests)), *[None] * more])


class RunAgain:
    """In the place of `CudaCapturer`: a replay runs the decode again."""

    def __init__(self, device: torch.device) -> None:
        self.nbytes = 0

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        decode.run()
        self.nbytes = max(self.nbytes, decode.work_bytes)
        return decode.run

    def wait(self) -> None:
        """Nothing to wait for."""


class _TorchFilters:
    """Space for a filter, a boost and `MAX_DENIED` denied leaves of each request; rows of the stacks are copied there."""

    def __init__(self, index: TorchIndex, batch: int) -> None:
        self._index, self._batch = index, batch
        empty = index.bind_filters([], batch)
        sizes = {"denied_BD": MAX_DENIED, "dead_BD3": MAX_DENIED}
        allocated: dict[int, Tensor] = {}  # levels go on sharing what they share

        def allocate(name: str, tensor: Tensor) -> Tensor:
            if id(tensor) not in allocated:
                shape = list(tensor.shape)
                axis = 0 if name.endswith(_STACKS) else -2 if name == "dead_BD3" else -1
                shape[axis] = sizes.get(name, batch)
                allocated[id(tensor)] = tensor.new_zeros(shape)
            return allocated[id(tensor)]

        def space_for(filters: Any) -> Any:
            named = {field.name: getattr(filters, field.name) for field in fields(filters)}
            spaces = {name: allocate(name, one) for name, one in named.items() if isinstance(one, Tensor)}
            return replace(filters, **spaces, **{"boosts": space_for(named["boosts"])} if "boosts" in named else {})

        self.arrays = torch_ops.FilterArrays(levels=tuple(tuple(map(space_for, pair)) for pair in empty.levels))

    def refill(self, requests: Requests, boosts: Boosts) -> bool:
        if max((len(part.denied_D) for request in requests for part in request.parts), default=0) > MAX_DENIED:
            return False
        bound = self._index.bind_filters(requests, self._batch, boosts)
        for old_level, new_level in zip(self.arrays.levels, bound.levels, strict=True):
            for old, new in zip(old_level, new_level, strict=True):
                _fill(old, new)
        return True


def _fill(old: Any, new: Any) -> None:
    """Copy the rows of a batch's filters, or of its boosts, to the space for them."""
    rows = torch.as_tensor(new.slot_B).long()
    for field in fields(new):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name == "boosts":
            _fill(before, after)
        elif field.name == "slot_B":
            before.copy_(torch.arange(len(before)))
        elif before is None:
            continue
        elif field.name.endswith(_STACKS):
            before.copy_(after[rows])
        elif field.name == "weight_B":
            before.copy_(after)
        else:
            before.fill_(-1)  # a shorter list of denied leaves ends with -1
            before[:, : after.shape[1]].copy_(after)


def _tensors(levels: Any) -> Iterator[Tensor]:
    for pair in levels:
        for one in pair:
            yield from (value for value in vars(one).values() if isinstance(value, Tensor))
