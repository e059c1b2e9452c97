"""Item sequences of many users in one CSR layout.

Shapes: U users, E interactions, B chosen users; `indptr_U1` has U + 1 entries.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, counted


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histories:
    """The items of each user, oldest first: those of user u are `items_E[indptr_U1[u]:indptr_U1[u + 1]]`.

    Args:
        indptr_U1: int64, ascending from 0 to E.
        items_E: int32, rows of the item table.
        times_E: int64, nanoseconds (UTC).

    Examples:
        >>> h = Histories(indptr_U1=np.array([0, 2, 3]), items_E=np.array([4, 0, 1]), times_E=np.array([1, 2, 9]))
        >>> len(h), h[0].tolist()
        (2, [4, 0])
    """

    indptr_U1: NDArray[np.int64]
    items_E: NDArray[np.int32]
    times_E: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, dtype in (("indptr_U1", np.int64), ("items_E", np.int32), ("times_E", np.int64)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=dtype))
        indptr, count = self.indptr_U1, len(self.items_E)
        if indptr.ndim != 1 or len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != count or (np.diff(indptr) < 0).any():
            raise ArgumentError(f"indptr_U1 must rise from 0 to the {counted(count, 'interaction')}")
        if self.items_E.shape != self.times_E.shape:
            raise ArgumentError(
                f"items_E has shape {self.items_E.shape}, times_E {self.times_E.shape}: expected a time for each interaction"
            )
        if count and self.items_E.min() < 0:
            raise ArgumentError(f"item row {self.items_E.min()} is negative")

    def __len__(self) -> int:
        """Return the number of users."""
        return len(self.indptr_U1) - 1

    def __repr__(self) -> str:
        return f"Histories({counted(len(self), 'user')}, {counted(len(self.items_E), 'interaction')})"

    def __getitem__(self, user: int) -> NDArray[np.int32]:
        """Return the items of one user, oldest first (a view)."""
        if not -len(self) <= user < len(self):
            raise IndexError(f"user {user} of {len(self)}")
        user %= len(self)
        return self.items_E[self.indptr_U1[user] : self.indptr_U1[user + 1]]

    @property
    def lengths_U(self) -> NDArray[np.int64]:
        """Return the number of interactions of each user."""
        return np.diff(self.indptr_U1)

    @property
    def users_E(self) -> NDArray[np.int64]:
        """Return the user of each interaction."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths_U)

    def pairs(self, users_B: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return all interactions of some users, as (index into `users_B`, item)."""
        chosen = self.select(users_B)
        return chosen.users_E, chosen.items_E

    def filter(self, keep_E: NDArray[np.bool_]) -> "Histories":
        """Return the same users with the interactions for which `keep_E` is true (users may become empty)."""
        before_E1 = np.concatenate([[0], np.cumsum(keep_E)])
        return Histories(indptr_U1=before_E1[self.indptr_U1], items_E=self.items_E[keep_E], times_E=self.times_E[keep_E])

    def select(self, users: NDArray[np.integer]) -> "Histories":
        """Return the histories of some users, in their order."""
        lengths = self.lengths_U[users]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        rows = np.arange(indptr[-1]) + np.repeat(self.indptr_U1[:-1][users] - indptr[:-1], lengths)
        return Histories(indptr_U1=indptr, items_E=self.items_E[rows], times_E=self.times_E[rows])
