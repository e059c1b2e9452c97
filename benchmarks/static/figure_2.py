"""Figure 2: a step as the constraint set grows from 10^5 to 10^8 at |V| = 2,048 (STATIC §5.3; Table 4a)."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.static.catalog import Shape
from benchmarks.static.drawing import draw_sweep
from benchmarks.static.experiment import Experiment, Row, Setting, no_steps, steps_of
from benchmarks.static.methods import LABELS
from benchmarks.static.paper import TABLE_4A
from benchmarks.static.report import by_distribution, show_sweep, size_name
from benchmarks.workloads import DISTRIBUTIONS

__all__ = ["EXPERIMENT", "TARGET"]

TARGET = 2.0  # the largest step over the smallest, of leafbeam
_FULL, _QUICK = (100_000, 1_000_000, 10_000_000, 100_000_000), (10_000, 100_000, 1_000_000)


def _shapes(quick: bool) -> list[Shape]:
    return [Shape(distribution=kind, num_items=size) for kind in DISTRIBUTIONS for size in (_QUICK if quick else _FULL)]


def _measure(shape: Shape, setting: Setting) -> dict[str, Any]:
    return steps_of(shape, setting, tuple(LABELS), lambda catalog, line_up, logits: {})


def _show(console: Console, rows: list[Row]) -> None:
    show_sweep(console, rows, TABLE_4A, lambda row: (row["parameters"]["num_items"], size_name(row["parameters"]["num_items"])))
    for kind, group in by_distribution(rows).items():
        for method in ("leafbeam", "leafbeam_packed"):
            line = growth(kind, group, method)
            if line is not None:
                console.print(line)


def growth(kind: str, group: list[Row], method: str) -> str | None:
    """How much dearer a step is at the largest size than at the smallest, against the target; None where one is missing."""
    measured = [row for row in group if method in row["measured"]["step_us"]]
    if len(measured) < 2:
        return None
    small, large = measured[0], measured[-1]
    ratio = large["measured"]["step_us"][method]["p50"] / small["measured"]["step_us"][method]["p50"]
    sizes = (size_name(large["parameters"]["num_items"]), size_name(small["parameters"]["num_items"]))
    verdict = "met" if ratio <= TARGET else "missed"
    grown = f"{LABELS[method]}'s step at {sizes[0]} items is {ratio:.2f} x that at {sizes[1]}"
    return f"{kind}: {grown} (target {TARGET:g} x: {verdict})"


def _draw(rows: list[Row]) -> Figure:
    return draw_sweep(
        rows,
        TABLE_4A,
        lambda row: row["parameters"]["num_items"],
        "items",
        "STATIC, Figure 2: a step by the size of the constraint",
    )


EXPERIMENT = Experiment(
    name="static-figure-2",
    title="a step by the size of the constraint",
    shapes=_shapes,
    measure=_measure,
    show=_show,
    draw=_draw,
    methods=tuple(LABELS),
    nothing=no_steps,
)
