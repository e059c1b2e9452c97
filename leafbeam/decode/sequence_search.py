"""Beam search over the token sequences of an automaton.

Shapes: B requests, K beams, V codes of the model, D hidden, T tokens of a sequence.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.automaton_constraint import AutomatonConstraint, DeviceAutomata
from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import Trace, raise_if_bad, rounds
from leafbeam.decode.model_calls import ModelCalls, StepFn, SuffixFn
from leafbeam.errors import ArgumentError, check_whole, counted
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import AnyArray, Scoring
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceResult:
    """Ranked token sequences.

    Attributes:
        tokens: For each request one int64 array per beam, best first, `num_valid[b]` of them, without end codes.
        scores: float32 (B, K), the end code included; -inf beyond num_valid.
        finished: bool (B, K); false for a sequence that max_tokens cut off.
        num_valid: int64 (B,).
        rounds: The number of calls of the model.
        rounds_saved: The number of calls that were skipped because codes were forced.
    """

    tokens: list[list[NDArray[np.int64]]]
    scores: NDArray[np.float32]
    finished: NDArray[np.bool_]
    num_valid: NDArray[np.int64]
    rounds: int
    rounds_saved: int = 0


class SequenceSearch:
    """Beam search over the token sequences of an automaton; `BeamSearch` does the same for the items of an index.

    Every sequence found is in the automaton's language, or can still be completed. A finished beam keeps its score and
    competes.

    Args:
        automaton: One automaton for all requests, or one for each.
        end_code: The model's end-of-sequence code. If it is a list, each of its codes ends a sequence, and the score of an
            end is that of all end codes together. An end code that is also a token of the language is text where the language
            allows it, and ends the sequence after it if the sequence may end there.
        num_codes: V, the width of the logits.
        num_beams: The number of beams of each request.
        max_tokens: The largest number of rounds, including that of the end code.
        scoring: Log-softmax over all codes ("full") or over the legal ones ("allowed").
        backend: "cpu"; or "triton", for one end code that is not text and automata over one vocabulary, which are copied to
            `device`. It waits once in each round to see whether every beam is finished. "auto" takes "triton" if `device` is a
            CUDA device, Triton is installed and the automata fit, and "cpu" otherwise.
        device: Where the logits are; None is the CPU.

    Examples:
        >>> search = SequenceSearch(Automaton.from_json_schema(schema, tokens), end_code=2, num_codes=131_072, num_beams=4)
        >>> result = search.run(step_fn)
        >>> result.tokens[0][0], result.finished[0, 0]
    """

    def __init__(
        self,
        automaton: Automaton | Sequence[Automaton],
        *,
        end_code: int | Sequence[int],
        num_codes: int,
        num_beams: int = 4,
        max_tokens: int = 256,
        scoring: Scoring = "full",
        backend: str = "auto",
        device: object = None,
    ) -> None:
        check_whole(num_beams=num_beams, max_tokens=max_tokens)
        if scoring == "vocabulary":
            raise ArgumentError("the codes of an automaton are the vocabulary: use scoring 'full' in place of 'vocabulary'")
        self.config = SearchConfig(
            num_beams=(num_beams,) * max_tokens,
            code_sizes=(num_codes,) * max_tokens,
            scoring=scoring,
            end_code=end_code if isinstance(end_code, int) else min(end_code, default=0),
        )
        self._automata = (automaton,) if isinstance(automaton, Automaton) else tuple(automaton)
        batch = automata.bind(self._automata, end_code=end_code, num_codes=num_codes)  # raises for automata that do not fit
        if backend not in ("auto", "cpu", "triton"):
            raise ArgumentError(f"backend is {backend!r}: expected 'auto', 'cpu' or 'triton' for automata")
        if (backend, device is None) in (("triton", True), ("cpu", False)):
            raise ArgumentError(
                f"backend is {backend!r}, device {device!r}: expected a device ('cuda') for 'triton', and none for 'cpu'"
            )
        if backend == "auto":
            backend = "triton" if DeviceAutomata.supports(batch, device) else "cpu"
        self.backend = backend
        if backend == "triton":  # the device and the host number states alike
            self._automata = tuple(automaton.filled() for automaton in self._automata)
            batch = automata.bind(self._automata, end_code=end_code, num_codes=num_codes)
        self._device = DeviceAutomata(batch, device) if backend == "triton" else None
        self.end_code, self.num_codes = end_code, num_codes

    def __repr__(self) -> str:
        config = self.config
        shape = f"num_beams={config.num_beams[0]}, max_tokens={config.num_rounds}"
        return f"SequenceSearch({len(self._automata)} automata, {shape}, scoring={config.scoring!r})"

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        *,
        head: AnyArray | None = None,
        costs: HeadCosts | None = None,
        suffix_fn: SuffixFn | None = None,
    ) -> SequenceResult:
        """Decode a batch of requests.

        The model is called at most max_tokens times, and less often if all beams have ended.

        Args:
            step_fn: As for `BeamSearch.run`: `step_fn(codes_BK, parents_BK)` returns logits, first for (None, None) and of
                shape (B, V).
            batch_size: The number of requests, B.
            head: The weight (V, D) of the model's head, float32 on the CPU; with backend "triton" on its device and in the
                model's dtype. step_fn then returns hidden states, (B, D) and later (B, K, D), and the head is multiplied for
                legal codes alone where that is cheaper (`ops.head`).
            costs: The measured costs of this machine, by which `head` decides; None uses estimates.
            suffix_fn: `suffix_fn(codes_BKT, parents_BK)` returns what T calls of step_fn would return, the first with these
                parents, and each later one with every beam as its own parent. The search then jumps over forced chains, with
                the same answer: while all live beams are on chains, it calls suffix_fn once for the codes that they just took
                and those that follow, up to the first choice; step_fn then continues from the beams of that call. With scoring
                "allowed" chains are certain and only the last of the T results is read. If nothing is left to decide, it is not
                called, unless the model excludes forced codes by logits of -inf (in that case pass no suffix_fn). Only automata
                that have `chains` are jumped over: sequences and choices by default, patterns and schemas after `compress()`.
                Only forced tokens are skipped, never forced text, which could be tokenised in another way.

        Raises:
            ArgumentError: If the arguments contradict each other or the backend.
            LogitsError: If the logits have the wrong shape, or are NaN or +inf.
        """
        run = self.start(step_fn, batch_size, head=head, costs=costs, suffix_fn=suffix_fn)
        return run.result(deque(run.rounds, maxlen=1).pop())

    def start(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        *,
        head: AnyArray | None = None,
        costs: HeadCosts | None = None,
        suffix_fn: SuffixFn | None = None,
    ) -> "SequenceRun":
        """Return a search that runs round by round (see `SequenceRun`), with the arguments of `run`.

        Nothing is computed before its first round.
        """
        constraint = self.constraint(batch_size, head=head, costs=costs)
        return SequenceRun(constraint, ModelCalls(step_fn, suffix_fn))

    def constraint(
        self, batch_size: int = 1, *, head: AnyArray | None = None, costs: HeadCosts | None = None
    ) -> AutomatonConstraint:
        """Return the object that decides the rounds of a batch, for callers that run the model themselves.

        Arguments and errors are those of `run`.
        """
        requests = self._automata * batch_size if len(self._automata) == 1 else self._automata
        if batch_size < 1 or len(requests) != batch_size:
            raise ArgumentError(f"{len(self._automata)} automata for a batch of {batch_size}: expected one for each request")
        if head is not None and len(head) != self.num_codes:
            raise ArgumentError(f"the head has {counted(len(head), 'code')}: expected num_codes, {self.num_codes:,}")
        return self._constraint(automata.bind(requests, end_code=self.end_code, num_codes=self.num_codes), head, costs)

    def _constraint(
        self, batch: automata.AutomatonBatch, head: AnyArray | None, costs: HeadCosts | None
    ) -> AutomatonConstraint:
        return AutomatonConstraint(self.config, batch, head=head, costs=costs, device=self._device)


class SequenceRun:
    """A search of sequences in progress. Iterate over `rounds` once: it yields the state after each call of the model.

    Args:
        constraint: The codes that beams may take.
        model: The functions of the model.
    """

    def __init__(self, constraint: AutomatonConstraint, model: ModelCalls) -> None:
        self._constraint = constraint
        self.rounds = rounds(constraint, model, watch=True)

    def is_going_on(self, trace: Trace) -> NDArray[np.bool_]:
        """Return which requests have a sequence that has not ended, bool (B,)."""
        live_BK = to_numpy(trace.beams.scores) > -np.inf
        return np.any(live_BK & ~to_numpy(self._constraint.finished(trace.beams)), axis=1)

    def result(self, trace: Trace) -> SequenceResult:
        """Return the sequences after a round."""
        raise_if_bad(self._constraint, "in round")
        scores_BK = to_numpy(trace.beams.scores)
        finished_BK = to_numpy(self._constraint.finished(trace.beams)) & (scores_BK > -np.inf)
        return SequenceResult(
            tokens=_tokens(trace, finished_BK, self._constraint.batch),
            scores=scores_BK,
            finished=finished_BK,
            num_valid=trace.num_valid_B,
            rounds=trace.calls,
            rounds_saved=trace.rounds_saved,
        )


def _tokens(trace: Trace, finished_BK: NDArray[np.bool_], batch: automata.AutomatonBatch) -> list[list[NDArray[np.int64]]]:
    """Return the codes of every beam, without the end code."""
    codes_BKT = trace.codes()
    lengths_BK = np.where(finished_BK, np.isin(codes_BKT, batch.end_codes).argmax(2), codes_BKT.shape[2])
    for b in np.flatnonzero(batch.has_text_ends).tolist():
        for k in np.flatnonzero(finished_BK[b]).tolist():
            lengths_BK[b, k] = automata.num_text_codes(batch.automata[b], batch.end_codes, codes_BKT[b, k])
    counts = trace.num_valid_B.tolist()
    return [[codes_BKT[b, k, : lengths_BK[b, k]] for k in range(count)] for b, count in enumerate(counts)]
