"""Figure 18 of xGR: an ablation of the scheduling: `leafbeam serve` with one switch changed at a time, over HTTP.

The paper switches item filtering, graph dispatch and streams. Here: the filter of a rule on every request; batching; the host's
work beside the workers; two workers over one copy of the weights. Graphs and streams are a GPU's (`python -m benchmarks gpu`).

A round is all variants in turns, each at every rate. What a switch changes is the ratio of its average latency to that of "all
on" in the same round. A switch that is slower in about half of the rounds changes nothing that they show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.rows import spread
from benchmarks.serving import load, serve
from benchmarks.serving.load import Planned
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving_with
from benchmarks.xgr.serving_figure import Row, RunOptions, ServingFigure, distinct, paper_says, table, tidy

__all__ = ["BASE", "FIGURE_18", "VARIANTS", "compared"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
RULE = "even"
BASE = "all on"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "without batching": {"batching": False},
    "without overlap": {"overlap": False},
    "two workers": {"workers": 2},
    "with a filter": {},
}
_COMMON: dict[str, Any] = {"slo_s": 0.5, "max_batch": 8, "max_batch_tokens": 2048}
_COLOURS = ("#1f7a4a", "#b03a48", "#d9822b", "#3b82b8", "#7b5ea7")
_ROUNDS = 8


def _points(options: RunOptions) -> Points:
    names = (BASE, "without batching") if options.quick else tuple(VARIANTS)
    beams, seconds, num_rounds = (16, 1.5, 1) if options.quick else (50, 5.0, _ROUNDS)
    rates = (6.0,) if options.quick else (10.0, 30.0, 60.0)
    rounds: dict[tuple[str, float], list[dict[str, Any]]] = {(name, rate): [] for name in names for rate in rates}
    with serve.load_run(options.quick, options.data) as run:
        for turn in range(num_rounds):
            for name in np.random.default_rng(turn).permutation(names).tolist():
                for rate, found in _round(run, name, rates, _COMMON | {"num_beams": beams}, seconds, turn):
                    rounds[name, rate].append(found)
        for (name, rate), taken in rounds.items():
            at = {"variant": name, "rate": rate, "beams": beams, "data": run.path.name, "scoring": "full"}
            yield at, _summary(taken) | {"over_all_on": compared(_averages(taken), _averages(rounds[BASE, rate]))}


def compared(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Return the ratios of both averages in each round (p20, p50, p80), and in how many rounds the switch was slower."""
    ratios = [mine / other for mine, other in zip(own, base, strict=True)]
    return spread(ratios, 1.0) | {"slower_in": sum(ratio > 1 for ratio in ratios), "rounds": len(ratios)}


def _averages(taken: Sequence[dict[str, Any]]) -> list[float]:
    """The average latency of each round; endless where nothing was answered."""
    return [one["latency_ms"]["avg"] if "latency_ms" in one else np.inf for one in taken]


def _round(
    run: LoadRun, name: str, rates: Sequence[float], settings: dict[str, Any], seconds: float, turn: int
) -> Iterator[tuple[float, dict[str, Any]]]:
    """One server with one switch changed, at every rate."""
    rules = {RULE: "hash(item_id) % 2 = 0"}
    with serving_with(run.path, settings | VARIANTS[name], rules) as server:
        rng = np.random.default_rng(1)
        server.send(_planned(run, rng, np.linspace(0, 0.5, 10), name))
        for rate in rates:
            times = load.arrivals(np.random.default_rng([turn, int(rate)]), load.steady(rate), seconds)
            answers = server.send(_planned(run, np.random.default_rng([turn, int(rate), 1]), times, name))
            yield rate, load.summary(answers, seconds=seconds, slo_s=0.5)


def _planned(run: LoadRun, rng: np.random.Generator, times: Any, name: str) -> Sequence[Planned]:
    extra = {"scoring": "full"} | ({"rules": [RULE]} if name == "with a filter" else {})
    return [Planned(at=one.at, body=one.body | extra) for one in run.planned(rng, times)]


def _median(taken: Sequence[dict[str, Any]], key: str) -> float:
    return float(np.median([one["latency_ms"][key] if "latency_ms" in one else np.inf for one in taken]))


def _summary(taken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and the averages of each round."""
    answered = [one for one in taken if "latency_ms" in one]
    numbers = ("answered_per_s", "goodput_per_s", "refused")
    found: dict[str, Any] = {name: round(float(np.median([one[name] for one in taken])), 2) for name in numbers}
    if answered:
        found["latency_ms"] = {key: round(_median(answered, key), 2) for key in ("avg", "p50", "p90", "p99")}
        stages = [one["stages_ms"] for one in answered]
        found["stages_ms"] = {
            name: {key: round(float(np.median([one[name][key] for one in stages])), 3) for key in ("p50", "p99")}
            for name in stages[0]
        }
        found["avg_ms_by_round"] = [one["latency_ms"]["avg"] for one in answered]
    return found


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
    for row in rows:
        at, ratio = row["parameters"], row["measured"].get("over_all_on")
        if ratio and at["variant"] != BASE:
            counted = f"slower in {ratio['slower_in']} of {ratio['rounds']} rounds"
            console.print(f"{at['variant']} at {at['rate']:g} a second: {ratio['p50']:.2f} x {BASE}, {counted}")
    paper_says(
        console,
        "without streams and graphs latency rises sharply with the rate (OneRec-0.1B); filtering costs a negligible amount. "
        "Its text gives no figures.",
    )


def _draw(rows: list[Row]) -> Figure:
    figure, panels = new_figure(2, width=4.4, height=3.8)
    for axes, (key, words) in zip(panels, (("avg", "average"), ("p99", "p99")), strict=True):
        for colour, name in zip(_COLOURS, distinct(rows, "variant"), strict=False):
            group = [row for row in rows if row["parameters"]["variant"] == name and "latency_ms" in row["measured"]]
            xs = [row["parameters"]["rate"] for row in group]
            axes.plot(xs, [row["measured"]["latency_ms"][key] for row in group], color=colour, marker="o", ms=5, label=name)
        axes.set_yscale("log")
        tidy(axes, f"{words} latency of what was answered", "requests a second", "ms")
    finish(figure, panels[0], "xGR, figure 18: one switch at a time (here: leafbeam serve on a CPU, over HTTP)", columns=3)
    return figure


FIGURE_18 = ServingFigure(name="xgr-figure-18", points=_points, show=_show, draw=_draw)
