"""Jumps over forced chains: codes about which an automaton leaves no choice are taken several at a time.

    "full": one call of the model over them scores what would have been many rounds
    "allowed": nothing is scored, among one legal code that one is certain; one call for the decision after them

Shapes: S = 1 segment, B requests, K beams, T codes of a jump.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.model_calls import JumpForward
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch

__all__ = ["forced_chain"]


def forced_chain(batch: AutomatonBatch, beams: Beams[Any], max_codes: int) -> JumpForward | None:
    """As many codes as every live beam has no choice about; None where a beam has one, or its automaton no chains.

    A beam is on a chain while its state has one legal token and no sequence may end there (`Automaton.chains`). One whose chain
    leads to the end of every sequence takes the end code from there on. Beams on longer chains stop in the middle of theirs.

    Cost: two look-ups a beam, and a few vector operations for each code and request of the jump. Waits for a device.
    """
    lo_SBK, hi_SBK = to_numpy(beams.lo), to_numpy(beams.hi)
    choices: list[int] = []  # how far each request is from its next choice
    longest = 0  # and all of them from the end of the last sequence
    for automaton, states_K, live_K in zip(batch.automata, lo_SBK[0], (hi_SBK > lo_SBK)[0], strict=True):
        states_n = states_K[live_K & (states_K < automaton.num_states)]
        if not len(states_n):
            continue
        if automaton.chains is None:
            return None
        lengths_n = automaton.chains.length_S[states_n]
        ends_n = automaton.num_allowed(automaton.chains.end_S[states_n]) == 0
        choices += [int(lengths_n[~ends_n].min())] if not ends_n.all() else []
        longest = max(longest, 1 + int(lengths_n[ends_n].max(initial=-1)))
        if 0 in choices:
            return None
    count = min([max_codes, *choices] if choices else [max_codes, longest])
    if not count:
        return None
    lo, codes = lo_SBK.copy(), np.zeros((*lo_SBK.shape[1:], count), np.int64)
    for b, automaton in enumerate(batch.automata):
        live_K = hi_SBK[0, b] > lo_SBK[0, b]
        codes[b, live_K], lo[0, b, live_K] = _follow(automaton, lo_SBK[0, b, live_K], count, batch.end_code)
    hi = np.where(hi_SBK > lo_SBK, lo + 1, hi_SBK)
    return JumpForward(codes_BKT=codes, lo_SBK=lo, hi_SBK=hi, decides=bool(choices) and count < max_codes)


def _follow(
    automaton: Automaton, states_n: NDArray[np.int64], count: int, end_code: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(codes_nT, states_n after them): the forced codes from each state, and then the end code, in state S."""
    chains, final = automaton.chains, automaton.num_states
    codes_nT = np.full((len(states_n), count), end_code, np.int64)
    if chains is None:  # all have ended
        return codes_nT, states_n
    for t in range(count):
        forced_n = states_n < final
        forced_n[forced_n] = chains.token_S[states_n[forced_n]] >= 0
        codes_nT[forced_n, t] = chains.token_S[states_n[forced_n]]
        states_n = np.where(forced_n, chains.next_S[np.where(forced_n, states_n, 0)], final)
    return codes_nT, states_n
