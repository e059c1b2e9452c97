"""Figure 18 of xGR: an ablation of the scheduling: `leafbeam serve` with one switch changed at a time, over HTTP.

The paper switches item filtering, graph dispatch and streams. Here: the filter of a rule on every request; batching; the
host's work beside the workers; two workers over one copy of the weights (the CPU's streams). Graphs are for GPUs and were not
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.papers.drawing import finish, new_figure
from benchmarks.papers.xgr import Row, RunOptions, ServingFigure, paper_says, table, tidy
from benchmarks.serving import load, serve
from benchmarks.serving.load import Planned
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving_with

__all__ = ["FIGURE_18"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
RULE = "even"
VARIANTS: dict[str, dict[str, Any]] = {
    "all on": {},
    "without batching": {"batching": False},
    "without overlap": {"overlap": False},
    "two workers": {"workers": 2},
    "with a filter": {},
}
_COLOURS = ("#1f7a4a", "#b03a48", "#d9822b", "#3b82b8", "#7b5ea7")


def _points(options: RunOptions) -> Points:
    names = ("all on", "without batching") if options.quick else tuple(VARIANTS)
    beams, seconds = (16, 1.5) if options.quick else (50, 5.0)
    common, rules = {"num_beams": beams, "slo_s": 0.5}, {RULE: "hash(item_id) % 2 = 0"}
    with serve.load_run(options.quick, options.data) as run:
        for name in names:
            with serving_with(run.path, common | VARIANTS[name], rules) as server:
                rng = np.random.default_rng(1)
                server.send(_planned(run, rng, np.linspace(0, 0.5, 10), name))
                for rate in (6.0,) if options.quick else (10.0, 30.0, 60.0):
                    times = load.arrivals(np.random.default_rng(int(rate)), load.steady(rate), seconds)
                    answers = server.send(_planned(run, np.random.default_rng(int(rate) + 1), times, name))
                    measured = load.summary(answers, seconds=seconds, slo_s=0.5)
                    yield {"variant": name, "rate": rate, "beams": beams, "data": run.path.name}, measured


def _planned(run: LoadRun, rng: np.random.Generator, times: Any, name: str) -> Sequence[Planned]:
    planned = run.planned(rng, times)
    if name != "with a filter":
        return planned
    return [Planned(at=one.at, body=one.body | {"rules": [RULE]}) for one in planned]


def _show(console: Console, rows: list[Row]) -> None:
    cells = []
    for row in rows:
        at, found = row["parameters"], row["measured"]
        latency = found.get("latency_ms", {"avg": float("nan"), "p99": float("nan")})
        cells.append(
            (at["variant"], f"{at['rate']:g}", latency["avg"], latency["p99"], found["goodput_per_s"], found["refused"])
        )
    columns = ("variant", "requests a second", "avg ms", "p99 ms", "goodput a second", "refused")
    console.print(table(f"leafbeam serve over HTTP, {rows[0]['parameters']['beams']} beams, objective 500 ms", columns, cells))
    paper_says(
        console,
        "without streams and graphs latency rises sharply with the rate (OneRec-0.1B); filtering costs a negligible amount. "
        "Its text gives no figures. Graphs are not measured here, for want of a GPU.",
    )


def _draw(rows: list[Row]) -> Figure:
    figure, panels = new_figure(2, width=4.4, height=3.8)
    for axes, (key, words) in zip(panels, (("avg", "average"), ("p99", "p99")), strict=True):
        for colour, name in zip(_COLOURS, dict.fromkeys(row["parameters"]["variant"] for row in rows), strict=False):
            group = [row for row in rows if row["parameters"]["variant"] == name and "latency_ms" in row["measured"]]
            xs = [row["parameters"]["rate"] for row in group]
            axes.plot(xs, [row["measured"]["latency_ms"][key] for row in group], color=colour, marker="o", ms=5, label=name)
        axes.set_yscale("log")
        tidy(axes, f"{words} latency of what was answered", "requests a second", "ms")
    finish(figure, panels[0], "xGR, figure 18: one switch at a time (here: leafbeam serve on a CPU, over HTTP)", columns=5)
    return figure


FIGURE_18 = ServingFigure(name="xgr-figure-18", points=_points, show=_show, draw=_draw)
