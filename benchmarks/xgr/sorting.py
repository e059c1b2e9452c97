"""xGR's early end of sorting (section 6.2, Figure 11): the best K of all beams' next codes, by four ways, from the same logits.

    sort        all K x V scores are sorted
    heap        every score is offered to a heap of the best K
    early end   each beam's K best codes, in order, are offered to a heap until one does not get in
    leafbeam    the round as it serves (`ops.constrain.cpu`): a threshold that rises, and the maxima of 64 logits each, tell
                which rows and codes need no look

All normalise the logits by the same kernel and give the same codes (asserted). The second level of two catalogs in which each
code is legal: standard normal logits, and those of the demo's model after its first round.
"""

# pyright: basic, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.drawing import finish, new_figure
from benchmarks.rows import interleaved, spread
from benchmarks.serving.load_run import LoadRun
from benchmarks.xgr.serving_figure import Row, RunOptions, ServingFigure, distinct, paper_says, table, tidy
from leafbeam.index import Trie
from leafbeam.jit import njit
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu
from leafbeam.ops.constrain.cpu.logsumexp import log_sum_exp

__all__ = ["SORTING"]

Floats = NDArray[np.float32]
_WAYS = {"sort": "sort", "heap": "heap", "early_end": "early end", "leafbeam": "leafbeam"}
_COLOURS = {"sort": "#b0b7b3", "heap": "#3b82b8", "early_end": "#d9822b", "leafbeam": "#1f7a4a"}


def _points(options: RunOptions) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    beams_of, size = ((8,), 64) if options.quick else ((32, 64, 128, 256), 2048)
    rng = np.random.default_rng(0)
    with torch_threads(1), torch.inference_mode():
        run = LoadRun.demo(options.quick)
        for beams in beams_of:
            normal = np.sort(rng.normal(size=beams).astype(np.float32))[::-1], rng.normal(size=(beams, size)).astype(np.float32)
            for logits, (scores_K, logits_KV) in (("normal", normal), ("trained", _of_the_model(run, beams))):
                parameters = {"logits": logits, "beams": beams, "codes": logits_KV.shape[1]}
                yield parameters, _measured(scores_K, logits_KV, repeats=3 if options.quick else 50)


def _of_the_model(run: LoadRun, beams: int) -> tuple[Floats, Floats]:
    """Return scores and next logits of the best first codes for a user of the demo."""
    tokens_BT, lengths_B = map(torch.from_numpy, run.model.vocabulary.prompts(run.prompts(np.random.default_rng(1), 1)))
    session = run.model.start(tokens_BT, lengths_B)
    first_V = torch.log_softmax(torch.as_tensor(session.step_fn(None, None))[0], -1)
    best = first_V.topk(min(beams, len(first_V)))
    logits_BKV = session.step_fn(best.indices[None].numpy(), np.zeros((1, len(best.indices)), np.int64))
    return best.values.float().numpy(), torch.as_tensor(logits_BKV)[0].float().numpy().copy()


