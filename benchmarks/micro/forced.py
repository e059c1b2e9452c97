"""`python -m benchmarks forced`: whole decodes of a small Qwen3 round by round, and with forced suffixes, on deep Semantic IDs.

L = 8 levels of 2,048 codes, K = 70 beams: after two or three rounds every beam is a leaf. Both give the same items (asserted)
before any speed is printed. One thread. Models: as `leafbeam train` makes them (1 layer), and 4 layers.

`leaves left` is what a pass that starts earlier would save and cost, from searches of 32 requests with random logits: nodes
with at most m leaves scored as a small tree; and requests of a batch that become forced in different rounds.

Shapes: B requests, K beams, V codes, L levels, n leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rows import interleaved, spread
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.results import root_ranges
from leafbeam.index import Trie, Version
from leafbeam.model import DecodeSession, ModelConfig, Transformer, Vocabulary
from leafbeam.ops.constrain import Beams, Scoring, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["measure", "runs"]

K, V, L, PROMPT = 70, 2048, 8, 80
SCORINGS: tuple[Scoring, ...] = ("full", "allowed")
_MOST_LEAVES = (1, 2, 4, 8, 16)


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each distribution, model and number of requests; then what earlier passes would save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for distribution in DISTRIBUTIONS:
            trie = _random_trie(distribution, 10_000 if quick else 1_000_000)
            for num_layers, batch_size in [(1, 1)] if quick else [(1, 1), (1, 2), (4, 1), (4, 2)]:
                shape = {"distribution": distribution, "num_items": trie.num_items, "B": batch_size, "layers": num_layers}
                parameters, measured = measure(trie, num_layers, batch_size, repeats=3 if quick else 15)
                yield shape | parameters, measured
            yield (
                {"what": "leaves left", "distribution": distribution, "num_items": trie.num_items, "K": K, "V": V, "L": L},
                leaves_left(trie, 4 if quick else 32),
            )
    finally:
        torch.set_num_threads(threads)


def _random_trie(distribution: str, num_items: int, seed: int = 0) -> Trie:
    return Trie.build(random_codes(np.random.default_rng(seed), distribution, num_items, V, L), [V] * L)


def measure(trie: Trie, num_layers: int, batch_size: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): milliseconds a decode, prompt included, passes of the model, and the ratio of both ways."""
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(codebook_sizes=(V,) * L)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=PROMPT + L,
    )
    model = Transformer(config, vocabulary, torch.Generator().manual_seed(seed)).eval()
    tokens_BT = torch.from_numpy(rng.integers(0, vocabulary.size, (batch_size, PROMPT)))
    counts: dict[str, int] = {}
    runs: dict[str, Any] = {}
    for scoring in SCORINGS:
        search = BeamSearch(trie, K, scoring=scoring)
        for forced in (False, True):
            name = f"{scoring}, {'forced' if forced else 'rounds'}"
            runs[name] = lambda search=search, forced=forced: _decode(model, search, tokens_BT, forced)
            counts[name] = L - runs[name]().rounds_saved
        one, other = runs[f"{scoring}, rounds"](), runs[f"{scoring}, forced"]()
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(one.item_ids, other.item_ids, strict=True):
            assert len(set(mine.tolist()) ^ set(theirs.tolist())) <= 2  # a tie at the last place may fall either way
    taken = {name: spread(seconds, 1e-3) for name, seconds in interleaved(runs, repeats).items()}
    start = interleaved({"prompt": lambda: model.start(tokens_BT)}, repeats)["prompt"]
    measured = {
        "decode_ms": taken,
        "prompt_ms": spread(start, 1e-3),
        "passes": counts,
        "rounds_over_forced": {
            scoring: round(taken[f"{scoring}, rounds"]["p50"] / taken[f"{scoring}, forced"]["p50"], 2) for scoring in SCORINGS
        },
        "fewer_passes": {
            scoring: round(counts[f"{scoring}, rounds"] / counts[f"{scoring}, forced"], 2) for scoring in SCORINGS
        },
        "repeats": repeats,
    }
    parameters = {"K": K, "V": V, "L": L, "prompt": PROMPT, "hidden": config.hidden_size, "threads": 1}
    return parameters, measured


def _decode(model: Transformer, search: BeamSearch, tokens_BT: torch.Tensor, forced: bool) -> SearchResult:
    rounds: DecodeSession = model.start(tokens_BT)
    return search.run(rounds.step_fn, batch_size=len(tokens_BT), suffix_fn=rounds.suffix_fn if forced else None)


def leaves_left(trie: Trie, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Passes of the model, and codes that it reads, if a request's last pass starts once no beam has more than m leaves.

    A tree pass reads each beam's newest code and every node below it but the last level's. `batch`: all of a batch wait for the
    last one, as they do where one call serves all.
    """
    rng = np.random.default_rng(seed)
    requests = request_filters(trie, batch_size, None, None)
    arrays = cpu.bind(trie)
    bound = cpu.bind_filters(arrays, requests)
    lo, hi = root_ranges(Version.of(trie), requests)
    beams = Beams.start(lo, hi, np.zeros((batch_size, 1), np.float32))
    first = {most: np.zeros(batch_size, np.int64) for most in _MOST_LEAVES}
    read = {most: np.zeros(batch_size, np.int64) for most in _MOST_LEAVES}
    for level in range(L):
        logits = random_logits(rng, batch_size, beams.lo.shape[2], V)
        beams = cpu.step(arrays, level, beams, logits, bound, num_beams=K, scoring="full")
        lo, hi = beams.lo, beams.hi
        widest_B = (hi - lo)[0].max(axis=1)
        for most in _MOST_LEAVES:
            for request in np.flatnonzero((first[most] == 0) & (widest_B <= most)):
                first[most][request] = level + 1
                nodes = _nodes_below(trie, lo[0, request], hi[0, request], level + 1)
                read[most][request] = level * K + (K + nodes if level + 1 < L else 0)
    passes = {most: np.minimum(after + 1, L) for most, after in first.items()}
    return {
        "round_by_round": {"passes": L, "codes_read": (L - 1) * K},
        "at_most": {
            str(most): {
                "passes_alone": round(float(passes[most].mean()), 2),
                "passes_batch_of_4": round(float(passes[most].reshape(-1, 4).max(axis=1).mean()), 2),
                "passes_batch": int(passes[most].max()),
                "codes_read": round(float(read[most].mean()), 1),
            }
            for most in _MOST_LEAVES
        },
        "requests": batch_size,
    }


def _nodes_below(trie: Trie, lo_K: NDArray[np.int64], hi_K: NDArray[np.int64], level: int) -> int:
    """How many nodes stand on the levels from `level` to the last but one, below these ranges."""
    leaves_n = np.concatenate([np.arange(lo, hi) for lo, hi in zip(lo_K, hi_K, strict=True)])
    codes_nL = trie.codes_at(leaves_n)
    new_n = np.concatenate([np.arange(hi - lo) == 0 for lo, hi in zip(lo_K, hi_K, strict=True)])
    differs_nL = np.ones(codes_nL.shape, np.bool_)
    differs_nL[1:] = np.cumsum(codes_nL[1:] != codes_nL[:-1], axis=1) > 0
    return int((differs_nL | new_n[:, None])[:, level : trie.num_levels - 1].sum())
