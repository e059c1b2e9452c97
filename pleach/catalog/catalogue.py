"""Catalogue: the items, their attributes, and the rules over them as filters.

Shapes: N items of the index, M items of the table (its rows are DuckDB's, the index has its own).
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pleach.catalog.items import Ids, ItemFile, Reading
from pleach.catalog.rules import LoadReport, RuleReport, RuleSet, check_rule, read_rules
from pleach.errors import DataError, PleachError, RuleError
from pleach.index import Filter, Trie


class Catalogue:
    """A shop's items with their attributes, and its rules, ready as filters.

    Think of it as a photograph of a table: `open` and `reload` take one (evaluate every rule by SQL), requests look at
    the latest photograph and never at the table. Between photographs the file is closed, so any other process may
    change it: change attributes in DuckDB, then call `reload` (the server: SIGHUP). Nothing is rebuilt.

    >>> catalogue = Catalogue.open("shop.duckdb", trie, rules={"cheap": "price < 20"})     # doctest: +SKIP
    >>> catalogue.filter(["cheap"])                                                      # doctest: +SKIP
    """

    def __init__(self, items: ItemFile, trie: Trie, rules: str | os.PathLike[str] | Mapping[str, object] | None) -> None:
        self._items = items
        self._trie = trie
        self._source = rules
        self._loading = threading.Lock()
        self._rules = self._load(read_rules(rules), before=None)

    @classmethod
    def create(cls, path: str | os.PathLike[str], items: pa.Table | str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the DuckDB file of a catalogue from an Arrow table, a `.parquet` or a `.csv` file (see ItemFile.create)."""
        ItemFile.create(path, items, overwrite=overwrite)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        trie: Trie,
        rules: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        wait_s: float = 5.0,
    ) -> "Catalogue":
        """Read a catalogue and evaluate its rules, a TOML file's `[rules]` or a mapping of name to SQL predicate.

        Costs one scan of the ids, and one scan of its columns for each rule. wait_s: how long to wait for a process
        that is writing the file. Raises DataError (the file or its ids), RuleError (naming rule and predicate).
        """
        return cls(ItemFile(path, wait_s=wait_s), trie, rules)

    @property
    def rules(self) -> RuleSet:
        """The rules in force. Hold on to it to see one state, whatever is reloaded meanwhile."""
        return self._rules

    @property
    def index_version(self) -> str:
        """Which index the filters belong to."""
        return self._trie.version

    def filter(self, names: Iterable[str]) -> Filter | None:
        """Items that all the named rules allow now; None (everything) without names. Raises UnknownRuleError."""
        return self._rules.filter(names)

    def lookup(self, item_ids: Sequence[Any] | Ids, columns: Sequence[str] | None = None) -> pa.Table:
        """Attributes of some items as they are in the file now, in the order asked; unknown ids give nulls.

        Opens the file for the moment, so it is for showing titles, not for the path of a request.
        Raises DataError (the file, an unknown column), ItemIdError (ids of another kind).
        """
        with self._loading, self._items.reading() as reading:
            return reading.lookup(item_ids, columns)

    def reload(self) -> LoadReport:
        """Read rules and attributes again and put all filters in force at once. Never raises for what a user got wrong.

        A rule that cannot be evaluated keeps its last good filter and the report says so; if rules file or table cannot
        be read at all, nothing changes. A rule that is no longer named is gone.
        """
        with self._loading:
            before = self._rules
            started = time.perf_counter()
            try:
                self._rules = self._load(read_rules(self._source), before=before)
            except PleachError as error:
                last = before.report
                return LoadReport(
                    num_items=last.num_items,
                    not_in_index=last.not_in_index,
                    not_in_catalogue=last.not_in_catalogue,
                    rules=last.rules,
                    seconds=time.perf_counter() - started,
                    error=str(error),
                )
            return self._rules.report

    def _load(self, source: Mapping[str, object], *, before: RuleSet | None) -> RuleSet:
        """Evaluate all rules. The first load (`before` is None) accepts no failure, a later one works around it."""
        started = time.perf_counter()
        filters: dict[str, Filter] = {}
        reports: list[RuleReport] = []
        with self._items.reading() as reading:
            index_rows, num_items, num_known = self._index_rows(reading)
            for name, predicate in source.items():
                try:
                    rows = reading.select(name, check_rule(name, predicate))
                    filters[name] = self._filter(index_rows[rows])
                    reports.append(RuleReport(name=name, num_items=len(filters[name])))
                except RuleError as error:
                    if before is None:
                        raise
                    kept = name in before.filters
                    if kept:
                        filters[name] = before.filters[name]
                    num_allowed = len(filters[name]) if kept else 0
                    reports.append(RuleReport(name=name, num_items=num_allowed, error=str(error), kept=kept))
        report = LoadReport(
            num_items=num_items,
            not_in_index=num_items - num_known,
            not_in_catalogue=len(self._trie) - num_known,
            rules=tuple(reports),
            seconds=time.perf_counter() - started,
        )
        return RuleSet(filters, report, generation=1 if before is None else before.generation + 1)

    def _index_rows(self, reading: Reading) -> tuple[NDArray[np.int64], int, int]:
        """(index_rows, M, how many of the M are in the index): row number of DuckDB -> row in the index, or -1."""
        rows_M, ids_M = reading.ids()
        first = self._trie.items.ids_of(np.zeros(min(1, len(self._trie)), np.int64))
        if len(ids_M) and len(first) and (ids_M.dtype.kind == "U") != (first.dtype.kind == "U"):
            kinds = ("text", "whole numbers") if first.dtype.kind == "U" else ("whole numbers", "text")
            raise DataError(
                f"the index knows its items by {kinds[0]} such as {first[0].item()!r}, but the column item_id of "
                f"{self._items.path} holds {kinds[1]} such as {ids_M[0].item()!r}: one of the two has to change"
            )
        found_M = self._trie.find(ids_M)
        index_rows = np.full(int(rows_M.max(initial=-1)) + 1, -1, np.int64)
        index_rows[rows_M] = found_M
        return index_rows, len(ids_M), int(np.count_nonzero(found_M >= 0))

    def _filter(self, rows: NDArray[np.int64]) -> Filter:
        allowed_N = np.zeros(len(self._trie), np.bool_)
        allowed_N[rows[rows >= 0]] = True
        return self._trie.filter(allowed_N)
