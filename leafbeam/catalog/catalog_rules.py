"""CatalogRules: the rules and boosts of a catalog, the times of their evaluation, and the current results."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Unpack

from leafbeam.catalog.active_rules import ActiveRules, ChangeRecord
from leafbeam.catalog.definitions import LISTED, Boost, Definition, GroupColumn, Rule, key_of_column
from leafbeam.catalog.evaluator import Evaluation, Evaluator, LastEvaluation
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.catalog.refresh import BackgroundWorker, Schedule
from leafbeam.catalog.remap import make_bounds
from leafbeam.catalog.rule_config import LoadReport, RuleSource, RuleStatus, read_rules, same_name_error
from leafbeam.catalog.rule_set import RuleFilters, RuleSet, advance_values, reuse_equal
from leafbeam.catalog.sources import CsvOptions, ItemSource
from leafbeam.errors import DataError, LeafbeamError, RuleError, UnknownBoostError, UnknownColumnError, UnknownRuleError

_MAX_GROUP_COLUMNS = 16
log = logging.getLogger("leafbeam.catalog")


class CatalogRules:
    """The part of a catalog that evaluates its rules and boosts: at a load, after changes of items and at intervals. `Catalog`
    describes the methods.

    All of them are definitions, which are evaluated, carried over and kept in the same way; so are the columns by whose
    groups requests cap their answers.

    Args:
        table: The table of the items.
        active: The current rule set.
        source: The definitions of the rules.
        refresh: The seconds between two evaluations of rules without an interval of their own.
        clock: The time in seconds.
        background: If true, a thread evaluates rules that are due.
        data_may_fail: If true, a rule that fails at the first load does not raise; it is unavailable instead.
    """

    def __init__(
        self,
        table: ItemsTable,
        active: ActiveRules,
        source: RuleSource,
        *,
        refresh: float | None,
        clock: Callable[[], float],
        background: bool,
        data_may_fail: bool,
    ) -> None:
        self.evaluator = Evaluator(table)
        self.lock = threading.RLock()  # one evaluation at a time; taken before the write lock, never after
        self._table, self._active, self._source, self._refresh = table, active, source, refresh
        self._clock, self._data_may_fail = clock, data_may_fail
        self._added: dict[str, Definition] = {}  # by `add` and `load_groups`; they outlive a reload
        self._evaluations: dict[str, LastEvaluation] = {}
        self._read_other_rows: frozenset[str] = frozenset()  # definitions that are evaluated over all items after each change
        self._schedule = Schedule()
        self._weak_load_groups = _weak(self.load_groups)
        self._refresher = BackgroundWorker(self.refresh_in_background, "leafbeam-refresh") if background else None

    def close(self) -> None:
        """Stop the background thread."""
        if self._refresher is not None:
            self._refresher.close()

    def reload(self, items: ItemSource | None = None, **csv: Unpack[CsvOptions]) -> LoadReport:
        """Read and evaluate all rules again; see `Catalog.reload`."""
        with self.lock:
            before, began = self._active.rules.report, time.perf_counter()
            try:
                if items is not None:
                    self._table.refill(items, **csv)
                return self.load(first=False)
            except LeafbeamError as error:
                return replace(before, seconds=time.perf_counter() - began, error=str(error))

    def add(self, definition: Definition) -> None:
        """Add or replace a definition; see `Catalog.add_rule`. One without an interval has that of the catalog."""
        name = definition.name
        with self.lock, self._active.recording() as (rules, record):
            if rules.kind_of(name) not in (None, definition.noun):
                raise same_name_error(name)
            began = self._clock()
            evaluation = self.evaluator.evaluate([definition], rules.version)
            if name in evaluation.errors:
                raise evaluation.errors[name]
            self._added[name] = definition
            self._install(evaluation, {**rules.definitions, name: definition}, record, began, kept=rules.filters.by_segment)

    def remove(self, name: str, kind: type[Rule] | type[Boost]) -> None:
        """Remove a definition; see `Catalog.remove_rule`."""
        with self.lock, self._active.recording() as (rules, record):
            if rules.kind_of(name) != kind.noun:
                known, error = (rules.filters, UnknownRuleError) if kind is Rule else (rules.boosts, UnknownBoostError)
                raise error(
                    f"there is no {kind.noun} {name[:80]!r} to remove; the {kind.noun}s of this catalog are: "
                    f"{', '.join(known) or 'none'}"
                )
            self._drop(name, rules, record)

    def load_groups(self, column: str) -> RuleSet:
        """Evaluate the groups of a column, unless that is done, and return the current rule set; see `RuleSet.groups`."""
        name = key_of_column(column)
        with self.lock:
            if name in self._active.rules.filters.by_segment:
                return self._active.rules
            with self._table.reading() as session:
                columns = session.schema().names
            if column not in columns:
                raise UnknownColumnError(f"unknown column {column[:80]!r}; the columns of the items are: {', '.join(columns)}")
            oldest, *others = [other for other in self._added if other.startswith(key_of_column(""))] or [""]
            if len(others) + 1 >= _MAX_GROUP_COLUMNS:
                with self._active.recording() as (rules, record):
                    self._drop(oldest, rules, record)
            self.add(GroupColumn(name=name))
            return self._active.rules

    def refresh(self, *names: str) -> tuple[RuleStatus, ...]:
        """Evaluate definitions now; see `Catalog.refresh`."""
        for name in names:
            if self._active.rules.kind_of(name) is None:
                known = ", ".join(filter(self._active.rules.kind_of, self._active.rules.definitions))
                raise UnknownRuleError(
                    f"there is no rule or boost {name[:80]!r} to refresh; this catalog has: {known or 'none'}"
                )
        for name in names or tuple(self._active.rules.definitions):
            self.refresh_one(name)
        return tuple(status for status in self._active.rules.report.rules if not names or status.name in names)

    def refresh_due(self) -> float | None:
        """Evaluate each definition that is due; see `Catalog.refresh_due`."""
        for _ in self._active.rules.definitions:
            with self.lock:
                if (name := self._schedule.next_due(self._clock())) is None:
                    break
                self.refresh_one(name)
        with self.lock:
            return self._schedule.wait(self._clock())

    def refresh_in_background(self) -> float | None:
        """Evaluate each definition that is due, and go on after any error."""
        try:
            return self.refresh_due()
        except Exception:  # the thread has to go on
            if not self._table.is_stopped:
                log.exception("rules could not be refreshed; the next attempt is in a second")
            return 1.0

    @property
    def status(self) -> tuple[RuleStatus, ...]:
        """Return the status of each rule and boost."""
        rules = self._active.rules
        names = dict.fromkeys([*rules.filters, *rules.boosts, *rules.definitions])
        return tuple(self._status_of(name, rules) for name in names if rules.kind_of(name) is not None)

    def after_change(self) -> None:
        """Evaluate the definitions that read other rows: a change of one item may change their result for another."""
        self._refresh_each(self._read_other_rows)

    def load(self, *, first: bool) -> LoadReport:
        """Evaluate all definitions. The first load raises the first error, a later one keeps the last good results."""
        began, started = self._clock(), time.perf_counter()
        written, errors = read_rules(self._source, refresh=self._refresh)
        definitions: dict[str, Definition] = {**written, **self._added}
        for name, definition in written.items():
            if definition.noun != definitions[name].noun:
                raise same_name_error(name)
        with self._active.recording() as (rules, record):
            evaluation = self.evaluator.evaluate(list(definitions.values()), rules.version, count=True)
            errors = {name: error for name, error in errors.items() if name not in self._added}
            evaluation = replace(evaluation, errors={**evaluation.errors, **errors})
            if first:
                evaluation.check(data_may_fail=self._data_may_fail)
            assert evaluation.num_items is not None
            assert evaluation.num_known is not None
            report = LoadReport(
                num_items=evaluation.num_items,
                not_in_index=evaluation.num_items - evaluation.num_known,
                not_in_catalog=rules.version.num_items - evaluation.num_known,
                rules=(),
                seconds=time.perf_counter() - started,
                examples=evaluation.examples,
            )
            return self._install(evaluation, definitions, record, began, kept=[*definitions, *evaluation.errors], load=report)

    def _refresh_each(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            self.refresh_one(name)

    def refresh_one(self, name: str) -> None:
        """Evaluate a definition, if it is still there; one that fails keeps its last good result."""
        with self.lock, self._active.recording() as (rules, record):
            definition = rules.definitions.get(name)
            if definition is None:
                return
            began = self._clock()
            try:
                evaluation = self.evaluator.evaluate([definition], rules.version)
            except LeafbeamError as error:
                reason = RuleError(f"{definition} cannot be evaluated: {error}")
                evaluation = Evaluation(version=rules.version, errors={name: reason})
            self._install(evaluation, rules.definitions, record, began, kept=rules.filters.by_segment)
            self._schedule.evaluated(name, began, self._clock())

    def _drop(self, name: str, rules: RuleSet, record: ChangeRecord) -> None:
        self._added.pop(name, None)
        definitions = {other: definition for other, definition in rules.definitions.items() if other != name}
        kept = [other for other in rules.filters.by_segment if other != name]
        self._install(Evaluation(version=rules.version), definitions, record, self._clock(), kept=kept)

    def _install(
        self,
        evaluation: Evaluation,
        definitions: Mapping[str, Definition],
        record: ChangeRecord,
        began: float,
        *,
        kept: Iterable[str],
        load: LoadReport | None = None,
    ) -> LoadReport:
        """Make newly evaluated results current, together with those of `kept`. `record` has the items changed
        meanwhile; `load` is the report of a whole load.
        """
        last, base = self._active.rules.filters.by_segment, evaluation.version.segments[0].trie
        for name in evaluation.values.keys() & last.keys():
            make_bounds(evaluation.values[name][0], last[name][0], base)
        with self._active.write_lock:
            now, current = self._active.rules, self._active.rules.filters.by_segment
            changed_ids = self._active.live_ids(record)
            changed = self.evaluator.evaluate_rows(
                changed_ids, [definitions[name] for name in evaluation.values if name != LISTED]
            )
            evaluated = advance_values(evaluation.values, evaluation.version, now.version, changed_ids, changed.by_name)
            by_segment = {name: current[name] for name in (LISTED, *kept) if name in current}
            changed_kind = {name for name in definitions if now.kind_of(name) not in (None, definitions[name].noun)}
            by_segment = {name: parts for name, parts in by_segment.items() if name not in changed_kind}
            by_segment |= {name: reuse_equal(found, current.get(name)) for name, found in evaluated.items()}
            is_new = {name for name, found in by_segment.items() if found is not current.get(name)}
            generation = now.generation + (load is not None or bool(is_new) or by_segment.keys() != current.keys())
            errors = {**evaluation.errors, **changed.errors}
            rules = RuleSet(
                filters=RuleFilters(now.version, by_segment),
                definitions=definitions,
                report=load or now.report,
                generation=generation,
                rule_generations={name: generation if name in is_new else now.rule_generations[name] for name in by_segment},
                load_groups=self._weak_load_groups,
            )
            statuses = {} if load is not None else {status.name: status for status in now.report.rules}
            for name in {**evaluation.seconds, **errors}:
                seconds = evaluation.seconds.get(name, 0.0)
                self.record(name, errors.get(name), at=began, seconds=seconds, quiet=load is not None)
                statuses[name] = self._status_of(name, rules)
            known = definitions.keys() | by_segment.keys()
            self._evaluations = {name: last for name, last in self._evaluations.items() if name in known}
            reported = {name for name in known if rules.kind_of(name) is not None} | errors.keys()
            report = replace(rules.report, rules=tuple(status for name, status in statuses.items() if name in reported))
            self._active.rules = replace(rules, report=report)
            before, found = self._read_other_rows, evaluation.reads_other_rows
            self._read_other_rows = frozenset((before - evaluation.values.keys() | found) & definitions.keys())
        self._refresh_each(found - before if len(changed_ids) else ())  # their writers did not know of these definitions
        self._schedule.plan(definitions.values(), self._clock())
        if self._refresher is not None and self._schedule.wait(0.0) is not None:
            self._refresher.wake()
        return report

    def _status_of(self, name: str, rules: RuleSet) -> RuleStatus:
        last = self._evaluations.get(name, LastEvaluation())
        return RuleStatus(
            name=name,
            num_items=len(rules.filters.selected(name)) if name in rules.filters.by_segment else 0,
            error=last.error,
            kept=last.error is not None and name in rules.filters.by_segment,
            age_s=None if last.succeeded_at is None else self._clock() - last.succeeded_at,
            seconds=last.seconds,
            refresh=rules.definitions[name].refresh if name in rules.definitions else None,
            kind=rules.kind_of(name) or Rule.noun,
        )

    def record(
        self, name: str, error: RuleError | None, *, at: float | None = None, seconds: float = 0.0, quiet: bool = False
    ) -> None:
        """Store the result of an evaluation; unless `quiet`, log when a definition begins to fail or succeeds again."""
        before = self._evaluations.get(name, LastEvaluation())
        if error is None:
            self._evaluations[name] = LastEvaluation(succeeded_at=at, seconds=seconds)
            if before.error is not None and not quiet:
                log.info("%s %s can be evaluated again", self._active.rules.kind_of(name) or Rule.noun, name)
            return
        self._evaluations[name] = replace(before, error=str(error))
        if before.error is None and not quiet and not self._table.is_stopped:
            log.warning("%s\nit keeps its last good result until it can be evaluated again", error)


def _weak(load_groups: Callable[[str], RuleSet]) -> Callable[[str], RuleSet]:
    """Return the bound method as a function that does not keep its object: rule sets outlive their catalog."""
    method = weakref.WeakMethod(load_groups)

    def load(column: str) -> RuleSet:
        alive = method()
        if alive is None:
            raise DataError(f"the groups of column {column[:80]!r} cannot be evaluated: the catalog is closed")
        return alive(column)

    return load
