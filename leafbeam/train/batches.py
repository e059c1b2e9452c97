"""Histories cut into windows and put into batches of one length each, so that nothing is padding.

Shapes: U users, E interactions, W windows, B histories of a batch, T items of a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train.data import Histories

__all__ = ["Batches"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batches:
    """The order in which training reads the histories: a function of the seed and the epoch, and of nothing else.

    Think of an epoch as a shuffled deck: every history is a card (a longer one than `max_items` + 1 is cut into several,
    at places drawn anew each epoch), cards of one length are dealt into hands of about `batch_tokens` tokens, and the
    hands are shuffled. Each interaction is a target once an epoch, those at a cut twice. Histories of one item train the
    prediction without a history; empty ones have nothing to train.

    num_levels: tokens of an item. last_only: for models that learn one item a window, its last: every interaction is then the
    end of a window of its own, with up to `max_items` before it (TIGER's sliding windows).
    """

    histories: Histories
    max_items: int
    num_levels: int
    batch_tokens: int
    seed: int
    last_only: bool = False

    def __post_init__(self) -> None:
        for name in ("max_items", "num_levels", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if len(self.histories.items_E) == 0:
            raise DataError("no user has an item to train on: every history is empty")

    def epoch(self, epoch: int) -> "Epoch":
        """The batches of one pass. Linear in the interactions, no Python loop over users."""
        rng = np.random.default_rng([self.seed, epoch])
        starts_W, lengths_W = self._windows(rng)
        shuffled_W = rng.permutation(len(starts_W))
        order_W = shuffled_W[np.argsort(lengths_W[shuffled_W], kind="stable")]
        starts_W, lengths_W = starts_W[order_W], lengths_W[order_W]
        edges = np.flatnonzero(np.diff(lengths_W, prepend=0, append=0))  # where the length changes
        spans = [
            (first, min(first + self._histories_of(int(lengths_W[low])), high))
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            for first in range(low, high, self._histories_of(int(lengths_W[low])))
        ]
        order = rng.permutation(len(spans))
        return Epoch(
            items_E=self.histories.items_E,
            indptr_U1=self.histories.indptr_U1,
            starts_W=starts_W,
            lengths_W=lengths_W,
            spans=tuple(spans[place] for place in order.tolist()),
        )

    def _histories_of(self, length: int) -> int:
        return max(1, self.batch_tokens // (length * self.num_levels))

    def _windows(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each window begins, and its length: windows of max_items + 1 items that overlap by one, or one an item."""
        indptr_U1, lengths_U = self.histories.indptr_U1, self.histories.lengths_U
        stride, width = self.max_items, self.max_items + 1
        if self.last_only:
            end_W = np.arange(len(self.histories.items_E)) + 1
            first_W = np.maximum(np.repeat(indptr_U1[:-1], lengths_U), end_W - width)
            return first_W, end_W - first_W
        cut_U = np.where(lengths_U > width, rng.integers(0, stride, len(lengths_U)), 0)
        windows_U = np.maximum(-(-(lengths_U + cut_U - width) // stride), 0) + 1
        users_W = np.repeat(np.arange(len(lengths_U)), windows_U)
        place_W = np.arange(len(users_W)) - np.repeat(np.cumsum(windows_U) - windows_U, windows_U)
        first_W = place_W * stride - cut_U[users_W]
        last_W = np.minimum(first_W + width, lengths_U[users_W])
        first_W = np.maximum(first_W, 0)
        # A later window of one item would show the model an item of the middle as if it were somebody's first.
        keep_W = (last_W - first_W > 1) | ((lengths_U[users_W] == 1) & (place_W == 0))
        return (indptr_U1[users_W] + first_W)[keep_W], (last_W - first_W)[keep_W]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Epoch:
    """The batches of one pass, made when asked for: `epoch[i]` is an array (B, T) of item rows, oldest first."""

    items_E: NDArray[np.int32]
    indptr_U1: NDArray[np.int64]
    starts_W: NDArray[np.int64]
    lengths_W: NDArray[np.int64]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        """How many batches."""
        return len(self.spans)

    def __getitem__(self, batch: int) -> NDArray[np.int32]:
        first, last = self.spans[batch]
        return self.items_E[self.starts_W[first:last, None] + np.arange(self.lengths_W[first])]

    def users(self, batch: int) -> NDArray[np.int64]:
        """Whose windows `epoch[batch]` holds: (B,), places in the histories."""
        first, last = self.spans[batch]
        return np.searchsorted(self.indptr_U1, self.starts_W[first:last], side="right") - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[batch] for batch in range(len(self)))
