"""Turns a request into a pending one: its rules become a filter, its item ids a prompt. Runs in the caller's thread."""

from collections.abc import Callable

from leafbeam.catalog import Catalog, Expression
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.pending_request import PendingRequest
from leafbeam.engine.prompts import PromptReader
from leafbeam.engine.request import Limits, Request
from leafbeam.engine.settings import Settings
from leafbeam.errors import RequestError, UnknownRuleError
from leafbeam.index import Version

__all__ = ["RequestPreparer"]


class RequestPreparer:
    """Checks and prepares requests against the current version of an index and, with a catalog, its rules."""

    def __init__(
        self, index: Catalog | Version, reader: PromptReader, settings: Settings, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self._index, self._reader, self._settings, self._limits, self._clock = index, reader, settings, limits, clock

    @property
    def version(self) -> Version:
        """The version of the index that the next request will be answered from."""
        return self._index if isinstance(self._index, Version) else self._index.version()

    def size(self, request: Request, arrived: float) -> RequestSize:
        """An upper bound of the request's size from counts alone, without a look-up: for the admission check."""
        return self._size(request, arrived, min(len(request.history), self._reader.max_items), self.version)

    def prepare(self, request: Request, arrived: float) -> PendingRequest:
        """Resolve rules and item ids. Raises RequestError, UnknownRuleError, ItemIdError."""
        self._limits.check(request)
        rules = None if isinstance(self._index, Version) else self._index.rules
        version = self.version if rules is None else rules.version
        expression = Expression.of(request.rules, request.filter)
        if rules is None and expression is not None:
            raise UnknownRuleError(f"unknown rule {min(expression.names)[:80]!r}; this engine has no catalog, so no rules")
        item_filter = None if rules is None or expression is None else rules.filter(expression)
        prompt = self._reader.read(request, version)
        size = self._size(request, arrived, len(prompt.codes), version)
        if size.tokens > self._settings.max_batch_tokens:
            raise RequestError(
                f"the {len(prompt.codes):,} known items of the history are {size.tokens:,} tokens, and a batch holds up to "
                f"{self._settings.max_batch_tokens:,}: send fewer",
                reason="over_capacity",
            )
        return PendingRequest(
            request=request,
            prompt=prompt,
            version=version,
            item_filter=item_filter,
            rules_generation=None if rules is None else rules.generation,
            size=size,
            prepared=self._clock(),
        )

    def _size(self, request: Request, arrived: float, num_items: int, version: Version) -> RequestSize:
        num_beams = max(request.num_beams or self._settings.num_beams, request.num_items)
        deadline_s = self._settings.deadline_s if request.deadline_s is None else request.deadline_s
        return RequestSize(
            key=(num_beams, request.scoring, id(version)),  # a pending request holds its version, so the id is unique
            tokens=self._reader.num_tokens(num_items),
            num_beams=num_beams,
            arrived=arrived,
            deadline=arrived + deadline_s,
        )
