"""RecentRefusals: what the core has just refused for want of time, so that an HTTP worker refuses the like by itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from leafbeam.errors import OverloadedError
from leafbeam.serve.schema import RecommendBody

REPEATED_REASON = "deadline_unreachable"  # that of the other refusals says nothing about the next request
_MAX_S = 0.02  # the core may have time sooner than it expected
_MAX_KINDS = 64
_Kind = tuple[object, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refused:
    message: str
    history: int
    until: float


class RecentRefusals:
    """Requests for items that the core refused because no answer would be in time, each until it may come again.

    A request is like one of them if its beams, items, scoring, deadline and channel are the same and its history is not
    shorter: admission would refuse it too, and takes the time of the core, which an overloaded server has least of.
    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[_Kind, _Refused] = {}

    def find(self, content: RecommendBody) -> OverloadedError | None:
        """The refusal of a request that is like one of them, if there is one."""
        refused, now = self._refused.get(_kind_of(content)), self._clock()
        if refused is None or now >= refused.until or len(content.history) < refused.history:
            return None
        return OverloadedError(refused.message, reason=REPEATED_REASON, retry_after_s=refused.until - now)

    def note(self, content: RecommendBody, error: OverloadedError) -> None:
        """Keep a refusal of the core."""
        if error.reason != REPEATED_REASON or error.retry_after_s <= 0:
            return
        if len(self._refused) >= _MAX_KINDS:
            self._refused.clear()
        until = self._clock() + min(error.retry_after_s, _MAX_S)
        self._refused[_kind_of(content)] = _Refused(message=str(error), history=len(content.history), until=until)


def _kind_of(content: RecommendBody) -> _Kind:
    return content.num_beams, content.num_items, content.scoring, content.explain, content.deadline_ms, content.channel
