"""The rounds of a sequence search: in numpy arrays, or on a device that keeps all that belongs to the search.

Shapes: S = 1 segment, B requests, K beams, V codes of the model, D hidden.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.results import check_logits
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops import backend as backends
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts, LegalCodes, cpu

__all__ = ["DeviceRounds", "HostRounds", "_DeviceAutomata"]


class HostRounds:
    """Rounds on the CPU (`ops.constrain.automata`), from logits or, with a head, from hidden states."""

    def __init__(
        self,
        languages: automata.AutomatonBatch,
        num_beams: int,
        scoring: Scoring,
        head: Any = None,
        costs: HeadCosts | None = None,
    ) -> None:
        self._languages, self._num_beams = languages, num_beams
        self._scoring: Scoring = scoring
        self._head, self._costs = head, costs

    def roots(self) -> Beams[NDArray[Any]]:
        """One beam a request, in the start state; its code and parent mean nothing."""
        lo_SB1, hi_SB1 = automata.roots(self._languages)
        shape = lo_SB1.shape[1:]
        scores_B1, nothing_B1 = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
        ones_B = np.ones(shape[0], np.int64)
        return Beams(scores=scores_B1, parent=nothing_B1, code=nothing_B1, lo=lo_SB1, hi=hi_SB1, num_valid=ones_B)

    def step(self, number: int, beams: Beams[NDArray[Any]], answer: Any) -> Beams[NDArray[Any]]:
        """Extend the beams by the model's answer in round `number`."""
        if self._head is not None:
            return self._step_through_head(number, beams, answer)
        logits_BKV = check_logits(answer, number, (*beams.scores.shape, self._languages.num_codes))
        given = (beams.lo, beams.hi, beams.scores, logits_BKV, None)
        return automata.step(self._languages, number, *given, num_beams=self._num_beams, scoring=self._scoring)

    def _step_through_head(self, number: int, beams: Beams[NDArray[Any]], answer: Any) -> Beams[NDArray[Any]]:
        hidden_RD = np.ascontiguousarray(to_numpy(answer), np.float32)
        batch_size, width = beams.scores.shape
        expected = (batch_size, width, self._head.shape[1])
        if hidden_RD.shape != expected and (number > 0 or hidden_RD.shape != (batch_size, self._head.shape[1])):
            raise LogitsError(
                f"step_fn returned hidden states of shape {hidden_RD.shape} in round {number}: expected {expected}"
            )
        ragged = automata.legal(self._languages, beams.lo, beams.hi)
        states = LegalCodes(indptr_R1=ragged[0], code_C=ragged[1], max_row=int(np.diff(ragged[0]).max(initial=0)))
        found = cpu.head(hidden_RD.reshape(-1, hidden_RD.shape[-1]), self._head, states, self._scoring, costs=self._costs)
        given = (beams.lo, beams.scores, ragged, found.logit_C, found.lse_R)
        return automata.extend(self._languages, *given, num_beams=self._num_beams)


class _DeviceAutomata:
    """The automata of a search on a device, copied once; the rounds of every batch read them there.

    device: of torch, with Triton: a GPU, or "cpu" under Triton's interpreter. Raises ArgumentError where there is no such
    device or the automata are over different vocabularies, MissingExtraError without torch or Triton.
    """

    def __init__(self, languages: automata.AutomatonBatch, device: Any) -> None:
        backends.load("triton")
        self._ops: Any = importlib.import_module("leafbeam.ops.constrain.triton.automaton")
        try:
            self._arrays = self._ops.bind(languages, device)
        except (RuntimeError, AssertionError) as error:  # torch's own words for a device that is not there
            raise ArgumentError(f"device is {device!r}, and torch says: {error}") from error
        if self._arrays.least_B.device.type == "cpu" and not self._ops.triton.knobs.runtime.interpret:
            raise ArgumentError(
                "backend 'triton' on a CPU is for trials: use backend 'cpu', or set TRITON_INTERPRET=1 before Python starts"
            )

    def rounds(self, languages: automata.AutomatonBatch, num_beams: int, scoring: Scoring) -> DeviceRounds:
        """For one batch, with marks of its own, so that several may run at a time."""
        each = len(languages.automata) // len(self._arrays.requests_B5)
        arrays = replace(
            self._arrays,
            requests_B5=self._arrays.requests_B5.repeat(each, 1),
            least_B=self._arrays.least_B.repeat(each),
        )
        return DeviceRounds(self._ops, arrays, HostRounds(languages, num_beams, scoring).roots(), num_beams, scoring)


class DeviceRounds:
    """Rounds on a device, two kernels each (`ops.constrain.triton_automata`), waited for because bad logits are an error."""

    def __init__(self, ops: Any, arrays: Any, roots: Beams[NDArray[Any]], num_beams: int, scoring: Scoring) -> None:
        self._ops, self._arrays, self._roots = ops, arrays, roots
        self._num_beams, self._scoring = num_beams, scoring

    def roots(self) -> Beams[Any]:
        """As `HostRounds.roots`, in tensors on the device."""
        roots, there = self._roots, self._arrays.least_B
        parts = (roots.scores, roots.parent, roots.code, roots.lo, roots.hi, roots.num_valid)
        scores, parent, code, lo, hi, num_valid = (to_kind_of(part, there) for part in parts)
        return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=num_valid)

    def step(self, number: int, beams: Beams[Any], answer: Any) -> Beams[Any]:
        """Extend the beams by the logits of round `number`; what is not on the device yet is copied there."""
        logits = to_kind_of(answer, self._arrays.least_B)
        if number == 0 and logits.ndim == 2:
            logits = logits[:, None]
        given = (beams.lo, beams.hi, beams.scores, logits, None)
        return self._ops.step(self._arrays, number, *given, num_beams=self._num_beams, scoring=self._scoring)
