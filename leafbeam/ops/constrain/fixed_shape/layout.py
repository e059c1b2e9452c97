"""Host layout of a trie for devices: arrays of fixed sizes, without ranks; short and long ranges are stored apart.

    short range (at most 32 leaves): its children are bits of a 32-bit window of the level's boundaries; codes by leaf
    long range: its children are listed one after the other (codes and first leaves); a directory finds the list
    wide range (a long one with many children): also has a mask over the codes, so that a row of logits is read in order

At most one long range starts in a block of 32 leaves, so `directory[lo // 32]` is its number. However skewed the catalog is, a
range has at most `narrow_limit` candidates or a mask.

Shapes: M leaves, G long ranges of a level, E their children (entries), W words, V codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap, Trie, Version
from leafbeam.index.bit_kernels import next_set
from leafbeam.index.level import Level, code_dtype
from leafbeam.jit import njit
from leafbeam.ops.constrain.fixed_shape.capacity import (
    SHORT,
    Capacity,
    LevelCapacity,
    SegmentCapacity,
    check_size,
    narrow_limit,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelLayout:
    """One level: its long ranges and their children, in leaf order.

    Args:
        lo_G, hi_G: int64, the ranges.
        indptr_G1: int64, the first entry of each.
        mask_G: int32, the number of its mask or -1.
        firsts_E: int32, the first leaf of each child.
        codes_E: The code of each child, in the level's dtype.
        needs: The exact capacity that the level needs.
    """

    lo_G: NDArray[np.int64]
    hi_G: NDArray[np.int64]
    indptr_G1: NDArray[np.int64]
    mask_G: NDArray[np.int32]
    firsts_E: NDArray[np.int32]
    codes_E: NDArray[np.unsignedinteger]
    source: Level
    num_leaves: int
    needs: LevelCapacity

    @classmethod
    def of(cls, level: Level, parents: Bitmap | None, num_leaves: int) -> LevelLayout:
        """List the children of long ranges. parents: where ranges start; None if each is one leaf."""
        long_G2, shortest = np.empty((0, 2), np.int64), min(1, num_leaves)
        if parents is not None:
            long_G2 = np.empty((num_leaves // (SHORT + 1) + 1, 2), np.int64)
            count, shortest = _long_ranges(parents.words_W, num_leaves, SHORT, long_G2)
            long_G2 = long_G2[:count].copy()
        lo_G, hi_G = np.ascontiguousarray(long_G2.T)
        count_G = _ranks(level, hi_G) - _ranks(level, lo_G)
        indptr_G1 = np.concatenate([[0], np.cumsum(count_G)])
        if level.boundary is None:
            firsts_E = (np.arange(indptr_G1[-1]) + np.repeat(lo_G - indptr_G1[:-1], count_G)).astype(np.int32)
        else:
            firsts_E = np.empty(int(indptr_G1[-1]), np.int32)
            _child_starts(level.boundary.words_W, lo_G, hi_G, indptr_G1, firsts_E)
        is_wide_G = count_G > narrow_limit(level.size)
        return cls(
            lo_G=lo_G,
            hi_G=hi_G,
            indptr_G1=indptr_G1,
            mask_G=np.where(is_wide_G, np.cumsum(is_wide_G) - 1, -1).astype(np.int32),
            firsts_E=firsts_E,
            codes_E=level.plain_codes[firsts_E if level.firsts is None else _ranks(level, firsts_E)],
            source=level,
            num_leaves=num_leaves,
            needs=LevelCapacity(
                size=level.size,
                short=shortest,
                ranges=len(lo_G),
                entries=len(firsts_E),
                width=int(count_G[~is_wide_G].max(initial=0)),
                wide=int(is_wide_G.sum()),
            ),
        )

    def arrays(self, capacity: LevelCapacity, leaves: int) -> dict[str, NDArray[np.generic]]:
        """Return the device arrays, padded to `capacity`; parts of size 0 are left out.

        column_M: the code at each leaf. boundary_W: uint32 words. directory_M: int32, the long range that starts in each block
        of 32 leaves. ranges_G3: int32 (first entry, entries, mask or -1). codes_E, firsts_E: of the entries.
        """
        dtype = code_dtype(self.source.size)
        arrays: dict[str, NDArray[np.generic]] = {}
        if capacity.short:
            column_M = np.zeros(leaves + SHORT, dtype)
            codes, firsts = self.source.plain_codes, self.source.firsts
            column_M[: self.num_leaves] = (
                codes if firsts is None else np.repeat(codes, np.diff(firsts, append=np.uint32(self.num_leaves)))
            )
            boundary = self.source.boundary or Bitmap.full(self.num_leaves)
            arrays |= {"column_M": column_M, "boundary_W": window_words(boundary, leaves)}
        if capacity.ranges:
            directory_M = np.zeros(leaves // SHORT + 1, np.int32)
            directory_M[self.lo_G // SHORT] = np.arange(len(self.lo_G))
            ranges_G3 = np.zeros((capacity.ranges, 3), np.int32)
            ranges_G3[: len(self.lo_G)] = np.stack([self.indptr_G1[:-1], np.diff(self.indptr_G1), self.mask_G], axis=1)
            codes_E = np.zeros(capacity.entries + capacity.width, dtype)
            firsts_E = np.zeros(capacity.entries + capacity.width + 1, np.int32)
            codes_E[: len(self.codes_E)], firsts_E[: len(self.firsts_E)] = self.codes_E, self.firsts_E
            arrays |= {"directory_M": directory_M, "ranges_G3": ranges_G3, "codes_E": codes_E, "firsts_E": firsts_E}
        return arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentLayout:
    """All levels of a trie. Cost: one pass over each level's bitmap, a few ns a leaf."""

    trie: Trie
    levels: tuple[LevelLayout, ...]

    @classmethod
    def of(cls, trie: Trie) -> SegmentLayout:
        """Lay out every level of the trie."""
        parents: Bitmap | None = Bitmap.from_positions(np.arange(min(1, trie.num_leaves)), trie.num_leaves)
        levels: list[LevelLayout] = []
        for level in trie.levels:
            levels.append(LevelLayout.of(level, parents, trie.num_leaves))
            parents = level.boundary
        return cls(trie=trie, levels=tuple(levels))

    @property
    def needs(self) -> SegmentCapacity:
        """Return the exact sizes."""
        return SegmentCapacity(self.trie.num_leaves, tuple(level.needs for level in self.levels))


