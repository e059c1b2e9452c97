"""What an index will cost before it is built, and what it could cost at best: arithmetic alone, no arrays.

    nodes of a level, N uniform SIDs:  P (1 - (1 - 1/P)^N), P the product of the codebooks down to that level
    bytes of a level:                  the layout rule of `Level` on its nodes and the leaves
    STATIC, U_max:                     (1/8 + K2) |V|^d + K1 * sum over levels d+1..L of min(|V|^level, |C|)
    entropy bound:                     log2 of how many sets of M SIDs there are, binomial(P_L, M), for each item

(U_max: Su et al., 2026, Appendix B.1; its node counts may be replaced by real ones.) Shapes: N items, M leaves, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from leafbeam.errors import ArgumentError
from leafbeam.index.build import MAX_ITEMS, check_sizes
from leafbeam.index.level import code_dtype, code_width, packed_words
from leafbeam.index.level_builder import layout_of
from leafbeam.index.trie import Trie

__all__ = ["LevelEstimate", "MemoryEstimate", "StaticEstimate", "entropy_bits", "expected_nodes"]

_VAST = 2**200  # beyond, no two of 2^32 draws are equal, and a float may not hold the number


@dataclass(frozen=True, kw_only=True)
class LevelEstimate:
    """One level's share of the index: see `leafbeam.index.level.Level` for the layouts. width: bits of a packed code, or 0."""

    size: int
    num_nodes: int
    layout: str
    width: int
    codes: int
    firsts: int
    boundary: int

    @classmethod
    def of(cls, size: int, num_nodes: int, num_leaves: int, packed: bool = False) -> LevelEstimate:
        """The bytes that `Trie.build` lays out for a level with so many nodes."""
        layout = layout_of(num_nodes, num_leaves)
        entries = num_nodes if layout == "listing" else num_leaves
        plain = np.dtype(code_dtype(size)).itemsize
        width = code_width(size) if packed and code_width(size) < 8 * plain else 0
        return cls(
            size=size,
            num_nodes=num_nodes,
            layout=layout,
            width=width,
            codes=8 * packed_words(entries, width) if width else entries * plain,
            firsts=4 * num_nodes if layout == "listing" else 0,
            boundary=0 if layout == "leaves" else 12 * (num_leaves // 64 + 1),
        )

    @property
    def nbytes(self) -> int:
        return self.codes + self.firsts + self.boundary


@dataclass(frozen=True, kw_only=True)
class StaticEstimate:
    """STATIC's memory (Appendix B.1) with its parameters by name.

    bytes_per_node: K1, 12 in the paper (three arrays of the CSR matrix). bytes_per_state: K2, 4 in the paper.
    dense_levels: d, 2 in the paper (1 for an index of one level). dense: bytes of the dense levels, (1/8 + K2) |V|^d.
    upper_bound: U_max in bytes. estimate: the same with the index's node counts in place of min(|V|^level, |C|).
    """

    bytes_per_node: int = 12
    bytes_per_state: int = 4
    dense_levels: int
    dense: int
    upper_bound: int
    estimate: int

    @classmethod
    def of(
        cls, codebook_sizes: Sequence[int], num_items: int, nodes_L: Sequence[int], dense_levels: int | None = None
    ) -> StaticEstimate:
        """U_max with |V|^level generalised to the product of the codebooks, for levels of different sizes."""
        levels = len(codebook_sizes)
        deep = min(2, levels) if dense_levels is None else dense_levels
        if not 0 <= deep <= levels:
            raise ArgumentError(f"STATIC with {deep} dense levels: expected 0 to {levels}, the number of levels")
        capacity_L = list(accumulate(codebook_sizes, mul))
        states = math.prod(codebook_sizes[:deep])
        dense = -(-states // 8) + cls.bytes_per_state * states
        bound = sum(min(capacity, num_items) for capacity in capacity_L[deep:])
        return cls(
            dense_levels=deep,
            dense=dense,
            upper_bound=dense + cls.bytes_per_node * bound,
            estimate=dense + cls.bytes_per_node * sum(nodes_L[deep:]),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What an index costs, part by part, beside STATIC's bound and the least that any index can cost.

    Think of it as the quotation before the work: for uniform SIDs the node counts are expectations, so the bytes are within
    a percent of what `Trie.build` makes of a million random rows; for a trie that exists they are the bytes. Real Semantic
    IDs are skewed, share prefixes, and come out smaller.

    items: bytes of the item table (order, first places, ids), which a search does not read. entropy_bits: of the whole set.

    >>> plan = MemoryEstimate.uniform(10_000_000, [2048] * 8)
    >>> round(plan.nbytes / 1e7, 2), round(plan.static.upper_bound / 1e7, 1), round(plan.entropy_bits / 8e7, 2)
    (14.75, 73.7, 8.27)
    """

    num_items: int
    num_leaves: int
    levels: tuple[LevelEstimate, ...]
    items: int
    static: StaticEstimate
    entropy_bits: float

    @classmethod
    def uniform(
        cls,
        num_items: int,
        codebook_sizes: Sequence[int],
        *,
        packed: bool = False,
        id_bytes: int = 0,
        dense_levels: int | None = None,
    ) -> MemoryEstimate:
        """N items whose codes are independent and uniform; ids of `id_bytes` each (0: items are their rows).

        Raises CodesError for codebooks that no index can have, ArgumentError for a number of items that none can hold.
        """
        sizes = check_sizes(codebook_sizes)
        if not 0 <= num_items <= MAX_ITEMS:
            raise ArgumentError(f"a plan for {num_items:,} items: expected 0 to {MAX_ITEMS:,}, what one index can hold")
        nodes_L = [round(expected_nodes(num_items, capacity)) for capacity in accumulate(sizes, mul)]
        return cls._of(sizes, num_items, nodes_L, id_bytes * num_items, packed, dense_levels)

    @classmethod
    def of(cls, trie: Trie, dense_levels: int | None = None) -> MemoryEstimate:
        """The same figures for an index that exists, from its real node counts."""
        ids = 0 if trie.items.ids is None else trie.items.ids.nbytes
        nodes_L = [level.num_nodes for level in trie.levels]
        packed = any(level.width for level in trie.levels)
        return cls._of(trie.codebook_sizes, trie.num_items, nodes_L, ids, packed, dense_levels)

    @classmethod
    def _of(
        cls, sizes: Sequence[int], num_items: int, nodes_L: Sequence[int], ids: int, packed: bool, dense_levels: int | None
    ) -> MemoryEstimate:
        num_leaves = nodes_L[-1]
        first = 4 * (num_leaves + 1) if num_leaves < num_items else 0
        return cls(
            num_items=num_items,
            num_leaves=num_leaves,
            levels=tuple(LevelEstimate.of(size, nodes, num_leaves, packed) for size, nodes in zip(sizes, nodes_L, strict=True)),
            items=4 * num_items + first + ids,
            static=StaticEstimate.of(sizes, num_items, nodes_L, dense_levels),
            entropy_bits=entropy_bits(math.prod(sizes), num_leaves),
        )

    @property
    def nbytes(self) -> int:
        """Bytes that a search reads: what `Trie.nbytes` says of the built index."""
        return sum(level.nbytes for level in self.levels)

    @property
    def packed_nbytes(self) -> int:
        """The same with packed codes: what `Trie.packed().nbytes` says."""
        levels = (LevelEstimate.of(level.size, level.num_nodes, self.num_leaves, packed=True) for level in self.levels)
        return sum(level.nbytes for level in levels)

    def per_item(self, nbytes: float) -> float:
        """Bytes an item."""
        return nbytes / max(1, self.num_items)

    def as_json(self) -> dict[str, Any]:
        """Everything as numbers and names."""
        return {
            "num_items": self.num_items,
            "num_leaves": self.num_leaves,
            "codebook_sizes": [level.size for level in self.levels],
            "levels": [
                {
                    "num_nodes": level.num_nodes,
                    "layout": level.layout,
                    "width": level.width,
                    "codes": level.codes,
                    "firsts": level.firsts,
                    "boundary": level.boundary,
                    "bytes": level.nbytes,
                }
                for level in self.levels
            ],
            "bytes": self.nbytes,
            "bytes_per_item": round(self.per_item(self.nbytes), 3),
            "packed_bytes": self.packed_nbytes,
            "packed_bytes_per_item": round(self.per_item(self.packed_nbytes), 3),
            "item_table_bytes": self.items,
            "entropy_bytes": round(self.entropy_bits / 8),
            "entropy_bytes_per_item": round(self.per_item(self.entropy_bits / 8), 3),
            "static": {
                "K1": self.static.bytes_per_node,
                "K2": self.static.bytes_per_state,
                "d": self.static.dense_levels,
                "dense_bytes": self.static.dense,
                "U_max": self.static.upper_bound,
                "U_max_per_item": round(self.per_item(self.static.upper_bound), 3),
                "with_node_counts": self.static.estimate,
                "with_node_counts_per_item": round(self.per_item(self.static.estimate), 3),
            },
        }


def expected_nodes(num_items: int, capacity: int) -> float:
    """How many of `capacity` prefixes N independent uniform draws are expected to hit: P (1 - (1 - 1/P)^N)."""
    if capacity == 1 or num_items == 0:
        return float(min(1, num_items))
    if capacity > _VAST:
        return float(num_items)
    return -capacity * math.expm1(num_items * math.log1p(-1 / capacity))


def entropy_bits(capacity: int, num_leaves: int) -> float:
    """log2 of binomial(P, M): the bits that tell one set of M SIDs from all others, for P of any size.

    By Stirling's series with the large terms cancelled by hand; the relative error is below 1e-9.
    """
    few = min(num_leaves, capacity - num_leaves)
    if few <= 0:
        return 0.0
    if few <= 64:
        return math.log2(math.comb(capacity, few))
    if capacity > _VAST:
        return few * math.log2(capacity) - math.lgamma(few + 1) / math.log(2)
    share = few / capacity
    rest = capacity - few
    nats = -few * math.log(share) - rest * math.log1p(-share)
    nats -= 0.5 * math.log(2 * math.pi * few * (1 - share))
    nats += (1 / capacity - 1 / few - 1 / rest) / 12 + (1 / few**3) / 360
    return nats / math.log(2)
