"""The filters of a batch on a device: a shelf of the last ones used, and each request's place on it.

Shapes: S segments, B requests, W words, F filters, H masks, D denied leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.index import Bitmap
from leafbeam.ops.constrain.fixed_shape.capacity import SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.filter_layout import pack_denied, pack_filter
from leafbeam.ops.constrain.fixed_shape.jax_arrays import VersionArrays
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout
from leafbeam.ops.constrain.types import RequestFilter

__all__ = ["FilterArrays", "FilterCache", "LevelFilters", "bind_filters"]

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFilters:
    """A batch's filters at one level of one segment.

    slot_B: int32, each request's filter on the shelf; filter 0 lets everything pass. leaves_FW, listed_FW: uint32 bits of the
    leaves and of the listed children. masks_FHW: uint32, the codes of the wide ranges. denied_BD: int32 leaves; dead_BD3: as
    int32 (entry, mask, code) the listed children that are dead without them; -1 where there are fewer.
    """

    slot_B: Array
    leaves_FW: Array
    listed_FW: Array | None
    masks_FHW: Array | None
    denied_BD: Array
    dead_BD3: Array | None


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterArrays:
    """The filters of a batch: `levels[t][s]` is a pytree."""

    levels: tuple[tuple[LevelFilters, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes on the device, the shelf's included."""
        return sum({id(one): one.nbytes for one in jax.tree.leaves(self.levels)}.values())


class FilterCache:
    """The filters that were used last, on the device, so that a batch sends places on the shelf and no bitmaps.

    Think of it as a cache as large as the largest batch has asked for (a power of two of different filters, with the one that
    lets everything pass). A filter is known by its bitmap's identity: keep a rule's filter, do not remake it for each
    request. What `bind` returned stays valid whatever comes later: a new filter makes a new shelf.

    Cost of a new filter: `pack_filter` on the host, its copy to the device, and a copy of the shelf there.
    """

    def __init__(self, arrays: VersionArrays, max_filters: int = 2, sharding: jax.sharding.Sharding | None = None) -> None:
        if max_filters < 1:
            raise ArgumentError(f"max_filters is {max_filters}: expected at least 1 filter")
        capacities = arrays.capacity.segments
        packed = zip(arrays.layouts, capacities, strict=True)
        self._racks = [_SegmentCache(one, capacity, bucket(max_filters), sharding) for one, capacity in packed]
        self._lock = threading.Lock()

    def for_version(self, arrays: VersionArrays) -> FilterCache:
        """A shelf for another version: the filters of segments that have not changed stay where they are."""
        shelf = FilterCache.__new__(FilterCache)
        shelf._lock = self._lock
        shelf._racks = []
        for number, (one, capacity) in enumerate(zip(arrays.layouts, arrays.capacity.segments, strict=True)):
            old = self._racks[number] if number < len(self._racks) else self._racks[-1]
            same = old.segment is one and old.capacity == capacity
            shelf._racks.append(old if same else _SegmentCache(one, capacity, old.num_slots, old.sharding))
        return shelf

    def bind(self, filters: Sequence[tuple[RequestFilter, ...]]) -> FilterArrays:
        """The filters of a batch, one for each request, in it one for each segment. Safe to call from several threads."""
        with self._lock:
            columns = [
                rack.bind([parts[s] if s < len(parts) else None for parts in filters]) for s, rack in enumerate(self._racks)
            ]
        return FilterArrays(levels=tuple(zip(*columns, strict=True)))


def bind_filters(arrays: VersionArrays, filters: Sequence[tuple[RequestFilter, ...]]) -> FilterArrays:
    """Copy a batch's filters to the device: a shelf of their own, thrown away with them."""
    return FilterCache(arrays).bind(filters)


class _SegmentCache:
    """The shelf's part for one segment."""

    def __init__(
        self, segment: SegmentLayout, capacity: SegmentCapacity, max_filters: int, sharding: jax.sharding.Sharding | None
    ) -> None:
        self.segment, self.capacity, self.sharding = segment, capacity, sharding
        self.num_slots = 0
        self._held: list[Bitmap | None] = [None]  # by slot; None lets everything pass
        self._used: list[int] = []  # slots, the one used longest ago first
        self._stacks: dict[str, Array] = {}
        self._grow(max_filters)

    def bind(self, requests: Sequence[RequestFilter | None]) -> tuple[LevelFilters, ...]:
        slot_B = self._slots([None if one is None else one.leaves for one in requests])
        denied = pack_denied(self.segment, requests)
        slots, denied_BD = jnp.asarray(slot_B), jnp.asarray(denied["denied_BD"])
        return tuple(
            LevelFilters(
                slot_B=slots,
                leaves_FW=self._stacks["leaves_W"],
                listed_FW=self._stacks.get(f"listed_W{level}"),
                masks_FHW=self._stacks.get(f"masks_HW{level}"),
                denied_BD=denied_BD,
                dead_BD3=jnp.asarray(denied[f"dead_BD3{level}"]) if capacity.ranges else None,
            )
            for level, capacity in enumerate(self.capacity.levels)
        )

    def _slots(self, bitmaps: Sequence[Bitmap | None]) -> NDArray[np.int32]:
        """Each bitmap's slot; those that have none take the places of the ones used longest ago."""
        distinct = {id(one): one for one in bitmaps if one is not None}
        if len(distinct) + 1 > self.num_slots:
            self._grow(bucket(len(distinct) + 1))
        self._held += [None] * (self.num_slots - len(self._held))
        known = {id(one): slot for slot, one in enumerate(self._held) if one is not None and id(one) in distinct}
        new = [one for key, one in distinct.items() if key not in known]
        free = [slot for slot in range(1, self.num_slots) if self._held[slot] is None]
        free += [slot for slot in self._used if slot not in known.values()]
        for one, slot in zip(new, free, strict=False):
            known[id(one)], self._held[slot] = slot, one
        self._used = [slot for slot in self._used if slot not in known.values()] + list(known.values())
        if new:
            packed = [pack_filter(self.segment, one, self.capacity) for one in new]
            packed += [packed[-1]] * (bucket(len(new)) - len(new))
            slots = [known[id(one)] for one in new]
            slots += [slots[-1]] * (len(packed) - len(new))
            fresh = {name: np.stack([one[name] for one in packed]) for name in packed[0]}
            self._stacks = _put(self._stacks, np.array(slots, np.int32), fresh)
        return np.array([0 if one is None else known[id(one)] for one in bitmaps], np.int32)

    def _grow(self, max_filters: int) -> None:
        if self._stacks:
            more = max_filters - self.num_slots
            stacks = {
                name: jnp.concatenate([one, jnp.zeros((more, *one.shape[1:]), one.dtype)]) for name, one in self._stacks.items()
            }
        else:
            everything = pack_filter(self.segment, None, self.capacity)
            stacks = {name: np.zeros((max_filters, *one.shape), one.dtype) for name, one in everything.items()}
            for name, one in everything.items():
                stacks[name][0] = one
        self._stacks = jax.device_put(stacks, self.sharding)
        self.num_slots = max_filters


@jax.jit
def _put(stacks: dict[str, Array], slots_n: Array, fresh: dict[str, Array]) -> dict[str, Array]:
    """The stacks with new filters in some slots."""
    return {name: stack.at[slots_n].set(fresh[name]) for name, stack in stacks.items()}
