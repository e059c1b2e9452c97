"""Recall and NDCG of ranked lists, each with its standard error.

Shapes: U users, N items.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

MISS = -1
"""The rank of an item that is not in the list."""

Seen = Literal["kept", "removed"]
"""Whether the items of a user's history may be in the list."""

SEEN: tuple[Seen, ...] = ("kept", "removed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over users and its standard error."""

    mean: float
    error: float

    @classmethod
    def from_values(cls, values_U: NDArray[np.floating]) -> "Estimate":
        """Return the mean of one value per user; the error is 0 for a single user."""
        spread = float(values_U.std(ddof=1)) if len(values_U) > 1 else 0.0
        return cls(mean=float(values_U.mean()), error=spread / sqrt(len(values_U)))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def ndcg_gains(ranks_U: NDArray[np.integer], k: int) -> NDArray[np.float64]:
    """Return NDCG@k of each user: 1 / log2(rank + 2) among the first k, otherwise 0."""
    return np.where((ranks_U >= 0) & (ranks_U < k), 1 / np.log2(np.maximum(ranks_U, 0) + 2.0), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingMetrics:
    """Recall and NDCG if each user has exactly one relevant item.

    `recall_k` is the share of users whose item is among the first k. `ndcg_k` is the mean of 1 / log2(rank + 2), with ranks
    from 0, over items among the first k, and 0 for the others.

    Examples:
        >>> RankingMetrics.from_ranks(np.array([0, 7, MISS, MISS])).recall_10.mean
        0.5
    """

    users: int
    recall_1: Estimate
    recall_5: Estimate
    recall_10: Estimate
    ndcg_5: Estimate
    ndcg_10: Estimate

    @classmethod
    def from_ranks(cls, ranks_U: NDArray[np.integer]) -> "RankingMetrics":
        """Return the metrics of the rank of each user's item in its list, 0 first, MISS if it is not listed."""
        if len(ranks_U) == 0:
            raise ArgumentError("there is no user to measure: the split holds out no item (users need three interactions)")
        hits_U = {k: ((ranks_U >= 0) & (ranks_U < k)).astype(np.float64) for k in (1, 5, 10)}
        estimates = {f"recall_{k}": Estimate.from_values(hits_U[k]) for k in (1, 5, 10)}
        estimates |= {f"ndcg_{k}": Estimate.from_values(ndcg_gains(ranks_U, k)) for k in (5, 10)}
        return cls(users=len(ranks_U), **estimates)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Return the five figures by their names in the literature."""
        names = ("Recall@1", "Recall@5", "Recall@10", "NDCG@5", "NDCG@10")
        return dict(zip(names, (getattr(self, field.name) for field in fields(self)[1:]), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ranks:
    """The rank of each user's item, from 0, or MISS if it is not listed; once in lists that keep seen items, once
    without them.

    Args:
        kept: The ranks (U,) in lists that keep seen items.
        removed: The ranks (U,) in lists without them.
        shown: For both, how many of the lists' first ten hold each item, (N,); empty if they were not counted.
    """

    kept: NDArray[np.int64]
    removed: NDArray[np.int64]
    shown: Mapping[Seen, NDArray[np.int64]] = field(default_factory=dict[Seen, NDArray[np.int64]])

    @classmethod
    def none(cls, users: int, num_items: int) -> "Ranks":
        """Return ranks of which every one is a miss."""
        kept_U, removed_U = (np.full(users, MISS, np.int64) for _ in range(2))
        return cls(kept=kept_U, removed=removed_U, shown={seen: np.zeros(num_items, np.int64) for seen in SEEN})


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """The metrics of one method: with the items of a user's history kept in the lists, and removed from them."""

    kept: RankingMetrics
    removed: RankingMetrics

    @classmethod
    def from_ranks(cls, ranks: Ranks) -> "Ranking":
        """Return both metrics of the same users."""
        return cls(kept=RankingMetrics.from_ranks(ranks.kept), removed=RankingMetrics.from_ranks(ranks.removed))
