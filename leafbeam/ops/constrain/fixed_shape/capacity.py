"""Array sizes of an index on a device, rounded up to powers of two to avoid recompilation.

A compiled step depends on sizes, not on contents: another version, filter or compaction runs the same code until a size
doubles.

Shapes: V codes of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Version

SHORT = 32  # leaves of a short range: its boundary bits and its filter bits fit into one 32-bit window
MAX_LEAVES = 2**31 - 1 - 2 * SHORT  # leaf numbers are int32
MAX_CODES = 2**24


def bucket(number: int, minimum: int = 1) -> int:
    """Return the smallest power of two that is at least `number` and `minimum`; 0 if `number` is 0."""
    return 0 if number == 0 else max(minimum, 1 << (number - 1).bit_length())


def narrow_limit(size: int) -> int:
    """Return the largest number of children that a range lists without a mask of V bits; a mask then costs at most 4 bytes a
    child.
    """
    return max(64, 1 << (size // 32).bit_length() - 1) if size >= 32 else 64


@dataclass(frozen=True)
class LevelCapacity:
    """Array sizes of one level of one segment; 0 where the level has no such range.

    Args:
        size: The number of codes, V.
        short: The leaves of the longest short range, at most SHORT.
        ranges: The number of long ranges, which are listed.
        entries: The number of their children.
        width: The largest number of children of a listed range without a mask.
        wide: The number of ranges with a mask.
    """

    size: int
    short: int = 0
    ranges: int = 0
    entries: int = 0
    width: int = 0
    wide: int = 0

    @property
    def words(self) -> int:
        """Return the 32-bit words of a mask over the codes."""
        return -(-self.size // 32)

    @property
    def lanes(self) -> int:
        """Return the candidates of a row outside of masks."""
        return max(self.short, self.width)

    def rounded(self) -> LevelCapacity:
        """Return each size rounded up to a power of two. Short ranges have 8 or 32 lanes."""
        short = 0 if self.ranges and not self.short else 8 if self.short <= 4 else SHORT
        ranges, entries, width = bucket(self.ranges, 16), bucket(self.entries, 256), bucket(self.width, 16)
        return LevelCapacity(self.size, short, ranges, entries, width, bucket(self.wide, 4))

    def of_delta(self, leaves: int) -> LevelCapacity:
        """Return the sizes of a delta with so many leaves over a base of this capacity: the same kinds of ranges, as many as
        fit.
        """
        limit = narrow_limit(self.size)
        return LevelCapacity(
            size=self.size,
            short=self.short or SHORT,
            ranges=min(self.ranges, bucket(leaves // (SHORT + 1))),
            entries=min(self.entries, leaves) if self.ranges else 0,
            width=min(limit if self.wide else self.width, bucket(leaves)),
            wide=min(self.wide, bucket(leaves // (limit + 1))),
        )


@dataclass(frozen=True)
class SegmentCapacity:
    """Array sizes of one segment.

    Args:
        leaves: The number of leaves, a multiple of 32.
    """

    leaves: int
    levels: tuple[LevelCapacity, ...]

    def rounded(self) -> SegmentCapacity:
        """Return each size rounded up to a power of two."""
        return SegmentCapacity(bucket(max(1, self.leaves), 1024), tuple(level.rounded() for level in self.levels))

    def union(self, other: SegmentCapacity) -> SegmentCapacity:
        """Return the larger of each size."""
        levels = (LevelCapacity(*map(max, *map(astuple, pair))) for pair in zip(self.levels, other.levels, strict=True))
        return SegmentCapacity(max(self.leaves, other.leaves), tuple(levels))

    def of_delta(self, leaves: int) -> SegmentCapacity:
        """Return the sizes of a delta with so many leaves over a base of this capacity."""
        leaves = bucket(leaves, 1024)
        return SegmentCapacity(leaves, tuple(level.of_delta(leaves) for level in self.levels))


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Array sizes of all segments of a version."""

    segments: tuple[SegmentCapacity, ...]

    @classmethod
    def of(cls, needs: Sequence[SegmentCapacity], delta_leaves: int = 0, like: Capacity | None = None) -> Capacity:
        """Return sizes for segments that need exactly `needs` and for a delta of `delta_leaves`, none of them smaller than in
        `like`.
        """
        segments = [need.rounded() for need in needs]
        old = () if like is None else like.segments
        if len(segments) == 2 or delta_leaves or len(old) == 2:
            delta = segments[0].of_delta(max(delta_leaves, needs[-1].leaves if len(needs) == 2 else 1))
            segments = [segments[0], delta if len(segments) == 1 else delta.union(segments[1])]
        segments = [segment.union(old[s]) if s < len(old) else segment for s, segment in enumerate(segments)]
        return cls(segments=tuple(segments))


def check_size(version: Version) -> None:
    """Raise ArgumentError for a segment with more leaves, or a level with more codes, than the device arrays can number."""
    if max(version.codebook_sizes) > MAX_CODES:
        raise ArgumentError(
            f"a level has {counted(max(version.codebook_sizes), 'code')}: this backend takes at most {MAX_CODES:,}; "
            "use backend='cpu'"
        )
    for segment in version.segments:
        if segment.trie.num_leaves > MAX_LEAVES:
            raise ArgumentError(
                f"a segment has {counted(segment.trie.num_leaves, 'leaf', 'leaves')}: "
                "this backend numbers them in 32 bits, at most "
                f"{MAX_LEAVES:,}; use backend='cpu', or split the catalog"
            )
