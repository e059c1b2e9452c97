"""Jumps over forced chains: codes about which a language leaves no choice are taken several at a time.

    "full": one pass of the model over them scores what would have been many rounds
    "allowed": nothing is scored, among one legal code that one is certain; one pass for what is decided behind them

(DESIGN §1.6, and the compressed automata of §1.7.) Shapes: S = 1 segment, B requests, K beams, T codes of a jump.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.forced_suffix import SuffixFn, SuffixReplay
from leafbeam.decode.results import StepFn
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch

__all__ = ["Jump", "ModelCalls"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Jump:
    """The codes that every live beam of a batch has to take next, as far as there is no choice for any of them.

    Think of beams in corridors: they walk side by side until the first comes to a fork. A beam is in a corridor while its
    state has one legal token and no sequence may end there (`Automaton.chains`); where its corridor leads to the end of every
    sequence it never comes to a fork, and takes the end code again and again. A jump is as long as the shortest way to a fork,
    over all beams of all requests, because one call of the model serves them all; beams in longer corridors stop in the midst
    of theirs. So as many beams leave it as came, and no other beam could have taken their place: the jump is exact.

    codes_BKT: int64, the end code for beams that have ended, 0 for dead ones. lo_SBK, hi_SBK: the states behind. decides:
    whether anything is left to decide there: False where all beams end, or no token more may be taken.
    """

    codes_BKT: NDArray[np.int64]
    lo_SBK: NDArray[np.int64]
    hi_SBK: NDArray[np.int64]
    decides: bool

    @classmethod
    def of(cls, languages: AutomatonBatch, beams: Beams[Any], most: int) -> Jump | None:
        """At most `most` codes; None where a beam has a choice, or its automaton no chains.

        Cost: two look-ups a beam, and a few vector operations for each code and request of the jump. Waits for a device.
        """
        lo_SBK, hi_SBK = to_numpy(beams.lo), to_numpy(beams.hi)
        forks: list[int] = []  # how far requests are from their next choice
        longest = 0  # and from the end of the last of its sequences
        for automaton, states_K, live_K in zip(languages.automata, lo_SBK[0], (hi_SBK > lo_SBK)[0], strict=True):
            states_n = states_K[live_K & (states_K < automaton.num_states)]
            if not len(states_n):
                continue
            if automaton.chains is None:
                return None
            lengths_n = automaton.chains.length_S[states_n]
            ends_n = automaton.num_allowed(automaton.chains.end_S[states_n]) == 0
            forks += [int(lengths_n[~ends_n].min())] if not ends_n.all() else []
            longest = max(longest, 1 + int(lengths_n[ends_n].max(initial=-1)))
            if 0 in forks:
                return None
        count = min([most, *forks] if forks else [most, longest])
        if not count:
            return None
        lo, codes = lo_SBK.copy(), np.zeros((*lo_SBK.shape[1:], count), np.int64)
        for b, automaton in enumerate(languages.automata):
            live_K = hi_SBK[0, b] > lo_SBK[0, b]
            codes[b, live_K], lo[0, b, live_K] = _walk(automaton, lo_SBK[0, b, live_K], count, languages.end_code)
        hi = np.where(hi_SBK > lo_SBK, lo + 1, hi_SBK)
        return cls(codes_BKT=codes, lo_SBK=lo, hi_SBK=hi, decides=bool(forks) and count < most)

    @property
    def num_rounds(self) -> int:
        """How many rounds one pass of the model stands for: one for each code, and that in which something is decided."""
        return self.codes_BKT.shape[2] + self.decides

    @property
    def tokens(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(codes_BK, parents_BK) of each round: every beam goes on from itself."""
        parents_BK = np.tile(np.arange(self.codes_BKT.shape[1]), (len(self.codes_BKT), 1))
        return [(self.codes_BKT[:, :, t], parents_BK) for t in range(self.codes_BKT.shape[2])]

    def behind(self, beams: Beams[Any]) -> Beams[Any]:
        """The same beams after the jump, where no score has changed; code and parent remain those of the last answer."""
        return replace(beams, lo=to_kind_of(self.lo_SBK, beams.lo), hi=to_kind_of(self.hi_SBK, beams.hi))

    def given(self, codes_BK: Any) -> NDArray[np.int64]:
        """What the model reads in that pass: the codes that the beams just took, and those that follow, less the last."""
        return np.concatenate([to_numpy(codes_BK)[..., None], self.codes_BKT[..., : self.num_rounds - 1]], 2)


class ModelCalls:
    """One search's way to its model: round by round, or through a jump in one pass.

    step_fn, suffix_fn: as for `SequenceSearch.run`. calls: how often either was asked. Arrays reach the model as the kind that
    its first answer was.
    """

    def __init__(self, step_fn: StepFn, suffix_fn: SuffixFn | None) -> None:
        self._step_fn, self._suffix_fn = step_fn, suffix_fn
        self._replay: SuffixReplay | None = None
        self._sample: Any = None
        self.calls = 0

    @property
    def can_jump(self) -> bool:
        """Whether the next question may be a pass: none before the first answer, or while one is being replayed."""
        return self._suffix_fn is not None and self._sample is not None and (self._replay is None or self._replay.is_over)

    def ask(self, beams: Beams[Any], jump: Jump | None = None) -> Any:
        """The answer for this round; given a jump, one pass has the answers for all its rounds."""
        if self._replay is not None and not self._replay.is_over:
            return self._replay(beams.code, beams.parent)
        if jump is not None and jump.num_rounds > 1:
            self._replay = self._pass(jump, beams)
            return self._replay(beams.code, beams.parent)
        self.calls += 1
        if self._sample is None:
            self._sample = self._step_fn(None, None)
            return self._sample
        parents_BK, self._replay = self._parents(beams), None
        return self._step_fn(to_kind_of(beams.code, self._sample), parents_BK)

    def behind(self, jump: Jump, beams: Beams[Any]) -> Any:
        """The answer for the round behind a jump, of which all others are certain."""
        replay, self._replay = self._pass(jump, beams), None
        return replay.last

    def _pass(self, jump: Jump, beams: Beams[Any]) -> SuffixReplay:
        assert self._suffix_fn is not None
        self.calls += 1
        given_BKT = to_kind_of(jump.given(beams.code), self._sample)
        return SuffixReplay(self._suffix_fn(given_BKT, self._parents(beams)), jump.num_rounds)

    def _parents(self, beams: Beams[Any]) -> Any:
        """As the model counts its beams: those of the last pass, where there was one."""
        parents_BK = beams.parent if self._replay is None else self._replay.origins(beams.parent)
        return to_kind_of(parents_BK, self._sample)


def _walk(
    automaton: Automaton, states_n: NDArray[np.int64], count: int, end_code: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(codes_nT, states_n behind them): the forced codes from each state, and then the end code, in state S."""
    chains, ended = automaton.chains, automaton.num_states
    codes_nT = np.full((len(states_n), count), end_code, np.int64)
    if chains is None:  # all have ended
        return codes_nT, states_n
    for t in range(count):
        forced_n = states_n < ended
        forced_n[forced_n] = chains.token_S[states_n[forced_n]] >= 0
        codes_nT[forced_n, t] = chains.token_S[states_n[forced_n]]
        states_n = np.where(forced_n, chains.next_S[np.where(forced_n, states_n, 0)], ended)
    return codes_nT, states_n
