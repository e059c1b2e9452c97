"""The faster form of a torch method at each level: as torch runs it, or through torch.compile.

The compiler fuses a chain of small operations, and loses where it has no better code than torch's own (a top-k, a mask that is
unpacked). A method gets what is faster at each level on the logits that it is measured with; its row says which.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rows import interleaved
from benchmarks.static.methods import LineUp, Method, reason_of
from benchmarks.static.trials import Logits, search, searched

__all__ = ["fastest", "in_best_form"]


def in_best_form(line_up: LineUp, logits: Logits) -> LineUp:
    """Every method in its faster form. Raises MethodFailure."""
    methods: dict[str, Method] = {}
    for name, method in line_up.methods.items():
        searched(line_up, name, logits)
        methods[name] = fastest(method, logits)
    return line_up.only(methods, {})


def fastest(method: Method, logits: Logits, repeats: int = 5) -> Method:
    """The method with the faster of its two forms at each level; as it is where there is one form, or torch cannot compile it.

    Cost: compiling each level, seconds, and `repeats` searches of both.
    """
    if method.compiled is None:
        return method
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it explains each graph break over a page
    history, _ = search(method, logits)
    chosen: list[Callable[[int, Any, Any], Any]] = []
    compiled_levels: list[int] = []
    for level, values in enumerate(logits):
        before, ready = history[level - 1] if level else None, method.prepare(values)
        try:
            compiled = method.compiled()
            compiled(level, before, ready)
        except Exception as error:  # no compiler here, or code that it cannot compile
            return replace(method, form=f"torch; torch.compile {reason_of(error)}"[:200])
        given = level, before, ready
        seconds = interleaved({"eager": partial(method.round, *given), "compiled": partial(compiled, *given)}, repeats)
        if np.median(seconds["compiled"]) < np.median(seconds["eager"]):
            compiled_levels.append(level)
            chosen.append(compiled)
        else:
            chosen.append(method.round)
    return replace(method, round=lambda level, beams, ready: chosen[level](level, beams, ready), form=_named(compiled_levels))


def _named(levels: Sequence[int]) -> str:
    """torch, and at which levels it is compiled, counted from 1."""
    return (
        f"torch; torch.compile at levels {', '.join(str(level + 1) for level in levels)}"
        if levels
        else "torch; torch.compile is slower"
    )
