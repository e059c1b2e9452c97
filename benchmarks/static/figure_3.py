"""Figure 3: a step as the codebook grows from 256 to 32,768 at 10^7 items (STATIC §5.3; Table 4b).

leafbeam's own target leaves the log-sum-exp out, which reads every logit of a row whatever the constraint. It is measured
apart, on exactly the rows that the step reads: those whose NaN it would find.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.rows import spread
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.drawing import draw_sweep
from benchmarks.static.experiment import Experiment, Row, Setting, no_steps, steps_of
from benchmarks.static.methods import LABELS, LineUp, Method
from benchmarks.static.normalizing import normalize_rows
from benchmarks.static.paper import TABLE_4B
from benchmarks.static.report import by_distribution, show_sweep
from benchmarks.static.trials import Logits, search
from benchmarks.workloads import DISTRIBUTIONS
from leafbeam.errors import LogitsError
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK

__all__ = ["EXPERIMENT", "TARGET", "rows_read"]

TARGET = 2.0  # the step less its log-sum-exp at the largest codebook over the smallest, of leafbeam
_FULL = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_QUICK = (256, 2048, 16384)
_FULL_ITEMS, _QUICK_ITEMS = 10_000_000, 300_000


def _shapes(quick: bool) -> list[Shape]:
    items = _QUICK_ITEMS if quick else _FULL_ITEMS
    sizes = _QUICK if quick else _FULL
    return [Shape(distribution=kind, num_items=items, num_codes=size) for kind in DISTRIBUTIONS for size in sizes]


def _measure(shape: Shape, setting: Setting) -> dict[str, Any]:
    return steps_of(shape, setting, tuple(LABELS), lambda catalog, line_up, logits: _apart(catalog, line_up, logits, setting))


def _apart(catalog: Catalog, line_up: LineUp, logits: Logits, setting: Setting) -> dict[str, Any]:
    """log_sum_exp_us: of the rows that a search reads, a step. rest_us: the step less it, in the same trials."""
    method = line_up.methods["leafbeam"]
    read = [rows_read(method, level, logits) for level in range(len(logits))]
    normalizing: list[float] = []
    rest: list[float] = []
    for _ in range(setting.num_trials + 1):
        seconds = np.array(search(method, logits)[1])
        alone = np.array([_log_sum_exp_seconds(values, rows) for values, rows in zip(logits, read, strict=True)])
        normalizing.append(float(alone.mean()))
        rest.append(float((seconds - alone).mean()))
    count = [int(rows.sum()) for rows in read]
    return {"log_sum_exp_us": spread(normalizing[1:]), "rest_us": spread(rest[1:]), "rows_read": count}


def rows_read(method: Method, level: int, logits: Logits) -> NDArray[np.bool_]:
    """Which rows of a level's logits a search reads, found out by asking which NaN it minds."""
    before = search(method, logits[:level])[0][-1] if level else None
    values = logits[level].copy()
    read = np.zeros(values.shape[:2], np.bool_)
    for at in np.ndindex(*read.shape):
        kept = values[at].copy()
        values[at] = np.nan
        try:
            method.round(level, before, values)
        except LogitsError:
            read[at] = True
        values[at] = kept
    return read


def _log_sum_exp_seconds(values: NDArray[np.float32], read: NDArray[np.bool_]) -> float:
    """One pass of the kernel's own loops over the rows, on logits written anew."""
    fresh = values.copy()
    maxima = np.empty(values.shape[2] // CHUNK + 1, np.float32)
    begin = time.perf_counter()
    normalize_rows(fresh, read, maxima)
    return time.perf_counter() - begin


def _show(console: Console, rows: list[Row]) -> None:
    show_sweep(console, rows, TABLE_4B, lambda row: (row["parameters"]["V"], f"V = {row['parameters']['V']:,}"))
    for kind, group in by_distribution(rows).items():
        measured = [row for row in group if "rest_us" in row["measured"]]
        for row in measured:
            apart = row["measured"]
            console.print(
                f"{kind}, V = {row['parameters']['V']:,}: leafbeam's step is {apart['log_sum_exp_us']['p50']:,.1f} µs of "
                f"log-sum-exp and {apart['rest_us']['p50']:,.1f} µs of everything else"
            )
        if len(measured) > 1:
            console.print(growth(kind, measured[0], measured[-1]))


def growth(kind: str, small: Row, large: Row) -> str:
    """How much dearer a step less its log-sum-exp is at the largest codebook than at the smallest, against the target."""
    few, many = (row["measured"]["rest_us"]["p50"] for row in (small, large))
    sizes = f"V = {large['parameters']['V']:,} and V = {small['parameters']['V']:,}"
    if min(few, many) <= 0:
        return f"{kind}: leafbeam's step apart from the log-sum-exp is lost in noise at {sizes}: measure on a quiet machine"
    verdict = "met" if many <= TARGET * few else "missed"
    return f"{kind}: leafbeam's step apart from the log-sum-exp, {sizes}: {many / few:.2f} x (target {TARGET:g} x: {verdict})"


def _draw(rows: list[Row]) -> Figure:
    return draw_sweep(
        rows, TABLE_4B, lambda row: row["parameters"]["V"], "codes of a level", "STATIC, Figure 3: a step by the codebook"
    )


EXPERIMENT = Experiment(
    name="static-figure-3",
    title="a step by the size of the codebook",
    shapes=_shapes,
    measure=_measure,
    show=_show,
    draw=_draw,
    methods=tuple(LABELS),
    nothing=no_steps,
)
