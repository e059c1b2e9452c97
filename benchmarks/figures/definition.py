"""Tables and texts as `figures.toml` declares them.

A table has lines and columns. What selects a cell (the row and the value in it) may stand at the table, at its line or at its
column; the three are joined, the column's word last. Keys:

    bench, where      the newest row of this benchmark with these parameters
    ignoring          parameters in which older rows may differ from the newest; any other difference is an ambiguity
    field             path in the row's `measured`, parts separated by /, from table, line and column in turn; in a list of
                      records a part such as `kind=leafbeam,beams=128` names the one it means, in one of numbers a position
    over              path of a value that the cell is divided by
    pool              a parameter and values, `{ seed = [0, 1, 2] }`: mean and error over one row of each, all of which must
                      be there
    format, scale     a Python format, of the value times `scale`; where it is a record (p20, p50, p80), of its keys by name; a
                      text stands as it is, such as the status of a peer that gave no answer
    beside            a format of further keys of the record, written behind the value where the record has them
    missing           what the cell says where no row or no such field is there; without it that is an error
    reasons           path in `measured` of reasons by name: the cell says why the name that follows the field's first part is
                      not there, or what it needs
    literal           a cell with this text and no row
    version           path in the row of the peer's version, as `versions/torch`
    show              what the cell shows of its row instead of the value: "version", or "row" (its benchmark and time)
    published, part   a path in the values that papers report (`published.py`) and its last part: where both are there, the
                      cell is that value instead of a row's
    optional          a line with this is left out while all of its cells are `missing`
    each, name        one line (column) for each value of these parameters among the rows; `name` is a format of them
    until_then        what differs while no row has the table's own parameters: a table of small runs until full ones are there
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from leafbeam.errors import DataError

__all__ = ["DEFINITIONS", "Axis", "Cell", "Definitions", "TableDefinition", "TextDefinition"]

DEFINITIONS = Path(__file__).with_name("figures.toml")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What selects one value, or a part of that."""

    bench: str | None = None
    where: Mapping[str, Any] | None = None
    ignoring: Sequence[str] | None = None
    field: str | None = None
    over: str | None = None
    pool: Mapping[str, Sequence[Any]] | None = None
    format: str | None = None
    beside: str | None = None
    scale: float | None = None
    missing: str | None = None
    reasons: str | None = None
    version: str | None = None
    show: Literal["version", "row"] | None = None
    literal: str | None = None
    published: str | None = None
    part: str | None = None

    def joined(self, other: Cell) -> Cell:
        """This cell with what the other adds: parameters and fields are joined, everything else is replaced."""
        given: dict[str, Any] = {each.name: getattr(other, each.name) for each in fields(Cell)}
        given = {key: value for key, value in given.items() if value is not None}
        for path in ("field", "published"):
            parts = [part for part in (getattr(self, path), getattr(other, path)) if part]
            given |= {path: "/".join(parts)} if parts else {}
        return replace(self, **{**given, "where": {**(self.where or {}), **(other.where or {})}})

    def wheres(self) -> list[dict[str, Any]]:
        """The parameters of each row that the value is of: one, or those of `pool`."""
        own = dict(self.where or {})
        return [{**own, key: value} for key, values in self.pool.items() for value in values] if self.pool else [own]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A line or a column of a table, or one for each value of the parameters `each`. optional: left out while it is empty."""

    name: str
    each: tuple[str, ...] = ()
    optional: bool = False
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """A table. corner: the heading above the lines' names. names: how parameter values are called in the names of an `each`.

    until_then: the table in its place while it has no row.
    """

    corner: str
    commands: tuple[str, ...]
    cell: Cell
    lines: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    names: Mapping[str, str]
    sources: str
    until_then: TableDefinition | None = None


@dataclass(frozen=True, kw_only=True)
class TextDefinition:
    """A text with values: a number within a sentence, or a caption. `{from}` in it: where its rows come from."""

    text: str
    commands: tuple[str, ...]
    values: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Definitions:
    """Everything that documents may name, and the numbers that they may hold without a row (settings), by file."""

    figures: Mapping[str, TableDefinition | TextDefinition]
    settings: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, path: Path = DEFINITIONS) -> Definitions:
        """Read `figures.toml`. Raises DataError with the name of the figure for a key that does not exist."""
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        settings = {file: tuple(phrases) for file, phrases in tables.pop("settings", {}).items()}
        names = tables.pop("names", {})
        return cls(figures={name: _figure(name, table, names) for name, table in tables.items()}, settings=settings)


def _figure(name: str, table: dict[str, Any], names: Mapping[str, str]) -> TableDefinition | TextDefinition:
    if other := table.pop("until_then", None):
        until_then, own = (_figure(name, deepcopy(one), names) for one in (table | other, table))
        assert isinstance(own, TableDefinition)
        assert isinstance(until_then, TableDefinition)
        return replace(own, until_then=until_then)
    commands = tuple(table.pop("commands", ()))
    if "text" in table:
        text, values = table.pop("text"), table.pop("values", {})
        shared = _cell(name, table)
        return TextDefinition(
            text=text, commands=commands, values={key: shared.joined(_cell(name, value)) for key, value in values.items()}
        )
    try:
        lines, columns = table.pop("lines"), table.pop("columns")
    except KeyError as error:
        raise DataError(f"figure {name!r} has neither a text nor lines and columns: {error} is missing") from None
    return TableDefinition(
        corner=table.pop("corner", ""),
        commands=commands,
        names=names,
        sources=table.pop("sources", ""),
        lines=tuple(_axis(name, line) for line in lines),
        columns=tuple(_axis(name, column) for column in columns),
        cell=_cell(name, table),
    )


def _axis(figure: str, table: dict[str, Any]) -> Axis:
    each = table.pop("each", ())
    name, optional = table.pop("name", None), table.pop("optional", False)
    if name is None:
        raise DataError(f"figure {figure!r} has a line or column without a name: {table}")
    each = (each,) if isinstance(each, str) else tuple(each)
    return Axis(name=name, each=each, optional=optional, cell=_cell(figure, table))


def _cell(figure: str, table: dict[str, Any]) -> Cell:
    known = {each.name for each in fields(Cell)}
    if unknown := sorted(table.keys() - known):
        raise DataError(f"figure {figure!r} has {unknown}, expected some of {sorted(known)}")
    return Cell(**table)
