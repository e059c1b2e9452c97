"""Errors that users of leafbeam can cause: all are subclasses of `LeafbeamError`.

    LeafbeamError
    ├── ArgumentError            an argument is out of its range (num_beams=0, scoring="fulll")
    ├── CodesError               a table of codes has the wrong width, or a code outside its codebook
    ├── ItemIdError              an item id is unknown, or given twice
    ├── FilterError              a mask or set of items cannot become a filter
    │   └── ForeignFilterError   the filter was made for another index
    ├── AutomatonError           a pattern, schema, vocabulary or state cannot become or belong to an automaton
    ├── IndexFileError           the file is truncated, of another kind, or of a newer format
    ├── ShardError               a shard of an index did not answer, or has another index than the search began with
    ├── LogError                 the directory of a live index is damaged, or a change could not be written to it
    │   └── LockedError          another writer has the directory open
    ├── LogitsError              the model gave NaN, +inf or an array of the wrong shape
    ├── DataError                a table of items or interactions cannot be read
    │   └── AttributesError      attributes do not fit the columns of a catalog
    ├── BatchError               lines of a batch of items are wrong, and nothing was changed
    ├── ConflictError            a change contradicts an earlier one, or another process's
    ├── CheckpointError          a model or Semantic ID directory is incomplete or belongs to something else
    ├── TrainingError            training stopped: the loss is not a finite number
    ├── RuleError                a rule's predicate cannot be evaluated
    │   └── UnknownRuleError     a request names a rule that the catalog does not have
    │       ├── UnknownBoostError  a request names a boost that the catalog does not have
    │       └── UnknownColumnError a request caps a column that the items do not have
    ├── RequestError             a request exceeds the server's limits
    │   └── OverloadedError      the server is overloaded; retry later
    │       └── UnavailableError the server is starting, stopping, or its device does not respond
    ├── ServerError              a leafbeam server failed, refused a request of its client, or did not answer
    │   ├── AccessDeniedError    the server needs a key, or this key may not do this (401, 403)
    │   ├── NotFoundError        there is no such item, rule, snapshot or route (404)
    │   ├── InvalidRequestError  the request contradicts the server's rules or state (any other 4xx)
    │   ├── ServerBusyError      the server is overloaded or unavailable, after all retries (429, 503)
    │   └── NoAnswerError        the server was not reached, hung up, was late, or its answer cannot be read
    ├── FeedError                a source of changes cannot be read, or one of its changes cannot be made
    ├── InferenceError           another inference engine did not answer, or its answer cannot be used
    ├── MissingExtraError        an optional package is not installed
    └── DemoError                a step of the demo failed

    CatalogInUseWarning          items are changed while another process has the catalog open; a UserWarning
    GenerationSettingsWarning    a checkpoint's generation config changes the answers of `generate`; a UserWarning

Each message says what was expected, what came and how to fix it. Bugs of leafbeam are `AssertionError`s.
"""

import math
from collections.abc import Mapping
from numbers import Integral
from typing import get_args

__all__ = [
    "AccessDeniedError",
    "ArgumentError",
    "AttributesError",
    "AutomatonError",
    "BatchError",
    "CatalogInUseWarning",
    "CheckpointError",
    "CodesError",
    "ConflictError",
    "DataError",
    "DemoError",
    "FeedError",
    "FilterError",
    "ForeignFilterError",
    "GenerationSettingsWarning",
    "IndexFileError",
    "InferenceError",
    "InvalidRequestError",
    "ItemIdError",
    "LeafbeamError",
    "LockedError",
    "LogError",
    "LogitsError",
    "MissingExtraError",
    "NoAnswerError",
    "NotFoundError",
    "OverloadedError",
    "RequestError",
    "RuleError",
    "ServerBusyError",
    "ServerError",
    "ShardError",
    "TrainingError",
    "UnavailableError",
    "UnknownBoostError",
    "UnknownColumnError",
    "UnknownRuleError",
]


class LeafbeamError(Exception):
    """The base class of every error that leafbeam raises deliberately."""


class ArgumentError(LeafbeamError, ValueError):
    """An argument is out of its range."""


class CodesError(LeafbeamError, ValueError):
    """A table of codes has the wrong width, dtype, or a code outside its codebook."""


class ItemIdError(LeafbeamError, ValueError):
    """An item id is unknown, or was given twice."""


class FilterError(LeafbeamError, ValueError):
    """A mask or a set of items cannot become a filter."""


class ForeignFilterError(FilterError):
    """A filter was made for another index."""


