"""Runs one batch: the prefill of its prompts, then one constrained search over all of them.

Shapes: B requests, T tokens of the longest prompt, K beams, L levels.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.policy import fill_lists
from leafbeam.decode.results import DenyLists, check_batch
from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.graphs.replays import Replayed, Replays, is_final
from leafbeam.engine.graphs.static_decode import BatchInputs
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter
from leafbeam.model import AnyVocabulary, PromptStore, Transformer, Workspace
from leafbeam.ops.backend import LatestBindings
from leafbeam.ops.constrain import Boosts

Prompts = tuple[NDArray[np.int64], NDArray[np.int64]]
Answer = TypeVar("Answer")
_LARGE_HEAD = 1 << 18  # weights of a level; listing the legal codes of a smaller one takes longer than multiplying all


class ModelRounds(Protocol):
    """The decode steps of one batch.

    The object may also have a `suffix_fn`, which scores forced suffixes in one pass, and a `more_fn`, which runs more beams of
    an earlier level.
    """

    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Any: ...


class ModelConfig(Protocol):
    """The part of a model's configuration that the engine reads."""

    @property
    def max_position_embeddings(self) -> int: ...


class Model(Protocol):
    """The methods that an engine needs of a model; `Transformer` has them.

    `start` begins a search after prompts of `vocabulary.prompts`, padded on the right to lengths_B. It returns an object with
    the `step_fn` that `BeamSearch` takes, and optionally its `suffix_fn` and `more_fn`.
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
    """The search result of a batch, when it started, and the seconds of each stage.

    final_B: True for each request that no later pass searches again. unmet: how many items each quota of each request misses.
    """

    search: SearchResult
    final_B: NDArray[np.bool_]
    started: float
    prefill_s: float
    rounds_s: float
    constrain_s: float
    unmet: Sequence[tuple[int, ...]] = ()


class Decoder:
    """Runs the batches of one worker, one after the other, and times each stage.

    Before each decode step it checks that a request is left that is not cancelled; on a CPU the beams of a cancelled request
    run as one row from then on. Requests that do not set a number of beams get proved answers, with the widths that recent
    proofs needed. Float32 models on a CPU reuse one workspace for all batches. The search runs where the model's logits are;
    there the index stays bound for the next batch. On a device the seconds of decode steps are those of their launches.

    store: keys and values of recent prompts, shared by the workers; ArgumentError for models without a workspace.
    widths: what proofs needed, bindings: the index on the device; both are shared by the workers. max_rows: the most
    prefixes of a level that a proof may keep.
    graphs: captured searches, tried first. A proof that needs more beams takes a wider graph; if there is none, it runs
    without a graph.
    """

    def __init__(
        self,
        model: Model,
        clock: Callable[[], float],
        store: PromptStore | None = None,
        *,
        widths: SearchWidths | None = None,
        max_rows: int = 512,
        bindings: LatestBindings | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self._has_workspace = isinstance(model, Transformer) and model.takes_workspace
        if store is not None and not self._has_workspace:
            raise ArgumentError("a prompt store needs a float32 model on a CPU: set prompt_store_mb to 0")
        self._model, self._clock, self._store = model, clock, store
        self._graphs = graphs
        self._bindings = bindings or LatestBindings()
        self._widths, self._max_rows = widths or SearchWidths(), max_rows
        self.release_memory()

    def release_memory(self) -> None:
        """Free the workspace, the bound index and the levels' heads kept for the next batch."""
        self._bindings.release()
        self._heads: list[torch.Tensor] | None = None
        self._workspace = Workspace() if self._has_workspace else None

    def run(self, requests: Sequence[PendingRequest], on_pass: Callable[[BatchOutput], None] | None = None) -> BatchOutput:
        """Search for requests with equal keys. Raises BatchAbandoned, LogitsError, and any error of the model.

        on_pass: called with the output of each pass but the last, so that final answers need not wait for the others.
        """
        timer, prompts = _Timer(requests, self._clock), self._prompts(requests)
        policies = [pending.searched_policy for pending in requests if pending.searched_policy is not None]
        batch = _Batch(requests=requests, prompts=prompts, timer=timer, on_pass=None if policies else on_pass)
        filters = [pending.item_filter for pending in requests]
        unmet: Sequence[tuple[int, ...]] = ()
        if policies:
            result, unmet = fill_lists(requests[0].version, policies, filters, partial(self._search, batch))
        else:
            result = self._search(batch, filters, None, [pending.num_ranked for pending in requests])
        for row, pending in enumerate(requests):
            if pending.kind is not None and result.beams_needed is not None:
                self._widths.observe(pending.kind, result.beams_needed[row : row + 1])
        return timer.output(result, np.ones(len(requests), np.bool_), unmet)

    def _prompts(self, requests: Sequence[PendingRequest]) -> Prompts:
        """Return the tokens (B, T) of the batch's prompts, padded on the right, and their lengths (B,)."""
        vocabulary = self._model.vocabulary
        users = [pending.request.user for pending in requests] if vocabulary.num_users else None
        return vocabulary.prompts([pending.codes for pending in requests], users)

    def _search(self, batch: "_Batch", filters: Sequence[Filter], deny: DenyLists, num_items: Sequence[int]) -> SearchResult:
        """Return the best items of each request: by the graphs, and then without them if these have not proved all."""
        replayed = None
        if self._graphs is not None:
            replays = Replays(graphs=self._graphs, requests=batch.requests, timed=batch.timer.rounds, on_pass=batch.report)
            replayed = replays.search(batch.inputs(filters, deny), num_items)
        if replayed is not None and (is_final(replayed.result, batch.requests).all() or replayed.num_beams >= self._max_rows):
            return replayed.result
        return self._search_eagerly(batch, replayed, filters, deny, num_items)

    def _search_eagerly(
        self,
        batch: "_Batch",
        replayed: Replayed | None,
        filters: Sequence[Filter],
        deny: DenyLists,
        num_items: Sequence[int],
    ) -> SearchResult:
        """Search wider than the graphs, if there are any."""
        requests, timer = batch.requests, batch.timer
        first, device = requests[0], self._model.device
        if batch.rounds is None:
            batch.rounds = self._start(batch)
        rounds = batch.rounds
        # Only a CPU can look at the beams between two calls without a wait.
        on_cpu = device.type == "cpu"
        suffix_fn = getattr(rounds, "suffix_fn", None) if on_cpu else None
        more_fn = getattr(rounds, "more_fn", None) if on_cpu else None
        min_beams = 1 if replayed is None else replayed.num_beams
        search, widths_BL = self._new_search(requests, max(num_items), min_beams, has_spares=more_fn is not None)
        return search.run(
            timer.rounds(rounds.step_fn),
            batch_size=len(requests),
            filters=filters,
            deny=deny,
            suffix_fn=suffix_fn and timer.rounds(suffix_fn),
            more_fn=more_fn and timer.rounds(more_fn),
            explain=first.request.explain,
            head=self._heads_for(first),
            boosts=batch.boosts,
            num_items=num_items,
            first=None if replayed is None else replayed.result,
            on_pass=batch.report,
            widths=widths_BL,
        )

    def _start(self, batch: "_Batch") -> ModelRounds:
        """Run the prompts."""
        first, device = batch.requests[0], self._model.device
        buffers: dict[str, object] = {} if self._workspace is None else {"workspace": self._workspace, "store": self._store}
        if self._heads_for(first) is not None:
            buffers["hidden"] = True
        if first.request.scoring == "vocabulary":
            buffers["other_tokens"] = True
        start: Callable[..., ModelRounds] = self._model.start
        with batch.timer.prefill():
            return start(*(torch.from_numpy(array).to(device) for array in batch.prompts), **buffers)

    def _new_search(
        self, requests: Sequence[PendingRequest], num_items: int, min_beams: int, *, has_spares: bool
    ) -> tuple[BeamSearch, NDArray[np.int64] | None]:
        """Return the search of a batch, and the widths by which its first pass suits each request.

        min_beams: the beams that the first pass of a proof has at least.
        """
        first = requests[0]
        scoring, bindings = first.request.scoring, self._bindings.of(first.version)
        widths_BL = np.array([pending.widths for pending in requests], np.int64)
        if first.kind is None:
            # With boosts the items of a leaf may score less than it does: as many leaves as beams are ranked, as by a graph.
            leaves = max(num_items, first.size.num_beams) if first.request.boosts else num_items
            return BeamSearch(bindings, num_beams=[*widths_BL[0].tolist(), leaves], scoring=scoring), None
        search = BeamSearch(bindings, scoring=scoring, num_items=num_items, max_rows=self._max_rows)
        # Without spare prefixes, the lowest one that runs shows that the others are not needed.
        return search, np.maximum(widths_BL if has_spares else widths_BL + 1, min_beams)

    def _heads_for(self, pending: PendingRequest) -> list[torch.Tensor] | None:
        """Return the levels' heads, which the search multiplies for legal codes alone; None if all codes are cheaper."""
        if pending.request.scoring != "allowed":
            return None
        if self._heads is None and self._has_workspace and isinstance(self._model, Transformer):
            largest = max(self._model.vocabulary.codebook_sizes) * self._model.config.hidden_size
            self._heads = self._model.level_heads() if largest >= _LARGE_HEAD and not self._model.logit_cap else None
        return self._heads


