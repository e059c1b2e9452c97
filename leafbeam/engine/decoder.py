"""Runs one batch: the prefill of its prompts, then one constrained search over all of them.

Shapes: B requests, T tokens of the longest prompt, K beams, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.results import check_batch, collect_items, root_ranges
from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter
from leafbeam.model import AnyVocabulary, PromptStore, Transformer, Workspace
from leafbeam.ops.backend import IndexBindings

_LARGE_HEAD = 1 << 18  # weights of a level; listing the legal codes of a smaller one takes longer than multiplying all


class ModelRounds(Protocol):
    """The decode steps of one batch.

    A `suffix_fn` beside them scores forced suffixes in one pass, a `last_step_fn` some beams of the last level.
    """

    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Any: ...


class ModelConfig(Protocol):
    """The part of a model's configuration that the engine reads."""

    @property
    def max_position_embeddings(self) -> int: ...


class Model(Protocol):
    """The methods that an engine needs of a model; `Transformer` has them.

    `start` begins a search after prompts of `vocabulary.prompts`, padded on the right to lengths_B. It returns an object with
    the `step_fn` that `BeamSearch` takes, and optionally its `suffix_fn` and `last_step_fn`.
    """

    @property
    def vocabulary(self) -> AnyVocabulary: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor | None = None) -> ModelRounds: ...


