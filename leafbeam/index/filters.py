"""Filters: sets of items that a request may be shown. Shapes: N items, M leaves, n of one call, D denied ones."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError, counted, short_repr
from leafbeam.html_table import html_table
from leafbeam.index import bit_kernels as bits
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemIds, ItemTable


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemSet:
    """A set of items of one trie, stored as a bitmap less a few denied items.

    A search needs no bitmap without the denied items: a range of leaves is alive if more of its leaves are in the bitmap than
    are denied.

    Args:
        items: The item table of the trie.
        bitmap: The items by their ordinals in leaf order; None for all items.
        denied_ordinals: Ascending ordinals of the bitmap that are not in the set.
    """

    items: ItemTable
    bitmap: Bitmap | None = None
    denied_ordinals: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def ordinals(self) -> Bitmap:
        """Return the set as one bitmap."""
        bitmap = Bitmap.full(self.items.num_items) if self.bitmap is None else self.bitmap
        return bitmap.without(self.denied_ordinals) if len(self.denied_ordinals) else bitmap

    @cached_property
    def leaves(self) -> Bitmap | None:
        """Return the leaves that have an item of the bitmap; None for all. If items share leaves, this costs one pass."""
        indptr = self.items.leaf_indptr
        return self.bitmap if self.bitmap is None or indptr is None else self.bitmap.any_by_group(indptr)

    @cached_property
    def denied_D(self) -> NDArray[np.int64]:
        """Return the leaves all of whose items in the bitmap are denied, ascending."""
        indptr, denied = self.items.leaf_indptr, self.denied_ordinals
        if indptr is None or not len(denied):
            return denied
        leaves_n = np.searchsorted(indptr, denied.astype(indptr.dtype), side="right") - 1
        leaves, counts = np.unique(leaves_n, return_counts=True)
        begin_n, end_n = indptr[leaves].astype(np.int64), indptr[leaves + 1].astype(np.int64)
        items_n = end_n - begin_n if self.bitmap is None else self.bitmap.ranks(end_n) - self.bitmap.ranks(begin_n)
        return leaves[counts == items_n].astype(np.int64)

    def deny(self, item_ids: ItemIds) -> "ItemSet":
        """Return the set without some items; unknown ids are ignored. This costs a few searches for each id."""
        rows = self.items.rows_of(item_ids)
        return self.deny_rows(rows[rows >= 0])

    def deny_rows(self, row_n: NDArray[np.int64]) -> "ItemSet":
        """Return the set without the items at some rows of the table."""
        ordinals = np.unique(self.items.ordinal_N[row_n].astype(np.int64))
        if self.bitmap is not None:
            ordinals = ordinals[self.bitmap.has(ordinals)]
        if not len(ordinals):
            return self
        less = replace(self, denied_ordinals=np.union1d(self.denied_ordinals, ordinals))
        less.__dict__["leaves"] = self.leaves
        return less

    def without(self, ordinals_n: NDArray[np.integer]) -> "ItemSet":
        """Return the set without the items of some ordinals, as a bitmap.

        This copies the bitmaps and checks only the leaves of the removed items.
        """
        less = replace(self, bitmap=self.ordinals.without(ordinals_n), denied_ordinals=self.denied_ordinals[:0])
        indptr, leaves = self.items.leaf_indptr, self.__dict__.get("leaves")
        if indptr is not None and leaves is not None and not len(self.denied_ordinals):
            touched = np.unique(np.searchsorted(indptr, ordinals_n.astype(indptr.dtype), side="right") - 1)
            emptied = less.ordinals.ranks(indptr[touched]) == less.ordinals.ranks(indptr[touched + 1])
            less.__dict__["leaves"] = leaves.without(touched[emptied])
        return less

    def has(self, ordinals_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these ordinals are in the set."""
        has_n = np.ones(len(ordinals_n), np.bool_) if self.bitmap is None else self.bitmap.has(ordinals_n)
        return has_n & ~np.isin(ordinals_n, self.denied_ordinals) if len(self.denied_ordinals) else has_n

    def has_leaves(self, leaves_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these leaves have an item of the set."""
        has_n = np.ones(len(leaves_n), np.bool_) if self.leaves is None else self.leaves.has(leaves_n)
        return has_n & ~np.isin(leaves_n, self.denied_D) if len(self.denied_D) else has_n

    def item_ids(self) -> NDArray[np.generic]:
        """Return the ids of the items, in leaf order."""
        return self.items.ids_of(self.items.order_N[self.ordinals.positions()])

    def leaf_positions(self) -> NDArray[np.int64]:
        """Return the leaves of the set, ascending."""
        leaves_M = np.arange(self.items.num_leaves) if self.leaves is None else self.leaves.positions()
        return np.setdiff1d(leaves_M, self.denied_D, assume_unique=True) if len(self.denied_D) else leaves_M

    def num_reachable(self) -> int:
        """Return the number of leaves that a search may reach."""
        return (self.items.num_leaves if self.leaves is None else self.leaves.count) - len(self.denied_D)

    def num_leaves(self, lo_n: NDArray[np.int64], hi_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many leaves of each range are in `leaves`; denied ones count. This costs two ranks for each range."""
        return hi_n - lo_n if self.leaves is None else self.leaves.ranks(hi_n) - self.leaves.ranks(lo_n)

    def sole_leaves(self, lo_n: NDArray[np.int64], hi_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the one leaf of each range in `leaves`, -1 where there are several or none.

        A range whose other leaves are denied one by one counts as several. This costs two ranks for each range.
        """
        if self.leaves is None:
            return np.where(hi_n - lo_n == 1, lo_n, -1)
        sole_n, words_W = self.num_leaves(lo_n, hi_n) == 1, self.leaves.words_W
        leaves = [bits.next_set(words_W, lo, hi) if sole else -1 for lo, hi, sole in zip(lo_n, hi_n, sole_n, strict=True)]
        return np.array(leaves, np.int64)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the bitmaps."""
        bitmaps = {id(bitmap): bitmap.nbytes for bitmap in (self.bitmap, self.leaves) if bitmap is not None}
        return sum(bitmaps.values()) + self.denied_ordinals.nbytes

    def __len__(self) -> int:
        count = self.items.num_items if self.bitmap is None else self.bitmap.count
        return count - len(self.denied_ordinals)

    def __contains__(self, item_id: int | str) -> bool:
        row = int(self.items.rows_of([item_id])[0])  # type: ignore[list-item]
        return row >= 0 and bool(self.has(self.items.ordinal_N[[row]].astype(np.int64))[0])


class FilteredIndex(Protocol):
    """The part of an index, a `Trie` or a `Version`, that its filters use."""

    @property
    def identity(self) -> object:
        """Return a value that is equal for indexes whose filters can be combined."""
        ...

    @property
    def all_items(self) -> "Filter":
        """Return the filter of all live items."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Filter:
    """A set of items of one index, which a search applies exactly at every level.

    `Trie.filter`, `Version.filter` and the rules of a catalog make filters. `&`, `|`, `-`, `~`, `len` and `in` work as for a
    Python set of item ids; `~` is all other live items. A filter takes 1.5 bits for each item of the index. A node of the trie
    is legal if a leaf of the filter is in its range; a leaf stays while one of its items is allowed, and results list only
    allowed items.

    Args:
        parts: The items of each segment of the index: one for a trie, one or two for a version of a live index.
        index: The index to which the filter belongs.

    Examples:
        >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
        >>> fresh = index.filter([True, False]); len(fresh), "a" in fresh, len(~fresh & fresh)
        (1, True, 0)
    """

    parts: tuple[ItemSet, ...]
    index: FilteredIndex

    def deny(self, item_ids: ItemIds) -> "Filter":
        """Return the filter without some items, which are kept as a short list beside the same bitmaps.

        This costs a few searches for each id.

        Args:
            item_ids: The ids to exclude; unknown ids are ignored.
        """
        return replace(self, parts=tuple(part.deny(item_ids) for part in self.parts))

    def deny_located(self, segment_n: NDArray[np.int64], row_n: NDArray[np.int64]) -> "Filter":
        """Return the filter without some items that `Version.locate` has found."""
        if not len(row_n):
            return self
        return replace(self, parts=tuple(part.deny_rows(row_n[segment_n == s]) for s, part in enumerate(self.parts)))

    @property
    def ordinals(self) -> Bitmap:
        """Return the items of a filter of one segment, by their ordinals in leaf order."""
        (part,) = self.parts
        return part.ordinals

    def item_ids(self) -> NDArray[np.generic]:
        """Return the ids of all allowed items in leaf order, segment by segment."""
        return np.concatenate([part.item_ids() for part in self.parts if len(part)] or [np.empty(0, np.int64)])

    @property
    def nbytes(self) -> int:
        """Return the bytes of the bitmaps."""
        return sum(part.nbytes for part in self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, item_id: int | str) -> bool:
        return any(item_id in part for part in self.parts)

    def __bool__(self) -> NoReturn:
        # `a and b` would be `b` alone.
        raise FilterError(
            "a filter is neither true nor false: combine filters with & | - ~; len(f) > 0 says whether f has items"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.index.identity == other.index.identity and self._bitmaps == other._bitmaps

    def __hash__(self) -> int:
        return hash((self.index.identity, *self._bitmaps))

    def __and__(self, other: "Filter") -> "Filter":
        return self._combined(other, operator.and_)

    def __or__(self, other: "Filter") -> "Filter":
        return self._combined(other, operator.or_)

    def __sub__(self, other: "Filter") -> "Filter":
        return self._combined(other, operator.sub)

    def __invert__(self) -> "Filter":
        return self.index.all_items - self

    def __repr__(self) -> str:
        return f"Filter({len(self):,} of {counted(len(self.index.all_items), 'item')})"

    def _repr_html_(self) -> str:
        num_items = len(self.index.all_items)
        rows = [(len(self), num_items, f"{len(self) / max(1, num_items):.2%}")]
        return html_table(f"Filter of {self.index!r}", ["items allowed", "of items", "share"], rows)

    @property
    def _bitmaps(self) -> list[Bitmap]:
        return [part.ordinals for part in self.parts]

    def _combined(self, other: object, combine: Callable[[Bitmap, Bitmap], Bitmap]) -> "Filter":
        """Return the items for which an operator of bitmaps holds."""
        if not isinstance(other, Filter):
            raise FilterError(f"an operand is {short_repr(other)}: expected a Filter too; make both in the same way")
        if self.index.identity != other.index.identity:
            raise ForeignFilterError(
                f"the filters belong to two indexes: {self.index!r} and {other.index!r}; make both with the same "
                "index.filter(...)"
            )
        pairs = zip(self.parts, other.parts, strict=True)
        parts = (ItemSet(items=left.items, bitmap=combine(left.ordinals, right.ordinals)) for left, right in pairs)
        return replace(self, parts=tuple(parts))


def check_filter(index: FilteredIndex, item_filter: Filter) -> None:
    """Check that a filter belongs to an index; raise ForeignFilterError if it was made for another one."""
    if item_filter.index.identity != index.identity:
        raise ForeignFilterError(
            f"this filter belongs to {item_filter.index!r}, but the search runs on {index!r}: make it "
            "again with the filter(...) of that index"
        )
