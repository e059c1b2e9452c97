"""Stopwatch: measures the steps of a command."""

import time
from collections.abc import Callable


class Stopwatch:
    """A clock for steps that follow one another; `str` lists their seconds, as in "log 2 s, training 41 s"."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._now = clock, clock()
        self._steps: dict[str, float] = {}

    def end(self, step: str) -> float:
        """End a step, begin the next, and return the seconds that the first took."""
        before, self._now = self._now, self._clock()
        self._steps[step] = self._now - before
        return self._steps[step]

    @property
    def total(self) -> float:
        """Return the seconds of all steps so far, including the step that has not ended."""
        return sum(self._steps.values()) + self._clock() - self._now

    def __str__(self) -> str:
        return ", ".join(f"{step} {seconds:.0f} s" for step, seconds in self._steps.items())
