"""Whole decodes captured ahead, one graph for each bucket of batch, prompt length, width and scoring (xGR, section 7).

StaticDecode   the search in fixed shapes, which anything can run
Capturer       makes a replay of it: torch's CUDA graphs, or whatever a test brings
Graphs         which buckets there are, what they may cost, which one a batch takes, and what happens when the index changes
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.engine.counts import Counts
from leafbeam.engine.graphs.capturer import Capturer, CudaCapturer
from leafbeam.engine.graphs.device_index import DeviceFilters, DeviceIndex, TorchIndex, TritonIndex
from leafbeam.engine.graphs.static_decode import Bucket, DeviceFound, StaticDecode
from leafbeam.engine.settings import Settings
from leafbeam.index import Version
from leafbeam.model import Transformer
from leafbeam.model.static_runner import StaticRunner, attend
from leafbeam.ops.constrain import RequestFilter, Scoring

__all__ = ["Graphs", "buckets_of", "graphs_for"]

log = logging.getLogger("leafbeam.engine")

_SHORTEST = 32  # tokens of the smallest bucket


@dataclass(kw_only=True, eq=False)
class _Lane:
    """What one worker has: its decodes with their replays, cheapest first, and the filters of each batch size."""

    capturer: Capturer
    decodes: list[tuple[StaticDecode, Callable[[], None]]] = field(default_factory=list)
    filters: dict[int, DeviceFilters] = field(default_factory=dict)
    work_bytes: int = 0  # of the largest decode

    @property
    def nbytes(self) -> int:
        trays = sum(decode.nbytes for decode, _ in self.decodes) + sum(one.nbytes for one in self.filters.values())
        return trays + (self.work_bytes if self.capturer.nbytes is None else self.capturer.nbytes)


@dataclass(kw_only=True, eq=False)
class _Generation:
    """The lanes that were captured over one index, and the version that stands in it. users: batches that run."""

    index: DeviceIndex
    version: Version
    lanes: list[_Lane]
    users: int = 0


class Graphs:
    """The graphs of all workers, over one copy of weights and index.

    Think of it as a rack of machines that were set up before opening: `search` finds the cheapest that a batch fits, and says
    None where it has to be done by hand. Every batch is counted, "replayed" or why not:

        no_bucket   more requests, longer prompts, another width or scoring than were captured
        no_room     more denied items than a machine has room for
        version     another version of the index: it is being brought in, or it is an older one that a request still holds

    Deletions change filters alone, and nothing has to be done. Another new version of equal sizes is copied over the old one
    between two batches, and no graph is captured again. One of other sizes is captured again, in a thread of its own. Until
    either is done, its batches run by hand.

    buckets: tried from the largest on, each captured where it fits the rest of the budget: trays and filters, and what all
    decodes of a worker need in between, which they share. max_bytes: of all workers together, the index aside. bind: an index
    on the rounds' device. capturer: a new one for each worker.
    """

    def __init__(
        self,
        rounds: StaticRunner,
        version: Version,
        buckets: Sequence[Bucket],
        *,
        bind: Callable[[Version], DeviceIndex],
        capturer: Callable[[], Capturer],
        workers: int,
        max_bytes: int,
        counts: Counts,
    ) -> None:
        self._rounds, self._bind, self._counts = rounds, bind, counts
        self._buckets = sorted(buckets, key=_cost, reverse=True)
        self._capturer, self._workers, self._lane_bytes = capturer, workers, max_bytes // workers
        self._lock = threading.Condition()
        self._ready: tuple[Version, Any] | None = None  # arrays that wait for a moment without a batch
        self._coming: Version | None = None
        self._failed: Version | None = None
        self._generation: _Generation | None = self._captured(version)

    @property
    def captured(self) -> int:
        """How many decodes are ready, of all workers."""
        generation = self._generation
        return 0 if generation is None else sum(len(lane.decodes) for lane in generation.lanes)

    @property
    def nbytes(self) -> int:
        """Bytes that they hold, the index aside; in part estimated where the capturer cannot tell."""
        generation = self._generation
        return 0 if generation is None else sum(lane.nbytes for lane in generation.lanes)

    def search(
        self,
        worker: int,
        version: Version,
        tokens_BT: NDArray[np.int64],
        lengths_B: NDArray[np.int64],
        hi_SB: NDArray[np.int64],
        requests: Sequence[tuple[RequestFilter, ...]],
        *,
        width: int,
        scoring: Scoring,
    ) -> DeviceFound | None:
        """A batch, replayed; None where none of the graphs can. Raises LogitsError, and whatever the device raises."""
        with self._leased(version) as generation:
            if generation is None:
                return self._by_hand("version")
            lane = generation.lanes[worker]
            fitting = (
                pair for pair in lane.decodes if pair[0].bucket.holds(len(requests), int(lengths_B.max()), width, scoring)
            )
            decode, replay = next(fitting, (None, None))
            if decode is None or replay is None:
                return self._by_hand("no_bucket")
            with lane.capturer.stream():
                if not decode.load(tokens_BT, lengths_B, hi_SB, requests):
                    return self._by_hand("no_room")
                replay()
                found = decode.found(len(requests), len(version.segments))
            self._counts.add("graphs", "replayed")
            return found

    def settle(self, timeout_s: float = 60.0) -> bool:
        """Wait until no version is being brought in; False if that takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: self._coming is None or self._ready is not None, timeout_s)

    def _by_hand(self, reason: Literal["no_bucket", "no_room", "version"]) -> None:
        self._counts.add("graphs", reason)

    @contextmanager
    def _leased(self, version: Version) -> Generator[_Generation | None, None, None]:
        """The generation that holds this version, which stays in it meanwhile; None: not now."""
        generation = self._lease(version)
        try:
            yield generation
        finally:
            if generation is not None:
                with self._lock:
                    generation.users -= 1
                    self._lock.notify_all()

    def _lease(self, version: Version) -> _Generation | None:
        with self._lock:
            generation = self._generation
            if generation is None:
                self._bring_in(None, version)
                return None
            if not _of_equal_tries(version, generation.version):
                if self._ready is not None and self._ready[0] is version and not generation.users:
                    with generation.lanes[0].capturer.stream():
                        generation.index.take(self._ready[1])
                    generation.lanes[0].capturer.wait()
                    generation.version, self._ready, self._coming = version, None, None
                else:
                    self._bring_in(generation, version)
                    return None
            elif version.number > generation.version.number:
                generation.version = version  # so that nothing holds the one before
            generation.users += 1
            return generation

    def _bring_in(self, generation: _Generation | None, version: Version) -> None:
        """Begin to, unless it is older than what is there, or failed before, or another one is on its way."""
        known = [generation and generation.version, self._ready and self._ready[0]]
        ahead = max((one.number for one in known if one is not None), default=0)
        if version.number < ahead or version is self._failed or (self._coming is not None and self._ready is None):
            return
        self._coming, self._ready = version, None
        threading.Thread(target=self._prepare, args=(generation, version), name="leafbeam-graphs", daemon=True).start()

    def _prepare(self, generation: _Generation | None, version: Version) -> None:
        ready, again = None, None
        try:
            if generation is not None:
                ready = self._beside(generation, version)
                if ready is None:
                    self._give_up(generation)
            if ready is None:
                again = self._captured(version)
        except Exception:
            self._failed = version
            log.exception("graphs cannot be brought to version %d of the index: batches run without them", version.number)
        finally:
            with self._lock:
                self._ready = ready
                if ready is None:
                    self._coming, self._generation = None, again or self._generation
                self._lock.notify_all()

    def _beside(self, generation: _Generation, version: Version) -> tuple[Version, Any] | None:
        """A version's arrays, on the device; None where they do not fit over those that are there."""
        with generation.lanes[0].capturer.stream():
            arrays = generation.index.prepared(version)
        generation.lanes[0].capturer.wait()
        return (version, arrays) if generation.index.fits(arrays) else None

    def _give_up(self, generation: _Generation) -> None:
        """Free the memory of all graphs before that of the next ones is taken."""
        log.info("the index has other sizes: graphs are captured again, batches run without them meanwhile")
        with self._lock:
            self._lock.wait_for(lambda: not generation.users)
            self._generation = None
        generation.lanes.clear()

    def _captured(self, version: Version) -> _Generation:
        """Everything anew, for each worker as much as its part of the budget holds."""
        index = self._bind(version)
        end_code = version.segments[0].trie.end_code
        lanes = [_Lane(capturer=self._capturer()) for _ in range(self._workers)]
        for lane in lanes:
            for bucket in self._buckets:
                try:
                    self._add(lane, index, bucket, end_code)
                except (MemoryError, torch.OutOfMemoryError) as error:
                    log.warning("no memory to capture %s: %s", bucket, error)
            lane.decodes.reverse()
        generation = _Generation(index=index, version=version, lanes=lanes)
        total, wanted = sum(len(lane.decodes) for lane in lanes), len(lanes) * len(self._buckets)
        held = sum(lane.nbytes for lane in lanes)
        log.info("captured %d of %d graphs in %.1f MB", total, wanted, held / 2**20)
        return generation

    def _add(self, lane: _Lane, index: DeviceIndex, bucket: Bucket, end_code: int | None) -> None:
        filters = lane.filters.get(bucket.batch) or index.filters(bucket.batch)
        decode = StaticDecode(self._rounds, index, bucket, filters, end_code=end_code)
        grown = decode.nbytes + (0 if bucket.batch in lane.filters else filters.nbytes)
        grown += max(0, decode.work_bytes - lane.work_bytes)
        if lane.nbytes + grown > self._lane_bytes:
            return
        replay = lane.capturer.capture(decode)
        lane.filters[bucket.batch] = filters
        lane.decodes.append((decode, replay))
        lane.work_bytes = max(lane.work_bytes, decode.work_bytes)


