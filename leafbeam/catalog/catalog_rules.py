"""CatalogRules: the rules of a catalog, the times of their evaluation, and the current results."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Unpack

from leafbeam.catalog.active_rules import ActiveRules, ChangeRecord
from leafbeam.catalog.evaluator import Evaluation, Evaluator, LastEvaluation
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.catalog.refresh import BackgroundWorker, Schedule
from leafbeam.catalog.rule_config import LISTED, LoadReport, Rule, RuleSource, RuleStatus, read_rules
from leafbeam.catalog.rule_set import RuleFilters, RuleSet, advance_filters, reuse_equal
from leafbeam.catalog.sources import CsvOptions, ItemSource
from leafbeam.errors import LeafbeamError, RuleError, UnknownRuleError

log = logging.getLogger("leafbeam.catalog")


class CatalogRules:
    """The part of a catalog that evaluates its rules: at a load, after changes of items and at intervals. `Catalog`
    describes the methods.

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
        self._added_rules: dict[str, Rule] = {}
        self._evaluations: dict[str, LastEvaluation] = {}
        self._read_other_rows: frozenset[str] = frozenset()  # rules that are evaluated over all items after each change
        self._schedule = Schedule()
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

    def add(self, name: str, where: str, refresh: str | None) -> None:
        """Add or replace a rule; see `Catalog.add_rule`."""
        rule = Rule.of(name, where if refresh is None else {"where": where, "refresh": refresh}, refresh=self._refresh)
        with self.lock, self._active.recording() as (rules, record):
            began = self._clock()
            evaluation = self.evaluator.evaluate([rule], rules.version)
            if name in evaluation.errors:
                raise evaluation.errors[name]
            self._added_rules[name] = rule
            self._install(evaluation, {**rules.definitions, name: rule}, record, began, kept=rules.filters)

    def remove(self, name: str) -> None:
        """Remove a rule; see `Catalog.remove_rule`."""
        with self.lock, self._active.recording() as (rules, record):
            if name not in rules.definitions and name not in rules.filters:
                raise UnknownRuleError(f"there is no rule {name[:80]!r} to remove: {', '.join(rules.filters) or 'none'}")
            self._added_rules.pop(name, None)
            definitions = {other: rule for other, rule in rules.definitions.items() if other != name}
            kept = [other for other in rules.filters if other != name]
            self._install(Evaluation(version=rules.version), definitions, record, self._clock(), kept=kept)

    def refresh(self, *names: str) -> tuple[RuleStatus, ...]:
        """Evaluate rules now; see `Catalog.refresh`."""
        for name in names:
            if name not in self._active.rules.definitions:
                raise UnknownRuleError(
                    f"there is no rule {name[:80]!r} to refresh: {', '.join(self._active.rules.definitions)}"
                )
        for name in names or tuple(self._active.rules.definitions):
            self.refresh_one(name)
        return tuple(status for status in self._active.rules.report.rules if not names or status.name in names)

    def refresh_due(self) -> float | None:
        """Evaluate each rule that is due; see `Catalog.refresh_due`."""
        for _ in self._active.rules.definitions:
            with self.lock:
                if (name := self._schedule.next_due(self._clock())) is None:
                    break
                self.refresh_one(name)
        with self.lock:
            return self._schedule.wait(self._clock())

    def refresh_in_background(self) -> float | None:
        """Evaluate each rule that is due, and go on after any error."""
        try:
            return self.refresh_due()
        except Exception:  # the thread has to go on
            if not self._table.is_stopped:
                log.exception("rules could not be refreshed; the next attempt is in a second")
            return 1.0

    @property
    def status(self) -> tuple[RuleStatus, ...]:
        """Return the status of each rule."""
        filters, definitions = (rules := self._active.rules).filters, rules.definitions
        return tuple(self._status_of(name, filters, definitions) for name in dict.fromkeys([*filters, *definitions]))

    def after_change(self) -> None:
        """Evaluate the rules that read other rows: a change of one item may change their result for another."""
        self._refresh_each(self._read_other_rows)

    def load(self, *, first: bool) -> LoadReport:
        """Evaluate all rules. The first load raises the first error, a later one keeps the last good filters."""
        began, started = self._clock(), time.perf_counter()
        definitions, errors = read_rules(self._source, refresh=self._refresh)
        definitions |= self._added_rules
        with self._active.recording() as (rules, record):
            evaluation = self.evaluator.evaluate(list(definitions.values()), rules.version, count=True)
            errors = {name: error for name, error in errors.items() if name not in self._added_rules}
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
        """Evaluate a rule, if it is still there; one that fails keeps its last good filter."""
        with self.lock, self._active.recording() as (rules, record):
            rule = rules.definitions.get(name)
            if rule is None:
                return
            began = self._clock()
            try:
                evaluation = self.evaluator.evaluate([rule], rules.version)
            except LeafbeamError as error:
                reason = RuleError(f"rule {name!r} cannot be evaluated: {error}")
                evaluation = Evaluation(version=rules.version, errors={name: reason})
            self._install(evaluation, rules.definitions, record, began, kept=rules.filters)
            self._schedule.evaluated(name, began, self._clock())

    def _install(
        self,
        evaluation: Evaluation,
        definitions: Mapping[str, Rule],
        record: ChangeRecord,
        began: float,
        *,
        kept: Iterable[str],
        load: LoadReport | None = None,
    ) -> LoadReport:
        """Make newly evaluated filters current, together with those of `kept`. `record` has the items changed
        meanwhile; `load` is the report of a whole load.
        """
        with self._active.write_lock:
            now, current = self._active.rules, self._active.rules.filters.by_segment
            changed_ids = self._active.live_ids(record)
            matches = self.evaluator.evaluate_rows(
                changed_ids, [definitions[name] for name in evaluation.filters if name != LISTED]
            )
            evaluated = advance_filters(evaluation.filters, evaluation.version, now.version, changed_ids, matches.bits)
            by_segment = {name: current[name] for name in (LISTED, *kept) if name in current}
            by_segment |= {name: reuse_equal(found, current.get(name)) for name, found in evaluated.items()}
            is_new = {name for name, found in by_segment.items() if found is not current.get(name)}
            generation = now.generation + (load is not None or bool(is_new) or by_segment.keys() != current.keys())
            filters = RuleFilters(now.version, by_segment)
            errors = {**evaluation.errors, **matches.errors}
            statuses = {} if load is not None else {status.name: status for status in now.report.rules}
            for name in {**evaluation.seconds, **errors}:
                seconds = evaluation.seconds.get(name, 0.0)
                self.record(name, errors.get(name), at=began, seconds=seconds, quiet=load is not None)
                statuses[name] = self._status_of(name, filters, definitions)
            known = definitions.keys() | filters.keys()
            self._evaluations = {name: last for name, last in self._evaluations.items() if name in known}
            known |= errors.keys()
            report = replace(load or now.report, rules=tuple(status for name, status in statuses.items() if name in known))
            self._active.rules = RuleSet(
                filters=filters,
                definitions=definitions,
                report=report,
                generation=generation,
                rule_generations={name: generation if name in is_new else now.rule_generations[name] for name in by_segment},
            )
            before, found = self._read_other_rows, evaluation.reads_other_rows
            self._read_other_rows = frozenset((before - evaluation.filters.keys() | found) & definitions.keys())
        self._refresh_each(found - before if len(changed_ids) else ())  # their writers did not know of these rules
        self._schedule.plan(definitions.values(), self._clock())
        if self._refresher is not None and self._schedule.wait(0.0) is not None:
            self._refresher.wake()
        return report

    def _status_of(self, name: str, filters: RuleFilters, definitions: Mapping[str, Rule]) -> RuleStatus:
        last = self._evaluations.get(name, LastEvaluation())
        return RuleStatus(
            name=name,
            num_items=len(filters[name]) if name in filters else 0,
            error=last.error,
            kept=last.error is not None and name in filters,
            age_s=None if last.succeeded_at is None else self._clock() - last.succeeded_at,
            seconds=last.seconds,
            refresh=definitions[name].refresh if name in definitions else None,
        )

    def record(
        self, name: str, error: RuleError | None, *, at: float | None = None, seconds: float = 0.0, quiet: bool = False
    ) -> None:
        """Store the result of an evaluation; unless `quiet`, log when a rule begins to fail or succeeds again."""
        before = self._evaluations.get(name, LastEvaluation())
        if error is None:
            self._evaluations[name] = LastEvaluation(succeeded_at=at, seconds=seconds)
            if before.error is not None and not quiet:
                log.info("rule %s can be evaluated again", name)
            return
        self._evaluations[name] = replace(before, error=str(error))
        if before.error is None and not quiet and not self._table.is_stopped:
            log.warning("%s\nrule %s keeps its last good filter until it can be evaluated again", error, name)
