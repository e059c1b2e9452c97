"""The items of a trie: their ids, and the leaf of each.

A *row* is an item's position in the caller's order, an *ordinal* its position in leaf order (items of one leaf together, in the
caller's order). Shapes: N items, M leaves.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError
from leafbeam.index.id_hash import hash_ids, is_ascending, raise_duplicates
from leafbeam.index.radix_sort import sort_rows, threads_for

__all__ = ["ItemIds", "ItemTable", "as_id_array", "check_item_ids", "check_known"]

ItemIds = Sequence[int] | Sequence[str] | NDArray[np.generic]


def check_item_ids(item_ids: ItemIds, num_items: int) -> NDArray[np.generic]:
    """The ids as an int64 or UTF-8 array of the right length, or an ItemIdError."""
    ids = as_id_array(item_ids)
    if ids.shape != (num_items,):
        raise ItemIdError(f"item_ids has shape {ids.shape}: expected ({num_items:,},), one id for each row of codes")
    return ids


def as_id_array(item_ids: ItemIds) -> NDArray[np.generic]:
    """Ids of either kind as a 1-D array of int64, or of UTF-8 bytes of fixed width (a quarter of numpy's str)."""
    ids = np.asarray(item_ids)
    if ids.dtype == object:
        types = {type(item_id) for item_id in ids.flat}
        if types <= {str, np.str_}:
            ids = ids.astype(np.str_) if ids.size else ids.astype(np.int64)
        elif not types <= {int, np.int64, np.int32}:
            raise ItemIdError(f"item ids hold {sorted(kind.__name__ for kind in types)}: expected all integers or all strings")
    if ids.ndim != 1:
        raise ItemIdError(f"item ids have shape {ids.shape}: expected a flat sequence")
    if ids.size == 0:
        return ids.astype(np.int64) if ids.dtype.kind not in "US" else ids.astype("S1")
    if ids.dtype.kind in "iu":
        if ids.dtype.kind == "u" and int(ids.max()) > np.iinfo(np.int64).max:
            raise ItemIdError("item ids exceed 2^63 - 1: pass them as strings")
        return ids.astype(np.int64)
    if ids.dtype.kind == "S":
        return ids
    if ids.dtype.kind == "U":
        return np.char.encode(ids.astype(np.str_), "utf-8")
    raise ItemIdError(f"item ids have dtype {ids.dtype}: expected integers or strings")


def check_known(item_ids: ItemIds, rows_n: NDArray[np.int64], where: str) -> None:
    """Raise ItemIdError where a row is -1. where: what was searched, for the message."""
    unknown = np.flatnonzero(rows_n < 0)
    if unknown.size:
        first = list(item_ids)[unknown[0]]
        raise ItemIdError(f"{unknown.size:,} of {len(rows_n):,} item ids are unknown, {first!r} among them: {where}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ItemTable:
    """The items of a trie: row -> id (`ids`), ordinal -> row (`order_N`), leaf -> ordinals, and their inverses.

    ids: int64, or UTF-8 bytes of fixed width, (N,) in the caller's order; None where the ids are the row numbers.
    order_N: uint32, the row at each ordinal.
    leaf_indptr: uint32, (M + 1,), leaf m has the ordinals indptr[m] to indptr[m + 1] - 1; None where every leaf has one item.
    """

    ids: NDArray[np.generic] | None
    order_N: NDArray[np.uint32]
    leaf_indptr: NDArray[np.uint32] | None

    @property
    def num_items(self) -> int:
        return len(self.order_N)

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return sum(array.nbytes for array in (self.order_N, self.leaf_indptr, self.ids) if array is not None)

    @cached_property
    def ordinal_N(self) -> NDArray[np.uint32]:
        """The ordinal of each row, computed at first use."""
        ordinal_N = np.empty(self.num_items, np.uint32)
        ordinal_N[self.order_N] = np.arange(self.num_items, dtype=np.uint32)
        return ordinal_N

    @cached_property
    def _by_hash(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The hashes of the ids, ascending, and the row of each: a radix sort at first use, 12 bytes an item."""
        assert self.ids is not None
        hashes_N = hash_ids(self.ids)
        rows_N = sort_rows([hashes_N], threads_for(len(hashes_N)))
        return hashes_N, rows_N

    def check_unique(self) -> None:
        """Raise ItemIdError where an id occurs twice. Cost: one read where ids ascend, else the sort that look-ups need."""
        if self.ids is None or is_ascending(self.ids):
            return
        hashes_N, rows_N = self._by_hash
        same = np.flatnonzero(hashes_N[1:] == hashes_N[:-1])
        candidates = np.unique(np.concatenate([rows_N[same], rows_N[same + 1]]))
        raise_duplicates(np.sort(self.ids[candidates]))

    def rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The row of each id, -1 where it is unknown. Cost: one binary search an id."""
        ids_n = as_id_array(item_ids)
        rows_n = np.full(ids_n.shape, -1, np.int64)
        if self.ids is None or self.num_items == 0:
            if ids_n.dtype.kind == "i":
                known = (ids_n >= 0) & (ids_n < self.num_items)  # type: ignore[operator]
                rows_n[known] = ids_n[known]
            return rows_n
        if ids_n.size == 0 or (self.ids.dtype.kind == "i") != (ids_n.dtype.kind == "i"):
            return rows_n
        hashes_N, rows_N = self._by_hash
        hashes_n = hash_ids(ids_n)
        at_n = np.searchsorted(hashes_N, hashes_n)
        left = np.arange(len(ids_n))
        while left.size:  # more than once only where two ids have one hash
            left = left[at_n[left] < len(hashes_N)]
            left = left[hashes_N[at_n[left]] == hashes_n[left]]
            rows = rows_N[at_n[left]]
            equal = self.ids[rows] == ids_n[left]
            rows_n[left[equal]] = rows[equal]
            left = left[~equal]
            at_n[left] += 1
        return rows_n

    def known_rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The row of each id; ItemIdError where one is unknown."""
        rows = self.rows_of(item_ids)
        kind = "integers" if self.ids is None or self.ids.dtype.kind == "i" else "strings"
        check_known(item_ids, rows, f"this index has {self.num_items:,} items whose ids are {kind}")
        return rows

    def ids_of(self, rows: NDArray[np.integer]) -> NDArray[np.generic]:
        """The caller's id of each row, int64 or str."""
        if self.ids is None:
            return rows.astype(np.int64)
        ids = self.ids[rows]
        return np.char.decode(ids.astype(np.bytes_), "utf-8") if ids.dtype.kind == "S" else ids

    def leaves_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The leaf of each row. Cost: one read an item, or a binary search where items share leaves."""
        ordinals = self.ordinal_N[rows].astype(np.int64)
        if self.leaf_indptr is None:
            return ordinals
        return np.searchsorted(self.leaf_indptr, ordinals, side="right").astype(np.int64) - 1

    def ordinals_of_leaf(self, leaf: int) -> tuple[int, int]:
        """The ordinals [begin, end) of a leaf's items."""
        indptr = self.leaf_indptr
        return (leaf, leaf + 1) if indptr is None else (int(indptr[leaf]), int(indptr[leaf + 1]))

    def __repr__(self) -> str:
        kind = "row numbers" if self.ids is None else "integers" if self.ids.dtype.kind == "i" else "strings"
        return f"ItemTable({self.num_items:,} items, ids: {kind})"
