"""Runs one batch: the prefill of its prompts, then one constrained search over all of them.

Shapes: B requests, T tokens of the longest prompt, K beams, L levels.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.decode.beam_search import result_of
from leafbeam.decode.policy import fill_lists
from leafbeam.decode.results import check_batch, collect_items
from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.request import PendingRequest
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.errors import ArgumentError
from leafbeam.model import AnyVocabulary, PromptStore, Transformer, Workspace
from leafbeam.ops.backend import IndexBindings, LatestBindings

Prompts = tuple[NDArray[np.int64], NDArray[np.int64]]
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
        timer = _Timer(requests, self._clock)
        prompts = self._prompts(requests)
        replayed = self._replay(requests, prompts, timer, on_pass)
        unmet: Sequence[tuple[int, ...]] = ()
        if replayed is not None and (_is_final(replayed.result, requests).all() or replayed.num_beams >= self._max_rows):
            result = replayed.result
        else:
            result, unmet = self._search(requests, prompts, timer, replayed, on_pass)
        for row, pending in enumerate(requests):
            if pending.kind is not None and result.beams_needed is not None:
                self._widths.observe(pending.kind, result.beams_needed[row : row + 1])
        return timer.output(result, np.ones(len(requests), np.bool_), unmet)

    def _prompts(self, requests: Sequence[PendingRequest]) -> Prompts:
        """Return the tokens (B, T) of the batch's prompts, padded on the right, and their lengths (B,)."""
        vocabulary = self._model.vocabulary
        users = [pending.request.user for pending in requests] if vocabulary.num_users else None
        return vocabulary.prompts([pending.codes for pending in requests], users)

    def _search(
        self,
        requests: Sequence[PendingRequest],
        prompts: Prompts,
        timer: "_Timer",
        replayed: "_Replayed | None",
        on_pass: Callable[[BatchOutput], None] | None,
    ) -> tuple[SearchResult, Sequence[tuple[int, ...]]]:
        """Run the prompts, and search; wider than the graphs, if there are any. Return what quotas miss, too."""
        first, device = requests[0], self._model.device
        start: Callable[..., ModelRounds] = self._model.start
        buffers: dict[str, Any] = {} if self._workspace is None else {"workspace": self._workspace, "store": self._store}
        heads = self._level_heads() if first.request.scoring == "allowed" else None
        if heads is not None:
            buffers["hidden"] = True
        if first.request.scoring == "vocabulary":
            buffers["other_tokens"] = True
        with timer.prefill():
            rounds = start(*(torch.from_numpy(array).to(device) for array in prompts), **buffers)
        # Only a CPU can look at the beams between two calls without a wait.
        on_cpu = device.type == "cpu"
        suffix_fn = getattr(rounds, "suffix_fn", None) if on_cpu else None
        more_fn = getattr(rounds, "more_fn", None) if on_cpu else None
        bindings, least = self._bindings.of(first.version), 1 if replayed is None else replayed.num_beams

        def after(result: SearchResult) -> None:
            if on_pass is not None and (final_B := _is_final(result, requests)).any():
                on_pass(timer.output(result, final_B))

        def run(filters: Any, deny: Any, num_items: Sequence[int], **more: Any) -> SearchResult:
            search, options = self._new_search(bindings, requests, max(num_items), least, has_spares=more_fn is not None)
            return search.run(
                timer.rounds(rounds.step_fn),
                batch_size=len(requests),
                filters=filters,
                deny=deny,
                suffix_fn=suffix_fn and timer.rounds(suffix_fn),
                more_fn=more_fn and timer.rounds(more_fn),
                explain=first.request.explain,
                head=heads,
                boosts=[pending.objectives.boost for pending in requests],
                num_items=num_items,
                **options,
                **more,
            )

        deny = [pending.deny for pending in requests]
        if first.searched_policy is None:
            filters, num_items = [pending.item_filter for pending in requests], [pending.num_ranked for pending in requests]
            found = run(filters, deny, num_items, first=None if replayed is None else replayed.result, on_pass=after)
            return found, ()
        policies = [pending.searched_policy for pending in requests if pending.searched_policy is not None]
        filters = check_batch(first.version, len(requests), [pending.item_filter for pending in requests], None)
        return fill_lists(first.version, policies, filters, deny, run)

    def _new_search(
        self, bindings: IndexBindings, requests: Sequence[PendingRequest], num_items: int, least: int, *, has_spares: bool
    ) -> tuple[BeamSearch, dict[str, Any]]:
        """Return the search of a batch, and the options by which its first pass suits each request.

        least: the beams that the first pass of a proof has at least.
        """
        first = requests[0]
        scoring = first.request.scoring
        widths_BL = np.array([pending.widths for pending in requests], np.int64)
        if first.kind is None:
            return BeamSearch(bindings, num_beams=[*widths_BL[0].tolist(), num_items], scoring=scoring), {}
        search = BeamSearch(bindings, scoring=scoring, num_items=num_items, max_rows=self._max_rows)
        # Without spare prefixes, the lowest one that runs shows that the others are not needed.
        return search, {"widths": np.maximum(widths_BL if has_spares else widths_BL + 1, least)}

    def _level_heads(self) -> list[torch.Tensor] | None:
        """Return the levels' heads, which the search multiplies for legal codes alone; None if all codes are cheaper."""
        if self._heads is None and self._has_workspace and isinstance(self._model, Transformer):
            largest = max(self._model.vocabulary.codebook_sizes) * self._model.config.hidden_size
            self._heads = self._model.level_heads() if largest >= _LARGE_HEAD and not self._model.logit_cap else None
        return self._heads

    def _replay(
        self,
        requests: Sequence[PendingRequest],
        prompts: Prompts,
        timer: "_Timer",
        on_pass: Callable[[BatchOutput], None] | None,
    ) -> "_Replayed | None":
        """Return the search as a graph, timed as rounds; None if no graph fits, or searches of this kind are not captured.

        The requests that are not proved are searched again with a wider graph, as long as there is one. A graph computes all of
        its beams whatever they score, so that a continuation with fewer live beams would take as long as a whole search.
        """
        request = requests[0].request
        if self._graphs is not None and (request.explain or request.has_objectives or request.scoring == "vocabulary"):
            self._graphs.skip()
            return None
        num_beams = max(pending.size.num_beams for pending in requests)
        if requests[0].kind is not None:
            num_beams = max(num_beams + 1, *(pending.num_ranked for pending in requests))
        replayed = self._replay_once(requests, prompts, timer, num_beams)
        while replayed is not None and not (final_B := _is_final(replayed.result, requests)).all():
            rows_n = np.flatnonzero(~final_B)
            open_requests, lengths_n = [requests[row] for row in rows_n.tolist()], prompts[1][rows_n]
            open_prompts = prompts[0][rows_n, : lengths_n.max()], lengths_n
            wider = self._replay_once(open_requests, open_prompts, timer, replayed.num_beams + 1)
            if wider is None:
                break
            if on_pass is not None and final_B.any():
                on_pass(timer.output(replayed.result, final_B))
            replayed = _Replayed(result=_with_rows(replayed.result, wider.result, rows_n), num_beams=wider.num_beams)
        return replayed

    def _replay_once(
        self, requests: Sequence[PendingRequest], prompts: Prompts, timer: "_Timer", num_beams: int
    ) -> "_Replayed | None":
        """Return one search, with the beams of the graph that ran it; a proof takes any graph of at least num_beams."""
        if self._graphs is None:
            return None
        first = requests[0]
        version, scoring, num_items = first.version, first.request.scoring, [pending.num_ranked for pending in requests]
        filters, deny = [pending.item_filter for pending in requests], [pending.deny for pending in requests]
        batch = check_batch(version, len(requests), filters, deny)
        replay = partial(self._graphs.search, num_beams=num_beams, scoring=scoring, is_proof=first.kind is not None)
        found = timer.rounds(replay)(version, *prompts, batch)
        if found is None:
            return None
        trace, config = found
        rows_B = 1 + sum((scores_BK > -np.inf).sum(1) for scores_BK in trace.kept.values())
        collect = partial(collect_items, version, batch)
        result = replace(result_of(trace, collect, config, num_items), rows=np.full(len(requests), rows_B))
        return _Replayed(result=result, num_beams=config.num_beams[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replayed:
    """The result of the graphs of a batch, and the number of beams of the widest one that ran."""

    result: SearchResult
    num_beams: int


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

    def rounds(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Count the seconds of a function's calls as those of rounds. The calls raise BatchAbandoned."""

        def timed(*arguments: Any) -> Any:
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


def _is_final(result: SearchResult, requests: Sequence[PendingRequest]) -> NDArray[np.bool_]:
    """Return which answers of a pass no later one would change: all of a search with fixed beams, and those that are proved."""
    if requests[0].kind is None:
        return np.ones(len(requests), np.bool_)
    return result.is_proved


def _with_rows(whole: SearchResult, part: SearchResult, rows_n: NDArray[np.int64]) -> SearchResult:
    """Return the result of a batch in which some requests were searched again."""
    changed: dict[str, Any] = {}
    for name in ("scores", "codes", "num_valid", "bound", "beams_needed"):
        after = getattr(part, name)
        changed[name] = getattr(whole, name).copy()
        if after.ndim > 1:  # as many columns as its longest answer has items
            changed[name][rows_n, : after.shape[1]] = after
        else:
            changed[name][rows_n] = after
    assert whole.rows is not None
    assert part.rows is not None
    rows, item_ids = whole.rows.copy(), list(whole.item_ids)
    rows[rows_n] += part.rows
    for row, ids in zip(rows_n.tolist(), part.item_ids, strict=True):
        item_ids[row] = ids
    return replace(whole, **changed, rows=rows, item_ids=item_ids, passes=whole.passes + part.passes)


def _of_waiting(requests: Sequence[PendingRequest], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return codes and parents, on a CPU with copies of one row in place of the beams of requests that are done."""
    done = [row for row, pending in enumerate(requests) if pending.is_done]
    if not done or not isinstance(arguments[0], torch.Tensor) or arguments[0].device.type != "cpu":
        return arguments
    codes, parents = arguments[0].clone(), arguments[1].clone()  # they are the search's
    codes[done] = parents[done] = 0
    return codes, parents, *arguments[2:]


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
