"""A run directory: where the commands leave what they make for one another."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from leafbeam.errors import CheckpointError, DataError

__all__ = ["RunDirectory", "RunOption"]

RunOption = Annotated[
    Path, typer.Option("--run", help="The run directory, where the commands leave what they make for one another.")
]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Think of it as a workbench: each command takes what an earlier one left there and adds one thing.

    source.json          where the log is, and in which format
    sids.parquet, sids/  Semantic IDs, and the quantiser that made them     (fit-sids)
    checkpoint/, model/  training's state, and the model in HF's format     (train)
    report.json          what every step found, one entry a step            (all)
    index.leafbeam     the index                                          (build)
    catalog.duckdb     items and attributes                               (build)
    rules.toml           rules as SQL predicates                            (yours)
    """

    path: Path

    @property
    def source(self) -> Path:
        return self.path / "source.json"

    @property
    def sids(self) -> Path:
        return self.path / "sids.parquet"

    @property
    def quantiser(self) -> Path:
        return self.path / "sids"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def trie(self) -> Path:
        return self.path / "index.leafbeam"

    @property
    def catalog(self) -> Path:
        return self.path / "catalog.duckdb"

    @property
    def rules(self) -> Path:
        return self.path / "rules.toml"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    def need(self, path: Path, command: str) -> Path:
        """`path` if it is there; else CheckpointError that names the command that makes it."""
        if not path.exists():
            raise CheckpointError(f"{path} is not there yet: run `leafbeam {command} --run {self.path}` first")
        return path

    def add_to_report(self, step: str, found: dict[str, Any]) -> None:
        """Write what a step found under its name in report.json, beside what the other steps wrote."""
        report = self.read_report()
        report[step] = found
        self.path.mkdir(parents=True, exist_ok=True)
        part = self.report.with_suffix(".part")
        part.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.report)

    def read_report(self) -> dict[str, Any]:
        """What the steps found so far; empty before the first."""
        if not self.report.exists():
            return {}
        try:
            # NaN is no JSON; runs made before 2026-11-22 may hold one.
            report = json.loads(self.report.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        except ValueError as error:
            raise DataError(f"{self.report} is not JSON ({error}): delete it and run the steps again") from error
        if not isinstance(report, dict):
            raise DataError(f"{self.report} holds no object: delete it and run the steps again")
        return report
