"""Sampling the token sequences of an automaton.

Shapes: B requests, K samples, R = B x K rows, V codes of the model, C legal codes of all rows, T tokens of a sequence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.decode.automaton_constraint import AutomatonConstraint
from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import check_logits
from leafbeam.decode.sampling import Sampling
from leafbeam.decode.sequence_search import SequenceSearch
from leafbeam.errors import ArgumentError, LogitsError, check_whole, counted
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.head import HeadCosts


class SequenceSampler(SequenceSearch):
    """A sampler of an automaton's token sequences.

    The draws are independent of each other, so the same sequence may come twice.

    A result is that of `SequenceSearch`, in the order drawn; scores are the log-probabilities of drawing. `Sampler` draws
    distinct items of an index. It runs on the CPU only.

    Args:
        automaton: One automaton for all requests, or one for each.
        end_code: As for `SequenceSearch`.
        num_codes: As for `SequenceSearch`.
        sampling: How tokens are drawn: one for all requests, or one for each.
        num_samples: The number of sequences of each request.
        max_tokens: As for `SequenceSearch`.
        seed: One seed for all requests, or one for each. Sample k of a request is drawn with (seed, k) alone, one random number
            for each of its tokens, whatever else is in the batch.

    Examples:
        >>> sampler = SequenceSampler(automaton, end_code=2, num_codes=131_072, sampling=Sampling(top_p=0.9), num_samples=3)
        >>> sampler.run(step_fn).tokens[0]
    """

    def __init__(
        self,
        automaton: Automaton | Sequence[Automaton],
        *,
        end_code: int | Sequence[int],
        num_codes: int,
        sampling: Sampling | Sequence[Sampling],
        num_samples: int = 1,
        max_tokens: int = 256,
        seed: int | Sequence[int] = 0,
    ) -> None:
        check_whole(num_samples=num_samples)
        super().__init__(
            automaton, end_code=end_code, num_codes=num_codes, num_beams=num_samples, max_tokens=max_tokens, scoring="allowed"
        )
        self.sampling = (sampling,) if isinstance(sampling, Sampling) else tuple(sampling)
        self.seeds = (seed,) if isinstance(seed, int) else tuple(seed)

    def _constraint(self, batch: automata.AutomatonBatch, head: Any, costs: HeadCosts | None) -> AutomatonConstraint:
        size = len(batch.automata)
        samplings = self.sampling * size if len(self.sampling) == 1 else self.sampling
        seeds = self.seeds * size if len(self.seeds) == 1 else self.seeds
        if len(samplings) != size or len(seeds) != size:
            raise ArgumentError(
                f"{counted(len(samplings), 'sampling')} and {counted(len(seeds), 'seed')} for a batch of {size}: "
                "expected one for each"
            )
        return _SampledConstraint(self.config, batch, head, costs, samplings, seeds)


class _SampledConstraint(AutomatonConstraint):
    """A constraint in which every beam continues with a drawn code, instead of the best codes of all beams being kept."""

    def __init__(
        self,
        config: SearchConfig,
        batch: automata.AutomatonBatch,
        head: Any,
        costs: HeadCosts | None,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
    ) -> None:
        super().__init__(config, batch, head=head, costs=costs)
        self._samplings = samplings
        num_samples, max_tokens = config.num_beams[0], config.num_rounds
        self._uniform_BKT = np.array(
            [
                [np.random.default_rng([seed % 2**64, sample]).random(max_tokens) for sample in range(num_samples)]
                for seed in seeds
            ]
        )

    def step(self, number: int, beams: Beams[Any], logits: Any) -> Beams[Any]:
        batch_size, num_rows = beams.scores.shape
        if self._head is None:
            logits_BKV = check_logits(logits, number, (batch_size, num_rows, self.batch.num_codes), beams.scores)
            codes = automata.legal(self.batch, beams.lo, beams.hi)
            logit_C = logits_BKV.reshape(-1, self.batch.num_codes)[codes.row_C, codes.code_C]
        else:
            head_logits = self._head_logits(beams, self._hidden(number, beams, logits))
            codes, logit_C = head_logits.legal_codes, head_logits.logit_C
        logit_C = automata.join_ends(self.batch, beams.lo, codes, logit_C)
        is_ended_R = self.finished(beams).reshape(-1)
        row_C = codes.row_C
        logit_C = np.where(is_ended_R[row_C], 0, logit_C)  # ended: certain
        shape = batch_size, self.config.num_beams[number]
        parent_K = np.arange(shape[1]) if num_rows == shape[1] else np.zeros(shape[1], np.int64)  # all begin in one row
        slots_BK, scores_BK = np.empty(shape, np.int64), np.empty(shape)
        for b in range(batch_size):
            begin, end = codes.indptr_R1[b * num_rows], codes.indptr_R1[(b + 1) * num_rows]
            try:
                log_p_C = self._samplings[b].log_probabilities(logit_C[begin:end], row_C[begin:end], f"in round {number}")
            except LogitsError as error:
                error.request = b
                raise
            for k, parent in enumerate(parent_K.tolist()):
                row = codes.indptr_R1[b * num_rows + parent :][:2] - begin
                drawn = _draw(log_p_C[row[0] : row[1]], self._uniform_BKT[b, k, number])
                if drawn is None:
                    raise LogitsError.none_allowed(b, f"in round {number}")
                slots_BK[b, k] = begin + row[0] + drawn
                scores_BK[b, k] = beams.scores[b, parent] + log_p_C[row[0] + drawn]
        return automata.beams_at(self.batch, beams.lo, codes, slots_BK, scores_BK)


def _draw(log_p_c: NDArray[np.float64], uniform: float) -> int | None:
    """Return the code at which the cumulative probability exceeds a uniform number of [0, 1); None if no code has any."""
    cumulative_c = np.cumsum(np.exp(log_p_c))
    if not cumulative_c[-1] > 0:
        return None
    total = np.nextafter(cumulative_c[-1], 0)  # the product may round up to the sum
    return int(np.searchsorted(cumulative_c, min(uniform * cumulative_c[-1], total), side="right"))
