"""Constrained beam search over the items of an index.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig, beams_of_levels, end_code_of
from leafbeam.decode.constraint import Constraint, Trace, TrieConstraint, decode, raise_if_bad, rounds
from leafbeam.decode.head_constraint import HeadConstraint
from leafbeam.decode.model_calls import JumpForward, ModelCalls, StepFn, SuffixFn
from leafbeam.decode.results import (
    BatchFilters,
    BeamLevel,
    DenyLists,
    SearchResult,
    check_batch,
    collect_items,
    root_ranges,
)
from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Trie, Version
from leafbeam.ops.backend import BoundIndex, IndexBindings, namespace_of, to_numpy
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring
from leafbeam.ops.head import HeadCosts

Requests = Sequence[tuple[RequestFilter, ...]]
ConstraintOf = Callable[[BoundIndex, Requests, NDArray[np.int64]], Constraint]


class ItemSearch:
    """A search over an index: `BeamSearch` or `Sampler`."""

    def __init__(
        self, index: Trie | Version | IndexBindings, config: SearchConfig, num_items: int, backend: str, device: Any
    ) -> None:
        self._bindings = index if isinstance(index, IndexBindings) else IndexBindings(index)
        self.version = self._bindings.version
        self.config, self.num_items = config, num_items
        self.backend, self.device = backend, device
        if (backend, device) != ("auto", "auto"):
            self._bindings.on(backend, device)

    def _run(
        self, requests: Requests, model: ModelCalls, constraint_of: ConstraintOf, *, watch: bool, explain: bool = False
    ) -> SearchResult:
        """From filters to items. watch: see `decode`. explain: whether the result has the beams of each level."""
        version = self.version
        hi_SB = root_ranges(version, requests)[1][:, :, 0]
        if not hi_SB.any():  # nothing may be shown: the model is not called
            nothing = np.zeros((*hi_SB.shape, 1), np.int64)
            scores_B1, num_valid_B = np.zeros((len(requests), 1), np.float32), np.zeros(len(requests), np.int64)
            result = collect_items(version, requests, (nothing, nothing), scores_B1, num_valid_B, self.num_items)
            return replace(result, num_exact=num_valid_B)
        bound = self._bindings.on(self.backend, self.device, model.first_logits)
        constraint = constraint_of(bound, requests, hi_SB)
        watch = watch or bound.waits
        levels: list[BeamLevel] = []
        trace = _explained(constraint, model, levels, watch=watch) if explain else decode(constraint, model, watch=watch)
        raise_if_bad(constraint)
        lo_SBK, hi_SBK, scores_BK = (to_numpy(array) for array in (trace.beams.lo, trace.beams.hi, trace.beams.scores))
        result = collect_items(
            version, requests, (lo_SBK, hi_SBK), scores_BK, trace.num_valid_B, self.num_items, trace.rounds_saved
        )
        num_exact = self._num_exact(result.scores, trace)
        return replace(result, levels=tuple(levels), beams_needed=trace.needed_B, num_exact=num_exact)

    def _num_exact(self, scores_BK: NDArray[np.float32], trace: Trace) -> NDArray[np.int64]:
        """How many scores of each request lie above every prefix that a level before the last dropped. See `SearchResult`."""
        beams, num_nodes = self.config.num_beams, self.version.num_nodes
        lowest = [trace.lowest[level] for level in trace.lowest if level < len(beams) - 1 and beams[level] < num_nodes(level)]
        highest_B = to_numpy(namespace_of(lowest[0]).stack(lowest)).max(0) if lowest else np.full(len(scores_BK), -np.inf)
        return (scores_BK > highest_B[:, None]).sum(1)


class BeamSearch(ItemSearch):
    """Beam search over the Semantic IDs of an index; every beam is a leaf range, so it can only reach items that exist.

    Only the leaves found come to the host, once per search. The index is copied to a device at the first search there, or at
    once with an explicit backend.

    Args:
        index: A trie, or a version of a live index.
        num_beams: One number, or one for each level (`[64, 128, 256]`); the last is the number of items of an answer. 1 is
            greedy.
        scoring: "full" adds log-softmax over the level's whole codebook (STATIC), "allowed" over the legal codes alone (xGR).
        backend: What runs the search (see `leafbeam.ops.backend`). "auto" is decided by the first logits: numpy and torch on a
            CPU run on "cpu", torch on a GPU on "triton" (or "torch"), and arrays of jax on "jax".
        device: Where the search runs; "auto" is where the first logits are.

    Examples:
        >>> search = BeamSearch(index, num_beams=70)
        >>> result = search.run(step_fn, batch_size=2, filters=[fresh, None])
        >>> result.item_ids[0][:10], result.scores[0, :10]
    """

    def __init__(
        self,
        index: Trie | Version | IndexBindings,
        num_beams: int | Sequence[int] = 20,
        scoring: Scoring = "full",
        backend: str = "auto",
        device: Any = "auto",
    ) -> None:
        version = index.version if isinstance(index, IndexBindings) else Version.of(index)
        config = SearchConfig.of(version, num_beams, scoring)
        num_items = beams_of_levels(num_beams, version.num_levels)[-1]
        super().__init__(index, config, num_items, backend, device)

    def __repr__(self) -> str:
        config = self.config
        return (
            f"BeamSearch({counted(self.version.num_items, 'item')}, num_beams={config.num_beams}, scoring={config.scoring!r})"
        )

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: BatchFilters = None,
        deny: DenyLists = None,
        suffix_fn: SuffixFn | None = None,
        explain: bool = False,
        *,
        last_step_fn: StepFn | None = None,
        num_first: int | None = None,
        head: Sequence[Any] | None = None,
        costs: HeadCosts | None = None,
    ) -> SearchResult:
        """Decode a batch of requests, each with its own filter and its own denied items.

        The search calls step_fn L times; on a CPU or with suffix_fn it calls it less often where no beam is left or every beam
        has ended. On a device that look waits every round; without suffix_fn a search waits once.

        Args:
            step_fn: `step_fn(codes_BK, parents_BK)` returns logits. The first call passes (None, None) and expects (B, V) for
                level 0. Each later call passes the code that every beam just took and the beam of the previous round that it
                extends (int64, int32 for jax; 0 for dead beams), and expects (B, K, V). Arrays have the type and the device of
                the first logits.
            batch_size: The number of requests, B.
            filters: A filter for each request; None allows all items.
            deny: The denied item ids of each request. Ids that the index does not have change nothing.
            suffix_fn: `suffix_fn(codes_BKT, parents_BK)` returns the logits of T levels, each (B, K, V of the level). As soon
                as all live beams have one allowed item left, it is called once in place of T calls of step_fn, with the same
                answer. The codes are the one that every beam just took and those that must follow, except for the last. With
                scoring "allowed" not even this call is made, and on a CPU a beam with one allowed item left reaches step_fn and
                last_step_fn as a copy of another, which a `Transformer` does not run again: its score no longer changes, unless
                the model excludes a forced code by a logit of -inf (in that case pass no suffix_fn).
            explain: If true, the result has the beams of each level (`SearchResult.levels`). The search then waits for a device
                every round and does not use suffix_fn, so that every level has its scores.
            last_step_fn: `last_step_fn(codes_BJ, parents_BJ)` returns logits (B, J, V). If the last level keeps fewer beams
                than the level before it (`num_beams=[128, 128, 10]`), it is called in place of step_fn for the last level: for
                the best beams, and a second time for the later ones that may still be among the kept ones, if there are any.
                Parents are the same beams both times. This is exact and needs a CPU. It pays where the model is sure of the
                last code (see `SearchResult.beams_needed`).
            num_first: The number of beams of the first call of last_step_fn; by default as many as the last level keeps.
            head: For each level the rows of the model's head for its codes, (V, D), float32 on a CPU, otherwise where the
                logits would be. The functions then return hidden states, (B, D) and later (B, K, D). With scoring "allowed" the
                head is multiplied for legal codes alone in rounds where that is expected to take less time: large codebooks
                with few children. It needs the backend "cpu", or "triton", which then waits in every such round.
            costs: The measured costs of this machine, by which `head` decides; None uses estimates.

        Raises:
            ArgumentError: If the arguments contradict each other or the backend.
            ForeignFilterError: If a filter was made for another index.
            ItemIdError: If a denied id is of the wrong kind.
            LogitsError: If the logits have the wrong shape, or are NaN or +inf.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        if num_first is not None and num_first < 1:
            raise ArgumentError(f"num_first is {num_first}: expected a positive number of beams, or None")
        suffix_fn = None if explain else suffix_fn
        are_certain = None if suffix_fn is None or self.config.scoring == "full" else partial(_are_certain, requests)
        model = ModelCalls(step_fn, suffix_fn, last_step_fn, num_first, are_certain)
        constraint_of = partial(self._constraint, head, costs)
        return self._run(requests, model, constraint_of, watch=suffix_fn is not None, explain=explain)

    def _constraint(
        self,
        head: Sequence[Any] | None,
        costs: HeadCosts | None,
        bound: BoundIndex,
        requests: Requests,
        hi_SB: NDArray[np.int64],
    ) -> TrieConstraint:
        ops: Any = bound.ops
        filters, scoring = ops.bind_filters(bound.arrays, requests), self.config.scoring

        def launch(level: int, beams: Beams[Any], logits_BKV: Any, num_beams: int) -> tuple[Beams[Any], Any]:
            arguments = (bound.arrays, level, beams.lo, beams.hi, beams.scores, logits_BKV, filters)
            if bound.waits:
                return ops.step(*arguments, num_beams=num_beams, scoring=scoring), None
            return ops.launch(*arguments, num_beams=num_beams, scoring=scoring)

        arguments = self.config, bound.to_device(hi_SB), launch, partial(_forced_suffix, self.version, requests)
        if head is None:
            return TrieConstraint(*arguments)
        return HeadConstraint(*arguments, bound=bound, filters=filters, head=head, costs=costs)


