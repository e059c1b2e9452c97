"""The engine's queue, admission and latency model under clients in simulated time: events in order, nothing waits.

    arrival    the balancer names a replica; its batcher admits and queues the request, or refuses it
    refusal    the client comes back after `retry_after_s` and a random pause, a few times at most, then gives up
    batch end  requests before their deadline are answered; the latency model learns; the next batch starts
    expiry     requests that can no longer be answered in time are dropped, and retried like a refusal
    leaving    a client that has no patience cancels, in the queue or while its batch runs

`Batcher` and `LatencyModel` are the engine's own. The time of a batch is the cost model's, times a random factor that the
latency model does not know, with rare stalls.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

from leafbeam.engine.batcher import Batch, Batcher, BatchSize, QueueEntry, RequestSize
from leafbeam.engine.latency_model import LatencyModel
from leafbeam.engine.settings import Settings
from leafbeam.errors import OverloadedError

__all__ = ["Balancer", "Clients", "Outcome", "simulate"]

Balancer = Literal["random", "two choices"]
_STALL, _STALL_TIMES = 1e-3, 5.0  # share of batches that stall, and how many times as long they take


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """Who asks. widths: beams and their share. tokens: the shortest and longest prompt, log-uniform.

    retries: at most so many after a refusal, each with probability `retry`. impatient: the share that leaves after half the
    objective.
    """

    widths: tuple[tuple[int, float], ...] = ((20, 0.7), (128, 0.25), (512, 0.05))
    tokens: tuple[int, int] = (30, 1_000)
    retries: int = 2
    retry: float = 0.7
    impatient: float = 0.01


@dataclass(kw_only=True, eq=False)
class Outcome:
    """What became of the requests first sent while `is_counted`. Latencies: seconds from the try that was answered."""

    seconds: float = 0.0  # that were counted
    offered: Counter[int] = field(default_factory=Counter[int])  # by beams
    in_time: Counter[int] = field(default_factory=Counter[int])
    refused: Counter[str] = field(default_factory=Counter[str])  # tries, by reason
    latencies: list[float] = field(default_factory=list[float])
    left: Counter[int] = field(default_factory=Counter[int])
    late: int = 0
    gave_up: int = 0

    @property
    def goodput(self) -> float:
        """Requests answered in time, a second."""
        return self.in_time.total() / self.seconds

    def latency(self, share: float) -> float:
        """A quantile of the latencies of answers."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


@dataclass(eq=False, slots=True)
class _Ask:
    tokens: int
    num_beams: int
    first_sent: float
    counted: bool
    tries: int = 0
    entry: "QueueEntry[_Ask] | None" = None
    replica: "_Replica | None" = None
    is_over: bool = False


class _Replica:
    def __init__(self, settings: Settings) -> None:
        self.latency = LatencyModel()
        self.batcher: Batcher[_Ask] = Batcher(
            settings.capacity, max_queue=settings.max_queue, max_batch_s=settings.max_batch_s, p95=self.latency.p95
        )
        self.running: Batch[_Ask] | None = None
        self.free_at = 0.0  # by the prediction

    @property
    def waiting(self) -> int:
        return len(self.batcher) + (0 if self.running is None else len(self.running.requests))


def simulate(
    windows: Iterator[tuple[float, float, bool]],
    settings: Settings,
    batch_seconds: Callable[[BatchSize], float],
    *,
    clients: Clients,
    replicas: int = 1,
    balancer: Balancer = "two choices",
    seed: int = 0,
) -> Outcome:
    """Run windows of (seconds, requests a second, whether they are counted), one after the other."""
    return _Simulation(settings, batch_seconds, clients, replicas, balancer, seed).run(windows)


