"""Training batches without padding: histories cut into windows, windows of one length batched together.

Shapes: U users, E interactions, W windows, B windows of a batch, T items of a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import DataError, check_whole
from leafbeam.train.histories import Histories


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batches:
    """The batches of every epoch, which depend on the seed and the epoch alone.

    Histories longer than `max_items` + 1 are cut into windows at positions drawn anew each epoch; windows of one length are
    shuffled into batches of about `batch_tokens` tokens. Each interaction is a target once per epoch, or twice if it is
    at a cut.

    With `last_only`, for models that are trained only on the last item of a window, each interaction ends a window of
    its own, with up to `max_items` before it (TIGER's sliding windows).
    """

    histories: Histories
    max_items: int
    num_levels: int
    batch_tokens: int
    seed: int
    last_only: bool = False

    def __post_init__(self) -> None:
        check_whole(max_items=self.max_items, num_levels=self.num_levels, batch_tokens=self.batch_tokens)
        if len(self.histories.items_E) == 0:
            raise DataError("no user has an item to train on: every history is empty")

    def epoch(self, epoch: int) -> "Epoch":
        """Return the batches of one pass. The cost is linear in the interactions."""
        rng = np.random.default_rng([self.seed, epoch])
        starts_W, lengths_W = self._windows(rng)
        shuffled_W = rng.permutation(len(starts_W))
        order_W = shuffled_W[np.argsort(lengths_W[shuffled_W], kind="stable")]
        starts_W, lengths_W = starts_W[order_W], lengths_W[order_W]
        edges = np.flatnonzero(np.diff(lengths_W, prepend=0, append=0)).tolist()  # where the length changes
        spans: list[tuple[int, int]] = []
        for low, high in pairwise(edges):
            size = max(1, self.batch_tokens // (int(lengths_W[low]) * self.num_levels))
            spans += [(first, min(first + size, high)) for first in range(low, high, size)]
        ordered = tuple(spans[index] for index in rng.permutation(len(spans)).tolist())
        return Epoch(histories=self.histories, starts_W=starts_W, lengths_W=lengths_W, spans=ordered)

    def _windows(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and length of each window: max_items + 1 items that overlap by one, or one window per item."""
        indptr_U1, lengths_U = self.histories.indptr_U1, self.histories.lengths_U
        stride, width = self.max_items, self.max_items + 1
        if self.last_only:
            end_W = np.arange(len(self.histories.items_E)) + 1
            first_W = np.maximum(np.repeat(indptr_U1[:-1], lengths_U), end_W - width)
            return first_W, end_W - first_W
        cut_U = np.where(lengths_U > width, rng.integers(0, stride, len(lengths_U)), 0)
        windows_U = np.maximum(-(-(lengths_U + cut_U - width) // stride), 0) + 1
        users_W = np.repeat(np.arange(len(lengths_U)), windows_U)
        number_W = np.arange(len(users_W)) - np.repeat(np.cumsum(windows_U) - windows_U, windows_U)
        first_W = number_W * stride - cut_U[users_W]
        last_W = np.minimum(first_W + width, lengths_U[users_W])
        first_W = np.maximum(first_W, 0)
        # A later window of one item would train a middle item as if it were a user's first.
        keep_W = (last_W - first_W > 1) | ((lengths_U[users_W] == 1) & (number_W == 0))
        return (indptr_U1[users_W] + first_W)[keep_W], (last_W - first_W)[keep_W]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Epoch:
    """The batches of one pass, made on access: `epoch[i]` is an array (B, T) of item rows, oldest first."""

    histories: Histories
    starts_W: NDArray[np.int64]
    lengths_W: NDArray[np.int64]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.spans)

    def __getitem__(self, batch: int) -> NDArray[np.int32]:
        first, last = self.spans[batch]
        return self.histories.items_E[self.starts_W[first:last, None] + np.arange(self.lengths_W[first])]

    def users(self, batch: int) -> NDArray[np.int64]:
        """Return the users of the windows in `epoch[batch]`: (B,), indices into the histories."""
        first, last = self.spans[batch]
        return np.searchsorted(self.histories.indptr_U1, self.starts_W[first:last], side="right") - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[batch] for batch in range(len(self)))
