"""Automata as the constraint of a search, on the CPU or on a GPU: from logits, or from hidden states and a head.

With a head on a GPU, a round either multiplies all of it there and goes on as from logits, or lists the legal codes on the
host, multiplies these alone on the GPU and picks the best on the host: whichever is expected to take less time.

A beam's range is [state, state + 1) of its request's automaton; a finished beam is in state S, one after the last.

Shapes: S = 1 segment, B requests, K beams, V codes of the model, D hidden.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import check_logits
from leafbeam.decode.head_constraint import dense_logits, listing_pays
from leafbeam.decode.model_calls import JumpForward
from leafbeam.errors import ArgumentError
from leafbeam.ops import backend as backends
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import AnyArray, Beams
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts, HeadLogits, cpu


class AutomatonConstraint:
    """A constraint that allows the sequences of a batch's automata.

    head, costs: as for `SequenceSearch.run`. device: None for the CPU.
    """

    def __init__(
        self,
        config: SearchConfig,
        batch: automata.AutomatonBatch,
        *,
        head: Any = None,
        costs: HeadCosts | None = None,
        device: DeviceAutomata | None = None,
    ) -> None:
        self.config, self.bad_T, self.rows_T = config, [], config.rows_of_rounds
        self.batch, self._device = batch, device
        self._arrays: Any = None if device is None else device.arrays_for(len(batch.automata))
        final_B1 = np.array([automaton.num_states for automaton in batch.automata])[:, None]
        self._final_B1 = final_B1 if device is None else to_kind_of(final_B1, self._arrays.min_key_B)
        self._head, self._ops = head, cast(Any, cpu)
        self._costs = costs or HeadCosts()
        if head is not None and device is not None:
            self._head = to_kind_of(head.detach() if hasattr(head, "detach") else head, self._final_B1)
            self._ops = importlib.import_module("leafbeam.ops.head.triton")
            self._costs = costs or self._ops.DEVICE_COSTS

    def root(self) -> Beams[Any]:
        lo_SB1, _ = automata.roots(self.batch)
        return self.beams_at(lo_SB1, np.zeros(lo_SB1.shape[1:], np.float32))

    def beams_at(self, states_SBK: NDArray[np.int64], scores_BK: NDArray[np.float32]) -> Beams[Any]:
        """Return beams in these states with these scores, where the constraint reads them."""
        return Beams.start(*(to_kind_of(part, self._final_B1) for part in (states_SBK, states_SBK + 1, scores_BK)))

    def step(self, number: int, beams: Beams[Any], logits: AnyArray) -> Beams[Any]:
        num_beams, scoring = self.config.num_beams[number], self.config.scoring
        if self._head is not None:
            hidden_BKD = self._hidden(number, beams, logits)
            if self._device is None or self._pays(beams):
                return self._step_through_head(number, beams, hidden_BKD)
            logits = dense_logits(hidden_BKD, self._head)
        logits_BKV = check_logits(logits, number, (*beams.scores.shape, self.batch.num_codes), beams.scores)
        state = (number, beams, logits_BKV, None)
        if self._device is None:
            return automata.step(self.batch, *state, num_beams=num_beams, scoring=scoring)
        best, bad = self._device.ops.launch(self._arrays, *state, num_beams=num_beams, scoring=scoring)
        self.bad_T += [bad * 0] * (number - len(self.bad_T)) + [bad]  # nothing was read in rounds that were jumped over
        return best

    def _step_through_head(self, number: int, beams: Beams[AnyArray], hidden_BKD: AnyArray) -> Beams[Any]:
        logits = self._head_logits(beams, hidden_BKD)
        best = automata.extend(
            self.batch,
            to_numpy(beams.lo),
            to_numpy(beams.scores),
            logits.legal_codes.map(to_numpy),
            to_numpy(logits.logit_C),
            to_numpy(logits.lse_R),
            num_beams=self.config.num_beams[number],
        )
        return Beams(**{name: to_kind_of(array, self._final_B1) for name, array in vars(best).items()})

    def _hidden(self, number: int, beams: Beams[AnyArray], hidden: AnyArray) -> Any:
        """The model's hidden states (B, K, D), checked, where the beams are."""
        shape = *beams.scores.shape, self._head.shape[1]
        return check_logits(hidden, number, shape, beams.scores, "hidden states")

    def _head_logits(self, beams: Beams[AnyArray], hidden_BKD: AnyArray) -> HeadLogits[Any]:
        """Return the logits of every beam's legal codes, from the model's hidden states."""
        codes = automata.legal(self.batch, to_numpy(beams.lo), to_numpy(beams.hi))
        codes = codes.map(lambda array: to_kind_of(array, self._final_B1))
        hidden_RD = hidden_BKD.reshape(-1, hidden_BKD.shape[2])
        return self._ops.head(hidden_RD, self._head, codes, self.config.scoring, costs=self._costs)

    def _pays(self, beams: Beams[AnyArray]) -> bool:
        """Return whether multiplying only legal codes is expected to be faster; with scoring "full" all codes are needed."""

        def num_legal() -> int:
            lo_BK, hi_BK, count = to_numpy(beams.lo)[0], to_numpy(beams.hi)[0], 0
            for automaton, lo_K, hi_K in zip(self.batch.automata, lo_BK, hi_BK, strict=True):
                count += int(automaton.num_allowed(lo_K[(lo_K < hi_K) & (lo_K < automaton.num_states)]).sum())
            return count

        rows = prod(beams.scores.shape)
        return self.config.scoring == "allowed" and listing_pays(self._costs, "allowed", rows, self._head, num_legal)

    def finished(self, beams: Beams[AnyArray]) -> Any:
        return beams.lo[0] == self._final_B1

    def suffix(self, number: int, beams: Beams[AnyArray]) -> JumpForward | None:
        return _forced_chain(self.batch, beams, self.config.num_rounds - number)


