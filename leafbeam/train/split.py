"""Splits of a log into training, validation and test items: by each user's last items, or by time.

Shapes: U users, E interactions.
"""

from dataclasses import dataclass, field, fields, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, counted
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
        train: Each user's history without the held-out items; empty for a user who came after a cut in time.
        before_test: Each user's history before the test item.
        valid_U: int32, the held-out validation items; -1 for users who have none.
        test_U: int32, the held-out test items; -1 for users who have none.
        report: The counts of the split.
    """

    train: Histories
    before_test: Histories
    valid_U: NDArray[np.int32] = field(repr=False)
    test_U: NDArray[np.int32] = field(repr=False)
    report: SplitReport

    def valid_users(self) -> NDArray[np.int64]:
        """Return the users with a validation item; their prompts are `train.select(users)`, the answers `valid_U[users]`."""
        return np.flatnonzero(self.valid_U >= 0)

    def test_users(self) -> NDArray[np.int64]:
        """Return the users with a test item; their prompts are `before_test.select(users)`, the answers `test_U[users]`."""
        return np.flatnonzero(self.test_U >= 0)

    def with_valid(self) -> "Split":
        """Return a split with the same test items, which trains on everything before them.

        Many published results are of such a split without saying so.
        """
        report = replace(self.report, train_interactions=len(self.before_test.items_E), valid_interactions=0)
        return replace(self, train=self.before_test, valid_U=np.full_like(self.valid_U, -1), report=report)


def leave_one_out(log: InteractionLog) -> Split:
    """Hold out each user's last item for the test and the one before it for validation (SASRec, section 4.1).

    Users with fewer than three interactions train and are not evaluated (`report.users_too_short`).
    """
    histories = log.histories
    evaluated_U = histories.lengths_U >= 3
    last_U = histories.indptr_U1[1:][evaluated_U] - 1
    before_test_E = np.ones(len(histories.items_E), np.bool_)
    before_test_E[last_U] = False
    train_E = before_test_E.copy()
    train_E[last_U - 1] = False
    valid_U, test_U = (np.full(len(histories), -1, np.int32) for _ in range(2))
    test_U[evaluated_U], valid_U[evaluated_U] = histories.items_E[last_U], histories.items_E[last_U - 1]
    return _split(log, train_E, before_test_E, valid_U, test_U)


def cut_in_time(log: InteractionLog, *, share: float = 0.1) -> Split:
    """Split at two moments, as a recommender in production meets its users: it knows nothing of what comes later.

    The last `share` of all interactions is after the second moment, and as many are between the two. Training ends at the
    first. A user's validation item is the first one between the two, and the test item the first one after the second, if the
    user has a history by then; the test's history has all that was between.

    Args:
        log: The log.
        share: The part of the interactions after the second moment, and that between the two.

    Raises:
        ArgumentError: If the share is not above 0 and below 0.5, or the log has no two moments.
    """
    if not 0 < share < 0.5:
        raise ArgumentError(f"share={share}: expected a part of the interactions, above 0 and below 0.5")
    histories = log.histories
    times_E, users_E, starts_U = histories.times_E, histories.users_E, histories.indptr_U1[:-1]
    ordered_E = np.sort(times_E)
    first, second = (ordered_E[ceil((1 - part) * (len(times_E) - 1))] for part in (2 * share, share))
    train_E, before_test_E = times_E < first, times_E < second
    goes_back = bool(((np.diff(times_E) < 0) & (np.diff(users_E) == 0)).any())
    if goes_back or not train_E.any() or first == second:
        raise ArgumentError(
            f"the times of the {counted(len(times_E), 'interaction')} cannot be cut into earlier and later ones: expected "
            "times "
            "that differ, and that never decrease within the history of a user; otherwise hold out each user's last items"
        )
    held_out: list[NDArray[np.int32]] = []
    for known_E, until_E in ((train_E, before_test_E), (before_test_E, np.ones_like(train_E))):
        known_U = np.bincount(users_E[known_E], minlength=len(histories))
        next_U, found_U = starts_U + known_U, np.full(len(histories), -1, np.int32)
        has_next_U = (known_U > 0) & (np.bincount(users_E[until_E], minlength=len(histories)) > known_U)
        found_U[has_next_U] = histories.items_E[next_U[has_next_U]]
        held_out.append(found_U)
    return _split(log, train_E, before_test_E, *held_out)


def _split(
    log: InteractionLog,
    train_E: NDArray[np.bool_],
    before_test_E: NDArray[np.bool_],
    valid_U: NDArray[np.int32],
    test_U: NDArray[np.int32],
) -> Split:
    train, is_tested_U = log.histories.filter(train_E), test_U >= 0
    trained_N = np.bincount(train.items_E, minlength=log.num_items) > 0
    report = SplitReport(
        users=len(test_U),
        users_evaluated=int(is_tested_U.sum()),
        users_too_short=int((~is_tested_U).sum()),
        train_interactions=len(train.items_E),
        valid_interactions=int((valid_U >= 0).sum()),
        test_interactions=int(is_tested_U.sum()),
        test_items_unseen_in_training=int((~trained_N[test_U[is_tested_U]]).sum()),
    )
    before_test = log.histories.filter(before_test_E)
    return Split(train=train, before_test=before_test, valid_U=valid_U, test_U=test_U, report=report)
