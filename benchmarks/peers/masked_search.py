"""A whole search with a peer's mask: before each top-k, as an exact one must, or where other engines apply it.

    for each level:
        log_p = log_softmax(logits);  masked = peer.mask_step(log_p)
        before: top-k of masked
        after:  top-k of log_p, of which those that the mask allows live on
        never:  top-k of log_p

Shapes: B requests, K beams, V codes, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.peer import Peer, When, extend, root
from leafbeam.decode.model_calls import StepFn

__all__ = ["Masked", "masked_search"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Masked:
    """A method that masks: before each top-k, after each, before the last one alone, or never. peer: the mask."""

    peer: Peer
    when: When | Literal["last"]


@torch.inference_mode()
def masked_search(
    method: Masked, step_fn: StepFn, *, batch_size: int, num_levels: int, num_beams: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """SIDs [B, K, L] and scores [B, K] (-inf: no answer), best first, each level's top-k masked as the method does."""
    beams, codes_BKL = root(method.peer, batch_size), np.zeros((batch_size, 1, 0), np.int64)
    for level in range(num_levels):
        first = level == 0
        logits = step_fn(None, None) if first else step_fn(beams.code_BK, beams.parent_BK)
        last: When = "before" if level == num_levels - 1 else "never"
        when = last if method.when == "last" else method.when
        beams = extend(method.peer, beams, logits[:, None] if first else logits, num_beams, when)
        prefix_BKL = np.take_along_axis(codes_BKL, beams.parent_BK.numpy()[:, :, None], 1)
        codes_BKL = np.concatenate([prefix_BKL, beams.code_BK.numpy()[:, :, None]], 2)
    return codes_BKL, beams.scores_BK.numpy()