class _Simulation:
    def __init__(
        self,
        settings: Settings,
        batch_seconds: Callable[[BatchSize], float],
        clients: Clients,
        replicas: int,
        balancer: Balancer,
        seed: int,
    ) -> None:
        assert settings.slo_s is not None
        self._slo_s, self._batch_seconds, self._clients = settings.slo_s, batch_seconds, clients
        self._replicas = [_Replica(settings) for _ in range(replicas)]
        self._balancer, self._random, self._outcome = balancer, Random(seed), Outcome()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    def run(self, windows: Iterator[tuple[float, float, bool]]) -> Outcome:
        began = 0.0
        for seconds, rate, counted in windows:
            now = began
            while (now := now + self._random.expovariate(rate)) < began + seconds:
                self._until(now)
                self._send(now, self._new(now, counted))
            began += seconds
            self._until(began)
            self._outcome.seconds += seconds if counted else 0.0
        self._until(math.inf)
        return self._outcome

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            now, _, event = heapq.heappop(self._events)
            event(now)

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _new(self, now: float, counted: bool) -> _Ask:
        random, clients = self._random, self._clients
        (num_beams,) = random.choices([w for w, _ in clients.widths], [share for _, share in clients.widths])
        shortest, longest = clients.tokens
        ask = _Ask(round(shortest * (longest / shortest) ** random.random()), num_beams, now, counted)
        if counted:
            self._outcome.offered[num_beams] += 1
        if random.random() < clients.impatient:
            self._at(now + self._slo_s / 2, lambda now: self._leave(ask))
        return ask

    def _send(self, now: float, ask: _Ask) -> None:
        if ask.is_over:
            return
        ask.tries += 1
        replica = ask.replica = self._chosen()
        size = RequestSize(
            key=ask.num_beams, tokens=ask.tokens, num_beams=ask.num_beams, arrived=now, deadline=now + self._slo_s
        )
        free_in_s = 0.0 if replica.running is None else max(0.0, replica.free_at - now)
        try:
            replica.batcher.admit(size, now, free_in_s=free_in_s)
        except OverloadedError as error:
            self._refused(now, ask, error.reason or "", error.retry_after_s or 0.0)
            return
        ask.entry = replica.batcher.enqueue(ask, size)
        self._at(ask.entry.latest, lambda now: self._expire(now, replica))
        self._start(now, replica)

    def _chosen(self) -> _Replica:
        if self._balancer == "random" or len(self._replicas) == 1:
            return self._random.choice(self._replicas)
        return min(self._random.sample(self._replicas, 2), key=lambda replica: replica.waiting)

    def _start(self, now: float, replica: _Replica) -> None:
        """Run the next batch of a replica that is idle."""
        if replica.running is not None:
            return
        batch, expired = replica.batcher.next_batch(now)
        for ask in expired:
            self._refused(now, ask, "late", 0.0)
        if batch is not None:
            stalls = _STALL_TIMES if self._random.random() < _STALL else 1.0
            seconds = self._batch_seconds(batch.size) * self._random.lognormvariate(0.0, 0.05) * stalls
            replica.running, replica.free_at = batch, now + batch.p95_s
            self._at(now + seconds, lambda now: self._end(now, replica, seconds))

    def _end(self, now: float, replica: _Replica, seconds: float) -> None:
        batch, replica.running = replica.running, None
        assert batch is not None
        replica.latency.observe(batch.size, seconds)
        for ask in batch.requests:
            if ask.is_over:
                continue
            ask.is_over = True
            assert ask.entry is not None
            if ask.counted:
                self._outcome.latencies.append(now - ask.entry.size.arrived)
                if now <= ask.entry.size.deadline:
                    self._outcome.in_time[ask.num_beams] += 1
                else:
                    self._outcome.late += 1
        self._start(now, replica)

    def _expire(self, now: float, replica: _Replica) -> None:
        for ask in replica.batcher.drop_expired(now):
            self._refused(now, ask, "late", 0.0)

    def _refused(self, now: float, ask: _Ask, reason: str, retry_after_s: float) -> None:
        if ask.counted:
            self._outcome.refused[reason] += 1
        if ask.tries > self._clients.retries or self._random.random() >= self._clients.retry:
            ask.is_over = True
            self._outcome.gave_up += ask.counted
            return
        pause = max(retry_after_s, 0.05) * self._random.uniform(1.0, 3.0) * 2 ** (ask.tries - 1)
        self._at(now + pause, lambda now: self._send(now, ask))

    def _leave(self, ask: _Ask) -> None:
        if not ask.is_over:
            ask.is_over = True
            self._outcome.left[ask.num_beams] += ask.counted
            if ask.replica is not None and ask.entry is not None:
                ask.replica.batcher.remove(ask.entry)
