"""A run directory: the files that commands leave for one another."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

from leafbeam.errors import CheckpointError, DataError
from leafbeam.files import read_text, write_json

_WRITERS = {"source": "fit-sids", "sids": "fit-sids", "model": "train", "trie": "build", "catalog": "build", "rules": "build"}


class RunDirectory:
    """Paths of a run, and its report.

    source.json          where the log is, its format, columns and units    (fit-sids)
    sids.parquet, sids/  Semantic IDs, and the quantiser that made them     (fit-sids)
    checkpoint/, model/  training's state, and the model in HF's format     (train)
    memory.leafbeam      the item memory, and how it is fused with the model   (train)
    index.leafbeam       the index                                          (build)
    catalog.duckdb       items and their attributes                         (build)
    rules.toml           rules as SQL predicates                            (yours)
    report.json          figures of every step, one entry a step            (all)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path / "source.json"
        self.sids = path / "sids.parquet"
        self.quantiser = path / "sids"
        self.model = path / "model"
        self.memory = path / "memory.leafbeam"
        self.trie = path / "index.leafbeam"
        self.catalog = path / "catalog.duckdb"
        self.rules = path / "rules.toml"
        self.report = path / "report.json"

    @property
    def fitted_memory(self) -> Path | None:
        """The item memory; None where the run has none (one of an older leafbeam)."""
        return self.memory if self.memory.exists() else None

    def check(self, *names: str) -> None:
        """Raise CheckpointError, which names the command to run first, where one of these files does not exist."""
        for name in names:
            path: Path = getattr(self, name)
            if not path.exists():
                raise CheckpointError(f"{path} does not exist: run `leafbeam {_WRITERS[name]} --run {self.path}` first")

    def add_to_report(self, step: str, figures: dict[str, Any]) -> None:
        """Write the figures of a step into report.json; those of other steps stay."""
        report = self.read_report()
        report[step] = figures
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.report, report)

    def read_report(self) -> dict[str, Any]:
        """The figures of all steps so far; empty before the first."""
        if not self.report.exists():
            return {}
        try:  # JSON has no NaN; old reports may hold one, which is read as null
            report = json.loads(read_text(self.report), parse_constant=lambda _: None, parse_float=_finite)
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{self.report} cannot be read as JSON ({error}): delete it and run the steps again") from error
        if not isinstance(report, dict) or not all(isinstance(figures, dict) for figures in report.values()):
            raise DataError(f"{self.report} holds no JSON object of objects: delete it and run the steps again")
        return report


def _finite(text: str) -> float | None:
    """A number of JSON; None for one that no float64 can hold, such as 1e999."""
    return number if isfinite(number := float(text)) else None