@dataclass(kw_only=True, eq=False)
class _Batch:
    """A batch while it runs. rounds: of the model, once its prompts have run without a graph."""

    requests: Sequence[PendingRequest]
    prompts: Prompts
    timer: "_Timer"
    on_pass: Callable[[BatchOutput], None] | None
    rounds: ModelRounds | None = None

    @property
    def boosts(self) -> Boosts:
        """Return the boost of each request; None if no request has one."""
        boosts = [pending.objectives.boost for pending in self.requests]
        return boosts if any(boost is not None for boost in boosts) else None

    def inputs(self, filters: Sequence[Filter], deny: DenyLists) -> BatchInputs:
        """Return what a graph reads of a search for items of these filters."""
        version = self.requests[0].version
        requests = check_batch(version, len(self.requests), filters, deny)
        tokens_BT, lengths_B = self.prompts
        return BatchInputs(version=version, tokens_BT=tokens_BT, lengths_B=lengths_B, requests=requests, boosts=self.boosts)

    def report(self, result: SearchResult) -> None:
        """Hand over the answers of a pass that no later one changes."""
        if self.on_pass is not None and (final_B := is_final(result, self.requests)).any():
            self.on_pass(self.timer.output(result, final_B))


class _Timer:
    """The seconds of the stages of a batch, whose requests may be cancelled before each round."""

    def __init__(self, requests: Sequence[PendingRequest], clock: Callable[[], float]) -> None:
        self._requests, self._clock, self._started = requests, clock, clock()
        self._prefill_s = self._rounds_s = 0.0

    @contextmanager
    def prefill(self) -> Generator[None]:
        """Count the seconds of the block as those of the prompts."""
        before = self._clock()
        yield
        self._prefill_s += self._clock() - before

    def rounds(self, forward: Callable[..., Answer]) -> Callable[..., Answer]:
        """Count the seconds of a function's calls as those of rounds. The calls raise BatchAbandoned."""

        def timed(*arguments: object) -> Answer:
            if all(pending.is_done for pending in self._requests):
                raise BatchAbandoned
            before = self._clock()
            result = forward(*_of_waiting(self._requests, arguments))
            self._rounds_s += self._clock() - before
            return result

        return timed

    def output(self, search: SearchResult, final_B: NDArray[np.bool_], unmet: Sequence[tuple[int, ...]] = ()) -> BatchOutput:
        """Return what the batch has found so far."""
        constrain_s = self._clock() - self._started - self._prefill_s - self._rounds_s
        return BatchOutput(
            search=search,
            final_B=final_B,
            started=self._started,
            prefill_s=self._prefill_s,
            rounds_s=self._rounds_s,
            constrain_s=constrain_s,
            unmet=unmet,
        )


def _of_waiting(requests: Sequence[PendingRequest], arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Return codes and parents, on a CPU with copies of one row in place of the beams of requests that are done."""
    done = [row for row, pending in enumerate(requests) if pending.is_done]
    if not done or len(arguments) < 2:  # a graph takes its inputs as one argument
        return arguments
    codes, parents, *others = arguments
    if not isinstance(codes, torch.Tensor) or not isinstance(parents, torch.Tensor) or codes.device.type != "cpu":
        return arguments
    codes, parents = codes.clone(), parents.clone()  # they are the search's
    codes[done] = parents[done] = 0
    return codes, parents, *others


def is_device_lost(error: BaseException) -> bool:
    """Return whether a GPU failed for good: no later operation of this process would run on it."""
    lost = getattr(torch, "AcceleratorError", None)
    is_of_device = isinstance(error, RuntimeError) and (
        (lost is not None and isinstance(error, lost)) or "CUDA error" in str(error)
    )
    return is_of_device and not is_out_of_memory(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory of any device ran out (torch's CPU allocator says so in its message only)."""
    is_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError)
