"""Definitions: named SQL expressions over the table of items, each of which yields one value for each item.

A rule yields a bit, a boost a number, a group column the number of the item's group. Shapes: n items of one call.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog.durations import parse_duration
from leafbeam.errors import RuleError, counted

if TYPE_CHECKING:  # rules are written down without pyarrow
    import pyarrow as pa

MAX_GROUPS = 100_000

# Beside the values of definitions stands, under this name, which none of them can have, the set of items that have a row in the
# table.
LISTED = ""

_MAX_NESTING = 100
_MAX_LENGTH = 65_536  # each change of an item evaluates each definition
_MAX_NAME_DOTS = 1_000  # DuckDB binds a chain of names in time quadratic in it, not interrupted
# Others read files, or change settings of DuckDB for every later statement, as enable_logging() does.
_TABLE_FUNCTIONS = frozenset(["generate_series", "json_each", "json_tree", "range", "unnest"])
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")  # types of DuckDB
_NULL = ('"NULL"', "NULL")


class Definition(ABC):
    """A name and an SQL expression over the table `items`.

    Attributes:
        noun: The word for such definitions in messages.
        empty: The value of an item without a row, or for which the expression is NULL.
    """

    noun: ClassVar[str]
    empty: ClassVar[np.generic]
    name: str
    refresh: float | None

    @property
    @abstractmethod
    def sql(self) -> str:
        """Return the expression."""

    @abstractmethod
    def column(self, expression: str) -> str:
        """Return the SQL of the column that `values` reads."""

    def rows(self, expression: str, within: str) -> str:
        """Return a query of rows, by number, and their values; rows that it leaves out have the empty value.

        `within` is a condition on the numbers of the rows.
        """
        return f"SELECT rowid, {self.column(expression)} AS value FROM items WHERE {within}"

    @abstractmethod
    def check_type(self, kind: str) -> None:
        """Raise RuleError unless a type of DuckDB fits."""

    @abstractmethod
    def values(self, column: "pa.ChunkedArray") -> NDArray[np.generic]:
        """Return a column as values (n,). Raises RuleError."""

    def unusable(self, values_n: NDArray[np.generic]) -> NDArray[np.int64]:
        """Return the positions of values that cannot be used."""
        return np.empty(0, np.int64)

    def no_values(self, num_items: int) -> NDArray[np.generic]:
        """Return the empty value for each of some items."""
        return np.full(num_items, self.empty)

    def __str__(self) -> str:
        return f"{self.noun} {self.name!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Definition):
    """A name and an SQL predicate over the table `items`, which DuckDB checks when it is evaluated.

    Args:
        name: The name of the rule.
        where: The predicate.
        refresh: The seconds between evaluations; with None the rule is evaluated only when the catalog is reloaded, and
            for items that change.

    Raises:
        RuleError: If the name or the interval is invalid.
    """

    noun: ClassVar[str] = "rule"
    empty: ClassVar[np.generic] = np.False_

    name: str
    where: str
    refresh: float | None = None

    def __post_init__(self) -> None:
        _check_written(self, "SQL predicate")

    @property
    def sql(self) -> str:
        return self.where

    def column(self, expression: str) -> str:
        return f"coalesce(({expression})::BOOLEAN, false)::UTINYINT"

    def rows(self, expression: str, within: str) -> str:
        return f"SELECT rowid, 1::UTINYINT AS value FROM items WHERE {within} AND ({expression})"

    def check_type(self, kind: str) -> None:
        if kind not in ("BOOLEAN", *_NULL):  # DuckDB would take every number but 0 as true
            comparison = "= 'text'" if kind == "VARCHAR" else "> 0" if _NUMBER.fullmatch(kind) else "IS NOT NULL"
            raise RuleError(f"{self} is {kind}, not true or false: compare it, as in {cut(self.where)} {comparison}")

    def values(self, column: "pa.ChunkedArray") -> NDArray[np.generic]:
        parts = [chunk.to_numpy() for chunk in column.chunks]  # DuckDB returns one chunk unless the table is large
        bytes_n = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)
        return bytes_n.view(np.bool_)


@dataclass(frozen=True, kw_only=True, slots=True)
class Boost(Definition):
    """A name and an SQL expression over the table `items` that yields a number for each item, in nats.

    A request names the boosts that it wants and their weights; the weighted numbers are added to each item's score. NULL is 0.

    Args:
        name: The name of the boost. No rule may have the same name.
        expression: The expression. It has to yield a finite number, or NULL, for each item.
        refresh: The seconds between evaluations; with None the boost is evaluated only when the catalog is reloaded, and
            for items that change.

    Raises:
        RuleError: If the name or the interval is invalid.
    """

    noun: ClassVar[str] = "boost"
    empty: ClassVar[np.generic] = np.float32(0)

    name: str
    expression: str
    refresh: float | None = None

    def __post_init__(self) -> None:
        _check_written(self, "SQL expression")

    @property
    def sql(self) -> str:
        return self.expression

    def column(self, expression: str) -> str:
        return f"coalesce(({expression})::DOUBLE, 0)"

    def check_type(self, kind: str) -> None:
        if not _NUMBER.fullmatch(kind) and kind not in _NULL:
            advice = "state a number for each case, as in " if kind == "BOOLEAN" else "convert it to a number: "
            example = f"CASE WHEN {cut(self.expression)} THEN 1 ELSE 0 END" if kind == "BOOLEAN" else cut(self.expression)
            raise RuleError(f"{self} is {kind}, not a number: {advice}{example}")

    def values(self, column: "pa.ChunkedArray") -> NDArray[np.generic]:
        with np.errstate(over="ignore"):
            return np.asarray(column.to_numpy()).astype(np.float32)

    def unusable(self, values_n: NDArray[np.generic]) -> NDArray[np.int64]:
        return np.flatnonzero(~np.isfinite(values_n.astype(np.float32, copy=False)))


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupColumn(Definition):
    """A column of the table `items`, whose values are the groups that a request may cap. NULL is no group.

    Groups are numbered in the order in which they are first seen, and keep their numbers as long as the definition lives.

    Args:
        name: The name under which the groups stand beside rules and boosts (see `key_of_column`).
        refresh: None: groups are evaluated when the catalog is reloaded, and for items that change.
    """

    noun: ClassVar[str] = "column"
    empty: ClassVar[np.generic] = np.int32(-1)

    name: str
    refresh: float | None = None
    _numbers: dict[str, int] = field(default_factory=dict[str, int], repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def column_name(self) -> str:
        """Return the column."""
        return self.name.partition(":")[2]

    @property
    def sql(self) -> str:
        return quoted(self.column_name)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Return the values of the column, as text, by number."""
        with self._lock:
            return tuple(self._numbers)

    def column(self, expression: str) -> str:
        return f"({expression})::VARCHAR"

    def check_type(self, kind: str) -> None:
        pass

    def values(self, column: "pa.ChunkedArray") -> NDArray[np.generic]:
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        with self._lock:
            new = [value for value in encoded.dictionary.to_pylist() if value not in self._numbers]
            if (num_groups := len(self._numbers) + len(new)) > MAX_GROUPS:
                raise RuleError(
                    f"{self} has {counted(num_groups, 'value')}: expected at most {MAX_GROUPS:,} groups; cap a column "
                    "with fewer values",
                    by_data=True,
                )
            self._numbers.update(zip(new, range(len(self._numbers), num_groups), strict=True))
            number_V = np.array([*(self._numbers[value] for value in encoded.dictionary.to_pylist()), self.empty], np.int32)
        return number_V[np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)]

    def __str__(self) -> str:
        return f"column {self.column_name!r}"


