"""Engine: requests in, items out; where model, search, catalogue and index meet.

Shapes: B requests of a batch, T tokens of the longest prompt, K beams, L levels.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, get_args

import torch

from pleach.catalog import Catalogue, Expression
from pleach.decode import BeamSearch, SearchResult
from pleach.engine.batcher import Batcher
from pleach.engine.prompt import Prompt, Reader
from pleach.engine.request import ItemId, Limits, Request, Result, Scoring, Timings
from pleach.errors import ArgumentError, CheckpointError, ForeignFilterError, OverloadedError, UnknownRuleError
from pleach.index import Trie, Version, VersionFilter
from pleach.model import AnyModel, load_model


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """A request with everything settled that does not need the model: its rules and their version are pinned here."""

    request: Request
    prompt: Prompt
    version: Version
    chosen: VersionFilter | None
    rules_generation: int | None
    num_beams: int
    future: Future[Result]
    prepared: float
    prepare_s: float

    @property
    def key(self) -> tuple[int, Scoring, int]:
        """Requests with equal keys are one search. (A version that a job holds shares its id with no other.)"""
        return self.num_beams, self.request.scoring, id(self.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What a batch's search gave, and when."""

    search: SearchResult
    began: float
    model_s: float
    constrain_s: float


class Engine:
    """Answers requests with items of the index that their rules allow.

    Think of a counter with one clerk: `submit` puts a prepared request in a bounded queue and returns a future; the
    clerk, one worker thread, takes what waits and can run together, runs it, and hands out the results (`step`: schedule,
    run, postprocess). `recommend` does the same in the caller's own thread, for scripts and batches.

    catalogue: None serves without rules. num_beams: the width of requests that name none. max_batch: requests in one search.
    max_queue: how many may wait; one more is refused (OverloadedError). timeout_s: a request that waited longer is
    refused rather than run. clock: seconds, monotonic.

    Raises CheckpointError if the model's codebooks are not the index's, ForeignFilterError if the catalogue was opened for
    another index.
    """

    def __init__(
        self,
        model: AnyModel,
        trie: Trie,
        catalogue: Catalogue | None = None,
        *,
        limits: Limits | None = None,
        num_beams: int = 20,
        max_batch: int = 16,
        max_queue: int = 256,
        timeout_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        sizes = tuple(model.vocabulary.codebook_sizes)
        if sizes != trie.codebook_sizes:
            raise CheckpointError(
                f"the model's codebooks are {sizes}, but the index has {trie.codebook_sizes}: they come from different "
                "Semantic IDs; train the model and build the index from the same table of them"
            )
        if catalogue is not None and catalogue.index_version != trie.version:
            raise ForeignFilterError(
                f"the catalogue's rules were made for index {catalogue.index_version}, but this is index {trie.version}: open "
                "the catalogue with this index"
            )
        self.limits = limits or Limits()
        if not 1 <= num_beams <= self.limits.max_beams:
            raise ArgumentError(f"num_beams has to be from 1 to {self.limits.max_beams}, not {num_beams}")
        self.model, self.trie, self.catalogue = model, trie, catalogue
        self._still = Version.of(trie)
        self._reader = Reader(trie.num_levels, model.config.max_position_embeddings)
        self._num_beams, self._max_batch, self._timeout_s, self._clock = num_beams, max_batch, timeout_s, clock
        self._batcher: Batcher[_Job] = Batcher(max_batch=max_batch, max_queue=max_queue)
        # Guards the batcher and the two flags; the worker sleeps on it while nothing waits.
        self._changed = threading.Condition()
        self._accepting = True
        self._worker: threading.Thread | None = None
        self._is_warm = False

    @classmethod
    def load(
        cls,
        model_dir: str | os.PathLike[str],
        index_path: str | os.PathLike[str],
        catalogue_path: str | os.PathLike[str] | None = None,
        rules: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        device: str = "cpu",
        limits: Limits | None = None,
        num_beams: int = 20,
        max_batch: int = 16,
        max_queue: int = 256,
        timeout_s: float = 10.0,
    ) -> "Engine":
        """An engine from files: a model's directory, an index, and if there are rules a catalogue.

        Raises CheckpointError, IndexFileError, DataError (the catalogue), RuleError, ArgumentError.
        """
        if rules is not None and catalogue_path is None:
            raise ArgumentError("rules need a catalogue to look at: pass catalogue_path too")
        trie = Trie.load(os.fspath(index_path))
        catalogue = None if catalogue_path is None else Catalogue.open(catalogue_path, trie, rules)
        return cls(
            load_model(model_dir, device=device),
            trie,
            catalogue,
            limits=limits,
            num_beams=num_beams,
            max_batch=max_batch,
            max_queue=max_queue,
            timeout_s=timeout_s,
        )

    @property
    def version(self) -> Version:
        """The index that the next request will be answered from: the catalogue's, which may change, or the trie."""
        return self._still if self.catalogue is None else self.catalogue.version()

    @property
    def queue_length(self) -> int:
        """How many requests wait."""
        return len(self._batcher)

    @property
    def is_running(self) -> bool:
        """The worker is there and takes requests."""
        return self._accepting and self._worker is not None and self._worker.is_alive()

    def warm_up(self) -> None:
        """Run a search of each kind, so that no request waits for a kernel to be compiled or a page to be read.

        Up to a minute on a machine's first run, then a fraction of a second; a second call costs nothing. Raises
        LogitsError for a model that cannot answer.
        """
        if not self._is_warm:
            some = _some_item(self.version)
            self.recommend(
                Request(history=some, deny_item_ids=some, num_items=1, num_beams=num_beams, scoring=scoring)
                for scoring in get_args(Scoring)
                for num_beams in (1, self._num_beams)
            )
            self._is_warm = True

    def start(self) -> None:
        """Warm up and start the worker. An engine starts once; `with engine:` starts and stops it."""
        if self._worker is not None:
            raise ArgumentError("this engine was started before: make another one")
        self.warm_up()
        self._worker = threading.Thread(target=self._work, name="pleach-engine", daemon=True)
        self._worker.start()

    def stop(self, grace_s: float = 30.0) -> None:
        """Take no more requests, run those that wait for up to `grace_s` seconds, refuse the rest, end the worker."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join(grace_s)
        self._refuse("the engine stopped before this request's turn came")

    def __enter__(self) -> "Engine":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def submit(self, request: Request) -> "Future[Result]":
        """Queue a request. Its rules are those of this moment, whatever is reloaded while it waits.

        Raises at once what is wrong with it: RequestError (over a limit), UnknownRuleError, ItemIdError (ids of another
        kind than the index's), OverloadedError (queue full, or stopping). The future raises OverloadedError if the
        request waited too long, and LogitsError if the model gave no usable numbers.
        """
        job = self._prepare(request)
        with self._changed:
            if not self.is_running:
                raise OverloadedError("the engine is not running, or stopping: it takes no requests now")
            self._batcher.add(job, key=job.key, deadline=job.prepared + self._timeout_s)
            self._changed.notify()
        return job.future

    def recommend(self, requests: Iterable[Request]) -> list[Result]:
        """Answer requests in this thread, in batches, in their order; the worker is not needed. Raises like `submit`."""
        jobs = [self._prepare(request) for request in requests]
        batcher: Batcher[_Job] = Batcher(max_batch=self._max_batch, max_queue=max(1, len(jobs)))
        for job in jobs:
            batcher.add(job, key=job.key)
        while batch := batcher.take(self._clock())[0]:
            self._postprocess(batch, self._run(batch))
        return [job.future.result() for job in jobs]

    def step(self) -> bool:
        """One batch, waiting for work if there is none; False once the engine stops and nothing is left."""
        jobs = self._schedule()
        if jobs is None:
            return False
        try:
            found = self._run(jobs)
            self._postprocess(jobs, found)
        except Exception as error:  # whatever it is belongs to these requests; the next batch starts afresh
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
        return True

    def _work(self) -> None:
        try:
            while self.step():
                pass
        finally:
            with self._changed:
                self._accepting = False
            self._refuse("the engine stopped before this request's turn came")

    def _prepare(self, request: Request) -> _Job:
        began = self._clock()
        self.limits.check(request)
        rules = None if self.catalogue is None else self.catalogue.rules
        wanted = Expression.of(request.rules, request.filter)
        if rules is None and wanted is not None:
            raise UnknownRuleError(f"unknown rule {min(wanted.names)[:80]!r}; this engine has no catalogue, so no rules")
        chosen = None if rules is None or wanted is None else rules.filter(wanted)
        version = self._still if rules is None else rules.version
        prompt = self._reader.read(request, version)
        prepared = self._clock()
        return _Job(
            request=request,
            prompt=prompt,
            version=version,
            chosen=chosen,
            rules_generation=None if rules is None else rules.generation,
            num_beams=max(request.num_beams or self._num_beams, request.num_items),
            future=Future(),
            prepared=prepared,
            prepare_s=prepared - began,
        )

    def _schedule(self) -> list[_Job] | None:
        """The next batch as soon as anything waits; None when there will be no more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._batcher) or not self._accepting)
                if not len(self._batcher):
                    return None
                batch, late = self._batcher.take(self._clock())
            for job in late:
                self._fail(job, f"no turn within {self._timeout_s:g} s: the server has more requests than it can answer")
            # A caller that went away has cancelled its future.
            if jobs := [job for job in batch if job.future.set_running_or_notify_cancel()]:
                return jobs

    def _run(self, jobs: Sequence[_Job]) -> _Found:
        """Prompts through the model once, then one constrained search over all of them."""
        began = self._clock()
        num_beams, scoring, _ = jobs[0].key
        tokens_BT, lengths_B = self.model.vocabulary.prompts([job.prompt.codes for job in jobs])
        device = self.model.device
        rounds = self.model.start(torch.from_numpy(tokens_BT).to(device), torch.from_numpy(lengths_B).to(device))
        model_s = self._clock() - began

        def step_fn(codes_BK: Any, parents_BK: Any) -> Any:
            nonlocal model_s
            started = self._clock()
            logits_BKV = rounds.step_fn(codes_BK, parents_BK)
            model_s += self._clock() - started
            return logits_BKV

        search = BeamSearch(jobs[0].version, num_beams=num_beams, scoring=scoring)
        filters = [job.chosen for job in jobs]
        deny = [job.prompt.deny for job in jobs]
        result = search.run(step_fn, batch_size=len(jobs), filters=filters, deny=deny)
        return _Found(search=result, began=began, model_s=model_s, constrain_s=self._clock() - began - model_s)

    def _postprocess(self, jobs: Sequence[_Job], found: _Found) -> None:
        """Rows of the search to results, each handed to whoever waits for it."""
        for row, job in enumerate(jobs):
            started = self._clock()
            num_valid = min(int(found.search.num_valid[row]), job.request.num_items)
            item_ids = found.search.item_ids[row][:num_valid].tolist()
            sids = found.search.codes[row, :num_valid].tolist()
            scores = found.search.scores[row, :num_valid].tolist()
            timings = Timings(
                prepare=job.prepare_s,
                queue=found.began - job.prepared,
                model=found.model_s,
                constrain=found.constrain_s,
                finish=self._clock() - started,
            )
            job.future.set_result(
                Result(
                    item_ids=tuple(item_ids),
                    sids=tuple(tuple(sid) for sid in sids),
                    scores=tuple(scores),
                    num_valid=num_valid,
                    num_beams=job.num_beams,
                    num_history_used=len(job.prompt.codes),
                    ignored_history=job.prompt.ignored_history,
                    ignored_deny=job.prompt.ignored_deny,
                    index_version=name_of(job.version),
                    rules_generation=job.rules_generation,
                    batch_size=len(jobs),
                    timings=timings,
                )
            )

    def _refuse(self, message: str) -> None:
        with self._changed:
            waiting = self._batcher.clear()
        for job in waiting:
            self._fail(job, message)

    def _fail(self, job: _Job, message: str) -> None:
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(OverloadedError(message))


def _some_item(version: Version) -> tuple[ItemId, ...]:
    """The id of a live item, if there is one."""
    for segment in version.segments:
        if segment.num_items:
            place = 0 if segment.live is None else int(segment.live.places.positions()[0])
            items = segment.trie.items
            return tuple(items.ids_of(items.order_N[place : place + 1]).tolist())
    return ()


def name_of(version: Version) -> str:
    """The fingerprint of a version's base, and how many changes were made since the first one, if any."""
    base = version.segments[0].trie.version
    return f"{base}+{version.number}" if version.number else base
