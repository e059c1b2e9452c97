"""Which interactions train, which choose the model, which judge it.

Shapes: U users, E interactions.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from leafbeam.train.data import Histories, InteractionLog

__all__ = ["Split", "SplitReport", "leave_one_out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitReport:
    """How many users and interactions each part has, and how many users are too short to be evaluated."""

    users: int
    users_evaluated: int
    users_too_short: int
    train_interactions: int
    valid_interactions: int
    test_interactions: int
    test_items_unseen_in_training: int

    def __str__(self) -> str:
        return "\n".join(f"{field.name.replace('_', ' '):32} {getattr(self, field.name):>12,}" for field in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """A log cut in three by time. Rows are the users of the log in its own order, in every part.

    train: each user's history without what is held out (never empty).
    valid_U, test_U: int32, the item held out for validation and for the test; -1 where the user is too short for one.
    """

    train: Histories
    valid_U: NDArray[np.int32]
    test_U: NDArray[np.int32]
    valid_times_U: NDArray[np.int64]
    report: SplitReport

    def valid_users(self) -> NDArray[np.int64]:
        """The users with a validation item: `train.of(users)` is then their prompt, `valid_U[users]` the answer."""
        return np.flatnonzero(self.valid_U >= 0)

    def test_users(self) -> NDArray[np.int64]:
        """The users with a test item: `before_test().of(users)` is then their prompt, `test_U[users]` the answer."""
        return np.flatnonzero(self.test_U >= 0)

    def before_test(self) -> Histories:
        """What is known of each user when its test item is asked for: training items, then the validation item."""
        has_valid_U = self.valid_U >= 0
        ends_U = self.train.indptr_U1[1:][has_valid_U]
        indptr_U1 = self.train.indptr_U1 + np.concatenate([[0], np.cumsum(has_valid_U)])
        return Histories(
            indptr_U1=indptr_U1,
            items_E=np.insert(self.train.items_E, ends_U, self.valid_U[has_valid_U]),
            times_E=np.insert(self.train.times_E, ends_U, self.valid_times_U[has_valid_U]),
        )


def leave_one_out(log: InteractionLog) -> Split:
    """Hold out each user's last item for the test and the last but one for validation; the rest trains.

    A user with fewer than three interactions would have no history left to predict from: all of it trains and none is
    held out, counted in `report.users_too_short`. Linear in the interactions. (SASRec, section 4.1; TIGER, section 4.)
    """
    histories = log.histories
    evaluated_U = histories.lengths_U >= 3
    ends_U = histories.indptr_U1[1:]
    train_E = np.ones(len(histories.items_E), np.bool_)
    train_E[ends_U[evaluated_U] - 1] = False
    train_E[ends_U[evaluated_U] - 2] = False
    train = histories.where(train_E)

    def held_out(back: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        rows = ends_U[evaluated_U] - back
        items_U = np.full(len(histories), -1, np.int32)
        times_U = np.zeros(len(histories), np.int64)
        items_U[evaluated_U], times_U[evaluated_U] = histories.items_E[rows], histories.times_E[rows]
        return items_U, times_U

    valid_U, valid_times_U = held_out(2)
    test_U, _ = held_out(1)
    trained_N = np.bincount(train.items_E, minlength=log.num_items) > 0
    return Split(
        train=train,
        valid_U=valid_U,
        test_U=test_U,
        valid_times_U=valid_times_U,
        report=SplitReport(
            users=len(histories),
            users_evaluated=int(evaluated_U.sum()),
            users_too_short=int((~evaluated_U).sum()),
            train_interactions=len(train.items_E),
            valid_interactions=int(evaluated_U.sum()),
            test_interactions=int(evaluated_U.sum()),
            test_items_unseen_in_training=int((~trained_N[test_U[evaluated_U]]).sum()),
        ),
    )
