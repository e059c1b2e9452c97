"""Rules: named SQL predicates, and what they select at one moment."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from pleach.errors import RuleError, UnknownRuleError
from pleach.index import Filter

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleReport:
    """How one rule fared at a load: `num_items` it allows now, and why it could not be evaluated, if it could not.

    kept: the filter of an earlier load is still in force, because this load failed.
    """

    name: str
    num_items: int
    error: str | None = None
    kept: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What a load of the catalogue found. `str(report)` is one readable paragraph; `ok` is false if anything failed.

    not_in_index: items of the table that the index does not know (they can never be recommended).
    not_in_catalogue: items of the index without a row in the table (they come without rules, and no rule selects them).
    error: why the whole load failed, in which case everything is as it was before.
    """

    num_items: int
    not_in_index: int
    not_in_catalogue: int
    rules: tuple[RuleReport, ...]
    seconds: float
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and all(rule.error is None for rule in self.rules)

    @property
    def agrees(self) -> bool:
        """Table and index know the same items."""
        return self.not_in_index == self.not_in_catalogue == 0

    def __str__(self) -> str:
        lines = [f"catalogue: {self.num_items:,} items, {len(self.rules)} rules, loaded in {self.seconds:.2f} s"]
        if self.error is not None:
            lines = [f"catalogue: nothing was changed, because the load failed: {self.error}"]
        if self.not_in_index:
            lines.append(f"  {self.not_in_index:,} items of the table are not in the index: they are never recommended")
        if self.not_in_catalogue:
            lines.append(f"  {self.not_in_catalogue:,} items of the index are not in the table: no rule selects them")
        for rule in self.rules:
            what = f"{rule.num_items:,} items" if rule.error is None or rule.kept else "not available"
            why = "" if rule.error is None else f"{' as before' if rule.kept else ''}: {rule.error}"
            lines.append(f"  rule {rule.name}: {what}{why}")
        return "\n".join(lines)


class RuleSet:
    """The filters of all rules at one moment: immutable, so a request that holds one sees one state of the shop.

    generation: 1 for the first load, one more after each load that changed the rules in force.
    filters: name -> Filter.
    """

    def __init__(self, filters: Mapping[str, Filter], report: LoadReport, *, generation: int) -> None:
        self.filters = MappingProxyType(dict(filters))
        self.report = report
        self.generation = generation
        # The rules of a page are the same for all its visitors: their AND is made once per load.
        self._intersection = lru_cache(maxsize=64)(self._intersect)

    def filter(self, names: Iterable[str]) -> Filter | None:
        """Items that all the named rules allow; None (everything) without names. The AND is kept for the next request.

        Raises UnknownRuleError.
        """
        wanted = frozenset(names)
        for name in sorted(wanted):
            if name not in self.filters:
                raise UnknownRuleError(self._unknown(name))
        return self._intersection(wanted) if wanted else None

    def _intersect(self, names: frozenset[str]) -> Filter:
        first, *others = sorted((self.filters[name] for name in names), key=len)
        for other in others:
            first = first & other
        return first

    def _unknown(self, name: str) -> str:
        for rule in self.report.rules:
            if rule.name == name and rule.error is not None:
                return f"rule {name!r} is not available: it could not be evaluated when the rules were last loaded"
        rules = ", ".join(sorted(self.filters)) or "none"
        return f"unknown rule {name[:80]!r}; the rules of this catalogue are: {rules}"


def read_rules(source: str | os.PathLike[str] | Mapping[str, object] | None) -> dict[str, object]:
    """Rule name -> predicate, from a TOML file with one table `[rules]`, or from a mapping.

    Values are checked one by one by `check_rule`, so that one bad rule does not hide the others.
    Raises RuleError: no such file, not TOML, no table `[rules]`, or something beside it.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"cannot read the rules of {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{path} is not a TOML file: {error}") from error
    rules = document.pop("rules", None)
    if not isinstance(rules, dict) or document:
        found = ", ".join(["rules"] * (rules is not None) + list(document)) or "nothing"
        raise RuleError(f'{path} has to hold one table [rules] with lines such as fresh = "age < 7"; it holds: {found}')
    return rules


def check_rule(name: str, predicate: object) -> str:
    """The predicate of a rule, if name and predicate are what they have to be; else RuleError."""
    if not _NAME.fullmatch(name):
        raise RuleError(f"a rule's name is a letter and up to 63 letters, digits, - or _, not {name!r}")
    if not isinstance(predicate, str) or not predicate.strip():
        raise RuleError(f"rule {name!r} has to be the text of an SQL predicate, not {predicate!r}")
    return predicate