def key_of_column(column: str) -> str:
    """Return the name under which the groups of a column stand beside rules and boosts, which can have no such name."""
    return f"groups:{column}"


def definition_of(name: str, value: object, *, refresh: float | None = None) -> Rule | Boost:
    """Return the rule of a predicate or of a mapping with `where`, or the boost of a mapping with `expression`.

    Args:
        name: The name.
        value: The predicate or the mapping, which may have `refresh` too.
        refresh: The interval of a definition that has none of its own.

    Raises:
        RuleError: If the definition is invalid.
    """
    if not isinstance(value, Mapping):
        return Rule(name=name, where=value, refresh=refresh)  # type: ignore[arg-type]
    noun, key = ("boost", "expression") if "expression" in value else ("rule", "where")
    unknown = sorted(str(other) for other in value if other not in (key, "refresh"))
    if unknown or key not in value:
        what = f"it has {unknown[0]!r} too" if unknown else f"it has no {key}"
        form = "a predicate" if noun == "rule" else "an expression"
        raise RuleError(f'{noun} {name!r} has to be {form}, or {{ {key} = "...", refresh = "60s" }}, but {what}')
    if "refresh" in value:
        refresh = parse_duration(value["refresh"], f"the refresh of {noun} {name!r}")
    if noun == "boost":
        return Boost(name=name, expression=value[key], refresh=refresh)
    return Rule(name=name, where=value[key], refresh=refresh)


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def cut(text: str, length: int = 1000) -> str:
    """Return a text, cut to a length that fits an error message."""
    return text if len(text) <= length else text[:length] + "..."


