"""Batches that took many times as long as most, kept with what tells why."""

import resource
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.decoder import BatchOutput

_RATIO = 5.0  # to the median
_MIN_BATCHES = 32  # before there is a median to speak of
_WINDOW, _EVERY = 512, 32  # batches of the median, and how often it is taken anew
_KEPT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadUse:
    """What the calling thread has used so far; zeros but for cpu_s where the system does not count by thread.

    cpu_s: seconds on a core. waits, preempted: times that it gave up its core, and that the system took it. faults: pages that
    were not in memory.
    """

    cpu_s: float
    waits: int = 0
    preempted: int = 0
    faults: int = 0

    @classmethod
    def now(cls) -> "ThreadUse":
        cpu_s = time.thread_time()
        if not hasattr(resource, "RUSAGE_THREAD"):  # elsewhere than on Linux
            return cls(cpu_s=cpu_s)
        use = resource.getrusage(resource.RUSAGE_THREAD)
        return cls(cpu_s=cpu_s, waits=use.ru_nvcsw, preempted=use.ru_nivcsw, faults=use.ru_majflt + use.ru_minflt)

    def since(self, before: "ThreadUse") -> "ThreadUse":
        """What was used in between."""
        return ThreadUse(
            cpu_s=self.cpu_s - before.cpu_s,
            waits=self.waits - before.waits,
            preempted=self.preempted - before.preempted,
            faults=self.faults - before.faults,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowBatch:
    """A batch that took more than five times the median of those before it.

    ended_at: seconds since 1970. seconds: from its start to its answers. median_s: of the batches before. prefill_s, rounds_s,
    constrain_s: of its stages, 0 for a batch that failed. use: of the worker's thread; products on several threads use more.
    """

    ended_at: float
    worker: int
    seconds: float
    median_s: float
    size: BatchSize
    prefill_s: float
    rounds_s: float
    constrain_s: float
    use: ThreadUse


class SlowBatches:
    """The last slow batches of an engine. Thread-safe. Cost: some microseconds a batch.

    on_slow: is told of each.
    """

    def __init__(self, on_slow: Callable[[SlowBatch], None] | None = None) -> None:
        self._lock, self._on_slow = threading.Lock(), on_slow
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._kept: deque[SlowBatch] = deque(maxlen=_KEPT)
        self._count, self._median_s = 0, 0.0

    @property
    def kept(self) -> tuple[SlowBatch, ...]:
        """The last 64, the oldest first."""
        with self._lock:
            return tuple(self._kept)

    def observe(self, worker: int, size: BatchSize, seconds: float, output: BatchOutput | None, use: ThreadUse) -> None:
        """Compare a batch with those before it, and keep it if it was slow. output: None if it failed."""
        with self._lock:
            median_s, slow = self._median_s, None
            if self._count >= _MIN_BATCHES and seconds > _RATIO * median_s:
                slow = SlowBatch(
                    ended_at=time.time(),
                    worker=worker,
                    seconds=seconds,
                    median_s=median_s,
                    size=size,
                    prefill_s=output.prefill_s if output else 0.0,
                    rounds_s=output.rounds_s if output else 0.0,
                    constrain_s=output.constrain_s if output else 0.0,
                    use=use,
                )
                self._kept.append(slow)
            self._seconds.append(seconds)
            self._count += 1
            if self._count % _EVERY == 0:
                self._median_s = statistics.median(self._seconds)
        if slow is not None and self._on_slow is not None:
            self._on_slow(slow)
