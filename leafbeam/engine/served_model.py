"""A model that an engine serves: the checks that it fits, its preparer of requests, its decoders, graphs and measurements."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from leafbeam.catalog import Catalog
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchOutput, Decoder, Model
from leafbeam.engine.graphs.graph import Capture, Graphs, capture, check_can_be_captured
from leafbeam.engine.prepare import RequestPreparer
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.engine.settings import Limits, Settings
from leafbeam.engine.tuning import Tuning
from leafbeam.engine.warm_up import choose_threads, measure_precision
from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.index import Version
from leafbeam.machine import return_freed_memory
from leafbeam.model import AnyModel, PromptStore, Transformer
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.ops.attention.costs import AttentionCosts
from leafbeam.ops.backend import LatestBindings

log = logging.getLogger("leafbeam.engine")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineParts:
    """The parts that all models of an engine share.

    Args:
        index: The catalog, or the version of an index without rules.
        settings: How the engine runs.
        limits: The bounds of one request.
        clock: Returns the time in seconds.
        widths: The numbers of beams that recent proofs needed.
        bindings: The index on the device.
        has_memory: Whether the engine has an item memory.
        new_graphs: Captures graphs, with the arguments of `graphs_for`.
        can_capture: Whether searches can be captured on the models' device.
    """

    index: Catalog | Version
    settings: Settings
    limits: Limits
    clock: Callable[[], float]
    widths: SearchWidths
    bindings: LatestBindings
    has_memory: bool
    new_graphs: Callable[..., Graphs]
    can_capture: bool


class ServedModel:
    """A model, and what an engine makes for it alone.

    Requests keep the decoders of the model that they were prepared for. So the requests of a batch have one model, and a model
    that was replaced is freed with its last request.

    Args:
        model: The model.
        parts: The parts that it shares with the engine's other models.

    Raises:
        CheckpointError: If the model's codebooks are not those of the index.
        ArgumentError: If the settings contradict the limits or the model.
    """

    def __init__(self, model: Model, parts: EngineParts) -> None:
        self.model, self._parts = model, parts
        self._settings, self._clock = parts.settings, parts.clock
        self.decoders: list[Decoder] = []
        self.preparer = RequestPreparer(
            model,
            parts.index,
            parts.settings,
            parts.limits,
            parts.clock,
            widths=parts.widths,
            has_memory=parts.has_memory,
            decoders=self.decoders,
        )
        _check(model, self.preparer.version, parts.settings, parts.limits, can_capture=parts.can_capture)
        settings = parts.settings
        self.prompt_store = PromptStore(settings.prompt_store_mb << 20) if settings.prompt_store_mb else None
        self.offline_decoder = self._decoder(model)
        self._offline_lock = threading.Lock()
        self.tuning = Tuning()
        self.capture = Capture()

    @property
    def version(self) -> str | None:
        """Return the version of the files that the model was loaded from; None for a model that was made in memory."""
        source = getattr(self.model, "source", None)
        return None if source is None else source.version

    def _decoder(self, model: Model, *, stores: bool = True, graphs: Graphs | None = None) -> Decoder:
        """Return a decoder for a model. stores: whether it uses the prompt store."""
        store = self.prompt_store if stores else None
        return Decoder(
            model,
            self._clock,
            store,
            widths=self._parts.widths,
            bindings=self._parts.bindings,
            max_rows=self._settings.max_rows,
            graphs=graphs,
        )

    def run_offline(self, batch: Sequence[PendingRequest]) -> BatchOutput:
        """Run a batch in this thread; threads take turns."""
        with self._offline_lock:
            self._choose_precision()
            return self.offline_decoder.run(batch)

    def _choose_precision(self) -> None:
        """Compare the products that the settings ask for with the model's, and take them or not; nothing on a second call."""
        precision = self._settings.precision
        if precision == "float32" or self.tuning.precision_report or not isinstance(self.model, AnyModel):
            return
        rounded = self.model.with_precision(precision)
        decoders = self._decoder(self.model, stores=False), self._decoder(rounded, stores=False)
        baseline = str(self.model.head_weight.dtype).removeprefix("torch.")
        with torch_threads(self._settings.threads or self._most_threads):
            report = measure_precision(self.preparer, self._settings, *decoders, self._clock, baseline)
        self.tuning = replace(self.tuning, precision_report=report, precision=precision if report.is_taken else "float32")
        if report.is_taken:
            self._round(rounded)
        else:
            log.warning("matrix products stay in float32, because %s is no faster here: %s", precision, report)

    def _round(self, rounded: AnyModel) -> None:
        self.model = rounded
        self.offline_decoder = self._decoder(rounded)

    @property
    def _most_threads(self) -> int:
        return max(1, torch.get_num_threads() // self._settings.workers)

    def tune(self) -> None:
        """Choose the number of threads, and measure the products that no batch has needed so far."""
        max_threads, times = self._most_threads, None
        if self._settings.threads is None and max_threads > 1 and self.model.device.type == "cpu":
            times = choose_threads(self.preparer, self._settings, self.offline_decoder, max_threads, self._clock)
        threads = times.count if times else self._settings.threads or max_threads
        self.tuning = replace(self.tuning, threads=threads, thread_times=times)
        self._tune_products()
        return_freed_memory()  # of the products that were not chosen
        if self.tuning.is_measured:
            log.info("tuned for this machine: %s", self.tuning)

    def tune_like(self, tuning: Tuning) -> None:
        """Take the threads and the precision of a model that is served meanwhile: measured beside it, times mean little."""
        self.tuning = tuning
        if tuning.precision != "float32" and isinstance(self.model, AnyModel):
            self._round(self.model.with_precision(tuning.precision))
            return_freed_memory()
        self._tune_products()

    def _tune_products(self) -> None:
        with torch_threads(self.tuning.threads or 1):
            products = self.model.tune_products() if isinstance(self.model, Transformer) else None
        self.tuning = replace(self.tuning, products=products)

    def make_decoders(self, counts: Counts) -> None:
        """Capture graphs, and make a decoder for each worker."""
        longest = self.preparer.num_tokens(self.preparer.max_history)
        sizes: dict[str, object] = {"longest": longest, "counts": counts}
        new_graphs = partial(self._parts.new_graphs, version=self.preparer.version, settings=self._settings, **sizes)
        self.capture = capture(self._settings, self.model, new_graphs, is_on_gpu=self._parts.can_capture)
        self.decoders += [self._decoder(self.model, graphs=self.capture.graphs) for _ in range(self._settings.workers)]


def _check(model: Model, version: Version, settings: Settings, limits: Limits, *, can_capture: bool) -> None:
    sizes = tuple(model.vocabulary.codebook_sizes)
    if sizes != version.codebook_sizes:
        raise CheckpointError(
            f"the model's codebooks are {sizes}, but the index has {version.codebook_sizes}: they come from different "
            "Semantic IDs; train the model and build the index from the same Semantic IDs"
        )
    if settings.beams > limits.max_beams:
        raise ArgumentError(
            f"num_beams={settings.beams} is above max_beams={limits.max_beams}: lower the first or raise the second"
        )
    for name, beams in (("max_beams", limits.max_beams), ("max_rows", settings.max_rows)):
        if settings.max_beam_rows < beams:
            raise ArgumentError(
                f"max_beam_rows={settings.max_beam_rows:,} cannot hold a request of {name}={beams:,}: "
                f"raise max_beam_rows or lower {name}"
            )
    if settings.graphs:
        check_can_be_captured(model, is_on_gpu=can_capture)
    if isinstance(model, AnyModel):
        model.check_precision(settings.precision)
    elif settings.precision != "float32":
        raise ArgumentError(
            f"precision={settings.precision!r} needs one of leafbeam's own models, and this is a {type(model).__name__}: "
            "set precision to 'float32'"
        )
    path, device = settings.attention_costs, model.device
    costs = None if path is None else AttentionCosts.load(path)
    if costs is not None and device.type == "cuda" and costs.device not in (None, torch.cuda.get_device_name(device)):
        raise ArgumentError(
            f"attention_costs are of {costs.device!r}, and this is {torch.cuda.get_device_name(device)!r}: "
            "run `make gpu` here, or leave them out"
        )
