"""Which waiting requests run next, together. Pure: time is an argument, nothing here waits."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pleach.errors import ArgumentError, OverloadedError

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Work]):
    work: Work
    key: Hashable
    deadline: float


class Batcher(Generic[Work]):
    """A bounded queue that hands out batches of equal keys.

    Think of a lift: whoever has waited longest says where it goes, and those behind who want the same floor come along,
    in order, up to `max_batch`. Nobody is overtaken by more than one batch of others, so nobody starves. Work whose
    deadline has passed is put aside instead of run.
    """

    def __init__(self, *, max_batch: int, max_queue: int) -> None:
        if max_batch < 1 or max_queue < 1:
            raise ArgumentError(f"max_batch={max_batch} and max_queue={max_queue} have to be at least 1")
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._queue: list[_Waiting[Work]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, work: Work, *, key: Hashable, deadline: float = float("inf")) -> None:
        """Put work at the end of the queue. Raises OverloadedError if the queue is full."""
        if len(self._queue) >= self._max_queue:
            raise OverloadedError(f"{len(self._queue):,} requests are waiting already, as many as may: try again later")
        self._queue.append(_Waiting(work, key, deadline))

    def take(self, now: float) -> tuple[list[Work], list[Work]]:
        """(the next batch, work that is late): both leave the queue. The batch is empty only if nothing else waits."""
        late = [one.work for one in self._queue if one.deadline <= now]
        rest = [one for one in self._queue if one.deadline > now]
        together = [one for one in rest if one.key == rest[0].key][: self._max_batch]
        taken = {id(one) for one in together}
        self._queue = [one for one in rest if id(one) not in taken]
        return [one.work for one in together], late

    def clear(self) -> list[Work]:
        """Empty the queue and return what waited."""
        waiting, self._queue = self._queue, []
        return [one.work for one in waiting]
