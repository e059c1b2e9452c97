"""A peer that gives no answer: what its row says instead of a number."""

from __future__ import annotations

import re
from typing import Literal

from leafbeam.engine.decoder import is_out_of_memory
from leafbeam.errors import MissingExtraError

__all__ = ["PeerFailure", "Status", "ended", "failure_of", "kind_of"]

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


def ended(code: int | None, said: str) -> PeerFailure:
    """A process that ended before it answered. Exit status -9 is how Linux ends one when memory runs out."""
    reason = f"exit status {code}: {said}"[:_LONGEST]
    return PeerFailure("out of memory" if code == -9 else kind_of(reason, "crashed"), reason)


def kind_of(reason: str, otherwise: Status) -> Status:
    """ "out of memory" where a message says so."""
    return "out of memory" if _NO_MEMORY.search(reason) else otherwise
