"""A retriever of text as the teacher of a model over Semantic IDs, so that the model knows the codes of new items.

    pseudo-histories: a part of a training history, and a new item drawn from the retriever's scores after it
    soft targets: after such a part, the retriever's distribution over the new items; elsewhere an item memory's

The retriever learns from training interactions alone, and new items lend it their text, which a catalog has before anybody
takes them. No interaction of a new item is read (sequence-level distillation: Kim and Rush, 2016).

Shapes: U users, N items, C new items, B windows of a batch, T items of each, P targets, R items of a soft target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.studies.retriever import DenseRetriever
from leafbeam.errors import ArgumentError
from leafbeam.train import Histories
from leafbeam.train.teacher import SoftTargets, Teacher

__all__ = ["TeacherRecipe", "TextTeacher", "with_pseudo_histories"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherRecipe:
    """How much is distilled.

    copies: pseudo-histories of each training history, each with a draw of its own. sharpness: of the retriever's distribution,
    1 is its own. soft_items: how many items a soft target names. max_items: the longest history that the retriever reads.
    """

    copies: int = 8
    sharpness: float = 1.0
    soft_items: int = 60
    max_items: int = 20

    def __post_init__(self) -> None:
        if min(self.copies, self.soft_items, self.max_items) < 1 or self.sharpness <= 0:
            raise ArgumentError(f"{self}: copies, soft_items and max_items are at least 1, and sharpness above 0")


class TextTeacher:
    """Soft targets for histories that end in a new item (`leafbeam.train.teacher.Teacher`).

    retriever: scores new items after a history. others: the teacher of all other targets.
    """

    def __init__(
        self, retriever: DenseRetriever, cold_items: NDArray[np.int64], others: Teacher | None, recipe: TeacherRecipe
    ) -> None:
        self._retriever, self._cold_C, self._others, self._recipe = retriever, cold_items, others, recipe
        self._items_ND = retriever.all_items()
        self._scale = recipe.sharpness * float(retriever.log_scale.detach().clamp(max=4.0).exp())

    @property
    def cold_items(self) -> NDArray[np.int64]:
        """The rows of the new items, ascending."""
        return self._cold_C

    @torch.inference_mode()
    def probabilities(self, histories: Histories) -> NDArray[np.float32]:
        """The distribution over the new items after each history: (U, C)."""
        max_items = self._recipe.max_items
        scores_UC = self._retriever.scores(histories, self._cold_C, max_items=max_items, items_ND=self._items_ND)
        return torch.softmax(torch.from_numpy(scores_UC * self._scale), dim=1).numpy()

    def targets(self, items_BT: NDArray[np.integer], first: int = 0) -> SoftTargets:
        """For each item of the windows from position `first` on; a new item is the last of its window."""
        windows, length = items_BT.shape
        width = self._recipe.soft_items
        found = SoftTargets(
            np.zeros((windows * (length - first), width), np.int32), np.zeros((windows * (length - first), width), np.float32)
        )
        if self._others is not None:
            items_PR, weights_PR = self._others.targets(items_BT, first)
            columns = min(width, items_PR.shape[1])
            found.items_PR[:, :columns], found.weights_PR[:, :columns] = items_PR[:, :columns], weights_PR[:, :columns]
        rows_X = np.flatnonzero(np.isin(items_BT[:, -1], self._cold_C)) if length > 1 else np.empty(0, np.int64)
        if len(rows_X):
            before_XT = items_BT[rows_X, :-1]
            ends_X1 = np.arange(len(rows_X) + 1) * (length - 1)
            items_E = before_XT.reshape(-1).astype(np.int32)
            histories = Histories(indptr_U1=ends_X1, items_E=items_E, times_E=np.zeros(before_XT.size, np.int64))
            probabilities_XC = self.probabilities(histories)
            best_XR = np.argsort(-probabilities_XC, axis=1, kind="stable")[:, :width]
            weights_XR = np.take_along_axis(probabilities_XC, best_XR, axis=1)
            last_X = (rows_X + 1) * (length - first) - 1
            found.items_PR[last_X], found.weights_PR[last_X] = 0, 0
            found.items_PR[last_X, : best_XR.shape[1]] = self._cold_C[best_XR]
            found.weights_PR[last_X, : best_XR.shape[1]] = weights_XR / weights_XR.sum(axis=1, keepdims=True)
        return found


def with_pseudo_histories(train: Histories, teacher: TextTeacher, recipe: TeacherRecipe, *, seed: int) -> Histories:
    """The training histories, and `copies` of each, cut after a random item and ended by a new one that the teacher draws."""
    rng = np.random.default_rng([seed, 13])
    users_X = np.tile(np.flatnonzero(train.lengths_U), recipe.copies)
    kept_X = rng.integers(1, train.lengths_U[users_X] + 1)
    parts = train.select(users_X)
    before_E = np.arange(len(parts.items_E)) - parts.indptr_U1[parts.users_E]
    parts = parts.filter(before_E < kept_X[parts.users_E])
    drawn_X = np.empty(len(users_X), np.int64)
    for begin in range(0, len(users_X), 4096):
        chosen = np.arange(begin, min(begin + 4096, len(users_X)))
        sums_XC = np.cumsum(teacher.probabilities(parts.select(chosen)), axis=1)
        index_X = (sums_XC < (rng.random(len(chosen)) * sums_XC[:, -1])[:, None]).sum(axis=1)
        drawn_X[chosen] = teacher.cold_items[index_X]
    ends_X = parts.indptr_U1[1:]
    return Histories(
        indptr_U1=np.concatenate([train.indptr_U1, len(train.items_E) + ends_X + np.arange(1, len(ends_X) + 1)]),
        items_E=np.concatenate([train.items_E, np.insert(parts.items_E, ends_X, drawn_X)]),
        times_E=np.concatenate([train.times_E, np.insert(parts.times_E, ends_X, parts.times_E[ends_X - 1])]),
    )
