"""Constrained beam search over the items of an index.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import Constraint, TrieConstraint, decode, raise_if_bad
from leafbeam.decode.forced_suffix import forced_suffix
from leafbeam.decode.model_calls import ModelCalls, StepFn, SuffixFn
from leafbeam.decode.results import SearchResult, check_batch, collect_items, root_ranges
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops.backend import BoundIndex, IndexBindings, to_numpy
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring

__all__ = ["BeamSearch", "ItemSearch"]

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

    def _run(self, requests: Requests, model: ModelCalls, constraint_of: ConstraintOf, *, watch: bool) -> SearchResult:
        """From filters to items. watch: see `decode`."""
        version = self.version
        hi_SB = root_ranges(version, requests)[1][:, :, 0]
        if not hi_SB.any():  # nothing may be shown: the model is not called
            nothing = np.zeros((*hi_SB.shape, 1), np.int64)
            scores_B1, num_valid_B = np.zeros((len(requests), 1), np.float32), np.zeros(len(requests), np.int64)
            return collect_items(version, requests, (nothing, nothing), scores_B1, num_valid_B, self.num_items)
        bound = self._bindings.on(self.backend, self.device, model.first_logits)
        constraint = constraint_of(bound, requests, hi_SB)
        trace = decode(constraint, model, watch=watch or bound.waits)
        raise_if_bad(constraint)
        lo_SBK, hi_SBK, scores_BK = (to_numpy(array) for array in (trace.beams.lo, trace.beams.hi, trace.beams.scores))
        return collect_items(
            version, requests, (lo_SBK, hi_SBK), scores_BK, trace.num_valid_B, self.num_items, trace.rounds_saved
        )


class BeamSearch(ItemSearch):
    """Beam search over the Semantic IDs of an index; every beam is a leaf range, so it can only reach items that exist.

    Each round asks the model for the logits of one level and keeps the best legal extensions. `num_beams` is one number, or one
    for each level (`[64, 128, 256]`); the last is the number of items that an answer has at most. 1 is greedy decoding.

    scoring "full" adds log-softmax over the level's whole codebook (STATIC); "allowed" over the legal codes alone (xGR). They
    rank differently.

    backend, device: what runs the search, and where; see `leafbeam.ops.backend`. "auto" is decided by the first logits: numpy
    and torch on a CPU run on "cpu", torch on a GPU on "triton" (or "torch"), arrays of jax on "jax". Logits, ranges and scores
    stay where they are: only the leaves found come to the host, once a search. The index is copied to a device when a search
    first runs there; with an explicit backend or device at once.

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
        num_items = num_beams if isinstance(num_beams, int) else num_beams[-1]
        super().__init__(index, config, num_items, backend, device)

    def __repr__(self) -> str:
        config = self.config
        return f"BeamSearch({self.version.num_items:,} items, num_beams={config.num_beams}, scoring={config.scoring!r})"

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
        deny: Sequence[ItemIds | None] | None = None,
        suffix_fn: SuffixFn | None = None,
    ) -> SearchResult:
        """Decode a batch of requests, each with its own filter and its own denied items.

        step_fn(codes_BK, parents_BK) -> logits: the first call passes (None, None) and expects (B, V) for level 0; each later
        one passes the code that every beam just took and the beam of the round before that it extends (int64, int32 for jax;
        dead beams 0), and expects (B, K, V) for the next level. Arrays arrive as the kind, and on the device, of the first
        logits.

        filters: one for all requests, or one for each (None allows everything). deny: item ids for each request; unknown ones
        change nothing.

        suffix_fn(codes_BKT, parents_BK) -> the logits of T levels, each (B, K, V of the level): given, the search calls it
        once, as soon as all live beams have one allowed item left, instead of step_fn T times, with the same answer. The codes
        are the one that every beam just took and those that must follow, less the last. With scoring "allowed" it is not even
        called: what is forced is certain, unless the model excludes it by a logit of -inf (then do without suffix_fn).

        Cost: L calls of step_fn; on a CPU, or given suffix_fn, fewer where no beam is left or (sequences) every beam has ended.
        On a device this look at the beams waits for it every round; without suffix_fn a search waits once, after its last
        round. Raises ArgumentError, ForeignFilterError, LogitsError.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        model = ModelCalls(step_fn, suffix_fn)
        return self._run(requests, model, self._constraint, watch=suffix_fn is not None)

    def _constraint(self, bound: BoundIndex, requests: Requests, hi_SB: NDArray[np.int64]) -> TrieConstraint:
        ops: Any = bound.ops
        filters, scoring = ops.bind_filters(bound.arrays, requests), self.config.scoring

        def launch(level: int, beams: Beams[Any], logits_BKV: Any, num_beams: int) -> tuple[Beams[Any], Any]:
            arguments = (bound.arrays, level, beams.lo, beams.hi, beams.scores, logits_BKV, filters)
            if bound.waits:
                return ops.step(*arguments, num_beams=num_beams, scoring=scoring), None
            return ops.launch(*arguments, num_beams=num_beams, scoring=scoring)

        return TrieConstraint(self.config, bound.to_device(hi_SB), launch, partial(forced_suffix, self.version, requests))