def reason_of(error: Exception) -> str:
    """Return what DuckDB says of an expression, and how to compare a column of text with numbers if that was tried."""
    hint = "\nA column of text is compared as numbers by TRY_CAST(column AS DOUBLE), which is NULL for other text."
    text = str(error)
    return cut(text) + (hint if "Cannot compare values of type VARCHAR" in text else "")


def _check_written(definition: Rule | Boost, what: str) -> None:
    """Raise RuleError unless the name and the text of a definition can be given to DuckDB."""
    if not _NAME.fullmatch(definition.name):
        raise RuleError(
            f"a {definition.noun}'s name must begin with a letter, and have at most 63 more letters, digits, - or _, not "
            f"{definition.name[:80]!r}"
        )
    sql = definition.sql
    if not isinstance(sql, str) or not sql.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(f"{definition} must be an {what} as text, not {sql!r}")
    if not sql.isascii() and sql.encode("utf-8", "replace").decode() != sql:
        raise RuleError(f"{definition} holds bytes that are not UTF-8: {sql[:80]!a}")
    if len(sql) > _MAX_LENGTH:
        raise RuleError(f"{definition} has {counted(len(sql), 'character')}: expected at most {_MAX_LENGTH:,}")
    if (dots := re.sub(r"\d\.\d", "", sql).count(".")) > _MAX_NAME_DOTS:
        raise RuleError(f"{definition} has {counted(dots, 'dot')} outside numbers: expected at most {_MAX_NAME_DOTS:,}")
    if (depth := _nesting(sql)) > _MAX_NESTING:  # DuckDB's parser takes time quadratic in it, not interrupted
        raise RuleError(f"{definition} has brackets nested {counted(depth, 'level')} deep: expected at most {_MAX_NESTING}")
    if (source := _forbidden_source(sql)) is not None:
        allowed = f"{', '.join(sorted(_TABLE_FUNCTIONS))}()"
        raise RuleError(f"{definition} reads rows of {source}: expected only tables and {allowed}: {sql[:1000]}")


def _nesting(sql: str) -> int:
    """Return how deeply the brackets of an expression are nested, without those in quoted text."""
    steps = [1 if bracket in "([{" else -1 for bracket in re.findall(r"[][(){}]", re.sub(r"'[^']*'", "", sql))]
    return max(accumulate(steps), default=0)


def _forbidden_source(sql: str) -> str | None:
    """Return a function or file whose rows an expression must not read but does, or None.

    The result is also None if DuckDB cannot parse the expression; the evaluation reports that later.
    """
    if not re.search("from|table", sql, re.IGNORECASE):
        return None
    import duckdb  # rules are written down without it

    with duckdb.connect(":memory:") as connection:
        text = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE (\n{sql}\n)"]).fetchall()[0][0]
    try:
        tree = json.loads(text)
    except RecursionError:
        return "an expression that is too deep to check"
    if tree["error"]:
        return None if tree["error_type"] == "parser" else "a statement other than SELECT"
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
