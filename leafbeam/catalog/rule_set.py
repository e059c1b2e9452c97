"""RuleSet: the filters of all rules for one version, and those that requests combine. Shapes: n items of one call."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.conflict import conflict_of
from leafbeam.catalog.expression import Expression
from leafbeam.catalog.remap import old_rows_of, remap, with_bits
from leafbeam.catalog.rule_config import LISTED, LoadReport, Rule
from leafbeam.errors import UnknownRuleError, counted
from leafbeam.index import Filter, Trie, Version
from leafbeam.index.items import ItemIds

# What a rule selects: one filter for each segment, deleted items included.
SegmentFilters = tuple[Filter, ...]


class RuleFilters(Mapping[str, Filter]):
    """The filter of each rule for one version, made when it is first used.

    Args:
        by_segment: The filters of each rule by segment, with deleted items and items without a row; under LISTED the items that
            have a row.
    """

    def __init__(self, version: Version, by_segment: Mapping[str, SegmentFilters]) -> None:
        self.version = version
        self.by_segment = by_segment
        self._made: dict[str, Filter] = {}

    def __getitem__(self, name: str) -> Filter:
        if name == LISTED:
            raise KeyError(name)
        made = self._made.get(name)
        if made is None:  # two threads may both make it; they make the same
            made, listed = self.version.filter_of(self.by_segment[name]), self.listed
            made = self._made.setdefault(name, made if listed is None else made & listed)
        return made

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.by_segment if name != LISTED)

    def __len__(self) -> int:
        return len(self.by_segment) - (LISTED in self.by_segment)

    @cached_property
    def listed(self) -> Filter | None:
        """Return the live items that have a row in the table; None if all have one."""
        if LISTED not in self.by_segment:
            return None
        listed = self.version.filter_of(self.by_segment[LISTED])
        return None if len(listed) == self.version.num_items else listed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RuleSet:
    """An immutable snapshot of the rules, for the version of the index to which they belong.

    A request that holds a reference to it sees one state of items and rules throughout. Search `rules.version` with its
    filters, and with no others.

    Args:
        filters: The filter of each rule.
        definitions: The definition of each rule.
        report: The report of the last load, with the newest status of each rule.
        generation: 1 for the first load, and one more after each load or refresh that changed a filter.
        rule_generations: The generation from which each rule's filter comes.
    """

    filters: RuleFilters
    definitions: Mapping[str, Rule]
    report: LoadReport
    generation: int
    rule_generations: Mapping[str, int]

    @classmethod
    def empty(cls, version: Version) -> "RuleSet":
        """Return the rule set of a version before rules are loaded."""
        report = LoadReport(num_items=0, not_in_index=0, not_in_catalog=0, rules=(), seconds=0.0)
        return cls(filters=RuleFilters(version, {}), definitions={}, report=report, generation=0, rule_generations={})

    @property
    def version(self) -> Version:
        return self.filters.version

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

    def _unknown(self, name: str) -> str:
        if any(rule.name == name and rule.error is not None for rule in self.report.rules):
            return f"rule {name!r} is not available: it could not be evaluated when the rules were last loaded"
        rules = ", ".join(sorted(self.filters)) or "none"
        hint = " (a minus needs a space on its left)" if "-" in name and name.split("-")[0] in self.filters else ""
        return f"unknown rule {name[:80]!r}{hint}; the rules of this catalog are: {rules}"


def advance_filters(
    filters: Mapping[str, SegmentFilters],
    old: Version,
    new: Version,
    changed_ids: NDArray[np.generic],
    bits: Mapping[str, NDArray[np.bool_]],
    prepared: tuple[Trie, Mapping[str, Filter]] | None = None,
) -> dict[str, SegmentFilters]:
    """Return the filters of rules for a new version, from those for an old one.

    Segments of both versions keep their filters; in a new segment each item's bit comes from its row in the old version.

    Cost: nothing for an unchanged base; for a new delta 4 ns an item and rule.

    Args:
        changed_ids: (n,) the live items whose bits are new.
        bits: These bits by rule, (n,) each.
        prepared: A trie and the filters that exist for it already.
    """
    known: dict[int, Mapping[str, Filter]] = {} if prepared is None else {id(prepared[0]): prepared[1]}
    for number, segment in enumerate(old.segments):
        known[id(segment.trie)] = {name: by_segment[number] for name, by_segment in filters.items()}
    parts: list[Mapping[str, Filter]] = []
    for segment in new.segments:
        trie = segment.trie
        part = {name: part for name, part in known.get(id(trie), {}).items() if name in filters}
        if missing := filters.keys() - part.keys():
            old_row_N = old_rows_of(trie, old)
            part |= {name: remap(filters[name], old, trie, old_row_N) for name in missing}
        if len(changed_ids):
            rows = trie.find(changed_ids)
            in_segment = segment.is_live(rows)
            if in_segment.any():
                ordinals = trie.items.ordinal_N[rows[in_segment]]
                part = {name: with_bits(before, ordinals, bits[name][in_segment], trie) for name, before in part.items()}
        parts.append(part)
    return {name: tuple(part[name] for part in parts) for name in filters}


def reuse_equal(new: SegmentFilters, old: SegmentFilters | None) -> SegmentFilters:
    """Return the old filters where they are equal to the new ones, so that caches keyed by filter stay valid."""
    if old is None or len(old) != len(new):
        return new
    parts = tuple(before if before == after else after for after, before in zip(new, old, strict=True))
    return old if all(part is before for part, before in zip(parts, old, strict=True)) else parts
