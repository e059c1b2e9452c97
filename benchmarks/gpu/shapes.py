"""Whole decodes on a GPU at the shapes of real models, with random weights, from prompts to items; and their memory.

In bfloat16, as graphs and without; the answers of both are compared at every shape (`decode`). `server` adds HTTP.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.decode import Case, Sizes, measured_case
from benchmarks.gpu.server import SHAPES, Shape, config_of
from benchmarks.gpu.timing import Measured, attempt
from benchmarks.xgr.figures_13_14 import onerec
from leafbeam.index import Trie, Version
from leafbeam.model import AnyModel, Transformer
from leafbeam.ops.backend import IndexBindings

__all__ = ["case_of", "experts", "runs"]

_ITEMS = 1_000_000


def runs(
    device: torch.device, seconds: float, shapes: tuple[Shape, ...] = tuple(SHAPES.values()), items: int = _ITEMS
) -> Measured:
    """Rows of each model, number of beams and prompt; what no longer fits into `seconds` is left out and said so."""
    until = time.monotonic() + seconds
    for shape in shapes:
        config, vocabulary = config_of(shape)
        case: Case | None = None
        for beams in shape.beams:
            for tokens in (1 + 3 * count for count in shape.items):
                parameters = {
                    "what": "whole decode",
                    "model": shape.name,
                    "beams": beams,
                    "tokens": tokens,
                    "codes": shape.codes,
                }
                if time.monotonic() > until:
                    yield parameters, {"left_out": f"after {seconds:.0f} s"}
                    continue
                if case is None:
                    model = Transformer(config, vocabulary, torch.Generator(device).manual_seed(0), device=device)
                    case = case_of(device, model, items)
                yield attempt(parameters, partial(_measure, case, beams, tokens))
        del case
        if device.type == "cuda":
            torch.cuda.empty_cache()


def experts(device: torch.device, seconds: float, codes: int = 2048, items: int = _ITEMS, *, small: bool = False) -> Measured:
    """Rows of OneRec's shape, an encoder-decoder with experts."""
    until = time.monotonic() + seconds
    model: AnyModel = onerec([codes] * 3, small=small).to(device)
    case = case_of(device, model, items)
    for beams in (8,) if small else (128, 256, 512):
        parameters = {"what": "experts", "model": "OneRec, 0.1B", "beams": beams, "tokens": 500, "codes": codes}
        if time.monotonic() > until:
            yield parameters, {"left_out": f"after {seconds:.0f} s"}
            continue
        yield attempt(parameters, partial(_measure, case, beams, 20 if small else 500))


def case_of(device: torch.device, model: AnyModel, items: int) -> Case:
    """A search over drawn codes."""
    sizes = model.vocabulary.codebook_sizes
    codes = np.stack([np.random.default_rng(level).integers(0, size, items) for level, size in enumerate(sizes)], axis=1)
    version = Version.of(Trie.build(codes, sizes))
    drawn = Sizes(items=items, codes=sizes[0], levels=len(sizes), layers=0, hidden=0, requests=1, tokens=1, beams=1)
    model = model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).eval()
    bindings = IndexBindings(version)
    return Case(device=device, model=model, version=version, bindings=bindings, sizes=drawn, scoring="full")


def _measure(case: Case, beams: int, tokens: int) -> dict[str, Any]:
    """Milliseconds and the largest memory of one shape."""
    on_gpu = case.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    sized = case.at(beams=beams, tokens=tokens)
    tokens_BT, lengths_B = sized.prompts()
    measured = measured_case(sized, (tokens_BT, np.full_like(lengths_B, tokens)))
    return measured | {"peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None}
