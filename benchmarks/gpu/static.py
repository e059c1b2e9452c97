"""The constrained round on a GPU beside STATIC through torch.compile, at up to 10^8 items, without rules and under 1 and 64.

STATIC needs an index for each rule, so it runs without rules: its time is that of an index already built for the rule. The
scores of whole searches are equal before any time is taken.

Shapes: B requests, K beams.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.step import REAL, Sizes, random_trie, states, static_times
from benchmarks.gpu.timing import Measured, attempt, times
from leafbeam.index import Filter, Trie
from leafbeam.ops.constrain import request_filters
from leafbeam.ops.constrain.triton import step as triton

__all__ = ["measure", "runs"]

_COMPILING_S = 60.0  # of all levels of one shape
_ITEMS_PER_S = 400_000.0  # drawn, sorted, laid out for STATIC and copied


def runs(device: torch.device, seconds: float, sizes: Sizes = REAL) -> Measured:
    """Rows of each size, number of requests and of rules; what no longer fits into `seconds` is left out and said so."""
    until = time.monotonic() + seconds
    trie: Trie | None = None
    for items in (sizes.items, 20 * sizes.items, 100 * sizes.items):
        for requests, rules in ((sizes.requests, 0), (64, 0), (64, 1), (64, 64)):
            one = replace(sizes, items=items, requests=requests)
            parameters = {"what": "step beside STATIC", "num_items": items, "B": requests, "K": sizes.beams, "rules": rules}
            parameters |= {"V": sizes.codes, "L": sizes.levels}
            needs = (0 if trie is not None and trie.num_items == items else items / _ITEMS_PER_S) + _COMPILING_S * (not rules)
            if (left := until - time.monotonic()) < needs:
                yield parameters, {"left_out": f"{left:.0f} s were left of {seconds:.0f}"}
                continue
            if trie is None or trie.num_items != items:
                trie = random_trie("uniform", one)
            yield attempt(parameters, partial(measure, device, trie, one, rules))


def measure(device: torch.device, trie: Trie, sizes: Sizes, rules: int, copies: int = 3) -> dict[str, Any]:
    """Microseconds of a round, the mean of the levels; with no rules, those of STATIC too."""
    filters = [_rule(trie, number) for number in range(rules)]
    requests = request_filters(
        trie, sizes.requests, [filters[b % rules] for b in range(sizes.requests)] if rules else None, None
    )
    arrays = triton.bind(trie, device)
    bound = triton.bind_filters(arrays, requests)
    inputs = [states(device, trie, arrays, bound, requests, sizes) for _ in range(copies)]
    measured: dict[str, Any] = {}
    if not rules:
        last = triton.step(arrays, sizes.levels - 1, *inputs[0][-1], bound, num_beams=sizes.beams, scoring="full")
        measured = static_times(device, trie, sizes, [[one[1] for one in state] for state in inputs], compiled=True)
        for name in ("static", "static_compiled"):
            torch.testing.assert_close(measured.pop(f"{name}_scores"), last.scores, rtol=1e-4, atol=1e-3)
    by_level: list[float] = []
    for level in range(sizes.levels):
        launch = partial(triton.launch, arrays, level, num_beams=sizes.beams, scoring="full")
        by_level.append(times([partial(launch, *state[level], bound) for state in inputs], device)["p50"])
    measured |= {"leafbeam_us_by_level": by_level, "leafbeam_us": round(float(np.mean(by_level)), 2)}
    for name in ("static", "static_compiled") if not rules else ():
        measured[f"{name}_over_leafbeam"] = round(measured[f"{name}_us"] / measured["leafbeam_us"], 3)
    return measured


def _rule(trie: Trie, number: int) -> Filter:
    """A rule that allows about a tenth of the items, another tenth for each number."""
    return trie.filter((np.arange(trie.num_items) * 7 + number) % 64 < 6)