def _measured(scores_K: Floats, logits_KV: Floats, repeats: int) -> dict[str, Any]:
    beams, size = logits_KV.shape
    codes = np.indices((beams, size)).reshape(2, -1).T
    trie = Trie.build(codes, [beams, size])
    arrays, filters = cpu.bind(trie), cpu.bind_filters(cpu.bind(trie), request_filters(trie, 1, None, None))
    lo = np.arange(beams)[None, None] * size
    start = Beams.start(lo, lo + size, scores_K[None])

    def served() -> NDArray[np.int64]:
        best = cpu.step(arrays, 1, start, logits_KV[None], filters, num_beams=beams, scoring="full")
        return best.parent[0] * size + best.code[0]

    ways: dict[str, Callable[[], NDArray[np.int64]]] = {
        "sort": lambda: _sorted(_log_probs(scores_K, logits_KV), beams),
        "heap": lambda: _by_heap(_log_probs(scores_K, logits_KV), beams),
        "early_end": lambda: _early(_log_probs(scores_K, logits_KV), beams)[0],
        "leafbeam": served,
    }
    expected = np.sort(ways["sort"]())
    for way in ways.values():
        np.testing.assert_array_equal(np.sort(way()), expected)
    scores_KV = _log_probs(scores_K, logits_KV)
    threshold = np.partition(scores_KV.reshape(-1), -beams)[-beams]
    tops_KC = scores_KV[:, : size // 64 * 64].reshape(beams, -1, 64).max(2) if size >= 64 else scores_KV
    return {
        **{name: {"us": spread(seconds)["p50"]} for name, seconds in interleaved(ways, repeats).items()},
        "shares": {
            "offered by early end": round(_early(scores_KV, beams)[1] / (beams * beams), 4),
            "rows above the last threshold": round(float((scores_KV.max(1) >= threshold).mean()), 4),
            "chunks above it": round(float((tops_KC >= threshold).mean()), 4),
            "codes above it": round(float((scores_KV >= threshold).mean()), 6),
        },
    }


@njit(cache=True, nogil=True)
def _log_probs(scores_K: Floats, logits_KV: Floats) -> Floats:
    """Return the scores of all next codes, (K, V)."""
    out_KV, chunks = np.empty_like(logits_KV), np.empty(logits_KV.shape[1] // 64 + 1, np.float32)
    for beam in range(len(scores_K)):
        _, lse = log_sum_exp(logits_KV[beam], chunks)
        for code in range(logits_KV.shape[1]):
            out_KV[beam, code] = scores_K[beam] + (logits_KV[beam, code] - lse)
    return out_KV


def _sorted(scores_KV: Floats, count: int) -> NDArray[np.int64]:
    return np.argsort(-scores_KV.reshape(-1), kind="stable")[:count]


@njit(cache=True, nogil=True)
def _offer(heap: Floats, places: NDArray[np.int64], held: int, score: np.float32, place: int) -> int:
    """Put a score into a min heap that is full at its size, if it is among the best; returns how many it holds."""
    if held < len(heap):
        at = held
        while at > 0 and heap[(at - 1) >> 1] > score:
            heap[at], places[at] = heap[(at - 1) >> 1], places[(at - 1) >> 1]
            at = (at - 1) >> 1
        heap[at], places[at] = score, place
        return held + 1
    at = 0
    while 2 * at + 1 < held:
        child = 2 * at + 1
        child += child + 1 < held and heap[child + 1] < heap[child]
        if heap[child] >= score:
            break
        heap[at], places[at] = heap[child], places[child]
        at = child
    heap[at], places[at] = score, place
    return held


@njit(cache=True, nogil=True)
def _by_heap(scores_KV: Floats, count: int) -> NDArray[np.int64]:
    heap, places, held = np.empty(count, np.float32), np.empty(count, np.int64), 0
    for place, score in enumerate(scores_KV.reshape(-1)):
        if held < count or score > heap[0]:
            held = _offer(heap, places, held, score, place)
    return places[:held]


@njit(cache=True, nogil=True)
def _early_heap(best_KC: Floats, code_KC: NDArray[np.int64], size: int, count: int) -> tuple[NDArray[np.int64], int]:
    heap, places, held, offered = np.empty(count, np.float32), np.empty(count, np.int64), 0, 0
    for beam in range(len(best_KC)):
        for rank in range(best_KC.shape[1]):
            offered += 1
            score = best_KC[beam, rank]
            if held == count and score <= heap[0]:
                break
            held = _offer(heap, places, held, score, beam * size + code_KC[beam, rank])
    return places[:held], offered


def _early(scores_KV: Floats, count: int) -> tuple[NDArray[np.int64], int]:
    """Return the best places and how many of all beams' best codes were offered. The best codes of a beam are torch's top-k."""
    size = scores_KV.shape[1]
    best = torch.from_numpy(scores_KV).topk(min(count, size))
    return _early_heap(best.values.numpy(), best.indices.numpy(), size, count)


def _show(console: Console, rows: list[Row]) -> None:
    cells = [
        (
            f"{row['parameters']['logits']}, {row['parameters']['beams']} beams of {row['parameters']['codes']:,} codes",
            *(row["measured"][name]["us"] for name in _WAYS),
            *(f"{share:.1%}" for share in row["measured"]["shares"].values()),
        )
        for row in rows
    ]
    columns = ("logits", *_WAYS.values(), *rows[0]["measured"]["shares"])
    console.print(table("the best codes of a round, one CPU thread, µs", columns, cells))
    paper_says(console, "early termination 'significantly reduces sorting overhead' (no figures; on an Ascend NPU's host).")


def _draw(rows: list[Row]) -> Figure:
    kinds = distinct(rows, "logits")
    figure, panels = new_figure(len(kinds), width=4.2, height=3.4)
    for axes, kind in zip(panels, kinds, strict=True):
        group = [row for row in rows if row["parameters"]["logits"] == kind]
        for name, label in _WAYS.items():
            points = [(row["parameters"]["beams"], row["measured"][name]["us"]) for row in group]
            axes.plot(*zip(*points, strict=True), color=_COLOURS[name], marker="o", ms=4, lw=1.5, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        tidy(axes, f"{kind} logits, {group[0]['parameters']['codes']:,} codes", "beams", "µs")
        axes.set_xticks(distinct(rows, "beams"), [str(one) for one in distinct(rows, "beams")])
    finish(figure, panels[0], "xGR, section 6.2: the best codes of a round (here: one CPU thread)", columns=4)
    return figure


SORTING = ServingFigure(name="xgr-sorting", points=_points, show=_show, draw=_draw)
