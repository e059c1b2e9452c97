"""Rules: named SQL predicates, the forms in which they are written down, and their status."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from leafbeam.errors import RuleError, counted
from leafbeam.files import read_text
from leafbeam.json_reader import parse_json

MAX_RULE_S = 86_400.0
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_MIN_SECONDS = 0.1  # more often, evaluations would leave no time to requests
_MAX_SECONDS = 365 * 86_400.0


def parse_duration(duration: object, what: str = "a duration") -> float:
    """Return the seconds of a text such as "500ms", "60s", "5m", "1h" or "1d", from 100 ms to a year. Raises RuleError."""
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        example = 'a text such as "500ms", "60s", "5m", "1h" or "1d"'
        raise RuleError(f"{what} has to be {example}, from 100 ms to a year, not {duration!r}")
    return seconds


# A TOML or JSON file, a mapping, or several of them, of which a later one replaces the rules that it names.
_OneSource = str | os.PathLike[str] | Mapping[str, object]
RuleSource = _OneSource | Sequence[_OneSource] | None

# Beside the rules' filters stands, under this name, which no rule can have, the set of items that have a row in the table.
LISTED = ""

_MAX_SHOWN = 20
_MAX_DOTS = 32
_MAX_NESTING = 100
_MAX_LENGTH = 65_536  # each change of an item evaluates each rule
_MAX_NAME_DOTS = 1_000  # DuckDB binds a chain of names in time quadratic in it, not interrupted
# Others read files, or change settings of DuckDB for every later statement, as enable_logging() does.
_TABLE_FUNCTIONS = frozenset(["generate_series", "json_each", "json_tree", "range", "unnest"])
_KEY = re.compile(r"^[\[\w.\"' \t-]*", re.MULTILINE)  # a line up to the first character that no key of TOML has
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TEXT = re.compile(r"\s*(?P<name>[^\s=@]*)\s*(?:@\s*(?P<refresh>[^\s=]*)\s*)?=(?P<where>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A name and an SQL predicate over the table `items`, which DuckDB checks when it is evaluated.

    Args:
        name: The name of the rule.
        where: The predicate.
        refresh: The seconds between evaluations; with None the rule is evaluated only when the catalog is reloaded, and
            for items that change.

    Raises:
        RuleError: If the name or the interval is invalid.
    """

    name: str
    where: str
    refresh: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise RuleError(f"a rule's name is a letter and up to 63 letters, digits, - or _, not {self.name[:80]!r}")
        if not isinstance(self.where, str) or not self.where.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuleError(f"rule {self.name!r} has to be the text of an SQL predicate, not {self.where!r}")
        if not self.where.isascii() and self.where.encode("utf-8", "replace").decode() != self.where:
            raise RuleError(f"rule {self.name!r} holds bytes that are not UTF-8: {self.where[:80]!a}")
        if len(self.where) > _MAX_LENGTH:
            raise RuleError(f"rule {self.name!r} has {counted(len(self.where), 'character')}: expected at most {_MAX_LENGTH:,}")
        if (dots := re.sub(r"\d\.\d", "", self.where).count(".")) > _MAX_NAME_DOTS:
            raise RuleError(
                f"rule {self.name!r} has {counted(dots, 'dot')} outside numbers: expected at most {_MAX_NAME_DOTS:,}"
            )
        if (depth := _nesting(self.where)) > _MAX_NESTING:  # DuckDB's parser takes time quadratic in it, not interrupted
            raise RuleError(
                f"rule {self.name!r} has {counted(depth, 'bracket')} inside each other: expected at most {_MAX_NESTING}"
            )
        if (source := _forbidden_source(self.where)) is not None:
            allowed = f"{', '.join(sorted(_TABLE_FUNCTIONS))}()"
            raise RuleError(f"rule {self.name!r} reads rows of {source}: expected tables, {allowed}: {self.where[:1000]}")

    @classmethod
    def of(cls, name: str, value: object, *, refresh: float | None = None) -> "Rule":
        """Return a rule from a predicate, or from a mapping with `where` and, optionally, `refresh`.

        Args:
            name: The name of the rule.
            value: The predicate or the mapping.
            refresh: The interval of a rule that has none of its own.

        Raises:
            RuleError: If the rule is invalid.
        """
        if not isinstance(value, Mapping):
            return cls(name=name, where=value, refresh=refresh)  # type: ignore[arg-type]
        unknown = sorted(str(key) for key in value if key not in ("where", "refresh"))
        if unknown or "where" not in value:
            what = f"it has {unknown[0]!r} too" if unknown else "it has no where"
            raise RuleError(f'rule {name!r} has to be a predicate, or {{ where = "...", refresh = "60s" }}, but {what}')
        if "refresh" in value:
            refresh = parse_duration(value["refresh"], f"the refresh of rule {name!r}")
        return cls(name=name, where=value["where"], refresh=refresh)


