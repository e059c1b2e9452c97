"""Automata as the constraint of a search: on the CPU, from logits or from hidden states and a head, or on a GPU.

A beam's range is [state, state + 1) of its request's automaton; a finished beam is in state S, one after the last.

Shapes: S = 1 segment, B requests, K beams, V codes of the model, D hidden.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import check_logits
from leafbeam.decode.jump_forward import forced_chain
from leafbeam.decode.model_calls import JumpForward
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops import backend as backends
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts, LegalCodes, cpu

__all__ = ["AutomatonConstraint", "DeviceAutomata"]


class AutomatonConstraint:
    """The sequences of a batch's automata; see `Constraint`.

    head, costs: as for `SequenceSearch.run`; then `step` takes hidden states. device: where the rounds run, None for the CPU.
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
        self.config, self.bad_T = config, []
        self._batch, self._head, self._costs = batch, head, costs
        self._device = device
        self._arrays: Any = None if device is None else device.arrays_for(len(batch.automata))
        final_B1 = np.array([one.num_states for one in batch.automata])[:, None]
        self._final_B1 = final_B1 if device is None else to_kind_of(final_B1, self._arrays.least_B)

    def root(self) -> Beams[Any]:
        lo_SB1, hi_SB1 = automata.roots(self._batch)
        zeros_B1 = np.zeros_like(lo_SB1[0])
        parts = (zeros_B1.astype(np.float32), zeros_B1, zeros_B1, lo_SB1, hi_SB1, zeros_B1[:, 0] + 1)
        scores, parent, code, lo, hi, num_valid = (to_kind_of(part, self._final_B1) for part in parts)
        return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid)

    def step(self, number: int, beams: Beams[Any], logits: Any) -> Beams[Any]:
        num_beams, scoring = self.config.num_beams[number], self.config.scoring
        if self._head is not None:
            return self._step_through_head(number, beams, logits)
        logits_BKV = check_logits(logits, number, (*beams.scores.shape, self._batch.num_codes), beams.scores)
        state = (number, beams.lo, beams.hi, beams.scores, logits_BKV, None)
        if self._device is None:
            return automata.step(self._batch, *state, num_beams=num_beams, scoring=scoring)
        beams, bad = self._device.ops.launch(self._arrays, *state, num_beams=num_beams, scoring=scoring)
        self.bad_T += [bad * 0] * (number - len(self.bad_T)) + [bad]  # nothing was read in rounds that were jumped over
        return beams

    def _step_through_head(self, number: int, beams: Beams[NDArray[Any]], hidden: Any) -> Beams[NDArray[Any]]:
        hidden_BKD = np.ascontiguousarray(to_numpy(hidden), np.float32)
        batch_size, num_rows = beams.scores.shape
        expected = (batch_size, num_rows, self._head.shape[1])
        if hidden_BKD.shape != expected and (number > 0 or hidden_BKD.shape != (batch_size, self._head.shape[1])):
            raise LogitsError(
                f"step_fn returned hidden states of shape {hidden_BKD.shape} in round {number}: expected {expected}"
            )
        row_indptr, code_C = automata.legal(self._batch, beams.lo, beams.hi)
        codes = LegalCodes(indptr_R1=row_indptr, code_C=code_C, max_row=int(np.diff(row_indptr).max(initial=0)))
        hidden_RD = hidden_BKD.reshape(-1, expected[2])
        found = cpu.head(hidden_RD, self._head, codes, self.config.scoring, costs=self._costs)
        arguments = (beams.lo, beams.scores, (row_indptr, code_C), found.logit_C, found.lse_R)
        return automata.extend(self._batch, *arguments, num_beams=self.config.num_beams[number])

    def finished(self, beams: Beams[Any]) -> Any:
        return beams.lo[0] == self._final_B1

    def suffix(self, number: int, beams: Beams[Any]) -> JumpForward | None:
        return forced_chain(self._batch, beams, self.config.num_rounds - number)


class DeviceAutomata:
    """The automata of a search on a device, copied once; the searches of every batch read them there.

    device: of torch, with Triton: a GPU, or "cpu" under Triton's interpreter. Raises ArgumentError where there is no such
    device or the automata are over different vocabularies, MissingExtraError without torch or Triton.
    """

    def __init__(self, batch: automata.AutomatonBatch, device: Any) -> None:
        backends.load("triton")
        self.ops: Any = importlib.import_module("leafbeam.ops.constrain.triton.automaton")
        try:
            self._arrays = self.ops.bind(batch, device)
        except (RuntimeError, AssertionError) as error:  # what torch raises for a device that it does not have
            raise ArgumentError(f"device is {device!r}, and torch says: {error}") from error
        if self._arrays.least_B.device.type == "cpu" and not self.ops.triton.knobs.runtime.interpret:
            raise ArgumentError(
                "backend 'triton' on a CPU is for trials: use backend 'cpu', or set TRITON_INTERPRET=1 before Python starts"
            )

    def arrays_for(self, batch_size: int) -> Any:
        """The arrays for one search: with scratch space of its own, so that several may run at a time."""
        arrays = self._arrays
        copies = batch_size // len(arrays.requests_B5)
        return replace(arrays, requests_B5=arrays.requests_B5.repeat(copies, 1), least_B=arrays.least_B.repeat(copies))
