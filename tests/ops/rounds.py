"""Rounds of a search, each compared with those of the CPU's kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leafbeam.decode.results import root_ranges
from leafbeam.index import Version
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu import step as cpu


def compare(
    step: Callable[..., Any],
    version: Version,
    requests: Any,
    draw: Callable[[tuple[int, ...]], np.ndarray],
    widths: Sequence[int],
    scoring: str,
) -> None:
    """`step(level, beams, logits, num_beams=, scoring=)` finds what the CPU's finds; both go on from the same beams."""
    on_cpu = cpu.bind(version)
    cpu_filters = cpu.bind_filters(on_cpu, requests)
    lo, hi = root_ranges(version, requests)
    scores = np.zeros(lo.shape[1:], np.float32)
    for level, width in enumerate(widths):
        logits = draw((*lo.shape[1:], version.codebook_sizes[level]))
        beams, settings = Beams.start(lo, hi, scores), {"num_beams": width, "scoring": scoring}
        truth: Any = cpu.step(on_cpu, level, beams, logits, cpu_filters, **settings)  # type: ignore[arg-type]
        ours = step(level, beams, logits, **settings)
        np.testing.assert_allclose(ours.scores, truth.scores, rtol=1e-5, atol=2e-5)
        for name in ("parent", "code", "lo", "hi", "num_valid"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(truth, name), err_msg=f"{name} at level {level}")
        lo, hi, scores = truth.lo, truth.hi, truth.scores
