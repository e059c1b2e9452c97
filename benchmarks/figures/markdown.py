"""Tables and texts as Markdown, each value looked up in its row."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from string import Formatter
from typing import Any

from benchmarks.figures.definition import Axis, Cell, Definitions, TableDefinition, TextDefinition
from benchmarks.figures.published import published_value
from benchmarks.figures.selection import ResultRows
from benchmarks.learning import pooled
from benchmarks.rows import Row
from leafbeam.errors import DataError

__all__ = ["provenance", "render", "value_at"]


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """One figure being written: its name for errors, and the rows that it has read."""

    name: str
    rows: ResultRows
    used: list[Row] = field(default_factory=list[Row])

    def text_of(self, cell: Cell, at: str) -> str:
        """The value of a cell in its format."""
        try:
            if cell.literal is not None:
                return cell.literal
            value = self._value(cell)
            if value is None:
                if cell.missing is None:
                    raise DataError(f"there is no {cell.field or cell.published!r}, and no key `missing` says what to write")
                return cell.missing
            return _formatted(value, cell)
        except DataError as error:
            raise DataError(f"figure {self.name!r}, {at}: {error}") from None

    def _value(self, cell: Cell) -> Any:
        if cell.published is not None and cell.part is not None:
            return published_value(f"{cell.published}/{cell.part}")
        if cell.bench is None or cell.field is None:
            raise DataError(f"a cell needs bench and field, has {cell.bench!r} and {cell.field!r}")
        wheres = cell.wheres()
        if cell.missing is not None and not all(self.rows.has(cell.bench, where) for where in wheres):
            return None
        if cell.pool is not None:
            found = [self._value(replace(cell, pool=None, where=where)) for where in wheres]
            return None if None in found else dict(zip(("mean", "error"), pooled(found), strict=True))
        row = self.rows.newest(cell.bench, cell.where or {}, cell.ignoring or ())
        value = value_at(row["measured"], cell.field)
        if value is None and cell.reasons is not None:
            return _reason(value_at(row["measured"], f"{cell.reasons}/{cell.field.split('/')[1]}"))
        if value is not None and row not in self.used:
            self.used.append(row)
        if value is not None and cell.show is not None:
            return _about(row, cell)
        if value is None or cell.over is None:
            return value
        divisor = value_at(row["measured"], cell.over)
        if not divisor:
            raise DataError(f"cannot divide by {cell.over!r}, which is {divisor!r}")
        return value / divisor


def _about(row: Row, cell: Cell) -> str | None:
    if cell.show == "version":
        return value_at(row, cell.version) if cell.version else None
    return f"{row['bench']} {row['time'][:16]}"


def render(definitions: Definitions, name: str, rows: ResultRows) -> str:
    """The Markdown of one figure. Raises DataError with its name for a figure, row or field that is not there."""
    definition = definitions.figures.get(name)
    if definition is None:
        raise DataError(f"no figure is called {name!r}: figures.toml has {', '.join(definitions.figures)}")
    writer = _Writer(name=name, rows=rows)
    if isinstance(definition, TextDefinition):
        values = {key: writer.text_of(cell, f"value {key!r}") for key, cell in definition.values.items()}
        return definition.text.format(**values, **{"from": provenance(writer.used, definition.commands)}).strip("\n")
    if definition.until_then is not None and not rows.has(definition.cell.bench or "", definition.cell.where or {}):
        definition = definition.until_then
    return _table(definition, writer)


def value_at(measured: Any, path: str) -> Any:
    """The value at a path of keys, or None. In a list, `a=1,b=x` is the record with these values, and a number a position."""
    value = measured
    for part in path.split("/"):
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, list):
            wanted = dict(each.split("=", 1) for each in part.split(","))
            held = [record for record in value if all(str(record.get(key)) == text for key, text in wanted.items())]
            value = held[0] if len(held) == 1 else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _reason(text: str | None) -> str | None:
    """What a method that is not there needs, or what happened to it: the part before the colon."""
    if text is None:
        return None
    needs = re.search(r"needs ([\d.,]+ GiB)", text)
    return f"needs {needs[1]}" if needs else text.split(":")[0]


def provenance(rows: Sequence[Row], commands: Sequence[str]) -> str:
    """Command, machine, load, versions, dates and commits of rows in one line; marks and missing loads are said."""
    if not rows:
        return ""
    machines = sorted({f"{row['machine']['cpu']}, {row['machine'].get('cores', '?')} cores" for row in rows})
    said = [*machines, *_loads([row["machine"] for row in rows if row.get("timed", True)])]
    said += [f"{name} {' and '.join(found)}" for name in ("torch", "numba") if (found := _versions(rows, name))]
    said.append(_span({row["time"][:10] for row in rows}))
    commits = list(dict.fromkeys(row["commit"] for row in sorted(rows, key=lambda row: row["time"])))
    said.append(f"commit {commits[0]}" if len(commits) == 1 else f"commits {', '.join(commits)}")
    marks = sorted({row["marked"] for row in rows if row.get("marked")})
    head = f"{', '.join(f'`python -m benchmarks {command}`' for command in commands)}: " if commands else ""
    return f"*{head}{'; '.join(said)}.{''.join(f' Marked: {mark}.' for mark in marks)}*"


def _loads(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What other programs used; of older rows the load, which their benchmark is part of."""
    others = [machine["others"] for machine in machines if "others" in machine]
    loads = [machine["load"] for machine in machines if "others" not in machine and machine.get("load") is not None]
    said = [f"other programs {_span(others)} cores"] if others else []
    said += [f"load {_span(loads)}"] if loads else []
    if missing := len(machines) - len(others) - len(loads):
        said.append(f"no load recorded for {missing} of {len(machines)} rows")
    return said


