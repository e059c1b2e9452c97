"""An item memory bound to a version of an index, whose filters become masks over the memory's items. Shapes: N items of
the memory.
"""

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError, counted
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.retrieve import kernels
from leafbeam.retrieve.memory import ItemMemory

_SIBLINGS = 32  # items from which the text of a new one is estimated


class BoundMemory:
    """The rows of a memory for the items of one version of an index.

    Items of the index that the memory does not have are inserted into it, with the text of the items that share the longest
    prefix of their Semantic ID. Inserting them before with their own texts (`ItemMemory.insert`) is better.

    Args:
        memory: The memory.
        index: A trie, or a version of a live index.
        like: An earlier binding of the memory, whose look-ups of the same tries are kept. A change of a live index then costs
            one look-up for each item of its delta.

    Raises:
        ItemIdError: If the memory knows no item of the index.

    Examples:
        >>> bound = BoundMemory(memory, trie)     # doctest: +SKIP
        >>> memory.search(history, allowed_N=bound.allowed(trie.filter(in_stock)))     # doctest: +SKIP
    """

    def __init__(self, memory: ItemMemory, index: Trie | Version, *, like: "BoundMemory | None" = None) -> None:
        self.memory, self.version = memory, Version.of(index)
        known = {} if like is None else like._ordinals
        tries = [segment.trie for segment in self.version.segments if segment.trie.num_items]
        rows = {trie: memory.rows_of(trie.items.ids_N) for trie in tries if trie not in known}
        if memory.num_items and len(rows) == len(tries) and rows and not any((row_n >= 0).any() for row_n in rows.values()):
            raise ItemIdError(
                f"none of the item memory's {counted(memory.num_items, 'item')}, "
                f"such as {memory.item_ids[0].item()!r}, is in the "
                f"index of {counted(self.version.num_items, 'item')}: fit it on a log of the same items"
            )
        for trie, row_n in rows.items():
            self._insert(trie, np.flatnonzero(row_n < 0))
            rows[trie] = memory.rows_of(trie.items.ids_N)
        self.num_items = memory.num_items
        self._ordinals: dict[Trie, NDArray[np.int64]] = {}
        for trie in tries:
            ordinal_N = np.full(self.num_items, -1, np.int64)
            if trie in known:
                ordinal_N[: len(known[trie])] = known[trie]
            else:
                ordinal_N[rows[trie]] = trie.items.ordinal_N
            self._ordinals[trie] = ordinal_N

    def allowed(self, item_filter: Filter | None = None) -> NDArray[np.bool_]:
        """Return a mask of the memory's items that a filter of the version allows. None allows all live items.

        Raises:
            ForeignFilterError: If the filter was made for another index.
        """
        allowed_N = np.zeros(self.num_items, np.bool_)
        parts = self.version.request_filter(item_filter).parts
        for segment, part in zip(self.version.segments, parts, strict=True):
            if segment.trie in self._ordinals:
                kernels.allow(part.ordinals.words_W, self._ordinals[segment.trie], allowed_N)
        return allowed_N

    def values(self, column: ItemColumn) -> NDArray[np.float64]:
        """Return the value of each of the memory's items in a column of the version; -1 for an item that the version lacks."""
        values_N = np.full(self.num_items, -1.0)
        for number, segment in enumerate(self.version.segments):
            if segment.trie in self._ordinals:
                ordinal_N = self._ordinals[segment.trie]
                alive_n = np.flatnonzero(ordinal_N >= 0)
                alive_n = alive_n[segment.live_items.has(ordinal_N[alive_n])]
                values_N[alive_n] = column.at(ordinal_N[alive_n], number)
        return values_N

    def _insert(self, trie: Trie, new_n: NDArray[np.int64]) -> None:
        """Insert the items at some rows of a trie into the memory."""
        if len(new_n) == 0:
            return
        base, leaves = self.version.segments[0].trie, trie.items.leaves_of(new_n)
        like = [self._siblings(base, codes) for codes in trie.codes_at(leaves).tolist()]
        self.memory.insert(trie.items.ids_of(new_n), like=like)

    def _siblings(self, trie: Trie, codes: list[int]) -> NDArray[np.generic]:
        """Return the ids of at most 32 of the memory's items: those that share the longest possible prefix of this SID."""
        ranges = [(0, trie.num_leaves)]
        for level, code in zip(trie.levels, codes, strict=True):
            ranges.append(level.find(*ranges[-1], code))
            if ranges[-1][0] == ranges[-1][1]:
                break
        for lo, hi in ranges[:0:-1]:
            if lo < hi:
                begin, end = trie.items.ordinals_of_leaf(lo)[0], trie.items.ordinals_of_leaf(hi - 1)[1]
                ids = trie.items.ids_of(trie.items.order_N[begin : min(end, begin + _SIBLINGS)])
                if (self.memory.rows_of(ids) >= 0).any():
                    return ids
        return np.empty(0, np.int64)
