"""Constrained beam search over the items of an index.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.boosts import check_boosts, root_boosts, shared_leaves, with_more_leaves
from leafbeam.decode.bound import Pass, search_until_proved
from leafbeam.decode.config import (
    SearchConfig,
    beams_of_levels,
    beams_of_search,
    check_length,
    counts_of_batch,
    end_code_of,
    first_width,
)
from leafbeam.decode.constraint import BatchBoosts, Constraint, Cut, Trace, TrieConstraint, raise_if_bad, rounds
from leafbeam.decode.head_constraint import Head, HeadConstraint
from leafbeam.decode.model_calls import JumpForward, ModelCalls, MoreFn, StepFn, SuffixFn
from leafbeam.decode.results import (
    BatchFilters,
    BeamLevel,
    DenyLists,
    SearchResult,
    check_batch,
    collect_items,
    root_ranges,
)
from leafbeam.decode.spares import Wanted, run_spares
from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.ops.backend import BoundIndex, IndexBindings, to_numpy
from leafbeam.ops.constrain import AnyArray, Beams, Boosts, Scoring
from leafbeam.ops.head import HeadCosts

Widths = Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int64]
Requests = Sequence[Filter]
Collect = Callable[..., SearchResult]
ConstraintOf = Callable[[BoundIndex, Requests, NDArray[np.int64], SearchConfig], Constraint]


class ItemSearch:
    """A search over an index: `BeamSearch`, `Sampler` or one over a server's log probabilities.

    Args:
        index: The index, or its bindings to devices.
        config: The number of beams of each level, and the scoring. If the search proves its answers, the numbers are limits.
        backend: The backend that runs the search.
        device: The device that runs the search.
        proves: Whether passes are repeated until the answers are proved.
    """

    def __init__(
        self,
        index: Trie | Version | IndexBindings,
        config: SearchConfig,
        backend: str,
        device: Any,
        *,
        num_items: int,
        proves: bool = False,
    ) -> None:
        self._bindings = index if isinstance(index, IndexBindings) else IndexBindings(index)
        self.version = self._bindings.version
        self.config, self.num_items = config, num_items
        self.backend, self.device = backend, device
        self._proves = proves
        if (backend, device) != ("auto", "auto"):
            self._bindings.on(backend, device)

    def _passes(
        self,
        requests: Requests,
        search: Pass,
        widths: Widths | None = None,
        *,
        limits: SearchConfig | None = None,
        **options: Any,
    ) -> SearchResult:
        """Run a search once, or until its answers are proved. limits: the most beams, if not those of the search's config.

        options: of `search_until_proved`.
        """
        if not (self._proves or options.get("has_spares")):
            return search(self.config, None)
        widths_BL = np.array(self._widths(requests, widths), np.int64)
        if self._proves:
            last = self.config.num_beams[-1]
            return search_until_proved(limits or self.config, search, widths_BL, num_items=last, **options)
        widths_BL[:, :-1] = self.config.num_beams[:-2]
        runs_all = bool((widths_BL >= self.config.num_beams[:-1]).all())  # the first pass leaves no beam for a second one
        return search(self.config, None if runs_all else Cut(widths_BL=widths_BL))

    def _widths(self, requests: Requests, widths: Widths | None) -> list[tuple[int, ...]]:
        """Return the beams of the first pass, for each request and each level but the last."""
        most, num_levels = self.config.num_beams[:-1], self.config.num_rounds - 1
        given: Any = widths
        if given is None and not self._proves:
            given = (self.num_items,) * num_levels
        if given is None:
            given = [(self._guess(request),) * num_levels for request in requests]
        elif not (isinstance(given, Sequence | np.ndarray) and len(given) and isinstance(given[0], Sequence | np.ndarray)):
            given = [given] * len(requests)
        check_length("widths", given, len(requests))
        each = [row.tolist() if isinstance(row, np.ndarray) else row for row in given]
        return [tuple(map(min, beams_of_levels(row, num_levels, "widths"), most)) for row in each]

    def _guess(self, request: Filter) -> int:
        """Return how many prefixes of a level a request is expected to need."""
        allowed = sum(part.num_reachable() for part in request.parts)
        share = max(1, allowed) / max(1, sum(segment.trie.num_leaves for segment in self.version.segments))
        return first_width(share, self.num_items, self.config.scoring)

    def _run(
        self,
        requests: Requests,
        model: ModelCalls,
        constraint_of: ConstraintOf,
        config: SearchConfig,
        *,
        explain: bool = False,
        cut: Cut | None = None,
        num_items: Sequence[int] | None = None,
        on_pass: Callable[[SearchResult], None] | None = None,
    ) -> SearchResult:
        """Run a pass, from filters to items, and then the prefixes that it found and that may lead to a better answer.

        cut: see `decode`. explain: the result has the beams of each level. on_pass: called with what the pass found.
        """
        wanted, collect = self.num_items if num_items is None else num_items, self._collector(requests)
        hi_SB = root_ranges(self.version, requests)[1][:, :, 0]
        if not hi_SB.any():  # nothing may be shown: the model is not called
            nothing = np.zeros((*hi_SB.shape, 1), np.int64)
            scores_B1, num_valid_B = np.zeros((len(requests), 1), np.float32), np.zeros(len(requests), np.int64)
            result = collect((nothing, nothing), scores_B1, num_valid_B, wanted)
            return replace(result, bound=np.full(len(requests), -np.inf, np.float32), rows=num_valid_B)
        bound = self._bindings.on(self.backend, self.device, model.first_logits)
        if model.can_run_more and bound.name != "cpu":
            raise ArgumentError(f"more_fn needs the backend 'cpu', not {bound.name!r}: leave it out there")
        constraint = constraint_of(bound, requests, hi_SB, config)
        watch = model.watch or bound.waits
        levels: list[BeamLevel] = []
        trace = None
        for trace in rounds(constraint, model, watch=watch, cut=cut):
            if explain and len(trace.rounds) > len(levels):  # the last trace repeats the one before
                levels.append(BeamLevel.of(trace.beams))
        assert trace is not None
        raise_if_bad(constraint)
        boosts = constraint.boosts.columns if isinstance(constraint, TrieConstraint) and constraint.boosts else None
        is_brief = not (self._proves or isinstance(trace.beams.scores, np.ndarray))
        result, passes = result_of(trace, collect, config, wanted, is_brief=is_brief, boosts=boosts), 1
        if trace.spares and not (self._proves and result.is_proved.all()):
            if on_pass is not None and self._proves:
                on_pass(result)
            better = Wanted(least_B=result.last_scores, most=self.config.num_beams, takes_ties=not self._proves)
            if (more := run_spares(constraint, model, trace, better)) is not trace:
                result, passes = result_of(more, collect, config, wanted, boosts=boosts), 2
        rows = None if is_brief else np.full(len(requests), to_numpy(model.rows), np.int64)
        return replace(result, levels=tuple(levels), rows=rows, passes=passes)

    def _collector(self, requests: Requests) -> Collect:
        """Return the function that turns the leaves found into items."""
        return partial(collect_items, self.version, requests)


def result_of(
    trace: Trace,
    collect: Collect,
    config: SearchConfig,
    num_items: int | Sequence[int],
    *,
    is_brief: bool = False,
    boosts: Boosts = None,
) -> SearchResult:
    """Return the items that a pass found, and how far they are proved.

    collect: `collect_items` of the searched version and the requests' filters.
    is_brief: copy only what this needs from a device, and leave out `beams_needed`.
    """
    ranges = to_numpy(trace.beams.lo), to_numpy(trace.beams.hi)
    scores_BK = to_numpy(trace.beams.scores)
    result = collect(ranges, scores_BK, trace.num_valid_B, num_items, trace.rounds_saved, boosts)
    needed_BL = None if is_brief else trace.beams_needed(config.num_rounds, result.last_scores)
    # A leaf that was dropped has no better item than the last of as many leaves, unless boosts differ among a leaf's items.
    last = config.num_rounds - (boosts is None)
    return replace(result, bound=to_numpy(trace.bound(last)), beams_needed=needed_BL)


class BeamSearch(ItemSearch):
    """Search over the Semantic IDs of an index; every beam is a leaf range, so it can only reach items that exist.

    With `num_items` the answer is proved to be the best allowed list: the search keeps as many prefixes of each level as the
    proof needs (see docs/explanation/search.md). With `num_beams` it is a beam search, as in STATIC and xGR.

    Args:
        index: A trie, a version of an index, or either bound to devices already.
        num_beams: The number of beams, one for all levels or one for each (`[64, 128, 256]`); the last is the number of items
            of an answer. 1 is greedy.
        scoring: "full" adds log-softmax over the level's whole codebook (STATIC), "allowed" over the legal codes alone (xGR),
            "vocabulary" over all tokens of the model (transformers' `generate`). With "vocabulary" logits have one more
            column, the last: the log-sum-exp of the logits of all tokens that are not codes of the level.
        backend: The backend that runs the search, see `leafbeam.ops.backend`. "auto" is decided by the first logits: numpy and
            torch on a CPU run on "cpu", torch on a GPU on "triton" (or "torch"), arrays of jax on "jax".
        device: The device that runs the search. With an explicit backend the index is copied there at once, else at the first
            search. Only the leaves that were found are copied to the host, once in each pass.
        num_items: The number of items of an answer, proved to be the best; 20 if neither this nor `num_beams` is set.
        max_rows: With `num_items`, the largest number of prefixes of a level that a pass may keep. Where a proof needs more,
            `SearchResult.num_exact` says how many items are proved.

    Raises:
        ArgumentError: For a number below 1, or both `num_items` and `num_beams`.

    Example:
        >>> search = BeamSearch(index, num_items=10)
        >>> result = search.run(step_fn, batch_size=2, filters=[fresh, None])
        >>> result.item_ids[0], result.is_proved[0]
    """

    def __init__(
        self,
        index: Trie | Version | IndexBindings,
        num_beams: int | Sequence[int] | None = None,
        scoring: Scoring = "full",
        backend: str = "auto",
        device: Any = "auto",
        *,
        num_items: int | None = None,
        max_rows: int = 512,
    ) -> None:
        version = index.version if isinstance(index, IndexBindings) else Version.of(index)
        beams = beams_of_search(version.num_levels, num_beams, num_items, max_rows)
        config = SearchConfig.of(version, beams, scoring)
        super().__init__(index, config, backend, device, num_items=beams[-1], proves=num_beams is None)
        self._max_rows, self._num_shared = max_rows, shared_leaves(version)

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
        boosts: ItemColumn | Sequence[ItemColumn | None] | None = None,
        more_fn: MoreFn | None = None,
        head: Sequence[Any] | None = None,
        costs: HeadCosts | None = None,
        can_restart: bool = True,
        num_items: int | Sequence[int] | None = None,
        widths: Widths | None = None,
        first: SearchResult | None = None,
        on_pass: Callable[[SearchResult], None] | None = None,
    ) -> SearchResult:
        """Decode a batch of requests, each with its own filter and its own denied items.

        Each pass calls step_fn L times. On a CPU, or with suffix_fn, it stops earlier if no beam is left or every beam has
        ended. On a device this check waits for the device in every round; without suffix_fn a search waits only once.

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
                answer. The codes are those that every beam just took, and the codes that must follow, except for the last
                one. With scoring "allowed" not even this call is made. On a CPU, step_fn and more_fn then get a copy of
                another beam in the place of each beam with one allowed item left, and a `Transformer` does not run copies
                again. The score of such a beam no longer changes, unless the model excludes a forced code by a logit of -inf
                (in that case do not pass suffix_fn).
            explain: If true, the result has the beams of each level (`SearchResult.levels`). The search then waits for a device
                every round and does not use suffix_fn, so that every level has its scores.
            boosts: A number for each item, which is added to its score: one column for all requests, or one for each. The
                answer is proved as without boosts. A boost may be up to 1,000 nats. A search with boosts does not use
                suffix_fn, and multiplies `head` for all codes.
            more_fn: `more_fn(codes_BJ, parents_BJ, level)` returns the logits (B, J, V) after more codes of a level that
                step_fn has run already, or of the next one. Parents are numbered in the order in which the beams of the level
                before ran. With it a search runs few prefixes at first, and then only those that may still lead to a better
                answer, in place of another pass from the prompts. A `DecodeSession` has one. It needs the backend "cpu", and
                is not used with `explain`.
            head: For each level the rows of the model's head for its codes, (V, D), float32 on a CPU, otherwise where the
                logits would be. The functions then return hidden states, (B, D) and later (B, K, D). With scoring "allowed" the
                head is multiplied for legal codes alone in rounds where that is expected to take less time: large codebooks
                with few children. It needs the backend "cpu", or "triton", which then waits in every such round.
            costs: The measured costs of this machine, by which `head` decides; None uses estimates.
            num_items: The number of items, one for all requests or one for each, if they need fewer than the search proves.
            widths: The number of prefixes that the first pass of a proof keeps at each level but the last: one list for all
                requests, or one for each. By default a guess from the share of items that each filter allows;
                `SearchResult.beams_needed` says what was needed. With `num_beams` and more_fn only the last number counts:
                where the last level keeps fewer beams than the one before, as many of these run first.
            first: The result of a first pass that has run elsewhere with `widths`.
            on_pass: Called with the result of each pass but the last. The answers of which `is_proved` is true are final.
            can_restart: Whether step_fn(None, None) may be called again, to start again from the prompts. Without it a search
                with `num_items` has one pass, which keeps `max_rows` prefixes of each level.

        Raises:
            ArgumentError: If the arguments contradict each other or the backend.
            ForeignFilterError: If a filter was made for another index.
            ItemIdError: If a denied id is of the wrong kind.
            LogitsError: If the logits have the wrong shape, or are NaN or +inf.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        counts = counts_of_batch(self.num_items if num_items is None else num_items, batch_size, "num_items")
        wanted = [min(self.num_items, count) for count in counts]
        columns = check_boosts(self.version, batch_size, boosts)
        if head is not None and self.config.scoring == "vocabulary":
            raise ArgumentError("head has the rows of codes alone: with scoring 'vocabulary' leave it out, and return logits")
        suffix_fn = None if explain or columns is not None else suffix_fn
        more_fn = None if explain else more_fn
        are_certain = None if suffix_fn is None or self.config.scoring != "allowed" else partial(_are_certain, requests)
        constraint_of = partial(self._constraint, None if head is None else Head(head, costs), columns)

        def search(config: SearchConfig, cut: Cut | None) -> SearchResult:
            model = ModelCalls(step_fn, suffix_fn, more_fn, are_certain)
            options: Any = {"explain": explain, "cut": cut, "num_items": wanted, "on_pass": on_pass}
            return self._run(requests, model, constraint_of, config, **options)

        if not can_restart:
            return search(self.config, None)
        options: Any = {"first": first, "on_pass": on_pass, "explain": explain, "has_spares": more_fn is not None}
        limits = self.config if columns is None else with_more_leaves(self.config, self._num_shared, self._max_rows)
        return self._passes(requests, search, widths, limits=limits, **options)

    def _constraint(
        self,
        head: Head | None,
        columns: Boosts,
        bound: BoundIndex,
        requests: Requests,
        hi_SB: NDArray[np.int64],
        config: SearchConfig,
    ) -> TrieConstraint:
        ops: Any = bound.ops
        filters, scoring = ops.bind_filters(bound.arrays, requests, *(() if columns is None else (columns,))), config.scoring

        def launch(level: int, beams: Beams[AnyArray], logits_BKV: AnyArray, num_beams: int) -> tuple[Beams[Any], Any]:
            arguments = (bound.arrays, level, beams, logits_BKV, filters)
            if bound.waits:
                return ops.step(*arguments, num_beams=num_beams, scoring=scoring), None
            return ops.launch(*arguments, num_beams=num_beams, scoring=scoring)

        boosts, hi_SB1 = None, bound.to_device(hi_SB)[:, :, None]
        if columns is not None:
            root_B1 = root_boosts(self.version, columns, hi_SB)
            boosts = BatchBoosts(columns=columns, root_B1=bound.to_device(root_B1))
        arguments = config, hi_SB1[:, :, 0], launch, partial(_forced_suffix, self.version, requests), boosts
        if head is None:
            return TrieConstraint(*arguments)
        return HeadConstraint(*arguments, bound=bound, filters=filters, head=head)


def _are_certain(requests: Requests, lo_SBK: NDArray[np.int64], hi_SBK: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which beams (B, K) have at most one allowed SID left. A SID that is in both segments counts as two."""
    num_BK = (hi_SBK - lo_SBK).sum(0)
    for b, request in enumerate(requests):
        if any(part.leaves is not None for part in request.parts):
            num_BK[b] = sum(part.num_leaves(lo_SBK[s, b], hi_SBK[s, b]) for s, part in enumerate(request.parts))
    return num_BK <= 1


def _forced_suffix(version: Version, requests: Requests, level: int, beams: Beams[AnyArray]) -> JumpForward | None:
    """The codes from `level` on, until the longest sequence has ended: exact, because the search would have taken them too.

    None unless every live beam has one allowed SID left, which may stand in both segments. Cost: two ranks a beam.
    """
    lo_SBK, hi_SBK = (to_numpy(array) for array in (beams.lo, beams.hi))
    live_BK = to_numpy(beams.scores) > -np.inf
    if not any(request.parts[0].leaves for request in requests) and (hi_SBK - lo_SBK)[:, live_BK].max(initial=0) > 1:
        return None
    leaves_SBK = np.full(lo_SBK.shape, -1, np.int64)
    codes_BKL = np.zeros((*live_BK.shape, version.num_levels), np.int64)
    for s, segment in enumerate(version.segments):
        for b, request in enumerate(requests):
            beams_n = np.flatnonzero(live_BK[b] & (hi_SBK[s, b] > lo_SBK[s, b]))
            leaves = request.parts[s].sole_leaves(lo_SBK[s, b, beams_n], hi_SBK[s, b, beams_n])
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
