"""How much space an index has on a device: sizes that a compiled search is made for, rounded up so that it is made seldom.

A compiled step knows sizes and no contents. Every size here is a power of two, so that another version of a catalog, a new
filter or a compaction finds the same step again, until something has doubled.

Shapes: M leaves, V codes of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leafbeam.errors import ArgumentError
from leafbeam.index import Version

__all__ = ["MAX_LEAVES", "SHORT", "Capacity", "LevelCapacity", "SegmentCapacity", "bucket", "check_size", "narrow_limit"]

SHORT = 32  # the leaves of a short range: its boundaries and its filter fit into one 32-bit window
MAX_LEAVES = 2**31 - 1 - 2 * SHORT  # devices count leaves in int32
MAX_CODES = 2**24


def bucket(number: int, least: int = 1) -> int:
    """The smallest power of two that holds `number`, and at least `least`; 0 for 0."""
    return 0 if number == 0 else max(least, 1 << (number - 1).bit_length())


def narrow_limit(size: int) -> int:
    """The most children that are enumerated one by one; beyond, a range has a mask of V bits (at most 4 bytes a child)."""
    return max(64, 1 << (size // 32).bit_length() - 1) if size >= 32 else 64


@dataclass(frozen=True, kw_only=True)
class LevelCapacity:
    """The sizes of one level of one segment; 0 where the level has nothing of the kind.

    size: V. short: the leaves of the longest short range (at most SHORT). ranges: the long ranges, which are listed.
    entries: their children. width: the most children of a listed range that has no mask. wide: the ranges with a mask.
    """

    size: int
    short: int = 0
    ranges: int = 0
    entries: int = 0
    width: int = 0
    wide: int = 0

    @property
    def words(self) -> int:
        """The 32-bit words of a mask over the codes."""
        return -(-self.size // 32)

    @property
    def lanes(self) -> int:
        """How many children of a range that has no mask are looked at."""
        return max(self.short, self.width)

    def rounded(self) -> LevelCapacity:
        """The same, rounded up. Short ranges have 8 lanes, or as many as there can be."""
        return LevelCapacity(
            size=self.size,
            short=0 if self.ranges and not self.short else 8 if self.short <= 4 else SHORT,
            ranges=bucket(self.ranges, 16),
            entries=bucket(self.entries, 256),
            width=bucket(self.width, 16),
            wide=bucket(self.wide, 4),
        )

    def union(self, other: LevelCapacity) -> LevelCapacity:
        """Space for both."""
        assert self.size == other.size
        return LevelCapacity(
            size=self.size,
            short=max(self.short, other.short),
            ranges=max(self.ranges, other.ranges),
            entries=max(self.entries, other.entries),
            width=max(self.width, other.width),
            wide=max(self.wide, other.wide),
        )

    def of_delta(self, leaves: int) -> LevelCapacity:
        """What a delta of so many leaves can need where the base is like this: the same kinds of ranges, as many as fit."""
        limit = narrow_limit(self.size)
        return LevelCapacity(
            size=self.size,
            short=self.short or SHORT,
            ranges=min(self.ranges, bucket(leaves // (SHORT + 1))),
            entries=min(self.entries, leaves) if self.ranges else 0,
            width=min(limit if self.wide else self.width, bucket(leaves)),
            wide=min(self.wide, bucket(leaves // (limit + 1))),
        )


@dataclass(frozen=True, kw_only=True)
class SegmentCapacity:
    """The sizes of one segment. leaves: a multiple of 32."""

    leaves: int
    levels: tuple[LevelCapacity, ...]

    def rounded(self) -> SegmentCapacity:
        return SegmentCapacity(leaves=bucket(max(1, self.leaves), 1024), levels=tuple(level.rounded() for level in self.levels))

    def union(self, other: SegmentCapacity) -> SegmentCapacity:
        """Space for both."""
        levels = tuple(mine.union(its) for mine, its in zip(self.levels, other.levels, strict=True))
        return SegmentCapacity(leaves=max(self.leaves, other.leaves), levels=levels)

    def of_delta(self, leaves: int) -> SegmentCapacity:
        """Space for a delta of this base."""
        leaves = bucket(leaves, 1024)
        return SegmentCapacity(leaves=leaves, levels=tuple(level.of_delta(leaves) for level in self.levels))


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The sizes of all segments of a version."""

    segments: tuple[SegmentCapacity, ...]

    @classmethod
    def of(cls, needs: Sequence[SegmentCapacity], delta_leaves: int = 0, like: Capacity | None = None) -> Capacity:
        """Space for segments of these exact sizes, for a delta of `delta_leaves`, and never less than `like` has."""
        capacities = [need.rounded() for need in needs]
        kept = () if like is None else like.segments
        if len(capacities) == 2 or delta_leaves or len(kept) == 2:
            spare = capacities[0].of_delta(max(delta_leaves, needs[-1].leaves if len(needs) == 2 else 1))
            capacities = [capacities[0], spare if len(capacities) == 1 else spare.union(capacities[1])]
        capacities = [capacity.union(kept[s]) if s < len(kept) else capacity for s, capacity in enumerate(capacities)]
        return cls(segments=tuple(capacities))


def check_size(version: Version) -> None:
    """Raise ArgumentError where a segment has more leaves, or a level more codes, than a device can count."""
    if max(version.codebook_sizes) > MAX_CODES:
        raise ArgumentError(
            f"a level has {max(version.codebook_sizes):,} codes: this backend takes {MAX_CODES:,} at most; use backend='cpu'"
        )
    for segment in version.segments:
        if segment.trie.num_leaves > MAX_LEAVES:
            raise ArgumentError(
                f"a segment has {segment.trie.num_leaves:,} leaves: this backend counts them in 32 bits, {MAX_LEAVES:,} at "
                f"most; use backend='cpu', or split the catalog"
            )
