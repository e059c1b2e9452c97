"""How a search calls its model: once a round, or once for a forced chain of codes.

Shapes: B requests, K beams, T codes of a chain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError, counted
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import AnyArray, Beams

StepFn = Callable[[Any, Any], Any]
SuffixFn = Callable[[Any, Any], Sequence[Any]]
MoreFn = Callable[[Any, Any, int], Any]
AreCertain = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True, eq=False)
class JumpForward:
    """The codes that every live beam of a batch has to take next, up to the first round in which a beam has a choice.

    codes_BKT: int64, the end code for finished beams, 0 for dead ones. lo_SBK, hi_SBK: int64, the ranges after the jump.
    decides: whether the round after the jump has something to decide: False where all beams finish, or no round is left.
    """

    codes_BKT: NDArray[np.int64]
    lo_SBK: NDArray[np.int64]
    hi_SBK: NDArray[np.int64]
    decides: bool

    @property
    def num_rounds(self) -> int:
        """Return how many rounds one call of the model stands for: one for each code, and the round that decides."""
        return self.codes_BKT.shape[2] + self.decides

    @property
    def rounds(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return (codes_BK, parents_BK) of each round: every beam extends itself."""
        parents_BK = np.tile(np.arange(self.codes_BKT.shape[1]), (len(self.codes_BKT), 1))
        return [(self.codes_BKT[:, :, t], parents_BK) for t in range(self.codes_BKT.shape[2])]

    def after(self, beams: Beams[AnyArray]) -> Beams[Any]:
        """Return the beams after the jump. Their scores have not changed; code and parent remain those of the last call."""
        return replace(beams, lo=to_kind_of(self.lo_SBK, beams.lo), hi=to_kind_of(self.hi_SBK, beams.hi))

    def inputs(self, codes_BK: AnyArray) -> NDArray[np.int64]:
        """Return the codes that the model reads in that call: those just taken, and all forced ones but the last."""
        return np.concatenate([to_numpy(codes_BK)[..., None], self.codes_BKT[..., : self.num_rounds - 1]], 2)


