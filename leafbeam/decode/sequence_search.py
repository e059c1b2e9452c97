"""Beam search over a regular language: every sequence that is found is in it, or can still be completed.

Shapes: B requests, K beams, V codes of the model, D hidden, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.forced_suffix import SuffixFn
from leafbeam.decode.jump_forward import Jump, ModelCalls
from leafbeam.decode.results import StepFn
from leafbeam.decode.sequence_rounds import HostRounds, _DeviceAutomata
from leafbeam.errors import ArgumentError
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts

__all__ = ["SequenceResult", "SequenceSearch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceResult:
    """Ranked token sequences of a batch.

    tokens: for each request one int64 array for each beam, best first, `num_valid[b]` of them, without the end code. scores:
    float32 (B, K), summed log-probabilities, that of the end code included; -inf beyond num_valid. finished: bool (B, K),
    whether the sequence came to its end; where not, max_tokens cut it off, and it can still be completed. rounds: calls of the
    model. rounds_saved: how many more there would have been without jumps over forced chains.
    """

    tokens: list[list[NDArray[np.int64]]]
    scores: NDArray[np.float32]
    finished: NDArray[np.bool_]
    num_valid: NDArray[np.int64]
    rounds: int
    rounds_saved: int = 0


class SequenceSearch:
    """Beam search over the token sequences of an automaton; `BeamSearch` does the same for the items of an index.

    Think of it as the usual beam search in which a code that the language does not allow is never looked at, and a beam may end
    where the language may. There are no dead ends. A beam that has ended keeps its score and its place among the K.

    automaton: one for all requests, or one for each. end_code: the model's end-of-sequence code. num_codes: V, the width of
    the model's logits. max_tokens: rounds at most, the end code's included. scoring: log-softmax over all codes ("full") or
    over the legal ones ("allowed").

    backend: "cpu" (numba; "auto" is that) or "triton": states, scores and logits stay on `device`. The automata are copied
    there once and must be over one vocabulary. Answers differ in the last bits of scores.

    >>> search = SequenceSearch(Automaton.from_json_schema(schema, tokens), end_code=2, num_codes=131_072, num_beams=4)
    >>> result = search.run(step_fn)
    >>> result.tokens[0][0], result.finished[0, 0]
    """

    def __init__(
        self,
        automaton: Automaton | Sequence[Automaton],
        *,
        end_code: int,
        num_codes: int,
        num_beams: int = 4,
        max_tokens: int = 256,
        scoring: Scoring = "full",
        backend: str = "auto",
        device: Any = None,
    ) -> None:
        if num_beams < 1 or max_tokens < 1:
            raise ArgumentError(f"num_beams is {num_beams} and max_tokens {max_tokens}: expected at least 1 of each")
        if scoring not in get_args(Scoring):
            raise ArgumentError(f"scoring is {scoring!r}: expected 'full' or 'allowed'")
        self._automata = (automaton,) if isinstance(automaton, Automaton) else tuple(automaton)
        languages = automata.bind(self._automata, end_code=end_code, num_codes=num_codes)  # what does not fit is said here
        if backend not in ("auto", "cpu", "triton"):
            raise ArgumentError(f"backend is {backend!r}: expected 'auto', 'cpu' or 'triton' for automata")
        if (backend == "triton") != (device is not None):
            raise ArgumentError(
                f"backend is {backend!r} and device {device!r}: expected a device, such as 'cuda', for 'triton' alone"
            )
        self.backend = "cpu" if backend == "auto" else backend
        self._device = _DeviceAutomata(languages, device) if backend == "triton" else None
        self.end_code, self.num_codes = end_code, num_codes
        self.num_beams, self.max_tokens = num_beams, max_tokens
        self.scoring: Scoring = scoring

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        *,
        head: NDArray[np.float32] | Any | None = None,
        costs: HeadCosts | None = None,
        suffix_fn: SuffixFn | None = None,
    ) -> SequenceResult:
        """Decode a batch.

        step_fn(codes_BK, parents_BK) -> logits, as for `BeamSearch.run`: first (None, None) and (B, V), then (B, K, V).

        head: the weight (V, D) of the model's head, float32 on the CPU. Given, step_fn returns hidden states, (B, D) and then
        (B, K, D), and the head is multiplied for legal codes alone, by the cheapest way (`ops.head`; with scoring "full" it
        sees every code, but no table of B x K x V is written). costs: what `ops.head.cpu.calibrate` measured here.

        suffix_fn(codes_BKT, parents_BK) -> what T calls of step_fn would return, the first with these parents, each later one
        with every beam as its own: given, the search jumps over forced chains (`Jump`), with the same answer. While all live
        beams of the batch stand on chains, it asks once for the codes that they just took and those that follow, up to where
        the first of them has a choice; step_fn then goes on from the beams of that pass. So unlike that of `BeamSearch`, it may
        be called in the midst of a search. With scoring "allowed" chains are certain and only the last of the T is looked at;
        where nothing is left to decide it is not even called, unless the model excludes forced codes by logits of -inf (then
        do without suffix_fn).

        Only automata that have `chains` are jumped over: sequences and choices by default, patterns and schemas after
        `compress()`. Forced *tokens* cannot change what is found. Forced *text* (`Automaton.forced_bytes`) is another matter:
        written down and tokenised again it makes the model go on from tokens that it might not have chosen, so that its answers
        change; that is never done here.

        Cost: at most max_tokens calls of the model; fewer where all beams have ended. Raises ArgumentError, LogitsError.
        """
        chosen = self._automata * batch_size if len(self._automata) == 1 else self._automata
        if batch_size < 1 or len(chosen) != batch_size:
            raise ArgumentError(
                f"batch_size is {batch_size} with {len(self._automata)} automata: expected one for each request"
            )
        languages = automata.bind(chosen, end_code=self.end_code, num_codes=self.num_codes)
        if head is not None and len(head) != self.num_codes:
            raise ArgumentError(f"the head has {len(head):,} codes: expected num_codes, {self.num_codes:,}")
        if head is not None and self._device is not None:
            raise ArgumentError("head is multiplied on the CPU: with backend 'triton' let step_fn return logits")
        if self._device is None:
            rounds = HostRounds(languages, self.num_beams, self.scoring, head, costs)
        else:
            rounds = self._device.rounds(languages, self.num_beams, self.scoring)
        beams: Beams[Any] = rounds.roots()
        final_B1 = to_kind_of(np.array([one.num_states for one in chosen])[:, None], beams.lo)
        taken: list[tuple[Any, Any]] = []  # codes and parents of each token
        model = ModelCalls(step_fn, suffix_fn)
        while len(taken) < self.max_tokens:
            jump = Jump.of(languages, beams, self.max_tokens - len(taken)) if model.can_jump else None
            if jump is not None and self.scoring == "allowed":
                taken += jump.tokens
                beams = jump.behind(beams)
                if not jump.decides:
                    break
                answer = model.behind(jump, beams)
            else:
                answer = model.ask(beams, jump)
            beams = rounds.step(len(taken), beams, answer)
            taken.append((beams.code, beams.parent))
            if bool(((beams.lo[0] == final_B1) | (beams.hi[0] == 0)).all()):
                break
        finished_BK = to_numpy((beams.lo[0] == final_B1) & (beams.hi[0] > 0))
        num_valid_B = to_numpy(beams.num_valid)
        return SequenceResult(
            tokens=_tokens(taken, finished_BK, num_valid_B, self.end_code),
            scores=to_numpy(beams.scores),
            finished=finished_BK,
            num_valid=num_valid_B,
            rounds=model.calls,
            rounds_saved=len(taken) - model.calls,
        )


def _tokens(
    taken: Sequence[tuple[Any, Any]],
    finished_BK: NDArray[np.bool_],
    num_valid_B: NDArray[np.int64],
    end_code: int,
) -> list[list[NDArray[np.int64]]]:
    """The codes of every beam, found by going back from beam to parent, without the end code."""
    codes_TBK = np.empty((len(taken), *finished_BK.shape), np.int64)
    beams_BK = np.tile(np.arange(finished_BK.shape[1]), (len(finished_BK), 1))
    for t, (codes_BK, parents_BK) in reversed(list(enumerate(taken))):
        codes_TBK[t] = np.take_along_axis(to_numpy(codes_BK), beams_BK, 1)
        beams_BK = np.take_along_axis(to_numpy(parents_BK), beams_BK, 1)
    return [
        [
            row[: np.flatnonzero(row == end_code)[0]] if ended else row
            for row, ended in zip(codes_TBK[:, b, :count].T, finished_BK[b], strict=False)
        ]
        for b, count in enumerate(num_valid_B.tolist())
    ]
