"""Figure 17 of xGR: the attention of one layer of a decode round: latency, arithmetic a second, and how much memory it reads.

Ours as the engine runs it, copies in torch, PagedAttention in numba, on one CPU thread, the same answers (asserted). Heads as
in Qwen3-0.6B. The paper's third panel is how busy the memory pipeline is; a CPU tells no such thing, so here it is the bytes
that each way has to read, over the seconds, beside what a sum reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.micro.attention import Shape, bytes_of, drawn
from benchmarks.peers.failure import failures_of
from benchmarks.peers.paged_beams import PagedBeams
from benchmarks.peers.per_beam_attention import BeamCopies
from benchmarks.rows import interleaved
from benchmarks.xgr.served_attention import ServedAttention
from benchmarks.xgr.serving_figure import LABELS, Row, RunOptions, ServingFigure, paper_says, style, table, tidy
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.attention.reference import attend

__all__ = ["FIGURE_17", "bandwidth"]

Points = Iterator[tuple[dict[str, Any], dict[str, Any]]]


def _points(options: RunOptions) -> Points:
    beams_of = (16, 64) if options.quick else (128, 256, 512)
    cases = ((1, 128),) if options.quick else ((1, 512), (1, 1024), (2, 512))
    heads = {"heads": 4, "groups": 2, "size": 16} if options.quick else {"heads": 16, "groups": 8, "size": 128}
    with torch_threads(1):
        speed = bandwidth()
        for requests, tokens in cases:
            for beams in beams_of:
                shape = Shape(requests=requests, beams=beams, tokens=tokens, codes=3, **heads)
                yield asdict(shape), _measured(shape, speed, repeats=2 if options.quick else 8)


@torch.inference_mode()
def _measured(shape: Shape, speed: float, repeats: int) -> dict[str, Any]:
    query, key, value, slots = drawn(shape)
    served = ServedAttention.of(query, key, value, *slots)
    copies, pages = BeamCopies.of(key, value, *slots), PagedBeams.of(key, value, *slots)
    key_pages = pages.transposed()
    ways = {
        "leafbeam": lambda: served.attend().view_as(query),
        "paged_attention": lambda: pages.attend(query, key_pages),
        "per_beam_copies": lambda: copies.attend(query),
    }
    expected = attend(query, key, value, None, *slots)
    failed = failures_of(ways, lambda found: torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4))
    answering = {name: way for name, way in ways.items() if name not in failed}
    seconds = {name: float(np.median(one)) for name, one in interleaved(answering, repeats).items()}
    operations = 4 * shape.requests * shape.beams * shape.heads * shape.size * (shape.tokens + shape.codes)
    counts = bytes_of(shape, 4)
    read = {name: counts["shared" if name == "leafbeam" else "per_beam"] for name in seconds}
    numbers = {
        name: {
            "ms": round(taken * 1e3, 3),
            "gflop_per_s": round(operations / taken / 1e9, 2),
            "mib_read": round(read[name] / 2**20, 3),
            "share_of_bandwidth": round(read[name] / taken / speed, 4),
        }
        for name, taken in seconds.items()
    }
    return numbers | failed | {"bandwidth_gb_per_s": round(speed / 1e9, 2)}


def bandwidth() -> float:
    """Bytes a second that summing a large array reads."""
    large = torch.ones(32 * 2**20 // 4)
    best = min(interleaved({"sum": lambda: large.sum()}, 5)["sum"])
    return large.nbytes / best


def _show(console: Console, rows: list[Row]) -> None:
    cells = []
    for row in rows:
        at, mine, other = row["parameters"], row["measured"]["leafbeam"], row["measured"]["paged_attention"]
        cell = (f"{at['requests']} x {at['tokens']}", at["beams"], mine["ms"])
        if "ms" not in other:
            cells.append((*cell, other["status"], "", mine["gflop_per_s"], "", "", f"{mine['share_of_bandwidth']:.0%}", ""))
            continue
        speeds = mine["gflop_per_s"], other["gflop_per_s"], f"{other['mib_read'] / mine['mib_read']:.1f} x"
        shares = f"{mine['share_of_bandwidth']:.0%}", f"{other['share_of_bandwidth']:.0%}"
        cells.append((*cell, other["ms"], f"{other['ms'] / mine['ms']:.2f} x", *speeds, *shares))
    columns = (
        "requests x tokens",
        "beams",
        "ms",
        "paged",
        "ratio",
        "GFLOP/s",
        "paged",
        "bytes read",
        "of bandwidth",
        "paged",
    )
    console.print(table("one layer, one round, float32, one CPU thread", columns, cells))
    paper_says(
        console,
        "at 512 beams latency falls by about 6.6 x and throughput rises 7 x; the memory pipeline is busy 93.4 % of the time "
        "with PagedAttention, around 52 % with xAttention (Ascend NPU).",
    )


def _draw(rows: list[Row]) -> Figure:
    figure, panels = new_figure(3, width=3.6, height=3.6)
    cases = list(dict.fromkeys((row["parameters"]["requests"], row["parameters"]["tokens"]) for row in rows))
    lines = ("-", "--", ":")
    wanted = (("ms", "latency of a layer, ms"), ("gflop_per_s", "GFLOP/s"), ("mib_read", "MiB read"))
    for axes, (key, words) in zip(panels, wanted, strict=True):
        for line, (requests, tokens) in zip(lines, cases, strict=False):
            group = [row for row in rows if (row["parameters"]["requests"], row["parameters"]["tokens"]) == (requests, tokens)]
            for name in (name for name in LABELS if name in group[0]["measured"]):
                look = style(name)
                look |= {"ls": line, "label": f"{look['label']}, {requests} x {tokens}"}
                points = [(row["parameters"]["beams"], row["measured"][name]) for row in group]
                known = [(beams, found[key]) for beams, found in points if key in found]
                axes.plot([beams for beams, _ in known], [value for _, value in known], **look)
        axes.set_yscale("log")
        axes.set_xticks(sorted({row["parameters"]["beams"] for row in rows}))
        tidy(axes, words, "beams", words)
    title = "xGR, figure 17: the attention of one layer, requests x prompt tokens (here: one CPU thread)"
    finish(figure, panels[0], title, columns=2)
    return figure


FIGURE_17 = ServingFigure(name="xgr-figure-17", points=_points, show=_show, draw=_draw)
