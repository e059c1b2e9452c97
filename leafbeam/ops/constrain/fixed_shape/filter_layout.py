"""A request's filter as devices read it: which leaves are alive and, made ahead, which listed children are.

    short range: its leaves' bits are one 32-bit window; a child is alive iff one of its own bits is set
    long range: one bit for each listed child, and for a wide range a mask of V bits; both made when the filter is bound

So a round tests no rank, and a filter costs a round nothing. Denied leaves stay a short list: they are taken out of windows,
and the listed children that lose their last leaf are named.

Shapes: M leaves, W words, E entries, H masks, D denied leaves.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap
from leafbeam.index.bit_kernels import rank, rank_many
from leafbeam.jit import njit
from leafbeam.ops.constrain.fixed_shape.capacity import SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.layout import LevelLayout, SegmentLayout, as_words
from leafbeam.ops.constrain.types import RequestFilter

__all__ = ["DeadChildren", "dead_children", "pack_denied", "pack_filter"]

MIN_DENIED = 8  # a batch without a deny list runs what one with a short list runs


def pack_filter(segment: SegmentLayout, leaves: Bitmap | None, capacity: SegmentCapacity) -> dict[str, NDArray[np.uint32]]:
    """A filter's words (None: everything), padded: `leaves_W`, and for each level with long ranges `listed_W{t}` (a bit for
    each entry) and `masks_HW{t}` (a bit for each code).

    Cost: two reads and a write for each listed child, 1 to 3 ns; a pass over the leaves' words.
    """
    everything = Bitmap.full(segment.trie.num_leaves) if leaves is None else leaves
    packed = {"leaves_W": as_words(everything, capacity.leaves)}
    for t, (level, level_capacity) in enumerate(zip(segment.levels, capacity.levels, strict=True)):
        if level_capacity.ranges:
            listed_W = np.zeros((level_capacity.entries + level_capacity.width) // 32 + 1, np.uint32)
            masks_HW = np.zeros((level_capacity.wide, level_capacity.words), np.uint32)
            _alive(
                everything.words_W,
                everything.before_W,
                level.lo_G,
                level.hi_G,
                level.begin_G1,
                level.mask_G,
                level.firsts_E,
                level.codes_E,
                listed_W,
                masks_HW,
            )
            packed[f"listed_W{t}"] = listed_W
            if level_capacity.wide:
                packed[f"masks_HW{t}"] = masks_HW
    return packed


@njit(cache=True, nogil=True)
def _alive(words_W, before_W, lo_G, hi_G, begin_G1, mask_G, firsts_E, codes_E, listed_W, masks_HW):
    """Set the bits of the children that have a leaf alive."""
    for number in range(lo_G.size):
        before = rank(words_W, before_W, lo_G[number])
        end = begin_G1[number + 1]
        mask = mask_G[number]
        for entry in range(begin_G1[number], end):
            after = rank(words_W, before_W, firsts_E[entry + 1] if entry + 1 < end else hi_G[number])
            if after > before:
                listed_W[entry >> 5] |= np.uint32(1) << np.uint32(entry & 31)
                if mask >= 0:
                    code = codes_E[entry]
                    masks_HW[mask, code >> 5] |= np.uint32(1) << np.uint32(code & 31)
            before = after


def pack_denied(segment: SegmentLayout, requests: Sequence[RequestFilter | None]) -> dict[str, NDArray[np.int32]]:
    """A batch's denied leaves and the listed children that are dead without them, padded with -1 to a power of two.

    denied_BD: leaves. dead_BD3{t}: (entry, mask, code), for each level with long ranges.
    """
    most = max((len(one.denied_D) for one in requests if one is not None), default=0)
    shape = (len(requests), bucket(max(1, most), MIN_DENIED))
    packed = {"denied_BD": np.full(shape, -1, np.int32)}
    packed |= {f"dead_BD3{t}": np.full((*shape, 3), -1, np.int32) for t in range(len(segment.levels))}
    for request, one in enumerate(requests):
        if one is None or len(one.denied_D) == 0:
            continue
        packed["denied_BD"][request, : len(one.denied_D)] = one.denied_D
        for t, level in enumerate(segment.levels):
            dead = dead_children(level, one.leaves, one.denied_D)
            packed[f"dead_BD3{t}"][request, : len(dead.entry_n)] = np.stack([dead.entry_n, dead.mask_n, dead.code_n], axis=1)
    return packed


@dataclass(frozen=True, kw_only=True, eq=False)
class DeadChildren:
    """The listed children of one level that a request's denied leaves leave nothing of, at most one for each denied leaf.

    entry_n: int32. mask_n, code_n: int32, the mask that it stands in (-1: none) and its code.
    """

    entry_n: NDArray[np.int32]
    mask_n: NDArray[np.int32]
    code_n: NDArray[np.int32]


def dead_children(level: LevelLayout, leaves: Bitmap | None, denied_D: NDArray[np.int64]) -> DeadChildren:
    """The children that the filter leaves alive and the denied leaves (ascending) do not. Cost: two searches a denied leaf."""
    if len(level.lo_G) == 0 or len(denied_D) == 0:
        nothing = np.empty(0, np.int32)
        return DeadChildren(entry_n=nothing, mask_n=nothing, code_n=nothing)
    entry_D = np.searchsorted(level.firsts_E, denied_D.astype(np.int32), side="right") - 1
    number_D = np.searchsorted(level.lo_G, denied_D, side="right") - 1
    inside = (number_D >= 0) & (denied_D < level.hi_G[number_D])
    entry_n, denied_n = np.unique(entry_D[inside], return_counts=True)
    number_n = np.searchsorted(level.begin_G1, entry_n, side="right") - 1
    begin_n, end_n = level.firsts_E[entry_n], level.hi_G[number_n]
    inner = entry_n + 1 < level.begin_G1[number_n + 1]
    end_n[inner] = level.firsts_E[entry_n[inner] + 1]
    dead = _count(leaves, begin_n, end_n) <= denied_n
    entry_n, mask_n = entry_n[dead], level.mask_G[number_n[dead]]
    return DeadChildren(entry_n=entry_n.astype(np.int32), mask_n=mask_n, code_n=level.codes_E[entry_n].astype(np.int32))


def _count(leaves: Bitmap | None, begin_n: NDArray[np.int64], end_n: NDArray[np.int64]) -> NDArray[np.int64]:
    if leaves is None:
        return end_n - begin_n
    ranks = np.empty((2, len(begin_n)), np.int64)
    rank_many(leaves.words_W, leaves.before_W, begin_n, ranks[0])
    rank_many(leaves.words_W, leaves.before_W, end_n, ranks[1])
    return ranks[1] - ranks[0]
