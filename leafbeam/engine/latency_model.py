"""Predicts the duration of a batch from the batches that ran."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.batcher import BatchSize
from leafbeam.jit import njit

_TERMS = ("batch", "tokens", "padding", "beam_rows", "tokens_longest", "beam_rows_longest")
_MAX_SWEEPS = 40
_KEEP = 0.99  # of the weight of the batches before
_MIN_OBSERVATIONS = 5
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
    (Huber). Old batches are forgotten over about a hundred batches, and faster while the mean error shows a drift.

    `expected` is the fit; `p95` is the fit times the spread. Both are 0 until five batches were observed.
    Cost: about 10 microseconds an observation, after a compilation at the first.
    """

    def __init__(self) -> None:
        size = len(_TERMS)
        self._moments, self._targets, self._solution = np.zeros((size, size)), np.zeros(size), np.zeros(size)
        self._weights = [0.0] * size  # the solution as numbers of Python, which are quicker to read one by one
        self._log_spread = math.log(1.2)
        self._drift = 0.0  # running mean of log(actual / expected)
        self._observed = 0

    @property
    def fit(self) -> LatencyFit:
        """Return the current coefficients."""
        seconds: dict[str, float] = dict(zip(_TERMS, self._weights, strict=True))
        return LatencyFit(seconds=seconds, spread=math.exp(self._log_spread), observed=self._observed)

    def expected(self, size: BatchSize) -> float:
        """Return the expected seconds of a batch; 0 while unknown."""
        if self._observed < _MIN_OBSERVATIONS:
            return 0.0
        constant, tokens, padding, rows, longest_tokens, longest_rows = _features(size)
        a, b, c, d, e, f = self._weights  # unrolled: every admission check calls this several times
        return a * constant + b * tokens + c * padding + d * rows + e * longest_tokens + f * longest_rows

    def p95(self, size: BatchSize) -> float:
        """Return the seconds that 19 of 20 batches of this size stay within; 0 while unknown."""
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
        keep = 0.8 if has_drifted else _KEEP
        learn(self._moments, self._targets, self._solution, np.array(features), seconds, weight, keep)
        self._weights = self._solution.tolist()
        self._observed += 1
        if known:
            # Stochastic quantile: up by 0.095 when exceeded, down by 0.005 when not, stationary at the 95th percentile.
            step = 0.095 if seconds > expected * math.exp(self._log_spread) else -0.005
            self._log_spread = min(math.log(4.0), max(math.log(1.05), self._log_spread + step))


@njit(cache=True)
def learn(
    moments_TT: NDArray[np.float64],
    targets_T: NDArray[np.float64],
    solution_T: NDArray[np.float64],
    features_T: NDArray[np.float64],
    seconds: float,
    weight: float,
    keep: float,
) -> None:
    """Add an observation to the normal equations of T terms, and solve them in place, from the last solution.

        moments, targets = keep * them + weight * features x (features, seconds)
        repeat: for each term: solution = max(0, what the other terms leave)

    (Franc, Hlavac and Navara, 2005: coordinate descent with non-negative coordinates.)
    """
    terms = len(features_T)
    for i in range(terms):
        targets_T[i] = keep * targets_T[i] + weight * features_T[i] * seconds
        for j in range(terms):
            moments_TT[i, j] = keep * moments_TT[i, j] + weight * features_T[i] * features_T[j]
    for _ in range(_MAX_SWEEPS):
        change = 0.0
        for i in range(terms):
            curvature = moments_TT[i, i] * (1 + 1e-6)
            if curvature <= 0:
                continue
            slope = -targets_T[i]
            for j in range(terms):
                slope += moments_TT[i, j] * solution_T[j]
            new = max(0.0, solution_T[i] - slope / curvature)
            change = max(change, abs(new - solution_T[i]) * math.sqrt(curvature))
            solution_T[i] = new
        if change < 1e-4:
            return


def _features(size: BatchSize) -> tuple[float, float, float, float, float, float]:
    """Return the terms of the model, scaled to similar magnitudes."""
    requests, tokens, longest, rows = size.requests, size.tokens, size.longest, size.beam_rows
    return 1.0, tokens / 1e3, (requests * longest - tokens) / 1e3, rows / 1e3, tokens * longest / 1e6, rows * longest / 1e6
