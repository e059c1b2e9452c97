"""Item columns: a value for each item of an index. Shapes: N items of a segment, n of one call."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import FilterError, ForeignFilterError, counted
from leafbeam.index.filters import FilteredIndex
from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.index.trie import Trie

Values = NDArray[np.float32] | NDArray[np.int32]

_MOST_CHANGED = 65_536  # items of which a column remembers that they changed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ItemColumn:
    """A value for each item of an index: a number by which a search prefers items, or the number of the item's group.

    `ItemColumn.of` and the boosts of a catalog make columns. A search takes a column of numbers as the boost of a request
    (`BeamSearch.run(boosts=...)`): each item's score is the model's score plus its number. The largest number below each
    prefix bounds the items below it, so that the answer is proved as without a boost.

    Args:
        parts: For each segment of the index the values of its items, float32 or int32 (N,), by ordinals in leaf order.
        index: The index to which the column belongs.
        weight: The factor of each number, not negative.
        shared: The data that the columns of `scaled` have in common.

    Examples:
        >>> index = leafbeam.Trie.build([[0, 1], [1, 0]], codebook_sizes=[2, 2], item_ids=["a", "b"])
        >>> margin = ItemColumn.of(index, [0.5, 2.0]); margin.at(index.all_items.parts[0].items.order_N.astype(int)).tolist()
        [0.5, 2.0]
    """

    parts: tuple[Values, ...]
    index: FilteredIndex
    weight: float = 1.0
    shared: "_Shared" = field(default_factory=lambda: _Shared(), repr=False)

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

    @classmethod
    def joined(cls, columns: Sequence["ItemColumn"], index: FilteredIndex) -> "ItemColumn":
        """Return the columns of the tries of an index's segments as one column, which keeps the bounds that they have.

        Args:
            columns: A column for each segment, not scaled.
            index: The index.
        """
        parts = tuple(part for column in columns for part in column.parts)
        return cls(parts=parts, index=index, shared=_Shared(segments=tuple(columns)))

    def at(self, ordinals_n: NDArray[np.int64], segment: int = 0) -> Values:
        """Return the values of items of one segment, by their ordinals."""
        values_n = self.parts[segment][ordinals_n]
        return values_n if self.weight == 1 else values_n * np.float32(self.weight)

    def scaled(self, weight: float) -> "ItemColumn":
        """Return the column with each number multiplied. Cost: none; a pass over the items for the first negative weight.

        Raises:
            FilterError: If the weight is not finite.
        """
        if not math.isfinite(weight):
            raise FilterError(f"the weight of a column is {weight!r}: expected a finite number")
        if weight < 0:
            return self._negated.scaled(-weight)
        return replace(self, weight=self.weight * weight)

    def plus(self, other: "ItemColumn") -> "ItemColumn":
        """Return the sum of two columns of the same index. Cost: a pass over the items.

        Raises:
            ForeignFilterError: If the columns belong to different indexes.
        """
        if self.index.identity != other.index.identity:
            raise ForeignFilterError(f"the columns belong to two indexes: {self.index!r} and {other.index!r}")
        pairs = zip(self.parts, other.parts, strict=True)
        weights = np.float32(self.weight), np.float32(other.weight)
        parts = tuple((weights[0] * one + weights[1] * two).astype(np.float32) for one, two in pairs)
        return ItemColumn(parts=parts, index=self.index)

    def with_values(self, ordinals_n: NDArray[np.int64], values_n: Values, trie: Trie) -> "ItemColumn":
        """Return the column of a trie with the values of some items replaced. Cost: a copy; `bounds` then needs a few more."""
        assert self.weight == 1
        values_N = self.parts[0].copy()
        values_N[ordinals_n] = values_n
        return ItemColumn(parts=(values_N,), index=trie, shared=self.shared.changed(ordinals_n))

    @property
    def segments(self) -> tuple["ItemColumn", ...]:
        """Return the columns that were joined, which outlive a version of a live index; the column itself if none were."""
        assert self.weight == 1
        return self.shared.segments or (self,)

    @property
    def has_bounds(self) -> bool:
        """Return whether `bounds` costs nothing."""
        return self.shared.bounds is not None

    def bounds(self, tries: Sequence[Trie]) -> tuple[NodeMaxima, ...]:
        """Return for the trie of each segment the largest number below each prefix, not yet multiplied by the weight.

        Cost: a pass over the leaves for each level, the first time; `NodeMaxima.changed` for a column of `with_values`.
        """
        assert [len(part) for part in self.parts] == [trie.num_items for trie in tries]
        if self.shared.bounds is None:  # two threads may both make them; they make the same
            if self.shared.segments:
                pairs = zip(tries, self.shared.segments, strict=True)
                self.shared.bounds = tuple(column.bounds([trie])[0] for trie, column in pairs)
            elif self.shared.before is not None:
                values_N = np.asarray(self.parts[0], np.float32)
                self.shared.bounds = (self.shared.before.maxima.changed(tries[0], values_N, self.shared.before.ordinals_n),)
            else:
                parts = zip(tries, self.parts, strict=True)
                self.shared.bounds = tuple(NodeMaxima.of(trie, np.asarray(part, np.float32)) for trie, part in parts)
        return self.shared.bounds

    @property
    def _negated(self) -> "ItemColumn":
        if self.shared.negated is None:
            if self.shared.segments:
                self.shared.negated = ItemColumn.joined([column._negated for column in self.shared.segments], self.index)
            else:
                shared = _Shared(before=self.shared.negated_before)
                self.shared.negated = ItemColumn(parts=tuple(-part for part in self.parts), index=self.index, shared=shared)
        return replace(self.shared.negated, weight=self.weight)

    def __repr__(self) -> str:
        return f"ItemColumn({counted(sum(map(len, self.parts)), 'item')} of {self.index!r})"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Before:
    """The largest numbers below prefixes before some items changed, and the ordinals of these items."""

    maxima: NodeMaxima
    ordinals_n: NDArray[np.int64]

    def changed(self, ordinals_n: NDArray[np.int64]) -> "_Before | None":
        """Return the same for a column after more items have changed; None after many."""
        ordinals_n = np.concatenate([self.ordinals_n, ordinals_n])
        return None if len(ordinals_n) > _MOST_CHANGED else replace(self, ordinals_n=ordinals_n)


@dataclass(slots=True)
class _Shared:
    """The data of columns that differ only in their weights: the largest numbers below prefixes, and the negated column.

    segments: the columns that were joined, which outlive a version of a live index; () for a column of its own.
    before, negated_before: of the column that this one was before some items changed.
    """

    bounds: tuple[NodeMaxima, ...] | None = None
    negated: ItemColumn | None = None
    segments: tuple[ItemColumn, ...] = ()
    before: _Before | None = None
    negated_before: _Before | None = None

    def changed(self, ordinals_n: NDArray[np.int64]) -> "_Shared":
        """Return what the column shares after the values of some items have changed."""
        if self.negated is not None:
            negated_before = self.negated.shared._changed(ordinals_n)
        else:
            negated_before = self.negated_before and self.negated_before.changed(ordinals_n)
        return _Shared(before=self._changed(ordinals_n), negated_before=negated_before)

    def _changed(self, ordinals_n: NDArray[np.int64]) -> _Before | None:
        if self.bounds is not None:
            return _Before(maxima=self.bounds[0], ordinals_n=ordinals_n)
        return self.before and self.before.changed(ordinals_n)
