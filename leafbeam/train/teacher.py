"""Soft targets of training, and MemoryTeacher, which makes them from an item memory of the same histories.

Shapes: N items, C counted pairs, M similar texts, B windows of a batch, T items of each, P = B x (T - first) targets, R items
of a soft target.
"""

# numba has no types.
# pyright: basic, reportCallIssue=false

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit
from leafbeam.retrieve import ItemMemory
from leafbeam.retrieve.text import NearestTexts
from leafbeam.retrieve.transitions import count_pairs
from leafbeam.train.histories import Histories

_SHARPNESS = 5.0  # chosen on validation users of Amazon Beauty
_NUM_TEXTS = 100  # similar ones of an item


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


class MemoryTeacher:
    """The items that an item memory recommends, without what it learnt from the pair that is to be predicted.

    for each position, over the newest items of the window, each older one at `history_decay`:
        score(item) += log(1 + count(pair)) / (shrinkage + the largest of its row) + text_weight * cosine(texts)
                       where the count of (that item, target) lacks the pair itself
    drop the items of the window before the position, keep the `num_targets` largest
    weight(item) = exp(sharpness * score) - 1, scaled to sum 1; none where the target is an item that was taken before

    A log has one next item for each position, and the memory knows many that were as likely (distillation: Hinton et al.,
    2015).

    Args:
        memory: A memory of `histories`, whose rows are theirs.
        histories: The histories of training.
        num_targets: The number of items of a target.
        texts: Whether the similarity of texts counts.
    """

    def __init__(self, memory: ItemMemory, histories: Histories, *, num_targets: int, texts: bool = True) -> None:
        text_weight = memory.config.text_weight if texts else 0.0
        self._config, self._num_targets = replace(memory.config, half_life_days=None, text_weight=text_weight), num_targets
        pairs = count_pairs(histories.indptr_U1, histories.items_E, memory.num_items, self._config)
        none = NearestTexts(np.zeros((memory.num_items, 0), np.int32), np.zeros((memory.num_items, 0), np.float32))
        nearest = memory.texts.nearest(_NUM_TEXTS) if text_weight else none
        largest_N, logs_C = np.zeros(memory.num_items, np.float32), np.log1p(pairs.counts_C).astype(np.float32)
        np.maximum.at(largest_N, pairs.rows_C, logs_C)
        scale_N = (1 / np.maximum(largest_N + memory.config.shrinkage, 1e-9)).astype(np.float32)  # an item may have no pairs
        self._graph = _Graph(
            indptr_N1=np.searchsorted(pairs.rows_C, np.arange(memory.num_items + 1)),
            items_C=pairs.items_C.astype(np.int32),
            counts_C=pairs.counts_C.astype(np.float32),
            scores_C=(logs_C * scale_N[pairs.rows_C]).astype(np.float32),
            scale_N=scale_N,
            **nearest._asdict(),
        )
        self._scratch_N = np.zeros(memory.num_items, np.float32)
        self.targets(np.zeros((1, 2), np.int32))  # compiles, which is no part of a training's minutes

    def targets(self, items_BT: NDArray[np.integer], first: int = 0) -> SoftTargets:
        """Return the targets of each item of the windows from position `first` on.

        Each reads and sorts `history` rows of transitions and of similar texts.
        """
        config = self._config
        shape = items_BT.shape[0] * (items_BT.shape[1] - first), self._num_targets
        targets = SoftTargets(np.zeros(shape, np.int32), np.zeros(shape, np.float32))
        weights = _Weights(config.history, config.history_decay, config.distances, config.distance_decay, config.text_weight)
        _targets(items_BT.astype(np.int32), first, self._graph, self._scratch_N, weights, targets)
        return targets


class _Graph(NamedTuple):
    """The transitions of each item, the entries of one item side by side, and the items of similar texts. A score is
    log(1 + count) times the item's scale.
    """

    indptr_N1: NDArray[np.int64]
    items_C: NDArray[np.int32]
    counts_C: NDArray[np.float32]
    scores_C: NDArray[np.float32]
    scale_N: NDArray[np.float32]
    rows_NM: NDArray[np.int32]
    cosines_NM: NDArray[np.float32]