def graphs_for(
    model: Transformer,
    version: Version,
    settings: Settings,
    *,
    longest: int,
    counts: Counts,
    capturer: Callable[[], Capturer] | None = None,
) -> Graphs:
    """What an engine captures when it starts: its own width, scoring "full", prompts of up to `longest` tokens.

    On a CUDA device with the Triton kernels, elsewhere (where a capturer has to be given) with plain torch.
    """
    device, capacity = model.device, settings.capacity
    on_gpu = device.type == "cuda"

    def bind(version: Version) -> DeviceIndex:
        return TritonIndex(version, device) if on_gpu else TorchIndex(version, device)

    return Graphs(
        StaticRunner(model, import_module("leafbeam.ops.attention.triton").attend if on_gpu else attend),
        version,
        buckets_of(
            batch=capacity.requests,
            tokens=capacity.tokens,
            beam_rows=capacity.beam_rows,
            longest=longest,
            width=settings.num_beams,
            scoring="full",
        ),
        bind=bind,
        capturer=capturer or (lambda: CudaCapturer(device)),
        workers=settings.workers,
        max_bytes=settings.graph_mb << 20,
        counts=counts,
    )


def buckets_of(*, batch: int, tokens: int, beam_rows: int, longest: int, width: int, scoring: Scoring) -> list[Bucket]:
    """Powers of two of requests and of tokens, as far as one batch may hold them; the longest prompt has a bucket of its own.

    >>> [(one.batch, one.length) for one in buckets_of(
    ...     batch=2, tokens=128, beam_rows=40, longest=100, width=20, scoring="full")]
    [(1, 32), (1, 64), (1, 100), (2, 32), (2, 64)]
    """
    batches = [2**power for power in range(batch.bit_length()) if 2**power < batch] + [batch]
    lengths = [_SHORTEST * 2**power for power in range(32) if _SHORTEST * 2**power < longest] + [longest]
    return [
        Bucket(batch=one, length=length, width=width, scoring=scoring)
        for one in batches
        for length in lengths
        if one * length <= tokens and one * width <= beam_rows
    ]


def _of_equal_tries(one: Version, other: Version) -> bool:
    """What differs is at most which of their items are alive, and that is the filters' to say."""
    pairs = zip(one.segments, other.segments, strict=False)
    return len(one.segments) == len(other.segments) and all(mine.trie is its.trie for mine, its in pairs)


def _cost(bucket: Bucket) -> tuple[int, int]:
    return bucket.padded_tokens, bucket.batch
