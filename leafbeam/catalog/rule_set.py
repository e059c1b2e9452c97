"""RuleSet: the values of all rules and boosts for one version, and what requests make of them. Shapes: n items of one call."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.conflict import conflict_of
from leafbeam.catalog.definitions import LISTED, Boost, Definition, GroupColumn, Rule, key_of_column
from leafbeam.catalog.expression import Expression
from leafbeam.catalog.remap import SegmentValues, are_equal, as_set, old_rows_of, remap, with_values
from leafbeam.catalog.rule_config import LoadReport
from leafbeam.errors import UnknownBoostError, UnknownColumnError, UnknownRuleError, counted
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.index.items import ItemIds

# The values of a definition: those of each segment's items, deleted items included.
VersionValues = tuple[SegmentValues, ...]


class RuleFilters(Mapping[str, Filter]):
    """The filter of each rule for one version, made when it is first used, and what it is made from.

    Args:
        by_segment: The values of each definition by segment, with deleted items and items without a row; under LISTED the
            items that have a row.
    """

    def __init__(self, version: Version, by_segment: Mapping[str, VersionValues]) -> None:
        self.version = version
        self.by_segment = by_segment
        self._made: dict[str, Filter] = {}

    def __getitem__(self, name: str) -> Filter:
        if name == LISTED or not isinstance(self.by_segment[name][0], Filter):
            raise KeyError(name)
        return self.selected(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, parts in self.by_segment.items() if name != LISTED and isinstance(parts[0], Filter))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def selected(self, name: str) -> Filter:
        """Return the live items with a row that a rule allows, or for which a boost is not 0."""
        made = self._made.get(name)
        if made is None:  # two threads may both make it; they make the same
            parts = [
                as_set(part, segment.trie) for part, segment in zip(self.by_segment[name], self.version.segments, strict=True)
            ]
            made, listed = self.version.filter_of(parts), self.listed
            made = self._made.setdefault(name, made if listed is None else made & listed)
        return made

    @cached_property
    def columns(self) -> Mapping[str, ItemColumn]:
        """Return the numbers of boosts and of groups, each as one column of the version."""
        return {
            name: ItemColumn.joined([part for part in parts if isinstance(part, ItemColumn)], self.version)
            for name, parts in self.by_segment.items()
            if isinstance(parts[0], ItemColumn)
        }

    @cached_property
    def listed(self) -> Filter | None:
        """Return the live items that have a row in the table; None if all have one."""
        if LISTED not in self.by_segment:
            return None
        listed = self.version.filter_of([part for part in self.by_segment[LISTED] if isinstance(part, Filter)])
        return None if len(listed) == self.version.num_items else listed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RuleSet:
    """An immutable snapshot of the rules, for the version of the index to which they belong.

    A request that holds a reference to it sees one state of items and rules throughout. Search `rules.version` with its
    filters, and with no others.

    Args:
        filters: The filter of each rule.
        definitions: The definition of each rule, boost and group column.
        report: The report of the last load, with the newest status of each rule.
        generation: 1 for the first load, and one more after each load or refresh that changed a filter.
        rule_generations: The generation from which the values of each definition come.
        load_groups: A function that evaluates a column of the table and returns the current rule set, which has its groups.
    """

    filters: RuleFilters
    definitions: Mapping[str, Definition]
    report: LoadReport
    generation: int
    rule_generations: Mapping[str, int]
    load_groups: Callable[[str], "RuleSet"] | None = None

    @classmethod
    def empty(cls, version: Version) -> "RuleSet":
        """Return the rule set of a version before rules are loaded."""
        report = LoadReport(num_items=0, not_in_index=0, not_in_catalog=0, rules=(), seconds=0.0)
        return cls(filters=RuleFilters(version, {}), definitions={}, report=report, generation=0, rule_generations={})

    @property
    def version(self) -> Version:
        return self.filters.version

    @cached_property
    def definitions_version(self) -> str:
        """Return a hash of all rules and boosts, which is equal on servers with the same ones."""
        written = [
            (definition.name, definition.noun, definition.sql)
            for definition in self.definitions.values()
            if not isinstance(definition, GroupColumn)  # these are there once a request has asked for them
        ]
        return blake2b(json.dumps(sorted(written)).encode(), digest_size=6).hexdigest()

    def filter(self, rules: str | Iterable[str] | Expression = (), *, deny: ItemIds = ()) -> Filter | None:
        """Return the items with a row that the rules allow, without denied ones; None if that is every live item.

        This costs one look-up if the expression is cached. Otherwise it costs a pass over the bitmaps for each operator, a
        millisecond or two at 10^7 items.

        Args:
            rules: Names, all of which hold, or an expression such as "(fresh | promo) & in_stock - adult" (see Expression).
            deny: The ids to exclude; ids that the index does not have are ignored.

        Raises:
            UnknownRuleError: If there is no such rule.
            RequestError: If the expression is invalid.
            ItemIdError: If ids are of the wrong type.
        """
        expression, allowed = Expression.of(rules), self.filters.listed
        if expression is not None:
            for name in sorted(expression.names):
                if name not in self.filters:
                    raise UnknownRuleError(self._unknown(name))
            allowed = self._evaluate(expression)
        denied = self.version.deny_ids(deny)
        if not len(denied):
            return allowed
        return (self.version.all_items if allowed is None else allowed).deny(denied)

    @cached_property
    def boosts(self) -> Mapping[str, ItemColumn]:
        """Return the column of each boost."""
        return {name: column for name, column in self.filters.columns.items() if column.parts[0].dtype == np.float32}

    def boost(self, name: str) -> ItemColumn:
        """Return the number of each item by which a boost prefers it.

        Raises:
            UnknownBoostError: If there is no such boost.
        """
        column = self.boosts.get(name)
        if column is None:
            hint = " (there is a rule of this name)" if name in self.filters else ""
            boosts = ", ".join(sorted(self.boosts)) or "none"
            raise UnknownBoostError(f"unknown boost {name[:80]!r}{hint}; the boosts of this catalog are: {boosts}")
        return column

    def groups(self, column: str) -> ItemColumn:
        """Return the number of each item's group by a column of the table, -1 for an item whose value is NULL.

        The first use evaluates the column, over the table as it is then; from then on it follows the changes of items. The
        groups of items that were deleted since this rule set was current are not known, and -1.

        Raises:
            UnknownColumnError: If the table has no such column.
            RuleError: If the column has more than 100,000 values.
            DataError: If the table cannot be read.
        """
        name = key_of_column(column)
        if name in self.filters.columns:
            return self.filters.columns[name]
        loaded = self._with_groups(column).filters
        if loaded.version is self.version:
            return loaded.columns[name]
        no_ids = np.empty(0, np.int64)
        parts = advance_values({name: loaded.by_segment[name]}, loaded.version, self.version, no_ids, {})[name]
        return ItemColumn.joined([part for part in parts if isinstance(part, ItemColumn)], self.version)

    def group_names(self, column: str) -> tuple[str, ...]:
        """Return the values of a column of the table, as text, by the numbers that `groups` returns. Raises as `groups`."""
        definition = self._with_groups(column).definitions[key_of_column(column)]
        assert isinstance(definition, GroupColumn)
        return definition.group_names

    def kind_of(self, name: str) -> str | None:
        """Return "rule" or "boost", or None if there is neither of this name."""
        if name in self.filters or isinstance(self.definitions.get(name), Rule):
            return Rule.noun
        return Boost.noun if name in self.boosts or isinstance(self.definitions.get(name), Boost) else None

    def conflict(self, expression: Expression) -> tuple[str, ...]:
        """Return the rule, or the smallest set of rules, for which no item is left; () if the expression allows an item.

        This costs one look-up if the answer is cached; otherwise see `conflict_of`.
        """
        return self._conflict(expression)

    def __repr__(self) -> str:
        return (
            f"RuleSet({', '.join(self.filters) or 'no rules'}; generation {self.generation}, "
            f"{counted(len(self.version), 'item')})"
        )

    @cached_property
    def _evaluate(self) -> Callable[[Expression], Filter]:
        filters = self.filters  # no reference to self: a cycle would keep old versions until a garbage collection
        return lru_cache(maxsize=64)(lambda expression: expression.evaluate(filters.__getitem__))

    @cached_property
    def _conflict(self) -> Callable[[Expression], tuple[str, ...]]:
        filters = self.filters  # as in `_evaluate`
        return lru_cache(maxsize=64)(
            lambda expression: conflict_of(expression, lambda part: part.evaluate(filters.__getitem__))
        )

    def _with_groups(self, column: str) -> "RuleSet":
        """Return a rule set that has the groups of a column: this one, or the current one."""
        if key_of_column(column) in self.filters.by_segment:
            return self
        if self.load_groups is None:
            raise UnknownColumnError(f"the groups of column {column[:80]!r} are not known: the rules have not been loaded")
        return self.load_groups(column)

    def _unknown(self, name: str) -> str:
        if any(rule.name == name and rule.error is not None for rule in self.report.rules):
            return f"rule {name!r} is not available: it could not be evaluated when the rules were last loaded"
        rules = ", ".join(sorted(self.filters)) or "none"
        hint = " (a minus needs a space on its left)" if "-" in name and name.split("-")[0] in self.filters else ""
        hint = " (there is a boost of this name)" if name in self.boosts else hint
        return f"unknown rule {name[:80]!r}{hint}; the rules of this catalog are: {rules}"


def advance_values(
    values: Mapping[str, VersionValues],
    old: Version,
    new: Version,
    changed_ids: NDArray[np.generic],
    changed: Mapping[str, NDArray[np.generic]],
    prepared: tuple[Trie, Mapping[str, SegmentValues]] | None = None,
) -> dict[str, VersionValues]:
    """Return the values of definitions for a new version, from those for an old one.

    Segments of both versions keep their values; in a new segment each item's value comes from its row in the old version.

    Cost: nothing for an unchanged base; for a new delta 4 ns an item and definition.

    Args:
        changed_ids: (n,) the live items whose values are new.
        changed: These values by definition, (n,) each.
        prepared: A trie and the values that exist for it already.
    """
    known: dict[int, Mapping[str, SegmentValues]] = {} if prepared is None else {id(prepared[0]): prepared[1]}
    for number, segment in enumerate(old.segments):
        known[id(segment.trie)] = {name: by_segment[number] for name, by_segment in values.items()}
    parts: list[Mapping[str, SegmentValues]] = []
    for segment in new.segments:
        trie = segment.trie
        part = {name: part for name, part in known.get(id(trie), {}).items() if name in values}
        if missing := values.keys() - part.keys():
            old_row_N = old_rows_of(trie, old)
            part |= {name: remap(values[name], old, trie, old_row_N) for name in missing}
        if len(changed_ids):
            rows = trie.find(changed_ids)
            in_segment = segment.is_live(rows)
            if in_segment.any():
                ordinals = trie.items.ordinal_N[rows[in_segment]]
                part = {name: with_values(before, ordinals, changed[name][in_segment], trie) for name, before in part.items()}
        parts.append(part)
    return {name: tuple(part[name] for part in parts) for name in values}


def reuse_equal(new: VersionValues, old: VersionValues | None) -> VersionValues:
    """Return the old values where they are equal to the new ones, so that caches keyed by filter or column stay valid."""
    if old is None or len(old) != len(new):
        return new
    parts = tuple(before if are_equal(before, after) else after for after, before in zip(new, old, strict=True))
    return old if all(part is before for part, before in zip(parts, old, strict=True)) else parts