class ModelCalls:
    """Calls the model for one search and counts the calls.

    step_fn, suffix_fn, more_fn: as for `BeamSearch.run`. Codes and parents reach the model as the kind of array, and on the
    device, of its first logits. The logits of a jump's rounds are given round by round, so that the search runs as always.

    are_certain(lo_SBK, hi_SBK) -> bool [B, K]: beams, in numpy, whose scores no logits can change from here on. The model
    gets copies of another beam of the request in their place, so that a model that runs equal beams only once saves these.
    """

    def __init__(
        self,
        step_fn: StepFn,
        suffix_fn: SuffixFn | None = None,
        more_fn: MoreFn | None = None,
        are_certain: AreCertain | None = None,
        *,
        watch: bool = False,
    ) -> None:
        """watch: whether to look at the beams after each round, even on a device; with suffix_fn that is done anyway."""
        self.watch = watch or suffix_fn is not None
        self._step_fn, self._suffix_fn, self._more_fn = step_fn, suffix_fn, more_fn
        self._are_certain = are_certain
        self._num_beams: list[int] = []  # that the model ran at each level, of each request
        self._first: Any = None
        self._replayed: Sequence[Any] = ()  # the logits of the last jump, of which `_round` are given
        self._round = 0
        self._origin_BK: Any = None  # the beam of the jump's call that each beam descends from; None: the same beam
        self.calls = 0
        self.rows: Any = 1  # of each request: the prompt, and the live beams of each call so far

    @property
    def first_logits(self) -> Any:
        """Return the logits of round 0; calls the model if it has not been called yet."""
        if self._first is None:
            self.calls += 1
            self._first = self._step_fn(None, None)
        return self._first

    def can_jump(self, number: int) -> bool:
        """Return whether round `number` may begin a jump: not the first round, and not while a jump is replayed."""
        return self._suffix_fn is not None and number > 0 and self._round == len(self._replayed)

    @property
    def can_run_more(self) -> bool:
        """Return whether the model runs more beams of a level that it has run already."""
        return self._more_fn is not None

    def num_beams(self, number: int) -> int:
        """Return how many beams of round `number` the model has run for each request."""
        return self._num_beams[number] if number < len(self._num_beams) else 0

    def more_logits(self, number: int, beams: Beams[AnyArray]) -> Any:
        """Return the logits after more beams of round `number`, whose parents are numbered as `origins` does."""
        assert self._more_fn is not None
        self.rows = self.rows + beams.num_valid
        if number == len(self._num_beams):
            self._num_beams.append(0)
        self._num_beams[number] += beams.scores.shape[1]
        return self._more_fn(*self._continued(beams, beams.parent), number)

    def logits(self, number: int, beams: Beams[AnyArray], jump: JumpForward | None = None) -> Any:
        """Return the logits of round `number`; given a jump, one call brings those of all its rounds."""
        if number == 0:
            return self.first_logits
        if jump is not None and jump.num_rounds > 1:
            self._replayed, self._round = self._score(jump, beams), 0
        if self._round < len(self._replayed):
            logits_BKV = self._replayed[self._round]
            self._round += 1
            if self._round == 1:  # the call has followed these parents
                return logits_BKV
            self._origin_BK = self.origins(beams)
            return of_beams(logits_BKV, self._origin_BK)
        self.calls += 1
        self.rows = self.rows + beams.num_valid
        continued = self._continued(beams, self.origins(beams))
        self._num_beams.append(beams.scores.shape[1])
        self._replayed, self._round, self._origin_BK = (), 0, None
        return self._step_fn(*continued)

    def logits_after(self, jump: JumpForward, beams: Beams[AnyArray]) -> Any:
        """Return the logits of the round after a jump whose own rounds are certain: every beam is still its own parent."""
        return self._score(jump, beams)[-1]

    def _score(self, jump: JumpForward, beams: Beams[AnyArray]) -> Sequence[Any]:
        assert self._suffix_fn is not None
        self.calls += 1
        self.rows = self.rows + beams.num_valid * jump.num_rounds
        codes_BKT, parents_BK = (to_kind_of(array, self._first) for array in (jump.inputs(beams.code), self.origins(beams)))
        self._num_beams += [beams.scores.shape[1]] * jump.num_rounds
        self._origin_BK = None
        logits_T = self._suffix_fn(codes_BKT, parents_BK)
        if len(logits_T) != jump.num_rounds:
            raise LogitsError(f"suffix_fn returned the logits of {counted(len(logits_T), 'level')}: expected {jump.num_rounds}")
        return logits_T

    def _continued(self, beams: Beams[Any], parents_BK: AnyArray) -> tuple[Any, Any]:
        """Return the codes that these beams just took, and their parents, as the model gets them."""
        codes_BK = beams.code
        if self._are_certain is not None and isinstance(codes_BK, np.ndarray):
            copies_BK = self._are_certain(beams.lo, beams.hi)
            if copies_BK.any():
                last = copies_BK.shape[1] - 1
                source_B1 = last - copies_BK[:, ::-1].argmin(1)[:, None]  # the last one with a choice, if there is one
                beams_BK = np.where(copies_BK, source_B1, np.arange(last + 1))
                codes_BK, parents_BK = of_beams(codes_BK, beams_BK), of_beams(parents_BK, beams_BK)
        return to_kind_of(codes_BK, self._first), to_kind_of(parents_BK, self._first)

    def origins(self, beams: Beams[AnyArray]) -> Any:
        """Return the parents of beams of the last round, as the model counts its beams: those of its last call."""
        return beams.parent if self._origin_BK is None else of_beams(self._origin_BK, beams.parent)


def of_beams(array_BK: Any, beams_BK: AnyArray) -> Any:
    """Return array_BK[b, beams_BK[b, k]] for every b and k."""
    array_BK = array_BK if hasattr(array_BK, "dtype") else np.asarray(array_BK)
    beams_BK = to_kind_of(beams_BK, array_BK)
    requests_B1 = to_kind_of(np.arange(len(beams_BK))[:, None], array_BK)
    return array_BK[requests_B1, beams_BK]
