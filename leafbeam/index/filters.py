"""Filters: sets of items that a request may be shown. Shapes: N items, M leaves."""

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError, counted, short_repr
from leafbeam.html_table import html_table
from leafbeam.index.bitmap import Bitmap
from leafbeam.index.items import ItemTable


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Filter:
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
        less = self._with(self.ordinals.without(ordinals_n))
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

    def __bool__(self) -> NoReturn:
        raise no_truth()

    def __len__(self) -> int:
        return self.ordinals.count

    def __contains__(self, item_id: int | str) -> bool:
        row = int(self.items.rows_of([item_id])[0])  # type: ignore[list-item]
        return row >= 0 and int(self.items.ordinal_N[row]) in self.ordinals

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.index_version == other.index_version and self.ordinals == other.ordinals

    def __hash__(self) -> int:
        return hash((self.index_version, self.ordinals))

    def __and__(self, other: "Filter") -> "Filter":
        return self._with(self.ordinals & self._same_index(other).ordinals)

    def __or__(self, other: "Filter") -> "Filter":
        return self._with(self.ordinals | self._same_index(other).ordinals)

    def __sub__(self, other: "Filter") -> "Filter":
        return self._with(self.ordinals - self._same_index(other).ordinals)

    def __invert__(self) -> "Filter":
        return self._with(~self.ordinals)

    def __repr__(self) -> str:
        return f"Filter({len(self):,} of {counted(self.ordinals.size, 'item')})"

    def _repr_html_(self) -> str:
        share = f"{len(self) / max(1, self.ordinals.size):.2%}"
        rows = [(len(self), self.ordinals.size, share)]
        return html_table(f"Filter of index {self.index_version}", ["items allowed", "of items", "share"], rows)

    def _with(self, ordinals: Bitmap) -> "Filter":
        return Filter(ordinals=ordinals, items=self.items, index_version=self.index_version)

    def _same_index(self, other: "Filter") -> "Filter":
        if not isinstance(other, Filter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_operand("Filter", other)
        if self.index_version != other.index_version:
            raise ForeignFilterError(
                f"the filters belong to two indexes: {self.index_version} with {counted(self.ordinals.size, 'item')} and "
                f"{other.index_version} with {other.ordinals.size:,}; make both with the same index.filter(...)"
            )
        return other


def no_truth() -> FilterError:
    """The error for the truth of a filter: `a and b` would be `b` alone."""
    return FilterError("a filter is neither true nor false: combine filters with & | - ~; len(f) > 0 says whether f has items")


def no_operand(kind: str, other: object) -> FilterError:
    """The error for an operand that is not a filter of this kind."""
    return FilterError(f"an operand is {short_repr(other)}: expected a {kind} too; make both in the same way")
