"""An item memory beside a version of an index: its filters as masks over the memory's items. Shapes: N items of the memory."""

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ItemIdError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.retrieve import kernels
from leafbeam.retrieve.memory import ItemMemory


class BoundMemory:
    """Which items of a memory a version of an index has, and where.

    like: an earlier binding of the memory, whose look-ups of the same tries are kept; a change of a live index then costs one
    look-up for each item of its delta. Raises ItemIdError where the memory knows no item of the index.

    >>> bound = BoundMemory(memory, trie)     # doctest: +SKIP
    >>> memory.search(history, allowed_N=bound.allowed(trie.filter(in_stock)))     # doctest: +SKIP
    """

    def __init__(self, memory: ItemMemory, index: Trie | Version, *, like: "BoundMemory | None" = None) -> None:
        self.memory, self.version = memory, Version.of(index)
        known = {} if like is None or like.num_items != memory.num_items else like._ordinals
        self.num_items = memory.num_items
        tries = [segment.trie for segment in self.version.segments]
        self._ordinals = {trie: known[trie] if trie in known else self._look_up(trie) for trie in tries}
        found = any((ordinal_N >= 0).any() for ordinal_N in self._ordinals.values())
        if memory.num_items and self.version.num_items and not found:
            raise ItemIdError(
                f"none of the item memory's {memory.num_items:,} items, such as {memory.item_ids[0].item()!r}, is in the "
                f"index of {self.version.num_items:,} items: fit it on a log of the same items"
            )

    def _look_up(self, trie: Trie) -> NDArray[np.int64]:
        """The ordinal of each item of the memory in a trie, -1 where it is not there."""
        ordinal_N = np.full(self.num_items, -1, np.int64)
        if trie.num_items:
            row_n = self.memory.rows_of(trie.items.ids_N)
            ordinal_N[row_n[row_n >= 0]] = trie.items.ordinal_N[row_n >= 0]
        return ordinal_N

    def allowed(self, item_filter: Filter | VersionFilter | None = None) -> NDArray[np.bool_]:
        """Marks the items of the memory that a filter of the version allows; None: all live ones. Raises ForeignFilterError."""
        allowed_N = np.zeros(self.num_items, np.bool_)
        parts = self.version.segment_filters(item_filter)
        for segment, part in zip(self.version.segments, parts, strict=True):
            kernels.allow((part or segment.live_filter).ordinals.words_W, self._ordinals[segment.trie], allowed_N)
        return allowed_N
