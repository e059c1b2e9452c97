"""How many beams the last round runs at first, and whether it leaves others out: decided by what recent batches needed."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from leafbeam.ops.constrain import Scoring

_CALL_ROWS = 48  # a second call costs as much as so many more rows: 25 at 0.44 B parameters, 50 with a layer of 128
_MEMORY = 16  # batches
_EVERY = 4  # batches from one choice to the next
_MAX_KINDS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundKind:
    """Batches whose last rounds are alike: requests, the beams of each before the round, and those that it keeps."""

    batch: int
    num_beams: int
    num_kept: int
    scoring: Scoring


@dataclass(kw_only=True, slots=True)
class _Recent:
    """Beams that recent batches of a kind needed, the most of their requests; and the choice for the next."""

    needed: deque[int] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    observed: int = 0
    num_first: int | None = None


class LastRounds:
    """What the last rounds of recent batches needed (see `SearchResult.beams_needed`), for each kind of batch.

    >>> rounds, kind = LastRounds(), RoundKind(batch=1, num_beams=128, num_kept=10, scoring="full")
    >>> for needed in (11, 13, 9, 12):
    ...     rounds.observe(kind, np.array([needed]))
    >>> rounds.num_first(kind)
    13
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[RoundKind, _Recent] = OrderedDict()  # the latest observed last

    def num_first(self, kind: RoundKind) -> int | None:
        """Beams for the first call of `BeamSearch.run`'s last_step_fn; None: all in one call, as for unknown kinds."""
        recent = self._kinds.get(kind)
        return None if recent is None else recent.num_first

    def observe(self, kind: RoundKind, needed_B: NDArray[np.int64]) -> None:
        """Learn from a batch, however its last round ran."""
        recent = self._kinds.pop(kind, None) or _Recent()
        self._kinds[kind] = recent
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        recent.needed.append(max(kind.num_kept, int(needed_B.max())))
        recent.observed += 1
        if recent.observed % _EVERY == 0:
            recent.num_first = _cheapest(kind, recent.needed)


def _cheapest(kind: RoundKind, needed: Sequence[int]) -> int | None:
    """The beams of a first call with which recent batches would have run the fewest rows, a second call counted as rows."""

    def rows(first: int) -> float:
        second = sum(_CALL_ROWS + kind.batch * (count - first) for count in needed if count > first)
        return kind.batch * first + second / len(needed)

    best = min(set(needed), key=rows)
    return best if rows(best) < kind.batch * kind.num_beams else None
