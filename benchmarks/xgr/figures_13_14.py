"""Figures 13 and 14 of xGR over real HTTP: average and p99 latency as requests come faster, leafbeam beside PagedAttention.

Both are the same server, engine, scheduler, search and constraint on the same weights, and find the same items (asserted); the
peer's keys and values are in pages (`compared_models`). Load comes from a second process at Poisson times, each rate twice;
latencies count from when a request was due. Requests ask for 10 items of all that the beams find.

    13    Qwen3: 4 layers of 128, prompts of 500 and 1,000 tokens, 128 to 512 beams
    14    OneRec: an encoder-decoder with experts, 0.1 x 10^9 parameters, prompts of 500 tokens

The paper serves Qwen3 of 0.6B to 4B and OneRec of 0.1B to 3B on an Ascend cluster beside vLLM and xLLM, with an objective of
200 ms. OneRec's arithmetic alone takes longer than that on one core, so its objective here is ten times as long.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.peers.compared_models import SESSIONS
from benchmarks.peers.failure import failure_of
from benchmarks.serving import load, serve
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served, serving_with
from benchmarks.xgr.serving_figure import LABELS, Row, RunOptions, ServingFigure, distinct, paper_says, style, table, tidy
from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, Vocabulary

__all__ = ["FIGURE_13", "FIGURE_14", "onerec"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
_TOO_SLOW = 3.0  # times the objective: no higher rate is tried
_GIVE_UP_S = 30.0
_RUNS = 2  # of each rate


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What is sent, and the p99 asked for. items: of each history. rates: a second, rising. requests: of each run, at least."""

    items: tuple[int, ...]
    beams: tuple[int, ...]
    rates: tuple[float, ...]
    requests: int
    slo_ms: float = 200.0


_QUICK = _Load(items=(10,), beams=(16,), rates=(4.0,), requests=6)
_QWEN3 = _Load(items=(125, 250), beams=(128, 256, 512), rates=(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30), requests=40)
_ONEREC = _Load(
    items=(125,), beams=(128, 256, 512), rates=(0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3), requests=15, slo_ms=2000.0
)


def onerec(codebook_sizes: Sequence[int], *, small: bool = False) -> EncoderDecoder:
    """OneRec's shape at 0.1 x 10^9 parameters: dense encoder layers, experts in the decoder's, two for each token; seeded."""
    vocabulary = Vocabulary(codebook_sizes=tuple(codebook_sizes))
    sizes: dict[str, Any] = {"d_model": 512, "d_kv": 64, "num_heads": 8, "d_ff": 1024, "num_experts": 16}
    sizes |= {"num_layers": 4, "num_decoder_layers": 4}
    if small:
        sizes = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 32, "num_experts": 4}
    config = EncoderDecoderConfig(
        vocab_size=vocabulary.size, feed_forward_proj="gated-silu", max_position_embeddings=4096, dropout=0.0, **sizes
    )
    return EncoderDecoder(config, vocabulary, torch.Generator().manual_seed(0)).eval()


def _points_13(options: RunOptions) -> Points:
    with serve.load_run(options.quick, options.data) as run:
        yield from _points(run, run.path, "Qwen3, 4 layers of 128", _QUICK if options.quick else _QWEN3)


def _points_14(options: RunOptions) -> Points:
    with serve.load_run(options.quick, options.data) as run:
        path = run.path / "onerec"
        model = onerec(run.trie.codebook_sizes, small=options.quick)
        model.save_pretrained(path / "model")
        for name in ("index.leafbeam", "catalog.duckdb", "rules.toml"):
            shutil.copy(run.path / name, path / name)
        parameters = sum(weight.numel() for weight in model.parameters())
        del model
        yield from _points(run, path, f"OneRec, {parameters / 1e9:.2f} x 10^9", _QUICK if options.quick else _ONEREC)


