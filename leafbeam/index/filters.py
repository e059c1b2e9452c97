"""Filters: sets of items that a request may be shown.

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Filter:
    """A set of items of one index, applied exactly at every level of the search; made by `Trie.filter`.

    `&`, `|`, `-`, `~`, `len` and `in` work as for a Python set of item ids. Memory: 1.5 bits for each item of the index.
    A node of the trie is legal iff its leaf range holds a leaf of the filter; a leaf stays while one of its items is allowed,
    and results list only allowed items.

    ordinals: the items, by their ordinals in leaf order. index_version: the version of the index that it belongs to.

    >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
    >>> fresh = index.filter([True, False]); len(fresh), "a" in fresh, len(~fresh & fresh)
    (1, True, 0)
    """

    ordinals: Bitmap
    items: ItemTable
    index_version: str

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
        bits.pack_bits(np.ascontiguousarray(mask_N), items.order_N, words_W)
        return cls(ordinals=Bitmap.from_words(words_W, mask_N.size), items=items, index_version=index_version)

    @classmethod
    def from_item_ids(cls, item_ids: ItemIds, items: ItemTable, index_version: str) -> Filter:
        """The items with these ids; an id may be repeated. Raises ItemIdError where one is unknown."""
        ordinals = Bitmap.from_positions(items.ordinal_N[items.known_rows_of(item_ids)], items.num_items)
        return cls(ordinals=ordinals, items=items, index_version=index_version)

    @cached_property
    def leaves(self) -> Bitmap:
        """The leaves that have one of the items. Cost: where items share leaves, one pass at first use."""
        return self.ordinals if self.items.leaf_indptr is None else self.ordinals.any_by_group(self.items.leaf_indptr)

    def without(self, ordinals_n: NDArray[np.integer]) -> Filter:
        """The filter less some ordinals. Cost: a copy of the bitmaps; only leaves of the removed items are checked."""
        less = self._with(self.ordinals.without(ordinals_n))
        indptr = self.items.leaf_indptr
        if indptr is not None and "leaves" in self.__dict__:
            touched = np.unique(np.searchsorted(indptr, ordinals_n.astype(indptr.dtype), side="right") - 1)
            emptied = less.ordinals.ranks(indptr[touched]) == less.ordinals.ranks(indptr[touched + 1])
            less.__dict__["leaves"] = self.leaves.without(touched[emptied])
        return less

    def item_ids(self) -> NDArray[np.generic]:
        """The ids of all allowed items, in leaf order."""
        return self.items.ids_of(self.items.order_N[self.ordinals.positions()])

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmaps."""
        return self.ordinals.nbytes + (0 if self.leaves is self.ordinals else self.leaves.nbytes)

    def __len__(self) -> int:
        return self.ordinals.count

    def __bool__(self) -> bool:
        return self.ordinals.count > 0

    def __contains__(self, item_id: int | str) -> bool:
        row = int(self.items.rows_of([item_id])[0])  # type: ignore[list-item]
        return row >= 0 and int(self.items.ordinal_N[row]) in self.ordinals

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.index_version == other.index_version and self.ordinals == other.ordinals

    def __hash__(self) -> int:
        return hash((self.index_version, self.ordinals))

    def __and__(self, other: Filter) -> Filter:
        return self._with(self.ordinals & self._same_index(other).ordinals)

    def __or__(self, other: Filter) -> Filter:
        return self._with(self.ordinals | self._same_index(other).ordinals)

    def __sub__(self, other: Filter) -> Filter:
        return self._with(self.ordinals - self._same_index(other).ordinals)

    def __invert__(self) -> Filter:
        return self._with(~self.ordinals)

    def __repr__(self) -> str:
        return f"Filter({len(self):,} of {self.ordinals.size:,} items)"

    def _with(self, ordinals: Bitmap) -> Filter:
        return Filter(ordinals=ordinals, items=self.items, index_version=self.index_version)

    def _same_index(self, other: Filter) -> Filter:
        if self.index_version != other.index_version:
            raise ForeignFilterError(
                f"the filters belong to two indexes: {self.index_version} with {self.ordinals.size:,} items and "
                f"{other.index_version} with {other.ordinals.size:,}; make both with the same index.filter(...)"
            )
        return other
