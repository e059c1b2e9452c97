"""Whether to leave beams that can no longer win out of the last round: decided by what recent batches needed."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CALL_ROWS = 32  # a second call costs as much as so many more rows of the first: at 0.44 B parameters, and of a small model
_MEMORY = 1 / 8  # the weight of the newest batch
_MAX_KINDS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class _Needs:
    """Means over recent batches. more: beams needed beyond those that are kept. second: how often there were any."""

    more: float
    second: float


class LastRounds:
    """What the last rounds of recent batches needed, for each kind of batch. Batches of unknown kinds run all beams.

    In two calls (see `BeamSearch.run`, last_step_fn) a round runs the beams that it keeps, and then those that are needed
    beyond; a model that is sure of the last code needs none. In one call it runs all.

    >>> rounds = LastRounds()
    >>> rounds.observe("kind", needed_B=np.array([11, 9]), num_kept=10)
    >>> rounds.pays("kind", batch=1, num_beams=128, num_kept=10), rounds.pays("kind", batch=1, num_beams=20, num_kept=10)
    (True, False)
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Needs] = OrderedDict()  # the latest observed last

    def pays(self, kind: Hashable, *, batch: int, num_beams: int, num_kept: int) -> bool:
        """Whether two calls are expected to take less time than one."""
        needs = self._kinds.get(kind)
        if needs is None:
            return False
        saved = batch * (num_beams - num_kept - needs.more)
        return saved > needs.second * _CALL_ROWS

    def observe(self, kind: Hashable, *, needed_B: NDArray[np.int64], num_kept: int) -> None:
        """Learn from a batch, however its last round ran. needed_B: see `SearchResult.beams_needed`."""
        more = max(0, int(needed_B.max()) - num_kept)
        before = self._kinds.pop(kind, None) or _Needs(more=more, second=more > 0)
        self._kinds[kind] = _Needs(
            more=before.more + _MEMORY * (more - before.more), second=before.second + _MEMORY * ((more > 0) - before.second)
        )
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
