"""Searches over tries that multiply the head for legal codes alone where that pays, against all logits of every level.

    all    the model's head, one product a round, then the search (`step_fn` returns logits)
    head   `BeamSearch.run(head=...)` over the same hidden states, with this machine's costs

Hidden states are random and there already, so that only head and search are timed. Scoring "allowed", one thread. Both find
the same scores, which is asserted before any speed is printed.

Shapes: B requests, K beams, V codes of a level, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.head_costs import measure_cpu
from benchmarks.rows import interleaved, spread
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.index import Trie
from leafbeam.ops.head import HeadCosts

__all__ = ["CASES", "TrieCase", "measure", "runs"]


@dataclass(frozen=True, kw_only=True)
class TrieCase:
    """N items of `levels` codes of V; sequences: token sequences of 2 to `levels` tokens instead."""

    name: str
    num_items: int
    size: int
    levels: int
    hidden: int
    beams: int
    sequences: bool = False

    def index(self, rng: np.random.Generator) -> Trie:
        codes_NL = rng.integers(0, self.size, (self.num_items, self.levels))
        if not self.sequences:
            return Trie.build(codes_NL, (self.size,) * self.levels)
        rows = [row[:length] for row, length in zip(codes_NL, rng.integers(2, self.levels + 1, self.num_items), strict=True)]
        return Trie.from_sequences(rows, self.size)


CASES = (
    TrieCase(name="demo", num_items=12_000, size=256, levels=3, hidden=128, beams=50),
    TrieCase(name="Semantic IDs of 2,048", num_items=1_000_000, size=2_048, levels=4, hidden=256, beams=50),
    TrieCase(name="Semantic IDs of 8,192", num_items=1_000_000, size=8_192, levels=3, hidden=1_024, beams=50),
    TrieCase(name="Semantic IDs of 65,536", num_items=1_000_000, size=65_536, levels=3, hidden=1_024, beams=20),
    TrieCase(name="titles", num_items=100_000, size=131_072, levels=6, hidden=1_024, beams=10, sequences=True),
)
_QUICK = TrieCase(name="quick", num_items=2_000, size=4_096, levels=3, hidden=256, beams=10)


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each case, in one thread, which the caller sets."""
    for case in (_QUICK,) if quick else CASES:
        yield {"what": "trie", "threads": 1, **asdict(case)}, measure(case, repeats=1 if quick else 7)


def measure(case: TrieCase, repeats: int) -> dict[str, Any]:
    """Milliseconds of whole searches of one request, and what the rounds did."""
    rng = np.random.default_rng(0)
    trie = case.index(rng)
    weights = [torch.from_numpy(_weights(rng, size, case.hidden)) for size in dict.fromkeys(trie.codebook_sizes)]
    head = weights * trie.num_levels  # one head for all levels, as over tokens
    costs = measure_cpu(head[0].numpy())
    search = BeamSearch(trie, case.beams, "allowed")
    draws = [_hidden(rng, search, case.hidden) for _ in range(3)]
    for hidden in draws:
        np.testing.assert_allclose(
            _through_head(search, head, costs, hidden).scores, _all(search, head, hidden).scores, rtol=1e-4, atol=1e-3
        )
    ways: dict[str, Callable[[], Any]] = {
        "all": lambda: [_all(search, head, hidden) for hidden in draws],
        "head": lambda: [_through_head(search, head, costs, hidden) for hidden in draws],
    }
    ms = {name: spread(taken, 1e-3 * len(draws)) for name, taken in interleaved(ways, repeats).items()}
    return {"ms": ms, "all_over_head": round(ms["all"]["p50"] / ms["head"]["p50"], 3), "costs_ns": asdict(costs)}


def _weights(rng: np.random.Generator, size: int, hidden: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.standard_normal((size, hidden), np.float32) * np.float32(hidden**-0.5)


def _hidden(rng: np.random.Generator, search: BeamSearch, hidden: int) -> list[torch.Tensor]:
    """The hidden states of every round of one search."""
    config = search.config
    shapes = [(1, hidden), *((1, config.num_rows(number), hidden) for number in range(1, config.num_rounds))]
    return [torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in shapes]


def _step(hidden: list[torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    rounds = iter(hidden)
    return lambda codes_BK, parents_BK: next(rounds)


def _all(search: BeamSearch, head: list[torch.Tensor], hidden: list[torch.Tensor]) -> SearchResult:
    rounds = zip(hidden, head, strict=True)

    def step_fn(codes_BK: Any, parents_BK: Any) -> torch.Tensor:
        hidden_BKD, weight_VD = next(rounds)
        return hidden_BKD @ weight_VD.T

    return search.run(step_fn)


def _through_head(search: BeamSearch, head: list[torch.Tensor], costs: HeadCosts, hidden: list[torch.Tensor]) -> SearchResult:
    return search.run(_step(hidden), head=head, costs=costs)
