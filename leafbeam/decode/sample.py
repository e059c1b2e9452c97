"""Sampling legal items without replacement.

Shapes: B requests, K samples, V codes of a level, R = B x K rows, C children of all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.results import (
    SearchResult,
    StepFn,
    all_finished,
    check_batch,
    check_logits,
    collect_items,
    finished_beams,
    root_ranges,
)
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops import backend as backends

__all__ = ["Sampler"]


class Sampler:
    """Draw distinct legal items, each in proportion to its probability among those not drawn yet.

    Think of it as drawing items one by one, putting none back, and getting them in the order drawn; done for all draws at once
    by giving every node of the trie its log-probability plus Gumbel noise, conditioned on its parent's, and keeping the best
    (stochastic beam search: Kool, van Hoof and Welling, 2019).

    The distribution: at each level softmax(logits / temperature) over the legal codes, cut to the `top_k` most likely and to
    the smallest set that has `top_p` of the mass, then made to sum to 1. A result's scores are log-probabilities under it.
    Cut codes are never drawn, so that an answer may be short. temperature 0 is greedy: use BeamSearch(index, num_beams=1).

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
        if num_samples < 1:
            raise ArgumentError(f"num_samples is {num_samples}: expected at least 1")
        if not (temperature > 0 and np.isfinite(temperature)):
            raise ArgumentError(f"temperature is {temperature}: expected more than 0 (for greedy: BeamSearch with num_beams=1)")
        if top_k is not None and top_k < 1:
            raise ArgumentError(f"top_k is {top_k}: expected at least 1, or None")
        if top_p is not None and not 0 < top_p <= 1:
            raise ArgumentError(f"top_p is {top_p}: expected more than 0 and at most 1, or None")
        self.index = index
        self.version = Version.of(index)
        self.num_samples = num_samples
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.backend, self._ops = backends.load(backend)
        if not hasattr(self._ops, "children"):
            raise ArgumentError(
                f"backend {self.backend!r} lists no ragged children, which sampling needs: use backend='cpu', 'reference' or "
                f"'triton'"
            )
        self._arrays = self._ops.bind(self.version)

    def run(
        self,
        step_fn: StepFn,
        batch_size: int = 1,
        filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
        deny: Sequence[ItemIds | None] | None = None,
        *,
        rng: np.random.Generator,
    ) -> SearchResult:
        """Draw up to `num_samples` items for each request; arguments and errors as for `BeamSearch.run`.

        Items are in the order drawn, not by score. Cost: L calls of step_fn and a few reads of every legal child.
        """
        requests = check_batch(self.version, batch_size, filters, deny)
        bound = self._ops.bind_filters(self._arrays, requests)
        lo_SBK, hi_SBK = root_ranges(self.version, requests)
        log_p_BK = np.zeros((batch_size, 1))  # log-probability of each prefix
        noisy_BK = np.zeros((batch_size, 1))  # the same plus Gumbel noise: the order of the draws
        num_valid_B = np.asarray((hi_SBK > lo_SBK).any(axis=(0, 2)), np.int64)
        codes_BK = parents_BK = sample = None
        for level in range(self.version.num_levels):
            finished_BK = finished_beams(self.version, codes_BK)
            if not num_valid_B.any() or all_finished(finished_BK, num_valid_B):
                break
            logits = step_fn(codes_BK, parents_BK)
            sample = logits if sample is None else sample
            shape = (batch_size, lo_SBK.shape[2], self.version.codebook_sizes[level])
            logits_RV = check_logits(logits, level, shape, finished_BK).reshape(-1, shape[2])
            lo, hi = lo_SBK, hi_SBK
            if self.backend == "reference":
                lo, hi = backends.to_torch(lo), backends.to_torch(hi)
            ragged = self._ops.children(self._arrays, level, lo, hi, bound)
            row_indptr, code_C, lo_SC, hi_SC = (backends.to_numpy(array) for array in ragged)
            row_C = np.repeat(np.arange(len(row_indptr) - 1), np.diff(row_indptr))
            log_p_C = self._log_probabilities(logits_RV[row_C, code_C], row_C, level)
            log_p_C = log_p_C + log_p_BK.reshape(-1)[row_C]
            noisy_C = _conditional_gumbel(log_p_C, noisy_BK.reshape(-1), row_C, rng)
            slots = self._best(noisy_C, row_C // shape[1], batch_size)
            live = slots >= 0
            num_valid_B = np.asarray(live.sum(axis=1), np.int64)
            lo_SBK, hi_SBK = np.where(live, lo_SC[:, slots], 0), np.where(live, hi_SC[:, slots], 0)
            log_p_BK, noisy_BK = np.where(live, log_p_C[slots], -np.inf), np.where(live, noisy_C[slots], -np.inf)
            parent_BK = np.where(live, row_C[slots] % shape[1], 0)
            code_BK = np.where(live, code_C[slots], 0)
            codes_BK, parents_BK = (backends.to_kind_of(array, sample) for array in (code_BK, parent_BK))
        return collect_items(
            self.version, requests, (lo_SBK, hi_SBK), log_p_BK.astype(np.float32), num_valid_B, self.num_samples
        )

    def _log_probabilities(self, logits_C: NDArray[Any], row_C: NDArray[np.int64], level: int) -> NDArray[np.float64]:
        """log-softmax over each row's children after temperature, top-k and top-p; -inf for what they cut."""
        if np.isnan(logits_C).any() or np.isposinf(logits_C).any():
            raise LogitsError(f"the logits at level {level} hold NaN or +inf: expected finite numbers, or -inf")
        scaled_C = _log_softmax(logits_C.astype(np.float64) / self.temperature, row_C)
        if self.top_k is None and self.top_p is None:
            return scaled_C
        order = np.lexsort((-scaled_C, row_C))  # by row, most likely first, ties by code
        starts = np.flatnonzero(np.diff(row_C[order], prepend=-1))
        first_of = np.repeat(starts, np.diff(np.append(starts, len(order))))
        keep = np.ones(len(order), np.bool_)
        if self.top_k is not None:
            keep &= np.arange(len(order)) - first_of < self.top_k
        if self.top_p is not None:
            mass = np.cumsum(np.exp(scaled_C[order]))
            before = mass - np.exp(scaled_C[order])
            keep &= (before - before[first_of] < self.top_p) | (np.arange(len(order)) == first_of)
        scaled_C[order[~keep]] = -np.inf
        return _log_softmax(scaled_C, row_C)

    def _best(self, noisy_C: NDArray[np.float64], request_C: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
        """The `num_samples` noisiest children of each request, -1 where there are fewer."""
        slots = np.full((batch_size, self.num_samples), -1, np.int64)
        live = np.flatnonzero(noisy_C > -np.inf)
        order = live[np.lexsort((-noisy_C[live], request_C[live]))]
        starts = np.searchsorted(request_C[order], np.arange(batch_size + 1))
        for request in range(batch_size):
            mine = order[starts[request] : starts[request + 1]][: self.num_samples]
            slots[request, : len(mine)] = mine
        return slots


def _log_softmax(values_C: NDArray[np.float64], row_C: NDArray[np.int64]) -> NDArray[np.float64]:
    """log-softmax within each run of equal rows; all -inf where a row has nothing else."""
    if len(values_C) == 0:
        return values_C
    starts = np.flatnonzero(np.diff(row_C, prepend=-1))
    sizes = np.diff(np.append(starts, len(row_C)))
    top = np.maximum.reduceat(values_C, starts)
    top = np.where(top > -np.inf, top, 0.0)
    shifted_C = values_C - np.repeat(top, sizes)
    total = np.add.reduceat(np.exp(shifted_C), starts)
    return shifted_C - np.repeat(np.log(np.where(total > 0, total, 1.0)), sizes)


def _conditional_gumbel(
    log_p_C: NDArray[np.float64], parent_R: NDArray[np.float64], row_C: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Gumbel(log_p) noise for each child, conditioned on the largest of a row being its parent's value (Kool et al., §4.1)."""
    if len(log_p_C) == 0:
        return log_p_C
    noise_C = log_p_C + rng.gumbel(size=len(log_p_C))
    starts = np.flatnonzero(np.diff(row_C, prepend=-1))
    most_C = np.repeat(np.maximum.reduceat(noise_C, starts), np.diff(np.append(starts, len(row_C))))
    live = noise_C > -np.inf
    target, gap = parent_R[row_C[live]], np.minimum(noise_C[live] - most_C[live], 0.0)
    with np.errstate(divide="ignore"):  # the row's largest has gap 0: log(0) = -inf gives it exactly the parent's value
        shift = target - noise_C[live] + np.log1p(-np.exp(gap))
    out_C = np.full(len(log_p_C), -np.inf)
    out_C[live] = target - np.maximum(shift, 0.0) - np.log1p(np.exp(-np.abs(shift)))
    return out_C
