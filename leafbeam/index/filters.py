"""Filters: sets of items that a request may be shown. Shapes: N items, M leaves."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError, counted, short_repr
from leafbeam.html_table import html_table
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemTable


class ItemSet:
    """The operators of a set of items: `&`, `|`, `-`, but no truth."""

    def combined(self, other: Any, combine: Callable[[Any, Any], Any]) -> Self:
        """Return the items for which an operator of bitmaps holds. Raises FilterError, ForeignFilterError."""
        raise NotImplementedError

    def check_operand(self, other: object) -> None:
        """Raise FilterError for an operand of another type."""
        if not isinstance(other, type(self)):
            kind = type(self).__name__
            raise FilterError(f"an operand is {short_repr(other)}: expected a {kind} too; make both in the same way")

    def __bool__(self) -> NoReturn:
        # `a and b` would be `b` alone.
        raise FilterError(
            "a filter is neither true nor false: combine filters with & | - ~; len(f) > 0 says whether f has items"
        )

    def __and__(self, other: Self) -> Self:
        return self.combined(other, operator.and_)

    def __or__(self, other: Self) -> Self:
        return self.combined(other, operator.or_)

    def __sub__(self, other: Self) -> Self:
        return self.combined(other, operator.sub)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Filter(ItemSet):
    """A set of items of one index, which a search applies exactly at every level; `Trie.filter` makes it.

    `&`, `|`, `-`, `~`, `len` and `in` work as for a Python set of item ids. A filter takes 1.5 bits for each item of the index.
    A node of the trie is legal if a leaf of the filter is in its range; a leaf stays while one of its items is allowed, and
    results list only allowed items.

    Args:
        ordinals: The items, by their ordinals in leaf order.
        items: The item table of the index.
        index_version: The version of the index to which the filter belongs.

    Examples:
        >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
        >>> fresh = index.filter([True, False]); len(fresh), "a" in fresh, len(~fresh & fresh)
        (1, True, 0)
    """

    ordinals: Bitmap
    items: ItemTable
    index_version: str

    @cached_property
    def leaves(self) -> Bitmap:
        """Return the leaves that have an allowed item. If items share leaves, the first use costs one pass."""
        return self.ordinals if self.items.leaf_indptr is None else self.ordinals.any_by_group(self.items.leaf_indptr)

    def without(self, ordinals_n: NDArray[np.integer]) -> "Filter":
        """Return the filter without the items of some ordinals.

        This copies the bitmaps and checks only the leaves of the removed items.
        """
        less = replace(self, ordinals=self.ordinals.without(ordinals_n))
        indptr = self.items.leaf_indptr
        if indptr is not None and "leaves" in self.__dict__:
            touched = np.unique(np.searchsorted(indptr, ordinals_n.astype(indptr.dtype), side="right") - 1)
            emptied = less.ordinals.ranks(indptr[touched]) == less.ordinals.ranks(indptr[touched + 1])
            less.__dict__["leaves"] = self.leaves.without(touched[emptied])
        return less

    def item_ids(self) -> NDArray[np.generic]:
        """Return the ids of all allowed items, in leaf order."""
        return self.items.ids_of(self.items.order_N[self.ordinals.positions()])

    @property
    def nbytes(self) -> int:
        """Return the bytes of the bitmaps."""
        return self.ordinals.nbytes + (0 if self.leaves is self.ordinals else self.leaves.nbytes)

    def __len__(self) -> int:
        return self.ordinals.count

    def __contains__(self, item_id: int | str) -> bool:
        row = int(self.items.rows_of([item_id])[0])  # type: ignore[list-item]
        return row >= 0 and int(self.items.ordinal_N[row]) in self.ordinals

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.index_version == other.index_version and self.ordinals == other.ordinals

    def __hash__(self) -> int:
        return hash((self.index_version, self.ordinals))

    def __invert__(self) -> "Filter":
        return replace(self, ordinals=~self.ordinals)

    def __repr__(self) -> str:
        return f"Filter({len(self):,} of {counted(self.ordinals.size, 'item')})"

    def _repr_html_(self) -> str:
        share = f"{len(self) / max(1, self.ordinals.size):.2%}"
        rows = [(len(self), self.ordinals.size, share)]
        return html_table(f"Filter of index {self.index_version}", ["items allowed", "of items", "share"], rows)

    def combined(self, other: Self, combine: Callable[[Bitmap, Bitmap], Bitmap]) -> Self:
        self.check_operand(other)
        if self.index_version != other.index_version:
            raise ForeignFilterError(
                f"the filters belong to two indexes: {self.index_version} with {counted(self.ordinals.size, 'item')} and "
                f"{other.index_version} with {other.ordinals.size:,}; make both with the same index.filter(...)"
            )
        return replace(self, ordinals=combine(self.ordinals, other.ordinals))
