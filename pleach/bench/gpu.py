"""`bench gpu` (`make gpu`): the constrained step in plain torch on a GPU, parity first, then its time.

There is no GPU kernel in pleach yet: what runs here is `ops.constrain.reference`, on a small shape, so that the first kernel
finds a harness, a parity check on the device and a baseline. Without a CUDA device it says so and exits with 2.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch

from pleach.bench.rows import append_row, spread
from pleach.bench.workloads import DISTRIBUTIONS, random_codes, random_logits
from pleach.index import Trie
from pleach.ops.constrain import cpu, reference, request_filters

__all__ = ["main"]

B, K, V, L = 2, 16, 512, 4


def main(as_json: bool) -> None:
    """Run on the first CUDA device, or exit with 2."""
    if not torch.cuda.is_available():
        print("no CUDA device here: `make gpu` measures on a GPU only; nothing was measured", file=sys.stderr)
        raise SystemExit(2)
    for distribution in DISTRIBUTIONS:
        parameters, measured = _measure(distribution)
        row = append_row("gpu", parameters, measured)
        print(json.dumps(row) if as_json else json.dumps(measured, indent=2))


def _measure(distribution: str, num_items: int = 100_000, repeats: int = 20) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng()
    trie = Trie.build(random_codes(rng, distribution, num_items, V, L), [V] * L)
    logits = [random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)]
    requests = request_filters(trie, B, [trie.filter(rng.random(num_items) < 0.1), None], None)
    on_cpu, on_gpu = cpu.bind(trie), reference.bind(trie, "cuda")
    cpu_filters, gpu_filters = cpu.bind_filters(on_cpu, requests), reference.bind_filters(on_gpu, requests)
    lo, hi, scores = np.zeros((1, B, 1), np.int64), np.full((1, B, 1), trie.num_leaves), np.zeros((B, 1), np.float32)
    milliseconds: list[float] = []
    for level in range(L):
        expected = cpu.step(on_cpu, level, lo, hi, scores, logits[level], cpu_filters, num_beams=K, scoring="full")
        lo_SBK, hi_SBK, scores_BK, logits_BKV = (torch.from_numpy(one).cuda() for one in (lo, hi, scores, logits[level]))
        run = partial(reference.step, on_gpu, level, lo_SBK, hi_SBK, scores_BK, logits_BKV, gpu_filters)
        found = run(num_beams=K, scoring="full")
        torch.testing.assert_close(found.scores.cpu(), torch.from_numpy(expected.scores), rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(found.num_valid.cpu().numpy(), expected.num_valid)
        for _ in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run(num_beams=K, scoring="full")
            end.record()
            torch.cuda.synchronize()
            milliseconds.append(begin.elapsed_time(end))
        lo, hi, scores = expected.lo, expected.hi, expected.scores
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L, "kernel": "reference"}
    return parameters, {"step_ms": spread(milliseconds, 1.0), "device": torch.cuda.get_device_name(), "repeats": repeats}
