"""A peer that gives no answer: what its row says instead of a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

from leafbeam.engine.decoder import is_out_of_memory
from leafbeam.errors import MissingExtraError

__all__ = ["PeerFailure", "Status", "ended", "failure_of", "failures_of", "kind_of"]

Found = TypeVar("Found")
Status = Literal["missing", "failed", "crashed", "out of memory", "timed out", "left out", "not run"]
_LONGEST = 500  # characters of a reason: compilers print pages
_NO_MEMORY = re.compile(r"out of memory|memory ?error|resource_exhausted|\boom\b", re.IGNORECASE)


class PeerFailure(Exception):
    """A peer that gave no answer: `status` and `reason` are its row."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status: Status = status
        self.reason = reason

    @property
    def row(self) -> dict[str, str]:
        return {"status": self.status, "reason": self.reason}


def failure_of(error: Exception) -> PeerFailure:
    """What a peer raised in this process, as a failure: a missing package and memory that ran out by name."""
    if isinstance(error, PeerFailure):
        return error
    reason = f"{type(error).__name__}: {error}"[:_LONGEST]
    if isinstance(error, MissingExtraError | ModuleNotFoundError):
        return PeerFailure("missing", reason)
    return PeerFailure("out of memory" if is_out_of_memory(error) else kind_of(reason, "failed"), reason)


def failures_of(ways: Mapping[str, Callable[[], Found]], check: Callable[[Found], object]) -> dict[str, dict[str, str]]:
    """Rows of peers that raise instead of answering; answers are checked. What leafbeam or the check raises ends the run."""
    failed: dict[str, dict[str, str]] = {}
    for name, way in ways.items():
        try:
            found = way()
        except Exception as error:
            if name == "leafbeam":
                raise
            failed[name] = failure_of(error).row
        else:
            check(found)
    return failed


def ended(code: int | None, said: str) -> PeerFailure:
    """A process that ended before it answered. Exit status -9 is how Linux ends one when memory runs out."""
    reason = f"exit status {code}: {said}"[:_LONGEST]
    return PeerFailure("out of memory" if code == -9 else kind_of(reason, "crashed"), reason)


def kind_of(reason: str, otherwise: Status) -> Status:
    """ "out of memory" where a message says so."""
    return "out of memory" if _NO_MEMORY.search(reason) else otherwise
