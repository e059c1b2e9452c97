"""One constrained round (log-softmax + constrain + select) against STATIC in torch and an unconstrained round.

B = 2 requests, K = 70 beams, V = 2,048 codes, L = 8 levels, one thread: the serving shape of STATIC §5.1. Each method runs
whole searches over given logits; only its rounds are timed, and before each round the level's logits are written anew into the
method's input, as a model's head would have just done. STATIC is there twice: as Algorithm 2 says, with the slice scattered
into a mask of the level's codes, and leaner, with the top-k straight over the slice (ours, not the paper's). Parity of the
scores comes before any speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import static
from benchmarks.peers.peer import extend
from benchmarks.peers.peer import root as root_of
from benchmarks.peers.static_matrix import matrix_of_codes
from benchmarks.rows import spread
from benchmarks.workloads import random_codes, random_logits
from leafbeam.index import Trie
from leafbeam.ops.constrain import Beams, Scoring, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["measure"]

B, K, V, L = 2, 70, 2048, 8
Round = Callable[[int, Any, Any], Any]  # (level, state or None, logits) -> state


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured) of one row: microseconds a step of each method (mean over the levels), and their ratios."""
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
    trie = Trie.build(codes, [V] * L)
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, B, None, None))
    lean = static.StaticPeer.of(matrix_of_codes(codes, [V] * L))
    literal = replace(lean, scatter=True)

    root = Beams.start(np.zeros((1, B, 1), np.int64), np.full((1, B, 1), trie.num_leaves), np.zeros((B, 1), np.float32))

    def ours(scoring: Scoring) -> Round:
        def round_of(level: int, state: Any, fresh: Any) -> Any:
            beams = root if state is None else state
            return cpu.step(arrays, level, beams, fresh, filters, num_beams=K, scoring=scoring)

        return round_of

    def theirs(peer: static.StaticPeer) -> Round:
        def round_of(level: int, state: Any, fresh: Any) -> Any:
            return extend(peer, root_of(peer, B) if state is None else state, torch.from_numpy(fresh), K)

        return round_of

    @torch.inference_mode()
    def unconstrained(level: int, state: Any, fresh: Any) -> Any:
        scores_BK = torch.zeros(B, 1) if state is None else state[0]
        total = scores_BK[:, :, None] + torch.log_softmax(torch.from_numpy(fresh), dim=-1)
        scores_BK, at = total.view(B, -1).topk(K, dim=-1)
        return scores_BK, at // V, at % V

    methods: dict[str, Round] = {
        "leafbeam": ours("full"),
        "leafbeam_allowed": ours("allowed"),
        "static_torch": theirs(literal),
        "static_torch_lean": theirs(lean),
        "unconstrained": unconstrained,
    }
    last = {name: _search(method, logits)[0] for name, method in methods.items()}
    for name in ("static_torch", "static_torch_lean"):
        np.testing.assert_allclose(last["leafbeam"].scores, last[name].scores_BK.numpy(), rtol=1e-5, atol=1e-4)
    seconds_RL: dict[str, list[list[float]]] = {name: [] for name in methods}
    names = list(methods)
    for turn in range(repeats):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # no method always follows the same other
            seconds_RL[name].append(_search(methods[name], logits)[1])
    steps = {name: spread([sum(one) / L for one in runs]) for name, runs in seconds_RL.items()}
    by_level = {name: np.median(np.array(runs) * 1e6, axis=0).round(1).tolist() for name, runs in seconds_RL.items()}
    mine = steps["leafbeam"]["p50"]
    measured = {
        "step_us": steps,
        "by_level_us": by_level,
        "static_over_leafbeam": round(steps["static_torch"]["p50"] / mine, 2),
        "static_lean_over_leafbeam": round(steps["static_torch_lean"]["p50"] / mine, 2),
        "unconstrained_over_leafbeam": round(steps["unconstrained"]["p50"] / mine, 2),
        "index_bytes_per_item": {"leafbeam": round(trie.bytes_per_item, 2), "static": round(lean.nbytes / num_items, 2)},
    }
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L, "threads": 1}
    return parameters, {**measured, "repeats": repeats}


def _search(method: Round, logits: list[NDArray[np.float32]]) -> tuple[Any, list[float]]:
    """Run all rounds of one search; returns the last state and the seconds of each round."""
    state: Any = None
    seconds: list[float] = []
    fresh = np.empty_like(logits[-1])
    for level, values in enumerate(logits):
        given = fresh[:, : values.shape[1]] if values.shape[1] == fresh.shape[1] else np.empty_like(values)
        np.copyto(given, values)
        begin = time.perf_counter()
        state = method(level, state, given)
        seconds.append(time.perf_counter() - begin)
    return state, seconds
