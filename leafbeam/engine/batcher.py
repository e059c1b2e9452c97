"""Which waiting requests run next, together, and which are refused. Pure: time is an argument, nothing here waits."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, Literal, TypeVar

from leafbeam.engine.capacity import BatchSize, Capacity
from leafbeam.errors import ArgumentError, OverloadedError

__all__ = ["Batch", "Batcher", "Closed", "Waiting"]

Work = TypeVar("Work")
Guest = TypeVar("Guest")
Closed = Literal["full", "quota", "slack", "idle", "ending"]

_FOREVER = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class Waiting(Generic[Work]):
    """A place in the queue. latest: when it has to begin at the latest; the earlier, the shorter its slack."""

    work: Work
    key: Hashable
    tokens: int
    width: int
    arrived: float
    deadline: float
    latest: float
    number: int

    @property
    def order(self) -> tuple[float, int]:
        """Shortest slack first, then first come."""
        return self.latest, self.number


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Generic[Work]):
    """Work that runs together. closed: why it did not wait for more. likely_s: how long it should take at most."""

    works: list[Work]
    size: BatchSize
    closed: Closed
    likely_s: float


class Batcher(Generic[Work]):
    """A bounded queue that hands out batches of equal keys (xGR, section 7).

    Think of a ferry: those in the greatest hurry board first, those behind them who go the same way come along while there is
    room, and it leaves when it is full, when somebody has waited long enough (`wait_s`), or when somebody would be late
    otherwise. Who cannot arrive in time is told so at the gate (`place` raises) or as soon as it is clear (`take`), never
    carried for nothing.

    capacity: of one batch. max_queue: how many may wait. wait_s: the quota of waiting for company; 0 takes what is there.
    guard_s: how long before the last moment a batch closes. budget_s: how long a batch may take, so that those behind it wait
    no longer; a request that takes longer goes alone. likely: seconds of a batch, 0 while unknown (see LatencyModel.likely).

    A group of equal keys never waits for another one for longer than its own slack, so nobody starves.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        max_queue: int,
        wait_s: float = 0.0,
        guard_s: float = 0.002,
        budget_s: float = _FOREVER,
        likely: Callable[[BatchSize], float] | None = None,
    ) -> None:
        if max_queue < 1:
            raise ArgumentError(f"max_queue={max_queue} has to be at least 1")
        if not (0 <= wait_s < _FOREVER and 0 <= guard_s < _FOREVER and budget_s > 0):
            raise ArgumentError(f"wait_s={wait_s}, guard_s={guard_s} have to be 0 or more and budget_s={budget_s} above 0")
        self.capacity = capacity
        self._max_queue, self._wait_s, self._guard_s, self._budget_s = max_queue, wait_s, guard_s, budget_s
        self._likely = likely or _unknown
        self._groups: dict[Hashable, list[Waiting[Work]]] = {}  # of each key, shortest slack first
        self._numbers = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> int:
        """Prompt tokens that wait."""
        return sum(one.tokens for group in self._groups.values() for one in group)

    def add(self, one: Waiting[Work]) -> Waiting[Work]:
        """Let work into the queue, at the place that `place` has just given it; returns the one that it waits at."""
        if one.latest <= one.arrived + 2 * self._guard_s:  # let in against the estimate: only its deadline makes it late
            one = replace(one, latest=one.deadline)
        insort(self._groups.setdefault(one.key, []), one, key=_order)
        self._length += 1
        return one

    def place(
        self,
        work: Guest,
        *,
        key: Hashable,
        tokens: int = 1,
        width: int = 1,
        now: float = 0.0,
        deadline: float = _FOREVER,
        free_in_s: float = 0.0,
        workers: int = 1,
    ) -> Waiting[Guest]:
        """Where work would wait, if it were let in. free_in_s: until a worker is free, 0 if one is idle.

        Raises OverloadedError where the queue is full ("queue_full"), or where what is ahead of it would make it late
        ("deadline_unreachable"); when to come again follows from the same estimate. Who comes while nothing waits and a worker
        is idle is always let in, so that an estimate gone wrong mends itself.
        """
        alone = self._likely(BatchSize.of_one(tokens, width))
        one = Waiting(
            work=work,
            key=key,
            tokens=tokens,
            width=width,
            arrived=now,
            deadline=deadline,
            latest=deadline - alone,
            number=next(self._numbers),
        )
        if self._length >= self._max_queue:
            raise OverloadedError(
                f"{self._length:,} requests are waiting already, as many as may: try again later",
                reason="queue_full",
                retry_after_s=free_in_s + self._seconds_ahead(None) / workers,
            )
        is_alone = self._length == 0 and free_in_s <= 0
        if deadline < _FOREVER and alone > 0 and not is_alone:
            needed = self._needed(one, free_in_s, workers)
            if now + needed > deadline:
                raise OverloadedError(
                    f"an answer would take about {needed * 1e3:,.0f} ms with what is ahead of it, and the deadline is in "
                    f"{(deadline - now) * 1e3:,.0f} ms: try again later",
                    reason="deadline_unreachable",
                    retry_after_s=now + needed - deadline,
                )
        return one

    def remove(self, one: Waiting[Work]) -> bool:
        """Take one out, because nobody waits for it any more; False if it left already."""
        group = self._groups.get(one.key)
        if group is None:
            return False
        place = bisect_left(group, one.order, key=_order)
        if place == len(group) or group[place] is not one:
            return False
        del group[place]
        self._length -= 1
        if not group:
            del self._groups[one.key]
        return True

    def take(self, now: float, *, ending: bool = False) -> tuple[Batch[Work] | None, list[Work]]:
        """(the next batch if one is closed, work that can no longer be done in time): both leave the queue.

        ending: nothing more will come, so nothing is waited for.
        """
        late = self.shed(now)
        best: tuple[tuple[float, int], Hashable, Closed] | None = None
        for key, group in self._groups.items():
            order = group[0].order
            if (best is None or order < best[0]) and (closed := self._closed(group, now, ending)):
                best = (order, key, closed)
        if best is None:
            return None, late
        _, key, closed = best
        chosen, size, full = self._fill(self._groups[key], now)
        for one in chosen:
            self.remove(one)
        likely_s = self._likely(size)
        works = [one.work for one in chosen]
        return Batch(works=works, size=size, closed="full" if full else closed, likely_s=likely_s), late

    def shed(self, now: float) -> list[Work]:
        """Take out what can no longer be done in time, shortest slack first."""
        late: list[Waiting[Work]] = []
        for group in self._groups.values():
            for one in group:
                if one.latest > now:
                    break
                late.append(one)
        late.sort(key=_order)
        for one in late:
            self.remove(one)
        return [one.work for one in late]

    def closes_at(self, now: float) -> float:
        """When a batch closes if nothing happens before; `now` or earlier: one is closed; infinity: nothing waits."""
        times = [_FOREVER]
        for group in self._groups.values():
            if self._wait_s > 0 and self._fill(group, now)[2]:
                return now
            oldest = min(one.arrived for one in group)
            times.append(min(oldest + self._wait_s, group[0].latest - self._guard_s))
        return min(times)

    def late_at(self) -> float:
        """When the first of those who wait can no longer be in time."""
        return min((group[0].latest for group in self._groups.values()), default=_FOREVER)

    def clear(self) -> list[Work]:
        """Empty the queue and return what waited, shortest slack first."""
        waiting = sorted((one for group in self._groups.values() for one in group), key=_order)
        self._groups.clear()
        self._length = 0
        return [one.work for one in waiting]

    def _closed(self, queue: list[Waiting[Work]], now: float, ending: bool) -> Closed | None:
        if ending:
            return "ending"
        if now >= queue[0].latest - self._guard_s:
            return "slack"
        if self._wait_s <= 0:
            return "idle"
        if now >= min(one.arrived for one in queue) + self._wait_s:
            return "quota"
        return "full" if self._fill(queue, now)[2] else None

    def _fill(self, queue: list[Waiting[Work]], now: float) -> tuple[list[Waiting[Work]], BatchSize, bool]:
        """(the batch that the shortest slack leads, its size, whether it is full): those after it join where they fit."""
        first = queue[0]
        size = BatchSize.of_one(first.tokens, first.width)
        chosen, due, full = [first], first.deadline, False
        for one in queue[1:]:
            if len(chosen) >= self.capacity.requests:
                break
            grown = size.joined(one.tokens)
            if self.capacity.holds(grown):
                seconds = self._likely(grown)
                if seconds <= self._budget_s and now + seconds <= min(due, one.deadline):
                    chosen.append(one)
                    size, due = grown, min(due, one.deadline)
                    continue
            full = True
        return chosen, size, full or not self.capacity.holds(size.joined(1))

    def _needed(self, one: Waiting[Any], free_in_s: float, workers: int) -> float:
        """Seconds until an answer to `one`: what is ahead of it, spread over the workers, and the batch that it joins."""
        ahead = self._seconds_ahead(one)
        together = len(self._groups.get(one.key, ())) + 1
        own = self._pieces(together, one.tokens, one.width)[1]
        return free_in_s + ahead / workers + own

    def _seconds_ahead(self, one: Waiting[Any] | None) -> float:
        """Seconds of one worker for what waits with less slack than `one`, or for all that waits."""
        seconds = 0.0
        for group in self._groups.values():
            requests = len(group) if one is None else bisect_left(group, one.order, key=_order)
            if requests:
                tokens = sum(waiting.tokens for waiting in group[:requests])
                batches, each = self._pieces(requests, -(-tokens // requests), group[0].width)
                seconds += batches * each
        return seconds

    def _pieces(self, requests: int, tokens: int, width: int) -> tuple[float, float]:
        """(batches, seconds of each) for so many requests alike: a last one that is not full costs its part."""
        most = min(requests, self.capacity.most(tokens, width))
        if self._seconds_of(most, tokens, width) > self._budget_s:
            most = max(1, bisect_left(range(1, most), True, key=lambda n: self._seconds_of(n, tokens, width) > self._budget_s))
        return requests / most, self._seconds_of(most, tokens, width)

    def _seconds_of(self, requests: int, tokens: int, width: int) -> float:
        return self._likely(BatchSize.of_equal(requests, tokens, width))


def _order(one: Waiting[Work]) -> tuple[float, int]:
    return one.order


def _unknown(size: BatchSize) -> float:
    return 0.0
