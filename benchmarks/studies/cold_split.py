"""Cold-start split: the newest items are held out of training; users whose last item is one of them are tested.

Shapes: U users of the log, N items, E interactions, C cold items.
"""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train import EvaluationSet, Histories, InteractionLog, Part

__all__ = ["ColdReport", "ColdSplit", "cold_split"]

AGE_COLUMN = "first_review"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdReport:
    """Sizes of a cold split, and the source of the items' ages."""

    items: int
    cold_items: int
    cold_items_without_text: int
    warm_items_unseen_in_training: int
    train_users: int
    train_interactions: int
    test_users: int
    test_users_with_another_cold_item: int
    age: str

    def __str__(self) -> str:
        return "\n".join(f"{field.name.replace('_', ' '):36} {getattr(self, field.name):>14}" for field in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ColdSplit:
    """The newest items held out of training, with every user that took one of them.

    cold_N: marks the cold items. train: the users of the log in its order; users with any cold item have an empty history.
    eval_set: the users whose last item is cold, with all items before it. another_cold_U: which of these have another cold
    item in the history.
    """

    cold_N: NDArray[np.bool_]
    train: Histories
    eval_set: EvaluationSet
    another_cold_U: NDArray[np.bool_]
    report: ColdReport

    @property
    def cold_items(self) -> NDArray[np.int64]:
        """The rows of the cold items, ascending: (C,)."""
        return np.flatnonzero(self.cold_N)

    @property
    def target_indices_U(self) -> NDArray[np.int64]:
        """The index of each target among `cold_items`."""
        return np.searchsorted(self.cold_items, self.eval_set.targets_U)

    def seen_UC(self) -> NDArray[np.bool_]:
        """The cold items in each user's history: no user takes an item twice, so they are excluded from rankings."""
        histories = self.eval_set.histories
        index_N = np.full(len(self.cold_N), -1, np.int64)
        index_N[self.cold_items] = np.arange(int(self.cold_N.sum()))
        indices_E = index_N[histories.items_E]
        seen_UC = np.zeros((len(histories), int(self.cold_N.sum())), np.bool_)
        seen_UC[histories.users_E[indices_E >= 0], indices_E[indices_E >= 0]] = True
        return seen_UC


def cold_split(log: InteractionLog, *, share: float, part: Part = "test") -> ColdSplit:
    """Hold out the newest `share` of the items (STATIC, section 6.2).

    An item's age is that of its oldest review: the column `first_review` of the item table, or else its first interaction in
    the log (the report says which). Of items of one age the earlier row is newer. Users without any cold item train; users
    whose last item is cold, with at least one item before it, are tested; the others are left out.

    part="valid" splits the training part in the same way, to choose settings: the test's items and their users are removed,
    and the next newest `share` is cold.

    Raises ArgumentError for a share outside (0, 1) or another part, DataError for missing or unreadable ages, and where no
    cold item, no test user or no training user is left.
    """
    if not 0 < share < 1:
        raise ArgumentError(f"share={share}: a part of the items between 0 and 1, such as 0.02")
    if part not in ("valid", "test"):
        raise ArgumentError(f"part={part!r}: choose 'valid' or 'test'")
    ages_N, source = _ages(log)
    newest_first = np.argsort(-ages_N, kind="stable")
    count = int(log.num_items * share)
    if count == 0:
        raise DataError(f"share={share} of {log.num_items:,} items is not one item: take a larger share")
    if part == "valid" and 2 * count >= log.num_items:
        raise DataError(f"share={share} taken twice, for the test and for validation, leaves no item to train on")
    test_N = _mask(newest_first[:count], log.num_items)
    cold_N = test_N if part == "test" else _mask(newest_first[count : 2 * count], log.num_items)

    histories = log.histories
    has_cold_U, gone_U = _users_with(histories, cold_N), _users_with(histories, test_N)
    last_U = histories.items_E[histories.indptr_U1[1:] - 1]
    tested_U = cold_N[last_U] & (histories.lengths_U >= 2)
    if part == "valid":
        tested_U &= ~gone_U
    users = np.flatnonzero(tested_U)
    train = histories.filter(~(has_cold_U | gone_U)[histories.users_E])
    which = f"the newest {count:,} items (share={share})" if part == "test" else f"the next newest {count:,} items"
    if len(users) == 0:
        raise DataError(f"no user's last item is one of {which}: take a larger share, or a log with newer interactions")
    if len(train.items_E) == 0:
        raise DataError(f"every user has one of {which}: no user is left to train on, take a smaller share")
    tested = histories.select(users)
    before_E = np.ones(len(tested.items_E), np.bool_)
    before_E[tested.indptr_U1[1:] - 1] = False
    before = tested.filter(before_E)
    another_U = _users_with(before, cold_N)
    trained_N = np.bincount(train.items_E, minlength=log.num_items) > 0
    return ColdSplit(
        cold_N=cold_N,
        train=train,
        eval_set=EvaluationSet(users=users, histories=before, targets_U=last_U[users]),
        another_cold_U=another_U,
        report=ColdReport(
            items=log.num_items,
            cold_items=count,
            cold_items_without_text=int((~_has_text(log.items))[cold_N].sum()),
            warm_items_unseen_in_training=int((~trained_N & ~cold_N).sum()),
            train_users=int((train.lengths_U > 0).sum()),
            train_interactions=len(train.items_E),
            test_users=len(users),
            test_users_with_another_cold_item=int(another_U.sum()),
            age=source,
        ),
    )


def _ages(log: InteractionLog) -> tuple[NDArray[np.int64], str]:
    """The first review of each item in microseconds, and the source of it."""
    if AGE_COLUMN not in log.items.column_names:
        first_N = np.full(log.num_items, np.iinfo(np.int64).max)
        np.minimum.at(first_N, log.histories.items_E, log.histories.times_E)
        if (unseen := int((first_N == np.iinfo(np.int64).max).sum())) > 0:
            raise DataError(
                f"{unseen:,} items have no interaction and the items no column {AGE_COLUMN!r}: their age is unknown. "
                "Add the column, or load the log with unseen='drop'"
            )
        return first_N, "first interaction"
    ages = log.items[AGE_COLUMN]
    if ages.null_count:
        raise DataError(f"{ages.null_count:,} items have no {AGE_COLUMN}: fill the column, or leave it out altogether")
    try:
        return ages.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(), AGE_COLUMN
    except pa.ArrowException as error:
        raise DataError(f"the column {AGE_COLUMN!r} is {ages.type}, not a date or a time: {error}") from error


def _mask(rows: NDArray[np.integer], size: int) -> NDArray[np.bool_]:
    marks = np.zeros(size, np.bool_)
    marks[rows] = True
    return marks


def _users_with(histories: Histories, marked_N: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The users with one of the marked items."""
    return np.bincount(histories.users_E, weights=marked_N[histories.items_E], minlength=len(histories)) > 0


def _has_text(items: pa.Table) -> NDArray[np.bool_]:
    from leafbeam.semid import text_columns
    from leafbeam.semid.texts import texts

    return np.array([bool(text.strip(" .")) for text in texts(items, text_columns(items))], np.bool_)
