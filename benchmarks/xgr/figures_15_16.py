"""Figures 15 and 16 of xGR: peak memory as beams and as prompts grow, beside PagedAttention and per-beam copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.serving import memory
from benchmarks.xgr.serving_figure import LABELS, Row, RunOptions, ServingFigure, paper_says, style, table, tidy

__all__ = ["FIGURE_15", "FIGURE_16"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
MIB = 2**20
_COLUMNS = ("kept", "beams", "tokens", "formula MiB", "allocator's peak MiB", "process grew by MiB")


def _points_15(options: RunOptions) -> Points:
    yield memory.measure("beams", options.quick)


def _points_16(options: RunOptions) -> Points:
    yield memory.measure("tokens", options.quick)


def _show(console: Console, rows: list[Row], paper: str) -> None:
    for row in rows:
        cells = [
            (peak["kind"], peak["beams"], peak["tokens"], *(_mib(peak, name) for name in ("formula", "allocator", "resident")))
            for peak in row["measured"]["peaks"]
        ]
        console.print(table("keys, values and activations of one search, weights not counted", _COLUMNS, cells))
        if "growth_over_formula" in row["measured"]:
            growth, ratios = row["measured"]["growth_over_formula"], row["measured"]["over_leafbeam"]
            console.print(
                f"8 requests, 128 to 512 beams: the allocator's peak grows {growth['allocator']:.3f} x the formula's growth"
            )
            for kind, ratio in ((kind, ratio) for kind, ratio in ratios.items() if "allocator" in ratio):
                held = f"{ratio['allocator']:.1f} x (allocator), {ratio['resident']:.1f} x (process)"
                console.print(f"512 beams: {LABELS[kind]} holds {held} of what leafbeam does")
    paper_says(console, paper)


def _mib(peak: dict[str, Any], name: str) -> float | str:
    """MiB, or the status of a peer that failed."""
    return peak[name] / MIB if name in peak else peak["status"]


def _show_15(console: Console, rows: list[Row]) -> None:
    text = "1,000 tokens, Qwen3-4B, one NPU, weights included: xGR around 10 GB, 10.6 at 512 beams; xLLM 46.3 GB at 512 beams."
    _show(console, rows, text)


def _show_16(console: Console, rows: list[Row]) -> None:
    text = "256 beams, Qwen3-4B, weights included: xGR 12.0 GB at 3,000 tokens; xLLM consistently around 30 GB."
    _show(console, rows, text)


def _draw(rows: list[Row], against: str, title: str) -> Figure:
    figure, panels = new_figure(2, width=4.2, height=3.8)
    peaks = rows[-1]["measured"]["peaks"]
    for axes, scale in zip(panels, ("linear", "log"), strict=True):
        for kind in dict.fromkeys(peak["kind"] for peak in peaks):
            points = [peak for peak in peaks if peak["kind"] == kind and "allocator" in peak]
            xs = [peak[against] for peak in points]
            axes.plot(xs, [peak["allocator"] / MIB for peak in points], **style(kind))
            axes.plot(xs, [peak["formula"] / MIB for peak in points], color="#8a8f8c", ls=":", lw=1, label="formula")
        axes.set_yscale(scale)
        axes.set_xticks(sorted({peak[against] for peak in peaks}))
        tidy(axes, f"peak of one search ({scale})", against, "MiB, weights not counted")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[0].legend(handles[:6:2] + handles[1:2], labels[:6:2] + labels[1:2], fontsize=7, frameon=False)
    finish(figure, panels[1], title, columns=4)
    figure.legends.clear()
    return figure


def _draw_15(rows: list[Row]) -> Figure:
    return _draw(rows, "beams", "xGR, figure 15: memory as beams grow (here: a Qwen3 of 8 layers, float32, CPU)")


def _draw_16(rows: list[Row]) -> Figure:
    return _draw(rows, "tokens", "xGR, figure 16: memory as prompts grow (here: a Qwen3 of 8 layers, float32, CPU)")


FIGURE_15 = ServingFigure(name="xgr-figure-15", points=_points_15, show=_show_15, draw=_draw_15, timed=False)
FIGURE_16 = ServingFigure(name="xgr-figure-16", points=_points_16, show=_show_16, draw=_draw_16, timed=False)
