"""The attempts of one call: what is sent, when it is sent again, and what the answer means. Nothing here reads a clock
or a socket.
"""

import itertools
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal, TypeVar

import msgspec

from leafbeam.client.calls import Call
from leafbeam.errors import (
    AccessDeniedError,
    ArgumentError,
    InvalidRequestError,
    NoAnswerError,
    NotFoundError,
    ServerBusyError,
    ServerError,
)

REQUEST_ID = "x-request-id"
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_KINDS: dict[int, type[ServerError]] = {
    HTTPStatus.UNAUTHORIZED: AccessDeniedError,
    HTTPStatus.FORBIDDEN: AccessDeniedError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    **dict.fromkeys(_BUSY, ServerBusyError),
}
_MAX_WAIT_S = 3600.0  # that a server may ask for
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Retries:
    """The deadline and the number of attempts of a call.

    A call is sent again if the server was too busy (429, 503), or if the call did not reach the server. If the answer
    was lost, it is sent again only if it reads, or changes nothing the second time. The pause before attempt n + 1 is
    what the server asks for (`Retry-After`) plus a random part of first_pause_s * 2 ** (n - 1). A call whose next
    attempt would come after its deadline fails at once.

    Args:
        deadline_s: The seconds that one call may take, with its retries. Each chunk of an import is a call.
        attempts: The largest number of attempts of one call.
        first_pause_s: The longest random pause before the second attempt.
        max_pause_s: The longest random pause before any attempt.
    """

    deadline_s: float = 30.0
    attempts: int = 5
    first_pause_s: float = 0.1
    max_pause_s: float = 10.0

    def __post_init__(self) -> None:
        pauses = (self.first_pause_s, self.max_pause_s)
        if not 0 < self.deadline_s < math.inf or self.attempts < 1 or not all(0 <= pause < math.inf for pause in pauses):
            raise ArgumentError(f"{self}: expected a deadline above 0, one attempt or more, and pauses of 0 s or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """A step that sends the call once, with this request id, within so many seconds. It leads to a Reply or a Fault."""

    call: Call[object]
    request_id: str
    timeout_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """A step that waits for so many seconds."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole answer. `headers` are by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The reason why there is no answer."""

    code: Literal["unreachable", "cut", "late", "malformed", "stale"]
    message: str


Outcome = Reply | Fault | None  # None: of a pause
Steps = Generator[Send | Pause, Outcome, T]


def attempts(
    call: Call[T], retries: Retries, *, clock: Callable[[], float], random: Callable[[], float], new_id: Callable[[], str]
) -> Steps[T]:
    """Return the steps of a call until its answer. `random` returns a number from 0 to 1. Raises ServerError."""
    until = clock() + retries.deadline_s
    for attempt in itertools.count():
        request_id, left_s = new_id(), until - clock()
        outcome = yield Send(call=call, request_id=request_id, timeout_s=max(left_s, 1e-3))
        assert outcome is not None, "a pause is no answer"
        if isinstance(outcome, Fault):
            error: ServerError = _no_answer(call, outcome, request_id)
            is_worth_it = outcome.code == "unreachable" or (call.repeatable and outcome.code in ("cut", "stale"))
        elif outcome.status in call.statuses and (outcome.status < 400 or not _detail(outcome.body)):
            return _read(call, outcome, request_id)
        else:
            error = _failure(call, outcome, request_id)
            is_worth_it = isinstance(error, ServerBusyError)
        pause_s = random() * min(retries.first_pause_s * 2**attempt, retries.max_pause_s) + (error.retry_after_s or 0.0)
        if not is_worth_it or attempt + 1 >= retries.attempts or clock() + pause_s >= until:
            raise error
        yield Pause(seconds=pause_s)
    raise AssertionError


def _read(call: Call[T], reply: Reply, request_id: str) -> T:
    try:
        if call.answer is bytes:
            return reply.body  # pyright: ignore[reportReturnType]: T is bytes
        if call.answer is str:
            return reply.body.decode()  # pyright: ignore[reportReturnType]: T is str
        return msgspec.json.decode(reply.body, type=call.answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # a ValidationError is a DecodeError
        fault = Fault(
            code="malformed", message=f"gave an answer that is not a {call.answer.__name__} ({error}): {reply.body[:80]!r}"
        )
        raise _no_answer(call, fault, request_id, reply.status) from None


def _no_answer(call: Call[object], fault: Fault, request_id: str, status: int | None = None) -> NoAnswerError:
    message = f"{_name(call)}: the server {fault.message}"
    if fault.code != "unreachable" and call.method != "GET":
        if call.key is not None:
            message += f"; it is not known whether the change was made: the same call with key={call.key!r} makes it only once"
        elif not call.repeatable:
            message += "; it is not known whether the change was made, so it was not sent again"
    return NoAnswerError(message, status=status, code=fault.code, request_id=request_id)


def _failure(call: Call[object], reply: Reply, request_id: str) -> ServerError:
    """Return the error for a failed answer, which leafbeam or a proxy in front of it has sent."""
    status = reply.status
    kind = _KINDS.get(status, InvalidRequestError if 400 <= status < 500 else ServerError)
    detail = _detail(reply.body)
    message, code, reason = (detail.get(name) for name in ("message", "type", "reason"))
    if not isinstance(message, str):
        message = f"it says {reply.body[:80].decode(errors='replace')!r}, which is not an answer of leafbeam"
    return kind(
        f"{_name(call)}: the server answered {status}: {message}",
        status=status,
        code=code if isinstance(code, str) else f"http_{status}",
        reason=reason if isinstance(reason, str) else None,
        request_id=reply.headers.get(REQUEST_ID, request_id),
        retry_after_s=_retry_after_s(reply, detail) if kind is ServerBusyError else None,
        lines=_lines(detail.get("lines")),
        body=reply.body[:500],
    )


def _detail(body: bytes) -> dict[str, object]:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    detail = content.get("error") if isinstance(content, dict) else None
    return detail if isinstance(detail, dict) else {}


def _retry_after_s(reply: Reply, detail: Mapping[str, object]) -> float | None:
    """Return the pause that the server asks for, from its body in milliseconds or from the header in seconds."""
    in_ms = detail.get("retry_after_ms")
    if isinstance(in_ms, int | float) and not isinstance(in_ms, bool) and 0 <= in_ms < math.inf:
        return min(in_ms / 1e3, _MAX_WAIT_S)
    text = reply.headers.get("retry-after", "")
    return min(float(text[:9]), _MAX_WAIT_S) if text.isdecimal() and text.isascii() else None


def _lines(lines: object) -> dict[int, str]:
    if not isinstance(lines, dict):
        return {}
    return {int(number): str(problem) for number, problem in lines.items() if number[:9].isdecimal() and number == number[:9]}


def _name(call: Call[object]) -> str:
    return f"{call.method} {call.target.partition('?')[0][:100]}"
