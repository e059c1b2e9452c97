"""Figures of the xGR paper in small: a virtual clock that is fair, rows that are kept, two figures from measuring to plot."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.serving import load
from benchmarks.xgr import figure_17, figure_18, figure_19, figures_3_to_5, figures_13_14, figures_15_16, histories, sorting
from benchmarks.xgr import serving_figure as figure_module
from benchmarks.xgr.serving_figure import RunOptions

pytestmark = pytest.mark.slow


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


FIGURES = [
    figure_17.FIGURE_17,
    figure_19.FIGURE_19,
    figures_3_to_5.FIGURE_3,
    figures_3_to_5.FIGURE_4,
    sorting.SORTING,
    pytest.param(figures_3_to_5.FIGURE_5, marks=pytest.mark.slow),
    *(
        pytest.param(one, marks=pytest.mark.full)
        for one in (figures_13_14.FIGURE_13, figures_13_14.FIGURE_14, figure_18.FIGURE_18, histories.FIGURE)
    ),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_runs_from_measuring_to_its_plot(figure: figure_module.ServingFigure, tmp_path: Path):
    console = Console(record=True, width=170)
    kept: list[figure_module.Row] = []
    rows = figure.run(RunOptions(quick=True), console, kept.append)
    assert rows == kept
    assert rows
    assert all("seconds" in row["measured"] for row in rows)
    assert all(row["parameters"]["experiment"] == figure.name and row["parameters"]["quick"] for row in rows)
    figure.show(console, rows)
    assert "The paper" in console.export_text()
    figure.draw(rows).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_a_switch_is_compared_with_all_on_in_the_same_round():
    slow_minute = [10.0, 10.0, 40.0, 10.0]
    found = figure_18.compared([11.0, 11.0, 44.0, 9.0], slow_minute)
    assert found == {"p20": 1.02, "p50": 1.1, "p80": 1.1, "slower_in": 3, "rounds": 4}
    assert figure_18.compared(slow_minute, slow_minute)["slower_in"] == 0


def test_systems_that_find_other_items_are_no_comparison(monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def serving(path: Path, settings: object, rules: object, system: str) -> Generator[object]:
        items = [f"{system} {number}" for number in range(10)]
        yield SimpleNamespace(send=lambda planned: [SimpleNamespace(body={"item_ids": items})])

    run = SimpleNamespace(trie=SimpleNamespace(num_levels=4), path=Path("runs/shop"), planned=lambda *_, **__: [])
    monkeypatch.setattr(figures_13_14, "serving_with", serving)
    monkeypatch.setattr(figures_13_14, "_rates", lambda *_: iter([]))
    with pytest.raises(AssertionError, match="other items"):
        list(figures_13_14._points(run, run.path, "Qwen3", figures_13_14._QUICK))


def test_a_rate_is_measured_twice_and_two_missed_rates_are_the_last(monkeypatch: pytest.MonkeyPatch):
    sent: list[int] = []

    def send(planned: list[Any]) -> list[Any]:
        sent.append(len(planned))
        latency = 0.001 if len(sent) not in (3, 5, 7) else 0.3  # of runs: one of the second rate, of the third, of the fourth
        body = {"batch_size": 1, "timings_ms": {}}
        return [load.Answered(at=0.0, late=0.0, status=200, seconds=latency, body=body) for _ in planned]

    run = SimpleNamespace(planned=lambda rng, times, lengths: list(times))
    asked = figures_13_14._Load(items=(5,), beams=(8,), rates=(1, 2, 3, 4, 5), requests=10)
    found = list(figures_13_14._rates(run, SimpleNamespace(send=send), 5, asked))
    assert [(rate, measured["p99_ms"]) for rate, measured in found] == [(1, 1.0), (2, 300.0), (3, 300.0)]
    assert sent == [10, 10, 20, 20, 30, 30]
    assert found[0][1]["runs"] == 2


def test_bursts_have_the_mean_rate_of_poisson_arrivals_and_longer_pauses():
    times = {kind: histories.arrival_times(np.random.default_rng(1), kind, 10.0, 400) for kind in ("Poisson", "bursts")}
    assert times["Poisson"][-1] == pytest.approx(40, rel=0.2)
    assert times["bursts"][-1] == pytest.approx(40)
    steady, bursts = (np.diff(one) for one in times.values())
    assert (bursts > 0).all()
    assert np.median(bursts) < 0.7 * np.median(steady)
    assert bursts.max() > 2 * steady.max()


def test_a_systems_rates_end_where_both_objectives_are_missed(monkeypatch: pytest.MonkeyPatch):
    seconds = iter([0.1, 0.1, 0.5, 0.5, 2.5, 2.5])

    def send(planned: list[Any]) -> list[Any]:
        latency = next(seconds)
        return [load.Answered(at=0.0, late=0.0, status=200, seconds=latency, body={}) for _ in planned]

    monkeypatch.setattr(histories, "_requests", lambda run, name, beams, times, seed: list(times))
    server = SimpleNamespace(send=send)
    found = list(histories._rates(None, server, "vllm_beams", 128, "Poisson", histories._FULL))
    assert [rate for rate, _ in found] == [0.5, 1.0, 1.5]
    within = [[histories._is_within(one, objective) for objective in histories.OBJECTIVES_MS] for _, one in found]
    assert within == [[True, True], [False, True], [False, False]]


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
    failed = {"kind": "per_beam_copies", "beams": 1024, "tokens": 1000, "formula": 1, "status": "out of memory", "reason": "-9"}
    memory["peaks"].append(failed)
    at = {"model": "Qwen3", "items": 125, "prompt_tokens": 501, "beams": 128, "transport": "HTTP", "slo_ms": 200.0}
    numbers = {"unanswered": 0, "batch_size_mean": 1.0}
    latency = [
        {
            "parameters": at | {"what": "rate", "system": name, "rate": rate},
            "measured": numbers | {"avg_ms": 10.0 * rate, "p99_ms": 20.0 * rate * (1 if name == "leafbeam" else 4)},
        }
        for name in ("leafbeam", "paged_attention")
        for rate in (2.0, 8.0)
    ]
    gone = {"status": "out of memory", "reason": "exit status -9"}
    failed = [*latency[:2], {"parameters": at | {"what": "rate", "system": "paged_attention", "rate": 0.0}, "measured": gone}]
    highest = {"parameters": at | {"what": "highest rate"}, "measured": {"rate": {"leafbeam": 8.0, "paged_attention": 2.0}}}
    found = {"latency_ms": {"avg": 3.0, "p99": 9.0}, "goodput_per_s": 5.0, "refused": 0}
    found |= {"over_all_on": figure_18.compared([3.3, 3.0], [3.0, 3.0])}
    scheduling = [{"parameters": {"variant": name, "rate": 5.0, "beams": 50}, "measured": found} for name in figure_18.VARIANTS]
    for figure, rows in (
        (figures_15_16.FIGURE_15, [{"parameters": {}, "measured": memory}]),
        (figures_15_16.FIGURE_16, [{"parameters": {}, "measured": {"peaks": peaks}}]),
        (figures_13_14.FIGURE_13, [*latency, highest]),
        (figures_13_14.FIGURE_14, failed),
        (figure_18.FIGURE_18, scheduling),
    ):
        figure.show(console, rows)
        figure.draw(rows).savefig(tmp_path / "figure.png")
    text = console.export_text()
    assert "within p99 <= 200 ms: leafbeam 8 a second, PagedAttention 2 a second: 4.00 x" in text
    assert "p99 of PagedAttention / leafbeam: 2 a second 4.00 x, 8 a second 4.00 x" in text
    assert "out of memory: exit status -9" in text
    assert "PagedAttention at no rate tried; at the rates of both" in text
    assert "1.050 x the formula's growth" in text
    assert "3.49 x" in text
    assert "46.3 GB" in text
    assert "two workers at 5 a second: 1.05 x all on, slower in 1 of 2 rounds" in text