class _Weights(NamedTuple):
    """The fields of `MemoryConfig` that the teacher uses."""

    history: int
    history_decay: float
    distances: int
    distance_decay: float
    text_weight: float


@njit(cache=True, nogil=True)
def _targets(items_BT, first, graph, scratch_N, weights, targets):
    touched_N = np.empty(scratch_N.size, np.int32)
    for b in range(items_BT.shape[0]):
        for t in range(max(first, 1), items_BT.shape[1]):
            if (items_BT[b, :t] == items_BT[b, t]).any():
                continue  # taken again
            num_touched = _score(items_BT[b, : t + 1], graph, weights, scratch_N, touched_N)
            p = b * (items_BT.shape[1] - first) + t - first
            _keep_largest(scratch_N, touched_N[:num_touched], targets.items_PR[p], targets.weights_PR[p])


@njit(cache=True, nogil=True)
def _score(items_T, graph, weights, scratch_N, touched_N):
    """Add up the scores of the items after all but the last of a window, which is the target, in `scratch_N`; return how many
    items were touched.
    """
    target, decay, num_touched = items_T[-1], np.float32(1), 0
    for back in range(min(weights.history, items_T.size - 1)):
        row = items_T[items_T.size - 2 - back]
        own = np.float32(weights.distance_decay**back) if back < weights.distances else np.float32(0)
        for entry in range(graph.indptr_N1[row], graph.indptr_N1[row + 1]):
            item, score = graph.items_C[entry], graph.scores_C[entry]
            if item == target:
                count = graph.counts_C[entry] - own
                score = graph.scale_N[row] * np.log1p(count) if count > 1e-4 else np.float32(0)
            if score > 0:
                num_touched = _add(scratch_N, touched_N, num_touched, item, decay * score)
        for near in range(graph.rows_NM.shape[1]):
            item, cosine = graph.rows_NM[row, near], graph.cosines_NM[row, near]
            if cosine <= 0:
                break
            num_touched = _add(scratch_N, touched_N, num_touched, item, decay * np.float32(weights.text_weight) * cosine)
        decay *= np.float32(weights.history_decay)
    for item in items_T[:-1]:
        scratch_N[item] = 0
    return num_touched


@njit(cache=True, nogil=True)
def _add(scratch_N, touched_N, num_touched, item, score):
    """Add to the score of an item, and note an item that had none; return how many are noted."""
    if scratch_N[item] == 0:
        touched_N[num_touched] = item
        num_touched += 1
    scratch_N[item] += score
    return num_touched


@njit(cache=True, nogil=True)
def _keep_largest(scratch_N, touched_n, items_R, weights_R):
    """Write the items of the largest scores and their weights, and clear the scores."""
    values_n = np.empty(touched_n.size, np.float32)
    for at in range(touched_n.size):
        values_n[at] = scratch_N[touched_n[at]]
        scratch_N[touched_n[at]] = 0
    if values_n.size > items_R.size:  # sorting few takes a fraction of the time
        is_large_n = _is_large(values_n, items_R.size)
        touched_n, values_n = touched_n[is_large_n], values_n[is_large_n]
    order = np.argsort(-values_n)[: items_R.size]
    total = np.float32(0)
    for at in range(order.size):
        items_R[at] = touched_n[order[at]]
        weights_R[at] = np.expm1(np.float32(_SHARPNESS) * values_n[order[at]])
        total += weights_R[at]
    if total > 0:
        weights_R /= total


@njit(cache=True, nogil=True)
def _is_large(values_n, num_kept):
    """Return which of the positive values are in the intervals, 256 from 0 to the largest, that hold the `num_kept` largest."""
    scale = np.float32(255) / values_n.max()
    counts, interval, num_above = np.zeros(256, np.int32), 256, 0
    for value in values_n:
        counts[int(value * scale)] += 1
    while num_above < num_kept:
        interval -= 1
        num_above += counts[interval]
    return values_n * scale >= interval
