"""Catalog: the items, their attributes, and the rules over them as filters, while all of them change.

Shapes: n items of one call, L levels.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.catalog.active_rules import ActiveRules
from leafbeam.catalog.evaluator import Evaluation, Evaluator
from leafbeam.catalog.expression import Expression
from leafbeam.catalog.items_table import ItemStore
from leafbeam.catalog.refresh import Refresher, RuleStatus, Schedule
from leafbeam.catalog.rule_config import LoadReport, Rule, RuleReport, RuleSource, read_rules, seconds_of
from leafbeam.catalog.rule_set import RuleSet, unchanged
from leafbeam.catalog.sessions import Ids
from leafbeam.catalog.sources import ItemSource
from leafbeam.catalog.transaction import Attributes, CatalogTransaction, Codes
from leafbeam.errors import LeafbeamError, RuleError, UnknownRuleError
from leafbeam.index import Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.live import LiveIndex

__all__ = ["Catalog"]

log = logging.getLogger("leafbeam.catalog")


class Catalog:
    """A shop's items with their attributes and its rules, ready as filters, while items, attributes and rules change.

    Think of it as a photograph of a table beside an index. Requests look at the latest photograph (`rules`: a version of the
    index and a filter for each rule, together) and never at the table. A new one is taken when rules are evaluated (`open`,
    `reload`, `refresh`, or by itself every so often for rules that say so) and when items change (`insert`, `delete`,
    `replace`, `update`), in which case only the changed items are judged anew. Nothing is rebuilt, nobody waits.

    Rules are configuration and become SQL; what requests bring (names, signs, ids) never does.

    >>> catalog = Catalog.open("shop.duckdb", trie, rules={"cheap": "price < 20"})
    >>> catalog.add_rule("fresh", "first_seen > now() - INTERVAL 7 DAY", refresh="60s")
    >>> catalog.filter("fresh & cheap", deny=["B0042"])
    """

    def __init__(
        self,
        store: ItemStore,
        index: Trie | LiveIndex,
        rules: RuleSource,
        *,
        refresh: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> None:
        self._owns_segments = isinstance(index, Trie)
        self.segments = LiveIndex.create(None, index) if isinstance(index, Trie) else index
        self._store = store
        self._evaluator = Evaluator(store)
        self._source, self._clock = rules, clock
        self._refresh = None if refresh is None else seconds_of(refresh, "refresh")
        self._evaluating = threading.RLock()  # one evaluation at a time; taken before `changing`, never after
        self._added: dict[str, Rule] = {}
        self._health: dict[str, _Health] = {}
        self._schedule = Schedule()
        self._refresher = Refresher(self._tick, "leafbeam-refresh") if background else None
        nothing = LoadReport(num_items=0, not_in_index=0, not_in_catalog=0, rules=(), seconds=0.0)
        self._force = ActiveRules(self.segments, RuleSet(self.segments.version(), {}, {}, nothing, generation=0, since={}))
        self._load(first=True)

    @classmethod
    def create(cls, path: str | os.PathLike[str], items: ItemSource, *, overwrite: bool = False) -> None:
        """Write the DuckDB file of a catalog from Arrow, a `.parquet` or `.csv` file or PostgreSQL (see ItemStore.create)."""
        ItemStore.create(path, items, overwrite=overwrite)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        index: Trie | LiveIndex,
        rules: RuleSource = None,
        *,
        refresh: str | None = None,
        hold: bool = False,
        wait_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> Catalog:
        """Read a catalog and evaluate its rules: a TOML file's `[rules]`, a mapping of names to predicates, or several.

        index: a trie, to which changes are made in memory only, or LiveIndex, which can keep them. refresh: how often rules are
        evaluated again that do not say so themselves ("60s"); None: at `reload` only. hold: keep the file open and everybody
        else out, for a catalog whose items change often. wait_s: how long to wait for a process that is writing the file.
        clock, background: for tests; without the background, call `refresh_due`.

        Costs a look-up of the table's ids in the index, and a scan of its columns for each rule. Raises DataError (the file or
        its ids), RuleError (naming rule and predicate).
        """
        store = ItemStore(path, wait_s=wait_s, hold=hold)
        return cls._opened(store, index, rules, refresh=refresh, clock=clock, background=background)

    @classmethod
    def in_memory(
        cls,
        items: ItemSource,
        index: Trie | LiveIndex,
        rules: RuleSource = None,
        *,
        refresh: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> Catalog:
        """The same with a table in memory, read from a source. Raises DataError, RuleError."""
        return cls._opened(ItemStore.in_memory(items), index, rules, refresh=refresh, clock=clock, background=background)

    @classmethod
    def _opened(
        cls,
        store: ItemStore,
        index: Trie | LiveIndex,
        rules: RuleSource,
        *,
        refresh: str | None,
        clock: Callable[[], float],
        background: bool,
    ) -> Catalog:
        try:
            return cls(store, index, rules, refresh=refresh, clock=clock, background=background)
        except BaseException:
            store.close()
            raise

    @property
    def rules(self) -> RuleSet:
        """The rules in force and the version that they belong to.

        Hold on to it to see one state, whatever changes meanwhile.
        """
        return self._force.rules

    def version(self) -> Version:
        """The index as the rules in force see it: what to search with their filters. Cost: none; never waits."""
        return self._force.rules.version

    @property
    def index_version(self) -> str:
        """The fingerprint of the base trie."""
        return self.version().segments[0].trie.version

    def filter(self, rules: str | Iterable[str] | Expression = (), *, deny: ItemIds = ()) -> VersionFilter | None:
        """Items that the rules (names, or an expression over them) allow now, less the denied; see RuleSet.filter."""
        return self.rules.filter(rules, deny=deny)

    def lookup(self, item_ids: Sequence[Any] | Ids, columns: Sequence[str] | None = None) -> pa.Table:
        """Attributes of some items as they are in the table now, in the order asked; unknown ids give nulls.

        For showing titles, not for the path of a request: it scans the ids, and may open the file for the moment.
        Raises DataError (the file, an unknown column), ItemIdError (ids of another kind).
        """
        with self._store.reading() as reading:
            return reading.lookup(item_ids, columns)

    # Rules.

    def reload(self, items: ItemSource | None = None) -> LoadReport:
        """Read rules and attributes again and put all filters in force at once. Never raises for what a user got wrong.

        items: a source that becomes the whole table first. A rule that cannot be evaluated keeps its last good filter and the
        report says so; if rules file, table or source cannot be read at all, nothing changes. A rule that is no longer named is
        gone, unless `add_rule` made it.
        """
        with self._evaluating:
            last, began = self.rules.report, time.perf_counter()
            try:
                if items is not None:
                    self._store.refill(items)
                return self._load(first=False)
            except LeafbeamError as error:
                return replace(last, seconds=time.perf_counter() - began, error=str(error))

    def add_rule(self, name: str, where: str, refresh: str | None = None) -> None:
        """A rule from now on, also after reloads; one of this name is replaced. refresh: how often it is evaluated ("60s").

        Raises RuleError (name, predicate or duration), DataError (the table cannot be read); then nothing was changed.
        """
        often = self._refresh if refresh is None else seconds_of(refresh, f"the refresh of rule {name!r}")
        rule = Rule(name=name, where=where, refresh=often)
        with self._evaluating, self._force.recording() as (rules, record):
            began = self._clock()
            evaluation = self._evaluator.evaluate([rule], rules.version)
            if rule.name in evaluation.faults:
                raise evaluation.faults[rule.name]
            self._added[name] = rule
            self._put(evaluation, {**rules.definitions, name: rule}, record, began, kept=rules.filters)

    def remove_rule(self, name: str) -> None:
        """Forget a rule; one that the rules file names comes back at the next reload. Raises UnknownRuleError."""
        with self._evaluating, self._force.recording() as (rules, record):
            if name not in rules.definitions and name not in rules.filters:
                raise UnknownRuleError(
                    f"there is no rule {name[:80]!r} to remove: {', '.join(rules.filters) or 'there are none'}"
                )
            self._added.pop(name, None)
            definitions = {one: rule for one, rule in rules.definitions.items() if one != name}
            self._put(_nothing(rules), definitions, record, self._clock(), kept=[one for one in rules.filters if one != name])

    def refresh(self, *names: str) -> tuple[RuleReport, ...]:
        """Evaluate rules again now, all of them without names, each put in force by itself.

        A rule that cannot be evaluated keeps its last good filter, and its report says so. Raises UnknownRuleError.
        """
        for name in names:
            if name not in self.rules.definitions:
                raise UnknownRuleError(
                    f"there is no rule {name[:80]!r} to refresh: {', '.join(self.rules.definitions) or 'none'}"
                )
        for name in names or tuple(self.rules.definitions):
            self._refresh_one(name)
        wanted = set(names or self.rules.definitions)
        return tuple(report for report in self.rules.report.rules if report.name in wanted)

    def _tick(self) -> float | None:
        """What the background thread does; nothing may end it."""
        try:
            return self.refresh_due()
        except Exception:
            log.exception("rules could not be refreshed; the next attempt is in a second")
            return 1.0

    def refresh_due(self) -> float | None:
        """Evaluate the rules whose time has come, each once; the background thread does nothing else.

        Returns the seconds until the next: 0 where one that takes longer than its interval is due again.
        """
        for _ in self.rules.definitions:
            with self._evaluating:
                name = self._schedule.next_due(self._clock())
                if name is None:
                    break
                self._refresh_one(name)
        with self._evaluating:
            return self._schedule.wait(self._clock())

    @property
    def status(self) -> tuple[RuleStatus, ...]:
        """How each rule is doing."""
        rules, now = self.rules, self._clock()
        health = {name: self._health.get(name, _Health()) for name in rules.filters}
        return tuple(
            RuleStatus(
                name=name,
                num_items=len(chosen),
                age_s=None if (at := health[name].good_at) is None else now - at,
                seconds=health[name].seconds,
                refresh=rules.definitions[name].refresh if name in rules.definitions else None,
                error=health[name].error,
            )
            for name, chosen in rules.filters.items()
        )

    # Items.

    @contextmanager
    def transaction(self) -> Generator[CatalogTransaction]:
        """Several changes of items that come into force together when the block ends, or not at all where it raises.

        Attributes are written first, then the index's log, then everybody sees both. A crash between the two leaves attributes
        of items that the index does not have, which count for nothing; where the log cannot be written the same is true. Cost:
        that of LiveIndex, 5 ms for rows of new items, and about 1 ms a rule.

        >>> with catalog.transaction() as change:
        ...     change.delete(["a"]); change.insert([[0, 0]], ["d"], [{"price": 3.5}])
        """
        with self._force.changing:
            rules = self._force.rules
            definitions = list(rules.definitions.values())
            with self.segments.transaction() as inner:
                change = CatalogTransaction(inner, rules.version)
                yield change
                touched, tables = change.touched(), change.tables()
                judged = self._evaluator.write(tables, touched, definitions)
            bits = {name: judged.bits.get(name, np.zeros(len(touched), np.bool_)) for name in rules.chosen}
            self._force.follow(touched, bits)
            for name, fault in judged.faults.items():
                self._note(name, fault)

    def insert(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> int:
        """Add items; the next `rules` and `version()` have them.

        codes: (n, L). attributes: n rows in the order of the ids, as an Arrow table or a list of mappings; None: the rows that
        the table has for them already, if any.

        Returns the version's number. Raises CodesError, ItemIdError (an id is there already, or twice), DataError (attributes),
        LogError.
        """
        with self.transaction() as change:
            change.insert(codes, item_ids, attributes)
        return self.version().number

    def delete(self, item_ids: ItemIds) -> int:
        """Take items out. Their attributes stay in the table, unseen, until `purge`. Raises ItemIdError, LogError."""
        with self.transaction() as change:
            change.delete(item_ids)
        return self.version().number

    def replace(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> int:
        """Give items other codes, and if given other attributes. Raises CodesError, ItemIdError, DataError, LogError."""
        with self.transaction() as change:
            change.replace(codes, item_ids, attributes)
        return self.version().number

    def update(self, item_ids: ItemIds, attributes: Attributes) -> None:
        """Give items other attributes; the rules are asked about these items only. Raises ItemIdError, DataError."""
        with self.transaction() as change:
            change.update(item_ids, attributes)

    def compact(self, *, wait: bool = False) -> None:
        """Merge the segments in the background; the rules follow. See LiveIndex.compact."""
        self.segments.compact(wait=wait)

    def purge(self) -> int:
        """Delete the table's rows of items that the index does not have; returns how many.

        Cost: a scan, then a new look at all ids.
        """
        with self._evaluating, self._force.changing:
            return self._evaluator.purge(self.version())

    def close(self) -> None:
        """End the background thread and give a held file back. Rules that somebody holds stay good."""
        if self._refresher is not None:
            self._refresher.close()
        self._store.close()
        if self._owns_segments:
            self.segments.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, *, first: bool) -> LoadReport:
        """Evaluate all rules. The first load accepts no fault, a later one works around it."""
        began, started = self._clock(), time.perf_counter()
        stated, faults = read_rules(self._source, refresh=self._refresh)
        definitions = {**stated, **self._added}
        faults = {name: fault for name, fault in faults.items() if name not in self._added}
        with self._force.recording() as (rules, record):
            evaluation = self._evaluator.evaluate(list(definitions.values()), rules.version, count=True)
            evaluation.faults.update(faults)
            if first and evaluation.faults:
                raise next(iter(evaluation.faults.values()))
            assert evaluation.num_items is not None
            assert evaluation.num_known is not None
            report = LoadReport(
                num_items=evaluation.num_items,
                not_in_index=evaluation.num_items - evaluation.num_known,
                not_in_catalog=rules.version.num_items - evaluation.num_known,
                rules=(),
                seconds=time.perf_counter() - started,
            )
            return self._put(evaluation, definitions, record, began, kept=[*definitions, *evaluation.faults], load=report)

    def _refresh_one(self, name: str) -> None:
        with self._evaluating, self._force.recording() as (rules, record):
            rule = rules.definitions.get(name)
            if rule is None:
                return
            began = self._clock()
            try:
                evaluation = self._evaluator.evaluate([rule], rules.version)
            except LeafbeamError as error:
                evaluation = _nothing(rules)
                evaluation.faults[name] = RuleError(f"rule {name!r} cannot be evaluated: {error}")
            self._put(evaluation, rules.definitions, record, began, kept=rules.filters)
            self._schedule.ran(name, began, self._clock())

    def _put(
        self,
        evaluation: Evaluation,
        definitions: Mapping[str, Rule],
        record: list[NDArray[np.generic]],
        began: float,
        *,
        kept: Iterable[str],
        load: LoadReport | None = None,
    ) -> LoadReport:
        """Put what was evaluated in force, beside the rules `kept` from before.

        load: the report of a load of everything, so far.
        """
        with self._force.changing:
            now = self._force.rules
            touched = self._force.touched(record)
            judged = self._evaluator.judge(touched, [definitions[name] for name in evaluation.chosen])
            evaluated = self._force.fitted(evaluation.chosen, evaluation.version, touched, judged.bits)
            chosen = {name: now.chosen[name] for name in kept if name in now.chosen}
            chosen |= {name: unchanged(found, now.chosen.get(name)) for name, found in evaluated.items()}
            differs = set(chosen) != set(now.chosen) or any(one is not now.chosen[name] for name, one in chosen.items())
            generation = now.generation + (load is not None or differs)
            since = {name: now.since[name] if one is now.chosen.get(name) else generation for name, one in chosen.items()}
            rules = RuleSet(now.version, chosen, definitions, now.report, generation=generation, since=since)
            faults = {**evaluation.faults, **judged.faults}
            for name in evaluation.seconds.keys() | faults.keys():
                self._note(name, faults.get(name), good_at=began, seconds=evaluation.seconds.get(name, 0.0))
            self._health = {name: one for name, one in self._health.items() if name in definitions or name in rules.filters}
            rules.report = self._report(rules, evaluation, faults, load)
            self._force.put(rules)
        self._schedule.plan(definitions.values(), self._clock())
        if self._refresher is not None and self._schedule.wait(0.0) is not None:
            self._refresher.wake()
        return rules.report

    def _report(
        self, rules: RuleSet, evaluation: Evaluation, faults: Mapping[str, RuleError], load: LoadReport | None
    ) -> LoadReport:
        """The report so far, with what this evaluation found."""
        gone = {report.name for report in rules.report.rules} - set(rules.filters) - set(faults) - set(evaluation.seconds)
        before = {} if load is not None else {report.name: report for report in rules.report.rules}
        for name in [*evaluation.seconds, *(name for name in faults if name not in evaluation.seconds)]:
            fault, there = faults.get(name), name in rules.filters
            before[name] = RuleReport(
                name=name,
                num_items=len(rules.filters[name]) if there else 0,
                error=None if fault is None else str(fault),
                kept=fault is not None and there,
            )
        reports = tuple(
            report for name, report in before.items() if name in rules.definitions or name in faults or name not in gone
        )
        return replace(load or rules.report, rules=reports)

    def _note(self, name: str, fault: RuleError | None, *, good_at: float | None = None, seconds: float = 0.0) -> None:
        """Remember how a rule is doing, and say so when that changes."""
        before = self._health.get(name, _Health())
        if fault is None:
            self._health[name] = _Health(good_at=good_at, seconds=seconds)
            if before.error is not None:
                log.info("rule %s can be evaluated again", name)
            return
        self._health[name] = replace(before, error=str(fault))
        if before.error is None:
            log.warning("%s\nuntil that is mended, what rule %s selected before stays in force", fault, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Health:
    """When a rule was last evaluated well, how long that took, and what is wrong with it now."""

    good_at: float | None = None
    seconds: float = 0.0
    error: str | None = None


def _nothing(rules: RuleSet) -> Evaluation:
    """An evaluation of no rule."""
    return Evaluation(version=rules.version, chosen={}, faults={}, seconds={})
