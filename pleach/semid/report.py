"""How good a table of Semantic IDs is: use of the codebooks, collisions, what quantisation loses.

Shapes: N items, L levels, D dimensions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pleach.semid.collisions import group_sizes
from pleach.semid.rqkmeans import ResidualKMeans

__all__ = ["LevelReport", "SidReport", "report_on"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelReport:
    """One level: how many of its codes are used and how evenly.

    entropy is in bits; perplexity is the number of equally used codes of the same entropy.
    unexplained: the share of the vectors' variance that is left after this level (NaN for a level that only tells apart).
    """

    codebook_size: int
    codes_used: int
    entropy: float
    perplexity: float
    unexplained: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SidReport:
    """What `fit_sids` made.

    colliding_items: items that shared all their codes with another before the repair; distinct_sids counts the SIDs then.
    largest_group: how many items at most shared one. moved_items: items whose codes the repair changed (repair="free").
    """

    items: int
    levels: tuple[LevelReport, ...]
    repair: str
    distinct_sids: int
    colliding_items: int
    largest_group: int
    moved_items: int
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
            left = "-" if np.isnan(level.unexplained) else f"{level.unexplained:.3f}"
            lines.append(
                f"{number:5} {level.codebook_size:7,} {level.codes_used:7,} {level.perplexity:11.1f} {level.entropy:5.2f} "
                f"{left:>14}"
            )
        lines.append(
            f"before repair {self.distinct_sids:,} distinct SIDs, {self.colliding_items:,} items in collisions of at most "
            f"{self.largest_group:,}; repair={self.repair!r}"
            + (f" moved {self.moved_items:,} items" if self.repair == "free" else "")
        )
        return "\n".join(lines)


def report_on(
    *,
    vectors_ND: NDArray[np.float32],
    quantiser: ResidualKMeans,
    encoded_NL: NDArray[np.int64],
    codes: NDArray[np.int64],
    codebook_sizes: tuple[int, ...],
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
        unexplained = float("nan")
        if level < num_levels:
            left_ND = vectors_ND - quantiser.decode(encoded_NL[:, : level + 1])
            unexplained = float((left_ND**2).sum(dtype=np.float64)) / spread if spread else 0.0
        levels.append(_level_report(codes[:, level], size, unexplained))
    return SidReport(
        items=len(codes),
        levels=tuple(levels),
        repair=repair,
        distinct_sids=len(groups),
        colliding_items=int(groups[groups > 1].sum()),
        largest_group=int(groups.max(initial=0)),
        moved_items=int((codes[:, :num_levels] != encoded_NL).any(axis=1).sum()),
        dims=vectors_ND.shape[1],
        text_columns=text_columns,
        items_without_text=items_without_text,
        items_without_behaviour=items_without_behaviour,
    )


def _level_report(codes_N: NDArray[np.int64], size: int, unexplained: float) -> LevelReport:
    shares = np.bincount(codes_N, minlength=size) / max(1, len(codes_N))
    used = shares[shares > 0]
    entropy = float(-(used * np.log2(used)).sum()) + 0.0
    return LevelReport(
        codebook_size=size, codes_used=len(used), entropy=entropy, perplexity=2**entropy, unexplained=unexplained
    )
