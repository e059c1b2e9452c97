"""Beam search without a constraint, and membership tests of its results.

Shapes: B requests, K beams, L levels, V codes of a level, N items, M SIDs.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["SidSet", "unconstrained_search"]

StepFn = Callable[[Tensor | None, Tensor | None], Tensor]


@torch.inference_mode()
def unconstrained_search(step_fn: StepFn, *, num_levels: int, num_beams: int) -> tuple[Tensor, Tensor]:
    """The `num_beams` likeliest SIDs, whether or not they exist: codes_BKL and scores_BK, best first.

    for each level:
        score = beam score + log_softmax(logits)[code]
        keep the `num_beams` best of all beams' codes

    The step function, width and normalisation are those of `BeamSearch(scoring="full")`.
    """
    scores_BK = torch.log_softmax(step_fn(None, None), dim=-1)
    scores_BK, code_BK = scores_BK.topk(min(num_beams, scores_BK.shape[-1]), dim=-1)
    parent_BK = torch.zeros_like(code_BK)
    codes_BKL = code_BK[..., None]
    for _ in range(1, num_levels):
        logits_BKV = step_fn(code_BK, parent_BK)
        B, K, V = logits_BKV.shape
        total_BC = (scores_BK[..., None] + torch.log_softmax(logits_BKV, dim=-1)).view(B, K * V)
        scores_BK, best_BK = total_BC.topk(min(num_beams, K * V), dim=-1)
        parent_BK, code_BK = best_BK // V, best_BK % V
        prefix_BKL = codes_BKL.gather(1, parent_BK[..., None].expand(-1, -1, codes_BKL.shape[-1]))
        codes_BKL = torch.cat((prefix_BKL, code_BK[..., None]), dim=-1)
    return codes_BKL, scores_BK


class SidSet:
    """The existing SIDs, looked up without the index, to check both searches.

    Each level holds the sorted keys `parent * size + code` of its nodes; a node's number is its position among them.
    """

    def __init__(self, codes_NL: NDArray[np.int64], codebook_sizes: Sequence[int]) -> None:
        self._sizes = tuple(codebook_sizes)
        self._keys: list[NDArray[np.int64]] = []
        node_N = np.zeros(len(codes_NL), np.int64)
        for level, size in enumerate(self._sizes):
            keys, node_N = np.unique(node_N * size + codes_NL[:, level], return_inverse=True)
            self._keys.append(keys)

    def contains(self, codes_ML: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Whether each SID exists. Cost: L binary searches each."""
        node_M = np.zeros(len(codes_ML), np.int64)
        known_M = np.full(len(codes_ML), len(self._keys[0]) > 0)
        for level, (size, keys) in enumerate(zip(self._sizes, self._keys, strict=True)):
            if not len(keys):
                break
            key_M = node_M * size + codes_ML[:, level]
            node_M = np.minimum(np.searchsorted(keys, key_M), len(keys) - 1)
            known_M &= keys[node_M] == key_M
        return known_M
