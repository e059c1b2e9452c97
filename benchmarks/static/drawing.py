"""Plots of kept rows: medians with p20 to p80, ours beside the paper's own curves where it gives numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.drawing import finish, new_figure
from benchmarks.static.methods import LABELS
from benchmarks.static.paper import HARDWARE, Overheads
from benchmarks.static.report import PAPER_NAMES, by_distribution, where

__all__ = ["STYLES", "curve", "draw_sweep", "draw_table", "log_axes", "plain", "share_y"]

Row = dict[str, Any]

# method -> (colour, marker, line)
STYLES = {
    "leafbeam": ("#1f7a4a", "o", "-"),
    "leafbeam_packed": ("#66b88a", "o", "--"),
    "leafbeam_jax": ("#0d4f5c", "o", "-."),
    "static_jax": ("#d9822b", "s", "-"),
    "static_jax_scatter": ("#efc39a", "s", "--"),
    "static_torch": ("#b5541c", "D", "-"),
    "static_scatter": ("#e8b684", "D", "--"),
    "ppv_approximate": ("#7b5ea7", "v", "-"),
    "ppv_approximate_jax": ("#b7a3d1", "v", "--"),
    "ppv_exact": ("#4b3a8c", "^", "-"),
    "ppv_exact_jax": ("#8d80bf", "^", "--"),
    "hash_bitmap": ("#3b82b8", "P", "-"),
    "hash_bitmap_jax": ("#8fbbdc", "P", "--"),
    "cpu_trie": ("#b03a48", "X", "-"),
    "marisa": ("#d98a94", "X", "--"),
    "unconstrained": ("#8a8f8c", ".", "-"),
    "unconstrained_jax": ("#b8bcba", ".", "--"),
}


def curve(
    axes: Axes, xs: Sequence[float], spreads: Sequence[dict[str, float]], method: str, label: str, scale: float = 1.0
) -> None:
    """A line of medians with bars from p20 to p80."""
    colour, marker, line = STYLES[method]
    middle = [scale * one["p50"] for one in spreads]
    below = [scale * (one["p50"] - one["p20"]) for one in spreads]
    above = [scale * (one["p80"] - one["p50"]) for one in spreads]
    axes.errorbar(
        xs,
        middle,
        yerr=[below, above],
        color=colour,
        marker=marker,
        linestyle=line,
        label=label,
        ms=5,
        lw=1.5,
        capsize=2.5,
        elinewidth=1,
    )


def draw_sweep(rows: list[Row], paper: dict[int, Overheads], x_of: Callable[[Row], int], x_label: str, title: str) -> Figure:
    """A panel of steps for each distribution, and one of the paper's overheads."""
    groups = by_distribution(rows)
    figure, panels = new_figure(len(groups) + 1)
    for axes, (kind, group) in zip(panels, groups.items(), strict=False):
        for method in LABELS:
            points = [(x_of(row), row["measured"]["step_us"][method]) for row in group if method in row["measured"]["step_us"]]
            if points:
                curve(axes, [x for x, _ in points], [spread for _, spread in points], method, LABELS[method], 1e-3)
        log_axes(axes, [x_of(row) for row in group], x_label)
        axes.set_ylabel("whole step, ms (p50; bars p20 to p80)")
        axes.set_title(f"{kind}, here: the whole step", fontsize=10, loc="left")
    _draw_paper(panels[-1], paper, x_label)
    share_y(panels[: len(groups)])
    finish(figure, panels[0], f"{title}\nhere: {where(rows[0])}; the paper: {HARDWARE}")
    return figure


def draw_table(rows: list[Row], title: str) -> Figure:
    """A mark for each method's step, a panel for each distribution, logarithmic: the methods are orders of magnitude apart."""
    groups = by_distribution(rows)
    names = [name for name in LABELS if any(name in row["measured"]["step_us"] for row in rows)]
    figure, panels = new_figure(len(groups), width=5.6, height=0.8 + 0.34 * len(names))
    for axes, (kind, group) in zip(panels, groups.items(), strict=True):
        row = group[-1]
        for place, name in enumerate(names):
            spread = row["measured"]["step_us"].get(name)
            if spread is None:
                axes.text(0.02, place, "left out", va="center", fontsize=8, transform=axes.get_yaxis_transform())
                continue
            middle = spread["p50"] / 1e3
            error = [[middle - spread["p20"] / 1e3], [spread["p80"] / 1e3 - middle]]
            colour, marker, _ = STYLES[name]
            axes.errorbar(middle, place, xerr=error, color=colour, marker=marker, ms=7, lw=0, capsize=3, elinewidth=1.5)
            axes.text(spread["p80"] / 1e3, place, f"  {middle:,.3g} ms", va="center", fontsize=8)
        axes.set_yticks(range(len(names)), [LABELS[name] for name in names] if axes is panels[0] else [""] * len(names))
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.grid(True, axis="x", which="major", color="#e3e6e4", lw=0.7)
        axes.set_xlabel("one step, ms (p50; bars p20 to p80)")
        axes.set_title(f"{kind}, {row['parameters']['num_items']:,} items", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    low, high = min(axes.get_xlim()[0] for axes in panels), max(axes.get_xlim()[1] for axes in panels)
    for axes in panels:
        axes.set_xlim(low, high * 5)  # room for the numbers
    figure.suptitle(f"{title}\nhere: {where(rows[0])}", fontsize=9)
    return figure


def share_y(panels: list[Axes]) -> None:
    """The same scale wherever the same thing is drawn."""
    low, high = min(axes.get_ylim()[0] for axes in panels), max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)


def _draw_paper(axes: Axes, paper: dict[int, Overheads], x_label: str) -> None:
    """The paper's means and standard deviations."""
    theirs: dict[str, str] = {}
    for ours, name in PAPER_NAMES.items():
        theirs.setdefault(name, ours)
    for name, ours in theirs.items():
        points = [(x, overheads[name]) for x, overheads in paper.items() if name in overheads]
        colour, marker, line = STYLES[ours]
        axes.errorbar(
            [x for x, _ in points],
            [mean for _, (mean, _) in points],
            yerr=[deviation for _, (_, deviation) in points],
            color=colour,
            marker=marker,
            linestyle=line,
            ms=5,
            lw=1.5,
            capsize=2.5,
            elinewidth=1,
        )
    log_axes(axes, list(paper), x_label)
    axes.set_ylabel("overhead, ms (mean ± s.d.)")
    axes.set_title("uniform, the paper: overhead alone", fontsize=10, loc="left")


def log_axes(axes: Axes, xs: Sequence[int], x_label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    powers = all(str(x).strip("0") in ("1", "2") and x >= 1000 for x in xs)
    ticks = [x for x in xs if not powers or str(x).startswith("1")]
    axes.set_xticks(ticks, [f"$10^{{{len(str(x)) - 1}}}$" if powers else f"{x}" for x in ticks], fontsize=8)
    if not powers:
        axes.tick_params(axis="x", labelrotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.set_xlabel(x_label)
    axes.grid(True, which="major", color="#e3e6e4", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def plain(value: float, _: int) -> str:
    """0.01, 1, 1,000."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
