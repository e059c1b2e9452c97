"""A catalog at one moment: immutable segments and their live items. Shapes: N items, n items of one call, L levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, ForeignFilterError, counted, short_repr
from leafbeam.html_table import html_table
from leafbeam.index.filters import Filter, ItemSet, check_filter
from leafbeam.index.items import ItemIds, as_id_array, check_known
from leafbeam.index.trie import Trie

MAX_SEGMENTS = 2


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Segment:
    """A trie, and the set of its items that are alive; if `live` is None, all of them are."""

    trie: Trie
    live: Filter | None = None

    def __post_init__(self) -> None:
        if self.live is not None:
            check_filter(self.trie, self.live)

    @property
    def live_items(self) -> ItemSet:
        """Return the live items."""
        return (self.trie.all_items if self.live is None else self.live).parts[0]

    def live_part(self, item_filter: Filter) -> ItemSet:
        """Return the live items that a filter of the trie allows."""
        check_filter(self.trie, item_filter)
        return (item_filter if self.live is None else item_filter & self.live).parts[0]

    @property
    def num_items(self) -> int:
        """Return the number of live items."""
        return self.trie.num_items if self.live is None else len(self.live)

    def is_live(self, rows_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these rows are alive; the row -1 is not."""
        alive = rows_n >= 0
        if self.live is not None:
            alive[alive] = self.live.ordinals.has(self.trie.items.ordinal_N[rows_n[alive]])
        return alive

    def __repr__(self) -> str:
        return f"Segment({self.num_items:,} live of {counted(self.trie.num_items, 'item')}, {self.trie.version})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Version:
    """An immutable snapshot of an index: a large *base* segment and, after changes, a small *delta* segment.

    A search on a version sees one state from its first level to its last, whatever changes meanwhile. An item id is alive in
    at most one segment; a SID may be in both, and is still a single child in a search.

    Args:
        segments: The base, and the delta if there is one.
        number: The number of changes that led to the version.

    Examples:
        >>> version = Version.of(trie); version.num_items, len(version.filter(item_ids=["a"]))
        (3, 1)
    """

    segments: tuple[Segment, ...]
    number: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.segments) <= MAX_SEGMENTS:
            raise ArgumentError(
                f"a version has {counted(len(self.segments), 'segment')}: expected a base, or a base and a delta"
            )
        kinds = {(segment.trie.codebook_sizes, segment.trie.end_code) for segment in self.segments}
        if len(kinds) > 1:
            raise ArgumentError(f"the segments of a version have different codebooks or end codes: {kinds}")

    @classmethod
    def of(cls, index: "Trie | Version") -> "Version":
        """Return a trie as a version of one segment; a version is returned as it is.

        Raises:
            ArgumentError: If `index` is neither of the two.
        """
        if not isinstance(index, Trie | Version):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"index is of the type {type(index).__name__}: expected a Trie, or the version() of a live index or a catalog; "
                "make a Trie of codes with Trie.build(codes, codebook_sizes)"
            )
        return index if isinstance(index, Version) else cls(segments=(Segment(trie=index),))

    @property
    def name(self) -> str:
        """Return the fingerprint of the base and, after changes, their number: `3f2a...+17`."""
        base = self.segments[0].trie.version
        return f"{base}+{self.number}" if self.number else base

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        return self.segments[0].trie.codebook_sizes

    def has_tries_of(self, other: "Version") -> bool:
        """Return whether both versions consist of the same tries, so that only their live items can differ."""
        pairs = zip(self.segments, other.segments, strict=False)
        return len(self.segments) == len(other.segments) and all(left.trie is right.trie for left, right in pairs)

    @property
    def num_levels(self) -> int:
        return self.segments[0].trie.num_levels

    @property
    def num_items(self) -> int:
        """Return the number of live items."""
        return sum(segment.num_items for segment in self.segments)

    @property
    def nbytes(self) -> int:
        """Return the bytes that a search reads: those of the levels and of the live bitmaps."""
        return sum(segment.trie.nbytes + (0 if segment.live is None else segment.live.nbytes) for segment in self.segments)

    def num_nodes(self, level: int) -> int:
        """Return an upper bound of the number of distinct prefixes of `level + 1` codes; prefixes of deleted items count."""
        return sum(segment.trie.levels[level].num_nodes for segment in self.segments)

    @property
    def all_items(self) -> Filter:
        """Return the filter of all live items."""
        return Filter(parts=tuple(segment.live_items for segment in self.segments), index=self)

    @property
    def identity(self) -> object:
        """Return the version itself, or the trie's identity if the version is one trie without deleted items."""
        segment = self.segments[0]
        return segment.trie.identity if len(self.segments) == 1 and segment.live is None else self

    def filter(self, *, item_ids: ItemIds) -> Filter:
        """Return the live items with these ids. This costs a few searches per id.

        Raises:
            ItemIdError: If an id is unknown.
        """
        segment_n, row_n = self._locate_all(item_ids)
        rows_S = [row_n[segment_n == number] for number in range(len(self.segments))]
        filters = [segment.trie.filter_of_rows(rows) for segment, rows in zip(self.segments, rows_S, strict=True)]
        return Filter(parts=tuple(rows_filter.parts[0] for rows_filter in filters), index=self)

    def filter_of(self, parts: Sequence[Filter]) -> Filter:
        """Return the live items that the filters of the segments' tries allow.

        This costs one AND for each segment with deleted items.
        """
        if len(parts) != len(self.segments):
            raise ForeignFilterError(
                f"{counted(len(parts), 'filter')} for {counted(len(self.segments), 'segment')}: expected one for each"
            )
        return Filter(parts=tuple(map(Segment.live_part, self.segments, parts)), index=self)

    def request_filter(self, item_filter: Filter | None) -> Filter:
        """Return the live items that the filter of a request allows; None allows all.

        Raises:
            ForeignFilterError: If the filter was made for another index.
        """
        if item_filter is None:
            return self.all_items
        if len(self.segments) == len(item_filter.parts) == 1 and item_filter.index.identity == self.segments[0].trie.identity:
            return self.filter_of([item_filter])
        check_filter(self, item_filter)
        return item_filter

    def locate(self, item_ids: ItemIds, *, deleted: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the segment and the row of each live item, -1 and -1 for an unknown id.

        This costs a binary search for each id and segment.

        Args:
            item_ids: The ids.
            deleted: If true, deleted items are found too, as long as a segment still holds them: until a compaction at the
                latest.
        """
        segment_n = np.full(len(item_ids), -1, np.int64)
        row_n = np.full(len(item_ids), -1, np.int64)
        for number, segment in enumerate(self.segments):
            rows = segment.trie.find(item_ids)
            live = segment.is_live(rows)
            taken = live | ((rows >= 0) & (segment_n < 0)) if deleted else live
            segment_n[taken], row_n[taken] = number, rows[taken]
        return segment_n, row_n

    @property
    def id_kind(self) -> str | None:
        """Return the kind of the ids' dtype, "i" or "S"; None while there are no items."""
        return next((segment.trie.items.kind for segment in self.segments if segment.trie.num_items), None)

    def knows(self, item_ids: ItemIds) -> NDArray[np.bool_]:
        """Return for each id whether it is a live item."""
        return self.locate(item_ids)[0] >= 0

    def deny_ids(self, item_ids: ItemIds) -> NDArray[np.generic]:
        """Return the ids of a deny list as an array. Unknown ids may stay in it.

        Raises:
            ItemIdError: If an id is of the wrong kind.
        """
        ids_n = as_id_array(item_ids)
        for segment in self.segments:
            segment.trie.items.check_kind("deny", ids_n)
        return ids_n

    def codes_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """Return the SID of each item, shape (n, L).

        Raises:
            ItemIdError: If an id is unknown.
        """
        return self.codes_at(*self._locate_all(item_ids))

    def codes_at(self, segment_n: NDArray[np.int64], row_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the SID of each item that `locate` has found, shape (n, L)."""
        codes_nL = np.empty((len(segment_n), self.num_levels), np.int64)
        for number, segment in enumerate(self.segments):
            own = segment_n == number
            codes_nL[own] = segment.trie.codes_at(segment.trie.items.leaves_of(row_n[own]))
        return codes_nL

    def children(self, prefix: Sequence[int]) -> NDArray[np.int64]:
        """Return the codes that follow a prefix in the SIDs of live items, ascending. This reads the range of the prefix.

        Args:
            prefix: Fewer than L codes.

        Raises:
            ArgumentError: If the prefix has L codes or more, or one that is not an integer.
        """
        if len(prefix) >= self.num_levels:
            raise ArgumentError(
                f"the prefix has {counted(len(prefix), 'code')}, and a SID of this index has {self.num_levels}: "
                "expected fewer, since no "
                "code follows the last; use `codes in version` to ask whether an item has a whole SID"
            )
        if not all(isinstance(code, int | np.integer) for code in prefix):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"the prefix {short_repr(prefix)} has to consist of integers, the codes of the first levels")
        parts: list[NDArray[np.int64]] = []
        for segment in self.segments:
            trie, lo, hi = segment.trie, 0, segment.trie.num_leaves
            for level, code in zip(trie.levels, prefix, strict=False):
                lo, hi = level.find(lo, hi, int(code))
                if lo == hi:
                    break
            leaves_n = np.arange(lo, hi)
            leaves_n = leaves_n[segment.live_items.has_leaves(leaves_n)]
            if len(leaves_n):
                parts.append(trie.levels[len(prefix)].codes_at(leaves_n).astype(np.int64))
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.num_items

    def __contains__(self, codes: Sequence[int]) -> bool:
        for segment in self.segments:
            leaf = segment.trie.leaf_of(codes)
            if leaf >= 0 and segment.live_items.has_leaves(np.array([leaf])).all():
                return True
        return False

    def __repr__(self) -> str:
        return f"Version({self.number}: {counted(self.num_items, 'live item')} in {counted(len(self.segments), 'segment')})"

    def _repr_html_(self) -> str:
        rows = [
            (name, segment.num_items, segment.trie.num_items, segment.trie.version)
            for name, segment in zip(("base", "delta"), self.segments, strict=False)
        ]
        caption = f"Version {self.name}: {counted(self.num_items, 'live item')}"
        return html_table(caption, ["segment", "live items", "of items", "index"], rows)

    def _locate_all(self, item_ids: ItemIds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        segment_n, row_n = self.locate(item_ids)
        check_known(item_ids, row_n, f"version {self.number} has {counted(self.num_items, 'item')}")
        return segment_n, row_n
