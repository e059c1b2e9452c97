"""Beam search without any constraint: the floor that the paper measures overhead from (STATIC §5.2, method 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from benchmarks.peers.peer import Offers, Selection

__all__ = ["Unconstrained"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Unconstrained:
    """Every code may follow every prefix; it returns SIDs that no item has."""

    exact: bool = False
    nbytes: int = 0

    def root(self, batch_size: int) -> None:
        """Nothing: an unconstrained search has no state."""

    def mask_step(self, state: None, log_p_BKV: Tensor) -> tuple[None, Offers]:
        """Offer everything."""
        return None, Offers(log_p_BKF=log_p_BKV)

    def advance(self, pending: None, best: Selection) -> None:
        """Nothing: an unconstrained search has no state."""
