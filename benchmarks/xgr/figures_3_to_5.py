"""Figures 3 to 5 of xGR, its motivation: kernels, memory, and answers that are no item, beside what would be ideal.

    3    one layer's attention in a round, by the beams: PagedAttention, tree attention (its mask made in each round), ours;
         ideal: prompt and codes read once at the machine's bandwidth, or its products at torch's best, whichever is slower
    4    bytes of keys and values of a search, by arithmetic: pages after random forks, whole; a tree with the codes of all
         rounds, and its mask; ideal, which is what leafbeam keeps: each prompt and each live beam's codes once
    5    answers of an unconstrained beam search that are no item, of 300 asked for, in groups of requests, by a trained model

The paper runs 3 and 4 on an Ascend NPU, 5 in two minutes of its own traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.micro.attention import Shape, bytes_of, drawn
from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.failure import failures_of
from benchmarks.peers.paged_beams import PagedBeams
from benchmarks.peers.paged_engine import PAGE
from benchmarks.peers.per_beam_attention import TreeBeams
from benchmarks.rows import interleaved, spread
from benchmarks.serving.load_run import LoadRun
from benchmarks.xgr.figure_17 import bandwidth
from benchmarks.xgr.served_attention import ServedAttention
from benchmarks.xgr.serving_figure import LABELS, Row, RunOptions, ServingFigure, distinct, paper_says, style, table, tidy
from leafbeam.decode import BeamSearch
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.attention.reference import attend
from leafbeam.train.baselines import unconstrained_search

__all__ = ["FIGURE_3", "FIGURE_4", "FIGURE_5"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]
MIB = 2**20
_TOKENS, _CODES, _LAYERS = 1000, 3, 28
_HEADS = {"heads": 16, "groups": 8, "size": 128}  # of Qwen3-0.6B
_BEAMS = (16, 32, 64, 128, 256, 512)


def _points_3(options: RunOptions) -> Points:
    tokens, beams_of = (64, (4, 8)) if options.quick else (_TOKENS, _BEAMS)
    heads = {"heads": 4, "groups": 2, "size": 16} if options.quick else _HEADS
    with torch_threads(1), torch.inference_mode():
        machine = {"bytes_per_s": bandwidth(), "flop_per_s": _products()}
        for beams in beams_of:
            shape = Shape(requests=1, beams=beams, tokens=tokens, codes=_CODES, **heads)
            yield asdict(shape), _layer(shape, machine, repeats=2 if options.quick else 10)


def _layer(shape: Shape, machine: dict[str, float], repeats: int) -> dict[str, Any]:
    query, key, value, slots = drawn(shape)
    served = ServedAttention.of(query, key, value, *slots)
    pages = PagedBeams.of(key, value, *slots)
    key_pages, tree = pages.transposed(), TreeBeams.of(key, value, *slots)
    parents_SK = torch.arange(shape.beams).expand(shape.codes, -1)

    def in_a_tree() -> torch.Tensor:
        return tree.masked(parents_SK, shape.tokens).attend(query)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "leafbeam": lambda: served.attend().view_as(query),
        "paged_attention": lambda: pages.attend(query, key_pages),
        "tree_attention": in_a_tree,
    }
    expected = attend(query, key, value, None, *slots)
    failed = failures_of(ways, lambda found: torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4))
    answering = {name: way for name, way in ways.items() if name not in failed}
    times = {name: {"ms": spread(seconds, 1e-3)["p50"]} for name, seconds in interleaved(answering, repeats).items()}
    operations = 4 * shape.requests * shape.beams * shape.heads * shape.size * (shape.tokens + shape.codes)
    ideal = max(operations / machine["flop_per_s"], bytes_of(shape, 4)["shared"] / machine["bytes_per_s"])
    rates = {"bandwidth_gb_per_s": machine["bytes_per_s"] / 1e9, "products_gflop_per_s": machine["flop_per_s"] / 1e9}
    return times | failed | {"ideal": {"ms": round(1e3 * ideal, 3)}} | {name: round(one, 1) for name, one in rates.items()}


def _products() -> float:
    """Floating-point operations a second of a large matrix product."""
    left = torch.randn(1024, 1024)
    return 2 * 1024**3 / min(interleaved({"product": lambda: left @ left}, 5)["product"])


def _points_4(options: RunOptions) -> Points:
    for beams in (4, 8) if options.quick else _BEAMS:
        shape = Shape(requests=1, beams=beams, tokens=64 if options.quick else _TOKENS, codes=_CODES, **_HEADS)
        yield asdict(shape) | {"layers": _LAYERS, "page": PAGE}, {name: {"bytes": one} for name, one in _held(shape).items()}


def _held(shape: Shape, seed: int = 0) -> dict[str, int]:
    """Bytes of keys and values in all layers after the last round; the mask of a tree is there once."""
    token = 2 * shape.groups * shape.size * 4 * _LAYERS
    rng = np.random.default_rng(seed)
    tables = BlockTables(np.array([shape.tokens]), PAGE, shape.codes)
    for code in range(shape.codes):
        tables.extend(rng.integers(0, shape.beams if code else 1, (1, shape.beams)), 1)
    live = shape.tokens + shape.beams * shape.codes
    return {
        "leafbeam": live * token,
        "paged_attention": tables.peak * PAGE * token,
        "tree_attention": live * token + shape.beams * live,
        "ideal": live * token,
    }


def _points_5(options: RunOptions) -> Points:
    run = LoadRun.demo(options.quick)
    groups, requests, beams = (2, 4, 20) if options.quick else (12, 25, 300)
    rng = np.random.default_rng(5)
    search = BeamSearch(run.trie, beams)
    with torch_threads(1):
        for group in range(groups):
            prompts = run.prompts(rng, requests)
            tokens_BT, lengths_B = map(torch.from_numpy, run.model.vocabulary.prompts(prompts))
            rounds = run.model.start(tokens_BT, lengths_B)
            codes_BKL, _ = unconstrained_search(rounds.step_fn, num_levels=run.trie.num_levels, num_beams=beams)
            sids = codes_BKL.reshape(-1, run.trie.num_levels).tolist()
            invalid = sum(tuple(sid) not in run.trie for sid in sids)
            found = search.run(rounds.step_fn, batch_size=requests)
            kept = sum(
                tuple(sid) in run.trie
                for codes, valid in zip(found.codes, found.num_valid, strict=True)
                for sid in codes[:valid]
            )
            measured = {
                "unconstrained": {"invalid": round(invalid / len(sids), 4)},
                "leafbeam": {"invalid": round(1 - kept / max(1, int(found.num_valid.sum())), 4)},
            }
            yield {"group": group, "requests": requests, "asked": beams, "num_items": run.trie.num_items}, measured


def _show_3(console: Console, rows: list[Row]) -> None:
    names = ("leafbeam", "paged_attention", "tree_attention", "ideal")
    cells = [(row["parameters"]["beams"], *(_number(row, name, "ms", 1) for name in names)) for row in rows]
    at = rows[0]["parameters"]
    title = f"one layer, {at['tokens']:,} tokens, {at['heads']} heads of {at['size']}, one CPU thread, ms"
    console.print(table(title, ("beams", *(LABELS[name] for name in names)), cells))
    paper_says(
        console,
        "PagedAttention rises with the beams, the ideal stays relatively flat; tree attention loads less and pays for masks "
        "(Ascend NPU; no figures in the text).",
    )


def _show_4(console: Console, rows: list[Row]) -> None:
    names = ("leafbeam", "paged_attention", "tree_attention", "ideal")
    cells = [(row["parameters"]["beams"], *(_number(row, name, "bytes", 1 / MIB) for name in names)) for row in rows]
    at = rows[0]["parameters"]
    title = f"keys and values of one search, Qwen3-0.6B in float32, {at['tokens']:,} tokens, {at['codes']} rounds, MiB"
    console.print(table(title, ("beams", *(LABELS[name] for name in names)), cells))
    paper_says(
        console,
        "PagedAttention's memory rises sharply with the beams by copies of blocks and fragments; tree attention avoids the "
        "copies and cannot release dropped beams. Over three rounds a tree keeps as many codes as live beams have.",
    )


def _show_5(console: Console, rows: list[Row]) -> None:
    shares = [row["measured"]["unconstrained"]["invalid"] for row in rows]
    at = rows[0]["parameters"]
    cells = [(row["parameters"]["group"], *(f"{row['measured'][name]['invalid']:.1%}" for name in _WAYS)) for row in rows]
    title = f"{at['asked']} answers asked for, groups of {at['requests']} requests: answers that are no item"
    console.print(table(title, ("group", "no constraint", "leafbeam"), cells))
    console.print(f"without a constraint {np.mean(shares):.1%} in the mean")
    paper_says(console, "approaches 50 % of 300 items within two minutes.")


_WAYS = ("unconstrained", "leafbeam")


def _number(row: Row, name: str, key: str, scale: float) -> object:
    found = row["measured"].get(name, {})
    return found[key] * scale if key in found else found.get("status", "")


def _lines(rows: list[Row], key: str, scale: float, words: str, title: str) -> Figure:
    figure, (axes,) = new_figure(1, width=5.2, height=3.8)
    for name in ("leafbeam", "paged_attention", "tree_attention", "ideal"):
        points = [
            (row["parameters"]["beams"], row["measured"][name][key] * scale) for row in rows if key in row["measured"][name]
        ]
        look = style(name)
        look |= {"ls": ":" if name == "ideal" else "-"}
        axes.plot([x for x, _ in points], [y for _, y in points], **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    tidy(axes, "", "beams", words)
    axes.set_xticks(distinct(rows, "beams"), [str(one) for one in distinct(rows, "beams")])
    finish(figure, axes, title, columns=4)
    return figure


def _draw_3(rows: list[Row]) -> Figure:
    return _lines(
        rows, "ms", 1, "one layer, ms", "xGR, figure 3: kernels of attention (here: one CPU thread, Qwen3-0.6B's heads)"
    )


def _draw_4(rows: list[Row]) -> Figure:
    return _lines(
        rows, "bytes", 1 / MIB, "MiB", "xGR, figure 4: keys and values of one search (Qwen3-0.6B, float32, 1,000 tokens)"
    )


def _draw_5(rows: list[Row]) -> Figure:
    figure, (axes,) = new_figure(1, width=5.2, height=3.4)
    for name, colour, label in (("unconstrained", "#b03a48", "no constraint"), ("leafbeam", "#1f7a4a", "leafbeam")):
        shares = [100 * row["measured"][name]["invalid"] for row in rows]
        axes.plot(distinct(rows, "group"), shares, color=colour, marker="o", ms=4, label=label)
    axes.set_ylim(bottom=-2)
    tidy(axes, "", "group of requests", "answers that are no item, %")
    finish(
        figure,
        axes,
        f"xGR, figure 5: invalid items of {rows[0]['parameters']['asked']} asked for (here: a small model)",
        columns=2,
    )
    return figure


FIGURE_3 = ServingFigure(name="xgr-figure-3", points=_points_3, show=_show_3, draw=_draw_3)
FIGURE_4 = ServingFigure(name="xgr-figure-4", points=_points_4, show=_show_4, draw=_draw_4, timed=False)
FIGURE_5 = ServingFigure(name="xgr-figure-5", points=_points_5, show=_show_5, draw=_draw_5, timed=False)
