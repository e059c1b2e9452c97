"""Turns a request into a pending one: its rules become a filter, its item ids a prompt. Runs in the caller's thread.

Shapes: n items of a history, L levels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.catalog import Catalog, Expression, RuleSet
from leafbeam.catalog.conflict import conflict_with_exclusions
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.decoder import Model
from leafbeam.engine.objectives import ObjectivesReader
from leafbeam.engine.request import Channel, ItemId, PendingRequest, Request
from leafbeam.engine.search_widths import SearchKind, SearchWidths
from leafbeam.engine.settings import Limits, Settings
from leafbeam.errors import CheckpointError, RequestError, UnknownRuleError, counted
from leafbeam.ids import first_of_other_kind, is_possible
from leafbeam.index import Filter, Version
from leafbeam.model import AnyModel
from leafbeam.ops.constrain import Scoring


class RequestPreparer:
    """Checks and prepares requests against the current version of an index and, with a catalog, its rules.

    A prompt has the model's leading tokens, and L tokens for each item of the history. The newest items are taken, as many as
    the model's positions allow beside one more item, whose last code needs no position. Raises CheckpointError if not even
    that one fits.

    decoders: those of the model, one for each worker, which requests keep.
    max_history: items of the longest history that the limits and the model allow. scorings: those that the model can give.
    """

    def __init__(
        self,
        model: Model,
        index: Catalog | Version,
        settings: Settings,
        limits: Limits,
        clock: Callable[[], float],
        *,
        widths: SearchWidths,
        has_memory: bool,
        decoders: Sequence[object],
    ) -> None:
        self._decoders = decoders
        self.scorings: tuple[Scoring, ...] = get_args(Scoring) if isinstance(model, AnyModel) else ("full", "allowed")
        self._widths, self._has_memory = widths, has_memory
        self._objectives = ObjectivesReader()
        self._index, self._settings, self._clock = index, settings, clock
        self._num_levels, self._vocabulary = self.version.num_levels, model.vocabulary
        self._positions: Callable[[int], int] = model.prompt_positions if isinstance(model, AnyModel) else int
        max_positions = model.config.max_position_embeddings
        self._max_items = model.vocabulary.max_history(max_positions)
        self.max_history = min(limits.max_history, self._max_items)
        if self._max_items < 0:
            raise CheckpointError(
                f"the model has {counted(max_positions, 'position')}, "
                f"too few for one SID of {counted(self._num_levels, 'code')}"
            )

    @property
    def version(self) -> Version:
        """Return the version of the index that the next request will be answered from."""
        return self._index if isinstance(self._index, Version) else self._index.version()

    def num_tokens(self, num_items: int) -> int:
        """Return the number of tokens of a prompt with a history of `num_items` items."""
        return self._vocabulary.prompt_length(num_items)

    def num_positions(self, num_items: int) -> int:
        """Return the number of positions that the model computes for that prompt, which the queue counts."""
        return self._positions(self.num_tokens(num_items))

    def num_beams(self, request: Request) -> int:
        """Return the number of items that the model may rank: a beam finds one item."""
        return max(request.num_beams or self._settings.beams, request.num_items)

    def channel(self, request: Request) -> Channel:
        """Return the channel of a request: its own, or "fused" where there is an item memory."""
        return request.channel or ("fused" if self._has_memory else "model")

    def _is_list(self, request: Request) -> bool:
        """Return whether the search itself obeys caps and quotas."""
        return request.has_policy and self.channel(request) == "model"

    def _proves(self, request: Request) -> bool:
        return request.num_beams is None and self._settings.num_beams is None

    def kind(self, request: Request, version: Version, item_filter: Filter | None = None) -> SearchKind | None:
        """Return the kind of a search that proves its answer; None for one with a fixed number of beams."""
        if not self._proves(request):
            return None
        num_items = request.num_items if self.channel(request) == "model" else self.num_beams(request)
        if self._is_list(request) and request.at_most:  # the first search finds enough for most lists
            num_items = min(2 * num_items, self._settings.max_rows)
        return SearchKind.of(version, item_filter, num_items, request.scoring, boosted=bool(request.boosts))

    def widths(self, request: Request, kind: SearchKind | None, version: Version) -> tuple[int, ...]:
        """Return the beams that a search of this kind is expected to need, of each level but the last."""
        num_levels = version.num_levels - 1
        if kind is None:
            return (self.num_beams(request),) * num_levels
        needed = self._widths.of(kind) or (kind.guess,) * num_levels
        limits = (min(self._settings.max_rows, max(1, version.num_nodes(level))) for level in range(num_levels))
        return tuple(map(min, needed, limits))

    def size(
        self,
        request: Request,
        arrived: float,
        num_known: int | None = None,
        version: Version | None = None,
        widths: tuple[int, ...] | None = None,
    ) -> RequestSize:
        """Return the request's size. By default from counts alone, without a look-up: for the admission check."""
        version = self.version if version is None else version
        if widths is None:
            widths = self.widths(request, self.kind(request, version), version)
        deadline_s = self._settings.deadline_s if request.deadline_s is None else request.deadline_s
        num_items = min(len(request.history), self._max_items) if num_known is None else num_known
        num_beams = None if self._proves(request) else self.num_beams(request)
        return RequestSize(
            # A pending request holds its version and its decoders, so the ids are unique.
            key=(
                num_beams,
                request.scoring,
                request.explain,
                bool(request.boosts),
                self._is_list(request),
                id(version),
                id(self._decoders),
            ),
            tokens=self.num_positions(num_items),
            num_beams=max(widths, default=1),
            arrived=arrived,
            deadline=arrived + deadline_s,
        )

    def prepare(self, request: Request, arrived: float) -> PendingRequest:
        """Resolve rules and item ids. Raises RequestError, UnknownRuleError, and ItemIdError for ids of the wrong type."""
        channel = self.channel(request)
        if request.scoring not in self.scorings:
            raise RequestError(f"scoring {request.scoring!r} needs one of leafbeam's own models: use 'full' or 'allowed'")
        if channel != "model" and not self._has_memory:
            raise RequestError(f"channel {channel!r} needs an item memory, and this engine has none: train the run again")
        rules = None if isinstance(self._index, Version) else self._index.rules
        version = self.version if rules is None else rules.version
        expression = Expression.of(request.rules, request.filter)
        if rules is None and expression is not None:
            raise UnknownRuleError(f"unknown rule {min(expression.names)[:80]!r}; this engine has no catalog, so no rules")
        item_filter = None if rules is None else rules.filter(expression or ())
        objectives = self._objectives.read(request, rules)
        history, segment_n, row_n, ignored_history = _lookup("history", request.history, version, deleted=True)
        deny, segment_d, row_d, ignored_deny = _lookup("deny_item_ids", request.deny_item_ids, version)
        left_out = () if request.keep_history else tuple(dict.fromkeys(history))
        allowed = version.request_filter(item_filter).deny_located(segment_d, row_d)
        empty_rules = _empty_rules(version, item_filter, rules, expression, {"- deny_item_ids": deny, "- history": left_out})
        newest = slice(max(0, len(history) - self._max_items), None)
        codes = version.codes_at(segment_n[newest], row_n[newest]) if history else np.empty((0, self._num_levels), np.int64)
        num_beams, kind = self.num_beams(request), self.kind(request, version, item_filter)
        widths = self.widths(request, kind, version)
        size = self.size(request, arrived, len(codes), version, widths)
        if size.tokens > self._settings.max_batch_tokens:
            raise RequestError(
                f"the known items of the history, {len(codes):,}, take {counted(size.tokens, 'position')}, and a batch holds "
                f"up to {self._settings.max_batch_tokens:,}: send fewer",
                reason="over_capacity",
            )
        return PendingRequest(
            request=request,
            channel=channel,
            history=tuple(history),
            size=size,
            num_beams=num_beams,
            kind=kind,
            widths=widths,
            version=version,
            decoders=self._decoders,
            reads_user=request.user is not None and self._vocabulary.num_users > 0,
            item_filter=allowed if request.keep_history else allowed.deny_located(segment_n, row_n),
            objectives=objectives,
            rules_generation=None if rules is None else rules.generation,
            empty_rules=empty_rules,
            codes=codes,
            num_left_out=len(left_out),
            ignored_history=ignored_history,
            ignored_deny=ignored_deny,
            prepared=self._clock(),
        )


