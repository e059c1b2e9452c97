"""Catalogs and logits to measure with: uniform, and Zipf (a few codes hold most items, as real Semantic IDs do)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["DISTRIBUTIONS", "random_chunk", "random_codes", "random_logits"]

DISTRIBUTIONS = ("uniform", "zipf")


def random_codes(rng: np.random.Generator, distribution: str, num_items: int, size: int, levels: int) -> NDArray[np.int64]:
    """Unsorted SIDs with independent codes, uniform or Zipf(1.0): code c with probability proportional to 1 / (c + 1)."""
    if distribution == "uniform":
        return rng.integers(0, size, (num_items, levels))
    assert distribution == "zipf", distribution
    mass = np.cumsum(1.0 / np.arange(1, size + 1))
    table = np.empty((num_items, levels), np.int64)
    for level in range(levels):
        table[:, level] = np.searchsorted(mass, rng.random(num_items) * mass[-1], side="right")
    return table


def random_chunk(distribution: str, num_rows: int, size: int, levels: int, seed: int, begin: int) -> NDArray[np.uint16]:
    """Rows from `begin` on of a catalog that is made in chunks: deterministic."""
    rng = np.random.default_rng([seed, begin])
    if distribution == "uniform":
        return rng.integers(0, size, (num_rows, levels), np.uint16)
    return random_codes(rng, distribution, num_rows, size, levels).astype(np.uint16)


def random_logits(rng: np.random.Generator, requests: int, beams: int, size: int) -> NDArray[np.float32]:
    """Standard normal logits."""
    return rng.standard_normal((requests, beams, size), np.float32)
