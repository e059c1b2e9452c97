"""Losses over the codes of one level: of all codes, or of a sample where the last level is wide.

Shapes: N items, P predicted items, D hidden, V codes of the level, R items of a soft target, M pairs of an item and a sibling
(an item of the same prefix), K drawn codes.
"""

from math import log
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

_NEVER = -1e9


def full_loss(log_p_PV: Tensor, codes_P: Tensor, *, label_smoothing: float) -> Tensor:
    """Return the cross-entropy (..., P) in nats, from the log-probabilities (..., P, V) of all codes of a level."""
    return -torch.lerp(log_p_PV.gather(-1, codes_P[..., None])[..., 0], log_p_PV.mean(-1), label_smoothing)


def soft_loss(log_p_PV: Tensor, codes_PR: Tensor, weights_PR: Tensor) -> Tensor:
    """Return the cross-entropy (..., P) with soft targets in nats, from the log-probabilities of all codes of a level."""
    return -(log_p_PV.gather(-1, codes_PR) * weights_PR).sum(-1)


class SampledLevel:
    """The cross-entropy over a last level of many codes: over those under the item's prefix, and some drawn ones.

        log Z = log(sum over siblings' codes of exp(logit) + (V / K) * sum over K drawn codes, siblings left out, of exp(logit))

    The codes under the prefix are those from which a constrained search chooses; the drawn ones stand for the rest, so that Z
    estimates the sum over the whole codebook (sampled softmax: Bengio and Senecal, 2008). This costs (K + M / P) D per item,
    not V D.
    """

    def __init__(self, codes_NL: NDArray[np.int64], num_codes: int, *, drawn: int, device: torch.device) -> None:
        prefix_N = np.unique(codes_NL[:, :-1], axis=0, return_inverse=True)[1].reshape(-1)
        order_N = np.argsort(prefix_N, kind="stable")
        counts = np.bincount(prefix_N)
        starts = np.cumsum(counts) - counts
        self._codes_N = torch.from_numpy(codes_NL[order_N, -1]).to(device)  # of the items, by prefix
        self._first_N, self._count_N = (torch.from_numpy(x[prefix_N]).to(device) for x in (starts, counts))
        self._rank_N = torch.from_numpy(np.argsort(order_N)).to(device) - self._first_N  # of an item among its siblings
        self._num_codes, self._drawn = num_codes, min(drawn, num_codes)

    def loss(self, hidden_PD: Tensor, weight_VD: Tensor, items_P: Tensor, draws: torch.Generator) -> Tensor:
        """Return the loss (P,) of each item's code in nats; `draws` makes the sample, one for all items."""
        count_P, device = self._count_N[items_P], items_P.device
        start_P = count_P.cumsum(0) - count_P  # of an item's siblings among the pairs
        pair_M = torch.repeat_interleave(count_P)
        codes_M = self._codes_N[(self._first_N[items_P] - start_P)[pair_M] + torch.arange(len(pair_M), device=device)]
        siblings_M = cast(Tensor, _PairProducts.apply(hidden_PD.float(), weight_VD, pair_M, codes_M, start_P))
        drawn_K = torch.randperm(self._num_codes, generator=draws, device=draws.device)[: self._drawn]
        column_V = torch.full((self._num_codes,), -1, device=device)
        column_V[drawn_K] = torch.arange(self._drawn, device=device)
        column_M = column_V[codes_M]
        drawn_M = column_M >= 0
        logits_PK = (hidden_PD @ weight_VD.index_select(0, drawn_K).T).float()
        logits_PK[pair_M[drawn_M], column_M[drawn_M]] = _NEVER
        drawn_P = logits_PK.logsumexp(1) + log(self._num_codes / self._drawn)
        normaliser_P = torch.logaddexp(drawn_P, _segment_logsumexp(siblings_M, pair_M, len(items_P)))
        return normaliser_P - siblings_M[start_P + self._rank_N[items_P]]


class _PairProducts(torch.autograd.Function):
    """The product of each pair of a hidden state and a code's row; the gradients are sums of rows, without a row for each pair.

    `start_P` is the first pair of each hidden state.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden_PD: Tensor, weight_VD: Tensor, pair_M: Tensor, codes_M: Tensor, start_P: Tensor
    ) -> Tensor:
        ctx.save_for_backward(hidden_PD, weight_VD, pair_M, codes_M, start_P)
        return hidden_PD.index_select(0, pair_M).mul_(weight_VD.index_select(0, codes_M)).sum(1)

    @staticmethod
    def backward(ctx: BackwardCFunction, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_PD, weight_VD, pair_M, codes_M, start_P = cast(tuple[Tensor, Tensor, Tensor, Tensor, Tensor], ctx.saved_tensors)
        of_hidden_PD = F.embedding_bag(codes_M, weight_VD, start_P, mode="sum", per_sample_weights=gradients[0])
        order_M, counts_V = codes_M.argsort(), torch.bincount(codes_M, minlength=len(weight_VD))
        start_V, sorted_M = counts_V.cumsum(0) - counts_V, gradients[0][order_M]
        of_weight_VD = F.embedding_bag(pair_M[order_M], hidden_PD, start_V, mode="sum", per_sample_weights=sorted_M)
        return of_hidden_PD, of_weight_VD, None, None, None


def _segment_logsumexp(values_M: Tensor, segment_M: Tensor, segments: int) -> Tensor:
    """Return the log-sum-exp of the values of each segment, none of which may be empty."""
    largest = torch.full((segments,), -torch.inf, device=values_M.device, dtype=values_M.dtype)
    largest = largest.scatter_reduce(0, segment_M, values_M.detach(), "amax")
    sums = torch.zeros_like(largest).index_add(0, segment_M, (values_M - largest[segment_M]).exp())
    return sums.log() + largest