def _nesting(where: str) -> int:
    """Return how deeply the brackets of a predicate are nested, without those in quoted text."""
    steps = [1 if bracket in "([{" else -1 for bracket in re.findall(r"[][(){}]", re.sub(r"'[^']*'", "", where))]
    return max(accumulate(steps), default=0)


def _forbidden_source(where: str) -> str | None:
    """Return a function or file whose rows a predicate must not read but does, or None.

    The result is also None if DuckDB cannot parse the predicate; the evaluation reports that later.
    """
    if not re.search("from|table", where, re.IGNORECASE):
        return None
    import duckdb  # rules are written down without it

    with duckdb.connect(":memory:") as connection:
        text = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE (\n{where}\n)"]).fetchall()[0][0]
    try:
        tree = json.loads(text)
    except RecursionError:
        return "an expression that is too deep to check"
    if tree["error"]:
        return None if tree["error_type"] == "parser" else "a statement that is not a SELECT"
    return next(iter(_forbidden_sources(tree)), None)


def _forbidden_sources(node: object) -> Iterable[str]:
    """Yield the functions and files in a part of what json_serialize_sql returns.

    A table with a dot in its name needs its schema.
    """
    if isinstance(node, dict):
        if (
            node.get("type") == "TABLE_FUNCTION"
            and (name := str(node["function"]["function_name"]).lower()) not in _TABLE_FUNCTIONS
        ):
            yield f"{name}()"
        if "." in (name := str(node.get("table_name", ""))) and not node.get("schema_name"):
            yield repr(name[:80])
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _forbidden_sources(part)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleStatus:
    """The status of one rule.

    Attributes:
        name: The name of the rule.
        num_items: The number of live items that it allows; 0 if it is not available.
        error: Why the last evaluation failed, over all items or over those that changed.
        kept: Whether its last good filter is still in use because that failed.
        age_s: The seconds since its last successful evaluation over all items; None if there was none.
        seconds: The seconds that this evaluation took.
        refresh: The seconds between evaluations; None if it is evaluated only at a reload.
    """

    name: str
    num_items: int
    error: str | None
    kept: bool
    age_s: float | None
    seconds: float
    refresh: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """The result of loading a catalog. `str(report)` is one readable paragraph; `ok` is false if anything failed.

    Attributes:
        num_items: The number of live items.
        not_in_index: The number of rows whose item has no Semantic ID in the index. They are not recommended.
        not_in_catalog: The number of items of the index without a row. They are not recommended.
        rules: The status of each rule.
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
        lines = [
            f"catalog: {counted(self.num_items, 'item')}, {counted(len(self.rules), 'rule')}, loaded in {self.seconds:.2f} s"
        ]
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
            lines.append(f"  rule {rule.name}: {what}{why}")
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
        Rule.of(name, definition)
        if name in rules:
            raise RuleError(f"rule {name!r} is stated twice: keep one, or give them two names and let requests join them")
        rules[name] = definition
    return rules


def read_rules(source: RuleSource, *, refresh: float | None = None) -> tuple[dict[str, Rule], dict[str, RuleError]]:
    """Return (rules, errors) by name; an invalid rule is an error of its own and does not hide the others.

    `refresh` is the interval of rules that have none. Raises RuleError if there is no such file, it is not TOML, or it
    has no table `[rules]` or other keys.
    """
    rules: dict[str, Rule] = {}
    errors: dict[str, RuleError] = {}
    for name, value in _definitions(source).items():
        try:
            rules[name] = Rule.of(name, value, refresh=refresh)
        except RuleError as error:
            errors[name] = error
        except ValueError as error:  # an integer of thousands of digits, which cannot be printed
            errors[name] = RuleError(f"rule {name[:80]!r} has to be the text of an SQL predicate: {error}")
    return rules, errors


def _definitions(source: RuleSource) -> Mapping[str, object]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return source
    if isinstance(source, Sequence) and not isinstance(source, str):
        return {name: value for part in source for name, value in _definitions(part).items()}
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
    rules = document.pop("rules", None)
    if not isinstance(rules, dict) or document:
        names = ", ".join(["rules"] * (rules is not None) + list(document)) or "nothing"
        raise RuleError(f'{path} has to hold one table [rules] with lines such as fresh = "age < 7"; it holds: {names}')
    return rules


def _parsed(path: Path, text: str) -> dict[str, object]:
    """Return the document of a TOML or JSON file. Raises RuleError, ValueError, RecursionError."""
    if path.suffix == ".json":
        document = parse_json(text)
        return document if isinstance(document, dict) else {"": document}
    if max(key.count(".") for key in _KEY.findall(text)) > _MAX_DOTS:  # tomllib takes time and memory quadratic in them
        raise RuleError(f"{path} has a key of more than {_MAX_DOTS} dots: a rule's name has none")
    return tomllib.loads(text)
