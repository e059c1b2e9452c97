"""Decodes captured ahead, one graph for each bucket of batch size and prompt length (xGR, section 7)."""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

import torch

from leafbeam.decode.config import SearchConfig, end_code_of
from leafbeam.decode.constraint import Trace
from leafbeam.engine.batcher import BatchSize, Capacity
from leafbeam.engine.counts import Counts
from leafbeam.engine.graphs.static_decode import BatchInputs, Bucket, DeviceIndex, StaticDecode
from leafbeam.engine.settings import Settings
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.index import Version
from leafbeam.model import EncoderDecoder, Transformer
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.attention.costs import AttentionCosts
from leafbeam.ops.attention.types import Attention
from leafbeam.ops.constrain import Scoring

if TYPE_CHECKING:  # needs Triton
    from leafbeam.ops.constrain.triton.step import VersionArrays

log = logging.getLogger("leafbeam.engine")

_MIN_LENGTH = 32  # tokens of the smallest bucket


class CudaCapturer:
    """torch.cuda's graphs, captured on one stream and in one memory pool.

    nbytes: the device's memory that captures took, without the buffers of decodes.

    A graph is replayed in the stream of the caller, in which its inputs are written.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.nbytes = device, 0
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def capture(self, decode: StaticDecode) -> Callable[[], None]:
        """Return a function that replays `decode.run()`, which runs once to compile its kernels and is then recorded."""
        self.wait()  # its inputs were written on another stream
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):  # torch.cuda.graph does not leave the stream if a capture fails
            decode.run()
            self.wait()
            free, _ = torch.cuda.mem_get_info(self._device)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                decode.run()
        # What torch reserves for the pool, and what the driver takes for the graph's nodes.
        self.nbytes += max(0, free - torch.cuda.mem_get_info(self._device)[0])
        return graph.replay

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)


@dataclass(kw_only=True, eq=False)
class _Captured:
    """The graphs over one index, cheapest first, and the version that it holds. is_busy: whether a batch runs."""

    index: DeviceIndex
    version: Version
    capturer: CudaCapturer
    decodes: list[tuple[StaticDecode, Callable[[], None]]] = field(default_factory=list)
    work_bytes: int = 0  # of the largest decode
    is_busy: bool = False

    @property
    def nbytes(self) -> int:
        return sum(decode.nbytes for decode, _ in self.decodes) + self.capturer.nbytes


class Graphs:
    """The graphs of an engine, over one copy of weights and index. Workers take turns.

    `search` replays the cheapest graph that holds a batch, or returns None: then the batch has to run eagerly. Every batch is
    counted, as "replayed" or by the reason why not:

        no_bucket     more requests, longer prompts or another number of beams than were captured (for a proof: a larger number)
        no_room       more denied items than a graph has space for
        version       another version of the index: it is being prepared, or it is an older one that a request still holds
        failed        the replay raised an error: the graph is not used again
        not_captured  the requests explain themselves, or have the scoring "vocabulary": no search of this kind is captured

    Deletions change only filters, so the graphs stay as they are. Any other new version is copied over the old one between
    two batches if its sizes are the same. If they are not, its graphs are captured anew, in a thread; until then its batches
    run eagerly. Nothing is captured within a request.

    buckets: the sizes to capture; the narrow ones first, of these the ones of scoring "full", of these the largest. Each is
    captured if its buffers, and the memory that all decodes share while they run, fit the rest of the budget. max_bytes: the
    budget, without the index. bind: puts an index on the model's device. capturer: makes a capturer.
    """

    def __init__(
        self,
        model: StaticModel,
        version: Version,
        buckets: Sequence[Bucket],
        *,
        bind: Callable[[Version], DeviceIndex],
        capturer: Callable[[], CudaCapturer],
        max_bytes: int,
        counts: Counts,
    ) -> None:
        self._model, self._bind, self._counts = model, bind, counts
        self._buckets = sorted(buckets, key=_priority, reverse=True)
        self._capturer, self._max_bytes = capturer, max_bytes
        self._lock = threading.Condition()
        self._prepared: tuple[Version, VersionArrays] | None = None  # arrays to copy when no batch runs
        self._preparing: Version | None = None
        self._failed: Version | None = None
        self._captured: _Captured | None = self._capture_all(version)

    def __str__(self) -> str:
        return f"{self.captured} of {len(self._buckets)} captured, {self.nbytes / 2**20:.1f} MB"

    @property
    def captured(self) -> int:
        """Return the number of decodes that are ready."""
        captured = self._captured
        return 0 if captured is None else len(captured.decodes)

    @property
    def nbytes(self) -> int:
        """Return the bytes allocated, without those of the index."""
        captured = self._captured
        return 0 if captured is None else captured.nbytes

    def skip(self) -> None:
        """Count a batch of a kind that is not captured."""
        self._counts.add("graphs", "not_captured")

    def search(
        self, batch: BatchInputs, *, num_beams: int, scoring: Scoring, is_proof: bool = False
    ) -> tuple[Trace, SearchConfig] | None:
        """Replay a batch, and return the search and its shapes; None where no graph can run it.

        num_beams, is_proof: the graph has exactly these beams or, for a pass of a proof, at least as many. Raises LogitsError.
        """
        requests, tokens, longest = len(batch.requests), int(batch.lengths_B.sum()), int(batch.lengths_B.max())
        size = BatchSize(requests=requests, tokens=tokens, longest=longest, beam_rows=0)
        with self._pinned(batch.version) as captured:
            reason, replay = "version", None
            if captured is not None:
                fitting = [
                    pair for pair in captured.decodes if pair[0].bucket.holds(size, num_beams, scoring, is_proof=is_proof)
                ]
                reason, replay = "no_bucket", None
                if fitting:
                    try:
                        reason, replay = _replayed(*fitting[0], batch)
                    except LogitsError:
                        raise
                    except Exception as error:
                        reason = "failed"
                        captured.decodes.remove(fitting[0])
                        log.warning("%s failed and is not used again; its batch runs eagerly: %s", fitting[0][0].bucket, error)
            self._counts.add("graphs", reason)
            return replay

    @contextmanager
    def _pinned(self, version: Version) -> Generator[_Captured | None, None, None]:
        """Return the graphs that hold this version, for one batch alone; None where there are none yet."""
        with self._lock:
            while (captured := self._captured) is not None and captured.is_busy and version.has_tries_of(captured.version):
                self._lock.wait()  # for the batch of another worker
            if captured is not None and self._advance(captured, version):
                captured.is_busy = True
            else:
                self._start_update(captured, version)
                captured = None
        try:
            yield captured
        finally:
            if captured is not None:
                with self._lock:
                    captured.is_busy = False
                    self._lock.notify_all()

    def _advance(self, captured: _Captured, version: Version) -> bool:
        """Return whether the graphs hold this version: they did, or its arrays are prepared and are copied now."""
        if version.has_tries_of(captured.version):
            if version.number > captured.version.number:
                captured.version = version  # so that the one before can be freed
            return True
        if self._prepared is None or self._prepared[0] is not version or captured.is_busy:
            return False
        arrays = self._prepared[1]
        self._prepared, self._preparing = None, None
        try:
            captured.index.replace(arrays)
            captured.capturer.wait()
        except Exception:  # what was copied so far belongs to no version
            self._captured, self._failed = None, version
            log.exception("version %d of the index cannot be copied to the graphs: batches run eagerly", version.number)
            return False
        captured.version = version
        return True

    def _start_update(self, captured: _Captured | None, version: Version) -> None:
        """Prepare a version, unless it is older than the present one, or failed before, or another one is being prepared."""
        known = [captured and captured.version, self._prepared and self._prepared[0]]
        newest = max((other.number for other in known if other is not None), default=0)
        if version.number < newest or version is self._failed or (self._preparing is not None and self._prepared is None):
            return
        self._preparing, self._prepared = version, None
        threading.Thread(target=self._update, args=(captured, version), name="leafbeam-graphs", daemon=True).start()

    def _update(self, captured: _Captured | None, version: Version) -> None:
        prepared, again = None, None
        try:
            prepared = None if captured is None else self._prepare(captured, version)
            if prepared is None:
                again = self._capture_all(version)
        except Exception:
            self._failed = version
            log.exception("graphs cannot be updated to version %d of the index: batches run eagerly", version.number)
        finally:
            with self._lock:
                self._prepared = prepared
                if prepared is None:
                    self._preparing, self._captured = None, again or self._captured
                self._lock.notify_all()

    def _prepare(self, captured: _Captured, version: Version) -> "tuple[Version, VersionArrays] | None":
        """Return a version's arrays on the device.

        If they do not fit over the present ones, it frees the present graphs and returns None.
        """
        arrays = captured.index.prepare(version)
        captured.capturer.wait()
        if captured.index.fits(arrays):
            return version, arrays
        log.info("the index has other sizes: graphs are captured again, batches run eagerly meanwhile")
        with self._lock:
            self._lock.wait_for(lambda: not captured.is_busy)
            self._captured = None
        captured.decodes.clear()
        return None

    def _capture_all(self, version: Version) -> _Captured:
        """Capture all graphs anew, as many as the budget holds. Raises RuntimeError if each of them fails."""
        begun = time.monotonic()
        captured = _Captured(index=self._bind(version), version=version, capturer=self._capturer())
        failures: list[str] = []  # the errors themselves would hold the buffers
        for bucket in self._buckets:
            try:
                self._capture(captured, bucket, end_code_of(version))
            except Exception as error:  # if memory runs out while torch captures, it may raise any error of CUDA
                failures.append(f"{bucket} cannot be captured: {error}")
                log.warning("%s", failures[-1])
        if failures and not captured.decodes:
            raise RuntimeError(failures[-1])
        captured.decodes.sort(key=lambda pair: _cost(pair[0].bucket))
        number, nbytes = len(captured.decodes), captured.nbytes / 2**20
        seconds = time.monotonic() - begun
        log.info("captured %d of %d graphs in %.1f MB and %.1f s", number, len(self._buckets), nbytes, seconds)
        return captured

    def _capture(self, captured: _Captured, bucket: Bucket, end_code: int | None) -> None:
        decode = StaticDecode(self._model, captured.index, bucket, end_code=end_code)
        added = decode.nbytes + max(0, decode.work_bytes - captured.work_bytes)
        if captured.nbytes + added > self._max_bytes:
            return
        replay = captured.capturer.capture(decode)
        captured.decodes.append((decode, replay))
        captured.work_bytes = max(captured.work_bytes, decode.work_bytes)


def _replayed(
    decode: StaticDecode, replay: Callable[[], None], batch: BatchInputs
) -> tuple[str, tuple[Trace, SearchConfig] | None]:
    """Replay a batch, and return "replayed" and the search, or why the graph cannot run it."""
    if not decode.load(batch):
        return "no_room", None
    replay()
    return "replayed", (decode.trace(len(batch.requests), len(batch.version.segments)), decode.config)


def _priority(bucket: Bucket) -> tuple[int, bool, int, int]:
    """Return the rank of a bucket: most batches need few beams and the default scoring; of these the largest comes first."""
    return -bucket.num_beams, bucket.scoring == "full", bucket.padded_tokens, bucket.batch


def _cost(bucket: Bucket) -> tuple[int, int, int]:
    return bucket.num_beams, bucket.padded_tokens, bucket.batch


def graphs_for(
    model: Transformer | EncoderDecoder,
    version: Version,
    settings: Settings,
    *,
    longest: int,
    counts: Counts,
    attention: Attention | None = None,
    index: Callable[..., DeviceIndex] = DeviceIndex,
    capturer: Callable[[torch.device], CudaCapturer] = CudaCapturer,
) -> Graphs:
    """Return an engine's graphs: its own number of beams or a few widths, prompts of up to `longest` tokens, and all scorings
    but "vocabulary".

    attention (None: Triton's), index, capturer: for a device that is not a GPU.
    """
    if attention is None:
        costs = None if settings.attention_costs is None else AttentionCosts.load(settings.attention_costs)
        attention = import_module("leafbeam.ops.attention.triton").attention(costs)
    return Graphs(
        StaticModel(model, attention),
        version,
        [
            bucket
            for scoring in get_args(Scoring)
            if scoring != "vocabulary"
            for num_beams in settings.captured_widths
            for bucket in buckets_of(
                settings.capacity,
                longest=longest,
                num_beams=num_beams,
                scoring=scoring,
                positions=model.prompt_positions,
            )
        ],
        bind=lambda version: index(version, model.device, max_filter_bytes=settings.filter_mb << 20),
        capturer=lambda: capturer(model.device),
        max_bytes=settings.graph_mb << 20,
        counts=counts,
    )


def buckets_of(
    capacity: Capacity,
    *,
    longest: int,
    num_beams: int,
    scoring: Scoring,
    positions: Callable[[int], int] = int,
) -> list[Bucket]:
    """Return powers of two of requests and of tokens, as far as a batch may hold them; the longest prompt has its own bucket.

    positions: how many positions of a batch's capacity a prompt of so many tokens takes.

    >>> capacity = Capacity(requests=2, tokens=128, beam_rows=40)
    >>> [(bucket.batch, bucket.length) for bucket in buckets_of(capacity, longest=100, num_beams=20, scoring="full")]
    [(1, 32), (1, 64), (1, 100), (2, 32), (2, 64)]
    """
    batches = [2**power for power in range(capacity.requests.bit_length()) if 2**power < capacity.requests]
    lengths = [_MIN_LENGTH * 2**power for power in range(32) if _MIN_LENGTH * 2**power < longest]
    return [
        Bucket(batch=size, length=length, num_beams=num_beams, scoring=scoring)
        for size in [*batches, capacity.requests]
        for length in [*lengths, longest]
        if size * positions(length) <= capacity.tokens and size * num_beams <= capacity.beam_rows
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """The graphs of an engine, or why it has none.

    Args:
        graphs: The graphs.
        why_none: Why there are no graphs; None if there are, or if the engine does not need any.
    """

    graphs: Graphs | None = None
    why_none: str | None = None

    @property
    def text(self) -> str | None:
        """Return in words how many graphs are ready, or why there is none; None for an engine that does not need any."""
        if self.graphs is not None and self.graphs.captured:
            return str(self.graphs)
        return None if self.why_none is None else f"none: {self.why_none}"


def check_can_be_captured(model: Any, *, is_on_gpu: bool) -> Transformer | EncoderDecoder:
    """Return the model, or raise ArgumentError if its searches cannot be captured."""
    if not (isinstance(model, Transformer | EncoderDecoder) and is_on_gpu):
        raise ArgumentError(
            f"graphs need a Transformer or an EncoderDecoder on a CUDA device, and this is a "
            f"{type(model).__name__} on {model.device}: load it with device='cuda', or leave graphs out"
        )
    return model


def capture(
    settings: Settings, model: object, new_graphs: Callable[[Transformer | EncoderDecoder], Graphs], *, is_on_gpu: bool
) -> Capture:
    """Capture graphs, unless the settings forbid it; without a GPU only if they ask for it.

    If the settings leave it open, an error is a reason to run without graphs, which is logged. Otherwise it is raised.
    """
    if settings.graphs is False or not (settings.graphs or is_on_gpu):
        return Capture()
    try:
        graphs = new_graphs(check_can_be_captured(model, is_on_gpu=is_on_gpu))
        why = None if graphs.captured else f"no graph fits in graph_mb={settings.graph_mb:,}: raise it"
    except Exception as error:
        if settings.graphs:
            raise
        graphs, why = None, str(error) or type(error).__name__
    if why is not None:
        log.warning("nothing is captured, and all batches run without graphs: %s", why)
    return Capture(graphs=graphs, why_none=why)
