"""How long a batch will take, learnt from the batches that ran."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leafbeam.engine.capacity import BatchSize
from leafbeam.errors import ArgumentError

__all__ = ["LatencyFit", "LatencyModel"]

_TERMS = ("batch", "tokens", "padding", "beam_rows", "tokens_longest", "beam_rows_longest")
_SWEEPS = 40
_DRIFTED = 0.3  # a third off, on average over about ten batches


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyFit:
    """What was learnt: seconds for a batch, for a thousand prompt tokens, and so on; spread: the 95th percentile of actual
    over expected time; observed: batches that were looked at.
    """

    seconds: dict[str, float]
    spread: float
    observed: int


class LatencyModel:
    """A non-negative least-squares fit of a batch's seconds, kept up to date online.

    seconds ~ a + b * tokens + c * padding + d * beam_rows + e * tokens * longest + f * beam_rows * longest

    that is: launching, the prefill's matrix products (over padding too, where the model pads), those of the rounds, the
    prefill's attention, and the attention of the beams over their prompts; the number of rounds is the model's and stands in d
    and f. Think of it as a stopwatch with a memory of about `memory` batches. Errors are relative, so that small batches count
    like large ones, and what is far off weighs less (Huber), so that one stall does not spoil the fit. When a run of batches is
    off in one direction the machine has changed: then it forgets quickly, and knows the new one within a few dozen batches.

    `expected` is the fit, `likely` the fit times the spread: what 19 of 20 batches kept within. Both are 0 until `least`
    batches were observed: nothing is known, so nothing is refused for it. Cost: about 50 microseconds an observation.
    """

    def __init__(self, *, memory: int = 100, least: int = 5) -> None:
        if memory < 2 or least < 1:
            raise ArgumentError(f"memory={memory} has to be at least 2, least={least} at least 1")
        self._keep = 1 - 1 / memory
        self._least = least
        size = len(_TERMS)
        self._moments = [[0.0] * size for _ in range(size)]
        self._answers = [0.0] * size
        self._weights = [0.0] * size
        self._log_spread = math.log(1.2)
        self._drift = 0.0  # a running mean of the logarithm of actual over expected time
        self._observed = 0

    @property
    def fit(self) -> LatencyFit:
        """The state of the fit."""
        return LatencyFit(
            seconds=dict(zip(_TERMS, self._weights, strict=True)),
            spread=math.exp(self._log_spread),
            observed=self._observed,
        )

    def expected(self, size: BatchSize) -> float:
        """Seconds that a batch takes, most probably; 0 while nothing is known."""
        return 0.0 if self._observed < self._least else self._estimate(_row(size))

    def likely(self, size: BatchSize) -> float:
        """Seconds that 19 of 20 such batches keep within; 0 while nothing is known."""
        return self.expected(size) * math.exp(self._log_spread)

    def observe(self, size: BatchSize, seconds: float) -> None:
        """A batch of this size took so long."""
        seconds = max(seconds, 1e-6)
        row = _row(size)
        before = self._estimate(row) if self._observed >= self._least else 0.0
        known = before > 0
        about = max(before, 1e-6) if known else seconds
        off = abs(seconds - about) / about
        if known:
            self._drift += 0.1 * (min(1.0, max(-1.0, math.log(seconds / about))) - self._drift)
        has_changed = abs(self._drift) > _DRIFTED
        weight = (1.0 if off <= 0.5 or has_changed else 0.5 / off) / about**2
        keep = 0.8 if has_changed else self._keep
        for i, left in enumerate(row):
            self._answers[i] = keep * self._answers[i] + weight * left * seconds
            line = self._moments[i]
            for j, right in enumerate(row):
                line[j] = keep * line[j] + weight * left * right
        self._observed += 1
        self._solve()
        if known:
            # A quantile by steps: up by 0.095 where it was exceeded, down by 0.005 where not, balance at 95 of 100.
            exceeded = seconds > before * math.exp(self._log_spread)
            step = 0.095 if exceeded else -0.005
            self._log_spread = min(math.log(4.0), max(math.log(1.05), self._log_spread + step))

    def _estimate(self, row: Sequence[float]) -> float:
        a, b, c, d, e, f = self._weights  # written out: every request at the door asks for a few of these
        return a * row[0] + b * row[1] + c * row[2] + d * row[3] + e * row[4] + f * row[5]

    def _solve(self) -> None:
        """Coordinate descent with a floor of 0 (Franc, Hlavac and Navara, 2005), from where the last one ended."""
        weights, moments, answers = self._weights, self._moments, self._answers
        for _ in range(_SWEEPS):
            moved = 0.0
            for i, line in enumerate(moments):
                curvature = line[i] * (1 + 1e-6)
                if curvature <= 0:
                    continue
                slope = sum(value * weight for value, weight in zip(line, weights, strict=True)) - answers[i]
                new = max(0.0, weights[i] - slope / curvature)
                moved = max(moved, abs(new - weights[i]) * math.sqrt(curvature))
                weights[i] = new
            if moved < 1e-4:
                return


def _row(size: BatchSize) -> tuple[float, ...]:
    """The terms, scaled so that all columns are of one size."""
    tokens, rows, longest = size.tokens, size.beam_rows, size.longest
    padding = size.padded_tokens - tokens
    return 1.0, tokens / 1e3, padding / 1e3, rows / 1e3, tokens * longest / 1e6, rows * longest / 1e6
