"""The allowed-only head on a GPU: parity of every path with float64, then its time beside dense, at every density.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.timing import Measured, attempt, poisoned, relative_error, times
from benchmarks.head_costs import measure_gpu
from benchmarks.peers import dense_head
from benchmarks.peers.masked_head import masked_logits
from leafbeam.ops.head import HeadCosts, HeadPath, LegalCodes, triton

__all__ = ["Sizes", "draw_legal_codes", "runs"]

PATHS: tuple[HeadPath, ...] = ("gather", "dense")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A head of `codes` x `hidden`, and the numbers of rows to measure."""

    codes: int
    hidden: int
    rows: tuple[int, ...] = (1, 16, 140)


REAL = Sizes(codes=131_072, hidden=3072)


def runs(device: torch.device, bandwidth: float, seconds: float, sizes: Sizes = REAL) -> Measured:
    """Rows of parity, then of times: by rows and density, of sets that rows share, the study log's curves, the dispatcher."""
    until = time.monotonic() + seconds
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weight_VD = torch.randn(sizes.codes, sizes.hidden, device=device, dtype=dtype) * sizes.hidden**-0.5
    about = {"V": sizes.codes, "D": sizes.hidden, "dtype": str(dtype).removeprefix("torch.")}
    for rows in sizes.rows:
        parameters = {"what": "head parity", "rows": rows, **about}
        yield attempt(parameters, partial(parity, weight_VD, rows))
    for rows in sizes.rows:
        for density in (0.001, 0.01, 0.1):
            parameters = {"what": "head", "rows": rows, "density": density, **about}
            if time.monotonic() > until:
                yield parameters, {"left_out": f"after {seconds:.0f} s"}
                continue
            yield attempt(parameters, partial(_cell, weight_VD, rows, density, bandwidth))
    for rows in (rows for rows in sizes.rows if rows > 1):
        for density in (0.001, 0.01, 0.1):
            parameters = {"what": "head, one set for all rows", "rows": rows, "density": density, **about}
            if time.monotonic() > until:
                yield parameters, {"left_out": f"after {seconds:.0f} s"}
                continue
            yield attempt(parameters, partial(_cell, weight_VD, rows, density, bandwidth, shared=True))
    for rows in sizes.rows[:2]:
        yield attempt({"what": "head curve", "rows": rows, "block": 32, **about}, partial(_curve, weight_VD, rows))
    yield attempt({"what": "head choice", **about}, partial(_choice, weight_VD, until))


def draw_legal_codes(device: torch.device, rows: int, codes: int, each: int, *, shared: bool = False) -> LegalCodes[Tensor]:
    """So many different legal codes for each row, drawn uniformly; shared: the same for all rows, as beams of a text have."""
    drawn = [torch.randperm(codes, device=device)[:each].sort().values for _ in range(1 if shared else rows)]
    drawn *= rows if shared else 1
    indptr_R1 = torch.arange(rows + 1, device=device) * each
    return LegalCodes(indptr_R1=indptr_R1, code_C=torch.cat(drawn), max_row=each)


