"""TextWorker: continues the prompts of many clients, in one thread that runs several batches in turns, one call of the
model each.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace

from leafbeam.errors import LogitsError, OverloadedError, RequestError, UnavailableError, counted
from leafbeam.ops import openmp
from leafbeam.text.generator import TextGenerator
from leafbeam.text.request import Generation, TextRequest, can_run_together
from leafbeam.text.run import TextBatch
from leafbeam.text.settings import TextSettings

log = logging.getLogger("leafbeam.text")

OnPieces = Callable[[int, tuple[str, ...]], None]
Texts = tuple[tuple[Generation, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextJob:
    """The prompts of one client, which run in one batch.

    `texts` is the result; if it is cancelled, the worker drops the job at its next call of the model. `deadline` is a time of
    the worker's clock. `on_pieces`, if given, is called in the worker's thread with a prompt's number and its new
    pieces. `is_alone` is true for a job that must run alone, because a batch that it was in has failed and this job may
    be the reason.
    """

    requests: tuple[TextRequest, ...]
    deadline: float
    on_pieces: "_Pieces | None" = None
    is_alone: bool = False
    texts: "Future[Texts]"

    @property
    def num_rows(self) -> int:
        return sum(request.num_texts for request in self.requests)

    @property
    def num_tokens(self) -> int:
        """Return the largest number of tokens that the job may have in memory."""
        return sum(len(request.prompt) + request.num_texts * request.max_tokens for request in self.requests)


class TextWorker:
    """A thread that runs jobs in order of arrival, together where one batch may hold them. Call `start` before use and
    `stop` afterwards.

    >>> job = worker.submit([request])                  # doctest: +SKIP
    >>> job.texts.result()[0][0].text                   # doctest: +SKIP
    """

    def __init__(
        self, generator: TextGenerator, settings: TextSettings | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.generator, self.settings, self.clock = generator, settings or TextSettings(), clock
        self._changed = threading.Condition()
        self._waiting: deque[TextJob] = deque()
        self._running: tuple[_Batch, ...] = ()  # replaced, never changed: other threads read it
        self._thread: threading.Thread | None = None
        self._is_stopping = self._is_aborted = False
        self._seconds_per_job = 1.0
        self._last_done = 0.0

    def __repr__(self) -> str:
        return f"TextWorker({self.num_waiting} waiting, {self.num_running} running)"

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return sum(len(batch.jobs) for batch in self._running)

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Run jobs from now on, in a thread that does not keep the process alive."""
        openmp.end_idle_threads()
        self._thread = threading.Thread(target=self._work, name="leafbeam-text", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float = 30.0) -> None:
        """Refuse new jobs, finish accepted ones within `grace_s` seconds, and fail those that are then not finished.

        Every job gets an answer, even if the thread hangs in a call of the model or was never started.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(grace_s)
            self._is_aborted = True
            self._thread.join(5.0)
        self._fail_all(_stopped())

    def submit(
        self,
        requests: Sequence[TextRequest],
        *,
        deadline: float | None = None,
        on_pieces: OnPieces | None = None,
    ) -> TextJob:
        """Queue requests that `can_run_together`.

        Args:
            requests: The requests.
            deadline: A time of the worker's clock, by default `timeout_s` from now.
            on_pieces: Called with a prompt's number and its new pieces.

        Raises:
            ArgumentError: If the model cannot run a request.
            RequestError: If a request is too large.
            OverloadedError: If the queue is full.
            UnavailableError: If the worker stops.
        """
        assert can_run_together(requests)
        for request in requests:
            self.generator.check(request)
        deadline = self.clock() + self.settings.timeout_s if deadline is None else deadline
        pieces = None if on_pieces is None else _Pieces(on_pieces, requests)
        job = TextJob(requests=tuple(requests), deadline=deadline, on_pieces=pieces, texts=Future())
        for name, number, limit in (
            ("text", job.num_rows, self.settings.max_rows),
            ("token", job.num_tokens, self.settings.max_tokens),
        ):
            if number > limit:
                raise RequestError(
                    f"the request may take {counted(number, name)}, prompts included: at most {limit:,}; lower max_tokens, "
                    "n, beams or the number of prompts"
                )
        with self._changed:
            self.check_admission()
            self._waiting.append(job)
            self._changed.notify()
        return job

    def check_admission(self, num_others: int = 0) -> None:
        """Raise the error of `submit` for a full queue, counting `num_others` requests more than are in it."""
        if self._is_stopping:
            raise UnavailableError("the server is stopping", reason="draining")
        if len(self._waiting) + num_others >= self.settings.max_queue:
            raise self._overloaded(f"{counted(self.settings.max_queue, 'request')} for texts wait already", "queue_full")

    def _overloaded(self, message: str, reason: str) -> OverloadedError:
        wait_s = min(60.0, max(1.0, self._seconds_per_job * (len(self._waiting) + 1)))
        return OverloadedError(f"{message}: try again later", reason=reason, retry_after_s=wait_s)

    def _work(self) -> None:
        """Run jobs until `stop`. An error that is not a job's own fails all accepted jobs, and the thread goes on."""
        while True:
            try:
                self._run_jobs()
                return
            except BaseException as error:
                log.critical("the worker of texts failed", exc_info=error)
                self._fail_all(error)

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._is_stopping):
                    self._changed.wait()
                if self._is_stopping and not (self._waiting or self._running):
                    return
                jobs = self._next_jobs()
            if self._is_aborted:
                self._fail_all(_stopped())
                return
            if jobs:
                self._begin(jobs)
            if self._running:
                batch, *others = self._running
                self._running = (*others, batch) if self._advance(batch) else tuple(others)

    def _next_jobs(self) -> list[TextJob]:
        """Return the jobs of the next batch, or none if another batch does not fit.

        Late jobs fail, and cancelled ones are dropped.
        """
        now, jobs, left = self.clock(), list[TextJob](), list[TextJob]()
        room = self.settings.max_tokens - sum(batch.num_tokens for batch in self._running)
        for job in self._waiting:
            # Until the oldest has room, later ones wait behind it.
            may_run = len(self._running) < self.settings.max_batches and (jobs or not left)
            if job.texts.cancelled():
                continue
            if job.deadline <= now:
                _fail(job, self._overloaded("the request waited until its time was over", "late"))
            elif may_run and job.num_tokens <= room and self._fits(job, jobs):
                jobs.append(job)
                room -= job.num_tokens
            else:
                left.append(job)
        self._waiting = deque(left)
        return jobs

    def _fits(self, job: TextJob, jobs: Sequence[TextJob]) -> bool:
        """Return whether a job may join a batch."""
        if jobs and (job.is_alone or jobs[0].is_alone):
            return False
        requests = [request for other in (*jobs, job) for request in other.requests]
        longest = max(len(request.prompt) for request in requests) + max(request.max_tokens for request in requests)
        return (
            sum(request.num_texts for request in requests) <= self.settings.max_rows
            and longest - 1 <= self.generator.model.config.max_position_embeddings
            and can_run_together(requests)
        )

    def _begin(self, jobs: Sequence[TextJob]) -> None:
        try:
            run = self.generator.start([request for job in jobs for request in job.requests])
        except BaseException as error:  # a library's panic is not an Exception
            self._failed(jobs, error)
            return
        self._running = (*self._running, _Batch(run=run, jobs=tuple(jobs)))

    def _advance(self, batch: "_Batch") -> bool:
        """Call the model once for a batch, pass the new text to its jobs, and return whether the batch continues."""
        run, now = batch.run, self.clock()
        for job, rows in batch.rows():
            if job.deadline <= now and not job.requests[0].is_stepwise:
                _fail(job, UnavailableError("the search of many beams was not over in time: lower max_tokens", reason="late"))
            if job.texts.done() or job.deadline <= now:
                for b in rows:
                    run.cut_off(b)
        try:
            run.advance()
        except BaseException as error:
            self._failed(batch.jobs, error, batch.guilty_of(error))
            return False
        going_on = False
        for job, rows in batch.rows():
            if job.texts.done():
                continue
            try:
                going_on |= not self._answer(job, run, rows)
            except BaseException as error:  # of the client's callback, or of one text
                log.error("the pieces of a text could not be handed on", exc_info=error)
                _fail(job, error)
        return going_on

    def _answer(self, job: TextJob, run: TextBatch, rows: range) -> bool:
        """Pass on the new text of a job, and its texts once they are complete; return whether they are."""
        for number, b in enumerate(rows):
            pieces = run.pieces(b)
            if job.on_pieces is not None and any(pieces):
                job.on_pieces(number, pieces)
        if not all(run.is_over(b) for b in rows):
            return False
        with suppress(InvalidStateError):  # cancelled in between
            job.texts.set_result(tuple(run.texts[b] for b in rows))
        self._count_done()
        return True

    def _count_done(self) -> None:
        now = self.clock()
        since, self._last_done = now - self._last_done, now
        if since < self.settings.timeout_s:  # longer: there was nothing to do
            self._seconds_per_job += 0.1 * (since - self._seconds_per_job)

    def _failed(self, jobs: Sequence[TextJob], error: BaseException, guilty: TextJob | None = None) -> None:
        """Handle a failed batch. A job that ran alone fails; several jobs run again, before those that wait, and the
        guilty one alone.

        If it is not known which job is guilty, each runs alone.
        """
        jobs = [job for job in jobs if not job.texts.done()]
        log.error("a batch of %d texts failed", len(jobs), exc_info=error)
        if len(jobs) == 1:
            _fail(jobs[0], error)
            return
        for job in jobs:
            if job.on_pieces is not None:
                job.on_pieces.begin_again()
        again = [job if guilty not in (None, job) else replace(job, is_alone=True) for job in jobs]
        again.sort(key=lambda job: job.is_alone)
        with self._changed:
            self._waiting.extendleft(reversed(again))

    def _fail_all(self, error: BaseException) -> None:
        with self._changed:
            jobs = [*self._waiting, *(job for batch in self._running for job in batch.jobs)]
            self._waiting.clear()
            self._running = ()
        for job in jobs:
            _fail(job, error)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Jobs that run together; the rows of the run are their requests, in order."""

    run: TextBatch
    jobs: tuple[TextJob, ...]

    @property
    def num_tokens(self) -> int:
        return sum(job.num_tokens for job in self.jobs)

    def guilty_of(self, error: BaseException) -> TextJob | None:
        """Return the job with the request that an error names, if it names one."""
        request = error.request if isinstance(error, LogitsError) else None
        return None if request is None else next(job for job, rows in self.rows() if request in rows)

    def rows(self) -> list[tuple[TextJob, range]]:
        """Return each job with the rows of its requests."""
        ends = [0]
        for job in self.jobs:
            ends.append(ends[-1] + len(job.requests))
        return [(job, range(begin, end)) for job, begin, end in zip(self.jobs, ends, ends[1:], strict=False)]


class _Pieces:
    """The pieces of a job's texts. Each is passed on once, even if the job runs again, because the same seed draws the
    same texts.
    """

    def __init__(self, on_pieces: OnPieces, requests: Sequence[TextRequest]) -> None:
        self._on_pieces = on_pieces
        self._num_given = [[0] * request.num_texts for request in requests]  # characters
        self.begin_again()

    def begin_again(self) -> None:
        self._num_known = [list(numbers) for numbers in self._num_given]

    def __call__(self, prompt: int, pieces: tuple[str, ...]) -> None:
        given, known, new = self._num_given[prompt], self._num_known[prompt], list[str]()
        for k, piece in enumerate(pieces):
            new.append(piece[known[k] :])
            known[k] = max(0, known[k] - len(piece))
            given[k] += len(new[k])
        if any(new):
            self._on_pieces(prompt, tuple(new))


def _stopped() -> UnavailableError:
    return UnavailableError("the server has stopped", reason="draining")


def _fail(job: TextJob, error: BaseException) -> None:
    """Answer a job with an error, unless it has an answer. An error that callers do not expect becomes the cause of a
    RuntimeError.
    """
    if not isinstance(error, Exception):
        cause, error = error, RuntimeError(f"a text failed by {type(error).__name__}: {error}")
        error.__cause__ = cause
    with suppress(InvalidStateError):
        job.texts.set_exception(error)
