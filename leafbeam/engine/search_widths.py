"""The widths of first passes: prefixes to keep at each level, learnt from what the proofs of recent requests needed.

Shapes: L levels of the index, n recent requests.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import log2

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Filter, Version
from leafbeam.ops.constrain import Scoring

_CALL_ROWS = 48  # a call of the model costs as much as so many rows: 25 at 0.44 B parameters, 50 with a layer of 128
_MEMORY, _EVERY = 64, 8  # requests that are remembered of a kind, and requests from one choice to the next
_MAX_KINDS = 256
_SPARE = 4  # times as many prefixes of the last but one level as are expected to be needed
_QUANTILES = 0.5, 0.75, 0.9, 0.95, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchKind:
    """Requests whose searches need about as many prefixes.

    Args:
        num_items: The number of items that the search proves.
        octave: The share of the items that the rules allow, as a power of two: 0 for all or more than 71 %, -3 for about 1/8.
        scoring: The scoring of the search; with "allowed" the share does not matter, and `octave` is 0.
    """

    num_items: int
    octave: int
    scoring: Scoring

    @classmethod
    def of(cls, version: Version, item_filter: Filter | None, num_items: int, scoring: Scoring) -> "SearchKind":
        """Return the kind of a request under a filter."""
        if scoring == "allowed" or item_filter is None or not version.num_items:
            return cls(num_items=num_items, octave=0, scoring=scoring)
        share = max(1, len(item_filter)) / version.num_items
        return cls(num_items=num_items, octave=min(0, round(log2(share))), scoring=scoring)


@dataclass(kw_only=True, slots=True)
class _Recent:
    """The needs of recent requests of a kind, the number of requests so far, and the choice for the next ones."""

    needed: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    observed: int = 0
    widths: tuple[int, ...] | None = None


class SearchWidths:
    """The widths of first passes, for each kind of search. Threads may share it.

    Example:
        >>> widths, kind = SearchWidths(), SearchKind(num_items=10, octave=0, scoring="full")
        >>> for needed in (11, 13, 9, 12, 11, 10, 12, 13):
        ...     widths.observe(kind, np.array([[needed]]))
        >>> widths.of(kind)
        (14,)
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[SearchKind, _Recent] = OrderedDict()  # the latest observed last
        self._lock = threading.Lock()

    def of(self, kind: SearchKind) -> tuple[int, ...] | None:
        """Return the prefixes that a first pass keeps at each level but the last; None until a few requests have run."""
        recent = self._kinds.get(kind)
        return None if recent is None else recent.widths

    def first_pass(
        self, kinds: Collection[SearchKind], max_rows: int, *, can_split: bool
    ) -> tuple[tuple[int, ...] | None, int | None]:
        """Return the widths of a batch's first pass, and how many beams the first call of its last level runs.

        Args:
            kinds: The kinds of the batch's requests.
            max_rows: The largest width.
            can_split: Whether the last level can be run in two calls. It then has some beams to spare, which are run only where
                they can still win.

        Returns:
            (None, None) where a kind is not known yet; the second is None where the last level is run in one call.
        """
        learnt = [self.of(kind) for kind in set(kinds)]
        widths = [max(level) for level in zip(*(known or () for known in learnt), strict=False)]
        if None in learnt or not widths:
            return None, None
        widths = [min(max_rows, width) for width in widths]
        num_first = widths[-1]
        if can_split:
            widths[-1] = min(max_rows, _SPARE * num_first)
        return tuple(widths), num_first if can_split else None

    def observe(self, kind: SearchKind, needed_BL: NDArray[np.int64]) -> None:
        """Learn from the requests of a batch: `SearchResult.beams_needed`."""
        with self._lock:
            recent = self._kinds.pop(kind, None) or _Recent()
            self._kinds[kind] = recent
            if len(self._kinds) > _MAX_KINDS:
                self._kinds.popitem(last=False)
            before = recent.observed
            recent.needed.extend(needed_BL)
            recent.observed += len(needed_BL)
            if recent.observed // _EVERY > before // _EVERY:
                recent.widths = cheapest_widths(np.stack(recent.needed))


def cheapest_widths(needed_nL: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the widths with which these requests would have computed the fewest rows, a call of the model counted as rows.

    A level needs one prefix more than those that score as high as the last item: it shows that the dropped ones score lower.
    A request that needs more at some level runs again: all levels, with the rows that it needs.
    """
    needed_nL = needed_nL + 1
    total_n, num_calls = needed_nL.sum(1), needed_nL.shape[1]

    def rows(widths_L: NDArray[np.int64]) -> float:
        again_n = (needed_nL > widths_L).any(1)
        return float(widths_L.sum() + (again_n * (num_calls * _CALL_ROWS + total_n)).mean())

    choices = [np.maximum(1, np.ceil(np.quantile(needed_nL, quantile, axis=0))).astype(np.int64) for quantile in _QUANTILES]
    return tuple(min(choices, key=rows).tolist())
