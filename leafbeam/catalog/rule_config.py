"""The forms in which rules and boosts are written down, and their status."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leafbeam.catalog.definitions import Boost, Rule, definition_of
from leafbeam.errors import RuleError, counted
from leafbeam.files import read_text
from leafbeam.json_reader import parse_json

# A TOML or JSON file, a mapping, or several of them, of which a later one replaces the definitions that it names.
_OneSource = str | os.PathLike[str] | Mapping[str, object]
RuleSource = _OneSource | Sequence[_OneSource] | None

_MAX_SHOWN = 20
_MAX_DOTS = 32
_KEY = re.compile(r"^[\[\w.\"' \t-]*", re.MULTILINE)  # a line up to the first character that no key of TOML has
_TEXT = re.compile(r"\s*(?P<name>[^\s=@]*)\s*(?:@\s*(?P<refresh>[^\s=]*)\s*)?=(?P<where>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleStatus:
    """The status of one rule or boost.

    Attributes:
        name: The name of the rule or boost.
        num_items: The number of live items that the rule allows, or for which the boost is not 0; 0 if it is not available.
        error: Why the last evaluation failed, over all items or over those that changed.
        kept: Whether its last good result is still in use because that failed.
        age_s: The seconds since its last successful evaluation over all items; None if there was none.
        seconds: The seconds that this evaluation took.
        refresh: The seconds between evaluations; None if it is evaluated only at a reload.
        kind: "rule" or "boost".
    """

    name: str
    num_items: int
    error: str | None
    kept: bool
    age_s: float | None
    seconds: float
    refresh: float | None
    kind: str = "rule"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """The result of loading a catalog. `str(report)` is one readable paragraph; `ok` is false if anything failed.

    Attributes:
        num_items: The number of live items.
        not_in_index: The number of rows whose item has no Semantic ID in the index. They are not recommended.
        not_in_catalog: The number of items of the index without a row. They are not recommended.
        rules: The status of each rule and boost.
        seconds: The seconds that loading took.
        examples: A few ids of the rows that are not in the index.
        error: Why the whole load failed, in which case nothing was changed.
    """

    num_items: int
    not_in_index: int
    not_in_catalog: int
    rules: tuple[RuleStatus, ...]
    seconds: float
    examples: tuple[int | str, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and all(rule.error is None for rule in self.rules)

    @property
    def agrees(self) -> bool:
        """Return whether table and index have the same items."""
        return self.not_in_index == self.not_in_catalog == 0

    def __str__(self) -> str:
        num_boosts = sum(rule.kind == "boost" for rule in self.rules)
        what = [counted(self.num_items, "item"), counted(len(self.rules) - num_boosts, "rule")]
        what += [counted(num_boosts, "boost")] * (num_boosts > 0)
        lines = [f"catalog: {', '.join(what)}, loaded in {self.seconds:.2f} s"]
        if self.error is not None:
            return f"catalog: nothing was changed, because the load failed: {self.error}"
        if self.not_in_index:
            such_as = f" (such as {', '.join(map(repr, self.examples))})" if self.examples else ""
            lines.append(
                f"  {counted(self.not_in_index, 'item of the table is', 'items of the table are')} not in the index{such_as}: "
                "not recommended without a Semantic ID there"
            )
        if self.not_in_catalog:
            lines.append(
                f"  {counted(self.not_in_catalog, 'item of the index is', 'items of the index are')} not in the table: "
                "not recommended"
            )
        for rule in sorted(self.rules, key=lambda rule: rule.error is None)[:_MAX_SHOWN]:
            what = counted(rule.num_items, "item") if rule.error is None or rule.kept else "not available"
            why = "" if rule.error is None else f"{' as before' if rule.kept else ''}: {rule.error}"
            lines.append(f"  {rule.kind} {rule.name}: {what}{why}")
        if len(self.rules) > _MAX_SHOWN:
            failed = sum(rule.error is not None for rule in self.rules)
            lines.append(
                f"  and {counted(len(self.rules) - _MAX_SHOWN, 'more rule')}; {failed:,} of all could not be evaluated"
            )
        return "\n".join(lines)


def rules_from_text(texts: Iterable[str]) -> dict[str, object]:
    """Return rules of a command line, `NAME=PREDICATE` or `NAME@REFRESH=PREDICATE`, as a mapping for `Catalog.open`.

    Raises RuleError if a text is neither, or two name the same rule.

    >>> rules_from_text(["cheap=price < 20", "fresh@60s=first_seen > now() - INTERVAL 7 DAY"])
    {'cheap': 'price < 20', 'fresh': {'where': 'first_seen > now() - INTERVAL 7 DAY', 'refresh': '60s'}}
    """
    rules: dict[str, object] = {}
    for text in texts:
        match = _TEXT.fullmatch(text)
        if match is None:
            raise RuleError(f'write a rule as NAME=PREDICATE, such as "cheap=price < 20", or NAME@60s=PREDICATE, not {text!r}')
        name, refresh, where = match["name"], match["refresh"], match["where"].strip()
        definition = where if refresh is None else {"where": where, "refresh": refresh}
        definition_of(name, definition)
        if name in rules:
            raise RuleError(f"rule {name!r} is stated twice: keep one, or give them two names and let requests join them")
        rules[name] = definition
    return rules


def same_name_error(name: str) -> RuleError:
    """Return the error for a rule and a boost of one name."""
    return RuleError(f"there are both a rule and a boost {name[:80]!r}: give one of them another name")


def read_rules(source: RuleSource, *, refresh: float | None = None) -> tuple[dict[str, Rule | Boost], dict[str, RuleError]]:
    """Return (definitions, errors) by name; an invalid definition is an error of its own and does not hide the others.

    `refresh` is the interval of definitions that have none. Raises RuleError if there is no such file, it is not TOML, it has
    neither a table `[rules]` nor a table `[boosts]` or other keys, or a rule and a boost have the same name.
    """
    definitions: dict[str, Rule | Boost] = {}
    errors: dict[str, RuleError] = {}
    for name, value in _values(source).items():
        try:
            definitions[name] = definition_of(name, value, refresh=refresh)
        except RuleError as error:
            errors[name] = error
        except ValueError as error:  # an integer of thousands of digits, which cannot be printed
            errors[name] = RuleError(f"{_kind(value)} {name[:80]!r} has to be the text of an SQL expression: {error}")
    return definitions, errors


def _values(source: RuleSource) -> Mapping[str, object]:
    """Return the definitions of a source as they are written."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return source
    if isinstance(source, Sequence) and not isinstance(source, str):
        values: dict[str, object] = {}
        for part in source:
            for name, value in _values(part).items():
                if name in values and _kind(values[name]) != _kind(value):
                    raise same_name_error(name)
                values[name] = value
        return values
    path = Path(source)
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"cannot read the rules of {path}: {error}") from error
    try:
        document = _parsed(path, text)
    except RuleError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: of TOML or JSON, or an integer of thousands of digits
        raise RuleError(f"{path} is not a {'JSON' if path.suffix == '.json' else 'TOML'} file: {error}") from error
    tables = {key: table for key in ("rules", "boosts") if isinstance(table := document.get(key), dict)}
    if not tables or len(tables) < len(document):
        names = ", ".join(document) or "nothing"
        raise RuleError(
            f'{path} has to hold a table [rules] with lines such as fresh = "age < 7", or a table [boosts] with lines such as '
            f'margin = "0.1 * margin", or both; it holds: {names}'
        )
    rules, boosts = tables.get("rules", {}), tables.get("boosts", {})
    for name in sorted(rules.keys() & boosts.keys()):
        raise same_name_error(name)
    return rules | {
        name: {"expression": None, **value} if isinstance(value, dict) else {"expression": value}
        for name, value in boosts.items()
    }


def _kind(value: object) -> str:
    return "boost" if isinstance(value, Mapping) and "expression" in value else "rule"


def _parsed(path: Path, text: str) -> dict[str, object]:
    """Return the document of a TOML or JSON file. Raises RuleError, ValueError, RecursionError."""
    if path.suffix == ".json":
        document = parse_json(text)
        return document if isinstance(document, dict) else {"": document}
    if max(key.count(".") for key in _KEY.findall(text)) > _MAX_DOTS:  # tomllib takes time and memory quadratic in them
        raise RuleError(f"{path} has a key of more than {_MAX_DOTS} dots: a rule's name has none")
    return tomllib.loads(text)
