"""Shared parts of the tables about learning: data sets in a directory, rows of each run, means with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.rows import RESULTS, make_row, read_rows
from leafbeam.errors import ArgumentError, DataError, check_choice
from leafbeam.train import Budget, Part, RankingMetrics
from leafbeam.train.metrics import Estimate

__all__ = [
    "NO_TEACHER",
    "LearningRun",
    "LearningTable",
    "as_dict",
    "data_sets",
    "kept_learning_rows",
    "percent",
    "pooled",
    "rounded",
]

Row = dict[str, Any]

NO_TEACHER: dict[str, Any] = {"teacher_weight": 0.0, "dropout": 0.4}
"""The settings of a recipe that learns from clicks alone, which needs more dropout."""


@dataclass(frozen=True, kw_only=True)
class LearningRun:
    """Options of a run. data: directories, one data set each. seeds: how many, from first_seed on. note: a remark for the rows.

    fit_on: "train+valid" trains on validation items too; SASRec and the weights of the fusion, which need them, are left out.
    part: whose new items STATIC's Table 3 recommends, the test's, or those of a split of the training part, to choose settings.
    sids, teachers: kinds of Semantic IDs of STATIC's Table 3, and of teachers of both tables; empty: those of the table.
    minutes, epochs: how long each model trains, at most one of them; the table's own budget if neither.
    Raises ArgumentError for numbers out of range.
    """

    data: tuple[Path, ...]
    quick: bool = False
    seeds: int = 1
    first_seed: int = 0
    shares: tuple[float, ...] = (0.02, 0.05)
    minutes: float | None = None
    epochs: float | None = None
    fit_on: Literal["train", "train+valid"] = "train"
    part: Part = "test"
    sids: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        check_choice("fit_on", self.fit_on, Literal["train", "train+valid"])
        check_choice("part", self.part, Literal["valid", "test"])
        if self.seeds < 1:
            raise ArgumentError(f"--seeds {self.seeds}: at least 1")
        if self.first_seed < 0:
            raise ArgumentError(f"--first-seed {self.first_seed}: at least 0")
        if not self.shares or not all(0 < share < 1 for share in self.shares):
            raise ArgumentError(f"--share {self.shares}: parts of the items between 0 and 1, such as 0.02")
        if self.minutes is not None and self.epochs is not None:
            raise ArgumentError(f"--minutes {self.minutes} and --epochs {self.epochs}: one of the two ends training")

    @property
    def seeds_run(self) -> range:
        """The seeds of this run."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def budget(self, own: Budget) -> Budget:
        """The training budget: the option, or the table's own."""
        if self.minutes is None and self.epochs is None:
            return own
        return Budget(minutes=self.minutes, epochs=self.epochs)


@dataclass(frozen=True, kw_only=True)
class LearningTable:
    """A table about learning. rows: measures, and calls `keep` with each row at once. show, draw: from rows alone."""

    name: str
    title: str
    rows: Callable[[LearningRun, Console, Callable[[Row], None]], list[Row]]
    show: Callable[[Console, list[Row]], None]
    draw: Callable[[list[Row]], Figure]

    @property
    def results(self) -> str:
        """The name of the file of results."""
        return self.name.replace("-", "_")

    def row(self, parameters: dict[str, Any], measured: dict[str, Any]) -> Row:
        """One row: what was measured, on what, from which commit."""
        return make_row(self.results, parameters, measured, timed="minutes" in parameters["budget"])


def data_sets(directory: Path) -> tuple[Path, ...]:
    """The directory if it holds interactions, else its subdirectories that do, by name. Raises DataError if none does."""

    def holds(place: Path) -> bool:
        return any((place / f"interactions{end}").is_file() for end in (".parquet", ".csv", ".csv.gz"))

    if holds(directory):
        return (directory,)
    found = (
        tuple(sorted(place for place in directory.iterdir() if place.is_dir() and holds(place))) if directory.is_dir() else ()
    )
    if not found:
        raise DataError(f"{directory} holds no interactions.parquet or .csv, and neither does any directory in it")
    return found


def kept_learning_rows(table: LearningTable, quick: bool, folder: Path = RESULTS) -> list[Row]:
    """The last kept row of each data set, share, kind of SIDs, teacher, parts of the log and seed, without superseded ones."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in read_rows(table.results, folder):
        at = row["parameters"]
        if at["quick"] == quick and not row.get("superseded"):
            kinds = at.get("sids", ""), at.get("teacher", ""), at.get("fit_on", "train"), at.get("part", "test")
            last[at["data"], at.get("share", 0.0), *kinds, at["seed"]] = row
    return [last[key] for key in sorted(last)]


def as_dict(scores: RankingMetrics) -> dict[str, Any]:
    """Metrics for a row: means and standard errors, rounded."""
    measured: dict[str, Any] = {"users": scores.users}
    for name, estimate in scores.estimates.items():
        key = name.lower().replace("@", "_")
        measured[key] = rounded(estimate)
    return measured


def rounded(estimate: Estimate) -> dict[str, float]:
    """Mean and standard error for a row."""
    return {"mean": round(estimate.mean, 5), "error": round(estimate.error, 5)}


def pooled(estimates: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Mean over seeds, and its standard error: that of the users (whom all seeds share), and the spread of the seeds.

    errors: sqrt(mean user variance + variance of the seeds' means / number of seeds).
    """
    means = [one["mean"] for one in estimates]
    mean = sum(means) / len(means)
    users = sum(one["error"] ** 2 for one in estimates) / len(estimates)
    seeds = sum((one - mean) ** 2 for one in means) / (len(means) - 1) / len(means) if len(means) > 1 else 0.0
    return mean, sqrt(users + seeds)


def percent(value: tuple[float, float]) -> str:
    """Mean ± error in percent."""
    return f"{100 * value[0]:.2f} ± {100 * value[1]:.2f}"
