"""How good a table of Semantic IDs is: use of the codebooks, collisions, what quantisation loses.

Shapes: N items, L levels, D dimensions.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.semid.collisions import group_sizes

__all__ = ["LevelReport", "SidReport", "neighbour_overlap", "report_on"]


class Decoder(Protocol):
    """What the report asks of a quantiser."""

    def decode(self, codes_NL: NDArray[np.integer]) -> NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """One level: how many of its codes are used and how evenly.

    entropy is in bits; perplexity is the number of equally used codes of the same entropy.
    unexplained: the share of the vectors' variance that is left after this level (None for a level that only tells apart).
    """

    codebook_size: int
    codes_used: int
    entropy: float
    perplexity: float
    unexplained: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SidReport:
    """What `fit_sids` made.

    colliding_items: items that shared all their codes with another before the repair; distinct_sids counts the SIDs then.
    largest_group: how many items at most shared one. moved_items: items whose codes the repair changed.
    distinct_after: different SIDs after the repair. neighbour_overlap: the share of an item's ten nearest vectors that are
    among the ten nearest after quantisation, over a sample of items: how much of who resembles whom the codes keep.
    """

    items: int
    levels: tuple[LevelReport, ...]
    method: str
    repair: str
    distinct_sids: int
    distinct_after: int
    colliding_items: int
    largest_group: int
    moved_items: int
    neighbour_overlap: float
    dims: int
    text_columns: tuple[str, ...]
    items_without_text: int
    items_without_behaviour: int

    def __str__(self) -> str:
        lines = [
            f"{self.items:,} items, vectors of {self.dims} dimensions; text from "
            f"{', '.join(self.text_columns) if self.text_columns else 'no column'}",
            f"without text {self.items_without_text:,}, without behaviour {self.items_without_behaviour:,}",
            "level    size    used  perplexity  bits  variance left",
        ]
        for number, level in enumerate(self.levels):
            left = "-" if level.unexplained is None else f"{level.unexplained:.3f}"
            lines.append(
                f"{number:5} {level.codebook_size:7,} {level.codes_used:7,} {level.perplexity:11.1f} {level.entropy:5.2f} "
                f"{left:>14}"
            )
        lines.append(
            f"before repair {self.distinct_sids:,} distinct SIDs, {self.colliding_items:,} items in collisions of at most "
            f"{self.largest_group:,}; repair={self.repair!r}"
            + (f" moved {self.moved_items:,} items" if self.moved_items else "")
            + f", {self.distinct_after:,} distinct after it"
        )
        lines.append(f"{self.method}: {self.neighbour_overlap:.1%} of ten nearest neighbours kept by the codes")
        return "\n".join(lines)


def report_on(
    *,
    vectors_ND: NDArray[np.float32],
    quantiser: Decoder,
    encoded_NL: NDArray[np.int64],
    codes: NDArray[np.int64],
    codebook_sizes: tuple[int, ...],
    method: str,
    repair: str,
    text_columns: tuple[str, ...],
    items_without_text: int,
    items_without_behaviour: int,
) -> SidReport:
    """The report on `codes`, the repaired form of `encoded_NL`, which `quantiser` gave to `vectors_ND`. N * D * L."""
    groups = group_sizes(encoded_NL)
    num_levels = encoded_NL.shape[1]
    spread = float(((vectors_ND - vectors_ND.mean(axis=0)) ** 2).sum(dtype=np.float64))
    levels: list[LevelReport] = []
    for level, size in enumerate(codebook_sizes):
        unexplained: float | None = None
        if level < num_levels:
            left_ND = vectors_ND - quantiser.decode(encoded_NL[:, : level + 1])
            unexplained = float((left_ND**2).sum(dtype=np.float64)) / spread if spread else 0.0
        levels.append(_level_report(codes[:, level], size, unexplained))
    return SidReport(
        items=len(codes),
        levels=tuple(levels),
        method=method,
        repair=repair,
        distinct_sids=len(groups),
        distinct_after=len(group_sizes(codes)),
        colliding_items=int(groups[groups > 1].sum()),
        largest_group=int(groups.max(initial=0)),
        moved_items=int((codes[:, :num_levels] != encoded_NL).any(axis=1).sum()),
        neighbour_overlap=neighbour_overlap(vectors_ND, quantiser.decode(encoded_NL)),
        dims=vectors_ND.shape[1],
        text_columns=text_columns,
        items_without_text=items_without_text,
        items_without_behaviour=items_without_behaviour,
    )


def neighbour_overlap(
    vectors_ND: NDArray[np.float32], decoded_ND: NDArray[np.float32], *, neighbours: int = 10, sample: int = 1000
) -> float:
    """The share of each item's nearest vectors (Euclidean) that are also nearest in `decoded_ND`; itself never counts.

    Over `sample` items drawn by a fixed seed, nearest among all: 2 * sample * N * D multiplications.
    """
    count = len(vectors_ND)
    neighbours = min(neighbours, count - 1)
    if neighbours < 1:
        return 1.0
    asked = np.sort(np.random.default_rng(0).choice(count, min(sample, count), replace=False))
    kept = 0
    for start in range(0, len(asked), 100):
        rows = asked[start : start + 100]
        mine, theirs = (_nearest_rows(values, rows, neighbours) for values in (vectors_ND, decoded_ND))
        kept += int((mine[:, :, None] == theirs[:, None, :]).any(axis=2).sum())
    return kept / (len(asked) * neighbours)


def _nearest_rows(vectors_ND: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    distance = 0.5 * (vectors_ND**2).sum(axis=1) - vectors_ND[rows] @ vectors_ND.T
    distance[np.arange(len(rows)), rows] = np.inf
    return np.argpartition(distance, count - 1, axis=1)[:, :count]


def _level_report(codes_N: NDArray[np.int64], size: int, unexplained: float | None) -> LevelReport:
    shares = np.bincount(codes_N, minlength=size) / max(1, len(codes_N))
    used = shares[shares > 0]
    entropy = float(-(used * np.log2(used)).sum()) + 0.0
    return LevelReport(
        codebook_size=size, codes_used=len(used), entropy=entropy, perplexity=2**entropy, unexplained=unexplained
    )