class AutomatonError(LeafbeamError, ValueError):
    """A pattern, schema or vocabulary cannot become an automaton, or a state or token does not belong to it.

    pointer: the JSON pointer of the part of a schema that is wrong, as in "#/properties/a~1b"; None where there is none.
    """

    def __init__(self, message: str = "", *, pointer: str | None = None) -> None:
        super().__init__(message)
        self.pointer = pointer


class IndexFileError(LeafbeamError, ValueError):
    """An index file is truncated, of another kind, or of a newer format."""


class ShardError(LeafbeamError, RuntimeError):
    """A shard of an index did not answer within a search, or is not the one that the search began with.

    Args:
        message: What happened.
        shard: The number of the shard, from 0.
        may_pass: Whether the same search may succeed later.
    """

    def __init__(self, message: str = "", *, shard: int | None = None, may_pass: bool = True) -> None:
        super().__init__(message)
        self.shard, self.may_pass = shard, may_pass


class LogError(LeafbeamError, RuntimeError):
    """The directory of a live index is damaged, or could not be written."""


class LockedError(LogError):
    """Another writer has the directory of a live index open."""


class LogitsError(LeafbeamError, ValueError):
    """The model's logits hold NaN or +inf, or have the wrong shape.

    request: the position in the batch of the request that they belong to; None if they are not of one request alone.
    """

    def __init__(self, message: str = "", *, request: int | None = None) -> None:
        super().__init__(message)
        self.request = request

    @classmethod
    def not_finite(cls, request: int, beam: int, where: str) -> "LogitsError":
        """Return the error for the first such row, the same of every backend. where: "at level 2", "in round 5", or ""."""
        return cls(
            f"the logits of request {request}, beam {beam}{where and ' ' + where} hold NaN or +inf: expected finite numbers, "
            "or -inf for a code that must not be taken; look at the model's output",
            request=request,
        )

    def renamed(self, name: str, request: int | None = None) -> "LogitsError":
        """Return the error with another name of the request, such as "this request" for a caller who has no batch."""
        return LogitsError(str(self).replace(f"request {self.request}", name, 1), request=request)

    @classmethod
    def none_allowed(cls, request: int, where: str) -> "LogitsError":
        """Return the error for a text that cannot go on: the model excludes each code that its constraint allows."""
        return cls(
            f"the logits of request {request} {where} exclude every legal code by -inf: expected a finite number for one of "
            "them; look at the model's output",
            request=request,
        )


