"""Recall and NDCG of ranked lists, each with its standard error.

Shapes: U users.
"""

from dataclasses import dataclass, fields
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

__all__ = ["MISS", "Estimate", "Scores"]

MISS = -1
"""The rank of an item that is not in the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over users and its standard error (the spread that another sample of users would show)."""

    mean: float
    error: float

    @classmethod
    def of(cls, values_U: NDArray[np.floating]) -> "Estimate":
        """The mean of one value a user; the error of a single user's value is unknown, and given as 0."""
        spread = float(values_U.std(ddof=1)) if len(values_U) > 1 else 0.0
        return cls(mean=float(values_U.mean()), error=spread / sqrt(len(values_U)))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How good ranked lists are where each user has exactly one right item.

    recall_k: share of users whose item is among the first k. ndcg_k: the same, an item in place r (from 0) counting
    1 / log2(r + 2), so that the first place counts 1 and the tenth 0.29.

    >>> Scores.of(np.array([0, 7, MISS, MISS])).recall_10.mean
    0.5
    """

    users: int
    recall_1: Estimate
    recall_5: Estimate
    recall_10: Estimate
    ndcg_5: Estimate
    ndcg_10: Estimate

    @classmethod
    def of(cls, ranks_U: NDArray[np.integer]) -> "Scores":
        """From the place of each user's item in its list, 0 first, MISS where it is not there."""
        if len(ranks_U) == 0:
            raise ArgumentError("there is no user to measure: the split holds out no item (users need three interactions)")

        def recall(k: int) -> Estimate:
            return Estimate.of(((ranks_U >= 0) & (ranks_U < k)).astype(np.float64))

        def ndcg(k: int) -> Estimate:
            found_U = (ranks_U >= 0) & (ranks_U < k)
            return Estimate.of(np.where(found_U, 1 / np.log2(np.where(found_U, ranks_U, 0) + 2.0), 0.0))

        return cls(
            users=len(ranks_U),
            recall_1=recall(1),
            recall_5=recall(5),
            recall_10=recall(10),
            ndcg_5=ndcg(5),
            ndcg_10=ndcg(10),
        )

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The five figures by the names that the literature gives them."""
        names = ("Recall@1", "Recall@5", "Recall@10", "NDCG@5", "NDCG@10")
        return dict(zip(names, (getattr(self, field.name) for field in fields(self)[1:]), strict=True))

    @classmethod
    def from_dict(cls, read: dict[str, Any]) -> "Scores":
        """What `dataclasses.asdict` made of scores."""
        estimates = {name: Estimate(**value) for name, value in read.items() if name != "users"}
        return cls(users=read["users"], **estimates)
