"""Rows that documents may show, found by benchmark and parameters: the newest one wins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, Row, refusal
from leafbeam.errors import DataError

__all__ = ["ResultRows"]


_BEFORE = {"part": "test"}  # what rows from before a parameter have
_OF_THE_MACHINE = frozenset(["memory_gib"])  # parameters that say how much of it was free, and not what was measured


@dataclass(frozen=True, kw_only=True)
class ResultRows:
    """All rows of one directory, oldest first. refused: (why, row) of those that are not shown."""

    rows: tuple[Row, ...]
    refused: tuple[tuple[str, Row], ...]

    @classmethod
    def read(cls, folder: Path = RESULTS) -> ResultRows:
        """Read every `*.jsonl` of a directory. Raises DataError with file and line for a row that is not JSON."""
        rows: list[Row] = []
        for file in sorted(folder.glob("*.jsonl")):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise DataError(f"{file.name}:{number} is not a row of JSON: {error}") from error
        rows.sort(key=lambda row: row["time"])
        judged = [(refusal(row), row) for row in rows]
        return cls(
            rows=tuple(row for reason, row in judged if not reason),
            refused=tuple((reason, row) for reason, row in judged if reason),
        )

    def newest(self, bench: str, where: Mapping[str, Any], ignoring: Iterable[str] = ()) -> Row:
        """The newest row of a benchmark with these parameters.

        Raises DataError if there is none, or if older rows differ from it in a parameter that both have, except for `ignoring`.
        """
        found = self.matching(bench, where)
        if not found:
            reasons = [f"{row['time']}: {reason}" for reason, row in self.refused if _matches(row, bench, where)]
            said = f"; refused: {'; '.join(reasons)}" if reasons else ""
            raise DataError(f"no row of {bench!r} has {dict(where)}{said}: measure it with python -m benchmarks")
        last = found[-1]
        for row in found[:-1]:
            shared = (row["parameters"].keys() & last["parameters"].keys()) - {*ignoring, *_OF_THE_MACHINE}
            differing = sorted(key for key in shared if row["parameters"][key] != last["parameters"][key])
            if differing:
                values = {key: (row["parameters"][key], last["parameters"][key]) for key in differing}
                raise DataError(f"{dict(where)} is ambiguous among rows of {bench!r}: they differ in {values}")
        return last

    def has(self, bench: str, where: Mapping[str, Any]) -> bool:
        """Whether a row may be shown for these parameters."""
        return bool(self.matching(bench, where))

    def values(self, bench: str, where: Mapping[str, Any], parameter: str) -> list[Any]:
        """The values of a parameter among the matching rows: numbers in order, text as it first came."""
        found = dict.fromkeys(
            row["parameters"][parameter] for row in self.matching(bench, where) if parameter in row["parameters"]
        )
        return list(found) if any(isinstance(value, str) for value in found) else sorted(found)

    def matching(self, bench: str, where: Mapping[str, Any]) -> list[Row]:
        """Every row that may be shown for these parameters, oldest first."""
        return [row for row in self._by_bench.get(bench, []) if _matches(row, bench, where)]

    @cached_property
    def _by_bench(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["bench"], []).append(row)
        return found


def _matches(row: Row, bench: str, where: Mapping[str, Any]) -> bool:
    parameters = _BEFORE | row["parameters"]
    return row["bench"] == bench and all(key in parameters and parameters[key] == value for key, value in where.items())