class DataError(LeafbeamError, ValueError):
    """A table of items or interactions cannot be read. may_pass: now; the same may work later."""

    def __init__(self, message: str = "", *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class AttributesError(DataError):
    """Attributes of items do not fit the columns of a catalog: a column cannot hold a value, or takes no null."""


class BatchError(LeafbeamError, ValueError):
    """Lines of a batch of items are wrong, and nothing was changed. lines: what is wrong with each, by its number from 1."""

    def __init__(self, lines: Mapping[int, str], num_lines: int) -> None:
        self.lines = dict(sorted(lines.items()))
        shown = "; ".join(f"line {number}: {problem}" for number, problem in list(self.lines.items())[:3])
        more = f"; and {len(lines) - 3:,} more" if len(lines) > 3 else ""
        wrong = f"{len(lines):,} of {counted(num_lines, 'line')} {'is' if len(lines) == 1 else 'are'} wrong"
        super().__init__(f"{wrong}, so nothing was changed: {shown}{more}")


class ConflictError(LeafbeamError, RuntimeError):
    """A change contradicts an earlier one, or another process's."""


class CheckpointError(LeafbeamError, ValueError):
    """A directory of weights or Semantic IDs is incomplete or belongs to something else."""


class TrainingError(LeafbeamError, ArithmeticError):
    """Training stopped: the loss or its gradient is not a finite number."""


class RuleError(LeafbeamError, ValueError):
    """A rule's predicate cannot be evaluated. by_data: over these rows, or not in time; over others it may be."""

    def __init__(self, message: str = "", *, by_data: bool = False) -> None:
        super().__init__(message)
        self.by_data = by_data


class UnknownRuleError(RuleError):
    """A request names a rule that the catalog does not have."""


class UnknownBoostError(UnknownRuleError):
    """A request names a boost that the catalog does not have."""


class UnknownColumnError(UnknownRuleError):
    """A request caps a column that the table of items does not have."""


class CatalogInUseWarning(UserWarning):
    """Items were changed in a catalog that another process has open."""


class GenerationSettingsWarning(UserWarning):
    """A checkpoint's generation config changes the answers of a constrained `generate`."""


class RequestError(LeafbeamError, ValueError):
    """A request exceeds the server's limits. reason: the label under which metrics count it."""

    def __init__(self, message: str = "", *, reason: str = "over_a_limit") -> None:
        super().__init__(message)
        self.reason = reason


class OverloadedError(RequestError):
    """The server is overloaded. retry_after_s: an estimate of the seconds until it can admit the request."""

    def __init__(self, message: str = "", *, reason: str = "overloaded", retry_after_s: float = 1.0) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_s = retry_after_s


class UnavailableError(OverloadedError):
    """The server is starting or stopping, or its device does not respond."""


class ServerError(LeafbeamError, RuntimeError):
    """A leafbeam server failed, refused a request of its client, or did not answer.

    Args:
        message: What happened.
        status: The status of HTTP; None without an answer.
        code: The class of the server's error, such as "UnknownRuleError"; without an answer "unreachable", "cut" (the
            connection ended early), "late", "malformed" or "stale" (the answer to another request).
        reason: The reason under which the server's metrics count it.
        request_id: The id of the request in the server's log.
        retry_after_s: The seconds after which to try again.
        lines: The problem of each wrong line of a batch, by its number from 1.
        body: The first bytes of an answer that is not one of leafbeam.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        code: str = "",
        reason: str | None = None,
        request_id: str = "",
        retry_after_s: float | None = None,
        lines: Mapping[int, str] | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.reason, self.request_id = status, code, reason, request_id
        self.retry_after_s, self.lines, self.body = retry_after_s, dict(lines or {}), body


class AccessDeniedError(ServerError):
    """The server needs a key that it knows, or this key may not do this."""


class NotFoundError(ServerError):
    """The server has no such item, rule, snapshot or route."""


class InvalidRequestError(ServerError):
    """The request contradicts the server's rules or state; the same request would fail again."""


class ServerBusyError(ServerError):
    """The server is overloaded or unavailable, and was so after all retries."""


class NoAnswerError(ServerError):
    """The server was not reached, hung up, was late, or its answer cannot be read.

    Whether it did what was asked is known only where `code` is "unreachable": it did not.
    """


class FeedError(LeafbeamError, RuntimeError):
    """A source of changes cannot be read, or one of its changes cannot be made; nothing after it was."""


class InferenceError(LeafbeamError, RuntimeError):
    """Another inference engine (vLLM, SGLang) did not answer, or its answer cannot be used.

    reason: "unreachable", "timeout", "refused" (the engine said no), "malformed", "duplicate" (answered twice), "no_logprobs",
    "missing_answer" or "missing_tokens" (fewer than asked for).
    """

    def __init__(self, message: str = "", *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class MissingExtraError(LeafbeamError, ImportError):
    """An optional package is needed and not installed."""


class DemoError(LeafbeamError, RuntimeError):
    """A step of the demo failed."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, in the singular for 1. plural: the plural if it is not the noun with an s.

    >>> counted(1, "row"), counted(12_000, "row"), counted(0, "match", "matches")
    ('1 row', '12,000 rows', '0 matches')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def check_choice(name: str, value: object, literal: object) -> None:
    """Raise ArgumentError unless a value is one of a `Literal`.

    Args:
        name: The name of the argument.
        value: Its value.
        literal: The type.
    """
    if value not in (choices := get_args(literal)):
        *others, last = map(repr, choices)
        raise ArgumentError(f"{name} is {short_repr(value)}: expected {', '.join(others)} or {last}")


def check_whole(low: int = 1, **values: object) -> None:
    """Raise ArgumentError for a value that is not an integer of at least `low`; its name is that of the argument."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
            raise ArgumentError(f"{name} must be an integer of at least {low}, not {short_repr(value)}")


def check_number(
    low: float = 0, *, exclusive: bool = False, below: float = math.inf, most: float = math.inf, **values: object
) -> None:
    """Raise ArgumentError for a value that is not a finite number within the bounds; its name is that of the argument.

    Args:
        low: The smallest number.
        exclusive: Whether the number must be larger than `low`.
        below: A number that is too large.
        most: The largest number.
        values: The values by name.
    """
    for name, value in values.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) < 2**1023
            or not (low < value if exclusive else low <= value)
            or not value < below
            or not value <= most
        ):
            above = f"{'above' if exclusive else 'at least'} {low:,}"
            limits = [f" and below {below:,}"] * (below < math.inf) + [f" and at most {most:,}"] * (most < math.inf)
            raise ArgumentError(f"{name} must be {above}{''.join(limits)}, not {short_repr(value)}")


def short_repr(value: object) -> str:
    """Return a value for an error message, at most 60 characters long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that nests too deeply"
    return text if len(text) <= 60 else text[:57] + "..."
