"""Table 1: one decoding step with 20 million constrained items, by every method (STATIC §5.2; exact figures in Table 4a)."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.peers.hash_bitmap import expected_rate
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.drawing import draw_table
from benchmarks.static.experiment import Experiment, Row, Setting, false_positives, no_steps, steps_of
from benchmarks.static.inference import shares_of_inference
from benchmarks.static.methods import LABELS, LineUp
from benchmarks.static.paper import SHARE_OF_INFERENCE, TABLE_4A
from benchmarks.static.report import by_distribution, show_one
from benchmarks.static.trials import Logits
from benchmarks.workloads import DISTRIBUTIONS

__all__ = ["EXPERIMENT"]

_FULL, _QUICK = 20_000_000, 1_000_000


def _shapes(quick: bool) -> list[Shape]:
    return [Shape(distribution=kind, num_items=_QUICK if quick else _FULL) for kind in DISTRIBUTIONS]


def _measure(shape: Shape, setting: Setting) -> dict[str, Any]:
    return steps_of(shape, setting, tuple(LABELS), _hash_rate)


def _hash_rate(catalog: Catalog, line_up: LineUp, logits: Logits) -> dict[str, Any]:
    if "hash_bitmap" not in line_up.methods:
        return {}
    rate = false_positives(catalog, line_up.methods["hash_bitmap"], line_up.methods["leafbeam"], logits)
    prefixes = sum(catalog.nodes_L)
    expected = expected_rate(prefixes, 8 * line_up.methods["hash_bitmap"].nbytes)
    return {"false_positive_rate": round(rate, 6), "expected_rate": round(expected, 6), "prefixes": prefixes}


def _shares(measured: dict[str, Any], parameters: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Steps as shares of a decoding step of Qwen3 on this machine, where any were measured."""
    if not measured["step_us"]:
        return measured
    return measured | {"inference": shares_of_inference(measured, parameters, quick=setting.quick, memory=setting.memory)}


def _show(console: Console, rows: list[Row]) -> None:
    for group in by_distribution(rows).values():
        for row in group:
            size = row["parameters"]["num_items"]
            show_one(console, row, TABLE_4A.get(size), SHARE_OF_INFERENCE if size == _FULL else {})
            for name, one in row["measured"].get("inference", {}).items():
                said = (
                    one["reason"]
                    if "reason" in one
                    else f"{one['step_ms']['p50']:,.0f} ms, {one['parameters'] / 1e9:.2f} x 10^9"
                )
                console.print(f"a decoding step of {name} over these codes, one core, float32: {said}")
    console.print(
        "The overhead here is that over unconstrained beam search with the same framework and top-k. It is negative where "
        "constraining lets the step skip a top-k over all codes. So the shares of an inference are those of whole steps."
    )


def _draw(rows: list[Row]) -> Figure:
    return draw_table(rows, "STATIC, Table 1: a decoding step by method")


EXPERIMENT = Experiment(
    name="static-table-1",
    title="a step by every method",
    shapes=_shapes,
    measure=_measure,
    show=_show,
    draw=_draw,
    methods=tuple(LABELS),
    after=_shares,
    nothing=no_steps,
)
