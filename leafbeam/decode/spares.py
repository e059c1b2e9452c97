"""Prefixes that a search has found and not run, and running those of them that may still lead to a better answer.

    least   the score of the last item that was found
    level by level: run the spare prefixes that score above `least`, and add the prefixes that they lead to to the next level's

Scores only fall along a prefix, so that afterwards nothing better is left below a spare one. The model runs only prefixes that
it has not run before: they begin where an earlier prefix ended (`ModelCalls.more_logits`).

Shapes: B requests, K beams, J spare prefixes, S segments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.model_calls import ModelCalls, of_beams
from leafbeam.ops.backend import namespace_of, to_kind_of
from leafbeam.ops.constrain import AnyArray, Beams, HostBeams

if TYPE_CHECKING:
    from leafbeam.decode.constraint import Constraint, Trace

_NUMBERS = "scores", "parent", "code", "lo", "hi"


@dataclass(frozen=True, kw_only=True, eq=False)
class Spares:
    """The prefixes of a level that a search has not run.

    beams: best first, in numpy; parents are numbered as the model counts the beams that it ran at the level before.
    bound_B: a score that no other prefix of the level exceeds which was neither run nor is spare.
    """

    beams: HostBeams
    bound_B: NDArray[np.float32]

    @classmethod
    def of(cls, beams: HostBeams, num_run_B: AnyArray, parents_BK: AnyArray, bound_B: NDArray[np.float32] | None) -> Spares:
        """Return the beams of a round but those that run first, `num_run_B` of each request."""
        is_spare_BK = np.arange(beams.scores.shape[1]) >= num_run_B[:, None]
        scores_BK = np.where(is_spare_BK, beams.scores, np.float32(-np.inf))
        parents_BK = np.asarray(parents_BK, np.int64)
        num_valid_B = (scores_BK > -np.inf).sum(1)
        nothing_B = np.full(len(scores_BK), -np.inf, np.float32)
        return cls(
            beams=replace(beams, scores=scores_BK, parent=parents_BK, num_valid=num_valid_B),
            bound_B=nothing_B if bound_B is None else bound_B,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The spare prefixes that are worth running.

    least_B: the score that they have to exceed. takes_ties: whether an equal score suffices, so that the answer is that of one
    run over all prefixes even where scores are equal. most: the largest number of prefixes of each level that may run.
    """

    least_B: NDArray[np.float32]
    most: tuple[int, ...]
    takes_ties: bool = False

    def any(self, beams: HostBeams) -> bool:
        """Return whether a level has a spare prefix to run."""
        return bool(self._are_better(beams).any())

    def count(self, number: int, beams: HostBeams, num_run_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of a level's spare prefixes to run, (B,); they are best first."""
        return np.clip(self.most[number] - num_run_B, 0, self._are_better(beams).sum(1))

    def _are_better(self, beams: HostBeams) -> NDArray[np.bool_]:
        scores_BJ, least_B1 = beams.scores, self.least_B[:, None]
        is_better_BJ = scores_BJ >= least_B1 if self.takes_ties else scores_BJ > least_B1
        return is_better_BJ & (scores_BJ > -np.inf)


def run_spares(constraint: Constraint, model: ModelCalls, trace: Trace, wanted: Wanted) -> Trace:
    """Return what a search knows once the wanted spare prefixes have run, and all wanted ones below them.

    The same trace is returned if no prefix is wanted.
    """
    config = constraint.config
    kept, bounds = dict(trace.kept), dict(trace.bounds)
    found, has_run = None, False
    for number in range(config.num_rounds - 1):
        spares, found = _together(trace.spares.get(number), found), None
        if spares is None or not wanted.any(spares.beams):
            continue  # what the round dropped stays dropped
        beams = ranked(spares.beams)
        before_BK = kept.get(number)
        num_run_B = np.zeros(len(beams.scores), np.int64) if before_BK is None else (before_BK > -np.inf).sum(1)
        count_B = wanted.count(number, beams, num_run_B)
        bounds[number] = np.maximum(spares.bound_B, _score_at(beams, count_B))
        if not count_B.any():
            continue
        has_run, run = True, first_beams(beams, count_B)
        if before_BK is not None:
            kept[number] = np.concatenate([before_BK, run.scores], 1)
        num_before = model.num_beams(number)
        after = constraint.step(number + 1, run, model.more_logits(number, run))
        bound_B = np.full(len(count_B), -np.inf, np.float32) if config.keeps_all(number + 1) else after.scores[:, -1]
        found = Spares(beams=replace(after, parent=after.parent + num_before), bound_B=bound_B)
    if not has_run:
        return trace
    beams = trace.beams
    if found is not None:
        beams = ranked(joined(beams, found.beams))
        count_B, last = np.minimum(beams.num_valid, config.num_beams[-1]), config.num_rounds - 1
        bounds[last] = np.maximum(np.maximum(bounds.get(last, found.bound_B), found.bound_B), _score_at(beams, count_B))
        beams = first_beams(beams, count_B)
    return replace(trace, beams=beams, kept=kept, bounds=bounds)


def _together(first: Spares | None, second: Spares | None) -> Spares | None:
    """Return the prefixes of both, where there are some."""
    if first is None or second is None:
        return second if first is None else first
    return Spares(beams=joined(first.beams, second.beams), bound_B=np.maximum(first.bound_B, second.bound_B))


def first_beams(beams: Beams[AnyArray], count_B: NDArray[np.int64]) -> Beams[Any]:
    """Return the first beams of each request, as many as its count says; the shorter ones are filled with dead beams."""
    width = max(1, int(count_B.max()))
    live_BK = to_kind_of(np.arange(width) < count_B[:, None], beams.scores)
    xp = namespace_of(beams.scores)
    scores_BK = xp.where(live_BK, beams.scores[:, :width], -np.inf)
    parent, code, lo, hi = (array[..., :width] * live_BK for array in (beams.parent, beams.code, beams.lo, beams.hi))
    num_valid_B = xp.minimum(beams.num_valid, to_kind_of(count_B, beams.num_valid))
    return Beams(scores=scores_BK, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid_B)


def joined(first: HostBeams, second: HostBeams) -> HostBeams:
    """Return the beams of both, for each request, in this order."""
    both = {name: np.concatenate([getattr(first, name), getattr(second, name)], -1) for name in _NUMBERS}
    return Beams(**both, num_valid=first.num_valid + second.num_valid)


def ranked(beams: HostBeams) -> HostBeams:
    """Return the beams best first; those of equal scores stay in their order, and dead ones are last."""
    order_BK = np.argsort(-beams.scores, axis=1, kind="stable")
    scores, parent, code = (of_beams(array_BK, order_BK) for array_BK in (beams.scores, beams.parent, beams.code))
    lo, hi = (np.stack([of_beams(array_BK, order_BK) for array_BK in array]) for array in (beams.lo, beams.hi))
    return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=(scores > -np.inf).sum(1))


def _score_at(beams: HostBeams, slot_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the score of one beam of each request, -inf behind the last one."""
    last = beams.scores.shape[1] - 1
    return np.where(slot_B <= last, of_beams(beams.scores, np.minimum(slot_B, last)[:, None])[:, 0], np.float32(-np.inf))
