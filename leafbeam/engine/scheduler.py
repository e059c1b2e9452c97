"""The scheduler: who is let in, what runs next, what is given up, and whether the workers are well."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from leafbeam.engine.batcher import Batch, Batcher, Waiting
from leafbeam.engine.capacity import BatchSize
from leafbeam.engine.counts import Counts
from leafbeam.engine.latency_model import LatencyFit, LatencyModel
from leafbeam.engine.pending_request import Job, JobKey
from leafbeam.engine.settings import Settings
from leafbeam.errors import OverloadedError, UnavailableError

__all__ = ["Load", "Scheduler"]

log = logging.getLogger("leafbeam.engine")

State = Literal["new", "open", "draining", "closed"]
Guest = TypeVar("Guest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What waits and what runs at one moment. tokens: of prompts, padding included where they run."""

    waiting: int
    waiting_tokens: int
    running: int
    running_tokens: int
    running_beam_rows: int
    busy_workers: int


@dataclass(kw_only=True, slots=True)
class _Running:
    """A batch that a worker has. lost: the watchdog gave it up."""

    batch: Batch[Job]
    since: float
    lost: bool = False


class Scheduler:
    """The first of the three tiers (xGR, section 7): between those who submit and the workers.

    Think of it as the front desk: `add` takes a job or says why not, `next_batch` gives a worker what closes next and waits for
    it, `done` says that it ended. A thread of its own sleeps until somebody can no longer be in time, or a batch runs for too
    long, and tells those concerned; it costs nothing while nothing waits or runs.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float], counts: Counts) -> None:
        self._settings, self._clock, self._counts = settings, clock, counts
        self._step_time = LatencyModel()
        self._batcher: Batcher[Job] = Batcher(
            settings.capacity,
            max_queue=settings.max_queue,
            wait_s=settings.wait_s,
            budget_s=settings.batch_s,
            likely=self._step_time.likely if settings.predict else None,
        )
        self._lock = threading.RLock()  # guards all that follows, the batcher and the step time
        self._work = threading.Condition(self._lock)  # workers sleep on it
        self._watch = threading.Condition(self._lock)  # the watchdog sleeps on it
        self._due = float("inf")  # when the watchdog looks again by itself
        self._state: State = "new"
        self._running: dict[int, _Running] = {}
        self._watchdog = threading.Thread(target=self._watch_on, name="leafbeam-watchdog", daemon=True)

    def open(self) -> None:
        """Let requests in."""
        with self._lock:
            assert self._state == "new"
            self._state = "open"
        self._watchdog.start()

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def trouble(self) -> str | None:
        """Why requests should go elsewhere; None if they are welcome."""
        with self._lock:
            if self._state != "open":
                return {"new": "it was not started", "draining": "it is stopping", "closed": "it has stopped"}[self._state]
            now = self._clock()
            lost = [(now - one.since, worker) for worker, one in self._running.items() if one.lost]
        return f"worker {max(lost)[1]} has been in one batch for {max(lost)[0]:.1f} s" if lost else None

    @property
    def load(self) -> Load:
        with self._lock:
            sizes = [one.batch.size for one in self._running.values()]
            return Load(
                waiting=len(self._batcher),
                waiting_tokens=self._batcher.tokens,
                running=sum(size.requests for size in sizes),
                running_tokens=sum(size.padded_tokens for size in sizes),
                running_beam_rows=sum(size.beam_rows for size in sizes),
                busy_workers=len(sizes),
            )

    @property
    def fit(self) -> LatencyFit:
        """What is known of how long batches take."""
        with self._lock:
            return self._step_time.fit

    def observe(self, size: BatchSize, seconds: float) -> None:
        """A batch of this size took so long."""
        with self._lock:
            self._step_time.observe(size, seconds)

    def add(self, job: Job) -> None:
        """Queue a job. Raises OverloadedError, UnavailableError."""
        with self._lock:
            if self._state != "open":
                raise UnavailableError("the engine is not running, or stopping: it takes no requests now", reason="draining")
            if self._is_lost():
                raise self._wedged()
            now = self._clock()
            if job.deadline <= now:  # it was ahead when the request came: this took too long here
                message = "the deadline passed before the request could wait: try again later"
                raise OverloadedError(message, reason="deadline_unreachable", retry_after_s=self._free_in(now))
            waiting = self._batcher.add(self._place(job, job.key, job.tokens, job.deadline, now))
            self._work.notify()
            if waiting.latest < self._due:
                self._watch.notify()
        # Weakly, because a future keeps its callbacks: job, future and place would hold one another after the answer.
        place = weakref.ref(waiting)
        job.future.add_done_callback(lambda future: self._forget(place()) if future.cancelled() else None)

    @property
    def is_crowded(self) -> bool:
        """Somebody waits, or no worker is free; may be a moment old."""
        return len(self._batcher) > 0 or len(self._running) >= self._settings.workers

    def turned_away(self, key: JobKey, *, tokens: int, deadline: float) -> OverloadedError | None:
        """What `add` would raise now for want of time or room for a job of this size; None: nothing of that kind."""
        with self._lock:
            now = self._clock()
            if self._state != "open" or self._is_lost():
                return None
            try:
                self._place(None, key, tokens, deadline, now)
            except OverloadedError as error:
                return error
        return None

    def _place(self, work: Guest, key: JobKey, tokens: int, deadline: float, now: float) -> Waiting[Guest]:
        free_in_s, workers = self._free_in(now), self._settings.workers
        return self._batcher.place(
            work, key=key, tokens=tokens, width=key[0], now=now, deadline=deadline, free_in_s=free_in_s, workers=workers
        )

    def next_batch(self, worker: int) -> Batch[Job] | None:
        """What a worker runs next, as soon as there is something; None when there will be no more."""
        while True:
            with self._lock:
                now = self._clock()
                batch, late = self._batcher.take(now, ending=self._state != "open")
                if batch is not None:
                    self._running[worker] = _Running(batch=batch, since=now)
                    if now + self._settings.watchdog_s < self._due:
                        self._watch.notify()
                    if len(self._batcher):  # what one notification was for may be more than one batch
                        self._work.notify()
                elif not late:
                    if self._state != "open":
                        return None
                    closes_at = self._batcher.closes_at(now)
                    self._work.wait(None if closes_at == float("inf") else max(0.0, closes_at - now))
                    continue
            self._refuse_late(late)
            if batch is not None:
                self._counts.add("batches", batch.closed)
                return batch

    def done(self, worker: int, seconds: float | None) -> None:
        """A worker's batch ended. seconds: how long it took, where that says something about others."""
        with self._lock:
            ended = self._running.pop(worker)
            if seconds is not None and not ended.lost:
                self._step_time.observe(ended.batch.size, seconds)
        if ended.lost:
            log.warning("worker %d came back after %.1f s in one batch", worker, self._clock() - ended.since)

    def drain(self) -> None:
        """Let nobody in any more; what waits still runs."""
        with self._lock:
            if self._state in ("new", "open"):
                self._state = "draining"
            self._wake()

    def close(self) -> None:
        """Refuse whatever still waits or runs, and end the watchdog."""
        with self._lock:
            self._state = "closed"
            waiting = self._batcher.clear()
            running = [job for one in self._running.values() for job in one.batch.works]
            self._wake()
        message = "the engine stopped before this request's turn came"
        self._refuse(waiting, "draining", lambda: UnavailableError(message, reason="draining"))
        message = "the engine stopped before this request was answered"
        self._refuse(running, "draining", lambda: UnavailableError(message, reason="draining"))
        if self._watchdog.is_alive() and threading.current_thread() is not self._watchdog:
            self._watchdog.join(5)

    def _wake(self) -> None:
        self._work.notify_all()
        self._watch.notify_all()

    def _forget(self, waiting: Waiting[Job] | None) -> None:
        """A request was cancelled; None: after it had left the queue."""
        with self._lock:
            removed = waiting is not None and self._batcher.remove(waiting)
        self._counts.add("cancelled", "waiting" if removed else "running")

    def _free_in(self, now: float) -> float:
        """Seconds until a worker is free, as far as can be told."""
        if len(self._running) < self._settings.workers:
            return 0.0
        return max(0.0, min(one.since + one.batch.likely_s for one in self._running.values()) - now)

    def _is_lost(self) -> bool:
        """All workers hang."""
        return len(self._running) >= self._settings.workers and all(one.lost for one in self._running.values())

    def _wedged(self) -> UnavailableError:
        return UnavailableError(
            f"the device has not answered for more than {self._settings.watchdog_s:g} s: ask another server",
            reason="wedged",
            retry_after_s=self._settings.watchdog_s,
        )

    def _watch_on(self) -> None:
        while True:
            with self._lock:
                if self._state == "closed":
                    return
                now = self._clock()
                late = self._batcher.shed(now)
                lost = [
                    (worker, one)
                    for worker, one in self._running.items()
                    if not one.lost and one.since + self._settings.watchdog_s <= now
                ]
                for _, one in lost:
                    one.lost = True
                stranded = self._batcher.clear() if lost and self._is_lost() else []
                if not (late or lost):
                    times = [one.since + self._settings.watchdog_s for one in self._running.values() if not one.lost]
                    self._due = min([self._batcher.late_at(), *times])
                    self._watch.wait(None if self._due == float("inf") else max(0.0, self._due - now))
                    self._due = float("inf")
                    continue
            self._refuse_late(late)
            for worker, one in lost:
                self._counts.add("batch_faults", "wedged")
                log.error(
                    "worker %d has been in one batch of %d requests for more than %g s: they are refused, and the engine is "
                    "not ready until it comes back",
                    worker,
                    len(one.batch.works),
                    self._settings.watchdog_s,
                )
                self._refuse(one.batch.works, "wedged", self._wedged)
            self._refuse(stranded, "wedged", self._wedged)

    def _refuse_late(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            allowed_s = job.deadline - job.submitted
            message = f"no turn within {allowed_s:g} s, its deadline: the server has more requests than it can answer"
            self._refuse([job], "late", lambda: OverloadedError(message, reason="late"))  # noqa: B023

    def _refuse(self, jobs: Iterable[Job], reason: str, error: Callable[[], Exception]) -> None:
        for job in jobs:
            if job.fail(error()):
                self._counts.add("shed", reason)
