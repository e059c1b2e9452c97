"""Soft targets of training, and GraphTeacher, which makes them from the transitions between the items of all histories.

Shapes: N items, C counted pairs, B windows of a batch, T items of each, P = B x (T - first) targets, R items of a soft target.
"""

# numba has no types.
# pyright: basic, reportCallIssue=false

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit
from leafbeam.retrieve.transitions import MemoryConfig, count_pairs
from leafbeam.train.histories import Histories

_NEAR = MemoryConfig(distances=3, distance_decay=0.6, reverse=0.5)
"""Pairs further apart would make targets several times as costly."""


class SoftTargets(NamedTuple):
    """The items that may come next, and their weights.

    `items_PR` are int32 item rows, largest weight first. `weights_PR` is float32; each row has sum 1, or is zeros if nothing is
    known.
    """

    items_PR: NDArray[np.int32]
    weights_PR: NDArray[np.float32]


class Teacher(Protocol):
    """A source of items that may also come next, besides the item that did."""

    def targets(self, items_BT: NDArray[np.integer], first: int = 0) -> SoftTargets:
        """Return the targets of each item of the windows from position `first` on, from the items before it."""
        ...


class GraphTeacher:
    """The items that a transition graph expects next, without what it learnt from the pair that is to be predicted.

    for each position, over the newest items of the window, each older one at `history_decay`:
        weight(item) += count(pair) / the counts of its row     less the pair (newest item, target) itself, once
    drop the items of the window before the position, keep the `num_targets` largest, scale them to sum 1

    Training on the next item alone needs many passes before other likely items score high; soft targets name those items
    (distillation: Hinton et al., 2015, with a graph as the teacher).
    """

    def __init__(self, histories: Histories, num_items: int, *, num_targets: int, config: MemoryConfig = _NEAR) -> None:
        self._config, self._num_targets = config, num_targets
        pairs = count_pairs(histories.indptr_U1, histories.items_E, num_items, self._config)
        self._graph = _Graph(
            indptr_N1=np.searchsorted(pairs.rows_C, np.arange(num_items + 1)),
            items_C=pairs.items_C.astype(np.int32),
            counts_C=pairs.counts_C.astype(np.float32),
            sums_N=np.bincount(pairs.rows_C, pairs.counts_C, num_items).astype(np.float32),
        )
        self._scratch_N = np.zeros(num_items, np.float32)

    def targets(self, items_BT: NDArray[np.integer], first: int = 0) -> SoftTargets:
        """Return the targets of each item of the windows from position `first` on.

        Each reads and sorts `history` rows of the graph.
        """
        config = self._config
        shape = items_BT.shape[0] * (items_BT.shape[1] - first), self._num_targets
        targets = SoftTargets(np.zeros(shape, np.int32), np.zeros(shape, np.float32))
        decays = _Decays(config.history, config.history_decay, config.distances, config.distance_decay)
        _targets(items_BT.astype(np.int32), first, self._graph, self._scratch_N, decays, targets)
        return targets


class _Graph(NamedTuple):
    """The transitions of each item, the entries of one item side by side, and the sum of each item's counts."""

    indptr_N1: NDArray[np.int64]
    items_C: NDArray[np.int32]
    counts_C: NDArray[np.float32]
    sums_N: NDArray[np.float32]


class _Decays(NamedTuple):
    """The lengths and decays of `MemoryConfig` that the teacher uses."""

    history: int
    history_decay: float
    distances: int
    distance_decay: float


@njit(cache=True, nogil=True)
def _targets(items_BT, first, graph, scratch_N, decays, targets):
    out_PR, weights_PR = targets.items_PR, targets.weights_PR
    num_targets = out_PR.shape[1]
    touched = np.empty(scratch_N.size, np.int32)
    for b in range(items_BT.shape[0]):
        for t in range(max(first, 1), items_BT.shape[1]):
            p = b * (items_BT.shape[1] - first) + t - first
            target, weight, num_touched = items_BT[b, t], np.float32(1), 0
            for back in range(min(decays.history, t)):
                row = items_BT[b, t - 1 - back]
                own = np.float32(decays.distance_decay**back) if back < decays.distances else np.float32(0)
                total = graph.sums_N[row] - own
                if total > 1e-4:
                    for entry in range(graph.indptr_N1[row], graph.indptr_N1[row + 1]):
                        item, count = graph.items_C[entry], graph.counts_C[entry]
                        if item == target:
                            count -= own
                        if count > 1e-4:
                            if scratch_N[item] == 0:
                                touched[num_touched] = item
                                num_touched += 1
                            scratch_N[item] += weight * count / total
                weight *= np.float32(decays.history_decay)
            for s in range(t):
                scratch_N[items_BT[b, s]] = 0
            values = np.empty(num_touched, np.float32)
            for at in range(num_touched):
                values[at] = scratch_N[touched[at]]
                scratch_N[touched[at]] = 0
            order = np.argsort(-values)[:num_targets]
            total = values[order].sum()
            if total > 0:
                for at in range(order.size):
                    out_PR[p, at] = touched[order[at]]
                    weights_PR[p, at] = values[order[at]] / total
