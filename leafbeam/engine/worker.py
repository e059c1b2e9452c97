"""A worker: one thread that runs batches one after the other and survives any error in one."""

import logging
import math
import resource
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.decoder import BatchAbandoned, BatchOutput, Decoder, is_device_lost, is_out_of_memory
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.scheduler import Scheduler
from leafbeam.errors import LogitsError, UnavailableError
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.openmp import Spread

_RATIO = 5.0  # to the median
_MIN_BATCHES = 32  # until enough batches have run for a stable median
_WINDOW, _EVERY = 512, 32  # batches of the median, and how often it is taken anew
_KEPT = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadUse:
    """The use that a thread has made of the machine so far. If the system does not count by thread, all but cpu_s are 0.

    Args:
        cpu_s: The seconds on a core.
        waits: The number of times that it gave up its core.
        preempted: The number of times that the system took its core.
        faults: The number of pages that were not in memory.
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
        """Return what was used in between."""
        return ThreadUse(
            cpu_s=self.cpu_s - before.cpu_s,
            waits=self.waits - before.waits,
            preempted=self.preempted - before.preempted,
            faults=self.faults - before.faults,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowBatch:
    """A batch that took more than five times the median of those before it.

    Args:
        ended_at: The seconds since 1970 at its end.
        worker: The number of its worker.
        seconds: The time from its start to its answers.
        median_s: The median of the batches before it.
        size: The size of the batch.
        prefill_s: The seconds of the prompts; 0 for a batch that failed.
        rounds_s: The seconds of the model's rounds; 0 for a batch that failed.
        constrain_s: The seconds of the constrained steps; 0 for a batch that failed.
        use: The use that the worker's thread made of the machine; products on several threads use more.
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

    on_slow: called with each of them.
    """

    def __init__(self, on_slow: Callable[[SlowBatch], None] | None = None) -> None:
        self._lock, self._on_slow = threading.Lock(), on_slow
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._kept: deque[SlowBatch] = deque(maxlen=_KEPT)
        self._count, self._median_s = 0, 0.0

    @property
    def kept(self) -> tuple[SlowBatch, ...]:
        """Return the last 64, the oldest first."""
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


log = logging.getLogger("leafbeam.engine")

_PAUSE_S = 1e-3  # without a batch: then a worker's threads sleep
_SPREAD_S = 0.05  # after a pause, for which they have cores of their own; under load the system places them better


class Worker(threading.Thread):
    """Takes batches from the scheduler, decodes them and delivers the output (the third tier of xGR, section 7).

    A request whose logits, prompt or filter fail its batch fails alone: the others run again without it. A batch that runs out
    of memory is retried once in two halves; a half that runs out again fails with UnavailableError. A batch whose requests were
    all cancelled ends before its next decode step.

    Args:
        number: The number of the worker.
        scheduler: Hands out batches, whose requests have the decoder for this worker. The thread ends once it has no more.
        deliver: Takes the requests and their output; it is called in this thread.
        clock: The time in seconds, monotonic.
        slow_batches: Observes every batch.
        threads: The number of threads of matrix products; None for torch's own.
    """

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        deliver: Callable[[Sequence[PendingRequest], BatchOutput], None],
        clock: Callable[[], float],
        *,
        slow_batches: SlowBatches,
        threads: int | None = None,
    ) -> None:
        super().__init__(name=f"leafbeam-worker-{number}", daemon=True)
        self._number, self._scheduler = number, scheduler
        self._deliver, self._counts, self._clock = deliver, scheduler.counts, clock
        self._slow_batches, self._threads = slow_batches, threads
        self._output: BatchOutput | None = None

    def run(self) -> None:
        with nullcontext() if self._threads is None else torch_threads(self._threads):
            self._run_batches()

    def _run_batches(self) -> None:
        spread, ended, paused = Spread(self._threads or 1), self._clock(), -math.inf
        while (batch := self._scheduler.next_batch(self._number)) is not None:
            started, before = self._clock(), ThreadUse.now()
            paused = started if started - ended > _PAUSE_S else paused
            succeeded, requests, self._output = False, (), None
            try:
                requests = [pending for pending in batch.requests if not pending.is_done]
                with spread if started - paused < _SPREAD_S else nullcontext():
                    succeeded = self._decode(requests) and len(requests) == len(batch.requests)
            finally:
                ended = self._clock()
                seconds, output, use = ended - started, self._output, ThreadUse.now().since(before)
                self._scheduler.batch_done(self._number, seconds if succeeded else None)
                self._slow_batches.observe(self._number, batch.size, seconds, output, use)
                batch, requests, output, self._output = None, (), None, None  # or they would be kept until the next batch

    def _decode(self, requests: Sequence[PendingRequest]) -> bool:
        """Complete every request with its result or an error; return whether no error occurred.

        If a batch fails, its other requests run again without the request at fault: the error names it, or halves of the batch
        narrow it down. Memory that runs out in a half runs out for good.
        """
        error = self._try(requests)
        if error is None:
            return bool(requests)
        failed = [(requests, error, True)]
        while failed:
            batch, error, is_whole = failed.pop()
            parts = self._without_fault(batch, error, is_whole)
            if not parts:
                self._fail(batch, error)
                continue
            self._counts.add("batch_faults", "split")
            log.warning("a batch of %d requests failed and is run again in parts: %s", len(batch), error)
            for part in parts:
                waiting = [pending for pending in part if not pending.is_done]
                if (error := self._try(waiting)) is not None:
                    failed.append((waiting, error, False))
        return False

    def _without_fault(
        self, requests: Sequence[PendingRequest], error: Exception, is_whole: bool
    ) -> Sequence[Sequence[PendingRequest]]:
        """Return the parts of a failed batch to run again, after failing the request that the error names; none to fail all."""
        if len(requests) == 1 or isinstance(error, BatchAbandoned) or is_device_lost(error):
            return []
        if is_out_of_memory(error) and not is_whole:
            return []
        if isinstance(error, LogitsError) and error.request is not None and error.request < len(requests):
            others = [*requests[: error.request], *requests[error.request + 1 :]]
            self._fail([requests[error.request]], error)
            return [others]
        middle = (len(requests) + 1) // 2
        return requests[:middle], requests[middle:]

    def _try(self, requests: Sequence[PendingRequest]) -> Exception | None:
        """Run one batch; an error is returned without its traceback, which would keep memory alive."""
        if not requests:
            return None
        decoder = cast("Decoder", requests[0].decoders[self._number])
        try:
            self._output = decoder.run(requests, partial(self._deliver, requests))
            self._deliver(requests, self._output)
        except BaseException as error:
            if is_out_of_memory(error):
                self._counts.add("batch_faults", "out_of_memory")
                decoder.release_memory()
            elif isinstance(error, BatchAbandoned):
                self._counts.add("batch_faults", "abandoned")
            elif is_device_lost(error):
                self._counts.add("batch_faults", "device_lost")
                self._scheduler.device_lost(error)
            else:
                self._counts.add("batch_faults", "error")
                log.exception("a batch of %d requests failed", len(requests))
            return error.with_traceback(None) if isinstance(error, Exception) else RuntimeError(f"a worker raised {error!r}")
        return None

    def _fail(self, requests: Sequence[PendingRequest], error: Exception) -> None:
        reason = "error"
        if is_out_of_memory(error):
            reason = "out_of_memory"
            log.error("a batch of %d requests ran out of memory: %s", len(requests), error)
            message = f"out of memory for a batch of {len(requests)} with this request: try again later"
            error = UnavailableError(message, reason=reason)
        elif is_device_lost(error):
            reason = "device_lost"
            error = self._scheduler.device_lost(error)
        elif isinstance(error, LogitsError) and error.request is not None:
            error = error.renamed("this request")
        for pending in requests:
            if pending.complete(error):
                self._counts.add("failed", reason)
