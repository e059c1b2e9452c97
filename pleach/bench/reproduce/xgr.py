"""What the figures of the xGR paper have in common: rows kept of each run, and serving on a virtual clock.

On a virtual clock requests arrive at drawn times, batches are formed of what has arrived, and each batch is really run; the
clock then moves by the seconds that this took. So waiting costs nothing, a peer without a server of its own can be served, and
all are served alike, in this process, on one thread. Over real HTTP `bench serve` and figure 18 measure pleach alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pleach.bench.rows import RESULTS, make_row

__all__ = [
    "LABELS",
    "RESULTS_NAME",
    "Asked",
    "Row",
    "ServingFigure",
    "kept_serving_rows",
    "paper_says",
    "served",
    "style",
    "table",
    "tidy",
]

Row = dict[str, Any]
RESULTS_NAME = "reproduce_xgr"
LABELS = {
    "pleach": "pleach",
    "per_beam_copies": "a copy of the prompt for each beam",
    "hf_generate": "generate of transformers",
}
_STYLES = {"pleach": ("#1f7a4a", "o"), "per_beam_copies": ("#d9822b", "s"), "hf_generate": ("#7b5ea7", "v")}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run is asked for. data: a directory of interactions; None: the made shop."""

    quick: bool
    data: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServingFigure:
    """One figure. points: measures, (parameters, measured) of each. show, draw: from rows alone."""

    name: str
    points: Callable[[Asked], Any]
    show: Callable[[Console, list[Row]], None]
    draw: Callable[[list[Row]], Figure]

    def run(self, asked: Asked, console: Console) -> list[Row]:
        """Measure every point."""
        rows: list[Row] = []
        with console.status(self.name):
            for parameters, measured in self.points(asked):
                at = {"experiment": self.name, "quick": asked.quick} | parameters
                rows.append(make_row(RESULTS_NAME, at, measured))
        return rows


def kept_serving_rows(name: str, quick: bool, folder: Path = RESULTS) -> list[Row]:
    """The last kept row of each point of a figure, in the order in which they were first measured."""
    path = folder / f"{RESULTS_NAME}.jsonl"
    last: dict[str, Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        row = json.loads(line)
        if row["parameters"]["experiment"] == name and row["parameters"]["quick"] == quick:
            last[json.dumps(row["parameters"], sort_keys=True)] = row
    return list(last.values())


def served(
    run: Callable[[Sequence[Any]], object],
    times: NDArray[np.float64],
    prompts: Sequence[Any],
    *,
    max_batch: int,
    give_up_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Latencies of requests that arrive at these times, on a virtual clock. Stops once the queue is `give_up_s` behind."""
    now, next_one, latencies = 0.0, 0, []
    while next_one < len(times):
        now = max(now, float(times[next_one]))
        if now - float(times[next_one]) > give_up_s:
            break
        end = min(int(np.searchsorted(times, now, side="right")), next_one + max_batch)
        began = clock()
        run(prompts[next_one:end])
        now += clock() - began
        latencies += [now - float(at) for at in times[next_one:end]]
        next_one = end
    milliseconds = np.array(latencies) * 1e3
    return {
        "served": len(latencies),
        "sent": len(times),
        "gave_up": next_one < len(times),
        "avg_ms": round(float(milliseconds.mean()), 2),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
    }


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


def paper_says(console: Console, text: str) -> None:
    """What the paper's own text states, and on what; nothing is read off its plots."""
    console.print(f"[bold]The paper[/]: {text}")