class BatchAbandoned(Exception):
    """All requests of a batch were cancelled before its next decode step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOutput:
    """The search result of a batch, when it started, and the seconds of each stage."""

    search: SearchResult
    started: float
    prefill_s: float
    rounds_s: float
    constrain_s: float


class Decoder:
    """Runs the batches of one worker, one after the other, and times each stage.

    Before each decode step it checks that a request is left that is not cancelled; on a CPU the beams of a cancelled one run
    as one row from then on. Requests that name no beams get proved answers, with the widths that recent proofs needed.
    Float32 models on a CPU reuse one workspace for all batches. The search runs where the model's logits are; there the index
    stays bound for the next batch. On a device the seconds of decode steps are those of their launches.

    store: keys and values of recent prompts, shared by the workers; ArgumentError for models without a workspace.
    widths: what proofs needed, shared by the workers. max_rows: the most prefixes of a level that a proof may keep.
    graphs: captured searches, tried first. worker: the worker whose graphs to use.
    """

    def __init__(
        self,
        model: Model,
        clock: Callable[[], float],
        store: PromptStore | None = None,
        *,
        widths: SearchWidths | None = None,
        max_rows: int = 512,
        graphs: Graphs | None = None,
        worker: int = 0,
    ) -> None:
        self._has_workspace = isinstance(model, Transformer) and model.takes_workspace
        if store is not None and not self._has_workspace:
            raise ArgumentError("a prompt store needs a float32 model on a CPU: set prompt_store_mb to 0")
        self._model, self._clock, self._store = model, clock, store
        self._graphs, self._worker = graphs, worker
        self._widths, self._max_rows = widths or SearchWidths(), max_rows
        self.release_memory()

    def release_memory(self) -> None:
        """Free the workspace, the bound index and the levels' heads kept for the next batch."""
        self._bindings: IndexBindings | None = None
        self._heads: list[torch.Tensor] | None = None
        self._workspace = Workspace() if self._has_workspace else None

    def run(self, requests: Sequence[PendingRequest]) -> BatchOutput:
        """Search for requests with equal keys. Raises BatchAbandoned, LogitsError, and any error of the model."""
        started = self._clock()
        first, vocabulary, device = requests[0], self._model.vocabulary, self._model.device
        users = [pending.request.user for pending in requests] if vocabulary.num_users else None
        tokens_BT, lengths_B = vocabulary.prompts([pending.codes for pending in requests], users)
        filters, deny = [pending.item_filter for pending in requests], [pending.deny for pending in requests]
        explain = first.request.explain
        if self._graphs is not None and not explain:
            request_filters = check_batch(first.version, len(requests), filters, deny)
            replayed = self._replay(self._graphs, requests, request_filters, tokens_BT, lengths_B, started)
            if replayed is not None:
                return replayed
        start: Callable[..., ModelRounds] = self._model.start
        buffers: dict[str, Any] = {} if self._workspace is None else {"workspace": self._workspace, "store": self._store}
        heads = self._level_heads() if first.request.scoring == "allowed" else None
        if heads is not None:
            buffers["hidden"] = True
        rounds = start(torch.from_numpy(tokens_BT).to(device), torch.from_numpy(lengths_B).to(device), **buffers)
        prefill_s = self._clock() - started
        rounds_s = 0.0

        def timed(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def step(codes: Any, parents: Any) -> Any:
                nonlocal rounds_s
                _check_abandoned(requests)
                before = self._clock()
                logits = forward(*_of_waiting(requests, codes, parents))
                rounds_s += self._clock() - before
                return logits

            return step

        if self._bindings is None or self._bindings.version is not first.version:
            self._bindings = IndexBindings(first.version, like=self._bindings)
        search, num_first = self._search(requests, can_split=device.type == "cpu" and hasattr(rounds, "last_step_fn"))
        # A forced suffix is found by a look at the beams, for which a device would have to wait every round.
        suffix_fn = getattr(rounds, "suffix_fn", None) if device.type == "cpu" else None
        last_step_fn = None if num_first is None else getattr(rounds, "last_step_fn", None)
        result = search.run(
            timed(rounds.step_fn),
            batch_size=len(requests),
            filters=filters,
            deny=deny,
            suffix_fn=suffix_fn and timed(suffix_fn),
            explain=explain,
            last_step_fn=last_step_fn and timed(last_step_fn),
            num_first=num_first,
            head=heads,
            num_items=[pending.num_ranked for pending in requests],
        )
        if result.beams_needed is not None:
            for row, pending in enumerate(requests):
                if pending.kind is not None:
                    self._widths.observe(pending.kind, result.beams_needed[row : row + 1])
        constrain_s = self._clock() - started - prefill_s - rounds_s
        return BatchOutput(search=result, started=started, prefill_s=prefill_s, rounds_s=rounds_s, constrain_s=constrain_s)

    def _search(self, requests: Sequence[PendingRequest], *, can_split: bool) -> tuple[BeamSearch, int | None]:
        """Return the search of a batch, and the beams of the first call of its last level if that is called in parts."""
        assert self._bindings is not None
        first, num_levels = requests[0], self._bindings.version.num_levels
        scoring, kinds = first.request.scoring, [pending.kind for pending in requests if pending.kind is not None]
        if not kinds:
            beams = [first.num_beams] * (num_levels - 1) + [max(pending.num_ranked for pending in requests)]
            return BeamSearch(self._bindings, num_beams=beams, scoring=scoring), None
        widths, num_first = self._widths.first_pass(kinds, self._max_rows, can_split=can_split)
        num_items = max(kind.num_items for kind in kinds)
        search = BeamSearch(self._bindings, scoring=scoring, num_items=num_items, max_rows=self._max_rows, widths=widths)
        return search, num_first

    def _level_heads(self) -> list[torch.Tensor] | None:
        """Of a model whose search multiplies the head itself, for legal codes alone; None where all codes are cheaper."""
        if self._heads is None and self._has_workspace and isinstance(self._model, Transformer):
            largest = max(self._model.vocabulary.codebook_sizes) * self._model.config.hidden_size
            self._heads = self._model.level_heads() if largest >= _LARGE_HEAD else None
        return self._heads

    def _replay(
        self,
        graphs: Graphs,
        requests: Sequence[PendingRequest],
        filters: Sequence[Filter],
        tokens_BT: NDArray[np.int64],
        lengths_B: NDArray[np.int64],
        started: float,
    ) -> BatchOutput | None:
        """Return the search as one graph, timed as rounds; None if no graph fits."""
        first = requests[0]
        version, num_beams, scoring = first.version, first.size.num_beams, first.request.scoring
        hi_SB = root_ranges(version, filters)[1][:, :, 0]
        _check_abandoned(requests)
        before = self._clock()
        prompts = tokens_BT, lengths_B, hi_SB, filters
        last = graphs.search(self._worker, version, *prompts, num_beams=num_beams, scoring=scoring)
        if last is None:
            return None
        rounds_s = self._clock() - before
        result = collect_items(version, filters, *last, first.num_beams)
        constrain_s = self._clock() - started - rounds_s
        return BatchOutput(search=result, started=started, prefill_s=0.0, rounds_s=rounds_s, constrain_s=constrain_s)


def _check_abandoned(requests: Sequence[PendingRequest]) -> None:
    if all(pending.is_done for pending in requests):
        raise BatchAbandoned


def _of_waiting(requests: Sequence[PendingRequest], codes: Any, parents: Any) -> tuple[Any, Any]:
    """Return the model's input with the beams of cancelled requests replaced by copies of one row; on a device, unchanged."""
    done = [row for row, pending in enumerate(requests) if pending.is_done]
    if not done or not isinstance(codes, torch.Tensor) or codes.device.type != "cpu":
        return codes, parents
    codes, parents = codes.clone(), parents.clone()  # they are the search's
    codes[done] = parents[done] = 0
    return codes, parents


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory of any device ran out (torch's CPU allocator says so in its message only)."""
    is_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError)
