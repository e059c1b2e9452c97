"""The queue: which requests run next in one batch, and which are rejected. Pure: the time is an argument, nothing blocks."""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Generic, Literal, TypeVar

from leafbeam.errors import OverloadedError, counted


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """A batch in numbers: requests, prompt tokens in total, tokens of the longest prompt, beams of all requests together."""

    requests: int
    tokens: int
    longest: int
    beam_rows: int

    @classmethod
    def of(cls, requests: int, tokens: int, num_beams: int) -> "BatchSize":
        """Return a batch of `requests` prompts with `tokens` tokens and `num_beams` beams each."""
        return cls(requests=requests, tokens=requests * tokens, longest=tokens, beam_rows=requests * num_beams)

    @property
    def padded_tokens(self) -> int:
        """Prompt tokens when every prompt is padded to the longest."""
        return self.requests * self.longest

    def with_request(self, tokens: int, num_beams: int) -> "BatchSize":
        """Return the size after adding one request."""
        return BatchSize(
            requests=self.requests + 1,
            tokens=self.tokens + tokens,
            longest=max(self.longest, tokens),
            beam_rows=self.beam_rows + num_beams,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """Upper bounds of a batch. Its memory is about (tokens + beam_rows x levels) x bytes of one key and value.

    Args:
        requests: The largest number of requests.
        tokens: The largest number of prompt tokens, all prompts padded to the longest.
        beam_rows: The largest number of requests times beams.
    """

    requests: int = 16
    tokens: int = 32_768
    beam_rows: int = 8_192

    def holds(self, size: BatchSize) -> bool:
        """Return whether a batch of this size is within the bounds."""
        return size.requests <= self.requests and size.padded_tokens <= self.tokens and size.beam_rows <= self.beam_rows

    def max_requests(self, tokens: int, num_beams: int) -> int:
        """Return how many requests of equal size fit into one batch; at least 1."""
        return max(1, min(self.requests, self.tokens // max(1, tokens), self.beam_rows // max(1, num_beams)))


RequestT = TypeVar("RequestT")
CloseReason = Literal["full", "quota", "slack", "idle", "ending"]
_order = attrgetter("order")


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSize:
    """All that the queue knows of a request. Requests with equal keys may share a batch. Times in seconds of one clock.

    tokens: those of the prompt, or its items for a model that reads one vector an item (`SidModel.prompt_positions`).
    """

    key: Hashable
    tokens: int = 1
    num_beams: int = 1
    arrived: float = 0.0
    deadline: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class QueueEntry(Generic[RequestT]):
    """A queued request. order: when it must start to meet its deadline, then its number: least slack first, then first come."""

    request: RequestT
    size: RequestSize
    order: tuple[float, int]

    @property
    def latest(self) -> float:
        return self.order[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Generic[RequestT]):
    """Requests that run together. closed: why the batch was closed. p95_s: predicted seconds, 95th percentile."""

    requests: list[RequestT]
    size: BatchSize
    closed: CloseReason
    p95_s: float


class Batcher(Generic[RequestT]):
    """A bounded queue that hands out batches of requests with equal keys, least slack first (xGR, section 7).

    A batch closes when it is full, when its oldest request has waited `wait_s`, or when its slack runs out. Requests that
    cannot meet their deadline are rejected by `admit`, or dropped from the queue as soon as that is clear. The request with
    the least slack decides which key runs next, so no key starves.

    capacity: of one batch. max_queue: requests that may wait. wait_s: maximum batching delay while a worker is idle.
    guard_s: how long before `latest` a batch closes. max_batch_s: predicted duration that a batch of several requests may
    have. p95: predicted seconds of a batch, 0 while unknown (see `LatencyModel.p95`).
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        max_queue: int,
        wait_s: float = 0.0,
        guard_s: float = 0.002,
        max_batch_s: float = math.inf,
        p95: Callable[[BatchSize], float] = lambda size: 0.0,
    ) -> None:
        self.capacity = capacity
        self._max_queue, self._wait_s, self._guard_s, self._max_batch_s = max_queue, wait_s, guard_s, max_batch_s
        self._p95 = p95
        self._groups: dict[Hashable, list[QueueEntry[RequestT]]] = {}  # by key, least slack first
        self._tokens: Counter[Hashable] = Counter()  # of each group
        self._beams: Counter[Hashable] = Counter()
        self._numbers = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> int:
        """Prompt tokens of all queued requests."""
        return self._tokens.total()

    def admit(self, size: RequestSize, now: float, *, free_in_s: float = 0.0, workers: int = 1) -> None:
        """Raise OverloadedError if a request must be rejected. free_in_s: seconds until a worker is free, 0 if one is idle.

        The reason is "queue_full", or "deadline_unreachable" where the requests ahead of it would make it late; the same
        estimate gives `retry_after_s`. While nothing is queued and a worker is idle every request is admitted, so that the
        latency model recovers from bad estimates.
        """
        if self._length >= self._max_queue:
            raise OverloadedError(
                f"the queue is full with {counted(self._length, 'request')}: try again later",
                reason="queue_full",
                retry_after_s=free_in_s + self._seconds_ahead(None) / workers,
            )
        own_s = self._p95(BatchSize.of(1, size.tokens, size.num_beams))
        if size.deadline == math.inf or own_s <= 0 or (self._length == 0 and free_in_s <= 0):
            return
        # Until a worker is free, the batches ahead spread over the workers, and the batch that this request would join.
        ahead_s = self._seconds_ahead((size.deadline - own_s, math.inf)) / workers
        together = len(self._groups.get(size.key, ())) + 1
        seconds = free_in_s + ahead_s + self._split(together, size.tokens, size.num_beams)[1]
        if now + seconds > size.deadline:
            raise OverloadedError(
                f"an answer would take about {seconds * 1e3:,.0f} ms with the requests ahead of it, and the deadline is in "
                f"{(size.deadline - now) * 1e3:,.0f} ms: try again later",
                reason="deadline_unreachable",
                retry_after_s=now + seconds - size.deadline,
            )

    def enqueue(self, request: RequestT, size: RequestSize) -> QueueEntry[RequestT]:
        """Queue a request that `admit` has accepted."""
        latest = size.deadline - self._p95(BatchSize.of(1, size.tokens, size.num_beams))
        if latest <= size.arrived + 2 * self._guard_s:  # admitted against the estimate: only its deadline makes it late
            latest = size.deadline
        entry = QueueEntry(request=request, size=size, order=(latest, next(self._numbers)))
        insort(self._groups.setdefault(size.key, []), entry, key=_order)
        self._tokens[size.key] += size.tokens
        self._beams[size.key] += size.num_beams
        self._length += 1
        return entry

    def remove(self, entry: QueueEntry[RequestT]) -> bool:
        """Take a request out of the queue; False if it left already."""
        group = self._groups.get(entry.size.key, [])
        index = bisect_left(group, entry.order, key=_order)
        if index == len(group) or group[index] is not entry:
            return False
        del group[index]
        self._tokens[entry.size.key] -= entry.size.tokens
        self._beams[entry.size.key] -= entry.size.num_beams
        self._length -= 1
        if not group:
            del self._groups[entry.size.key], self._tokens[entry.size.key], self._beams[entry.size.key]
        return True

    def next_batch(self, now: float, *, ending: bool = False) -> tuple[Batch[RequestT] | None, list[RequestT]]:
        """Return (the next batch if one is closed, expired requests); both leave the queue. ending: close without delay."""
        expired = self.drop_expired(now)
        for group in sorted(self._groups.values(), key=lambda group: group[0].order):
            if closed := self._closed(group, now, ending):
                entries, size, full = self._fill(group, now)
                for entry in entries:
                    self.remove(entry)
                requests = [entry.request for entry in entries]
                return Batch(requests=requests, size=size, closed="full" if full else closed, p95_s=self._p95(size)), expired
        return None, expired

    def drop_expired(self, now: float) -> list[RequestT]:
        """Remove requests that can no longer meet their deadline, least slack first."""
        due = (now, math.inf)
        expired = [entry for group in self._groups.values() for entry in group[: bisect_left(group, due, key=_order)]]
        expired.sort(key=_order)
        for entry in expired:
            self.remove(entry)
        return [entry.request for entry in expired]

    def closes_at(self, now: float) -> float:
        """Return when the next batch closes: inf if the queue is empty, `now` or earlier if one is closed already."""
        times = [math.inf]
        for group in self._groups.values():
            entries, size, full = self._fill(group, now)
            if self._wait_s > 0 and full:
                return now
            oldest = min(entry.size.arrived for entry in group)
            times.append(min(oldest + self._wait_s, self._latest_start(entries, size) - self._guard_s))
        return min(times)

    def expires_at(self) -> float:
        """Return when the first queued request can no longer meet its deadline."""
        return min((group[0].latest for group in self._groups.values()), default=math.inf)

    def clear(self) -> list[RequestT]:
        """Empty the queue and return its requests, least slack first."""
        entries = sorted((entry for group in self._groups.values() for entry in group), key=_order)
        self._groups.clear()
        self._tokens.clear()
        self._beams.clear()
        self._length = 0
        return [entry.request for entry in entries]

    def _closed(self, group: list[QueueEntry[RequestT]], now: float, ending: bool) -> CloseReason | None:
        if ending:
            return "ending"
        if self._wait_s <= 0:
            return "slack" if now >= group[0].latest - self._guard_s else "idle"
        entries, size, full = self._fill(group, now)
        if now >= self._latest_start(entries, size) - self._guard_s:
            return "slack"
        if now >= min(entry.size.arrived for entry in group) + self._wait_s:
            return "quota"
        return "full" if full else None

    def _latest_start(self, entries: list[QueueEntry[RequestT]], size: BatchSize) -> float:
        """Return when a batch must start so that none of its requests is late."""
        together = min(entry.size.deadline for entry in entries) - self._p95(size)
        return min(entries[0].latest, together) if len(entries) > 1 else entries[0].latest

    def _fill(self, group: list[QueueEntry[RequestT]], now: float) -> tuple[list[QueueEntry[RequestT]], BatchSize, bool]:
        """Return (the batch led by the request with the least slack, its size, whether it is full)."""
        first = group[0].size
        size = BatchSize.of(1, first.tokens, first.num_beams)
        entries, due, full = [group[0]], first.deadline, False
        for entry in group[1:]:
            if len(entries) >= self.capacity.requests:
                break
            grown = size.with_request(entry.size.tokens, entry.size.num_beams)
            if self.capacity.holds(grown):
                seconds = self._p95(grown)
                if seconds <= self._max_batch_s and now + seconds <= min(due, entry.size.deadline):
                    entries.append(entry)
                    size, due = grown, min(due, entry.size.deadline)
                    continue
            full = True
            if self._p95(size.with_request(1, 1)) > min(self._max_batch_s, due - now):
                break  # no smaller request fits either
        return entries, size, full or not self.capacity.holds(size.with_request(1, first.num_beams))

    def _seconds_ahead(self, order: tuple[float, float] | None) -> float:
        """Return the seconds of one worker for the queued requests before `order`, or for all of them."""
        seconds = 0.0
        for key, group in self._groups.items():
            requests = len(group) if order is None else bisect_left(group, order, key=_order)
            if requests:
                tokens, beams = self._tokens[key], self._beams[key]
                if requests < len(group):
                    tokens = sum(entry.size.tokens for entry in group[:requests])
                    beams = sum(entry.size.num_beams for entry in group[:requests])
                batches, each = self._split(requests, -(-tokens // requests), -(-beams // requests))
                seconds += batches * each
        return seconds

    def _split(self, requests: int, tokens: int, num_beams: int) -> tuple[float, float]:
        """Return (batches, seconds of each) for requests of equal size; a last batch that is not full counts in part."""

        def seconds(requests: int) -> float:
            return self._p95(BatchSize.of(requests, tokens, num_beams))

        each = min(requests, self.capacity.max_requests(tokens, num_beams))
        each_s = seconds(each)
        if each_s > self._max_batch_s:
            each = max(1, bisect_left(range(1, each), True, key=lambda n: seconds(n) > self._max_batch_s))
            each_s = seconds(each)
        return requests / each, each_s
