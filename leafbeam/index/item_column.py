"""Item columns: a value for each item of an index. Shapes: N items of a segment, n of one call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError, counted
from leafbeam.index.filters import FilteredIndex
from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.index.trie import Trie
from leafbeam.index.version import Version

Values = NDArray[np.float32] | NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ItemColumn:
    """A value for each item of an index: a number by which a search prefers items, or the number of the item's group.

    `ItemColumn.of` and the boosts of a catalog make columns. A search takes a column of numbers as the boost of a request
    (`BeamSearch.run(boosts=...)`): each item's score is the model's score plus its number. The largest number below each
    prefix bounds the items below it, so that the answer is proved as without a boost.

    Args:
        parts: For each segment of the index the values of its items, float32 or int32 (N,), by ordinals in leaf order.
        index: The index to which the column belongs.

    Examples:
        >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
        >>> margin = ItemColumn.of(index, [0.5, 2.0]); margin.at(index.all_items.parts[0].items.order_N.astype(int)).tolist()
        [0.5, 2.0]
    """

    parts: tuple[Values, ...]
    index: FilteredIndex

    @classmethod
    def of(cls, trie: Trie, values: object) -> "ItemColumn":
        """Return a column of a trie.

        Args:
            trie: The index.
            values: A number for each item, in the caller's item order. They become float32.

        Raises:
            FilterError: If there is not one finite number for each item.
        """
        values_N = np.asarray(values)
        if values_N.shape != (trie.num_items,):
            raise FilterError(f"the values have shape {values_N.shape}: expected ({trie.num_items:,},), one for each item")
        if values_N.dtype.kind not in "iufb":
            raise FilterError(f"the values have dtype {values_N.dtype}: expected numbers")
        with np.errstate(over="ignore"):
            found_N = values_N.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(found_N))
        if len(bad):
            raise FilterError(
                f"{counted(len(bad), 'value is', 'values are')} not finite in float32: the first, of row {bad[0]:,}, is "
                f"{values_N[bad[0]]!r}; replace them by numbers"
            )
        return cls(parts=(found_N[trie.items.order_N],), index=trie)

    def at(self, ordinals_n: NDArray[np.int64], segment: int = 0) -> Values:
        """Return the values of items of one segment, by their ordinals."""
        return self.parts[segment][ordinals_n]

    def scaled(self, weight: float) -> "ItemColumn":
        """Return the column with each number multiplied. Cost: a pass over the items."""
        return self._mapped(lambda part, _: part * np.float32(weight))

    def plus(self, other: "ItemColumn") -> "ItemColumn":
        """Return the sum of two columns of the same index. Cost: a pass over the items.

        Raises:
            ForeignFilterError: If the columns belong to different indexes.
        """
        if self.index.identity != other.index.identity:
            raise ForeignFilterError(f"the columns belong to two indexes: {self.index!r} and {other.index!r}")
        return self._mapped(lambda part, number: part + other.parts[number])

    def bounds(self, version: Version) -> tuple[NodeMaxima, ...]:
        """Return for each segment the largest number below each prefix. Cost: two passes over the items, the first time."""
        assert len(self.parts) == len(version.segments)
        if len(self._bounds) == 0:
            pairs = zip(version.segments, self.parts, strict=True)
            self._bounds.extend(NodeMaxima.of(segment.trie, np.asarray(part, np.float32)) for segment, part in pairs)
        return tuple(self._bounds)

    @cached_property
    def _bounds(self) -> list[NodeMaxima]:
        return []

    def _mapped(self, function: Callable[[Values, int], Values]) -> "ItemColumn":
        return replace(self, parts=tuple(function(part, number) for number, part in enumerate(self.parts)))

    def __repr__(self) -> str:
        return f"ItemColumn({counted(sum(map(len, self.parts)), 'item')} of {self.index!r})"
