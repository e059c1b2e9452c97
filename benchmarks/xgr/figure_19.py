"""Figure 19 of xGR: average and p99 latency at one rate as beams and model grow, beside PagedAttention.

The paper serves Qwen3 of 0.6B, 1.7B and 4B on H800 GPUs beside vLLM, at 64 requests a second. Here: three small models and the
shape of Qwen3-0.6B, random weights, float32, on one CPU thread and a virtual clock (`load.served`): waiting costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.peers.failure import failure_of
from benchmarks.peers.searches import Search, answering, searches_of
from benchmarks.serving import load
from benchmarks.serving.load_run import LoadRun
from benchmarks.static.inference import MODELS
from benchmarks.xgr.serving_figure import Row, RunOptions, ServingFigure, paper_says, style, table, tidy
from leafbeam.decode import BeamSearch
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary
from leafbeam.model.cpu.threads import torch_threads

__all__ = ["FIGURE_19"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One model, and how it is asked. rate: requests a second, for seconds."""

    sizes: dict[str, Any]
    rate: float = 2.0
    seconds: float = 6.0


def _small(layers: int, hidden: int) -> dict[str, Any]:
    heads = hidden // 32
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 3 * hidden}
    return sizes | {"num_attention_heads": heads, "num_key_value_heads": heads}


_QUICK = (_Model(sizes=_small(2, 64), seconds=2.0),)
_MODELS = (
    *(_Model(sizes=_small(layers, hidden)) for layers, hidden in ((2, 64), (4, 128), (6, 192))),
    _Model(sizes=MODELS["Qwen3-0.6B"], rate=1 / 60, seconds=480.0),
)


def _points_19(options: RunOptions) -> Points:
    """One rate a model, growing beams. Prompts of 256 tokens."""
    rng = np.random.default_rng(0)
    sizes = (64, 64, 64) if options.quick else (256, 256, 256, 16)
    trie = Trie.build(np.stack([rng.integers(0, size, 12_000) for size in sizes], 1), list(sizes))
    vocabulary = Vocabulary(codebook_sizes=sizes)
    with torch_threads(1):
        for asked in _QUICK if options.quick else _MODELS:
            config = ModelConfig(vocab_size=vocabulary.size, **asked.sizes)
            run = LoadRun(
                path=Path("drawn"),
                trie=trie,
                model=Transformer(config, vocabulary).eval(),
                histories=[],
                item_ids=np.empty(0),
            )
            at = {"layers": config.num_hidden_layers, "hidden": config.hidden_size, "rate": round(asked.rate, 4)}
            for beams in (32,) if options.quick else (128, 256, 512):
                searches, failed = _engines_only(run, beams)
                for name, why in failed.items():
                    yield {"system": name, "beams": beams} | at, why
                for name, answer in searches.items():
                    times = load.arrivals(np.random.default_rng(5), load.steady(asked.rate), asked.seconds)
                    length = TOKENS // len(sizes)
                    prompts = [trie.codes_at(rng.integers(0, trie.num_leaves, length)) for _ in times]
                    try:
                        answer(prompts[:1])
                        measured = load.served(answer, times, prompts, max_batch=4, give_up_s=40 / asked.rate)
                    except Exception as error:  # memory that a peer has not
                        if name == "leafbeam":
                            raise
                        measured = failure_of(error).row
                    yield {"system": name, "beams": beams} | at, measured


def _engines_only(run: LoadRun, beams: int) -> tuple[dict[str, Search], dict[str, dict[str, str]]]:
    searches = searches_of(run.model, BeamSearch(run.trie, beams, scoring="allowed"))
    chosen = {name: searches[name] for name in ("leafbeam", "paged_attention")}
    return answering(chosen, [run.trie.codes_at(np.arange(5))])


def _show_19(console: Console, rows: list[Row]) -> None:
    found = {_key(row): row["measured"] for row in rows}
    cells = []
    for (layers, hidden, beams, system), mine in found.items():
        if system == "leafbeam":
            other = found.get((layers, hidden, beams, "paged_attention"), {"status": "not measured"})
            theirs: tuple[object, ...] = (other.get("status", ""), "", "")
            if "p99_ms" in other:
                theirs = other["avg_ms"], other["p99_ms"], f"{other['p99_ms'] / mine['p99_ms']:.2f} x"
            rate = next(row["parameters"]["rate"] for row in rows if _key(row)[:2] == (layers, hidden))
            cells.append((f"{layers} x {hidden}", f"{rate:g}", beams, mine["avg_ms"], mine["p99_ms"], *theirs))
    columns = (
        "layers x hidden",
        "a second",
        "beams",
        "leafbeam avg ms",
        "p99 ms",
        "PagedAttention avg ms",
        "p99 ms",
        "p99 ratio",
    )
    console.print(table(f"prompts of {TOKENS} tokens", columns, cells))
    paper_says(
        console,
        "no figure in its text; on H800 GPUs at 64 requests a second xGR's avg and p99 are below vLLM's for 0.6B, 1.7B and 4B "
        "and beams 128, 256, 512. No GPU was measured here.",
    )


def _draw_19(rows: list[Row]) -> Figure:
    found = {_key(row): row["measured"] for row in rows}
    models = list(dict.fromkeys((layers, hidden) for layers, hidden, _, _ in found))
    figure, panels = new_figure(len(models), width=max(3.6, 7.2 / len(models)), height=3.6)
    for axes, (layers, hidden) in zip(panels, models, strict=True):
        for system in ("leafbeam", "paged_attention"):
            points = [
                (beams, one)
                for (la, hi, beams, who), one in found.items()
                if (la, hi, who) == (layers, hidden, system) and "p99_ms" in one
            ]
            look = style(system)
            axes.plot([beams for beams, _ in points], [one["p99_ms"] for _, one in points], **look)
            look |= {"ls": "--", "label": f"{look['label']}, average"}
            axes.plot([beams for beams, _ in points], [one["avg_ms"] for _, one in points], **look)
        axes.set_yscale("log")
        axes.set_xticks(sorted({beams for _, _, beams, _ in found}))
        tidy(axes, f"{layers} layers, hidden {hidden}", "beams", "p99 (solid), average (dashed), ms")
    finish(figure, panels[0], "xGR, figure 19: latency at one rate, models and beams growing (here: one CPU thread)", columns=2)
    return figure


def _key(row: Row) -> tuple[int, int, int, str]:
    at = row["parameters"]
    return at["layers"], at["hidden"], at["beams"], at["system"]


FIGURE_19 = ServingFigure(name="xgr-figure-19", points=_points_19, show=_show_19, draw=_draw_19)