def _explained(constraint: Constraint, model: ModelCalls, levels: list[BeamLevel], *, watch: bool) -> Trace:
    """`decode`, with the beams of each level appended to `levels`."""
    trace = None
    for trace in rounds(constraint, model, watch=watch):
        if len(trace.rounds) > len(levels):  # the last trace repeats the one before
            levels.append(BeamLevel.of(trace.beams))
    assert trace is not None
    return trace


def _are_certain(requests: Requests, lo_SBK: NDArray[np.int64], hi_SBK: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which beams (B, K) have one allowed SID left, or none. One that stands in both segments counts as two."""
    num_BK = (hi_SBK - lo_SBK).sum(0)
    for b, parts in enumerate(requests):
        if any(part.leaves is not None for part in parts):
            num_BK[b] = sum(part.num_leaves(lo_SBK[s, b], hi_SBK[s, b]) for s, part in enumerate(parts))
    return num_BK <= 1


def _forced_suffix(version: Version, requests: Requests, level: int, beams: Beams[Any]) -> JumpForward | None:
    """The codes from `level` on, until the longest sequence has ended: exact, because the search would have taken them too.

    None unless every live beam has one allowed SID left, which may stand in both segments. Cost: two ranks a beam.
    """
    lo_SBK, hi_SBK = (to_numpy(array) for array in (beams.lo, beams.hi))
    live_BK = to_numpy(beams.scores) > -np.inf
    if not any(parts[0].leaves for parts in requests) and (hi_SBK - lo_SBK)[:, live_BK].max(initial=0) > 1:
        return None
    leaves_SBK = np.full(lo_SBK.shape, -1, np.int64)
    codes_BKL = np.zeros((*live_BK.shape, version.num_levels), np.int64)
    for s, segment in enumerate(version.segments):
        for b, parts in enumerate(requests):
            beams_n = np.flatnonzero(live_BK[b] & (hi_SBK[s, b] > lo_SBK[s, b]))
            leaves = parts[s].sole_leaves(lo_SBK[s, b, beams_n], hi_SBK[s, b, beams_n])
            if (leaves < 0).any():
                return None
            codes = segment.trie.codes_at(leaves)
            again = leaves_SBK[:s, b, beams_n].max(axis=0, initial=-1) >= 0
            if not np.array_equal(codes[again], codes_BKL[b, beams_n[again]]):
                return None
            leaves_SBK[s, b, beams_n], codes_BKL[b, beams_n] = leaves, codes
    codes_BKT = codes_BKL[:, :, level:]
    end_code = end_code_of(version)
    if end_code is not None:
        going_T = (codes_BKT[live_BK] != end_code).any(axis=0)
        codes_BKT = codes_BKT[:, :, : int(going_T.sum()) + 1]
    return JumpForward(codes_BKT=codes_BKT, lo_SBK=np.maximum(leaves_SBK, 0), hi_SBK=leaves_SBK + 1, decides=False)
