"""Filters: which items a request may be shown.

Shapes: N items, M leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError
from leafbeam.index import bit_kernels as bits
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemIds, ItemTable

__all__ = ["Filter"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Filter:
    """A set of items of one index, exact at every level of the search.

    Think of it as a Python set of item ids that costs 1.5 bits an item: `&`, `|`, `-`, `~`, `len` and `in` mean the same.
    A node of the trie may be entered iff its leaf range holds a leaf of the filter; a leaf is alive while one of its items
    is allowed, and only the allowed ones are listed in results. (DESIGN §1.4.)

    places: which items, by their place in leaf order. index_version: the index that it belongs to.

    >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
    >>> fresh = index.filter([True, False]); len(fresh), "a" in fresh, len(~fresh & fresh)
    (1, True, 0)
    """

    places: Bitmap
    items: ItemTable
    index_version: str

    @classmethod
    def from_places(cls, places: Bitmap, items: ItemTable, index_version: str) -> Filter:
        """The filter of a set of places."""
        return cls(places=places, items=items, index_version=index_version)

    @cached_property
    def leaves(self) -> Bitmap:
        """Which leaves have one of the items. Made at first use; for shared leaves, one read of the bitmap and of them."""
        return self.places if self.items.first_M1 is None else self.places.groups(self.items.first_M1)

    @classmethod
    def from_mask(cls, mask: NDArray[np.generic] | list[bool], items: ItemTable, index_version: str) -> Filter:
        """The items whose entry of a boolean array, in the caller's item order, is true."""
        mask_N = np.asarray(mask)
        if mask_N.shape != (items.num_items,):
            raise FilterError(f"the mask has shape {mask_N.shape}: expected ({items.num_items:,},), one entry for each item")
        if mask_N.dtype != np.bool_:
            if mask_N.size:
                raise FilterError(
                    f"the mask has dtype {mask_N.dtype}: expected bool; for a list of ids use filter(item_ids=...)"
                )
            mask_N = mask_N.astype(np.bool_)
        words_W = np.empty(mask_N.size // 64 + 1, np.uint64)
        bits.pack_bits_ordered(np.ascontiguousarray(mask_N), items.order_N, words_W)
        return cls.from_places(Bitmap.from_words(words_W, mask_N.size), items, index_version)

    @classmethod
    def from_item_ids(cls, item_ids: ItemIds, items: ItemTable, index_version: str) -> Filter:
        """The items with the given ids; an id may stand twice. Raises ItemIdError where one is unknown."""
        places = items.place_N[items.known_rows_of(item_ids)]
        return cls.from_places(Bitmap.from_positions(places, items.num_items), items, index_version)

    def without(self, places_n: NDArray[np.integer]) -> Filter:
        """The filter less some places. Cost: one copy of the bitmaps; leaves are looked at only where a place was cleared."""
        less = self._with(self.places.without(places_n))
        first_M1 = self.items.first_M1
        if first_M1 is not None and "leaves" in self.__dict__:
            touched = np.unique(np.searchsorted(first_M1, places_n.astype(first_M1.dtype), side="right") - 1)
            emptied = _ranks(less.places, first_M1[touched]) == _ranks(less.places, first_M1[touched + 1])
            less.__dict__["leaves"] = self.leaves.without(touched[emptied])
        return less

    def item_ids(self) -> NDArray[np.generic]:
        """The ids of all allowed items, in leaf order."""
        return self.items.ids_of(self.items.order_N[self.places.positions()])

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmaps."""
        return self.places.nbytes + (0 if self.leaves is self.places else self.leaves.nbytes)

    def __len__(self) -> int:
        return self.places.count

    def __bool__(self) -> bool:
        return self.places.count > 0

    def __contains__(self, item_id: int | str) -> bool:
        rows = self.items.rows_of([item_id])  # type: ignore[list-item]
        return bool(rows[0] >= 0) and int(self.items.place_N[rows[0]]) in self.places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.index_version == other.index_version and self.places == other.places

    def __hash__(self) -> int:
        return hash((self.index_version, self.places))

    def __and__(self, other: Filter) -> Filter:
        return self._with(self.places & self._same_index(other).places)

    def __or__(self, other: Filter) -> Filter:
        return self._with(self.places | self._same_index(other).places)

    def __sub__(self, other: Filter) -> Filter:
        return self._with(self.places - self._same_index(other).places)

    def __invert__(self) -> Filter:
        return self._with(~self.places)

    def _with(self, places: Bitmap) -> Filter:
        return Filter.from_places(places, self.items, self.index_version)

    def _same_index(self, other: Filter) -> Filter:
        if self.index_version != other.index_version:
            raise ForeignFilterError(
                f"the filters belong to two indexes: {self.index_version} with {self.places.size:,} items and "
                f"{other.index_version} with {other.places.size:,}; make both with the same index.filter(...)"
            )
        return other


def _ranks(bitmap: Bitmap, positions: NDArray[np.uint32]) -> NDArray[np.int64]:
    """`bitmap.rank` of many positions at once."""
    out = np.empty(len(positions), np.int64)
    bits.rank_many(bitmap.words_W, bitmap.before_W, positions, out)
    return out
