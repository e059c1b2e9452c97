"""Measures the costs by which `leafbeam.ops.head` picks its path, on this machine's CPU or on a GPU.

Shapes: V codes, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.ops.head import HeadCosts, HeadPath, LegalCodes, cpu

__all__ = ["measure_cpu", "measure_gpu"]


def measure_cpu(
    weight_VD: NDArray[np.float32], rows: tuple[int, ...] = (1, 4, 16, 64, 128), seconds: float = 0.05
) -> HeadCosts:
    """Measure this machine's CPU on part of a head's weights: three runs or more and `seconds` for each figure."""
    hidden, rng = weight_VD.shape[1], np.random.default_rng(0)
    part_VD = weight_VD[: max(64, (1 << 28) // (4 * hidden))]  # 256 MiB: an eighth of it exceeds the caches
    hidden_RD = rng.standard_normal((max(8, *rows), hidden), np.float32)

    def time_of(path: HeadPath, num_rows: int, each: int) -> float:
        drawn = [np.sort(rng.choice(len(part_VD), each, replace=False)) for _ in range(num_rows)]
        legal_codes = LegalCodes.of(np.arange(num_rows + 1) * each, np.concatenate(drawn))
        return _fastest(lambda: cpu.head(hidden_RD[:num_rows], part_VD, legal_codes, "allowed", path=path), seconds)

    costs, each = _costs(time_of, len(part_VD), hidden, rows), max(1, len(part_VD) // 8)
    token = (time_of("tokens", 1, each) - costs.call) / (each * hidden)
    distinct = len(part_VD) * (1 - (7 / 8) ** 8)  # of 8 rows
    shared = (time_of("tokens", 8, each) - costs.call - token * distinct * hidden) / (8 * each * hidden)
    return replace(costs, token=max(token, 1e-6), shared=max(shared, token / 20, 1e-6))


def _fastest(run: Callable[[], object], seconds: float) -> float:
    """The shortest of several runs in nanoseconds, because noise only adds; the first run is not counted."""
    run()
    taken: list[int] = []
    while len(taken) < 3 or (sum(taken) < seconds * 1e9 and len(taken) < 25):
        begin = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - begin)
    return float(min(taken))


def measure_gpu(weight_VD: Tensor, rows: tuple[int, ...] = (1, 16, 64, 128, 256)) -> HeadCosts:
    """Measure a GPU on the head's weights, by CUDA events; takes about a second."""
    triton = import_module("leafbeam.ops.head.triton")
    codes, hidden = weight_VD.shape
    hidden_RD = torch.randn(max(8, *rows), hidden, device=weight_VD.device, dtype=weight_VD.dtype)

    def time_of(path: HeadPath, num_rows: int, each: int) -> float:
        drawn = torch.rand(num_rows, codes, device=weight_VD.device).argsort(1)[:, :each].sort(1).values
        indptr_R1 = torch.arange(num_rows + 1, device=weight_VD.device) * each
        legal_codes = LegalCodes(indptr_R1=indptr_R1, code_C=drawn.flatten(), max_row=each)
        return _median(lambda: triton.head(hidden_RD[:num_rows], weight_VD, legal_codes, "allowed", path=path))

    return _costs(time_of, codes, hidden, rows)


def _median(run: Callable[[], object]) -> float:
    """The median of replays of a graph of `run` in nanoseconds: a launch from Python takes longer than small kernels."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    taken: list[float] = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e6)
    return sorted(taken)[4]


def _costs(time_of: Callable[[HeadPath, int, int], float], codes: int, hidden: int, rows: Sequence[int]) -> HeadCosts:
    """Costs of "dense" and "gather" from runs of `head` over V x D weights.

    time_of: (path, rows, legal codes of each row, drawn uniformly) -> nanoseconds.
    """
    each, call = max(1, codes // 8), max(500.0, time_of("gather", 1, 1))
    dense = tuple((n, time_of("dense", n, 1) / (codes * hidden)) for n in sorted(set(rows)))
    gather = (time_of("gather", 1, each) - call) / (each * hidden)
    return HeadCosts(dense=dense, gather=max(gather, 1e-6), call=call)
