"""One batch through the model: the prompts once, then the rounds of one constrained search over all of them.

Shapes: B requests, T tokens of the longest prompt, K beams, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.results import check_batch, collect_items, root_ranges
from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.pending_request import Job
from leafbeam.errors import ArgumentError
from leafbeam.model import AnyVocabulary, PromptStore, Transformer, Workspace

__all__ = ["Abandoned", "Decoder", "Found", "Model", "ModelConfig", "ModelRounds", "is_out_of_memory"]


class ModelRounds(Protocol):
    """A search's side of a model, such as DecodeSession."""

    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Any: ...


@runtime_checkable
class SuffixRounds(ModelRounds, Protocol):
    """The same, of a model that can score forced suffixes in one pass."""

    def suffix_fn(self, codes_BKT: Any, parents_BK: Any) -> Any: ...


class ModelConfig(Protocol):
    @property
    def max_position_embeddings(self) -> int: ...


class Model(Protocol):
    """What an engine asks of a model: Transformer has it, and so has whatever else runs prompts and answers rounds."""

    @property
    def vocabulary(self) -> AnyVocabulary: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor | None = None) -> ModelRounds: ...


class Abandoned(Exception):
    """Everybody who waited for a batch went away before its next round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a batch's search gave, when it began, and where its seconds went."""

    search: SearchResult
    began: float
    prefill_s: float
    rounds_s: float
    constrain_s: float


class Decoder:
    """Runs batches of one worker, one after the other.

    Think of it as the engine room of one ship: `run` starts the prompts (prefill), then lets the search ask the model for one
    round after the other, and knows how long each part took. Before each round it looks whether anybody still waits. Where the
    model can use one, it has a workspace of its own, so that one batch after the other allocates nothing.

    store: prompts seen lately, which workers share; for models that can have a workspace (ArgumentError for others).
    graphs: whole decodes captured ahead; what none of them can do is done as ever. worker: whose of them.
    """

    def __init__(
        self,
        model: Model,
        clock: Callable[[], float],
        store: PromptStore | None = None,
        *,
        graphs: Graphs | None = None,
        worker: int = 0,
    ) -> None:
        if store is not None and not _can_reuse(model):
            raise ArgumentError("prompts can be kept for float32 models on a CPU only: set prompt_store_mb to 0")
        self._model, self._clock, self._store = model, clock, store
        self._graphs, self._worker = graphs, worker
        self.forget()

    def forget(self) -> None:
        """Give back the memory that was kept for the next batch."""
        self._workspace = Workspace() if _can_reuse(self._model) else None

    def run(self, jobs: Sequence[Job]) -> Found:
        """Search for all jobs, which have equal keys. Raises Abandoned, LogitsError, and whatever the model raises."""
        began = self._clock()
        num_beams, scoring, _ = jobs[0].key
        vocabulary = self._model.vocabulary
        users = [job.request.user for job in jobs] if vocabulary.num_users else None
        tokens_BT, lengths_B = vocabulary.prompts([job.prompt.codes for job in jobs], users)
        if self._graphs is not None:
            replayed = self._replayed(self._graphs, jobs, tokens_BT, lengths_B, began)
            if replayed is not None:
                return replayed
        device = self._model.device
        rounds = self._start(torch.from_numpy(tokens_BT).to(device), torch.from_numpy(lengths_B).to(device))
        prefill_s = self._clock() - began
        rounds_s = 0.0

        def timed(ask: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def asked(codes: Any, parents: Any) -> Any:
                nonlocal rounds_s
                if all(job.is_over for job in jobs):
                    raise Abandoned
                started = self._clock()
                logits = ask(codes, parents)
                rounds_s += self._clock() - started
                return logits

            return asked

        search = BeamSearch(jobs[0].version, num_beams=num_beams, scoring=scoring)
        found = search.run(
            timed(rounds.step_fn),
            batch_size=len(jobs),
            filters=[job.chosen for job in jobs],
            deny=[job.prompt.deny for job in jobs],
            suffix_fn=timed(rounds.suffix_fn) if isinstance(rounds, SuffixRounds) else None,
        )
        constrain_s = self._clock() - began - prefill_s - rounds_s
        return Found(search=found, began=began, prefill_s=prefill_s, rounds_s=rounds_s, constrain_s=constrain_s)

    def _replayed(
        self, graphs: Graphs, jobs: Sequence[Job], tokens_BT: NDArray[np.int64], lengths_B: NDArray[np.int64], began: float
    ) -> Found | None:
        """The whole search as one graph, counted as rounds; None where there is no graph for it."""
        num_beams, scoring, _ = jobs[0].key
        version = jobs[0].version
        requests = check_batch(version, len(jobs), [job.chosen for job in jobs], [job.prompt.deny for job in jobs])
        hi_SB = root_ranges(version, requests)[1][:, :, 0]
        if all(job.is_over for job in jobs):
            raise Abandoned
        started = self._clock()
        last = graphs.search(self._worker, version, tokens_BT, lengths_B, hi_SB, requests, width=num_beams, scoring=scoring)
        if last is None:
            return None
        rounds_s = self._clock() - started
        ranges = last.lo_SBK, last.hi_SBK
        found = collect_items(version, requests, ranges, last.scores_BK, last.num_valid_B, num_beams)
        constrain_s = self._clock() - began - rounds_s
        return Found(search=found, began=began, prefill_s=0.0, rounds_s=rounds_s, constrain_s=constrain_s)

    def _start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor) -> ModelRounds:
        if self._workspace is not None and isinstance(self._model, Transformer):
            return self._model.start(tokens_BT, lengths_B, workspace=self._workspace, store=self._store)
        return self._model.start(tokens_BT, lengths_B)


def _can_reuse(model: Model) -> bool:
    """Whether searches of this model can run in memory that is written over."""
    if not isinstance(model, Transformer):
        return False
    weight = model.head_weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory, on whichever device (torch's CPU allocator says so in words only)."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
