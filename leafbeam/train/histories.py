"""Sequences of items of many users, stored end to end.

Shapes: U users, E interactions; `indptr_U1` has U + 1 entries.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

__all__ = ["Histories"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histories:
    """What each user took, oldest first.

    Think of it as a list of U arrays of item rows, stored end to end: those of user u are
    `items_E[indptr_U1[u]:indptr_U1[u + 1]]`.

    indptr_U1: int64, from 0 to E, never falling. items_E: int32, rows of the item table.
    times_E: int64, microseconds since 1970 (UTC).

    >>> h = Histories(indptr_U1=np.array([0, 2, 3]), items_E=np.array([4, 0, 1]), times_E=np.array([1, 2, 9]))
    >>> len(h), h[0].tolist()
    (2, [4, 0])
    """

    indptr_U1: NDArray[np.int64]
    items_E: NDArray[np.int32]
    times_E: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indptr_U1", np.ascontiguousarray(self.indptr_U1, dtype=np.int64))
        object.__setattr__(self, "items_E", np.ascontiguousarray(self.items_E, dtype=np.int32))
        object.__setattr__(self, "times_E", np.ascontiguousarray(self.times_E, dtype=np.int64))
        ptr = self.indptr_U1
        if ptr.ndim != 1 or len(ptr) < 1 or ptr[0] != 0 or ptr[-1] != len(self.items_E) or (np.diff(ptr) < 0).any():
            raise ArgumentError(f"indptr_U1 must rise from 0 to the {len(self.items_E):,} interactions")
        if self.items_E.shape != self.times_E.shape:
            raise ArgumentError(f"{self.items_E.shape} items but {self.times_E.shape} times: one time an interaction")
        if len(self.items_E) and self.items_E.min() < 0:
            raise ArgumentError(f"item row {self.items_E.min()} is negative")

    def __len__(self) -> int:
        """How many users."""
        return len(self.indptr_U1) - 1

    def __getitem__(self, user: int) -> NDArray[np.int32]:
        """The items of one user, oldest first (a view)."""
        if not -len(self) <= user < len(self):
            raise IndexError(f"user {user} of {len(self)}")
        user %= len(self)
        return self.items_E[self.indptr_U1[user] : self.indptr_U1[user + 1]]

    @property
    def lengths_U(self) -> NDArray[np.int64]:
        """How many interactions each user has."""
        return np.diff(self.indptr_U1)

    @property
    def users_E(self) -> NDArray[np.int64]:
        """The user of each interaction."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths_U)

    def pairs(self, users_B: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Every interaction of some users: at which place of `users_B` the user stands, and the item."""
        lengths_B = self.lengths_U[users_B]
        place_P = np.repeat(np.arange(len(users_B), dtype=np.int64), lengths_B)
        first_P = np.repeat(np.cumsum(lengths_B) - lengths_B, lengths_B)
        return place_P, self.items_E[self.indptr_U1[users_B][place_P] + np.arange(len(place_P)) - first_P]

    def where(self, keep_E: NDArray[np.bool_]) -> "Histories":
        """The same users with only the interactions marked in `keep_E` (users may become empty)."""
        before_E1 = np.concatenate([[0], np.cumsum(keep_E)])
        return Histories(indptr_U1=before_E1[self.indptr_U1], items_E=self.items_E[keep_E], times_E=self.times_E[keep_E])

    def of(self, users: NDArray[np.integer]) -> "Histories":
        """The histories of some users, in the order given."""
        lengths = self.lengths_U[users]
        ptr = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.arange(ptr[-1]) + np.repeat(self.indptr_U1[:-1][users] - ptr[:-1], lengths)
        return Histories(indptr_U1=ptr, items_E=self.items_E[rows], times_E=self.times_E[rows])
