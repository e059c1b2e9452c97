"""Which row of the table belongs to which item of the index.

Shapes: R row numbers that are mapped, N items of the trie, D rows of another segment, T later rows, n items of one call.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.remap import patched, picked
from leafbeam.catalog.sessions import Ids, ReadSession
from leafbeam.errors import DataError
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.id_hash import hash_ids
from leafbeam.index.items import as_id_array
from leafbeam.index.radix_sort import sort_rows

__all__ = ["RowMap"]


@dataclass(frozen=True, kw_only=True)
class RowMap:
    """A table beside an index: made once, good as long as no row moves, so that a rule is a scan and nothing else.

    Think of it as the join of the two on `item_id`, kept as numbers: `place_R` says for each row number where its item stands
    in the trie. Rows that came later are looked up by id. Whether rows have moved is seen by a hash of all row numbers and ids.

    place_R: uint32; N where the row's item is not in the trie, or there is no such row.
    extent: (rows, R, hash) of what is mapped. total: (rows, row numbers) of the whole table.
    stamp: how many changes the table had when all this was seen to hold; None: it can change unseen.
    stray_ids, stray_rows: mapped rows whose items the trie does not have, sorted by id.
    later: row number by id, of rows beyond R; several dictionaries, big ones first, so that adding to them is cheap.
    """

    trie: Trie
    place_R: NDArray[np.uint32]
    extent: tuple[int, int, int]
    total: tuple[int, int]
    stamp: int | None
    stray_ids: NDArray[np.generic]
    stray_rows: NDArray[np.int64]
    later: tuple[dict[Any, int], ...] = ()

    @classmethod
    def read(cls, reading: ReadSession, trie: Trie, *, check: bool = True) -> RowMap:
        """Join table and trie. Cost: a sort of the table's ids and a search for each, 1 µs an item; less if the orders agree.

        check: that the ids are unique; not where the catalog has seen to that. Raises DataError where they are not, or are of
        another kind than the index's.
        """
        if check:
            reading.check()
        extent = reading.extent()
        rows_M, ids_M = reading.ids()
        found_M = _rows_in(trie, ids_M, reading.name)
        place_R = np.full(extent[1], trie.num_items, np.uint32)
        known = found_M >= 0
        place_R[rows_M[known]] = trie.items.ordinal_N[found_M[known]]
        strays = as_id_array(ids_M[~known])
        order = np.argsort(strays, kind="stable")
        return cls(
            trie=trie,
            place_R=place_R,
            extent=extent,
            total=extent[:2],
            stamp=reading.stamp,
            stray_ids=strays[order],
            stray_rows=rows_M[~known][order],
        )

    def seen(self, reading: ReadSession) -> RowMap | None:
        """This map for the table as it is now; None where rows have moved.

        Cost: nothing if the table is as it was, else a pass over its ids (3 ns each). Raises DataError for ids that come twice.
        """
        if self.stamp is not None and self.stamp == reading.stamp:
            return self
        if reading.extent(below=len(self.place_R)) != self.extent:
            return None
        rows_T, ids_T = reading.ids(begin=len(self.place_R))
        if len(rows_T) and reading.stamp is None:  # somebody else may have added them
            reading.check()
        end = int(rows_T[-1]) + 1 if len(rows_T) else self.extent[1]
        later = dict(zip(as_id_array(ids_T).tolist(), rows_T.tolist(), strict=True))
        return replace(self, total=(self.extent[0] + len(rows_T), end), stamp=reading.stamp, later=(later,) if later else ())

    def with_later(self, ids_n: NDArray[np.generic], rows_n: NDArray[np.int64], stamp: int | None) -> RowMap:
        """This map after the catalog itself added these rows behind all others. Cost: amortised, that of a dictionary."""
        if not len(ids_n):
            return replace(self, stamp=stamp)
        newest = dict(zip(ids_n.tolist(), rows_n.tolist(), strict=True))
        later = list(self.later)
        while later and len(later[-1]) <= 2 * len(newest):
            newest = {**later.pop(), **newest}
        total = (self.total[0] + len(ids_n), max(self.total[1], int(rows_n.max()) + 1))
        return replace(self, total=total, stamp=stamp, later=(*later, newest))

    def has(self, ids_n: NDArray[np.generic]) -> NDArray[np.bool_]:
        """Which of these ids have a row. Cost: a few searches an id."""
        found = np.array([any(key in some for some in self.later) for key in ids_n.tolist()], np.bool_)
        found |= self._strays_at(ids_n) >= 0
        rows = self.trie.find(ids_n)
        known = rows >= 0
        found[known] |= self._with_row.ordinals.has(self.trie.items.ordinal_N[rows[known]])
        return found

    def filters(self, chosen: NDArray[np.uint8], version: Version) -> tuple[Filter, ...]:
        """One filter for each segment, dead items included, of the items whose row is chosen.

        chosen: by row number, of the whole table. Cost: 2 ns a row, and a few searches for each later row and each item of
        segments that are not the mapped trie.
        """
        mapped = picked(chosen[: len(self.place_R)], self.place_R, self.trie)
        ids_T, rows_T = self._later_rows
        found = self.trie.find(ids_T) if len(ids_T) else np.empty(0, np.int64)
        known = found >= 0
        if known.any():
            mapped = patched(mapped, self.trie.items.ordinal_N[found[known]], chosen[rows_T[known]] == 1, self.trie)
        return tuple(
            mapped if segment.trie is self.trie else self._beside(segment.trie, mapped, chosen) for segment in version.segments
        )

    def is_of(self, version: Version) -> bool:
        """The version has the mapped trie, so that few items are looked up by id."""
        return any(segment.trie is self.trie for segment in version.segments)

    @cached_property
    def _with_row(self) -> Filter:
        """Items of the trie whose row is mapped."""
        return picked(np.ones(len(self.place_R), np.uint8), self.place_R, self.trie)

    @cached_property
    def _later_rows(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """(ids_T, rows_T) of the later rows."""
        whole = {key: row for some in self.later for key, row in some.items()}
        return as_id_array(list(whole)), np.fromiter(whole.values(), np.int64, len(whole))

    def _strays_at(self, ids_n: NDArray[np.generic]) -> NDArray[np.int64]:
        """Where each id stands among the strays, -1 where it does not."""
        if not len(self.stray_ids) or self.stray_ids.dtype.kind != ids_n.dtype.kind:
            return np.full(len(ids_n), -1, np.int64)
        at = np.minimum(np.searchsorted(self.stray_ids, ids_n), len(self.stray_ids) - 1)
        return np.where(self.stray_ids[at] == ids_n, at, -1)

    def _beside(self, trie: Trie, mapped: Filter, chosen: NDArray[np.uint8]) -> Filter:
        """The filter of another segment: its items have later rows, strays', or those of replaced items of the mapped trie."""
        ids_D = np.arange(trie.num_items) if trie.items.ids is None else trie.items.ids
        mask_D = np.zeros(len(ids_D), np.bool_)
        rest_D = np.ones(len(ids_D), np.bool_)
        ids_T, rows_T = self._later_rows
        found = trie.find(ids_T) if len(ids_T) else np.empty(0, np.int64)
        known = found >= 0
        mask_D[found[known]] = chosen[rows_T[known]] == 1
        rest_D[found[known]] = False
        rest = np.flatnonzero(rest_D)
        at = self._strays_at(ids_D[rest])
        mask_D[rest[at >= 0]] = chosen[self.stray_rows[at[at >= 0]]] == 1
        rest = rest[at < 0]
        rows = self.trie.find(ids_D[rest])
        mask_D[rest[rows >= 0]] = mapped.ordinals.has(self.trie.items.ordinal_N[rows[rows >= 0]])
        return trie.filter(mask_D)


def _rows_in(trie: Trie, ids_M: Ids, name: str) -> NDArray[np.int64]:
    """The row of each id in the trie, -1 where it is not there."""
    if not len(ids_M) or not trie.num_items:
        return np.full(len(ids_M), -1, np.int64)
    first = trie.items.ids_of(np.zeros(1, np.int64))
    if (ids_M.dtype.kind == "U") != (first.dtype.kind == "U"):
        kinds = ("text", "whole numbers") if first.dtype.kind == "U" else ("whole numbers", "text")
        raise DataError(
            f"the index knows its items by {kinds[0]} such as {first[0].item()!r}, but the column item_id of "
            f"{name} holds {kinds[1]} such as {ids_M[0].item()!r}: one of the two has to change"
        )
    wanted_M = as_id_array(ids_M)
    own_N = np.arange(trie.num_items) if trie.items.ids is None else trie.items.ids
    if np.array_equal(wanted_M, own_N):
        return np.arange(len(wanted_M))
    # The index looks ids up by their hashes: asked in that order, it reads its memory from one end to the other.
    order = sort_rows([hash_ids(wanted_M)], 1)
    found_M = np.empty(len(wanted_M), np.int64)
    found_M[order] = trie.find(wanted_M[order])
    return found_M
