"""Rules in force: the filters of all rules for one version of the index, and what requests make of them.

Shapes: n items of one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.expression import Expression
from leafbeam.catalog.remap import carried, patched, sources_of
from leafbeam.catalog.rule_config import LoadReport, Rule
from leafbeam.errors import UnknownRuleError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds, as_id_array

__all__ = ["Chosen", "RuleSet", "moved", "unchanged"]

# What a rule selects: one filter for each segment, dead items included.
Chosen = tuple[Filter, ...]


class RuleSet:
    """The rules at one moment, and the version of the index that they belong to.

    Think of it as a photograph of the shop: immutable, so a request that holds one sees one state of items and rules, whatever
    changes meanwhile. Search `rules.version` with its filters, and with nothing else.

    version: what to search. filters: name -> VersionFilter. definitions: name -> Rule. report: how the rules fared.
    generation: 1 for the first load, one more after each load or refresh that changed the rules in force.
    chosen: name -> what the rule selects, dead items included. since: the generation that it comes from.
    """

    def __init__(
        self,
        version: Version,
        chosen: Mapping[str, Chosen],
        definitions: Mapping[str, Rule],
        report: LoadReport,
        *,
        generation: int,
        since: Mapping[str, int],
    ) -> None:
        self.version = version
        self.chosen = dict(chosen)
        self.since = dict(since)
        self.definitions = dict(definitions)
        self.report = report
        self.generation = generation
        self.filters: Mapping[str, VersionFilter] = _Filters(version, self.chosen)
        # The rules of a page are the same for all its visitors: what they mean together is found once.
        self._evaluated = lru_cache(maxsize=64)(self._evaluate)

    def with_chosen(self, version: Version, chosen: Mapping[str, Chosen]) -> RuleSet:
        """The same rules for another version, or after items changed."""
        return RuleSet(version, chosen, self.definitions, self.report, generation=self.generation, since=self.since)

    def filter(self, rules: str | Iterable[str] | Expression = (), *, deny: ItemIds = ()) -> VersionFilter | None:
        """Items that the rules allow, less the denied ones; None (everything) without either.

        rules: names, all of which hold, or an expression such as "(fresh | promo) & in_stock - adult": `-` binds before `&`,
        and that before `|`, as in Python. It is read as names and signs, and cannot be SQL. deny: ids that must not come back;
        one that the index does not have denies nothing.

        Cost: one look-up if the expression was asked before, else a pass over the bitmaps for each sign, a millisecond or two
        at 10^7 items. Raises UnknownRuleError, RequestError (no such expression), ItemIdError (no ids).
        """
        wanted, found = Expression.of(rules), None
        if wanted is not None:
            for name in sorted(wanted.names):
                if name not in self.filters:
                    raise UnknownRuleError(self._unknown(name))
            found = self._evaluated(wanted)
        if not len(deny):
            return found
        denied = as_id_array(deny)
        whole = found if found is not None else self.version.filter_of([None] * len(self.version.segments))
        return whole - self.version.filter(item_ids=denied[self.version.knows(denied)])

    def _evaluate(self, wanted: Expression) -> VersionFilter:
        return wanted.evaluate(self.filters.__getitem__)

    def _unknown(self, name: str) -> str:
        for rule in self.report.rules:
            if rule.name == name and rule.error is not None:
                return f"rule {name!r} is not available: it could not be evaluated when the rules were last loaded"
        rules = ", ".join(sorted(self.filters)) or "none"
        hint = " (a minus needs a space on its left)" if "-" in name and name.split("-")[0] in self.filters else ""
        return f"unknown rule {name[:80]!r}{hint}; the rules of this catalog are: {rules}"


class _Filters(Mapping[str, VersionFilter]):
    """The filters by name, less what is dead, each made when it is first asked for."""

    def __init__(self, version: Version, chosen: Mapping[str, Chosen]) -> None:
        self._version = version
        self._chosen = chosen
        self._made: dict[str, VersionFilter] = {}

    def __getitem__(self, name: str) -> VersionFilter:
        made = self._made.get(name)
        if made is None:  # two threads may both make it: they make the same
            made = self._made.setdefault(name, self._version.filter_of(self._chosen[name]))
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen)

    def __len__(self) -> int:
        return len(self._chosen)


def moved(
    chosen: Mapping[str, Chosen],
    old: Version,
    new: Version,
    touched: NDArray[np.generic],
    bits: Mapping[str, NDArray[np.bool_]],
    prepared: Mapping[str, Filter] | None = None,
    prepared_for: Trie | None = None,
) -> dict[str, Chosen]:
    """What rules select in a version, from what they select in the one before.

    Segments that both have keep their filters; for a new segment each item's bit comes from where the item was. touched: ids
    (n,) of live items whose bits are new; bits: those, by rule. prepared: filters of the trie `prepared_for` that need no
    carrying.

    Cost: nothing for an unchanged base; for a new delta 4 ns an item and rule.
    """
    parts: list[Mapping[str, Filter]] = []
    for segment in new.segments:
        trie = segment.trie
        same = [number for number, one in enumerate(old.segments) if one.trie is trie]
        if same:
            part = {name: filters[same[0]] for name, filters in chosen.items()}
        else:
            ready = prepared if prepared is not None and prepared_for is trie else {}
            part = {name: ready[name] for name in chosen if name in ready}
            if len(part) < len(chosen):
                source_N = sources_of(trie, old)
                part |= {name: carried(filters, old, trie, source_N) for name, filters in chosen.items() if name not in part}
        if len(touched):
            rows = trie.find(touched)
            mine = segment.is_live(rows)
            if mine.any():
                places = trie.items.ordinal_N[rows[mine]]
                part = {name: patched(one, places, bits[name][mine], trie) for name, one in part.items()}
        parts.append(part)
    return {name: tuple(part[name] for part in parts) for name in chosen}


def unchanged(chosen: Chosen, before: Chosen | None) -> Chosen:
    """The filters of before where they select the same, so that who keeps something for a filter finds it again."""
    if before is None or len(before) != len(chosen):
        return chosen
    parts = tuple(old if old == new else new for old, new in zip(before, chosen, strict=True))
    return before if all(part is old for part, old in zip(parts, before, strict=True)) else parts