def _points(run: LoadRun, path: Path, model: str, sent: _Load) -> Points:
    """One server for each system and number of beams; rising rates until it falls behind, then the highest that it keeps."""
    for items, beams in product(sent.items, sent.beams):
        panel = {"model": model, "items": items, "prompt_tokens": 1 + items * run.trie.num_levels}
        panel |= {"beams": beams, "data": run.path.name, "transport": "HTTP", "slo_ms": sent.slo_ms}
        settings = {"num_beams": beams, "predict": False, "timeout_s": _GIVE_UP_S}
        highest, goodput = dict.fromkeys(SESSIONS, 0.0), dict.fromkeys(SESSIONS, 0.0)
        found: list[list[set[str]]] = []
        for system in SESSIONS:
            at = panel | {"what": "rate", "system": system}
            try:
                with serving_with(path, settings, {}, system) as server:
                    warm = server.send(_requests(run, np.linspace(0, 2, 4), items, seed=[0]))
                    found.append([set(map(str, one.body["item_ids"])) for one in warm])
                    for rate, measured in _rates(run, server, items, sent):
                        yield at | {"rate": float(rate)}, measured
                        goodput[system] = max(goodput[system], measured["goodput_per_s"])
                        if measured["p99_ms"] <= sent.slo_ms and not measured["unanswered"]:
                            highest[system] = float(rate)
            except Exception as error:  # a peer whose server does not come up, or dies
                if system == "leafbeam":
                    raise
                yield at | {"rate": 0.0}, failure_of(error).row
        for mine, theirs in zip(*found, strict=True) if len(found) == len(SESSIONS) else ():
            assert len(mine ^ theirs) <= 2, "the systems found other items"  # a tie at the last place
        yield panel | {"what": "highest rate"}, {"rate": highest, "goodput": goodput}


def _rates(run: LoadRun, server: Served, items: int, sent: _Load) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each rate in two runs, taken together, until two rates after one another are too fast, or one by far."""
    missed = 0
    for rate in sent.rates:
        answers, seconds = list[load.Answered](), 0.0
        for again in range(_RUNS):
            rng = np.random.default_rng([int(100 * rate), again])
            times = np.cumsum(rng.exponential(1 / rate, max(sent.requests, min(150, int(10 * rate)))))
            answers += server.send(_requests(run, times, items, seed=[1, int(100 * rate), again]))
            seconds += float(times[-1])
        found = load.summary(answers, seconds=seconds, slo_s=sent.slo_ms / 1e3)
        late = found["errors"] + found["refused"]
        latency = found.get("latency_ms", {"avg": float("inf"), "p99": float("inf")})
        measured = {"avg_ms": latency["avg"], "p99_ms": latency["p99"], "unanswered": late}
        kept = ("sent", "statuses", "answered_per_s", "goodput_per_s", "client_late_ms_p99")
        measured |= {name: found[name] for name in kept}
        yield rate, measured | {"batch_size_mean": found.get("batch_size_mean"), "runs": _RUNS}
        missed = missed + 1 if late or latency["p99"] > sent.slo_ms else 0
        if late or missed > 1 or latency["p99"] > _TOO_SLOW * sent.slo_ms:
            break


def _requests(run: LoadRun, times: Any, items: int, seed: Sequence[int]) -> list[load.Planned]:
    """Histories of `items` items drawn at random, new ones for each seed."""
    return run.planned(np.random.default_rng([*seed, items]), np.asarray(times), lengths=np.full(len(times), items))


def _show(console: Console, rows: list[Row], paper: str) -> None:
    for model, tokens, beams in dict.fromkeys(_panel(row) for row in rows):
        group = _points_of(rows, (model, tokens, beams))
        cells = [_cells(row) for row in group]
        columns = ("system", "requests a second", "avg ms", "p99 ms", "unanswered", "batch")
        console.print(table(f"{model}, {tokens:,} tokens, {beams} beams, over HTTP", columns, cells))
        mine, other = (_highest(rows, (model, tokens, beams)).get(name, 0.0) for name in SESSIONS)
        ratio = f": {mine / other:.2f} x" if mine and other else ""
        within = (
            f"within p99 <= {distinct(rows, 'slo_ms')[0]:g} ms: leafbeam {_rate(mine)}, PagedAttention {_rate(other)}{ratio}"
        )
        at_both = f"p99 of PagedAttention / leafbeam: {', '.join(_ratios(group)) or 'none'}"
        console.print(f"{within}; at the rates of both, {at_both}")
    paper_says(console, paper)


def _cells(row: Row) -> tuple[object, ...]:
    at, found = row["parameters"], row["measured"]
    if "status" in found:
        return LABELS[at["system"]], f"{found['status']}: {found['reason'][:60]}", "", "", "", ""
    numbers = found["avg_ms"], found["p99_ms"], found["unanswered"], found["batch_size_mean"] or ""
    return LABELS[at["system"]], f"{at['rate']:g}", *numbers


def _panel(row: Row) -> tuple[str, int, int]:
    at = row["parameters"]
    return at["model"], at["prompt_tokens"], at["beams"]


def _points_of(rows: list[Row], panel: tuple[str, int, int]) -> list[Row]:
    found = [row for row in rows if _panel(row) == panel and row["parameters"]["what"] == "rate"]
    return sorted(found, key=lambda row: row["parameters"]["rate"])


def _highest(rows: list[Row], panel: tuple[str, int, int]) -> dict[str, float]:
    """The highest rate tried at which each system answers all, within the objective's p99; 0 for none."""
    found = (row for row in rows if _panel(row) == panel and row["parameters"]["what"] == "highest rate")
    return next((row["measured"]["rate"] for row in found), {})


