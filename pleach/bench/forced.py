"""`bench forced`: whole decodes of a small Qwen3 round by round, and with forced suffixes, on deep Semantic IDs.

L = 8 levels of 2,048 codes, K = 70 beams: after two or three rounds every beam is a leaf. Both give the same items (asserted)
before any speed is printed. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pleach.bench.rows import interleaved, spread
from pleach.bench.workloads import DISTRIBUTIONS, random_codes
from pleach.decode import BeamSearch, SearchResult
from pleach.index import Trie
from pleach.model import ModelConfig, Rounds, Transformer, Vocabulary
from pleach.ops.constrain import Scoring

__all__ = ["measure", "runs"]

B, K, V, L, PROMPT = 2, 70, 2048, 8, 80
SCORINGS: tuple[Scoring, ...] = ("full", "allowed")


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each distribution."""
    for distribution in DISTRIBUTIONS:
        yield measure(distribution, 10_000 if quick else 1_000_000, repeats=3 if quick else 15)


def measure(distribution: str, num_items: int, repeats: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): milliseconds a decode, prompt included, passes of the model, and the ratio of both ways."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(distribution, num_items, repeats, seed)
    finally:
        torch.set_num_threads(threads)


def _measure(distribution: str, num_items: int, repeats: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    trie = Trie.build(random_codes(rng, distribution, num_items, V, L), [V] * L)
    vocabulary = Vocabulary(codebook_sizes=(V,) * L)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=PROMPT + L,
    )
    model = Transformer(config, vocabulary, torch.Generator().manual_seed(seed)).eval()
    tokens_BT = torch.from_numpy(rng.integers(0, vocabulary.size, (B, PROMPT)))
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
    shape = {"B": B, "K": K, "V": V, "L": L, "prompt": PROMPT, "hidden": config.hidden_size, "layers": config.num_hidden_layers}
    return {"distribution": distribution, "num_items": num_items, **shape, "threads": 1}, measured


def _decode(model: Transformer, search: BeamSearch, tokens_BT: torch.Tensor, forced: bool) -> SearchResult:
    rounds: Rounds = model.start(tokens_BT)
    return search.run(rounds.step_fn, batch_size=B, suffix_fn=rounds.suffix_fn if forced else None)