def _empty_rules(
    version: Version,
    allowed: Filter | None,
    rules: RuleSet | None,
    expression: Expression | None,
    excluded: Mapping[str, Sequence[ItemId]],
) -> tuple[str, ...]:
    """Return `Result.empty_rules`. Cost: a comparison of counts, unless the request excludes as many items as are allowed."""
    num_allowed = version.num_items if allowed is None else len(allowed)
    if not num_allowed:
        return () if rules is None or expression is None else rules.conflict(expression)
    if num_allowed > sum(map(len, excluded.values())):
        return ()
    listed = None if rules is None else rules.filter()
    return conflict_with_exclusions(
        version,
        version.all_items if listed is None else listed,
        expression,
        {} if rules is None else rules.filters,
        {name: ids for name, ids in excluded.items() if ids},
    )


def _lookup(
    name: str, ids: Sequence[ItemId], version: Version, *, deleted: bool = False
) -> tuple[list[ItemId], NDArray[np.int64], NDArray[np.int64], tuple[ItemId, ...]]:
    """Return (known ids in order, their segments, their rows, unknown ids in order). deleted: see `Version.locate`."""
    tables = [segment.trie.items for segment in version.segments if segment.trie.num_items]
    if not ids or not tables:
        empty = np.empty(0, np.int64)
        return [], empty, empty, tuple(ids)
    wrong = first_of_other_kind(ids, tables[0].kind)
    if wrong is not None:
        raise tables[0].wrong_kind(name, wrong)
    max_bytes = max(0 if table.ids is None else table.ids.dtype.itemsize for table in tables)
    possible = [item for item in ids if is_possible(item, max_bytes)]
    segment_n, row_n = version.locate(possible, deleted=deleted)  # type: ignore[arg-type]
    found_n = segment_n >= 0
    known = [item for item, is_known in zip(possible, found_n.tolist(), strict=True) if is_known]
    of_known = set(known)
    return known, segment_n[found_n], row_n[found_n], tuple(item for item in ids if item not in of_known)
