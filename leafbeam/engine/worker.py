"""A worker: one thread that runs one batch after the other, and outlives whatever goes wrong in one."""

import logging
import threading
from collections.abc import Callable, Sequence

from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import Abandoned, Decoder, Found, is_out_of_memory
from leafbeam.engine.pending_request import Job
from leafbeam.engine.scheduler import Scheduler
from leafbeam.errors import UnavailableError

__all__ = ["Worker"]

log = logging.getLogger("leafbeam.engine")


class Worker:
    """The third of the three tiers (xGR, section 7): takes batches from the scheduler, decodes them, hands on what was found.

    A batch that raises fails its own requests, with that error, and no others. One that runs out of memory is tried once more
    in two halves, where it has more than one request; a half that runs out again fails with UnavailableError. A batch that
    nobody waits for any more ends before its next round.

    deliver: takes the jobs and what was found for them; called in this thread.
    """

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        decoder: Decoder,
        deliver: Callable[[Sequence[Job], Found], None],
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self._number, self._scheduler, self._decoder = number, scheduler, decoder
        self._deliver, self._counts, self._clock = deliver, counts, clock
        self._thread = threading.Thread(target=self._run, name=f"leafbeam-worker-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        while (batch := self._scheduler.next_batch(self._number)) is not None:
            began = self._clock()
            went_well, jobs = False, ()
            try:
                jobs = [job for job in batch.works if not job.is_over]
                went_well = self._decode(jobs) and len(jobs) == len(batch.works)
            finally:
                self._scheduler.done(self._number, self._clock() - began if went_well else None)
                batch, jobs = None, ()  # or they would be kept until the next batch

    def _decode(self, jobs: Sequence[Job]) -> bool:
        """Run jobs and see to it that each has its answer or its error; whether nothing went wrong."""
        error = self._attempt(jobs)
        if error is None:
            return bool(jobs)
        if not is_out_of_memory(error) or len(jobs) == 1:
            self._fail(jobs, error)
            return False
        log.warning("a batch of %d requests ran out of memory and is tried again in halves: %s", len(jobs), error)
        self._counts.add("batch_faults", "split")
        middle = (len(jobs) + 1) // 2
        for half in (jobs[:middle], jobs[middle:]):
            again = self._attempt([job for job in half if not job.is_over])
            if again is not None:
                self._fail(half, again)
        return False

    def _attempt(self, jobs: Sequence[Job]) -> Exception | None:
        """Run jobs as one batch and deliver; what went wrong is returned, because a traceback would keep the memory."""
        if not jobs:
            return None
        try:
            self._deliver(jobs, self._decoder.run(jobs))
        except BaseException as error:  # whatever it is belongs to these requests; the next batch starts afresh
            if is_out_of_memory(error):
                self._counts.add("batch_faults", "out_of_memory")
                self._decoder.forget()
            elif isinstance(error, Abandoned):
                self._counts.add("batch_faults", "abandoned")
            else:
                self._counts.add("batch_faults", "error")
                log.exception("a batch of %d requests failed", len(jobs))
            return error.with_traceback(None) if isinstance(error, Exception) else RuntimeError(f"a worker met {error!r}")
        return None

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        reason = "error"
        if is_out_of_memory(error):
            reason = "out_of_memory"
            log.error("a batch of %d requests ran out of memory: %s", len(jobs), error)
            message = f"there was no memory for a batch of {len(jobs)}, this request among them: try again later"
            error = UnavailableError(message, reason="out_of_memory")
        for job in jobs:
            if job.fail(error):
                self._counts.add("failed", reason)
