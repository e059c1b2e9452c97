"""Figures: panels side by side with one legend."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["finish", "new_figure"]

_LEGEND_INCHES = 2.1  # that the longest name takes


def new_figure(
    panels: int, *, width: float = 4.4, height: float = 4.6, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Panels side by side, `columns` in a row (None: all of them), with room for one legend below."""
    matplotlib.use("agg")
    columns = panels if columns is None else min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.set_axis_off()
    return figure, axes[:panels]


def finish(figure: Figure, legend_of: Axes, title: str, columns: int = 5) -> None:
    """One legend below all panels, of as many columns as fit, one title above."""
    handles, labels = legend_of.get_legend_handles_labels()
    columns = min(columns, max(1, int(figure.get_figwidth() / _LEGEND_INCHES)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9)
