"""Calibration of scores: from log-probabilities to the probability that an item is relevant.

Shapes: U users, C items of the scored set, n answers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from leafbeam.errors import ArgumentError

__all__ = ["Isotonic", "Temperature", "calibration_error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Temperature:
    """Temperature scaling: p = softmax(score / temperature) over a scored set (Guo et al., 2017).

    For scores of a whole set (`ExactScoring`) with one relevant item. Above 1 the model was overconfident. Keeps the order.

    >>> Temperature.fit(scores_UC, target_U).probabilities(scores_UC).sum(axis=1)
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(f"temperature={self.temperature}: a positive number")

    @classmethod
    def fit(cls, scores_UC: NDArray[np.floating], target_U: NDArray[np.integer]) -> "Temperature":
        """The temperature of maximal likelihood on validation users, by bisection of the slope in log T.

        Scores of -inf (excluded items) keep probability 0; an excluded target is an ArgumentError.
        """
        _check_users(scores_UC, target_U)
        score_U = scores_UC[np.arange(len(scores_UC)), target_U].astype(np.float64)
        if not np.isfinite(score_U).all():
            raise ArgumentError(f"{int((~np.isfinite(score_U)).sum()):,} targets have no finite score: leave those users out")
        low, high = np.log(1e-3), np.log(1e3)
        finite_UC = np.where(np.isfinite(scores_UC), scores_UC, 0).astype(np.float64)
        for _ in range(40):
            middle = 0.5 * (low + high)
            p_UC = _softmax(scores_UC / np.exp(middle))
            # The likelihood rises with 1/T while targets score above the softmax's expectation.
            low, high = (low, middle) if (score_U - (p_UC * finite_UC).sum(axis=1)).mean() > 0 else (middle, high)
        return cls(temperature=float(np.exp(0.5 * (low + high))))

    def probabilities(self, scores_UC: NDArray[np.floating]) -> NDArray[np.float64]:
        """The probability of each item of the set, rows of sum 1."""
        return _softmax(np.asarray(scores_UC, np.float64) / self.temperature)


@dataclass(frozen=True, kw_only=True, slots=True)
class Isotonic:
    """Isotonic regression from scores to frequencies of relevance (Zadrozny and Elkan, 2002).

    Needs no scored set: any answers with scores, such as those of a beam search. Keeps the order of answers, except for ties.

    scores, frequencies: knots, both ascending; linear between them, constant beyond.
    """

    scores: tuple[float, ...]
    frequencies: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.frequencies) or not self.scores:
            raise ArgumentError(f"{len(self.scores)} scores for {len(self.frequencies)} frequencies: as many, at least one")
        if (np.diff(self.scores) < 0).any() or (np.diff(self.frequencies) < 0).any():
            raise ArgumentError("scores and frequencies have to be ascending")

    @classmethod
    def fit(cls, scores_n: NDArray[np.floating], hits_n: NDArray[np.bool_]) -> "Isotonic":
        """From answers to validation users and whether each was right. n log n."""
        if scores_n.shape != hits_n.shape or scores_n.ndim != 1 or len(scores_n) == 0 or not np.isfinite(scores_n).all():
            raise ArgumentError(f"finite scores {scores_n.shape} and hits {hits_n.shape}: one of each for every answer")
        model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores_n, hits_n.astype(np.float64))
        return cls(scores=tuple(model.X_thresholds_.tolist()), frequencies=tuple(model.y_thresholds_.tolist()))

    def probabilities(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """How often an answer of such a score is right, any shape; 0 for -inf."""
        found = np.interp(scores, self.scores, self.frequencies)
        return np.where(np.isneginf(scores), 0.0, found)


def calibration_error(probabilities_n: NDArray[np.floating], hits_n: NDArray[np.bool_], *, bins: int = 15) -> float:
    """Expected calibration error over bins of equally many answers.

    sum over bins of share of the answers x |mean probability - share that was relevant|. (Naeini et al., 2015, equal masses.)
    """
    if bins < 1 or len(probabilities_n) == 0 or probabilities_n.shape != hits_n.shape:
        raise ArgumentError(f"{bins} bins for {probabilities_n.shape} probabilities and {hits_n.shape} hits")
    order_n = np.argsort(probabilities_n, kind="stable")
    gaps = [
        len(part) * abs(float(probabilities_n[part].mean()) - float(hits_n[part].mean()))
        for part in np.array_split(order_n, min(bins, len(order_n)))
    ]
    return sum(gaps) / len(order_n)


def _softmax(scores_UC: NDArray[np.floating]) -> NDArray[np.float64]:
    raised_UC = np.exp(scores_UC - scores_UC.max(axis=1, keepdims=True))
    return raised_UC / raised_UC.sum(axis=1, keepdims=True)


def _check_users(scores_UC: NDArray[np.floating], target_U: NDArray[np.integer]) -> None:
    if scores_UC.ndim != 2 or len(scores_UC) == 0 or target_U.shape != scores_UC.shape[:1]:
        raise ArgumentError(f"scores {scores_UC.shape} and targets {target_U.shape}: (U, C) and (U,)")
    if np.isnan(scores_UC).any() or np.isposinf(scores_UC).any():
        raise ArgumentError("scores are NaN or +inf: only -inf is allowed beside numbers")