def _span(values: Collection[Any]) -> str:
    first, last = min(values), max(values)
    return str(first) if first == last else f"{first} to {last}"


def _versions(rows: Sequence[Row], package: str) -> list[str]:
    return sorted({row["versions"][package] for row in rows if row["versions"].get(package, "absent") != "absent"})


def _table(definition: TableDefinition, writer: _Writer) -> str:
    lines = _expanded(definition, definition.lines, writer)
    columns = _expanded(definition, definition.columns, writer)
    if not lines or not columns:
        raise DataError(f"figure {writer.name!r} has {len(lines)} lines and {len(columns)} columns: no row may be shown")
    out = [
        f"| {definition.corner} | {' | '.join(column.name for column in columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for line in lines:
        cells = [
            writer.text_of(definition.cell.joined(line.cell).joined(column.cell), f"line {line.name!r}, column {column.name!r}")
            for column in columns
        ]
        if not line.optional or any(cell != line.cell.missing for cell in cells):
            out.append(f"| {line.name} | {' | '.join(cells)} |")
    notes = [note for note in (definition.sources, provenance(writer.used, definition.commands)) if note]
    return "\n".join([*out, *(part for note in notes for part in ("", note))])


def _expanded(definition: TableDefinition, axes: Sequence[Axis], writer: _Writer) -> list[Axis]:
    """Lines or columns with every `each` written out."""
    out: list[Axis] = []
    for axis in axes:
        if not axis.each:
            out.append(axis)
            continue
        cell = definition.cell.joined(axis.cell)
        if cell.bench is None:
            raise DataError(f"figure {writer.name!r}: `each` of {axis.name!r} needs a bench at the table or beside it")
        found = [writer.rows.values(cell.bench, cell.where or {}, parameter) for parameter in axis.each]
        for values in product(*found):
            where = dict(zip(axis.each, values, strict=True))
            if not writer.rows.has(cell.bench, {**(cell.where or {}), **where}):
                continue
            called = {key: definition.names.get(str(value), value) for key, value in where.items()}
            name = axis.name.format(**called)
            name = name.replace("|", "\\|")
            out.append(Axis(name=name, cell=axis.cell.joined(Cell(where=where))))
    return out


def _formatted(value: Any, cell: Cell) -> str:
    scale = cell.scale or 1
    template = cell.format or "{}"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        record = {key: _scaled(one, scale) for key, one in value.items()}
        more = cell.beside if cell.beside and all(key in record for key in _keys(cell.beside)) else ""
        return (template + more).format(**record)
    if isinstance(value, (tuple, list)):
        return template.format(*(_scaled(one, scale) for one in value))
    return template.format(_scaled(value, scale))


def _keys(template: str) -> list[str]:
    """The names that a format asks for."""
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def _scaled(value: Any, scale: float) -> Any:
    return value * scale if scale != 1 and isinstance(value, (int, float)) and not isinstance(value, bool) else value
