"""Fusion: one score for an item from a model's beams and an item memory.

Shapes: N items of the memory, F features, E examples, C candidates of an example, T the best of these, k items of the beams.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError

_NUM_BEST = 20  # candidates of a list; 30 give about the same recall on validation users of two public logs
_TRUST_IN_NEW = 0.25  # of the model's score of an item that it has never seen taken; chosen on new items of two public logs
_PRIOR_EXAMPLES = 100.0  # how many examples the weights that a fit starts from count for


class MemoryScores(NamedTuple):
    """The allowed items, and the two parts of the scores of all items, 0 for items that are not allowed."""

    transition_N: NDArray[np.float32]
    text_N: NDArray[np.float32]
    allowed_N: NDArray[np.bool_]


class Beams(NamedTuple):
    """The items that a beam search returned, as rows of the memory, their log probabilities, and which of them are new
    (None if none are).

    A new item has a text that the memory compares, and no interaction from which a model could have learnt its code.
    """

    rows_k: NDArray[np.int64]
    scores_k: NDArray[np.float32]
    new_k: NDArray[np.bool_] | None = None


class Example(NamedTuple):
    """The features of one user's candidates, and the candidate that the user took."""

    features_FC: NDArray[np.float32]
    target: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusion:
    """The weights with which an item's features are summed. `fit` learns them on validation users.

    Every allowed item that the memory or the beams find is scored, so the best items are exact. The defaults are near the
    weights of three public logs; `seen` is 0, so that repeated items are neither preferred nor avoided.

    Args:
        transition: The weight of the transitions in an item's memory score.
        text: The weight of the texts in its memory score.
        log_prob: The weight of its log probability minus that of the last beam, plus 1. A quarter of it counts for a new item.
        found: The weight of being found by the beams. A quarter of it counts for a new item.
        seen: The weight of being in the history.
    """

    transition: float = 1.8
    text: float = 2.0
    log_prob: float = 0.25
    found: float = 0.5
    seen: float = 0.0

    def __post_init__(self) -> None:
        if not all(isinstance(weight, int | float) and abs(weight) < 1e6 for weight in astuple(self)):
            raise ArgumentError(f"{self}: expected finite weights")

    def scores(self, features_FN: NDArray[np.float32], found_N: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the score of each item; -inf for an item that was not found."""
        weights_F = np.asarray(astuple(self), np.float32)
        return np.where(found_N, weights_F @ features_FN, np.float32(-np.inf)).astype(np.float32)

    @classmethod
    def fit(cls, examples: Sequence[Example]) -> "Fusion":
        """Return the weights under which what users took is most likely among the best candidates of their lists.

        A softmax over each list is fitted by Newton's method (the conditional logit of McFadden, 1974), first over all
        candidates, then over the best 20 by these weights, of the users whose item is among them. The second fit is needed
        because likelihood considers the whole list, and Recall@10 only its beginning. The default weights count as 100 examples
        in the first fit, and its weights in the second, so that a few users change little.
        """
        weights_F = np.asarray(astuple(cls()), np.float64)
        if not examples:
            return cls()
        widest = max(example.features_FC.shape[1] for example in examples)
        x_ECF = np.zeros((len(examples), widest, len(weights_F)))
        is_candidate_EC = np.zeros((len(examples), widest), np.bool_)
        for row, example in enumerate(examples):
            count = example.features_FC.shape[1]
            x_ECF[row, :count], is_candidate_EC[row, :count] = example.features_FC.T, True
        is_taken_EC = np.arange(widest) == np.array([example.target for example in examples])[:, None]
        weights_F = _most_likely(x_ECF, is_candidate_EC, is_taken_EC, weights_F)
        scores_EC = np.where(is_candidate_EC, x_ECF @ weights_F, -np.inf)
        best_ET = np.argsort(-scores_EC, axis=1)[:, :_NUM_BEST]
        x_ETF = np.take_along_axis(x_ECF, best_ET[..., None], axis=1)
        is_best_ET, is_taken_ET = (np.take_along_axis(mask, best_ET, axis=1) for mask in (is_candidate_EC, is_taken_EC))
        has_taken_E = is_taken_ET.any(axis=1)
        if has_taken_E.any():
            weights_F = _most_likely(x_ETF[has_taken_E], is_best_ET[has_taken_E], is_taken_ET[has_taken_E], weights_F)
        return cls(**dict(zip(cls.__slots__, weights_F.tolist(), strict=True)))


def _most_likely(
    x_ECF: NDArray[np.float64], is_candidate_EC: NDArray[np.bool_], is_taken_EC: NDArray[np.bool_], prior_F: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weights under which the taken candidate of each example is most likely. The prior counts as 100 examples."""
    taken_EF, spread_F = x_ECF[is_taken_EC], x_ECF[is_candidate_EC].std(axis=0)
    ridge_F = _PRIOR_EXAMPLES * np.maximum(spread_F, 1e-3) ** 2
    weights_F = prior_F.copy()
    for _ in range(30):
        logits_EC = np.where(is_candidate_EC, x_ECF @ weights_F, -np.inf)
        p_EC = np.exp(logits_EC - logits_EC.max(axis=1, keepdims=True))
        p_EC /= p_EC.sum(axis=1, keepdims=True)
        mean_EF = np.einsum("ec,ecf->ef", p_EC, x_ECF)
        gradient_F = (mean_EF - taken_EF).sum(axis=0) + ridge_F * (weights_F - prior_F)
        hessian_FF = np.einsum("ec,ecf,ecg->fg", p_EC, x_ECF, x_ECF, optimize=True) - mean_EF.T @ mean_EF + np.diag(ridge_F)
        step_F = np.linalg.solve(hessian_FF, gradient_F)
        weights_F -= step_F * min(1.0, 2.0 / max(1e-9, float(np.abs(step_F).max())))
        if np.abs(step_F).max() < 1e-4:
            break
    return weights_F


@dataclass(frozen=True, kw_only=True, slots=True)
class Fusions:
    """Two sets of weights: for lists that keep the items of the history, and for lists without them.

    Users who buy things again affect the first set; that does not apply to the second.

    Args:
        kept: The weights for lists that may hold items of the history.
        removed: The weights for lists without items of the history.
    """

    kept: Fusion = field(default_factory=Fusion)
    removed: Fusion = field(default_factory=Fusion)

    def of(self, *, keeps_history: bool) -> Fusion:
        """Return the weights for one kind of list."""
        return self.kept if keeps_history else self.removed


def features(memory: MemoryScores, beams: Beams, seen_n: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return (features_FN, found_N): the features of every item for `Fusion`, and the allowed items that the memory or
    the beams find.

    `seen_n` are the rows of the history, -1 for an unknown item. Beams hold only allowed items, so all of them count as
    found.
    """
    features_FN = np.zeros((5, len(memory.allowed_N)), np.float32)
    features_FN[0], features_FN[1] = memory.transition_N, memory.text_N
    found_N = memory.allowed_N & ((memory.transition_N > 0) | (memory.text_N > 0))
    if len(beams.rows_k):
        trust_k = 1 if beams.new_k is None else np.where(beams.new_k, np.float32(_TRUST_IN_NEW), np.float32(1))
        features_FN[2, beams.rows_k] = (beams.scores_k - (beams.scores_k.min() - 1)) * trust_k
        features_FN[3, beams.rows_k] = trust_k
        found_N[beams.rows_k] = True
    features_FN[4, seen_n[seen_n >= 0]] = 1
    return features_FN, found_N