def _rate(rate: float) -> str:
    return f"{rate:g} a second" if rate else "at no rate tried"


def _ratios(rows: list[Row]) -> list[str]:
    p99 = {(row["parameters"]["system"], row["parameters"]["rate"]): row["measured"].get("p99_ms") for row in rows}
    both = [(rate, p99["leafbeam", rate], value) for (name, rate), value in p99.items() if name != "leafbeam" and value]
    return [f"{rate:g} a second {value / mine:.2f} x" for rate, mine, value in both if mine]


def _show_13(console: Console, rows: list[Row]) -> None:
    _show(
        console,
        rows,
        "at least 3.49 x (version 3: 2.89 x) the throughput of the best baseline with p99 <= 200 ms (Ascend NPUs, Qwen3 0.6B "
        "to 4B, beams 128, 256, 512; vLLM and xLLM). Other machines, models and baselines: only order and shape compare.",
    )


def _show_14(console: Console, rows: list[Row]) -> None:
    _show(
        console,
        rows,
        "OneRec of 0.1B to 3B on Ascend NPUs beside xLLM (vLLM has no OneRec): below it everywhere; its text gives no figures.",
    )


def _draw(rows: list[Row], title: str) -> Figure:
    panels = sorted(dict.fromkeys(_panel(row) for row in rows))
    figure, axes_of = new_figure(len(panels), width=3.4, height=3.2, columns=3)
    for axes, panel in zip(axes_of, panels, strict=True):
        for name in SESSIONS:
            group = [row for row in _points_of(rows, panel) if row["parameters"]["system"] == name]
            points = [row for row in group if "p99_ms" in row["measured"]]
            xs, look = [row["parameters"]["rate"] for row in points], style(name)
            axes.plot(xs, [row["measured"]["p99_ms"] for row in points], **look)
            look |= {"ls": "--", "label": f"{look['label']}, average"}
            axes.plot(xs, [row["measured"]["avg_ms"] for row in points], **look)
            for row in group:
                if "status" in row["measured"]:
                    axes.text(0.05, 0.9, f"{LABELS[name]}: {row['measured']['status']}", transform=axes.transAxes, fontsize=7)
        axes.axhline(distinct(rows, "slo_ms")[0], color="#9aa19d", ls=":", lw=1)
        axes.set_yscale("log")
        tidy(axes, f"{panel[1]:,} tokens, {panel[2]} beams", "requests a second", "p99 (solid), average, ms")
    finish(figure, axes_of[0], f"{title}\n{distinct(rows, 'model')[0]}, over HTTP, one CPU thread", columns=4)
    return figure


def _draw_13(rows: list[Row]) -> Figure:
    return _draw(rows, "xGR, figure 13: latency as requests come faster")


def _draw_14(rows: list[Row]) -> Figure:
    return _draw(rows, "xGR, figure 14: latency of OneRec as requests come faster")


FIGURE_13 = ServingFigure(name="xgr-figure-13", points=_points_13, show=_show_13, draw=_draw_13)
FIGURE_14 = ServingFigure(name="xgr-figure-14", points=_points_14, show=_show_14, draw=_draw_14)
