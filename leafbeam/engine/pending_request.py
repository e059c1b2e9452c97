"""A request between submission and answer."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.request import ItemId, Request, Result
from leafbeam.index import Version, VersionFilter

__all__ = ["PendingRequest"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PendingRequest:
    """A request with all that its search needs, under the rules and the index version of its submission.

    size: with the key of its batch, its arrival and its deadline. codes: (n, L) int64, of the known items of its history.
    deny: the known denied ids. prepared: when it was ready to be queued. future: completed with the result; cancelling it
    withdraws the request, queued or running.
    """

    request: Request
    size: RequestSize
    version: Version
    item_filter: VersionFilter | None
    rules_generation: int | None
    codes: NDArray[np.int64]
    deny: NDArray[Any] | None
    ignored_history: tuple[ItemId, ...]
    ignored_deny: tuple[ItemId, ...]
    prepared: float
    future: "Future[Result]" = field(default_factory=Future)

    @property
    def is_done(self) -> bool:
        """Whether it was answered, refused or cancelled."""
        return self.future.done()

    def complete(self, outcome: Result | Exception) -> bool:
        """Set the future's result or error; False if it was done already."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            return False
        return True
