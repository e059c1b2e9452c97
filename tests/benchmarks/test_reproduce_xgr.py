"""Figures of the xGR paper in small: a virtual clock that is fair, rows that are kept, two figures from measuring to plot."""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.papers import xgr, xgr_kernels, xgr_latency, xgr_memory, xgr_scheduling
from benchmarks.papers.experiments import serving_figure
from benchmarks.papers.xgr import RunOptions, kept_serving_rows
from benchmarks.serving import load


def virtual(
    times: list[float], seconds: float, max_batch: int, give_up_s: float = 100.0
) -> tuple[dict[str, object], list[int]]:
    """Serve with batches that take `seconds` each by a clock of our own."""
    now, sizes = [0.0], []

    def run(prompts: object) -> None:
        sizes.append(len(prompts))  # type: ignore[arg-type]
        now[0] += seconds

    found = load.served(
        run, np.array(times), list(range(len(times))), max_batch=max_batch, give_up_s=give_up_s, clock=lambda: now[0]
    )
    return found, sizes


def test_on_a_virtual_clock_a_batch_is_what_has_arrived():
    found, sizes = virtual([0.0, 0.1, 0.2, 0.3, 5.0], 1.0, max_batch=2)
    assert sizes == [1, 2, 1, 1]  # the first alone; then two of three that came meanwhile; the last much later
    assert found["served"] == 5
    assert found["avg_ms"] == pytest.approx(1e3 * np.mean([1.0, 1.9, 1.8, 2.7, 1.0]), abs=0.1)
    assert not found["gave_up"]


def test_a_queue_that_grows_without_end_is_given_up():
    found, _ = virtual([0.01 * i for i in range(500)], 1.0, max_batch=1, give_up_s=3.0)
    assert found["gave_up"]
    assert found["served"] < 10
    assert found["sent"] == 500


def test_every_figure_has_a_name():
    for number in (13, 15, 16, 17, 18, 19):
        figure = serving_figure(f"xgr-figure-{number}")
        assert figure is not None
        assert figure.name == f"xgr-figure-{number}"
    assert serving_figure("static-table-1") is None
    assert serving_figure("xgr-figure-14") is None


@pytest.mark.parametrize("figure", [xgr_kernels.FIGURE_17, xgr_latency.FIGURE_19])
def test_a_figure_runs_from_measuring_to_its_plot(figure: xgr.ServingFigure, tmp_path: Path):
    console = Console(record=True, width=170)
    rows = figure.run(RunOptions(quick=True), console)
    assert rows
    assert all(row["parameters"]["experiment"] == figure.name and row["parameters"]["quick"] for row in rows)
    figure.show(console, rows)
    assert "The paper" in console.export_text()
    figure.draw(rows).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_rows_are_read_again_the_last_of_each_point(tmp_path: Path):
    def row(beams: int, value: float, quick: bool = False) -> str:
        at = {"experiment": "xgr-figure-17", "quick": quick, "beams": beams}
        return json.dumps({"parameters": at, "measured": {"ms": value}})

    (tmp_path / "reproduce_xgr.jsonl").write_text("\n".join([row(1, 5), row(2, 6), row(1, 7), row(1, 9, quick=True)]))
    assert [one["measured"]["ms"] for one in kept_serving_rows("xgr-figure-17", False, tmp_path)] == [7, 6]
    assert kept_serving_rows("xgr-figure-13", False, tmp_path) == []


def peak(kind: str, beams: int, tokens: int) -> dict[str, object]:
    size = 1_000_000 * (beams if kind != "leafbeam" else 1)
    return {"kind": kind, "beams": beams, "tokens": tokens, "formula": size, "allocator": size, "resident": size}


def test_figures_of_memory_latency_and_scheduling_are_drawn_from_rows_alone(tmp_path: Path):
    console = Console(record=True, width=170)
    peaks = [peak(kind, beams, 1000) for kind in ("leafbeam", "paged_attention", "per_beam_copies") for beams in (128, 512)]
    ratios = {"allocator": 4.2, "resident": 4.1, "formula": 4.3}
    memory = {
        "peaks": peaks,
        "growth_over_formula": {"allocator": 1.05, "resident": 1.0},
        "over_leafbeam": {"paged_attention": ratios},
    }
    latency = [
        {
            "parameters": {"system": name, "beams": 50, "rate": rate},
            "measured": {"avg_ms": 10.0 * rate, "p99_ms": 20.0 * rate * (1 if name == "leafbeam" else 4), "gave_up": False},
        }
        for name in ("leafbeam", "hf_generate")
        for rate in (2.0, 8.0)
    ]
    found = {"latency_ms": {"avg": 3.0, "p99": 9.0}, "goodput_per_s": 5.0, "refused": 0}
    scheduling = [
        {"parameters": {"variant": name, "rate": 5.0, "beams": 50}, "measured": found} for name in xgr_scheduling.VARIANTS
    ]
    for figure, rows in (
        (xgr_memory.FIGURE_15, [{"parameters": {}, "measured": memory}]),
        (xgr_memory.FIGURE_16, [{"parameters": {}, "measured": {"peaks": peaks}}]),
        (xgr_latency.FIGURE_13, latency),
        (xgr_scheduling.FIGURE_18, scheduling),
    ):
        figure.show(console, rows)
        figure.draw(rows).savefig(tmp_path / "figure.png")
    text = console.export_text()
    assert "within p99 <= 200 ms: leafbeam 8 a second, hf_generate 2: 4.00 x" in text
    assert "1.050 x the formula's growth" in text
    assert "3.49 x" in text
    assert "46.3 GB" in text
