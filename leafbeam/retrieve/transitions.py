"""The settings of an item memory, and the counts of item pairs in histories, stored as one sorted row of transitions for
each item.

Shapes: U users, E interactions, N items, C entries of all rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, check_number, check_whole, counted


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """The settings that say how transitions are counted and how the items of a history are weighted.

    The defaults suit every log that was measured.

    Args:
        distances: The largest number of positions between two items of a history that count as a pair.
        distance_decay: The factor by which a pair counts less for each further position.
        reverse: The count of the pair in the other direction.
        half_life_days: The age, in days before the newest interaction, at which an interaction counts half; with None
            all count the same.
        max_entries: The number of transitions that are kept of each item.
        history: The number of newest items of a history that are scored.
        history_decay: The weight of each older item relative to the next newer one.
        shrinkage: A number that is added to the largest log(1 + count) of an item before its transitions are divided by it, so
            that items with few interactions weigh less.
        text_weight: The weight of the cosine of two texts; the largest transition of an item weighs at most 1.

    Raises:
        ArgumentError: If a value is out of range.
    """

    distances: int = 8
    distance_decay: float = 0.8
    reverse: float = 0.1
    half_life_days: float | None = None
    max_entries: int = 40
    history: int = 5
    history_decay: float = 0.6
    shrinkage: float = 0.5
    text_weight: float = 0.8

    def __post_init__(self) -> None:
        check_whole(distances=self.distances, max_entries=self.max_entries, history=self.history)
        check_number(most=1, distance_decay=self.distance_decay, reverse=self.reverse, history_decay=self.history_decay)
        check_number(below=1_000_000, shrinkage=self.shrinkage, text_weight=self.text_weight)
        if self.half_life_days is not None:
            check_number(exclusive=True, half_life_days=self.half_life_days)


MAX_STEP = 2.0  # of `Transitions.step`: counts up to 10^221, which float64 can add
_DAY = 86_400_000_000_000  # nanoseconds


def item_dtype(num_items: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest integer type that holds the row numbers of so many items."""
    return np.uint16 if num_items <= 1 << 16 else np.uint32


class Transitions(NamedTuple):
    """The counts of the items after each item: row i is `items_C[indptr_N1[i]:indptr_N1[i + 1]]`, the largest count first.

    `items_C` is uint16, or uint32 for more than 65,536 items. `levels_C`, uint8, is log(1 + count) in units of `step`, at least
    1.
    """

    indptr_N1: NDArray[np.uint32]
    items_C: NDArray[np.unsignedinteger]
    levels_C: NDArray[np.uint8]
    step: float

    @classmethod
    def of_counts(
        cls,
        rows_C: NDArray[np.int64],
        items_C: NDArray[np.int64],
        counts_C: NDArray[np.floating],
        num_items: int,
        max_entries: int,
    ) -> "Transitions":
        """Keep the largest `max_entries` counts of each row; of equal counts, those of the smaller item rows."""
        order = np.lexsort((items_C, -counts_C, rows_C))
        rows_C = rows_C[order]
        starts_N = np.searchsorted(rows_C, np.arange(num_items))
        kept = np.arange(len(rows_C)) - starts_N[rows_C] < max_entries
        rows_C, items_C, logs_C = rows_C[kept], items_C[order][kept], np.log1p(counts_C[order][kept])
        step = max(float(logs_C.max(initial=0)), 1e-6) / 255
        return cls(
            indptr_N1=np.searchsorted(rows_C, np.arange(num_items + 1)).astype(np.uint32),
            items_C=items_C.astype(item_dtype(num_items)),
            levels_C=np.maximum(np.rint(logs_C / step), 1).astype(np.uint8),
            step=step,
        )

    def row(self, item: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.float64]]:
        """Return the items that follow an item, and their counts."""
        entries = slice(int(self.indptr_N1[item]), int(self.indptr_N1[item + 1]))
        return self.items_C[entries], np.expm1(self.levels_C[entries] * self.step)


class PairCounts(NamedTuple):
    """Counts of item pairs by the row of the first item, then of the second."""

    rows_C: NDArray[np.int64]
    items_C: NDArray[np.int64]
    counts_C: NDArray[np.float64]


def count_transitions(
    indptr_U1: NDArray[np.integer],
    items_E: NDArray[np.integer],
    num_items: int,
    config: MemoryConfig,
    times_E: NDArray[np.integer] | None = None,
) -> Transitions:
    """Return the transitions of histories (see `count_pairs`)."""
    pairs = count_pairs(indptr_U1, items_E, num_items, config, times_E)
    return Transitions.of_counts(*pairs, num_items, config.max_entries)


def count_pairs(
    indptr_U1: NDArray[np.integer],
    items_E: NDArray[np.integer],
    num_items: int,
    config: MemoryConfig,
    times_E: NDArray[np.integer] | None = None,
) -> PairCounts:
    """Count the pairs of each history, oldest item first, with one sort of at most 2 * distances * E pairs.

    `times_E` are nanoseconds, for `config.half_life_days`.

    Raises:
        ArgumentError: If an item row is out of range.
    """
    if len(items_E) and not 0 <= int(items_E.min()) <= int(items_E.max()) < num_items:
        raise ArgumentError(
            f"item rows from {items_E.min()} to {items_E.max()}: expected rows of the {counted(num_items, 'item')}"
        )
    if config.half_life_days is not None and times_E is None:
        raise ArgumentError("half_life_days needs the times of the interactions: pass times_E, or None for no decay")
    items_E = items_E.astype(np.int64)
    users_E = np.repeat(np.arange(len(indptr_U1) - 1), np.diff(indptr_U1))
    keys: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    counts: list[NDArray[np.float64]] = [np.empty(0)]
    for distance in range(1, config.distances + 1):
        pairs = np.flatnonzero(users_E[distance:] == users_E[:-distance])
        before, after = items_E[pairs], items_E[pairs + distance]
        count = np.full(len(pairs), config.distance_decay ** (distance - 1))
        if times_E is not None and config.half_life_days is not None:
            age = (int(times_E.max(initial=0)) - times_E[pairs + distance]) / (_DAY * config.half_life_days)
            count *= 0.5**age
        keys += [before * num_items + after, after * num_items + before]
        counts += [count, config.reverse * count]
    key_C, entry = np.unique(np.concatenate(keys), return_inverse=True)
    count_C = np.bincount(entry, np.concatenate(counts), len(key_C)).astype(np.float64)
    key_C, count_C = key_C[count_C > 0], count_C[count_C > 0]
    return PairCounts(key_C // num_items, key_C % num_items, count_C)
