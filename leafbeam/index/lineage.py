"""How a bitmap was made from others, so that a device that holds those need not be sent it whole. Shapes: n changed words."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Operator = Literal["and", "or", "minus"]
# What is remembered of a bitmap is small, whatever is done with it.
_MAX_STEPS, _MAX_CHAINS, _MAX_DEPTH = 8, 4, 8
_KEY_BYTES = 16


class Step(NamedTuple):
    """The key of an earlier bitmap, and the words (n,) in which the next one of its chain may differ from it."""

    key: bytes
    words_n: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lineage:
    """The origin of a bitmap: a key, and what it was made of.

    Args:
        key: The same for bitmaps that were made in the same way from the same bitmaps; bitmaps that differ have other keys.
        parts: An operator and the lineages of its operands, if that is how the bitmap was made.
        chains: Earlier bitmaps that differ in some words, the latest first. A bitmap may differ from an earlier one
            only in the words of the steps up to that one.
        depth: The number of operators within each other.
    """

    key: bytes = field(default_factory=partial(os.urandom, _KEY_BYTES))
    parts: tuple[Operator, Lineage, Lineage] | None = None
    chains: tuple[tuple[Step, ...], ...] = ()
    depth: int = 0

    @classmethod
    def of_full(cls, size: int) -> Lineage:
        """Return the lineage of all positions below `size`."""
        return cls(key=_digest("full", size.to_bytes(8)))

    @classmethod
    def combined(cls, operator: Operator, left: Lineage, right: Lineage) -> Lineage:
        """Return the lineage of two combined bitmaps. A change of one of them changes the result in the same words."""
        chains = [
            *(tuple(Step(_digest(operator, step.key, right.key), step.words_n) for step in chain) for chain in left.chains),
            *(tuple(Step(_digest(operator, left.key, step.key), step.words_n) for step in chain) for chain in right.chains),
        ]
        depth = 1 + max(left.depth, right.depth)
        return cls(
            key=_digest(operator, left.key, right.key),
            parts=(operator, left, right) if depth <= _MAX_DEPTH else None,
            chains=tuple(chains[:_MAX_CHAINS]),
            depth=depth if depth <= _MAX_DEPTH else 0,
        )

    def changed(self, words_n: NDArray[np.int64]) -> Lineage:
        """Return the lineage of a bitmap that differs from this one in some words."""
        step = Step(self.key, words_n)
        return Lineage(chains=tuple((step, *chain[: _MAX_STEPS - 1]) for chain in self.chains or ((),)))

    def grouped(self, group_indptr: NDArray[np.uint32]) -> Lineage:
        """Return the lineage of `Bitmap.any_by_group`."""
        number = len(group_indptr).to_bytes(8)
        chains = (
            tuple(Step(_digest("group", step.key, number), _words_of_groups(step.words_n, group_indptr)) for step in chain)
            for chain in self.chains
        )
        return Lineage(key=_digest("group", self.key, number), chains=tuple(chains))


def _digest(name: str, *parts: bytes) -> bytes:
    return blake2b(b"|".join((name.encode(), *parts)), digest_size=_KEY_BYTES).digest()


def _words_of_groups(words_n: NDArray[np.int64], group_indptr: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the words that hold the groups of 64 positions each; these are at most 64 groups, in at most two words."""
    ends_n2 = np.stack([64 * words_n, np.minimum(64 * words_n + 63, int(group_indptr[-1]) - 1)], axis=1)
    groups_n2 = np.searchsorted(group_indptr, ends_n2.astype(group_indptr.dtype), side="right") - 1
    return np.unique(groups_n2 >> 6)
