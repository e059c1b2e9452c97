"""float8 products on a GPU: parity of products with float64, whole decodes beside bfloat16, and Recall@10 of the demo's model.

On a CPU, for tests, torch's product of a CPU stands in, and says nothing about time.

Shapes: N rows, V outputs, D inputs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.decode import Case, milliseconds
from benchmarks.gpu.server import SHAPES, Shape, config_of
from benchmarks.gpu.shapes import case_of
from benchmarks.gpu.timing import Measured, attempt, poisoned, relative_error, times
from leafbeam.model import Transformer
from leafbeam.ops.linear import triton
from leafbeam.ops.linear.fp8 import Fp8Matrix
from leafbeam.ops.linear.rounded import round_rows

__all__ = ["runs"]

_PRODUCTS = (1024, 3072), (3072, 1024), (2048, 2048), (2560, 9728)  # inputs and outputs, of Qwen3's layers
_ROWS = 1, 17, 128, 4096
_FLOAT8 = torch.float8_e4m3fn


def runs(
    device: torch.device,
    seconds: float,
    shapes: Sequence[Shape] = tuple(SHAPES.values()),
    products: Sequence[tuple[int, int]] = _PRODUCTS,
    items: int = 1_000_000,
    *,
    quick: bool = False,
) -> Measured:
    """Rows of products, of Recall, and of whole decodes; what no longer fits into `seconds` is left out and said so."""
    until = time.monotonic() + seconds
    for inputs, outputs in products:
        for rows in _ROWS:
            parameters = {"what": "fp8 product", "rows": rows, "D": inputs, "V": outputs}
            yield attempt(parameters, partial(_product, device, rows, inputs, outputs))
    yield attempt({"what": "fp8 recall"}, partial(_recall, device, quick=quick))
    for shape in shapes:
        config, vocabulary = config_of(shape)
        cases: dict[str, Case] = {}
        for beams in shape.beams:
            for count in shape.items:
                parameters = {"what": "fp8 decode", "model": shape.name, "beams": beams, "tokens": 1 + 3 * count}
                if time.monotonic() > until:
                    yield parameters, {"left_out": f"after {seconds:.0f} s"}
                    continue
                if not cases:
                    model = Transformer(config, vocabulary, torch.Generator(device).manual_seed(0), device=device)
                    cases["bfloat16"] = case = case_of(device, model, items)
                    cases["fp8"] = replace(case, model=case.model.with_precision("fp8"))
                yield attempt(parameters, partial(_decode, cases, beams, 1 + 3 * count))


def _product(device: torch.device, rows: int, inputs: int, outputs: int) -> dict[str, Any]:
    """Parity, which raises where it is not, then microseconds of a product, of its rounding of rows, and of bfloat16's."""
    rows_ND = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    weight_VD = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16) * inputs**-0.5
    with poisoned():
        matrix = Fp8Matrix.of(weight_VD)
        rounded_ND, scale_N = triton.round_rows(rows_ND)
        found_NV = matrix.multiply(rows_ND)
    expected_ND, expected_N = round_rows(rows_ND, _FLOAT8)
    exact_VD = matrix.rounded_VD.double() * matrix.scale_1V.double().T
    errors = {
        "scales": relative_error(scale_N, expected_N),
        "rows": relative_error(rounded_ND.float(), expected_ND.float()),
        "product": relative_error(found_NV, (rounded_ND.double() * scale_N.double()[:, None]) @ exact_VD.T),
    }
    # A division that ends on the other side moves a number by a step; products are rounded to bfloat16.
    bounds = {"scales": 1e-6, "rows": 5e-3, "product": 5e-3}
    bad = {name: error for name, error in errors.items() if not error < bounds[name]}
    assert not bad, f"relative errors {bad}: expected less than {bounds}"
    ways = {
        "fp8": partial(matrix.multiply, rows_ND),
        "rounding rows": partial(triton.round_rows, rows_ND),
        "bfloat16": partial(torch.nn.functional.linear, rows_ND, weight_VD),
    }
    us = {name: times([way] * 2, device) for name, way in ways.items()}
    whole = relative_error(found_NV, rows_ND.double() @ weight_VD.double().T)
    over = round(us["bfloat16"]["p50"] / us["fp8"]["p50"], 3)
    return {"parity": "ok", "relative_errors": errors, "error_of_rounding": whole, "us": us, "bfloat16_over_fp8": over}


def _decode(cases: dict[str, Case], beams: int, tokens: int) -> dict[str, Any]:
    """Milliseconds of a captured decode with each product, the share of items that both find, and the bytes of the layers."""
    sized = {name: case.at(beams=beams, tokens=tokens) for name, case in cases.items()}
    tokens_BT, lengths_B = sized["fp8"].prompts()
    prompts = tokens_BT, np.full_like(lengths_B, tokens)
    captured = {name: case.captured() for name, case in sized.items()}
    found = [run(*prompts).item_ids for run in captured.values()]
    same = [len(np.intersect1d(*ids)) for ids in zip(*found, strict=True)]
    ms = {name: milliseconds(partial(run, *prompts)) for name, run in captured.items()}
    numbers = sum(module.weight.numel() for module in cases["bfloat16"].model.layer_matrices())
    return {
        "ms": ms,
        "bfloat16_over_fp8": round(ms["bfloat16"]["p50"] / ms["fp8"]["p50"], 3),
        "share_of_same_items": round(sum(same) / (beams * len(same)), 4),  # of random weights, whose scores are close
        "layer_bytes": {"bfloat16": 2 * numbers, "fp8": numbers},
    }


def _recall(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """Recall@10 of the demo's model, trained for two minutes, and of its fp8 copy, for the same users."""
    from benchmarks.serving.load_run import LoadRun  # needs what `leafbeam train` needs
    from leafbeam.train import EvaluationConfig, evaluate, leave_one_out, load_log

    run = LoadRun.demo(quick)
    log = load_log(run.path)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Transformer.from_pretrained(run.path / "model", dtype=dtype, device=device)
    config = EvaluationConfig(num_beams=50, unconstrained_users=0)
    found = {
        name: evaluate(one, run.trie, log, leave_one_out(log), config).rankings["model"].kept.recall_10
        for name, one in {"bfloat16": model, "fp8": model.with_precision("fp8")}.items()
    }
    return {"recall_10": {name: [each.mean, each.error] for name, each in found.items()}}