def lay_out(
    index: Trie | Version, delta_leaves: int, known: tuple[SegmentLayout, ...], minimum: Capacity | None
) -> tuple[tuple[SegmentLayout, ...], Capacity]:
    """Return (layouts, capacity) of a version's segments; layouts of segments that are among `known` are reused.

    The capacity holds the segments and a delta of `delta_leaves`, and is at least `minimum`. If it has space for a delta that
    the version does not have, an empty delta is appended. Raises ArgumentError for more than 2^31 leaves.
    """
    version = Version.of(index)
    check_size(version)
    layouts_by_trie = {id(layout.trie): layout for layout in known}
    layouts = [layouts_by_trie.get(id(segment.trie)) or SegmentLayout.of(segment.trie) for segment in version.segments]
    capacity = Capacity.of([layout.needs for layout in layouts], delta_leaves, minimum)
    if len(layouts) < len(capacity.segments):
        sizes = version.codebook_sizes
        empty = next((layout for layout in known if layout.trie.num_leaves == 0), None)
        layouts.append(empty or SegmentLayout.of(Trie.build(np.empty((0, len(sizes)), np.int64), sizes)))
    return tuple(layouts), capacity


def window_words(bitmap: Bitmap, leaves: int) -> NDArray[np.uint32]:
    """Return the bitmap as uint32 words for `leaves` positions, with one more word that a read of a 32-bit window may touch."""
    words_W = np.zeros(leaves // 32 + 2, np.uint32)
    words = bitmap.words_W.view(np.dtype("<u4"))[: -(-bitmap.size // 32)]
    words_W[: len(words)] = words
    return words_W


def _ranks(level: Level, leaves_n: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return how many nodes of the level start before each leaf."""
    return leaves_n if level.boundary is None else level.boundary.ranks(leaves_n)


@njit(cache=True, nogil=True)
def _long_ranges(words_W, num_leaves, short, out_G2):
    """Write the ranges of more than `short` leaves; returns (their number, the length of the longest short range)."""
    count, longest = 0, 0
    lo = np.int64(0)
    while lo < num_leaves:
        hi = next_set(words_W, lo + 1, num_leaves)
        if hi - lo > short:
            out_G2[count, 0], out_G2[count, 1] = lo, hi
            count += 1
        elif hi - lo > longest:
            longest = hi - lo
        lo = hi
    return count, longest


@njit(cache=True, nogil=True)
def _child_starts(words_W, lo_G, hi_G, indptr_G1, out_E):
    """Write the first leaf of each child of each range, from the boundary bits."""
    for number in range(lo_G.size):
        leaf = lo_G[number]
        for entry in range(indptr_G1[number], indptr_G1[number + 1]):
            out_E[entry] = leaf
            leaf = next_set(words_W, leaf + 1, hi_G[number])
