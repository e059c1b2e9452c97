"""Exact scores of every item of a small allowed set: the ranking that a beam search approximates.

Shapes: B requests, C allowed items, M nodes of a level, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import beams_of_levels
from leafbeam.decode.constraint import check_logits
from leafbeam.decode.model_calls import StepFn
from leafbeam.errors import ArgumentError, LogitsError, check_choice
from leafbeam.index import Trie
from leafbeam.index.items import ItemIds
from leafbeam.ops import backend as backends
from leafbeam.ops.head.types import Normalize

__all__ = ["ExactScoring", "SearchChoice", "choose_search"]


class ExactScoring:
    """Scores all items of a set by teacher forcing over the tree of their codes.

    Each level asks the model once for every prefix of the set, however many items share it. The model reads `rows` rows a
    request where a beam search with K beams reads at most K a level.

        for each level:
            log p(code of each node | its parent) from the parent's row of logits
            score of a node = score of its parent + that
        score of an item = score of its SID

    item_ids: the allowed items, each once; ItemIdError for one that the index lacks. scoring: as in `BeamSearch`: "full"
    normalises over the level's codebook, "allowed" over those codes of a node that lead to an item of the set.

    >>> exact = ExactScoring(index, item_ids=["B0042", "B0913"])
    >>> scores_BC = exact.run(model.start(tokens_BT).step_fn, batch_size=1)
    """

    def __init__(self, index: Trie, item_ids: ItemIds, scoring: Normalize = "full") -> None:
        check_choice("scoring", scoring, Normalize)
        codes_CL = np.asarray(index.codes_of(item_ids), np.int64)
        if len(codes_CL) == 0:
            raise ArgumentError("there is no item to score: the allowed set is empty")
        self.scoring: Normalize = scoring
        self.codebook_sizes = tuple(index.codebook_sizes)
        self.num_items = len(codes_CL)
        self._codes: list[NDArray[np.int64]] = []  # of each level's nodes, in the order of (parent, code)
        self._parents: list[NDArray[np.int64]] = []
        node_C = np.zeros(len(codes_CL), np.int64)
        for level, size in enumerate(self.codebook_sizes):
            keys_M, node_C = np.unique(node_C * size + codes_CL[:, level], return_inverse=True)
            self._parents.append(keys_M // size)
            self._codes.append(keys_M % size)
        self._leaf_C = node_C.reshape(-1)

    @property
    def nodes_per_level(self) -> tuple[int, ...]:
        """How many different prefixes of each length the set has."""
        return tuple(len(codes_M) for codes_M in self._codes)

    @property
    def rows(self) -> int:
        """How many rows the model reads for a request after its prompt: the nodes of all levels but the last."""
        return sum(self.nodes_per_level[:-1])

    def run(self, step_fn: StepFn, batch_size: int = 1) -> NDArray[np.float32]:
        """log p of every item for each request, float32 (B, C), in the order of `item_ids`. L calls of `step_fn`.

        Raises LogitsError for logits that are NaN, +inf or of the wrong shape.
        """
        if batch_size < 1:
            raise ArgumentError(f"batch_size={batch_size}: at least 1")
        scores_BM = np.zeros((batch_size, 1), np.float32)
        codes = parents = sample = None
        for level, (code_M, parent_M) in enumerate(zip(self._codes, self._parents, strict=True)):
            logits = step_fn(codes, parents)
            sample = logits if sample is None else sample
            shape = (batch_size, scores_BM.shape[1], self.codebook_sizes[level])
            logits_BKV = check_logits(logits, level, shape, scores_BM)
            if not (logits_BKV < np.inf).all():  # false for NaN, too
                raise LogitsError(f"the model gave NaN or +inf at level {level}: -inf is the only logit that is no number")
            scores_BM = scores_BM[:, parent_M] + self._log_p(logits_BKV, parent_M, code_M)
            if level + 1 < len(self._codes):
                codes = backends.to_kind_of(np.array(np.broadcast_to(code_M, scores_BM.shape)), sample)
                parents = backends.to_kind_of(np.array(np.broadcast_to(parent_M, scores_BM.shape)), sample)
        return scores_BM[:, self._leaf_C].astype(np.float32)

    def _log_p(
        self, logits_BKV: NDArray[np.float32], parent_M: NDArray[np.int64], code_M: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """The log-probability of each node given its parent, -inf where the model excludes all that it could be."""
        taken_BM = logits_BKV[:, parent_M, code_M]
        if self.scoring == "full":
            most_BK = logits_BKV.max(axis=2)
            sums_BK = np.exp(logits_BKV - _finite(most_BK)[..., None]).sum(axis=2)
        else:
            first_K = np.searchsorted(parent_M, np.arange(logits_BKV.shape[1]))  # children of a node lie side by side
            most_BK = np.maximum.reduceat(taken_BM, first_K, axis=1)
            sums_BK = np.add.reduceat(np.exp(taken_BM - _finite(most_BK)[:, parent_M]), first_K, axis=1)
        log_sums_BK = _finite(most_BK) + np.log(np.maximum(sums_BK, np.finfo(np.float32).tiny))
        return taken_BM - log_sums_BK[:, parent_M]


def _finite(most: NDArray[np.float32]) -> NDArray[np.float32]:
    """0 in place of -inf, so that nothing is taken from itself at infinity."""
    return np.where(most == -np.inf, np.float32(0), most)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchChoice:
    """The method chosen, and the rows that the model would read for a request with either."""

    method: Literal["exact", "beam"]
    exact_rows: int
    beam_rows: int

    def __str__(self) -> str:
        other = "a beam search" if self.method == "exact" else "exact scoring"
        rows, other_rows = (self.exact_rows, self.beam_rows) if self.method == "exact" else (self.beam_rows, self.exact_rows)
        return f"{self.method}: {rows:,} rows a request, {other} would read {other_rows:,}"


def choose_search(
    exact: ExactScoring, num_beams: int | Sequence[int] = 20, *, most_rows: int | None = None, factor: float = 1.0
) -> SearchChoice:
    """Exact scoring where it costs at most `factor` times a beam search (or `most_rows` rows, if given), else the beam search.

    Costs are rows that the model reads after the prompt. A beam search never holds more beams than the set has prefixes, so
    with factor 1 exact scoring is chosen where the beams could not have dropped anything.
    """
    if factor <= 0 or (most_rows is not None and most_rows < 0):
        raise ArgumentError(f"factor={factor}, most_rows={most_rows}: a positive number, and none or at least 0")
    nodes = exact.nodes_per_level
    beams = beams_of_levels(num_beams, len(nodes))
    beam_rows = sum(min(width, count) for width, count in zip(beams[:-1], nodes[:-1], strict=True))
    limit = factor * beam_rows if most_rows is None else most_rows
    return SearchChoice(method="exact" if exact.rows <= limit else "beam", exact_rows=exact.rows, beam_rows=beam_rows)
