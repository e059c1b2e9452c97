"""RecentRefusals: what the core has just refused for want of time, so that an HTTP worker refuses the like by itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from leafbeam.errors import OverloadedError
from leafbeam.serve.schema import ErrorAnswer, RecommendBody

_REASON = "deadline_unreachable"  # that of the other refusals says nothing about the next request
_MAX_S = 0.02  # the core may have time sooner than it expected
_MAX_KINDS = 64
_ANSWER = msgspec.json.Decoder(ErrorAnswer)
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
        return OverloadedError(refused.message, reason=_REASON, retry_after_s=refused.until - now)

    def note(self, content: RecommendBody, answer: bytes) -> None:
        """Keep a refusal. answer: its body of JSON, from the core."""
        try:
            error = _ANSWER.decode(answer).error
        except msgspec.DecodeError:  # in the shape of another route
            return
        if error.reason != _REASON or not error.retry_after_ms:
            return
        if len(self._refused) >= _MAX_KINDS:
            self._refused.clear()
        until = self._clock() + min(error.retry_after_ms / 1e3, _MAX_S)
        self._refused[_kind_of(content)] = _Refused(message=error.message, history=len(content.history), until=until)


def _kind_of(content: RecommendBody) -> _Kind:
    return content.num_beams, content.num_items, content.scoring, content.explain, content.deadline_ms, content.channel
