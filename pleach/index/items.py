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

from pleach.errors import ItemIdError
from pleach.index.sort import sort_rows, threads_for
from pleach.index.unique import raise_repeated

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
    def _by_id(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """The ids in sorted order and the row of each, made at first use (one sort of the ids)."""
        assert self.ids is not None
        if self.ids.dtype.kind != "i" or len(self.ids) < 2:
            rows = np.argsort(self.ids, kind="stable")
            return self.ids[rows], rows
        least, most = int(self.ids.min()), int(self.ids.max())
        keys = self.ids.view(np.uint64) - np.uint64(least % 2**64)  # ascending as the ids are, from 0 ...
        keys <<= np.uint64(64 - max(1, (most - least).bit_length()))  # ... and up to the highest bit
        rows = sort_rows([keys], threads_for(len(keys)))
        return self.ids[rows], rows.astype(np.int64)

    def check_unique(self) -> None:
        """Raise ItemIdError where an id occurs twice. Cost: the sort that look-ups by id need anyway."""
        if self.ids is None or len(self.ids) < 2:
            return
        raise_repeated(self._by_id[0])

    def rows_of(self, item_ids: ItemIds) -> NDArray[np.int64]:
        """The row of each id, -1 where it is unknown. Cost: one binary search an id."""
        wanted = as_id_array(item_ids)
        if wanted.size == 0:
            return np.empty(0, np.int64)
        if self.ids is None or self.num_items == 0:
            if wanted.dtype.kind != "i":
                return np.full(wanted.shape, -1, np.int64)
            return np.where((wanted >= 0) & (wanted < self.num_items), wanted, -1).astype(np.int64)  # type: ignore[operator]
        ids, rows = self._by_id
        if (ids.dtype.kind == "i") != (wanted.dtype.kind == "i"):
            return np.full(wanted.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[at] == wanted, rows[at], -1)

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
