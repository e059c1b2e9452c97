"""`bench step`: one constrained round (log-softmax + constrain + select) against STATIC in torch and an unconstrained round.

B = 2 requests, K = 70 beams, V = 2,048 codes, L = 8 levels, one thread: the serving shape of STATIC §5.1. A whole search
over given logits is run by each; a step is an eighth of it. Parity of every search's scores comes before any speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pleach.bench.peers import static
from pleach.bench.rows import interleaved, spread
from pleach.bench.workloads import random_codes, random_logits
from pleach.index import Trie
from pleach.ops.constrain import cpu, request_filters

__all__ = ["measure"]

B, K, V, L = 2, 70, 2048, 8


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row: microseconds a step of each method, and their ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(distribution, num_items, repeats, seed)
    finally:
        torch.set_num_threads(threads)


def _measure(distribution: str, num_items: int, repeats: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, distribution, num_items, V, L)
    logits = [random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)]
    tensors = [torch.from_numpy(one) for one in logits]
    trie = Trie.build(codes, [V] * L)
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, B, None, None))
    peer = static.StaticIndex.build(codes, V)

    def ours(scoring: Any = "full") -> Any:
        lo, hi, scores = np.zeros((B, 1), np.int64), np.full((B, 1), trie.num_leaves), np.zeros((B, 1), np.float32)
        for level in range(L):
            beams = cpu.step(arrays, level, lo, hi, scores, logits[level], filters, num_beams=K, scoring=scoring)
            lo, hi, scores = beams.lo, beams.hi, beams.scores
        return scores

    def theirs() -> Any:
        state = static.StaticState.root(B)
        for level in range(L):
            state = static.step(peer, level, state, tensors[level], K)
        return state.scores_BK.numpy()

    @torch.inference_mode()
    def unconstrained() -> Any:
        scores_BK = torch.zeros(B, 1)
        for level in range(L):
            total = scores_BK[:, :, None] + torch.log_softmax(tensors[level], dim=-1)
            scores_BK, at = total.view(B, -1).topk(K, dim=-1)
            _ = at // V, at % V
        return scores_BK

    np.testing.assert_allclose(ours(), theirs(), rtol=1e-5, atol=1e-4)
    runs = {"pleach": ours, "pleach_allowed": lambda: ours("allowed"), "static_torch": theirs, "unconstrained": unconstrained}
    seconds = interleaved(runs, repeats)
    steps = {name: spread([one / L for one in taken]) for name, taken in seconds.items()}
    mine = steps["pleach"]["p50"]
    measured = {
        "step_us": steps,
        "static_over_pleach": round(steps["static_torch"]["p50"] / mine, 2),
        "unconstrained_over_pleach": round(steps["unconstrained"]["p50"] / mine, 2),
        "index_bytes_per_item": {"pleach": round(trie.bytes_per_item, 2), "static": round(peer.nbytes / num_items, 2)},
    }
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L, "threads": 1}
    return parameters, {**measured, "repeats": repeats}
