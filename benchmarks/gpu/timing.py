"""How things are timed on a GPU: what is captured in a graph and replayed, medians, and the two ceilings of the machine.

Everything here also runs on a CPU, once and untimed, so that the benchmarks themselves can be tested without a GPU.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Measured", "attempt", "ceilings", "poisoned", "relative_error", "times"]

Measured = Iterator[tuple[dict[str, Any], dict[str, Any]]]


def times(
    runs: Sequence[Callable[[], object]], device: torch.device, *, samples: int = 15, least_ms: float = 2.0
) -> dict[str, Any]:
    """p20, p50 and p80 in microseconds of one of `runs`, which do the same on different data: none finds its own cached.

    All of them are captured in one graph, which is replayed as often as takes `least_ms`, between two events; where capturing
    fails they are launched one by one, and `how` says why. One warm-up before.
    """
    if device.type != "cuda":
        begin = time.perf_counter()
        for run in runs:
            run()
        return {"p50": round((time.perf_counter() - begin) * 1e6 / len(runs), 2), "how": "once, on a CPU: says nothing"}
    for run in runs:
        run()
    torch.cuda.synchronize()
    how = "graph"
    replay: Callable[[], object] = partial(_each, runs)
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _each(runs)
        replay = graph.replay
    except RuntimeError as error:
        torch.cuda.synchronize()
        how = f"launches ({str(error).splitlines()[0][:80]})"
    replay()
    once = _milliseconds(replay, 1)
    repeats = max(1, min(200, int(least_ms / max(once, 1e-3))))
    taken = [_milliseconds(replay, repeats) * 1e3 / (repeats * len(runs)) for _ in range(samples)]
    p20, p50, p80 = np.percentile(taken, [20, 50, 80]).round(2).tolist()
    return {"p20": p20, "p50": p50, "p80": p80, "how": how}


def _each(runs: Sequence[Callable[[], object]]) -> None:
    for run in runs:
        run()


def _milliseconds(run: Callable[[], object], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def ceilings(device: torch.device, gigabytes: float = 4.0, size: int = 8192) -> dict[str, Any]:
    """Bytes a second of a large copy (read and written) and operations a second of a large bfloat16 matrix product."""
    if device.type != "cuda":
        gigabytes, size = 0.001, 64
    source = torch.randn(int(gigabytes * 1e9 / 4), device=device)
    target = torch.empty_like(source)
    # By the driver's copy, and by a kernel, which is faster where the driver's is part of a graph (H200: 2.7 and 4 TB/s).
    ways = [partial(target.copy_, source), partial(torch.neg, source, out=target)]
    copy = min(times([way], device, samples=7)["p50"] for way in ways)
    bytes_a_second = 2 * source.nbytes / (copy * 1e-6)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = times([partial(torch.mm, left, right)], device, samples=7)["p50"]
    return {"copy_bytes_a_second": round(bytes_a_second), "bf16_operations_a_second": round(2 * size**3 / (product * 1e-6))}


def attempt(parameters: dict[str, Any], run: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, what was measured), or what failed: one failure does not end the others."""
    begin = time.perf_counter()
    try:
        measured = run()
    except Exception as error:  # any failure becomes the row
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.name}, line {last.lineno}"
        measured = {"failed": f"{type(error).__name__}: {str(error)[:600]}", "where": where}
    return parameters, {**measured, "section_s": round(time.perf_counter() - begin, 1)}


@contextmanager
def poisoned() -> Generator[None]:
    """While open, torch.empty returns NaN and large numbers, so that unwritten outputs are noticed."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def relative_error(found: Tensor, exact: Tensor) -> float:
    """||found - exact|| / ||exact|| in float64; NaN where anything is."""
    difference = found.double() - exact.double()
    return float(difference.norm() / exact.double().norm().clamp_min(1e-30))
