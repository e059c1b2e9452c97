"""The scheduler: admits requests, closes batches for the workers, drops late requests and watches for hung workers."""

import logging
import math
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from leafbeam.engine.batcher import Batch, Batcher, BatchSize, QueueEntry, RequestSize
from leafbeam.engine.counts import Counts
from leafbeam.engine.latency_model import LatencyFit, LatencyModel
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.settings import Settings
from leafbeam.errors import OverloadedError, UnavailableError

log = logging.getLogger("leafbeam.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests that are queued and running at one moment. running_tokens: prompt tokens with padding."""

    waiting: int
    waiting_tokens: int
    running: int
    running_tokens: int
    running_beam_rows: int
    busy_workers: int


@dataclass(kw_only=True, slots=True)
class _Running:
    """The batch of a worker. hung: it has run for longer than `watchdog_s`."""

    batch: Batch[PendingRequest]
    since: float
    hung: bool = False


class Scheduler:
    """Between the threads that submit and the workers (the first tier of xGR, section 7).

    `enqueue` admits a request or raises, `next_batch` blocks until a batch closes, `batch_done` reports its end. A watchdog
    thread rejects queued requests when they can no longer meet their deadline, and the requests of a batch that hangs.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], counts: Counts) -> None:
        self._settings, self._clock, self.counts = settings, clock, counts
        self._latency = LatencyModel()
        self._batcher: Batcher[PendingRequest] = Batcher(
            settings.capacity,
            max_queue=settings.max_queue,
            wait_s=settings.wait_s,
            max_batch_s=settings.max_batch_s,
            p95=self._latency.p95 if settings.predict else lambda size: 0.0,
        )
        self._lock = threading.RLock()  # guards everything below, the batcher and the latency model
        self._work = threading.Condition(self._lock)  # wakes workers
        self._watch = threading.Condition(self._lock)  # wakes the watchdog
        self._watchdog_wakes = math.inf
        self._state: Literal["new", "open", "draining", "closed"] = "new"
        self._running: dict[int, _Running] = {}
        self._device_error: str | None = None
        self._is_paused = False
        self._watchdog = threading.Thread(target=self._run_watchdog, name="leafbeam-watchdog", daemon=True)

    def open(self) -> None:
        """Begin to admit requests."""
        with self._lock:
            assert self._state == "new"
            self._state = "open"
        self._watchdog.start()

    @property
    def is_open(self) -> bool:
        """Return whether requests are admitted."""
        return self._state == "open"

    @property
    def unhealthy_reason(self) -> str | None:
        """Return why requests should go to another server; None while healthy."""
        with self._lock:
            if self._state != "open":
                return {"new": "it was not started", "draining": "it is stopping", "closed": "it has stopped"}[self._state]
            if self._device_error is not None:
                return f"the device is lost, restart the server: {self._device_error}"
            now = self._clock()
            hung = [(now - running.since, worker) for worker, running in self._running.items() if running.hung]
        return f"worker {max(hung)[1]} has been in one batch for {max(hung)[0]:.1f} s" if hung else None

    @property
    def load(self) -> Load:
        """Return what is queued and running now."""
        with self._lock:
            sizes = [running.batch.size for running in self._running.values()]
            return Load(
                waiting=len(self._batcher),
                waiting_tokens=self._batcher.tokens,
                running=sum(size.requests for size in sizes),
                running_tokens=sum(size.padded_tokens for size in sizes),
                running_beam_rows=sum(size.beam_rows for size in sizes),
                busy_workers=len(sizes),
            )

    @property
    def latency_fit(self) -> LatencyFit:
        """Return the state of the latency model."""
        with self._lock:
            return self._latency.fit

    def observe(self, size: BatchSize, seconds: float) -> None:
        """Teach the latency model how long a batch took."""
        with self._lock:
            self._latency.observe(size, seconds)

    @property
    def is_saturated(self) -> bool:
        """Return whether requests are queued or no worker is idle; read without the lock."""
        return len(self._batcher) > 0 or len(self._running) >= self._settings.workers

    def check_admission(self, size: RequestSize) -> None:
        """Raise what `enqueue` would raise for a request of this size. Cost: some 10 microseconds."""
        with self._lock:
            if self._state != "open":
                raise UnavailableError("the engine is not running, or stopping: it accepts no requests now", reason="draining")
            if self._all_hung():
                raise self._hung_error()
            if self._device_error is not None:
                raise self._lost_error()
            now = self._clock()
            free_in_s = self._seconds_until_free(now)
            if size.deadline <= now:
                message = "the deadline passed before the request was queued: try again later"
                raise OverloadedError(message, reason="deadline_unreachable", retry_after_s=free_in_s)
            self._batcher.admit(size, now, free_in_s=free_in_s, workers=self._settings.workers)

    def enqueue(self, pending: PendingRequest) -> None:
        """Queue a request. Raises OverloadedError, UnavailableError."""
        with self._lock:
            self.check_admission(pending.size)
            entry = self._batcher.enqueue(pending, pending.size)
            self._work.notify()
            if entry.latest < self._watchdog_wakes:
                self._watch.notify()
        # A future keeps its callbacks: a strong reference would tie request, future and entry into a cycle.
        entry_ref = weakref.ref(entry)
        pending.future.add_done_callback(lambda future: self._cancelled(entry_ref()) if future.cancelled() else None)

    def next_batch(self, worker: int) -> Batch[PendingRequest] | None:
        """Block until a batch closes; None once there will be no more."""
        while True:
            with self._lock:
                if self._is_paused and self._state == "open":
                    self._work.wait()
                    continue
                now = self._clock()
                batch, expired = self._batcher.next_batch(now, ending=self._state != "open")
                if batch is not None:
                    self._running[worker] = _Running(batch=batch, since=now)
                    if now + self._settings.watchdog_s < self._watchdog_wakes:
                        self._watch.notify()
                    if len(self._batcher):  # one notification may stand for several batches
                        self._work.notify()
                elif not expired:
                    if self._state != "open":
                        return None
                    closes_at = self._batcher.closes_at(now)
                    self._work.wait(None if closes_at == math.inf else max(0.0, closes_at - now))
                    continue
            self._fail_expired(expired)
            if batch is not None:
                self.counts.add("batches", batch.closed)
                return batch

    @contextmanager
    def paused(self) -> Generator[None]:
        """Hand out no batch while open, which is once those that run have ended. Requests wait, until they are late."""
        with self._lock:
            self._is_paused = True
            self._work.wait_for(lambda: not self._running or self._state == "closed")
        try:
            yield
        finally:
            with self._lock:
                self._is_paused = False
                self._work.notify_all()

    def batch_done(self, worker: int, seconds: float | None) -> None:
        """Record the end of a worker's batch. seconds: its duration; None if it does not measure the machine."""
        with self._lock:
            ended = self._running.pop(worker)
            if self._is_paused:
                self._work.notify_all()
            if seconds is not None and not ended.hung:
                self._latency.observe(ended.batch.size, seconds)
        if ended.hung:
            log.warning("worker %d came back after %.1f s in one batch", worker, self._clock() - ended.since)

    def device_lost(self, error: BaseException) -> UnavailableError:
        """Admit no more requests, because the device failed for good; return the error of those that were on it."""
        with self._lock:
            if self._device_error is None:
                self._device_error = str(error).partition("\n")[0]
                log.error("the device is lost, and requests get 503 until the server is restarted: %s", self._device_error)
            return self._lost_error()

    def drain(self) -> None:
        """Admit no more requests; queued ones still run."""
        with self._lock:
            if self._state in ("new", "open"):
                self._state = "draining"
            self._wake_all()

    def close(self) -> None:
        """Fail all queued and running requests, and end the watchdog."""
        with self._lock:
            self._state = "closed"
            waiting = self._batcher.clear()
            running = [pending for running in self._running.values() for pending in running.batch.requests]
            self._wake_all()
        message = "the engine stopped before this request was answered"
        self._fail([*waiting, *running], "draining", lambda: UnavailableError(message, reason="draining"))
        if self._watchdog.is_alive() and threading.current_thread() is not self._watchdog:
            self._watchdog.join(5)

    def _wake_all(self) -> None:
        self._work.notify_all()
        self._watch.notify_all()

    def _cancelled(self, entry: QueueEntry[PendingRequest] | None) -> None:
        """Count a cancelled request, and drop it from the queue. entry: None if it had left the queue."""
        with self._lock:
            was_waiting = entry is not None and self._batcher.remove(entry)
        self.counts.add("cancelled", "waiting" if was_waiting else "running")

    def _seconds_until_free(self, now: float) -> float:
        """Return the predicted seconds until a worker is idle."""
        if len(self._running) < self._settings.workers:
            return 0.0
        return max(0.0, min(running.since + running.batch.p95_s for running in self._running.values()) - now)

    def _all_hung(self) -> bool:
        return len(self._running) >= self._settings.workers and all(running.hung for running in self._running.values())

    def _hung_error(self) -> UnavailableError:
        return UnavailableError(
            f"the device has not answered for more than {self._settings.watchdog_s:g} s: try another server",
            reason="wedged",
            retry_after_s=self._settings.watchdog_s,
        )

    def _lost_error(self) -> UnavailableError:
        return UnavailableError(f"the device is lost: {self._device_error}; try another server", reason="device_lost")

    def _run_watchdog(self) -> None:
        while True:
            with self._lock:
                if self._state == "closed":
                    return
                now = self._clock()
                expired = self._batcher.drop_expired(now)
                limits = {
                    worker: running.since + self._settings.watchdog_s
                    for worker, running in self._running.items()
                    if not running.hung
                }
                hung = {worker: self._running[worker].batch.requests for worker, limit in limits.items() if limit <= now}
                for worker in hung:
                    self._running[worker].hung = True
                stranded = self._batcher.clear() if hung and self._all_hung() else []
                if not (expired or hung):
                    self._watchdog_wakes = min([self._batcher.expires_at(), *limits.values()])
                    self._watch.wait(None if self._watchdog_wakes == math.inf else max(0.0, self._watchdog_wakes - now))
                    self._watchdog_wakes = math.inf
                    continue
            self._fail_expired(expired)
            for worker, requests in hung.items():
                self.counts.add("batch_faults", "wedged")
                log.error(
                    "worker %d has been in one batch of %d requests for more than %g s: they fail, and the engine is not ready "
                    "until the worker returns",
                    worker,
                    len(requests),
                    self._settings.watchdog_s,
                )
                self._fail(requests, "wedged", self._hung_error)
            self._fail(stranded, "wedged", self._hung_error)

    def _fail_expired(self, requests: Sequence[PendingRequest]) -> None:
        is_alone = len(requests) == 1 and not self._running and not len(self._batcher)
        for pending in requests:
            size = pending.size
            allowed_s, own_s = size.deadline - size.arrived, self._latency.p95(BatchSize.of(1, size.tokens, size.num_beams))
            takes = f"a batch takes about {1e3 * own_s:,.3g} ms" if own_s else "a batch takes longer"
            why = f"{takes}: allow more" if is_alone else "the server has more requests than it can answer"
            message = f"the request was not started within its deadline of {allowed_s:g} s: {why}"
            self._fail([pending], "late", lambda message=message: OverloadedError(message, reason="late"))

    def _fail(self, requests: Iterable[PendingRequest], reason: str, error: Callable[[], Exception]) -> None:
        for pending in requests:
            if pending.complete(error()):
                self.counts.add("shed", reason)