class DeviceAutomata:
    """The automata of a search on a device of torch, copied once for all batches. Raises ArgumentError, MissingExtraError."""

    def __init__(self, batch: automata.AutomatonBatch, device: Any) -> None:
        backends.load("triton")
        self.ops: Any = importlib.import_module("leafbeam.ops.constrain.triton.automaton")
        try:
            self._arrays = self.ops.bind(batch, device)
        except (RuntimeError, AssertionError) as error:  # what torch raises for a device that it does not have
            raise ArgumentError(f"device is {device!r}, and torch says: {error}") from error
        if self._arrays.min_key_B.device.type == "cpu" and not self.ops.triton.knobs.runtime.interpret:
            raise ArgumentError(
                "backend 'triton' on a CPU is for trials: use backend 'cpu', or set TRITON_INTERPRET=1 before Python starts"
            )

    @staticmethod
    def supports(batch: automata.AutomatonBatch, device: Any) -> bool:
        """Return whether a batch can run on a device: on CUDA, with Triton, if its kernels take the automata and end code."""
        if str(device).split(":")[0] != "cuda" or not backends.is_installed("triton"):
            return False
        return importlib.import_module("leafbeam.ops.constrain.triton.automaton").unsupported(batch) is None

    def arrays_for(self, batch_size: int) -> Any:
        """Return the arrays for one search, with scratch space of their own, so that searches may run at the same time."""
        arrays = self._arrays
        copies = batch_size // len(arrays.requests_B5)
        return replace(arrays, requests_B5=arrays.requests_B5.repeat(copies, 1), min_key_B=arrays.min_key_B.repeat(copies))


def _forced_chain(batch: automata.AutomatonBatch, beams: Beams[AnyArray], max_codes: int) -> JumpForward | None:
    """Return the codes that every live beam is forced to take; None if a beam has a choice, or its automaton has no chains.

    A beam is on a chain while its state has one legal token and no sequence may end there (`Automaton.chains`). A beam whose
    chain leads to the end of its sequence takes the end code from there on. Beams on longer chains stop in the middle of
    their chains.

    Cost: two look-ups a beam, and a few vector operations for each code and request of the jump. Waits for a device.
    """
    lo_SBK, hi_SBK = to_numpy(beams.lo), to_numpy(beams.hi)
    choices: list[int] = []  # how far each request is from its next choice
    longest = 0  # and all of them from the end of the last sequence
    if any(batch.has_text_ends):  # a forced token may end a sequence before its chain does
        return None
    for automaton, states_K, live_K in zip(batch.automata, lo_SBK[0], (hi_SBK > lo_SBK)[0], strict=True):
        states_n = states_K[live_K & (states_K < automaton.num_states)]
        if not len(states_n):
            continue
        chains = automaton.chains_from(states_n)
        if chains is None:
            return None
        lengths_n = chains.length_S[states_n]
        ends_n = automaton.num_allowed(chains.end_S[states_n]) == 0
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
