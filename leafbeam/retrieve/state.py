"""MemoryState: the items, transitions and texts of an item memory at one moment.

Shapes: N items, n items of one call, C transitions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.items import ItemTable
from leafbeam.retrieve.text import TextVectors
from leafbeam.retrieve.transitions import Transitions, item_dtype


class ChangedRow(NamedTuple):
    """The transitions of an item whose counts have changed: the counts, and the parts of scores that follow from them."""

    items: NDArray[np.unsignedinteger]
    counts: NDArray[np.float64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, items: NDArray[np.unsignedinteger], counts: NDArray[np.float64], shrinkage: float) -> "ChangedRow":
        """Return the row of these counts; `items` must not be empty."""
        logs = np.log1p(counts)
        return cls(items, counts, (logs / (shrinkage + logs.max())).astype(np.float32))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryState:
    """The arrays that a search reads. Each change makes a new state, so a search sees one state from beginning to end.

    `taken_N` marks the items that have an interaction.
    """

    items: ItemTable
    transitions: Transitions
    texts: TextVectors
    taken_N: NDArray[np.bool_]

    @classmethod
    def of(cls, ids_N: NDArray[np.generic], transitions: Transitions, texts: TextVectors) -> "MemoryState":
        """Return the state of items in the order of their ids."""
        return cls(items=_table(ids_N), transitions=transitions, texts=texts, taken_N=_taken(transitions))

    def with_transitions(self, transitions: Transitions) -> "MemoryState":
        """Return the state of the same items and texts with other transitions."""
        return replace(self, transitions=transitions, taken_N=_taken(transitions))

    def with_texts(self, ids_n: NDArray[np.generic], vectors: TextVectors) -> "MemoryState":
        """Return the state with texts of new items, or in place of those of known ones. This copies the texts of all items."""
        rows_n = self.items.rows_of(ids_n)
        is_new_n = rows_n < 0
        num_new = int(is_new_n.sum())
        order = np.arange(self.items.num_items)
        order[rows_n[~is_new_n]] = self.items.num_items + np.flatnonzero(~is_new_n)
        order = np.concatenate([order, self.items.num_items + np.flatnonzero(is_new_n)])
        items = _table(np.concatenate([self.items.ids_N, ids_n[is_new_n]])) if num_new else self.items
        indptr_N1 = self.transitions.indptr_N1
        transitions = self.transitions._replace(
            indptr_N1=np.concatenate([indptr_N1, np.full(num_new, indptr_N1[-1])]),
            items_C=self.transitions.items_C.astype(item_dtype(len(order))),
        )
        texts = self.texts.followed_by(vectors).take(order)
        taken_N = np.concatenate([self.taken_N, np.zeros(num_new, np.bool_)])
        return MemoryState(items=items, transitions=transitions, texts=texts, taken_N=taken_N)

    def with_rows(self, changed: Mapping[int, ChangedRow], max_entries: int) -> "MemoryState":
        """Return the state with other counts in some rows. The largest `max_entries` counts of a row are kept."""
        transitions = self.transitions
        lengths_N = np.diff(transitions.indptr_N1.astype(np.int64))
        rows_C = np.repeat(np.arange(len(lengths_N)), lengths_N)
        kept_C = ~np.isin(rows_C, list(changed))
        counts_C = np.expm1(transitions.levels_C[kept_C] * np.float64(transitions.step))
        rows = [rows_C[kept_C], *(np.full(len(row.items), at) for at, row in changed.items())]
        items = [transitions.items_C[kept_C], *(row.items for row in changed.values())]
        counts = [counts_C, *(row.counts for row in changed.values())]
        merged = (np.concatenate(rows), np.concatenate(items).astype(np.int64), np.concatenate(counts))
        return replace(self, transitions=Transitions.of_counts(*merged, len(lengths_N), max_entries))

    def row(self, item: int, shrinkage: float) -> tuple[NDArray[np.unsignedinteger], NDArray[np.float32]]:
        """Return the transitions of an item, divided by the largest and `shrinkage`."""
        begin, end = self.transitions.indptr_N1[item : item + 2].tolist()
        levels = self.transitions.levels_C[begin:end]
        largest = (levels[0] if len(levels) else 1) + shrinkage / self.transitions.step
        return self.transitions.items_C[begin:end], levels.astype(np.float32) / np.float32(largest)


def _taken(transitions: Transitions) -> NDArray[np.bool_]:
    """Return a mask of the items that follow or precede another."""
    taken_N = np.diff(transitions.indptr_N1) > 0
    taken_N[transitions.items_C] = True
    return taken_N


def _table(ids: NDArray[np.generic]) -> ItemTable:
    return ItemTable(ids=ids, order_N=np.arange(len(ids), dtype=np.uint32), leaf_indptr=None)
