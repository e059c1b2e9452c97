"""Engine: requests in, items out. It joins a model with a catalog (index and rules) behind a queue and workers."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import cast, overload

from leafbeam.catalog import Catalog
from leafbeam.engine.batcher import Batcher, BatchSize
from leafbeam.engine.catalog_files import CatalogFiles
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import Model
from leafbeam.engine.graphs.graph import Graphs, graphs_for
from leafbeam.engine.prepare import RequestPreparer
from leafbeam.engine.request import PendingRequest, Request, Result
from leafbeam.engine.results import MemoryChannel, ResultWriter
from leafbeam.engine.scheduler import Scheduler
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.engine.served_model import EngineParts, ServedModel
from leafbeam.engine.settings import Limits, Settings
from leafbeam.engine.tuning import Tuning
from leafbeam.engine.warm_up import calibrate, change_a_copy, run_filtered, warm_up_requests
from leafbeam.engine.worker import SlowBatch, SlowBatches, Worker
from leafbeam.errors import (
    ArgumentError,
    ConflictError,
    ItemIdError,
    LogitsError,
    RequestError,
    UnavailableError,
    UnknownRuleError,
    counted,
)
from leafbeam.index import Trie, Version
from leafbeam.live import RequestKey
from leafbeam.model import PromptStore, load_for_decoding
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops import openmp
from leafbeam.ops.backend import LatestBindings
from leafbeam.precision import Precision
from leafbeam.retrieve import Event, ItemMemory, LiveMemory

log = logging.getLogger("leafbeam.engine")

_WINDOW = 1024  # requests of `recommend` that are sorted into batches at a time


class Engine:
    """An engine that answers requests with items of an index that their rules allow.

    It has three tiers (xGR, section 7): `submit` checks and prepares a request in the caller's thread and queues it, or raises;
    the scheduler closes batches by capacity, delay and slack; each worker is a thread that decodes batches, and all share one
    copy of the weights. `recommend` does all of it in the caller's thread.

    `tuning` says what was measured and chosen for this machine before the first batch: threads, precision and products.
    `search_widths` says how many beams recent proofs needed.

    Args:
        model: The model (see `Model`).
        catalog: A Catalog, or a Trie to serve without rules.
        memory: An item memory that ranks items too, alone or together with the model (`Request.channel`).
        limits: The bounds of one request.
        settings: How the engine runs.
        clock: Returns the time in seconds; it must be monotonic.
        new_graphs: Captures graphs on another device than a GPU, with the arguments of `graphs_for`.

    Raises:
        CheckpointError: If the model's codebooks are not those of the index.
        ArgumentError: If the settings contradict the limits or the model.

    Examples:
        >>> with Engine(model, trie) as engine:     # doctest: +SKIP
        ...     engine.submit(Request(history=("a", "b"), deadline_s=0.2)).result().item_ids
    """

    def __init__(
        self,
        model: Model,
        catalog: Catalog | Trie,
        *,
        memory: ItemMemory | LiveMemory | None = None,
        limits: Limits | None = None,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_graphs: Callable[..., Graphs] | None = None,
    ) -> None:
        self.clock = clock
        self.catalog = catalog if isinstance(catalog, Catalog) else None
        self.settings, self.limits, self.counts = settings or Settings(), limits or Limits(), Counts()
        index = catalog if isinstance(catalog, Catalog) else Version.of(catalog)
        file, restarts = self.settings.widths_file, model.device.type != "cpu"
        num_levels = len(model.vocabulary.codebook_sizes)
        self.search_widths = (
            SearchWidths(restarts=restarts) if file is None else SearchWidths.load(file, num_levels, restarts=restarts)
        )
        self._parts = EngineParts(
            index=index,
            settings=self.settings,
            limits=self.limits,
            clock=clock,
            widths=self.search_widths,
            bindings=LatestBindings(self.settings.filter_mb << 20),
            has_memory=memory is not None,
            new_graphs=new_graphs or graphs_for,
            can_capture=new_graphs is not None or model.device.type == "cuda",
        )
        self._served = ServedModel(model, self._parts)
        self._loading = threading.Lock()
        self.scheduler = Scheduler(self.settings, clock, self.counts)
        self.slow_batches = SlowBatches(self._log_slow)
        self._live_memory = memory if isinstance(memory, LiveMemory) else None
        self.memory = memory.memory if isinstance(memory, LiveMemory) else memory
        channel = None if self.memory is None else MemoryChannel(self.memory, self.version)
        self._results = ResultWriter(self.counts, clock, channel)
        self._workers: list[Worker] = []
        self._opened = ExitStack()
        self._is_warm = False

    @classmethod
    def load(
        cls,
        model: Model | str | os.PathLike[str],
        catalog: Catalog | Trie | CatalogFiles | str | os.PathLike[str],
        *,
        device: str = "cpu",
        limits: Limits | None = None,
        settings: Settings | None = None,
    ) -> "Engine":
        """Return an engine of a model and a catalog, each of them loaded already or given as files.

        `close`, or the end of a `with` block, closes what this call opens.

        Args:
            model: A model, or its directory.
            catalog: A Catalog, a Trie, CatalogFiles, or the path of an index file to serve without rules.
            device: The device to which a directory's model is loaded.
            limits: As for `Engine`.
            settings: As for `Engine`.

        Raises:
            CheckpointError: If the model cannot be loaded, or does not fit the index.
            IndexFileError: If the index is missing or damaged.
            DataError: If the catalog's file is unusable.
            RuleError: If a rule is invalid.
            ArgumentError: As for `Engine`.

        Examples:
            >>> files = CatalogFiles(index="index.leafbeam", catalog="catalog.duckdb", rules="rules.toml")
            >>> with Engine.load("model", files, settings=Settings(num_beams=50)) as engine:     # doctest: +SKIP
            ...     engine.submit(Request(history=("a", "b"), rules=("in_stock",))).result().item_ids
        """
        model = load_for_decoding(model, device=device) if isinstance(model, str | os.PathLike) else model
        catalog = CatalogFiles(index=catalog) if isinstance(catalog, str | os.PathLike) else catalog
        with ExitStack() as opened:
            memory = None
            source = catalog
            if isinstance(source, CatalogFiles):
                memory, source = source.open_memory(opened), source.open(opened)
            engine = cls(model, source, memory=memory, limits=limits, settings=settings)
            engine._opened = opened.pop_all()
        return engine

    def __repr__(self) -> str:
        state = self.unhealthy_reason or "it is running"
        return f"Engine({type(self.model).__name__}, {counted(len(self.version), 'item')} of {self.version.name}, {state})"

    @property
    def model(self) -> Model:
        """Return the model by which the next request will be answered."""
        return self._served.model

    @property
    def model_version(self) -> str | None:
        """Return the version of the model's files; None for a model that was made in memory."""
        return self._served.version

    @property
    def tuning(self) -> Tuning:
        """Return what was measured and chosen for this machine."""
        return self._served.tuning

    @property
    def prompt_store(self) -> PromptStore | None:
        """Return the keys and values of recent prompts; None without a store."""
        return self._served.prompt_store

    @property
    def _preparer(self) -> RequestPreparer:
        return self._served.preparer

    @property
    def version(self) -> Version:
        """Return the version of the index from which the next request will be answered."""
        return self._preparer.version

    @property
    def trie(self) -> Trie:
        """Return the base of the index."""
        return self.version.segments[0].trie

    @property
    def threads(self) -> int | None:
        """Return the number of threads of each worker's matrix products, None before the warm-up."""
        return self.tuning.threads

    @property
    def precision(self) -> Precision:
        """Return the precision of the layers' matrix products."""
        return self.tuning.precision

    @property
    def is_running(self) -> bool:
        """Return whether requests are accepted and a worker is alive."""
        return self.scheduler.is_open and any(worker.is_alive() for worker in self._workers)

    @property
    def unhealthy_reason(self) -> str | None:
        """Return why requests should go to another server, or None while the engine is healthy."""
        reason = self.scheduler.unhealthy_reason
        if reason is None and not all(worker.is_alive() for worker in self._workers):
            return "a worker has ended"
        return reason

    def warm_up(self, *, changes: bool = False) -> None:
        """Run every kind of search once, so that no request waits for a compilation, and calibrate the latency model.

        This takes up to a minute on a machine's first run, about a second later, and nothing on a second call.

        Args:
            changes: If true, every kind of change of a catalog is run too, in a copy of two items.

        Raises:
            LogitsError: If the model's logits are not finite.
        """
        if self._is_warm:
            return
        served = self._served
        self._try_searches(served)
        if changes and self.catalog is not None:
            change_a_copy(self.catalog)
        served.tune()
        self._calibrate(served, self.scheduler.observe)
        self._is_warm = True

    def _try_searches(self, served: ServedModel) -> None:
        """Run every kind of search once with a model."""
        self._recommend(warm_up_requests(self.version, self.settings.beams, served.preparer.scorings), served)
        run_filtered(served.preparer, served.offline_decoder, self.settings.beams, self.clock)

    def _calibrate(self, served: ServedModel, observe: Callable[[BatchSize, float], None]) -> None:
        if self.settings.predict:
            with torch_threads(self.threads or 1, apart=True):
                calibrate(served.preparer, self.settings, served.offline_decoder, observe, self.clock)

    def load_model(self, directory: str | os.PathLike[str] | None = None) -> str | None:
        """Load another model beside the one that is served, and answer later requests by it.

        The model is loaded, checked and warmed up in this thread, while the other one is served. Requests that were accepted
        before are answered by the model of that moment; a batch has one model. If anything fails, nothing changes. It takes the
        memory of both models until the last of these requests is answered. On a GPU no batch runs while searches are captured.

        Args:
            directory: The directory of the model; None reads that of the served one again.

        Returns:
            The version of the model's files.

        Raises:
            ArgumentError: If no directory is given, and the served model was made in memory.
            CheckpointError: If the model cannot be loaded, needs more memory than is free, or does not fit the index.
            LogitsError: If its logits are not finite.
            ConflictError: If another model is being loaded.
        """
        before = self._served
        source = getattr(before.model, "source", None)
        directory = directory or (None if source is None else source.directory)
        if directory is None:
            raise ArgumentError("the model was made in memory, so it cannot be read again: name a directory")
        if not self._loading.acquire(blocking=False):
            raise ConflictError("another model is being loaded: wait until it is served, then try again")
        try:
            model = load_for_decoding(directory, device=str(before.model.device))
            served = ServedModel(model, self._parts)
            observed: list[tuple[BatchSize, float]] = []
            with torch_threads(self.threads or 1):
                served.tune_like(before.tuning)
                self._try_searches(served)
                self._calibrate(served, lambda size, seconds: observed.append((size, seconds)))
            if self._workers:
                with self.scheduler.paused() if before.capture.graphs is not None else nullcontext():
                    served.make_decoders(self.counts)
            self._served = served
            for size, seconds in observed:
                self.scheduler.observe(size, seconds)
            return served.version
        finally:
            self._loading.release()

    def _log_slow(self, batch: SlowBatch) -> None:
        self.counts.add("batch_faults", "slow")
        log.warning(
            "a batch of %d requests took %.0f ms, the median is %.1f ms: %.0f ms on a core, preempted %d times, waited %d "
            "times",
            batch.size.requests,
            1e3 * batch.seconds,
            1e3 * batch.median_s,
            1e3 * batch.use.cpu_s,
            batch.use.preempted,
            batch.use.waits,
        )

    def start(self) -> None:
        """Warm up and start the workers. An engine starts once; `with engine:` starts and closes it."""
        if self._workers:
            raise ArgumentError("this engine was started before: make another one")
        self.warm_up()
        if self.settings.overlap:
            self._results.start(self.settings.host_threads)
        self._served.make_decoders(self.counts)
        for number in range(self.settings.workers):
            self._workers.append(
                Worker(
                    number,
                    self.scheduler,
                    self._results.deliver,
                    self.clock,
                    slow_batches=self.slow_batches,
                    threads=self.threads,
                )
            )
        openmp.end_idle_threads()
        self.scheduler.open()
        for worker in self._workers:
            worker.start()

    @property
    def graphs(self) -> Graphs | None:
        """Return the captured searches; None before the start, and without graphs."""
        return self._served.capture.graphs

    @property
    def choices(self) -> dict[str, str]:
        """Return in words what was measured and chosen for this machine, and which graphs are ready."""
        text = self._served.capture.text
        return self.tuning.lines() | ({} if text is None else {"graphs": text})

    def stop(self, grace_s: float = 30.0) -> None:
        """Reject new requests, answer accepted ones for up to `grace_s` seconds, fail the others, and end the workers.

        It may be called from any thread, and more than once.
        """
        over = time.monotonic() + grace_s
        self.scheduler.drain()
        for worker in self._workers:
            if worker is not threading.current_thread():
                worker.join(max(0.0, over - time.monotonic()))
        self.scheduler.close()
        self._results.stop(wait=not any(worker.is_alive() for worker in self._workers))
        if self.settings.widths_file is not None:
            self.search_widths.save(self.settings.widths_file)

    def close(self, grace_s: float = 30.0) -> None:
        """Stop, and close what `load` opened."""
        self.stop(grace_s)
        self._opened.close()

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, request: Request, *, arrived: float | None = None) -> "Future[Result]":
        """Queue a request under the rules of this moment.

        The cheapest check comes first: the limits, then, while the engine is saturated, admission from sizes alone, then
        look-ups.

        Args:
            request: The request.
            arrived: The time of its arrival by the engine's clock; by default now.

        Returns:
            A future of the result. It raises OverloadedError if the request expired in the queue, UnavailableError if memory
            ran out or the device hung, LogitsError if logits are not finite, and any other error of its batch. Cancelling it
            withdraws the request.

        Raises:
            RequestError: If the request is over a limit or the capacity of a batch, or its deadline is in the past.
            UnknownRuleError: If there is no such rule.
            ItemIdError: If ids are of the wrong kind.
            OverloadedError: If the queue is full or the deadline cannot be met (see `retry_after_s`).
            UnavailableError: If the engine is not running, or the device hangs.
        """
        arrived = self.clock() if arrived is None else arrived
        try:
            if not self.is_running:
                raise UnavailableError("the engine is not running, or stopping: it accepts no requests now", reason="draining")
            self.limits.check(request)
            self.check_admission(request, arrived=arrived)
            pending = self._preparer.prepare(request, arrived)
            if pending.channel == "memory":
                pending.complete(self._results.memory_result(pending))
                self.counts.add("answered", "in_time")
            else:
                self.scheduler.enqueue(pending)
        except (RequestError, UnknownRuleError, ItemIdError) as error:
            other = "unknown_rule" if isinstance(error, UnknownRuleError) else "item_ids"
            self.counts.add("refused", error.reason if isinstance(error, RequestError) else other)
            raise
        return pending.future

    def check_admission(self, request: Request, *, arrived: float) -> None:
        """Check from the sizes of a request alone that it can be answered in time. This takes about 10 microseconds.

        `submit` checks this too. An engine that has nothing to wait for admits every request; one with an item memory admits
        every request for the memory alone.

        Args:
            request: The request.
            arrived: As for `submit`.

        Raises:
            OverloadedError: If the request cannot be answered in time.
            UnavailableError: If the engine is not running, or the device hangs.
        """
        if self.scheduler.is_saturated and request.channel != "memory":
            self.scheduler.check_admission(self._preparer.size(request, arrived))

    @property
    def learns(self) -> bool:
        """Return whether `observe` counts interactions."""
        return self._live_memory is not None

    def observe(self, events: Sequence[Event], request: RequestKey | None = None) -> int:
        """Count interactions in the item memory (see `LiveMemory.observe`); the next request sees them.

        Raises:
            RequestError: If the engine has no LiveMemory.
            ItemIdError: As for `LiveMemory.observe`.
            ConflictError: As for `LiveMemory.observe`.
            LogError: As for `LiveMemory.observe`.
        """
        if self._live_memory is None:
            raise RequestError("this engine counts no interactions: give it a LiveMemory, or start the server with --learn")
        return self._live_memory.observe(events, request)

    @overload
    def recommend(self, requests: Request) -> Result: ...
    @overload
    def recommend(self, requests: Iterable[Request]) -> list[Result]: ...
    def recommend(self, requests: Request | Iterable[Request]) -> Result | list[Result]:
        """Answer one request, or several in batches and in order, in this thread; no worker is needed.

        Deadlines are ignored, and threads take turns. The errors are those of `submit`; a LogitsError names the request by its
        position.
        """
        if isinstance(requests, Mapping):  # its keys would be taken for requests
            self.limits.check(cast("Request", requests))
        if isinstance(requests, Request):
            return self.recommend([requests])[0]
        return self._recommend(requests, self._served)

    def _recommend(self, requests: Iterable[Request], served: ServedModel) -> list[Result]:
        """Answer requests by a model, in this thread."""
        pending: list[PendingRequest] = []
        for request in requests:
            self.limits.check(request)
            pending.append(served.preparer.prepare(request, self.clock()))
        results: dict[PendingRequest, Result] = {}
        for first in range(0, len(pending), _WINDOW):
            batcher: Batcher[PendingRequest] = Batcher(self.settings.capacity, max_queue=_WINDOW)
            for waiting in pending[first : first + _WINDOW]:
                if waiting.channel == "memory":
                    results[waiting] = self._results.memory_result(waiting)
                    continue
                batcher.enqueue(waiting, replace(waiting.size, deadline=math.inf))
            while (batch := batcher.next_batch(0.0)[0]) is not None:
                results |= zip(batch.requests, self._answer(batch.requests, pending, served), strict=True)
        return [results[answered] for answered in pending]

    def _answer(self, batch: Sequence[PendingRequest], pending: Sequence[PendingRequest], served: ServedModel) -> list[Result]:
        """Return the results of a batch, decoded in this thread. pending: all requests, by whose positions errors name one."""
        try:
            output = served.run_offline(batch)
        except LogitsError as error:
            if error.request is None:
                raise
            position = pending.index(batch[error.request])
            raise error.renamed(f"request {position}", position) from None
        return [self._results.result(answered, row, len(batch), output) for row, answered in enumerate(batch)]
