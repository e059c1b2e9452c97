"""Leave-one-out split of a log into training, validation and test items.

Shapes: U users, E interactions.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.train.histories import Histories
from leafbeam.train.interaction_log import InteractionLog


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitReport:
    """The number of users and interactions of each part, and of users too short to be evaluated."""

    users: int
    users_evaluated: int
    users_too_short: int
    train_interactions: int
    valid_interactions: int
    test_interactions: int
    test_items_unseen_in_training: int

    def __str__(self) -> str:
        return "\n".join(f"{f.name.replace('_', ' '):32} {getattr(self, f.name):>12,}" for f in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """A log in three parts. All arrays are indexed by the users of the log.

    Attributes:
        train: Each user's history without the held-out items (never empty).
        valid_U: int32, the held-out validation items; -1 for users that are too short.
        test_U: int32, the held-out test items; -1 for users that are too short.
        valid_times_U: The times of the validation items.
        report: The counts of the split.
    """

    train: Histories
    valid_U: NDArray[np.int32] = field(repr=False)
    test_U: NDArray[np.int32] = field(repr=False)
    valid_times_U: NDArray[np.int64] = field(repr=False)
    report: SplitReport

    def valid_users(self) -> NDArray[np.int64]:
        """Return the users with a validation item; their prompts are `train.select(users)`, the answers `valid_U[users]`."""
        return np.flatnonzero(self.valid_U >= 0)

    def test_users(self) -> NDArray[np.int64]:
        """Return the users with a test item; their prompts are `before_test().select(users)`, the answers `test_U[users]`."""
        return np.flatnonzero(self.test_U >= 0)

    def with_valid(self) -> "Split":
        """Return a split with the same test items, in which validation items are training items.

        Many published results are of such a split without saying so.
        """
        train = self.before_test()
        report = replace(self.report, train_interactions=len(train.items_E), valid_interactions=0)
        return replace(self, train=train, valid_U=np.full_like(self.valid_U, -1), report=report)

    def before_test(self) -> Histories:
        """Return each user's history before the test item: training items, then the validation item."""
        has_valid_U = self.valid_U >= 0
        ends_U = self.train.indptr_U1[1:][has_valid_U]
        return Histories(
            indptr_U1=self.train.indptr_U1 + np.concatenate([[0], np.cumsum(has_valid_U)]),
            items_E=np.insert(self.train.items_E, ends_U, self.valid_U[has_valid_U]),
            times_E=np.insert(self.train.times_E, ends_U, self.valid_times_U[has_valid_U]),
        )


def leave_one_out(log: InteractionLog) -> Split:
    """Hold out each user's last item for the test and the one before it for validation (SASRec, section 4.1).

    Users with fewer than three interactions train and are not evaluated (`report.users_too_short`).
    """
    histories = log.histories
    evaluated_U = histories.lengths_U >= 3
    last_U = histories.indptr_U1[1:][evaluated_U] - 1
    train_E = np.ones(len(histories.items_E), np.bool_)
    train_E[last_U] = train_E[last_U - 1] = False
    train = histories.filter(train_E)
    valid_U, test_U = (np.full(len(histories), -1, np.int32) for _ in range(2))
    valid_times_U = np.zeros(len(histories), np.int64)
    test_U[evaluated_U], valid_U[evaluated_U] = histories.items_E[last_U], histories.items_E[last_U - 1]
    valid_times_U[evaluated_U] = histories.times_E[last_U - 1]
    trained_N = np.bincount(train.items_E, minlength=log.num_items) > 0
    report = SplitReport(
        users=len(histories),
        users_evaluated=len(last_U),
        users_too_short=len(histories) - len(last_U),
        train_interactions=len(train.items_E),
        valid_interactions=len(last_U),
        test_interactions=len(last_U),
        test_items_unseen_in_training=int((~trained_N[test_U[evaluated_U]]).sum()),
    )
    return Split(train=train, valid_U=valid_U, test_U=test_U, valid_times_U=valid_times_U, report=report)
