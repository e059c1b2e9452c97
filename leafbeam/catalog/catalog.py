"""Catalog: items with attributes, rules as filters, and the live index, changed together. Shapes: n items of one call."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa

from leafbeam.catalog.active_rules import ActiveRules
from leafbeam.catalog.catalog_rules import CatalogRules
from leafbeam.catalog.definitions import Boost, Rule, definition_of
from leafbeam.catalog.durations import parse_duration
from leafbeam.catalog.expression import Expression
from leafbeam.catalog.items_table import ItemsTable, TableOptions
from leafbeam.catalog.rule_config import LoadReport, RuleSource, RuleStatus
from leafbeam.catalog.rule_set import RuleSet
from leafbeam.catalog.sources import CsvOptions, ItemSource
from leafbeam.catalog.time_limit import DEFAULT_S
from leafbeam.catalog.transaction import Attributes, CatalogTransaction
from leafbeam.errors import CodesError, counted
from leafbeam.files import Closing
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.items import ItemIds
from leafbeam.live import LiveIndex
from leafbeam.live.transaction import Codes

_CLOSE_S = 5.0
log = logging.getLogger("leafbeam.catalog")


class Catalog(Closing):
    """Items with attributes in a DuckDB table, rules over them as filters, and a live index. All three change together.

    A request reads `rules`, an immutable RuleSet with the version of the index to which it belongs, and never the table. The
    rules are evaluated over all items by `open`, `reload`, `refresh` and, for rules with a refresh interval, by a background
    thread; `insert`, `delete`, `replace` and `update` evaluate them for the changed items only. Readers never wait.

    Rules are configuration and become SQL; names and ids of a request never do. `index` is the live index. `open` and
    `in_memory` make a catalog.

    Args:
        table: The table of items.
        index: A trie or a live index.
        rules: As for `open`.
        refresh: As for `open`.
        clock: As for `open`.
        background: As for `open`.
        data_may_fail: As for `open`.
        load: As for `open`.

    Examples:
        >>> catalog = Catalog.open("shop.duckdb", trie, rules={"cheap": "price < 20"})
        >>> catalog.add_rule("fresh", "first_seen > now() - INTERVAL 7 DAY", refresh="60s")
        >>> catalog.filter("fresh & cheap", deny=["B0042"])
    """

    def __init__(
        self,
        table: ItemsTable,
        index: Trie | LiveIndex,
        rules: RuleSource,
        *,
        refresh: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
        data_may_fail: bool = False,
        load: bool = True,
    ) -> None:
        self._table, self._owns_index = table, isinstance(index, Trie)
        try:
            self._interval = None if refresh is None else parse_duration(refresh, "refresh")
            self.index = LiveIndex.create(None, index) if isinstance(index, Trie) else index
            self._active = ActiveRules(self.index, RuleSet.empty(self.index.version()))
            self._rules = CatalogRules(
                table,
                self._active,
                rules,
                refresh=self._interval,
                clock=clock,
                background=background,
                data_may_fail=data_may_fail,
            )
            if load:
                self._rules.load(first=True)
            else:
                self._rules.evaluator.check()
        except BaseException:
            table.close()
            raise

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], items: ItemSource, *, overwrite: bool = False, **csv: Unpack[CsvOptions]
    ) -> None:
        """Write a catalog's file from Arrow, a file or PostgreSQL (see ItemsTable.create).

        Args:
            path: The DuckDB file to write.
            items: The rows of the items.
            overwrite: If true, an existing file is replaced.
            csv: The `delimiter` and the `encoding` of a CSV file.
        """
        ItemsTable.create(path, items, overwrite=overwrite, **csv)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        index: Trie | LiveIndex,
        rules: RuleSource = None,
        *,
        refresh: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
        data_may_fail: bool = False,
        load: bool = True,
        **table: Unpack[TableOptions],
    ) -> "Catalog":
        """Open a catalog file and evaluate its rules.

        This looks up the table's ids in the index, and scans the columns that each rule reads.

        Args:
            path: The DuckDB file.
            index: A trie, whose changes are kept in memory only, or a LiveIndex, which can be durable.
            rules: The rules and boosts: a TOML file with tables `[rules]` and `[boosts]`, a mapping of names to predicates
                (a rule) or to `{"expression": "0.1 * margin"}` (a boost), or several of these.
            refresh: The interval of rules that have none of their own ("60s"); None evaluates them at `reload` only.
            clock: The time in seconds, for tests.
            background: If false, there is no thread; call `refresh_due`. This is for tests.
            data_may_fail: If true, a rule whose evaluation over these rows fails or takes too long does not raise here;
                it is unavailable instead.
            load: Whether to evaluate the rules now. False is for a process that only changes items; until `reload` it
                knows no rules, and not which items have a row.
            table: `exclusive` keeps the file open and locks other processes out, for frequent changes. `wait_s` is how
                long to wait for a process that writes the file (5 s). `hold_s` is how long a change keeps the file open
                for the next ones, unless another process uses the file as a catalog. `rule_timeout_s` limits each
                evaluation of a rule; a rule that takes longer fails.

        Raises:
            DataError: If the file is unusable.
            RuleError: If a rule is invalid.
        """
        return cls(
            ItemsTable(path, **table),
            index,
            rules,
            refresh=refresh,
            clock=clock,
            background=background,
            data_may_fail=data_may_fail,
            load=load,
        )

    @classmethod
    def in_memory(
        cls,
        items: ItemSource,
        index: Trie | LiveIndex,
        rules: RuleSource = None,
        *,
        refresh: str | None = None,
        rule_timeout_s: float = DEFAULT_S,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
        **csv: Unpack[CsvOptions],
    ) -> "Catalog":
        """Return a catalog with a table in memory, which is filled from a source.

        The arguments are those of `create` and `open`.

        Raises:
            DataError: If the source is unusable.
            RuleError: If a rule is invalid.
        """
        table = ItemsTable.in_memory(items, rule_timeout_s=rule_timeout_s, **csv)
        return cls(table, index, rules, refresh=refresh, clock=clock, background=background)

    @property
    def rules(self) -> RuleSet:
        """Return the current rules and the version to which they belong; a reference to them keeps that state."""
        return self._active.rules

    def version(self) -> Version:
        """Return the version of the index to which the current rules belong. This never waits."""
        return self.rules.version

    @property
    def index_version(self) -> str:
        """Return the fingerprint of the base trie."""
        return self.version().segments[0].trie.version

    def filter(self, rules: str | Iterable[str] | Expression = (), *, deny: ItemIds = ()) -> Filter | None:
        """Return the items that the rules allow now, without denied ones. The rules are names, or an expression over
        them (see RuleSet.filter).
        """
        return self.rules.filter(rules, deny=deny)

    def schema(self, *, before_change: bool = False) -> pa.Schema:
        """Return the columns of the table and their types. This may open the file.

        Args:
            before_change: If true, a change follows, and the file is opened for writing too.

        Raises:
            DataError: If the file is unusable.
        """
        with self._table.reading(before_change=before_change) as session:
            return session.schema()

    def lookup(self, item_ids: ItemIds, columns: Sequence[str] | None = None) -> pa.Table:
        """Return attributes of some items, in the order of the ids, with nulls for unknown ids.

        This scans the ids, and may open the file.

        Args:
            item_ids: The ids.
            columns: The columns; None takes all.

        Raises:
            DataError: If the file is unusable or a column is unknown.
            ItemIdError: If the ids cannot be compared with the table's, such as words with numbers.
        """
        with self._table.reading() as session:
            return session.lookup(item_ids, columns)

    def search(self, text: str, *, column: str | None = "title", limit: int = 20) -> pa.Table:
        """Return items whose column contains every word of a text, in upper or lower case, or whose id is the text; the
        shortest first.

        This scans the column. An empty text gives the first items.

        Args:
            text: The words.
            column: The column; None searches ids alone.
            limit: The largest number of items.

        Raises:
            DataError: As for `lookup`.
        """
        with self._table.reading() as session:
            return session.search(text.split(), column, limit)

    # Rules.

    def reload(self, items: ItemSource | None = None, **csv: Unpack[CsvOptions]) -> LoadReport:
        """Read and evaluate all rules again, and replace all filters at once. It never raises for bad rules or data.

        A rule that fails keeps its last good result. If the rules, the table or the source cannot be read, nothing changes. A
        rule that is no longer in the file, and was not added by `add_rule`, is removed.

        Args:
            items: A source that replaces the table first.
            csv: As for `create`.
        """
        return self._rules.reload(items, **csv)

    def add_rule(self, name: str, where: str, refresh: str | None = None) -> None:
        """Add or replace a rule. The rule stays when the rules are reloaded.

        Args:
            name: The name of the rule.
            where: An SQL predicate.
            refresh: The interval after which it is evaluated again, such as "60s".

        Raises:
            RuleError: If the rule is invalid.
            DataError: If the file is unusable.
        """
        self._add(name, {"where": where}, refresh)

    def remove_rule(self, name: str) -> None:
        """Remove a rule. If the rules file has the rule, the next reload brings it back.

        Raises:
            UnknownRuleError: If there is no such rule.
        """
        self._rules.remove(name, Rule)

    def add_boost(self, name: str, expression: str, refresh: str | None = None) -> None:
        """Add or replace a boost, as `add_rule` does with a rule. No rule may have its name.

        Raises:
            RuleError: If the boost is invalid, or its number for an item is not finite.
        """
        self._add(name, {"expression": expression}, refresh)

    def remove_boost(self, name: str) -> None:
        """Remove a boost, as `remove_rule` does with a rule. Raises UnknownBoostError."""
        self._rules.remove(name, Boost)

    def _add(self, name: str, definition: dict[str, str], refresh: str | None) -> None:
        value = definition if refresh is None else {**definition, "refresh": refresh}
        self._rules.add(definition_of(name, value, refresh=self._interval))

    def refresh(self, *names: str) -> tuple[RuleStatus, ...]:
        """Evaluate the named rules and boosts (or all) now; one that fails keeps its last good result.

        Raises:
            UnknownRuleError: If there is no such rule or boost.
        """
        return self._rules.refresh(*names)

    def refresh_due(self) -> float | None:
        """Evaluate each rule that is due, as the background thread does, and return the seconds until the next one is due, if
        any.
        """
        return self._rules.refresh_due()

    @property
    def status(self) -> tuple[RuleStatus, ...]:
        """Return the status of each rule and boost."""
        return self._rules.status

    # Items.

    @contextmanager
    def transaction(self, before_commit: Callable[[], None] = lambda: None) -> Generator[CatalogTransaction]:
        """Make several changes of items that become visible together when the block ends, or not at all if it raises.

        The attributes are committed first, then the index's log; then both become visible. After a crash or an error
        between the two, the table has attributes of items that the index does not have; no rule reads them. A
        transaction costs what one of LiveIndex costs, plus 5 ms for the rows of new items and about 1 ms per rule. It
        warns with CatalogInUseWarning if another process has the file open.

        Args:
            before_commit: A function that is called when all changes are checked and written, and only their commits
                are left. If it raises, nothing is changed.

        Examples:
            >>> with catalog.transaction() as transaction:
            ...     transaction.delete(["a"]); transaction.insert([[0, 0]], ["d"], [{"price": 3.5}])
        """
        with self._active.write_lock:
            rules = self.rules
            with self.index.transaction() as inner:
                transaction = CatalogTransaction(inner)
                yield transaction
                self._table.warn_if_shared(stacklevel=4)
                changed_ids = transaction.changed_ids()
                values = self._rules.evaluator.write(
                    transaction.tables(),
                    changed_ids,
                    list(rules.definitions.values()),
                    removed_ids=transaction.removed_ids(),
                    before_commit=before_commit,
                )
            self._active.advance(changed_ids, values.by_name)
            for name, error in values.errors.items():
                self._rules.record(name, error)
        self._rules.after_change()

    def insert(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> int:
        """Add items. The next `rules` and `version()` contain them.

        Args:
            codes: Shape (n, L).
            item_ids: The ids.
            attributes: One row per item, in the order of the ids. With None, an item keeps the row that the table
                already has for it, or else gets a row of NULLs.

        Returns:
            The number of the new version.

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is live already or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
            LogError: If the log cannot be written.
        """
        with self.transaction() as transaction:
            transaction.insert(codes, item_ids, attributes)
        return self.version().number

    def delete(self, item_ids: ItemIds) -> int:
        """Remove items, and return the number of the new version. Their attributes stay in the table until `purge`.

        Raises:
            ItemIdError: If an id is not live or occurs twice.
            LogError: If the log cannot be written.
        """
        with self.transaction() as transaction:
            transaction.delete(item_ids)
        return self.version().number

    def replace(self, codes: Codes, item_ids: ItemIds, attributes: Attributes | None = None) -> int:
        """Give items other codes and, optionally, other attributes; return the number of the new version.

        Raises:
            CodesError: If the codes do not fit the index.
            ItemIdError: If an id is not live or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
            LogError: If the log cannot be written.
        """
        with self.transaction() as transaction:
            transaction.replace(codes, item_ids, attributes)
        return self.version().number

    def update(self, item_ids: ItemIds, attributes: Attributes) -> None:
        """Give items other attributes. Rules are evaluated for these items only.

        Raises:
            ItemIdError: If an id is not live or occurs twice.
            DataError: If an attribute is unknown or of the wrong type.
        """
        with self.transaction() as transaction:
            transaction.update(item_ids, attributes)

    def save(self, trie_path: str | os.PathLike[str], items_path: str | os.PathLike[str]) -> Version:
        """Write all items into an index file and their attributes into a Parquet file, and return the version that was
        saved.

        This builds an index and copies the table. Changes wait until it is done.

        Raises:
            OSError: If a file cannot be written.
            DataError: If the catalog's file is unusable.
        """
        with self._active.write_lock:
            version = self.version()
            self.index.merge().save(Path(trie_path))
            with self._table.reading(other_files=True) as session:
                session.save(Path(items_path))
        return version

    def restore(self, trie: Trie, items: ItemSource, before_commit: Callable[[], None] = lambda: None) -> None:
        """Replace all items and attributes at once by those of a trie and a source, such as the files that `save`
        wrote. The rules stay.

        A request sees either all of the old items or all of the new ones. This looks up every id and evaluates all
        rules. If the process crashes after the table is written and before the log is, call it again.

        Args:
            trie: The items.
            items: Their rows.
            before_commit: As for `transaction`.

        Raises:
            CodesError: If the codes do not fit.
            ItemIdError: If ids are of the wrong kind.
            DataError: If the source is unusable.
            LogError: If the log cannot be written.
        """
        if trie.codebook_sizes != (own := self.version().codebook_sizes):
            raise CodesError(f"the codebooks of the saved items are {trie.codebook_sizes}, those of the index {own}")
        with self._rules.lock, self._active.write_lock:
            version = self.index.version()
            old_ids = version.all_items.item_ids()
            is_known_N = version.knows(trie.item_ids) if len(old_ids) else np.zeros(trie.num_items, np.bool_)
            new_codes = trie.codes_of(trie.item_ids)
            is_other_N = is_known_N.copy()
            is_other_N[is_known_N] = (version.codes_of(trie.item_ids[is_known_N]) != new_codes[is_known_N]).any(axis=1)
            with self.transaction() as transaction:
                transaction.delete(old_ids[~trie.knows(old_ids)] if trie.num_items else old_ids)
                transaction.replace(new_codes[is_other_N], trie.item_ids[is_other_N])
                transaction.evaluate_again(trie.item_ids[is_known_N])
                transaction.insert(new_codes[~is_known_N], trie.item_ids[~is_known_N])
                self._table.refill(items, before_commit, ids_are_checked=True)
        self.reload()

    def compact(self, *, wait: bool = False) -> None:
        """Merge the segments of the index, and their filters, in the background (see LiveIndex.compact)."""
        self.index.compact(wait=wait)

    def purge(self) -> int:
        """Delete the table's rows of items that the index does not have, and return the number of deleted rows.

        The next evaluation of the rules joins table and index again, which takes longer.
        """
        with self._rules.lock, self._active.write_lock:
            self._table.warn_if_shared(stacklevel=4)
            num_purged = self._rules.evaluator.purge(self.version())
        self._rules.after_change()
        return num_purged

    def close(self) -> None:
        """Stop evaluations and the background thread, and close the file. Rule sets that are referenced stay valid."""
        self._table.stop()
        if self._rules.lock.acquire(timeout=_CLOSE_S):  # the end of Python aborts while a thread is inside DuckDB
            self._rules.lock.release()
        self._rules.close()
        self._table.close()
        if self._owns_index:
            self.index.close()

    def __repr__(self) -> str:
        return f"Catalog({self._table.name!r}, {counted(len(self.version()), 'item')}, rules: {len(self.rules.filters)})"
