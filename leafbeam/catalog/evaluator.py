"""Rules evaluated: predicates over the table of items become filters of a version.

Shapes: n items of one call.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.catalog.items_table import ItemStore
from leafbeam.catalog.row_to_item import RowMap
from leafbeam.catalog.rule_config import Rule
from leafbeam.catalog.rule_set import Chosen
from leafbeam.catalog.sessions import Ids, ReadSession
from leafbeam.errors import RuleError
from leafbeam.index import Version
from leafbeam.index.items import as_id_array

__all__ = ["Evaluation", "Evaluator", "RowMatches"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """What rules selected at one moment, for one version: their filters or what was wrong with them, and the seconds each took.

    num_items: rows of the table. num_known: live items that have a row; both None unless they were asked for.
    """

    version: Version
    chosen: dict[str, Chosen]
    faults: dict[str, RuleError]
    seconds: dict[str, float]
    num_items: int | None = None
    num_known: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMatches:
    """What rules say of some items: a bit for each item, by rule; all 0 for a rule at fault."""

    bits: dict[str, NDArray[np.bool_]]
    faults: dict[str, RuleError]


class Evaluator:
    """The table of items beside the index: evaluates rules over all of it, or over the rows that a change wrote.

    One thread at a time may call `evaluate`, and one at a time the others; these two do not wait for each other where the table
    is held (see ItemStore).
    """

    def __init__(self, store: ItemStore) -> None:
        self.store = store
        self._lock = threading.Lock()  # guards the map's place, for moments
        self._map: RowMap | None = None

    def evaluate(self, rules: Sequence[Rule], version: Version, *, count: bool = False) -> Evaluation:
        """Evaluate rules over the whole table; count: its items too. Raises DataError where the table cannot be read at all.

        Cost at 10^7 items: 40 ms for a rule over a column in memory; seconds more when rows have moved or the base is another
        one, since each row's item has to be found anew.
        """
        chosen: dict[str, Chosen] = {}
        faults: dict[str, RuleError] = {}
        seconds: dict[str, float] = {}
        with self.store.reading() as reading:
            joined = self._joined(reading, version)
            counts = _counts(joined, version) if count else (None, None)
            for rule in rules:
                began = time.perf_counter()
                try:
                    joined = self._joined(reading, version)  # the same, unless an error ended the transaction
                    chosen[rule.name] = joined.filters(reading.chosen(rule, *joined.total), version)
                except RuleError as error:
                    faults[rule.name] = error
                seconds[rule.name] = time.perf_counter() - began
        return Evaluation(
            version=version, chosen=chosen, faults=faults, seconds=seconds, num_items=counts[0], num_known=counts[1]
        )

    def write(self, tables: Sequence[pa.Table], ids_n: NDArray[np.generic], rules: Sequence[Rule]) -> RowMatches:
        """Write attributes (tables with an `item_id`, no id twice), then judge the items by what the table now says of them.

        Cost: milliseconds for items without a row so far; for others a scan of the ids or two. Raises DataError, and then
        nothing was written.
        """
        if not len(ids_n):
            return self.judge(ids_n, rules)
        place = {key: at for at, key in enumerate(ids_n.tolist())}
        with self.store.writing() as writing:
            rows_n, is_exact = self._rows(writing, ids_n, writing.stamp_before)
            is_old_n = rows_n >= 0
            end = self._map.total[1] if self._map is not None and is_exact else writing.end()
            for table in tables:
                at = [place[key] for key in as_id_array(table["item_id"].to_pylist()).tolist()]
                writing.put(table, rows_n[at])
            writing.commit()
            if is_old_n.any() and tables:  # a changed row may have got another number
                rows_n[is_old_n] = writing.rows_of(_as_asked(ids_n[is_old_n]))
            if not is_old_n.all():
                rows, ids = writing.ids(begin=end)
                for key, row in zip(as_id_array(ids).tolist(), rows.tolist(), strict=True):
                    if key in place:
                        rows_n[place[key]] = row
            with self._lock:
                if self._map is not None and is_exact:
                    added = ~is_old_n & (rows_n >= 0)
                    stamp = None if is_old_n.any() else writing.stamp
                    self._map = self._map.with_later(ids_n[added], rows_n[added], stamp)
            return _judged(writing, rules, rows_n)

    def judge(self, ids_n: NDArray[np.generic], rules: Sequence[Rule]) -> RowMatches:
        """What rules say of items by the rows that the table has for them; items without one are selected by no rule."""
        if not len(ids_n) or not rules:
            return RowMatches(bits={rule.name: np.zeros(len(ids_n), np.bool_) for rule in rules}, faults={})
        with self.store.reading() as reading:
            rows_n, _ = self._rows(reading, ids_n, reading.stamp)
            return _judged(reading, rules, rows_n)

    def purge(self, version: Version) -> int:
        """Delete rows of items that are not alive in the version; how many there were."""
        with self.store.writing() as writing:
            rows, ids = writing.ids()
            lost = rows[~version.knows(as_id_array(ids))] if len(rows) else rows
            if len(lost):
                writing.remove(lost)
                writing.commit()
        return len(lost)

    def _joined(self, reading: ReadSession, version: Version) -> RowMap:
        """The map for what this look sees."""
        known = self._map
        seen = known.seen(reading) if known is not None and known.is_of(version) else None
        check = known is None or reading.stamp is None
        joined = seen if seen is not None else RowMap.read(reading, version.segments[0].trie, check=check)
        with self._lock:
            if self._map is known or joined.stamp is None:  # else a change has put a newer one there
                self._map = joined
        return joined

    def _rows(self, reading: ReadSession, ids_n: NDArray[np.generic], stamp: int | None) -> tuple[NDArray[np.int64], bool]:
        """(row numbers, -1 for an item without a row; whether the map knew which have none)."""
        joined = self._map
        is_exact = joined is not None and joined.stamp is not None and joined.stamp == stamp
        may_be = joined.has(ids_n) if joined is not None and is_exact else np.ones(len(ids_n), np.bool_)
        rows_n = np.full(len(ids_n), -1, np.int64)
        if may_be.any():
            rows_n[may_be] = reading.rows_of(_as_asked(ids_n[may_be]))
        return rows_n, is_exact


def _judged(reading: ReadSession, rules: Sequence[Rule], rows_n: NDArray[np.int64]) -> RowMatches:
    bits = {rule.name: np.zeros(len(rows_n), np.bool_) for rule in rules}
    faults: dict[str, RuleError] = {}
    known = rows_n >= 0
    for name, found in reading.chosen_of(rules, rows_n[known]).items():
        if isinstance(found, RuleError):
            faults[name] = found
        else:
            bits[name][known] = found
    return RowMatches(bits=bits, faults=faults)


def _counts(joined: RowMap, version: Version) -> tuple[int, int]:
    """(rows of the table, live items that have one)."""
    with_row = joined.filters(np.ones(joined.total[1], np.uint8), version)
    return joined.total[0], len(version.filter_of(with_row))


def _as_asked(ids_n: NDArray[np.generic]) -> Ids:
    """Ids as DuckDB knows them."""
    return np.char.decode(ids_n.astype(np.bytes_), "utf-8") if ids_n.dtype.kind == "S" else ids_n.astype(np.int64)
