"""Every error that a user of leafbeam can cause.

    LeafbeamError
    ├── ArgumentError            an argument is out of its range (num_beams=0, scoring="fulll")
    ├── CodesError               a table of codes is not one: wrong width, negative, not below the codebook's size
    ├── ItemIdError              an item id is unknown, or given twice
    ├── FilterError              a mask or set of items cannot become a filter
    │   └── ForeignFilterError   the filter was made for another index
    ├── AutomatonError           a pattern, schema, vocabulary or state cannot become or belong to an automaton
    ├── IndexFileError           the file is truncated, of another kind, or of a newer format
    ├── LogError                 the directory of a live index is damaged, or a change could not be written to it
    │   └── LockedError          another writer has the directory open
    ├── LogitsError              the model gave NaN, +inf or an array of the wrong shape
    ├── DataError                a table of items or interactions cannot be read as one
    ├── CheckpointError          a model or Semantic ID directory is incomplete or belongs to something else
    ├── TrainingError            training cannot go on: the loss is no longer a number
    ├── RuleError                a rule's predicate cannot be evaluated
    │   └── UnknownRuleError     a request names a rule that the catalog does not have
    ├── RequestError             a request is outside what the server accepts
    │   └── OverloadedError      the server has no room for it now; try again later
    │       └── UnavailableError the server takes no requests: it stops, or its device does not answer
    ├── MissingExtraError        an optional package is not installed
    └── DemoError                a step of the demo failed

Each message says what was expected, what came and how to mend it. Mistakes of ours are `AssertionError`s.
"""

__all__ = [
    "ArgumentError",
    "AutomatonError",
    "CheckpointError",
    "CodesError",
    "DataError",
    "DemoError",
    "FilterError",
    "ForeignFilterError",
    "IndexFileError",
    "ItemIdError",
    "LeafbeamError",
    "LockedError",
    "LogError",
    "LogitsError",
    "MissingExtraError",
    "OverloadedError",
    "RequestError",
    "RuleError",
    "TrainingError",
    "UnavailableError",
    "UnknownRuleError",
]


class LeafbeamError(Exception):
    """The parent of every error that leafbeam raises on purpose."""


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
    """A pattern, schema or vocabulary cannot become an automaton, or a state or token does not belong to it."""


class IndexFileError(LeafbeamError, ValueError):
    """An index file is truncated, of another kind, or of a newer format."""


class LogError(LeafbeamError, RuntimeError):
    """The directory of a live index is damaged, or could not be written."""


class LockedError(LogError):
    """Another writer has the directory of a live index open."""


class LogitsError(LeafbeamError, ValueError):
    """The model's logits hold NaN or +inf, or have the wrong shape."""

    @classmethod
    def not_finite(cls, request: int, beam: int, where: str) -> "LogitsError":
        """What every backend says of the first such row. where: "at level 2", "in round 5", or nothing."""
        return cls(
            f"the logits of request {request}, beam {beam}{where and ' ' + where} hold NaN or +inf: expected finite numbers, "
            "or -inf for a code that must not be taken; look at the model's output"
        )


class DataError(LeafbeamError, ValueError):
    """A table of items or interactions cannot be read as one."""


class CheckpointError(LeafbeamError, ValueError):
    """A directory of weights or Semantic IDs is incomplete or belongs to something else."""


class TrainingError(LeafbeamError, ArithmeticError):
    """Training cannot go on: the loss or its gradient is no longer a number."""


class RuleError(LeafbeamError, ValueError):
    """A rule's predicate cannot be evaluated."""


class UnknownRuleError(RuleError):
    """A request names a rule that the catalog does not have."""


class RequestError(LeafbeamError, ValueError):
    """A request is outside what the server accepts. reason: a word for why, as metrics count it."""

    def __init__(self, message: str = "", *, reason: str = "over_a_limit") -> None:
        super().__init__(message)
        self.reason = reason


class OverloadedError(RequestError):
    """The server has no room for a request now. retry_after_s: when it should have, as far as can be told."""

    def __init__(self, message: str = "", *, reason: str = "overloaded", retry_after_s: float = 1.0) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_s = retry_after_s


class UnavailableError(OverloadedError):
    """The server takes no requests, whatever its load: it is starting, stopping, or its device does not answer."""


class MissingExtraError(LeafbeamError, ImportError):
    """An optional package is needed and not installed."""


class DemoError(LeafbeamError, RuntimeError):
    """A step of the demo failed."""
