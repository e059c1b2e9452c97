"""A catalog at one moment: segments that never change, and which of their items are alive.

Shapes: S segments, N items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, ForeignFilterError, ItemIdError
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.filters import Filter
from leafbeam.index.items import ItemIds
from leafbeam.index.trie import Trie

__all__ = ["Segment", "Version", "VersionFilter"]

MAX_SEGMENTS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """A trie and which of its items are alive; `live` None: all of them."""

    trie: Trie
    live: Filter | None = None

    def __post_init__(self) -> None:
        if self.live is not None:
            self.trie.own_filter(self.live)

    @property
    def num_items(self) -> int:
        """The items that are alive."""
        return self.trie.num_items if self.live is None else len(self.live)

    @property
    def everything(self) -> Filter:
        """All live items as a filter. Cost: one bitmap where nothing was deleted."""
        return self.trie.filter(np.ones(self.trie.num_items, np.bool_)) if self.live is None else self.live

    def is_live(self, rows_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows are alive; -1 is not."""
        if self.live is None:
            return rows_n >= 0
        alive = np.zeros(len(rows_n), np.bool_)
        known = np.flatnonzero(rows_n >= 0)
        alive[known] = self.live.places.has(self.trie.items.place_N[rows_n[known]])
        return alive


@dataclass(frozen=True, kw_only=True, eq=False)
class Version:
    """What may be decoded at one moment: a big *base* segment and, after changes, a small *delta* one (Lucene's shape).

    Think of it as a photograph of the catalog. Holding the object pins it: a search that runs on it sees one state from its
    first round to its last, whatever is inserted or deleted meanwhile; it is freed with its last reader. An item id is alive in
    one segment at most; a SID may stand in both, and is one child there. (DESIGN §1.5.)

    segments: one or two, of equal codebook sizes. number: counts the changes that made it.

    >>> version = Version.of(trie); version.num_items, len(version.filter(item_ids=["a"]))
    (3, 1)
    """

    segments: tuple[Segment, ...]
    number: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.segments) <= MAX_SEGMENTS:
            raise ArgumentError(f"a version has {len(self.segments)} segments: expected a base, or a base and a delta")
        sizes = {segment.trie.codebook_sizes for segment in self.segments}
        if len(sizes) > 1:
            raise ArgumentError(f"the segments of a version have different codebooks: {sorted(sizes)}")
        ends = {segment.trie.end_code for segment in self.segments}
        if len(ends) > 1:
            raise ArgumentError(f"the segments of a version end their sequences by different codes: {ends}")

    @classmethod
    def of(cls, index: Trie | Version) -> Version:
        """A trie as the version that it is by itself; a version as it is."""
        return index if isinstance(index, Version) else cls(segments=(Segment(trie=index),))

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        return self.segments[0].trie.codebook_sizes

    @property
    def num_levels(self) -> int:
        return self.segments[0].trie.num_levels

    @property
    def num_items(self) -> int:
        """Live items."""
        return sum(segment.num_items for segment in self.segments)

    @property
    def nbytes(self) -> int:
        """Bytes that a search reads: the levels and the live bitmaps."""
        return sum(one.trie.nbytes + (0 if one.live is None else one.live.nbytes) for one in self.segments)

    def num_nodes(self, level: int) -> int:
        """At most so many different prefixes of `level + 1` codes exist, dead ones included."""
        return sum(segment.trie.levels[level].num_nodes for segment in self.segments)

    def filter(self, *, item_ids: ItemIds) -> VersionFilter:
        """The live items of the given ids. Raises ItemIdError where one is unknown. Cost: a few searches an id."""
        segment_n, row_n = self._locate_all(item_ids)
        parts: list[Filter] = []
        for number, segment in enumerate(self.segments):
            items = segment.trie.items
            places = Bitmap.from_positions(items.place_N[row_n[segment_n == number]], items.num_items)
            parts.append(Filter.from_places(places, items, segment.trie.version))
        return VersionFilter(parts=tuple(parts), version=self)

    def filter_of(self, parts: Sequence[Filter | None]) -> VersionFilter:
        """One filter for each segment (None: all of it), less what is dead. Cost: one AND a segment."""
        if len(parts) != len(self.segments):
            raise ForeignFilterError(f"{len(parts)} filters for {len(self.segments)} segments: expected one for each")
        met: list[Filter] = []
        for segment, part in zip(self.segments, parts, strict=True):
            if part is not None:
                segment.trie.own_filter(part)
            met.append(segment.everything if part is None else part if segment.live is None else part & segment.live)
        return VersionFilter(parts=tuple(met), version=self)

    def own_parts(self, candidate: Filter | VersionFilter | None) -> tuple[Filter | None, ...]:
        """A request's filter as one filter for each segment (None: nothing is filtered), else ForeignFilterError.

        A plain Filter of the trie will do where the trie is all there is.
        """
        if candidate is None:
            return tuple(segment.live for segment in self.segments)
        if isinstance(candidate, VersionFilter):
            if candidate.version is self:
                return candidate.parts
            raise ForeignFilterError(
                f"this filter belongs to version {candidate.version.number} of {candidate.version.num_items:,} items, but the "
                f"search runs on version {self.number} with {self.num_items:,}: make it again with version.filter(...)"
            )
        if len(self.segments) > 1:
            raise ForeignFilterError(
                f"this filter covers one trie of {candidate.places.size:,} items, but the search runs on a base and a "
                f"delta: make it with version.filter(...) or version.filter_of(...)"
            )
        return self.filter_of([candidate]).parts

    def locate(self, item_ids: ItemIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(segment_n, row_n) of each live item, -1 and -1 where it is unknown. Cost: a binary search an id and segment."""
        segment_n = np.full(len(item_ids), -1, np.int64)
        row_n = np.full(len(item_ids), -1, np.int64)
        for number, segment in enumerate(self.segments):
            rows = segment.trie.find(item_ids)
            found = segment.is_live(rows)
            segment_n[found], row_n[found] = number, rows[found]
        return segment_n, row_n

    def knows(self, item_ids: ItemIds) -> NDArray[np.bool_]:
        """Which of the ids are live items."""
        return self.locate(item_ids)[0] >= 0

    def codes_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The SID of each item, (n, L); ItemIdError where an id is unknown."""
        return self.codes_at(*self._locate_all(item_ids))

    def codes_at(self, segment_n: NDArray[np.int64], row_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """The SID of each item that `locate` has found, (n, L)."""
        codes_nL = np.empty((len(segment_n), self.num_levels), np.int64)
        for number, segment in enumerate(self.segments):
            mine = segment_n == number
            codes_nL[mine] = segment.trie.codes_at(segment.trie.items.leaves_of(row_n[mine]))
        return codes_nL

    def __len__(self) -> int:
        return self.num_items

    def __contains__(self, codes: Sequence[int]) -> bool:
        for segment in self.segments:
            leaf = segment.trie.leaf_of(codes)
            if leaf >= 0 and (segment.live is None or leaf in segment.live.leaves):
                return True
        return False

    def _locate_all(self, item_ids: ItemIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        segment_n, row_n = self.locate(item_ids)
        unknown = np.flatnonzero(segment_n < 0)
        if unknown.size:
            first = list(item_ids)[unknown[0]]
            raise ItemIdError(
                f"{unknown.size:,} of {len(segment_n):,} item ids are unknown, {first!r} among them: version {self.number} has "
                f"{self.num_items:,} items"
            )
        return segment_n, row_n


@dataclass(frozen=True, kw_only=True, eq=False)
class VersionFilter:
    """A set of live items of one version: what `Filter` is to a trie, with one part for each segment.

    `&`, `|`, `-`, `~`, `len` and `in` mean what they mean for Python's sets; `~` is every other live item.
    """

    parts: tuple[Filter, ...]
    version: Version

    def item_ids(self) -> NDArray[np.generic]:
        """The ids of all allowed items, segment by segment."""
        return np.concatenate([part.item_ids() for part in self.parts if len(part)] or [np.empty(0, np.int64)])

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmaps."""
        return sum(part.nbytes for part in self.parts)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __bool__(self) -> bool:
        return any(self.parts)

    def __contains__(self, item_id: int | str) -> bool:
        return any(item_id in part for part in self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionFilter) and self.version is other.version and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __and__(self, other: VersionFilter) -> VersionFilter:
        return self._with(other, lambda mine, its: mine & its)

    def __or__(self, other: VersionFilter) -> VersionFilter:
        return self._with(other, lambda mine, its: mine | its)

    def __sub__(self, other: VersionFilter) -> VersionFilter:
        return self._with(other, lambda mine, its: mine - its)

    def __invert__(self) -> VersionFilter:
        parts = tuple(
            ~part if segment.live is None else segment.live - part
            for part, segment in zip(self.parts, self.version.segments, strict=True)
        )
        return VersionFilter(parts=parts, version=self.version)

    def _with(self, other: VersionFilter, join: Callable[[Filter, Filter], Filter]) -> VersionFilter:
        if self.version is not other.version:
            raise ForeignFilterError(
                f"the filters belong to versions {self.version.number} and {other.version.number}: make both with the same one"
            )
        parts = tuple(join(mine, its) for mine, its in zip(self.parts, other.parts, strict=True))
        return VersionFilter(parts=parts, version=self.version)
