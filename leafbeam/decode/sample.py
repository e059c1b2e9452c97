"""Sampling legal items without replacement.

Shapes: B requests, K samples, V codes of a level, R = B x K rows, C children of all rows together.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.beam_search import ItemSearch, Requests
from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import TrieConstraint
from leafbeam.decode.model_calls import ModelCalls, StepFn
from leafbeam.decode.results import BatchFilters, DenyLists, SearchResult, check_batch
from leafbeam.decode.sampling import Sampling
from leafbeam.errors import ArgumentError, check_whole, counted
from leafbeam.index import Trie, Version
from leafbeam.ops.backend import BoundIndex, load
from leafbeam.ops.constrain import Beams
from leafbeam.ops.constrain.cpu.ragged import extend_ragged, take
from leafbeam.ops.constrain.types import LOWEST


class Sampler(ItemSearch):
    """A sampler that draws distinct legal items, each in proportion to its probability among those not drawn yet.

    All draws are made at once: every node of the trie gets its log-probability plus Gumbel noise, conditioned on that of its
    parent, and the largest are kept (stochastic beam search: Kool, van Hoof and Welling, 2019). The scores of a result are
    log-probabilities. The draws are made on the host.

    Args:
        index: A trie, or a version of a live index.
        num_samples: The number of items of an answer.
        temperature: The temperature of the distribution at each level (see `Sampling`).
        top_k: The number of codes that are kept at each level. Other codes are never drawn, so an answer may be short.
        top_p: The share of the probability that is kept at each level.
        backend: "cpu" (which "auto" takes), "reference" or "triton".

    Examples:
        >>> Sampler(index, num_samples=10, temperature=0.7, top_p=0.9).run(step_fn, batch_size=2, rng=np.random.default_rng(0))
    """

    def __init__(
        self,
        index: Trie | Version,
        num_samples: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        backend: str = "auto",
    ) -> None:
        check_whole(num_samples=num_samples)
        self.sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        name, ops = load(backend)
        if not hasattr(ops, "children"):
            raise ArgumentError(f"backend {name!r} cannot draw samples: use backend='cpu', 'reference' or 'triton'")
        config = SearchConfig.of(Version.of(index), num_samples, "allowed")
        super().__init__(index, config, name, "auto", num_items=num_samples)
        self.num_samples = num_samples

    def __repr__(self) -> str:
        return f"Sampler({counted(self.version.num_items, 'item')}, num_samples={self.num_samples}, {self.sampling})"

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: BatchFilters = None,
        deny: DenyLists = None,
        *,
        rng: np.random.Generator,
    ) -> SearchResult:
        """Draw up to `num_samples` items for each request, in the order drawn and not by score.

        This calls step_fn L times, and reads every legal child a few times.

        Args:
            step_fn: As for `BeamSearch.run`.
            batch_size: As for `BeamSearch.run`.
            filters: As for `BeamSearch.run`.
            deny: As for `BeamSearch.run`.
            rng: The source of the random numbers.

        Raises:
            LeafbeamError: As for `BeamSearch.run`.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        model = ModelCalls(step_fn, watch=True)
        result = self._run(requests, model, partial(self._constraint, rng), self.config)
        return replace(result, bound=None, beams_needed=None)

    def _constraint(
        self, rng: np.random.Generator, bound: BoundIndex, requests: Requests, hi_SB: NDArray[np.int64], config: SearchConfig
    ) -> TrieConstraint:
        ops: Any = bound.ops
        filters = ops.bind_filters(bound.arrays, requests)

        def launch(level: int, beams: Beams[Any], logits_BKV: NDArray[Any], num_beams: int) -> tuple[_SampledBeams, None]:
            """The children with the most noisy score."""
            children = bound.children(level, beams, filters)
            row_C, code_C = children.legal.row_C, children.legal.code_C
            logits_C = logits_BKV.reshape(-1, logits_BKV.shape[2])[row_C, code_C]
            log_p_C = self.sampling.log_probabilities(logits_C, row_C, f"at level {level}")
            log_p_C = log_p_C + beams.scores.reshape(-1)[row_C]
            noisy_BK = beams.noisy if isinstance(beams, _SampledBeams) else beams.scores
            noisy_C = _conditional_gumbel(log_p_C, noisy_BK.reshape(-1), row_C, rng)
            # A beam's own noisy score is the largest of its children's.
            top_BK = _float32(noisy_BK)
            lse_R = top_BK.reshape(-1)
            slots_BK, _ = extend_ragged(children.legal, _float32(noisy_C), lse_R, top_BK, num_beams=self.num_samples)
            drawn = children.beams_at(slots_BK, np.where(slots_BK >= 0, take(log_p_C, slots_BK), -np.inf))
            noisy_BK = np.where(slots_BK >= 0, take(noisy_C, slots_BK), -np.inf)
            return _SampledBeams(**vars(drawn), noisy=noisy_BK), None

        return TrieConstraint(config, hi_SB, launch)


@dataclass(frozen=True, kw_only=True)
class _SampledBeams(Beams[NDArray[Any]]):
    """Beams whose scores are log-probabilities, float64. noisy: these plus Gumbel noise, the order of the draws."""

    noisy: NDArray[np.float64]


def _float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return values of at most 0 as float32, in which only -inf becomes -inf."""
    return np.where(values > -np.inf, np.maximum(values, LOWEST), -np.inf).astype(np.float32)


def _conditional_gumbel(
    log_p_C: NDArray[np.float64], parent_R: NDArray[np.float64], row_C: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Gumbel(log_p) noise for each child, conditioned on the largest of a row being its parent's value (Kool et al., §4.1)."""
    if len(log_p_C) == 0:
        return log_p_C
    noise_C = log_p_C + rng.gumbel(size=len(log_p_C))
    starts = np.flatnonzero(np.diff(row_C, prepend=-1))
    max_C = np.repeat(np.maximum.reduceat(noise_C, starts), np.diff(np.append(starts, len(row_C))))
    live = noise_C > -np.inf
    target, gap = parent_R[row_C[live]], np.minimum(noise_C[live] - max_C[live], 0.0)
    with np.errstate(divide="ignore"):  # the row's largest has gap 0: log(0) = -inf gives it exactly the parent's value
        shift = target - noise_C[live] + np.log1p(-np.exp(gap))
    out_C = np.full(len(log_p_C), -np.inf)
    out_C[live] = target - np.maximum(shift, 0.0) - np.log1p(np.exp(-np.abs(shift)))
    return out_C
