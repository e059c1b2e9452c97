"""Which items stand on which leaf, and what the caller calls them.

A *row* is an item's place in the caller's order, a *place* its position in leaf order (items of one leaf together, in the
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
from leafbeam.index.id_hash import ascends, hash_ids, raise_repeated
from leafbeam.index.radix_sort import sort_rows, threads_for

__all__ = ["ItemIds", "ItemTable", "check_item_ids"]

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
        kinds = {type(one) for one in ids.flat}
        if kinds <= {str, np.str_}:
            ids = ids.astype(np.str_) if ids.size else ids.astype(np.int64)
        elif not kinds <= {int, np.int64, np.int32}:
            raise ItemIdError(f"item ids hold {sorted(kind.__name__ for kind in kinds)}: expected all integers or all strings")
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemTable:
    """The items behind the leaves.

    Think of it as three permutations: row -> id (`ids`), place -> row (`order_N`) and, made at first use, their inverses.

    ids: int64, or UTF-8 bytes of fixed width, (N,) in the caller's order; None where the items are their row numbers.
    order_N: uint32, the row at each place.
    first_M1: uint32, the first place of each leaf and, last, N; None where every leaf has one item.
    """

    ids: NDArray[np.generic] | None
    order_N: NDArray[np.uint32]
    first_M1: NDArray[np.uint32] | None

    @property
    def num_items(self) -> int:
        return len(self.order_N)

    @property
    def nbytes(self) -> int:
        """Bytes of the permutation, the leaves' first places and the ids."""
        first = 0 if self.first_M1 is None else self.first_M1.nbytes
        return self.order_N.nbytes + first + (0 if self.ids is None else self.ids.nbytes)

    @cached_property
    def place_N(self) -> NDArray[np.uint32]:
        """The place of each row: the inverse of `order_N`, made at first use (4 bytes an item)."""
        place_N = np.empty_like(self.order_N)
        place_N[self.order_N] = np.arange(self.num_items, dtype=np.uint32)
        return place_N

    @cached_property
    def _by_hash(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The hashes of the ids, ascending, and the row of each, made at first use (a radix sort; 12 bytes an item)."""
        assert self.ids is not None
        hashes_N = hash_ids(self.ids)
        rows_N = sort_rows([hashes_N], threads_for(len(hashes_N)))
        return hashes_N, rows_N

    def check_unique(self) -> None:
        """Raise ItemIdError where an id occurs twice. Cost: one read where ids ascend, else the sort that look-ups need."""
        if self.ids is None or ascends(self.ids):
            return
        hashes_N, rows_N = self._by_hash
        same = np.flatnonzero(hashes_N[1:] == hashes_N[:-1])
        suspects = np.unique(np.concatenate([rows_N[same], rows_N[same + 1]]))
        raise_repeated(np.sort(self.ids[suspects]))

    def rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The row of each id, -1 where it is unknown. Cost: one binary search an id."""
        wanted = as_id_array(item_ids)
        if wanted.size == 0:
            return np.empty(0, np.int64)
        if self.ids is None or self.num_items == 0:
            if wanted.dtype.kind != "i":
                return np.full(wanted.shape, -1, np.int64)
            return np.where((wanted >= 0) & (wanted < self.num_items), wanted, -1).astype(np.int64)  # type: ignore[operator]
        found_n = np.full(wanted.shape, -1, np.int64)
        if (self.ids.dtype.kind == "i") != (wanted.dtype.kind == "i"):
            return found_n
        hashes_N, rows_N = self._by_hash
        wanted_hashes = hash_ids(wanted)
        at_n = np.searchsorted(hashes_N, wanted_hashes)
        left = np.arange(len(wanted))
        while left.size:  # a second time only where two ids have one hash
            left = left[at_n[left] < len(hashes_N)]
            left = left[hashes_N[at_n[left]] == wanted_hashes[left]]
            rows = rows_N[at_n[left]]
            equal = self.ids[rows] == wanted[left]
            found_n[left[equal]] = rows[equal]
            left = left[~equal]
            at_n[left] += 1
        return found_n

    def known_rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The row of each id; ItemIdError where one is unknown."""
        rows = self.rows_of(item_ids)
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            kind = "integers" if self.ids is None or self.ids.dtype.kind == "i" else "strings"
            first = list(item_ids)[unknown[0]]
            raise ItemIdError(
                f"{unknown.size:,} of {len(rows):,} item ids are unknown, {first!r} among them: this index has "
                f"{self.num_items:,} items whose ids are {kind}"
            )
        return rows

    def ids_of(self, rows: NDArray[np.integer]) -> NDArray[np.generic]:
        """The caller's id of each row, int64 or str."""
        if self.ids is None:
            return rows.astype(np.int64)
        ids = self.ids[rows]
        return np.char.decode(ids.astype(np.bytes_), "utf-8") if ids.dtype.kind == "S" else ids

    def leaves_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The leaf of each row. Cost: one read an item, or a binary search where leaves are shared."""
        places = self.place_N[rows].astype(np.int64)
        if self.first_M1 is None:
            return places
        return np.searchsorted(self.first_M1, places, side="right").astype(np.int64) - 1

    def places_of_leaf(self, leaf: int) -> tuple[int, int]:
        """The places [begin, end) of a leaf's items."""
        return (leaf, leaf + 1) if self.first_M1 is None else (int(self.first_M1[leaf]), int(self.first_M1[leaf + 1]))
