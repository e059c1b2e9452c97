"""Predicts the duration of a batch from the batches that ran."""

import math
from dataclasses import dataclass

from leafbeam.engine.capacity import BatchSize
from leafbeam.errors import ArgumentError

_TERMS = ("batch", "tokens", "padding", "beam_rows", "tokens_longest", "beam_rows_longest")
_MAX_SWEEPS = 40
_DRIFTED = 0.3  # mean log error over about ten batches


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyFit:
    """Coefficients (see `LatencyModel`), the 95th percentile of actual over expected seconds, and the number of batches."""

    seconds: dict[str, float]
    spread: float
    observed: int


class LatencyModel:
    """Non-negative least squares over the size of a batch, updated online.

    seconds ~ a + b * tokens + c * padding + d * beam_rows + e * tokens * longest + f * beam_rows * longest

    The terms are launches, matrix products of the prefill (over its padding too), matrix products of the decode steps,
    attention of the prefill, and attention of the beams over their prompts. Errors are relative, and outliers weigh less
    (Huber). Old batches are forgotten over about `memory` batches, and faster while the mean error shows a drift.

    `expected` is the fit; `p95` is the fit times the spread. Both are 0 until `min_observations` batches were observed.
    Cost: about 50 microseconds an observation.
    """

    def __init__(self, *, memory: int = 100, min_observations: int = 5) -> None:
        if memory < 2 or min_observations < 1:
            raise ArgumentError(f"memory={memory} must be at least 2 and min_observations={min_observations} at least 1")
        self._keep = 1 - 1 / memory
        self._min_observations = min_observations
        size = len(_TERMS)
        self._moments = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size
        self._weights = [0.0] * size
        self._log_spread = math.log(1.2)
        self._drift = 0.0  # running mean of log(actual / expected)
        self._observed = 0

    @property
    def fit(self) -> LatencyFit:
        """The current coefficients."""
        seconds: dict[str, float] = dict(zip(_TERMS, self._weights, strict=True))
        return LatencyFit(seconds=seconds, spread=math.exp(self._log_spread), observed=self._observed)

    def expected(self, size: BatchSize) -> float:
        """Expected seconds of a batch; 0 while unknown."""
        if self._observed < self._min_observations:
            return 0.0
        constant, tokens, padding, rows, longest_tokens, longest_rows = _features(size)
        a, b, c, d, e, f = self._weights  # unrolled: every admission check calls this several times
        return a * constant + b * tokens + c * padding + d * rows + e * longest_tokens + f * longest_rows

    def p95(self, size: BatchSize) -> float:
        """Seconds that 19 of 20 batches of this size stay within; 0 while unknown."""
        return self.expected(size) * math.exp(self._log_spread)

    def observe(self, size: BatchSize, seconds: float) -> None:
        """Learn from a batch that took `seconds`."""
        seconds = max(seconds, 1e-6)
        features = _features(size)
        expected = self.expected(size)
        known = expected > 0
        scale = max(expected, 1e-6) if known else seconds
        error = abs(seconds - scale) / scale
        if known:
            self._drift += 0.1 * (min(1.0, max(-1.0, math.log(seconds / scale))) - self._drift)
        has_drifted = abs(self._drift) > _DRIFTED
        weight = (1.0 if error <= 0.5 or has_drifted else 0.5 / error) / scale**2
        keep = 0.8 if has_drifted else self._keep
        for i, left in enumerate(features):
            self._targets[i] = keep * self._targets[i] + weight * left * seconds
            row = self._moments[i]
            for j, right in enumerate(features):
                row[j] = keep * row[j] + weight * left * right
        self._observed += 1
        self._solve()
        if known:
            # Stochastic quantile: up by 0.095 when exceeded, down by 0.005 when not, stationary at the 95th percentile.
            step = 0.095 if seconds > expected * math.exp(self._log_spread) else -0.005
            self._log_spread = min(math.log(4.0), max(math.log(1.05), self._log_spread + step))

    def _solve(self) -> None:
        """Coordinate descent with non-negative coordinates (Franc, Hlavac and Navara, 2005), from the last solution."""
        weights = self._weights
        for _ in range(_MAX_SWEEPS):
            change = 0.0
            for i, row in enumerate(self._moments):
                curvature = row[i] * (1 + 1e-6)
                if curvature <= 0:
                    continue
                slope = sum(value * weight for value, weight in zip(row, weights, strict=True)) - self._targets[i]
                new = max(0.0, weights[i] - slope / curvature)
                change = max(change, abs(new - weights[i]) * math.sqrt(curvature))
                weights[i] = new
            if change < 1e-4:
                return


def _features(size: BatchSize) -> tuple[float, float, float, float, float, float]:
    """The terms of the model, scaled to similar magnitudes."""
    requests, tokens, longest = size.requests, size.tokens, size.longest
    rows = requests * size.num_beams
    return 1.0, tokens / 1e3, (requests * longest - tokens) / 1e3, rows / 1e3, tokens * longest / 1e6, rows * longest / 1e6
