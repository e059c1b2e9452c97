"""RowMap: which row of the table belongs to which item of the index.

Shapes: M rows of the table, R mapped row numbers, N items of the trie, D items of another segment, T appended rows, n ids.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.remap import SegmentValues, empty_of, of_items, scatter, values_at, with_values
from leafbeam.catalog.sessions import ReadSession
from leafbeam.errors import DataError
from leafbeam.index import Trie, Version
from leafbeam.index.items import as_id_array, decode_ids, hash_ids
from leafbeam.index.radix_sort import sort_rows


@dataclass(frozen=True, kw_only=True)
class RowMap:
    """The join of table and trie on `item_id`, as row numbers and ordinals. With it, evaluating a rule is one scan of
    the table.

    It is valid until a mapped row moves, which the table's fingerprint shows. Appended rows are looked up by id.

    Args:
        ordinal_R: uint32, the leaf-order position of each row's item; N if there is no such row, or the trie has no such item.
        fingerprint: The fingerprint of the mapped rows (see `ReadSession.fingerprint`).
        num_rows: The number of rows of the whole table.
        end: An upper bound of their row numbers.
        change_counter: The change counter of the table when the map was last valid; None if the table can change unnoticed.
        unindexed_ids: The ids of mapped rows whose items the trie does not have, ascending.
        unindexed_rows: The row numbers of these ids.
        appended: The row number by id of rows beyond R, in several dictionaries, big ones first, so that adding to them is
            cheap.
    """

    trie: Trie
    ordinal_R: NDArray[np.uint32]
    fingerprint: tuple[int, int, int]
    num_rows: int
    end: int
    change_counter: int | None
    unindexed_ids: NDArray[np.generic]
    unindexed_rows: NDArray[np.int64]
    appended: tuple[dict[int | str, int], ...] = ()

    @classmethod
    def read(cls, session: ReadSession, trie: Trie, *, check: bool = True) -> "RowMap":
        """Join table and trie. Cost: sorts of the table's ids and a search for each, 1 µs an item; less if the orders agree.

        Memory: 4 bytes a row, what looking ids up takes in the index, and some million rows of the table.

        With `check`, this checks that ids are unique. Raises DataError if they are not, or if the table's ids are
        numbers and the index's text, or the reverse.
        """
        if check:
            session.check()
        fingerprint = session.fingerprint()
        ordinal_R = np.full(fingerprint[1], trie.num_items, np.uint32)
        unindexed_rows, unindexed_ids, num_read = list[NDArray[np.int64]](), list[NDArray[np.generic]](), 0
        for rows_n, ids_n in session.id_batches():
            item_row_n = _find_all(trie, ids_n, num_read, session.name)
            num_read += len(rows_n)
            indexed = item_row_n >= 0
            ordinal_R[rows_n[indexed]] = trie.items.ordinal_N[item_row_n[indexed]]
            unindexed_rows.append(rows_n[~indexed])
            unindexed_ids.append(ids_n[~indexed])
        nothing = [np.empty(0, np.int64)]
        unindexed_U = np.concatenate(unindexed_ids or nothing)
        order = np.argsort(unindexed_U, kind="stable")
        return cls(
            trie=trie,
            ordinal_R=ordinal_R,
            fingerprint=fingerprint,
            num_rows=fingerprint[0],
            end=fingerprint[1],
            change_counter=session.change_counter,
            unindexed_ids=unindexed_U[order],
            unindexed_rows=np.concatenate(unindexed_rows or nothing)[order],
        )

    def refreshed(self, session: ReadSession) -> "RowMap | None":
        """Return this map with the rows appended since; None if mapped rows have moved. Raises DataError for repeated ids."""
        if self.change_counter is not None and self.change_counter == session.change_counter:
            return self
        if session.fingerprint(below=len(self.ordinal_R)) != self.fingerprint:
            return None
        rows_T, ids_T = session.ids(begin=len(self.ordinal_R))
        if len(rows_T) and session.change_counter is None:  # another process may have added them
            session.check()
        appended = dict(zip(ids_T.tolist(), rows_T.tolist(), strict=True))
        return replace(
            self,
            num_rows=self.fingerprint[0] + len(rows_T),
            end=int(rows_T[-1]) + 1 if len(rows_T) else self.fingerprint[1],
            change_counter=session.change_counter,
            appended=(appended,) if appended else (),
        )

    def with_appended(self, ids_n: NDArray[np.generic], rows_n: NDArray[np.int64], change_counter: int | None) -> "RowMap":
        """Return this map after the catalog appended these rows. Amortised, this costs one insertion into a dictionary
        per row.
        """
        if not len(ids_n):
            return replace(self, change_counter=change_counter)
        newest = dict(zip(ids_n.tolist(), rows_n.tolist(), strict=True))
        appended = list(self.appended)
        while appended and len(appended[-1]) <= 2 * len(newest):
            newest = {**appended.pop(), **newest}
        return replace(
            self,
            num_rows=self.num_rows + len(ids_n),
            end=max(self.end, int(rows_n.max()) + 1),
            change_counter=change_counter,
            appended=(*appended, newest),
        )

    def has_row(self, ids_n: NDArray[np.generic]) -> NDArray[np.bool_]:
        """Return a mask of the ids that have a row. Cost: a few searches an id."""
        has_row = np.array([any(key in part for part in self.appended) for key in ids_n.tolist()], np.bool_)
        has_row |= self._find_unindexed(ids_n) >= 0
        rows = self.trie.find(ids_n)
        known = rows >= 0
        has_row[known] |= values_at(self._with_row, self.trie.items.ordinal_N[rows[known]]).astype(np.bool_)
        return has_row

    def unknown_to(self, version: Version) -> tuple[int | str, ...]:
        """Return up to three ids of rows whose item the version does not have. Only the first thousands of rows are
        looked at.
        """
        appended = as_id_array(list(islice((key for part in self.appended for key in part), 1000)))
        candidates = [ids[~version.knows(ids)] for ids in (appended, self.unindexed_ids[:1000]) if len(ids)]
        return tuple(key for ids in candidates for key in decode_ids(ids).tolist())[:3]

    def segments(self, values: NDArray[np.generic], version: Version, empty: np.generic) -> tuple[SegmentValues, ...]:
        """Return, for each segment, the values of the items' rows, deleted items included. `values` is by row number; items
        without a row have the empty value.
        """
        mapped = scatter(values[: len(self.ordinal_R)], self.ordinal_R, self.trie, empty)
        rows, rows_T = self._appended_in(self.trie)
        if len(rows):
            mapped = with_values(mapped, self.trie.items.ordinal_N[rows], values[rows_T], self.trie)
        return tuple(
            mapped if segment.trie is self.trie else self._other_segment(segment.trie, mapped, values)
            for segment in version.segments
        )

    def is_for(self, version: Version) -> bool:
        """Return whether the version contains the mapped trie, so that only few items have to be looked up by id."""
        return any(segment.trie is self.trie for segment in version.segments)

    @cached_property
    def _with_row(self) -> SegmentValues:
        """Return the items of the trie whose row is mapped."""
        return scatter(np.ones(len(self.ordinal_R), np.bool_), self.ordinal_R, self.trie, np.False_)

    @cached_property
    def _appended_rows(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return (ids_T, rows_T) of the appended rows."""
        rows = {key: row for part in self.appended for key, row in part.items()}
        return as_id_array(list(rows)), np.fromiter(rows.values(), np.int64, len(rows))

    def _appended_in(self, trie: Trie) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows of the trie, row numbers of the table) of appended items that the trie has."""
        ids_T, rows_T = self._appended_rows
        found_T = trie.find(ids_T) if len(ids_T) else np.empty(0, np.int64)
        return found_T[found_T >= 0], rows_T[found_T >= 0]

    def _find_unindexed(self, ids_n: NDArray[np.generic]) -> NDArray[np.int64]:
        """Return the index of each id in `unindexed_ids`, -1 if it is not there."""
        if not len(self.unindexed_ids) or self.unindexed_ids.dtype.kind != ids_n.dtype.kind:
            return np.full(len(ids_n), -1, np.int64)
        at = np.minimum(np.searchsorted(self.unindexed_ids, ids_n), len(self.unindexed_ids) - 1)
        return np.where(self.unindexed_ids[at] == ids_n, at, -1)

    def _other_segment(self, trie: Trie, mapped: SegmentValues, values: NDArray[np.generic]) -> SegmentValues:
        """Return the values of a segment other than the mapped trie. Its items have appended rows, unindexed rows, or
        rows of replaced items.
        """
        ids_D = trie.items.ids_N
        values_D = np.full(len(ids_D), empty_of(mapped))
        missing_D = np.ones(len(ids_D), np.bool_)
        rows, rows_T = self._appended_in(trie)
        values_D[rows] = values[rows_T]
        missing_D[rows] = False
        rest = np.flatnonzero(missing_D)
        at = self._find_unindexed(ids_D[rest])
        values_D[rest[at >= 0]] = values[self.unindexed_rows[at[at >= 0]]]
        rest = rest[at < 0]
        rows = self.trie.find(ids_D[rest])
        values_D[rest[rows >= 0]] = values_at(mapped, self.trie.items.ordinal_N[rows[rows >= 0]])
        return of_items(values_D, trie)


def _find_all(trie: Trie, ids_n: NDArray[np.generic], begin: int, name: str) -> NDArray[np.int64]:
    """Return the row of each id in the trie, -1 if it is not there; `begin` rows of the table are before them.

    Raises DataError if the kinds of ids differ.
    """
    if not len(ids_n) or not trie.num_items:
        return np.full(len(ids_n), -1, np.int64)
    kind = trie.items.kind
    if (ids_n.dtype.kind == "S") != (kind == "S"):
        kinds = ("text", "whole numbers") if kind == "S" else ("whole numbers", "text")
        raise DataError(
            f"the index knows its items by {kinds[0]} such as {trie.items.ids_of(np.zeros(1, np.int64))[0].item()!r}, but the "
            f"column item_id of {name} holds {kinds[1]} such as {decode_ids(ids_n[:1])[0].item()!r}: one of the two has to "
            "change (`fit-sids --text-ids` makes all ids of a run text)"
        )
    rows_n = np.arange(begin, min(begin + len(ids_n), trie.num_items))
    if np.array_equal(ids_n, rows_n if trie.items.ids is None else trie.items.ids[rows_n]):
        return rows_n
    # The index looks ids up by their hashes: in the order of those it reads its memory sequentially.
    order = sort_rows([hash_ids(ids_n)], 1)
    found_n = np.empty(len(ids_n), np.int64)
    found_n[order] = trie.find(ids_n[order])
    return found_n
