"""The round of every torch peer, and the top-k that all of them share.

    log_p = log_softmax(logits)                         the same for all
    pending, offers = peer.mask_step(state, log_p)      the constraint, which is all that differs between peers
    best = select(scores, offers, K)                    the same for all
    state = peer.advance(pending, best)                 follow the beams that were kept

(STATIC, Algorithm 1, phases 1 to 4.) Shapes: B requests, K beams, V codes, F offers a beam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

__all__ = ["Offers", "Peer", "PeerBeams", "Selection", "When", "compiled_round", "extend", "root", "round_of", "select"]

When = Literal["before", "after", "never"]  # the mask, of the top-k

# Measured on one core: a flat top-k wins until a request's candidates outgrow the cache, then rows first is 2.4 x faster.
_FLAT_CANDIDATES = 2**21


@dataclass(frozen=True, kw_only=True, eq=False)
class Offers:
    """The codes that may extend each beam.

    log_p_BKF: float32, -inf where it is not legal. code_BKF: int64, the code of each offer; None: offer f is code f.
    """

    log_p_BKF: Tensor
    code_BKF: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The best of all offers, best first: float32 scores, and as int64 the beam, its offer and that offer's code."""

    scores_BK: Tensor
    parent_BK: Tensor
    slot_BK: Tensor
    code_BK: Tensor


class Peer(Protocol):
    """A way to know which codes may follow a prefix.

    exact: whether `mask_step` allows the legal codes and no others. nbytes: what a search reads.
    """

    @property
    def exact(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def root(self, batch_size: int) -> Any:
        """The state of [B, 1] empty prefixes."""
        ...

    def mask_step(self, state: Any, log_p_BKV: Tensor) -> tuple[Any, Offers]:
        """What may follow each beam, and what `advance` needs to know about it."""
        ...

    def advance(self, pending: Any, best: Selection) -> Any:
        """The state of the selected beams. A slot with score -inf is dead: whatever follows it scores -inf too."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PeerBeams:
    """Beams after a round: the peer's own state, their scores, and how they came about."""

    state: Any
    scores_BK: Tensor
    parent_BK: Tensor
    code_BK: Tensor


def root(peer: Peer, batch_size: int, device: torch.device | str = "cpu") -> PeerBeams:
    """One empty beam for each request."""
    zero = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
    scores = torch.zeros(batch_size, 1, device=device)
    return PeerBeams(state=peer.root(batch_size), scores_BK=scores, parent_BK=zero, code_BK=zero)


def round_of(peer: Peer, beams: PeerBeams, logits_BKV: Tensor, num_beams: int, when: When = "before") -> PeerBeams:
    """`extend` without its inference mode, which torch.compile does not trace."""
    log_p_BKV = torch.log_softmax(logits_BKV, dim=-1)
    pending, offers = peer.mask_step(beams.state, log_p_BKV)
    best = select(beams.scores_BK, offers if when == "before" else Offers(log_p_BKF=log_p_BKV), num_beams)
    if when == "after":
        at = best.parent_BK * log_p_BKV.shape[2] + best.code_BK
        legal_BK = offers.log_p_BKF.flatten(1).gather(1, at) > -torch.inf
        best = replace(best, scores_BK=torch.where(legal_BK, best.scores_BK, -torch.inf))
    state = peer.advance(pending, best)
    return PeerBeams(state=state, scores_BK=best.scores_BK, parent_BK=best.parent_BK, code_BK=best.code_BK)


@torch.inference_mode()
def extend(peer: Peer, beams: PeerBeams, logits_BKV: Tensor, num_beams: int, when: When = "before") -> PeerBeams:
    """One round: log-softmax, constrain, select, advance. when: beams are selected after the mask, before it, or without it."""
    return round_of(peer, beams, logits_BKV, num_beams, when)


def compiled_round() -> Callable[[Peer, PeerBeams, Tensor, int], PeerBeams]:
    """`extend` through torch.compile, for one level of one peer. The first call compiles for seconds, with a C++ compiler."""
    # A code object of its own: torch.compile keeps what it compiled with the code, and would look through that of all levels.
    function = FunctionType(round_of.__code__.replace(), round_of.__globals__, argdefs=round_of.__defaults__)
    return torch.inference_mode()(torch.compile(function, dynamic=False))


def select(scores_BK: Tensor, offers: Offers, num_beams: int) -> Selection:
    """The `num_beams` best (beam, offer) pairs of each request; fewer where there are fewer pairs."""
    _, beams, width = offers.log_p_BKF.shape
    kept = offers.log_p_BKF
    slot_BKF: Tensor | None = None
    if beams * width > _FLAT_CANDIDATES:
        kept, slot_BKF = kept.topk(min(num_beams, width), dim=-1)  # the best K of each row contain the best K of all rows
        width = kept.shape[2]
    total = (scores_BK[:, :, None] + kept).flatten(1)
    best, at = total.topk(min(num_beams, total.shape[1]), dim=-1)
    parent, slot = at // width, at % width
    if slot_BKF is not None:
        slot = slot_BKF.flatten(1).gather(1, at)
    code = slot
    if offers.code_BKF is not None:
        code = offers.code_BKF.flatten(1).gather(1, parent * offers.code_BKF.shape[2] + slot)
    return Selection(scores_BK=best, parent_BK=parent, slot_BK=slot, code_BK=code)