def parity(weight_VD: Tensor, rows: int) -> dict[str, Any]:
    """Every path against float64 on fresh inputs, one row empty, outputs poisoned; raises where it differs."""
    device, (codes, hidden) = weight_VD.device, weight_VD.shape
    hidden_RD = torch.randn(rows, hidden, device=device, dtype=weight_VD.dtype)
    whole = draw_legal_codes(device, rows, codes, max(2, codes // 100))
    indptr_R1 = whole.indptr_R1.clone()
    if rows > 1:  # the first row is empty
        indptr_R1[1] = 0
        indptr_R1[1:] = whole.indptr_R1[1:] - whole.indptr_R1[1]
    code_C = whole.code_C[int(whole.indptr_R1[1]) :] if rows > 1 else whole.code_C
    legal_codes = LegalCodes(indptr_R1=indptr_R1, code_C=code_C.contiguous(), max_row=whole.max_row)
    row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff())
    exact = torch.cat(
        [
            (hidden_RD.double()[row_part] * weight_VD[code_part].double()).sum(1)
            for row_part, code_part in zip(row_C.split(20_000), legal_codes.code_C.split(20_000), strict=True)
        ]
    )
    parts = [hidden_RD.double() @ part.double().T for part in weight_VD.split(16_384)]
    exact_lse = torch.stack([part.logsumexp(1) for part in parts]).logsumexp(0)
    errors: dict[str, float] = {}
    with poisoned():
        for path in PATHS:
            found = triton.head(hidden_RD, weight_VD, legal_codes, "allowed", path=path)
            errors[path] = relative_error(found.logit_C, exact)
        full = triton.head(hidden_RD, weight_VD, legal_codes, "full")
        errors["full"] = relative_error(full.logit_C, exact)
        errors["full lse"] = relative_error(full.lse_R, exact_lse)
        mask = torch.zeros(rows, codes, dtype=torch.bool, device=device)
        mask[row_C, legal_codes.code_C] = True
        for level in ("block", "column"):
            logits = masked_logits(hidden_RD, weight_VD, mask, level=level)
            errors[f"study log, {level}"] = relative_error(logits[row_C, legal_codes.code_C], exact)
    # The library's product may add up parts in half precision; ours are float32 sums.
    bad = {name: error for name, error in errors.items() if not error < (5e-3 if name == "dense" else 1e-4)}
    assert not bad, f"relative errors {bad}: expected less than 1e-4, or 5e-3 of the library's product"
    return {"parity": "ok", "relative_errors": errors}


def _cell(weight_VD: Tensor, rows: int, density: float, bandwidth: float, *, shared: bool = False) -> dict[str, Any]:
    device, (codes, hidden) = weight_VD.device, weight_VD.shape
    hidden_RD = torch.randn(rows, hidden, device=device, dtype=weight_VD.dtype)
    each = max(1, round(codes * density))
    sets = [draw_legal_codes(device, rows, codes, each, shared=shared) for _ in range(3)]
    measured: dict[str, Any] = {"us": {}, "weight_bytes": {}}
    dense = times([partial(_dense, hidden_RD, weight_VD, one) for one in sets], device)
    measured["us"]["dense, torch"] = dense
    itemsize = weight_VD.element_size() * hidden
    measured["weight_bytes"] = {
        "dense, torch": codes * itemsize,
        "gather": rows * each * itemsize,
        "dense": codes * itemsize,
        "full": codes * itemsize,
    }
    ways: Mapping[str, Callable[[LegalCodes[Tensor]], object]] = {
        path: partial(_ours, hidden_RD, weight_VD, path=path) for path in PATHS
    } | {"full": partial(_ours, hidden_RD, weight_VD, normalize="full")}
    for name, run in ways.items():
        measured["us"][name] = times([partial(run, one) for one in sets], device)
    measured["dense_over"] = {
        name: round(dense["p50"] / one["p50"], 3) for name, one in measured["us"].items() if name != "dense, torch"
    }
    measured["share_of_copy_bandwidth"] = {
        name: round(count / (measured["us"][name]["p50"] * 1e-6) / bandwidth, 4)
        for name, count in measured["weight_bytes"].items()
    }
    return measured


def _curve(weight_VD: Tensor, rows: int) -> dict[str, Any]:
    """Figures 6 and 7 of the study log, and the gather beside them."""
    device, (codes, hidden) = weight_VD.device, weight_VD.shape
    hidden_RD = torch.randn(rows, hidden, device=device, dtype=weight_VD.dtype)
    dense = times([lambda: hidden_RD @ weight_VD.T] * 2, device)["p50"]
    points: list[dict[str, Any]] = []
    for density in (0.0001, 0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 1.0):
        each = max(1, round(codes * density))
        sets = [draw_legal_codes(device, rows, codes, each) for _ in range(2)]
        masks: list[Tensor] = []
        for one in sets:
            mask = torch.zeros(rows, codes, dtype=torch.bool, device=device)
            mask[torch.repeat_interleave(one.indptr_R1.diff()), one.code_C] = True
            masks.append(mask)
        point: dict[str, Any] = {"density": density}
        for level in ("block", "column"):
            several = [partial(masked_logits, hidden_RD, weight_VD, mask, level=level) for mask in masks]
            point[f"dense_over_{level}"] = round(dense / times(several, device, samples=5)["p50"], 3)
        if density <= 0.3:
            several = [partial(_ours, hidden_RD, weight_VD, one, path="gather") for one in sets]
            point["dense_over_gather"] = round(dense / times(several, device, samples=5)["p50"], 3)
        points.append(point)
    return {"dense_us": dense, "points": points}


def _choice(weight_VD: Tensor, until: float) -> dict[str, Any]:
    """Time of the dispatcher with calibrated costs over that of the dense path."""
    device, (codes, hidden) = weight_VD.device, weight_VD.shape
    costs = measure_gpu(weight_VD) if device.type == "cuda" else HeadCosts()
    cells: list[dict[str, Any]] = []
    for rows in (1, 4, 16, 64, 140):
        hidden_RD = torch.randn(rows, hidden, device=device, dtype=weight_VD.dtype)
        for density in (0.001, 0.01, 0.03, 0.1, 0.3):
            if time.monotonic() > until:
                continue
            legal_codes = draw_legal_codes(device, rows, codes, max(1, round(codes * density)))
            path = triton.head(hidden_RD, weight_VD, legal_codes, "allowed", costs=costs).path
            auto = times([partial(_ours, hidden_RD, weight_VD, legal_codes, costs=costs)], device, samples=7)["p50"]
            dense = times([partial(_ours, hidden_RD, weight_VD, legal_codes, path="dense")], device, samples=7)["p50"]
            cells.append({"rows": rows, "density": density, "path": path, "over_dense": round(auto / dense, 4)})
    worst = max((cell["over_dense"] for cell in cells), default=None)
    return {"worst_over_dense": worst, "cells": cells, "costs_ns": asdict(costs)}


def _ours(
    hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor], normalize: Any = "allowed", **how: Any
) -> Tensor:
    return triton.head(hidden_RD, weight_VD, legal_codes, normalize, **how).logit_C


def _dense(hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor]) -> Tensor:
    row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff(), output_size=legal_codes.count)
    return dense_head.dense(hidden_RD, weight_VD, row_C, legal_codes.code_C)
