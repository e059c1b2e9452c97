"""A request between submission and answer."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.prompts import Prompt
from leafbeam.engine.request import Request, Result
from leafbeam.index import Version, VersionFilter

__all__ = ["PendingRequest"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PendingRequest:
    """A request with its prompt, and the filter and index version it was admitted with.

    size: with the key of its batch, its arrival and its deadline. prepared: when it was ready to be queued.
    future: completed with the result; cancelling it withdraws the request, queued or running.
    """

    request: Request
    prompt: Prompt
    version: Version
    item_filter: VersionFilter | None
    rules_generation: int | None
    size: RequestSize
    prepared: float
    future: "Future[Result]" = field(default_factory=Future)

    @property
    def is_done(self) -> bool:
        """Whether it was answered, refused or cancelled."""
        return self.future.done()

    def set_result(self, result: Result) -> bool:
        """Complete the future; False if it was done already."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return False
        return True

    def set_error(self, error: Exception) -> bool:
        """Complete the future with an error; False if it was done already."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True
