"""The memory that an index will take, estimated by arithmetic before it is built, beside STATIC's and the entropy bound.

    nodes of a level, N uniform SIDs:  P (1 - (1 - 1/P)^N), P the product of the codebooks down to that level
    STATIC, U_max:                     (1/8 + K2) |V|^d + K1 * sum over levels d+1..L of min(|V|^level, |C|)
    entropy bound:                     log2 of the number of sets of M SIDs, binomial(P_L, M)

(U_max: Su et al., 2026, Appendix B.1.) Shapes: N items, M leaves, L levels.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import mul

import numpy as np

from leafbeam.errors import ArgumentError, counted
from leafbeam.index.level import MAX_ITEMS, check_sizes, code_dtype, code_width, packed_words
from leafbeam.index.level_builder import layout_of
from leafbeam.index.trie import Trie

_HUGE = 2**200  # above this, no two of 2^32 draws are equal, and a float may overflow


@dataclass(frozen=True, kw_only=True)
class LevelEstimate:
    """One level of the index: bytes of codes, firsts and boundary (see `Level`).

    Args:
        width: Bits of a packed code, or 0.
    """

    size: int
    num_nodes: int
    layout: str
    width: int
    codes: int
    firsts: int
    boundary: int

    @classmethod
    def of(cls, size: int, num_nodes: int, num_leaves: int, packed: bool = False) -> "LevelEstimate":
        """Return the bytes that `Trie.build` allocates for a level with so many nodes."""
        layout = layout_of(num_nodes, num_leaves)
        num_codes = num_nodes if layout == "listing" else num_leaves
        itemsize = np.dtype(code_dtype(size)).itemsize
        width = code_width(size) if packed and code_width(size) < 8 * itemsize else 0
        codes = 8 * packed_words(num_codes, width) if width else num_codes * itemsize
        firsts = 4 * num_nodes if layout == "listing" else 0
        boundary = 0 if layout == "leaves" else 12 * (num_leaves // 64 + 1)
        return cls(size=size, num_nodes=num_nodes, layout=layout, width=width, codes=codes, firsts=firsts, boundary=boundary)

    @property
    def nbytes(self) -> int:
        return self.codes + self.firsts + self.boundary


@dataclass(frozen=True, kw_only=True)
class StaticEstimate:
    """STATIC's memory in bytes (Appendix B.1), by default with the paper's constants.

    Args:
        bytes_per_node: K1, the bytes of the three arrays of the CSR matrix.
        bytes_per_state: K2.
        dense_levels: The number of dense levels, d.
        dense: (1/8 + K2) |V|^d.
        upper_bound: U_max.
        estimate: The same with the index's node counts in place of min(|V|^level, |C|).
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
    ) -> "StaticEstimate":
        """U_max with |V|^level generalised to the product of the codebooks, for levels of different sizes."""
        num_levels = len(codebook_sizes)
        d = min(2, num_levels) if dense_levels is None else dense_levels
        if not 0 <= d <= num_levels:
            raise ArgumentError(f"STATIC with {counted(d, 'dense level')}: expected 0 to {num_levels}, the number of levels")
        states = math.prod(codebook_sizes[:d])
        dense = -(-states // 8) + cls.bytes_per_state * states
        max_nodes = sum(min(capacity, num_items) for capacity in list(accumulate(codebook_sizes, mul))[d:])
        return cls(
            dense_levels=d,
            dense=dense,
            upper_bound=dense + cls.bytes_per_node * max_nodes,
            estimate=dense + cls.bytes_per_node * sum(nodes_L[d:]),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The bytes of an index, part by part, beside STATIC's bound and the smallest size that any index can have.

    The estimate is exact for an existing trie. For uniform SIDs it is an expectation, which is within a percent of what
    `Trie.build` allocates for a million random rows. Real Semantic IDs share prefixes and take less.

    Args:
        num_items: The number of items.
        num_leaves: The number of distinct SIDs.
        levels: The bytes of each level.
        items: The bytes of the item table (order, leaf offsets and ids), which a search does not read.
        static: The bytes of STATIC's index.
        entropy_bits: The entropy of the whole set, in bits.

    Examples:
        >>> estimate = MemoryEstimate.uniform(10_000_000, [2048] * 8)
        >>> [round(nbytes / 1e7, 2) for nbytes in (estimate.nbytes, estimate.static.upper_bound, estimate.entropy_bits / 8)]
        [14.75, 73.68, 8.27]
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
        id_bytes: int = 0,
        dense_levels: int | None = None,
    ) -> "MemoryEstimate":
        """Return the estimate for items with independent uniform codes.

        Args:
            num_items: The number of items.
            codebook_sizes: The number of codes of each level.
            id_bytes: The bytes of each id; 0 for row numbers.
            dense_levels: The number of dense levels of STATIC's index; by default as in its paper.

        Raises:
            CodesError: If the codebook sizes are invalid.
            ArgumentError: If another number is out of range.
        """
        sizes = check_sizes(codebook_sizes)
        if not 0 <= num_items <= MAX_ITEMS:
            raise ArgumentError(
                f"a plan for {counted(num_items, 'item')}: expected 0 to {MAX_ITEMS:,}, the most that one index can hold"
            )
        nodes_L = [round(expected_nodes(num_items, capacity)) for capacity in accumulate(sizes, mul)]
        return cls._of(sizes, num_items, nodes_L, id_bytes * num_items, False, dense_levels)

    @classmethod
    def of(cls, trie: Trie, dense_levels: int | None = None) -> "MemoryEstimate":
        """Return the same figures for an existing index, from its node counts."""
        ids = 0 if trie.items.ids is None else trie.items.ids.nbytes
        nodes_L = [level.num_nodes for level in trie.levels]
        packed = any(level.width for level in trie.levels)
        return cls._of(trie.codebook_sizes, trie.num_items, nodes_L, ids, packed, dense_levels)

    @classmethod
    def _of(
        cls, sizes: Sequence[int], num_items: int, nodes_L: Sequence[int], ids: int, packed: bool, dense_levels: int | None
    ) -> "MemoryEstimate":
        num_leaves = nodes_L[-1]
        indptr = 4 * (num_leaves + 1) if num_leaves < num_items else 0
        return cls(
            num_items=num_items,
            num_leaves=num_leaves,
            levels=tuple(LevelEstimate.of(size, nodes, num_leaves, packed) for size, nodes in zip(sizes, nodes_L, strict=True)),
            items=4 * num_items + indptr + ids,
            static=StaticEstimate.of(sizes, num_items, nodes_L, dense_levels),
            entropy_bits=entropy_bits(math.prod(sizes), num_leaves),
        )

    @property
    def nbytes(self) -> int:
        """Return the `Trie.nbytes` of the built index."""
        return sum(level.nbytes for level in self.levels)

    @property
    def packed_nbytes(self) -> int:
        """Return the `Trie.nbytes` of the built index with bit-packed codes."""
        levels = (LevelEstimate.of(level.size, level.num_nodes, self.num_leaves, packed=True) for level in self.levels)
        return sum(level.nbytes for level in levels)

    def per_item(self, nbytes: float) -> float:
        """Return a number of bytes divided by the number of items."""
        return nbytes / max(1, self.num_items)

    def as_json(self) -> dict[str, object]:
        """Return all figures by name, as JSON can hold them."""
        static = self.static
        levels = [{**asdict(level), "bytes": level.nbytes} for level in self.levels]
        return {
            "num_items": self.num_items,
            "num_leaves": self.num_leaves,
            "codebook_sizes": [level.pop("size") for level in levels],
            "levels": levels,
            "bytes": self.nbytes,
            "bytes_per_item": round(self.per_item(self.nbytes), 3),
            "packed_bytes": self.packed_nbytes,
            "packed_bytes_per_item": round(self.per_item(self.packed_nbytes), 3),
            "item_table_bytes": self.items,
            "entropy_bytes": round(self.entropy_bits / 8),
            "entropy_bytes_per_item": round(self.per_item(self.entropy_bits / 8), 3),
            "static": {
                "K1": static.bytes_per_node,
                "K2": static.bytes_per_state,
                "d": static.dense_levels,
                "dense_bytes": static.dense,
                "U_max": static.upper_bound,
                "U_max_per_item": round(self.per_item(static.upper_bound), 3),
                "with_node_counts": static.estimate,
                "with_node_counts_per_item": round(self.per_item(static.estimate), 3),
            },
        }


def expected_nodes(num_items: int, capacity: int) -> float:
    """Return how many of `capacity` prefixes N independent uniform draws are expected to hit: P (1 - (1 - 1/P)^N)."""
    if capacity == 1 or num_items == 0:
        return float(min(1, num_items))
    if capacity > _HUGE:
        return float(num_items)
    return -capacity * math.expm1(num_items * math.log1p(-1 / capacity))


def entropy_bits(capacity: int, num_leaves: int) -> float:
    """Return log2 of binomial(P, M), by Stirling's series with the large terms cancelled; relative error below 1e-9."""
    k = min(num_leaves, capacity - num_leaves)
    if k <= 0:
        return 0.0
    if k <= 64:
        return math.log2(math.comb(capacity, k))
    if capacity > _HUGE:
        return k * math.log2(capacity) - math.lgamma(k + 1) / math.log(2)
    share, rest = k / capacity, capacity - k
    nats = -k * math.log(share) - rest * math.log1p(-share)
    nats -= 0.5 * math.log(2 * math.pi * k * (1 - share))
    nats += (1 / capacity - 1 / k - 1 / rest) / 12 + (1 / k**3) / 360
    return nats / math.log(2)
