"""Shared parts of the xGR figures: rows of each run, tables and plots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.rows import RESULTS, make_row, read_rows

__all__ = [
    "LABELS",
    "RESULTS_NAME",
    "Row",
    "RunOptions",
    "ServingFigure",
    "distinct",
    "kept_serving_rows",
    "paper_says",
    "style",
    "table",
    "tidy",
]

Row = dict[str, Any]
RESULTS_NAME = "reproduce_xgr"
LABELS = {
    "leafbeam": "leafbeam",
    "paged_attention": "PagedAttention",
    "per_beam_copies": "per-beam copies",
    "tree_attention": "tree attention",
    "ideal": "ideal",
    "hf_generate": "generate of transformers",
    "vllm_beams": "vLLM, beams without a constraint",
    "vllm_grammar": "vLLM, samples under a grammar",
}
_STYLES = {
    "leafbeam": ("#1f7a4a", "o"),
    "paged_attention": ("#d9822b", "s"),
    "per_beam_copies": ("#b0b7b3", "^"),
    "tree_attention": ("#3b82b8", "D"),
    "ideal": ("#8a8f8c", "."),
    "hf_generate": ("#7b5ea7", "v"),
    "vllm_beams": ("#d9822b", "s"),
    "vllm_grammar": ("#7b5ea7", "v"),
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run. data: a directory of interactions; None: the made shop."""

    quick: bool
    data: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServingFigure:
    """One figure. points: measures, (parameters, measured) of each. show, draw: from rows alone.

    timed: whether other load on the machine changes it.
    """

    name: str
    points: Callable[[RunOptions], Any]
    show: Callable[[Console, list[Row]], None]
    draw: Callable[[list[Row]], Figure]
    timed: bool = True

    def run(self, options: RunOptions, console: Console, keep: Callable[[Row], None] = lambda row: None) -> list[Row]:
        """Measure every point; `keep` gets each row as it is there."""
        rows: list[Row] = []
        began = time.perf_counter()
        with console.status(self.name):
            for parameters, measured in self.points(options):
                at = {"experiment": self.name, "quick": options.quick} | parameters
                measured = measured | {"seconds": round(time.perf_counter() - began, 1)}
                rows.append(make_row(RESULTS_NAME, at, measured, timed=self.timed))
                keep(rows[-1])
                began = time.perf_counter()
        return rows


def kept_serving_rows(name: str, quick: bool, folder: Path = RESULTS) -> list[Row]:
    """The last kept row of each point of a figure that none supersedes, in the order in which they were first measured."""
    last: dict[str, Row] = {}
    for row in read_rows(RESULTS_NAME, folder):
        of_figure = row["parameters"]["experiment"] == name and row["parameters"]["quick"] == quick
        if of_figure and not row.get("superseded"):
            last[json.dumps(row["parameters"], sort_keys=True)] = row
    return list(last.values())


def style(name: str) -> dict[str, Any]:
    """How a system is drawn, everywhere alike."""
    colour, marker = _STYLES[name]
    return {"color": colour, "marker": marker, "ms": 5, "lw": 1.5, "label": LABELS[name]}


def tidy(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlabel(x_label, fontsize=8)
    axes.set_ylabel(y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#e3e6e4", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A plain table, figures on the right."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*(f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    return made


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of a parameter, in the order of the rows."""
    return list(dict.fromkeys(row["parameters"][name] for row in rows))


def paper_says(console: Console, text: str) -> None:
    """What the paper's text states, and on which hardware; nothing is read off its plots."""
    console.print(f"[bold]The paper[/]: {text}")
