"""Figures of the docs, drawn from the committed rows: `python -m benchmarks.plots`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.rows import RESULTS

__all__ = ["draw_step", "latest_rows"]

_METHODS = (
    ("leafbeam", "leafbeam", "#2f7d4f"),
    ("static_torch", "STATIC (torch)", "#b0b7b3"),
    ("static_torch_lean", "STATIC, no mask", "#c6cbc8"),
    ("unconstrained", "unconstrained", "#d8dcd9"),
)


def latest_rows(name: str, folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The last row of each distribution."""
    rows: dict[str, dict[str, Any]] = {}
    for line in (folder / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["parameters"]["distribution"]] = row
    return rows


def draw_step(path: Path, folder: Path = RESULTS) -> None:
    """The README's figure: a constrained round's time and the index's size, leafbeam beside its peers."""
    matplotlib.use("agg")
    rows = latest_rows("step", folder)
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    times, sizes = figure.subplots(1, 2, width_ratios=[1.7, 1])
    ticks: list[float] = []
    labels: list[str] = []
    place = 0.0
    for distribution, row in rows.items():
        steps = row["measured"]["step_us"]
        for key, label, colour in _METHODS:
            spread = steps[key]
            error = [[spread["p50"] - spread["p20"]], [spread["p80"] - spread["p50"]]]
            times.barh(place, spread["p50"], xerr=error, color=colour, error_kw={"lw": 1, "ecolor": "#555555"})
            times.text(spread["p80"], place, f"  {spread['p50']:,.0f} µs", va="center", fontsize=8)
            ticks.append(place)
            labels.append(f"{label}, {distribution}")
            place += 1
        place += 0.6
    _tidy(times, ticks, labels, "one constrained round, µs (p50; bars p20 to p80)")
    row = next(iter(rows.values()))
    for at, (key, label, colour) in enumerate(_METHODS[:2]):
        size = row["measured"]["index_bytes_per_item"][key.removesuffix("_torch")]
        sizes.barh(at, size, color=colour, height=0.5)
        sizes.text(size, at, f"  {size:.1f} B", va="center", fontsize=8)
        labels[at] = label
    _tidy(sizes, [0.0, 1.0], labels[:2], "index, bytes an item (uniform)")
    parameters = row["parameters"]
    figure.suptitle(
        f"{parameters['num_items']:,} items, {parameters['L']} levels of {parameters['V']:,} codes, "
        f"{parameters['B']} requests x {parameters['K']} beams, one CPU thread",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _tidy(axes: Axes, ticks: list[float], labels: list[str], title: str) -> None:
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.18)


if __name__ == "__main__":
    draw_step(Path(__file__).parents[1] / "docs" / "figures" / "step.png")
