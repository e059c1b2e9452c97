"""Catalogs to measure on: drawn from a seed in chunks, sorted once by leafbeam's own index, handed to every peer.

Shapes: N items, M distinct SIDs (leaves), V codes, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import random_codes
from leafbeam.index import Trie
from leafbeam.index.level import code_dtype
from leafbeam.index.memory_estimate import MemoryEstimate

__all__ = ["Catalog", "Shape"]

_CHUNK = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a catalog. The paper's: L = 8, V = 2,048, uniform."""

    distribution: str
    num_items: int
    num_codes: int = 2048
    num_levels: int = 8
    seed: int = 0

    @property
    def codebook_sizes(self) -> list[int]:
        return [self.num_codes] * self.num_levels

    @property
    def needs(self) -> int:
        """Bytes that making it takes at its peak, about: the table, the sort, the index (`Trie.build`'s own figure)."""
        plan = MemoryEstimate.uniform(self.num_items, self.codebook_sizes)
        row = np.dtype(code_dtype(self.num_codes)).itemsize * self.num_levels
        return self.num_items * (row + 33) + plan.nbytes + plan.items

    def codes(self) -> NDArray[np.unsignedinteger]:
        """The table, unsorted, in the smallest dtype. Cost: a tenth of a second for each million codes, no other memory."""
        rng = np.random.default_rng(self.seed)
        table = np.empty((self.num_items, self.num_levels), code_dtype(self.num_codes))
        for begin in range(0, self.num_items, _CHUNK):
            count = min(_CHUNK, self.num_items - begin)
            table[begin : begin + count] = random_codes(rng, self.distribution, count, self.num_codes, self.num_levels)
        return table


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalog:
    """A shape's index: also where the peers get their sorted table from, so that nothing is sorted twice."""

    shape: Shape
    trie: Trie

    @classmethod
    def make(cls, shape: Shape) -> Catalog:
        """Draw, sort, index."""
        return cls(shape=shape, trie=Trie.build(shape.codes(), shape.codebook_sizes))

    @property
    def nodes_L(self) -> list[int]:
        """How many different prefixes of each length there are."""
        return [level.num_nodes for level in self.trie.levels]

    def sorted_codes(self) -> NDArray[np.signedinteger]:
        """The distinct SIDs in order, one row a level: int16 or int32, what torch computes with. Cost: one pass."""
        dtype = np.int16 if self.shape.num_codes <= 2**15 else np.int32
        codes_LM = np.empty((self.trie.num_levels, self.trie.num_leaves), dtype)
        for begin in range(0, self.trie.num_leaves, _CHUNK):
            leaves = np.arange(begin, min(begin + _CHUNK, self.trie.num_leaves))
            codes_LM[:, begin : begin + len(leaves)] = self.trie.codes_at(leaves).T
        return codes_LM
