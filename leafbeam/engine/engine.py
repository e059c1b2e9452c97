"""Engine: requests in, items out; where model, search, catalog and index meet.

Shapes: B requests of a batch, K beams, L levels.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

from leafbeam.catalog import Catalog, Expression, RuleSource
from leafbeam.engine.batcher import Batcher
from leafbeam.engine.capacity import BatchSize
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import Decoder, Found, Model
from leafbeam.engine.graphs.capturer import Capturer
from leafbeam.engine.graphs.graph import Graphs, graphs_for
from leafbeam.engine.latency_model import LatencyFit
from leafbeam.engine.pending_request import Job, JobKey
from leafbeam.engine.prepare import Reader
from leafbeam.engine.request import ItemId, Limits, Request, Result, Scoring, Timings
from leafbeam.engine.scheduler import Load, Scheduler
from leafbeam.engine.settings import Settings
from leafbeam.engine.worker import Worker
from leafbeam.errors import (
    ArgumentError,
    CheckpointError,
    ForeignFilterError,
    ItemIdError,
    OverloadedError,
    RequestError,
    UnavailableError,
    UnknownRuleError,
)
from leafbeam.index import Trie, Version
from leafbeam.model import PromptStore, Transformer, load_model

__all__ = ["Engine", "name_of"]

log = logging.getLogger("leafbeam.engine")

_CALIBRATION_S = 1.0
_FEW_ITEMS = 64  # of all answers of a batch
_WINDOW = 1024  # requests of `recommend` that are sorted into batches at a time


class Engine:
    """Answers requests with items of the index that their rules allow.

    Think of a restaurant in three tiers (xGR, section 7). In the caller's thread a request is read, its rules become a filter
    and its ids a prompt (`submit`). The scheduler seats it or says at once why not: it closes batches by capacity, waiting time
    and slack, and gives up what can no longer be in time. Workers, a thread each over one copy of the weights, run a batch from
    prefill to last round; what they found becomes answers in threads of its own, while they run the next. `recommend` does all
    of it in the caller's own thread, for scripts and batches.

    catalog: None serves without rules. limits: what one request may ask for. settings: how the engine runs (see Settings);
    num_beams, max_batch, max_queue and timeout_s are short for fields of it. clock: seconds, monotonic. capturer: what makes a
    graph of a decode, where settings say `graphs`; None: torch's CUDA graphs, for a Transformer on a CUDA device.

    Raises CheckpointError if the model's codebooks are not the index's, ForeignFilterError if the catalog was opened for
    another index, ArgumentError for settings that contradict the limits.

    >>> with Engine(model, trie) as engine:     # doctest: +SKIP
    ...     engine.submit(Request(history=("a", "b"), deadline_s=0.2)).result().item_ids
    """

    def __init__(
        self,
        model: Model,
        trie: Trie,
        catalog: Catalog | None = None,
        *,
        limits: Limits | None = None,
        settings: Settings | None = None,
        num_beams: int | None = None,
        max_batch: int | None = None,
        max_queue: int | None = None,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        capturer: Callable[[], Capturer] | None = None,
    ) -> None:
        sizes = tuple(model.vocabulary.codebook_sizes)
        if sizes != trie.codebook_sizes:
            raise CheckpointError(
                f"the model's codebooks are {sizes}, but the index has {trie.codebook_sizes}: they come from different "
                "Semantic IDs; train the model and build the index from the same table of them"
            )
        if catalog is not None and catalog.index_version != trie.version:
            raise ForeignFilterError(
                f"the catalog's rules were made for index {catalog.index_version}, but this is index {trie.version}: open "
                "the catalog with this index"
            )
        short = {"num_beams": num_beams, "max_batch": max_batch, "max_queue": max_queue, "timeout_s": timeout_s}
        self.settings = replace(settings or Settings(), **{name: value for name, value in short.items() if value is not None})
        self.limits = limits or Limits()
        if self.settings.num_beams > self.limits.max_beams:
            raise ArgumentError(f"num_beams has to be from 1 to {self.limits.max_beams}, not {self.settings.num_beams}")
        if self.settings.max_beam_rows < self.limits.max_beams:
            raise ArgumentError(
                f"max_beam_rows={self.settings.max_beam_rows:,} cannot hold a request of max_beams={self.limits.max_beams:,}: "
                "raise the one or lower the other"
            )
        if self.settings.graphs and not (isinstance(model, Transformer) and (capturer or model.device.type == "cuda")):
            raise ArgumentError(
                f"graphs are captured of a Transformer on a CUDA device, and this is a {type(model).__name__} on "
                f"{model.device}: load it with device='cuda', or leave graphs out"
            )
        self.model, self.trie, self.catalog = model, trie, catalog
        self.graphs: Graphs | None = None
        self._capturer = capturer
        self.counts = Counts()
        self.clock = clock
        self._still = Version.of(trie)
        self._reader = Reader(trie.num_levels, model.config.max_position_embeddings, model.vocabulary.num_leading)
        self._scheduler = Scheduler(self.settings, clock, self.counts)
        self._workers: list[Worker] = []
        self._host: ThreadPoolExecutor | None = None
        megabytes = self.settings.prompt_store_mb
        self.prompt_store = PromptStore(megabytes << 20) if megabytes else None
        self._own = Decoder(model, clock, self.prompt_store)  # of `recommend`
        self._alone = threading.Lock()
        self._owned: Catalog | None = None
        self._is_warm = False

    @classmethod
    def load(
        cls,
        model_dir: str | os.PathLike[str],
        index_path: str | os.PathLike[str],
        catalog_path: str | os.PathLike[str] | None = None,
        rules: RuleSource = None,
        *,
        refresh: str | None = None,
        device: str = "cpu",
        limits: Limits | None = None,
        settings: Settings | None = None,
        num_beams: int | None = None,
        max_batch: int | None = None,
        max_queue: int | None = None,
        timeout_s: float | None = None,
    ) -> "Engine":
        """An engine from files: a model's directory, an index, and if there are rules a catalog, which it closes with itself.

        refresh: how often rules are evaluated that do not say so ("60s"). Raises CheckpointError, IndexFileError, DataError
        (the catalog), RuleError, ArgumentError.
        """
        if (rules is not None or refresh is not None) and catalog_path is None:
            raise ArgumentError("rules need a catalog to look at: pass catalog_path too")
        trie = Trie.load(os.fspath(index_path))
        model = load_model(model_dir, device=device)
        catalog = None if catalog_path is None else Catalog.open(catalog_path, trie, rules, refresh=refresh)
        try:
            engine = cls(
                model,
                trie,
                catalog,
                limits=limits,
                settings=settings,
                num_beams=num_beams,
                max_batch=max_batch,
                max_queue=max_queue,
                timeout_s=timeout_s,
            )
        except BaseException:
            if catalog is not None:
                catalog.close()
            raise
        engine._owned = catalog
        return engine

    @property
    def version(self) -> Version:
        """The index that the next request will be answered from: the catalog's, which may change, or the trie."""
        return self._still if self.catalog is None else self.catalog.version()

    @property
    def queue_length(self) -> int:
        """How many requests wait."""
        return self.load_now.waiting

    @property
    def load_now(self) -> Load:
        """What waits and what runs."""
        return self._scheduler.load

    @property
    def fit(self) -> LatencyFit:
        """What the step-time model has learnt."""
        return self._scheduler.fit

    @property
    def is_running(self) -> bool:
        """Workers are there and requests are taken."""
        return self._scheduler.is_open and any(worker.is_alive for worker in self._workers)

    @property
    def trouble(self) -> str | None:
        """Why requests should go to another server now; None if all is well."""
        trouble = self._scheduler.trouble
        if trouble is None and not all(worker.is_alive for worker in self._workers):
            return "a worker has ended"
        return trouble

    def warm_up(self) -> None:
        """Run a search of each kind, so that no request waits for a kernel to be compiled or a page to be read.

        Up to a minute on a machine's first run, then a fraction of a second; a second call costs nothing. The step-time model
        learns from it. Raises LogitsError for a model that cannot answer.
        """
        if not self._is_warm:
            some = _some_item(self.version)
            self.recommend(
                Request(history=some, deny_item_ids=some, num_items=1, num_beams=num_beams, scoring=scoring)
                for scoring in get_args(Scoring)
                for num_beams in (1, self.settings.num_beams)
            )
            if self.settings.predict:
                self._calibrate(some)
            self._is_warm = True

    def _calibrate(self, some: tuple[ItemId, ...]) -> None:
        """Let the step-time model see small and large batches, for about a second at most."""
        width = self.settings.num_beams
        fits = (self.settings.max_batch_tokens - self._reader.tokens(0)) // self.trie.num_levels
        longest = max(1, min(self.limits.max_history, self._reader.max_items, fits))
        capacity, over = self.settings.capacity, self.clock() + _CALIBRATION_S
        for most, items in ((1, 1), (1, longest), (4, 1), (4, longest), (capacity.requests, 1), (2, longest // 2)):
            job = self._prepare(Request(history=some * items, num_items=1, num_beams=width))
            requests = min(most, capacity.most(job.tokens, width))
            size = BatchSize.of_equal(requests, job.tokens, width)
            if self.clock() >= over:
                return
            self._own.run([job] * requests)  # the first run of a shape has to find its memory
            began = self.clock()
            self._own.run([job] * requests)
            self._scheduler.observe(size, self.clock() - began)

    def start(self) -> None:
        """Warm up and start the workers. An engine starts once; `with engine:` starts and stops it."""
        if self._workers:
            raise ArgumentError("this engine was started before: make another one")
        self.warm_up()
        if self.settings.overlap:
            self._host = ThreadPoolExecutor(self.settings.host_threads, thread_name_prefix="leafbeam-host")
        if self.settings.graphs and isinstance(self.model, Transformer):
            longest = self._reader.tokens(min(self.limits.max_history, self._reader.max_items))
            self.graphs = graphs_for(
                self.model, self.version, self.settings, longest=longest, counts=self.counts, capturer=self._capturer
            )
        for number in range(self.settings.workers):
            decoder = Decoder(self.model, self.clock, self.prompt_store, graphs=self.graphs, worker=number)
            self._workers.append(Worker(number, self._scheduler, decoder, self._deliver, self.counts, self.clock))
        self._scheduler.open()
        for worker in self._workers:
            worker.start()

    def stop(self, grace_s: float = 30.0) -> None:
        """Take no more requests, answer those that are in for up to `grace_s` seconds, refuse the rest, end the workers.

        Callable from any thread, and more than once.
        """
        over = time.monotonic() + grace_s
        self._scheduler.drain()
        for worker in self._workers:
            worker.join(over - time.monotonic())
        self._scheduler.close()
        if self._host is not None:
            self._host.shutdown(wait=not any(worker.is_alive for worker in self._workers))

    def close(self) -> None:
        """Stop, and close the catalog if `load` opened it."""
        self.stop()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def submit(self, request: Request, *, arrived: float | None = None) -> "Future[Result]":
        """Queue a request. Its rules are those of this moment, whatever is reloaded while it waits.

        arrived: when it came, by the engine's clock, if that was before now: its deadline counts from there.

        Raises at once what is wrong with it: RequestError (over a limit or the capacity of a batch, a deadline in the past),
        UnknownRuleError, ItemIdError (ids of another kind than the index's), OverloadedError (queue full, or a deadline that
        cannot be kept; `retry_after_s` says when to come again), UnavailableError (stopping, or the device does not answer).

        The future raises OverloadedError if the request's turn did not come in time, UnavailableError if there was no memory
        for it or the device hangs, LogitsError if the model gave no usable numbers, and whatever else its batch raised.
        Cancelling it takes the request out of the queue, or ends its batch before the next round if nobody else is in it.
        """
        try:
            if not self.is_running:
                raise UnavailableError("the engine is not running, or stopping: it takes no requests now", reason="draining")
            job = self._prepare(request, arrived)
            self._scheduler.add(job)
        except RequestError as error:
            self.counts.add("refused", error.reason)
            raise
        except (UnknownRuleError, ItemIdError) as error:
            self.counts.add("refused", "unknown_rule" if isinstance(error, UnknownRuleError) else "item_ids")
            raise
        return job.future

    @property
    def is_crowded(self) -> bool:
        """Somebody waits, or no worker is free: `turned_away` may have something to say."""
        return self._scheduler.is_crowded

    def turned_away(self, request: Request, *, arrived: float | None = None) -> OverloadedError | None:
        """What `submit` would raise for want of time or room, told from sizes alone; None: ask `submit`.

        For whoever stands in front of a flood: no id is looked up and no rule joined, so that a refusal takes a quarter of the
        time. Ids that the index does not know count like others. A request that is wrong is `submit`'s to refuse. Counts what
        it turns away.
        """
        try:
            self.limits.check(request)
        except RequestError:
            return None
        version = self._still if self.catalog is None else self.catalog.rules.version
        key: JobKey = self._width(request), request.scoring, id(version)
        tokens = self._reader.tokens(min(len(request.history), self._reader.max_items))
        submitted = self.clock() if arrived is None else arrived
        error = self._scheduler.turned_away(key, tokens=tokens, deadline=self._deadline(request, submitted))
        if error is not None:
            self.counts.add("refused", error.reason)
        return error

    def recommend(self, requests: Iterable[Request]) -> list[Result]:
        """Answer requests in this thread, in batches, in their order; no worker is needed. Raises like `submit`.

        Deadlines are not looked at. Threads that call it take turns.
        """
        jobs = [self._prepare(request) for request in requests]
        results: dict[Job, Result] = {}
        for first in range(0, len(jobs), _WINDOW):
            batcher: Batcher[Job] = Batcher(self.settings.capacity, max_queue=_WINDOW)
            for job in jobs[first : first + _WINDOW]:
                batcher.add(batcher.place(job, key=job.key, tokens=job.tokens, width=job.num_beams))
            while (batch := batcher.take(0.0)[0]) is not None:
                with self._alone:
                    found = self._own.run(batch.works)
                for row, job in enumerate(batch.works):
                    results[job] = self._result(job, row, len(batch.works), found)
        return [results[job] for job in jobs]

    def _prepare(self, request: Request, arrived: float | None = None) -> Job:
        """Everything that does not need the model, in the caller's thread."""
        submitted = self.clock() if arrived is None else arrived
        self.limits.check(request)
        rules = None if self.catalog is None else self.catalog.rules
        wanted = Expression.of(request.rules, request.filter)
        if rules is None and wanted is not None:
            raise UnknownRuleError(f"unknown rule {min(wanted.names)[:80]!r}; this engine has no catalog, so no rules")
        chosen = None if rules is None or wanted is None else rules.filter(wanted)
        version = self._still if rules is None else rules.version
        prompt = self._reader.read(request, version)
        tokens = self._reader.tokens(len(prompt.codes))
        if tokens > self.settings.max_batch_tokens:
            raise RequestError(
                f"the {len(prompt.codes):,} known items of the history are {tokens:,} tokens, and a batch holds up to "
                f"{self.settings.max_batch_tokens:,}: send fewer",
                reason="over_capacity",
            )
        return Job(
            request=request,
            prompt=prompt,
            tokens=tokens,
            version=version,
            chosen=chosen,
            rules_generation=None if rules is None else rules.generation,
            num_beams=self._width(request),
            submitted=submitted,
            prepared=self.clock(),
            deadline=self._deadline(request, submitted),
        )

    def _width(self, request: Request) -> int:
        return max(request.num_beams or self.settings.num_beams, request.num_items)

    def _deadline(self, request: Request, submitted: float) -> float:
        return submitted + (self.settings.deadline_s if request.deadline_s is None else request.deadline_s)

    def _deliver(self, jobs: Sequence[Job], found: Found) -> None:
        """Long answers are written beside the worker, if they may be; short ones take less than handing them over."""
        if self._host is None or sum(job.request.num_items for job in jobs) <= _FEW_ITEMS:
            self._answer(jobs, found)
        elif not all(job.is_over for job in jobs):
            self._host.submit(self._answer, jobs, found)

    def _answer(self, jobs: Sequence[Job], found: Found) -> None:
        """Hand every job that somebody waits for its row of the search."""
        for row, job in enumerate(jobs):
            if job.is_over:
                continue
            try:
                result = self._result(job, row, len(jobs), found)
            except Exception as error:  # a fault of ours: whom it concerns is told
                log.exception("an answer could not be put together")
                if job.fail(error):
                    self.counts.add("failed", "error")
                continue
            if job.answer(result):
                self.counts.add("answered", "in_time" if self.clock() <= job.deadline else "late")

    def _result(self, job: Job, row: int, batch_size: int, found: Found) -> Result:
        """A row of the search as item ids, and where the time went."""
        num_valid = min(int(found.search.num_valid[row]), job.request.num_items)
        item_ids = found.search.item_ids[row][:num_valid].tolist()
        sids = found.search.codes[row, :num_valid].tolist()
        scores = found.search.scores[row, :num_valid].tolist()
        timings = Timings(
            prepare=job.prepared - job.submitted,
            queue=found.began - job.prepared,
            prefill=found.prefill_s,
            rounds=found.rounds_s,
            constrain=found.constrain_s,
            postprocess=self.clock() - found.began - found.prefill_s - found.rounds_s - found.constrain_s,
        )
        return Result(
            item_ids=tuple(item_ids),
            sids=tuple(tuple(sid) for sid in sids),
            scores=tuple(scores),
            num_valid=num_valid,
            num_beams=job.num_beams,
            num_history_used=len(job.prompt.codes),
            read_user=job.request.user is not None and self.model.vocabulary.num_users > 0,
            ignored_history=job.prompt.ignored_history,
            ignored_deny=job.prompt.ignored_deny,
            index_version=name_of(job.version),
            rules_generation=job.rules_generation,
            batch_size=batch_size,
            timings=timings,
        )


def _some_item(version: Version) -> tuple[ItemId, ...]:
    """The id of a live item, if there is one."""
    for segment in version.segments:
        if segment.num_items:
            place = 0 if segment.live is None else int(segment.live.ordinals.positions()[0])
            items = segment.trie.items
            return tuple(items.ids_of(items.order_N[place : place + 1]).tolist())
    return ()


def name_of(version: Version) -> str:
    """The fingerprint of a version's base, and how many changes were made since the first one, if any."""
    base = version.segments[0].trie.version
    return f"{base}+{version.number}" if version.number else base
