"""A request on its way: what was settled before it waited, and the one place where its answer is given."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from leafbeam.engine.prepare import Prompt
from leafbeam.engine.request import Request, Result, Scoring
from leafbeam.index import Version, VersionFilter

__all__ = ["Job", "JobKey"]

JobKey = tuple[int, Scoring, int]  # width, scoring, which version of the index


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Job:
    """A request with everything settled that does not need the model: its rules and their version are pinned here.

    tokens: of its prompt. submitted, prepared, deadline: the engine's clock. future: holds the answer; cancelling it takes the
    request out, wherever it is.
    """

    request: Request
    prompt: Prompt
    tokens: int
    version: Version
    chosen: VersionFilter | None
    rules_generation: int | None
    num_beams: int
    submitted: float
    prepared: float
    deadline: float
    future: "Future[Result]" = field(default_factory=Future)

    @property
    def key(self) -> JobKey:
        """Requests with equal keys are one search. (A version that a job holds shares its id with no other.)"""
        return self.num_beams, self.request.scoring, id(self.version)

    @property
    def is_over(self) -> bool:
        """It was answered, refused or cancelled: nobody waits for it."""
        return self.future.done()

    def answer(self, result: Result) -> bool:
        """Give the answer; False where there was one before, or nobody waits."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: Exception) -> bool:
        """Give the reason why there is no answer; False where there was one before, or nobody waits."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True
