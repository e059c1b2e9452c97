"""A trie as the constraint of a model that returns hidden states: its head is multiplied here, for legal codes where that pays.

    every round: the logits of all codes of the level, or the legal children of every beam and `ops.head` for these alone (with
    scoring "full" in blocks, without a table of all logits), whichever is expected to take less time

Shapes: B requests, K beams, R = B x K rows, V codes of a level, D hidden, C legal codes of all rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import BatchBoosts, Launch, TrieConstraint, check_logits
from leafbeam.decode.model_calls import JumpForward
from leafbeam.errors import ArgumentError
from leafbeam.ops.backend import BoundIndex, to_kind_of, to_numpy
from leafbeam.ops.constrain import AnyArray, Beams, Scoring
from leafbeam.ops.constrain.cpu.ragged import extend_ragged
from leafbeam.ops.head import HeadCosts, Workload

# Nanoseconds of a round over listed children beyond their products: once, and for each child.
_ROUND, _CHILD = 80_000.0, 30.0
_FUSED = 0.05  # the share of a product that is saved where its blocks are summed while they are in the cache


class Head(NamedTuple):
    """The head of a model. weights: for each level (V, D). costs: of the machine that multiplies it; None: the defaults."""

    weights: Sequence[Any]
    costs: HeadCosts | None


class HeadConstraint(TrieConstraint):
    """A `TrieConstraint` for a model that returns hidden states (B, K, D). Its further arguments:

    head: the weights, on the device of the beams. filters: the batch's, bound.
    """

    def __init__(
        self,
        config: SearchConfig,
        hi_SB: AnyArray,
        launch: Launch,
        suffix: Callable[[int, Beams[AnyArray]], JumpForward | None],
        boosts: BatchBoosts | None = None,
        *,
        bound: BoundIndex,
        filters: Any,
        head: Head,
    ) -> None:
        super().__init__(config, hi_SB, launch, suffix, boosts)
        if bound.name not in ("cpu", "triton"):
            raise ArgumentError(f"head is multiplied on backends 'cpu' and 'triton', not {bound.name!r}: return logits there")
        self._bound, self._filters = bound, filters
        weights = _checked(head.weights, config.code_sizes)
        self._head = weights if bound.name == "cpu" else [to_kind_of(weight_VD, hi_SB) for weight_VD in weights]
        self._ops: Any = importlib.import_module(f"leafbeam.ops.head.{bound.name}")
        self._costs = head.costs or (HeadCosts() if bound.name == "cpu" else self._ops.DEVICE_COSTS)

    def step(self, number: int, beams: Beams[AnyArray], logits: Any) -> Beams[Any]:
        weight_VD = self._head[number]
        shape = *beams.scores.shape, weight_VD.shape[1]
        hidden_BKD = check_logits(logits, number, shape, beams.scores, "hidden states")
        if self.boosts is not None or not self._pays(beams, weight_VD):  # boosts are added where all codes have logits
            return super().step(number, beams, dense_logits(hidden_BKD, weight_VD))
        children = self._bound.children(number, beams, self._filters)
        codes = children.legal.map(lambda array: to_kind_of(array, beams.lo))
        logits = self._ops.head(hidden_BKD.reshape(-1, shape[2]), weight_VD, codes, self.config.scoring, costs=self._costs)
        finished_BK = self.finished(beams) if number else None
        slots_BK, best_BK = extend_ragged(
            children.legal,
            to_numpy(logits.logit_C),
            to_numpy(logits.lse_R),
            to_numpy(beams.scores),
            num_beams=self.config.num_beams[number],
            ended_BK=None if finished_BK is None else to_numpy(finished_BK),
            where=f"at level {number}",
        )
        best = children.beams_at(slots_BK, best_BK)
        return Beams(**{name: to_kind_of(array, beams.lo) for name, array in vars(best).items()})

    def _pays(self, beams: Beams[AnyArray], weight_VD: AnyArray) -> bool:
        """Return whether multiplying only legal codes is expected to be faster; a beam's leaves stand for its legal codes."""

        def num_legal() -> int:
            leaves_BK = (to_numpy(beams.hi) - to_numpy(beams.lo)).sum(0)
            return int(np.minimum(leaves_BK, len(weight_VD)).sum())

        return listing_pays(self._costs, self.config.scoring, prod(beams.scores.shape), weight_VD, num_legal)


def dense_logits(hidden_BKD: AnyArray, weight_VD: Any) -> Any:
    """Return the logits (B, K, V) of all codes, on the weight's device. Raises ArgumentError for dtypes that do not fit."""
    hidden_BKD = to_kind_of(hidden_BKD, weight_VD)
    if hasattr(weight_VD, "detach") and hidden_BKD.dtype != weight_VD.dtype:
        raise ArgumentError(f"hidden states are {hidden_BKD.dtype} and the head is {weight_VD.dtype}: expected one dtype")
    return hidden_BKD @ weight_VD.T


def listing_pays(costs: HeadCosts, scoring: Scoring, rows: int, weight_VD: AnyArray, num_legal: Callable[[], int]) -> bool:
    """Return whether listing the legal codes and multiplying only these is expected to be faster than multiplying all codes.

    num_legal: returns the number of legal codes; called only if it may matter, because it may wait for a device.
    """
    codes, hidden = weight_VD.shape
    dense = costs.dense_at(rows) * codes * hidden
    if dense < _ROUND:
        return False
    legal = num_legal()
    listing = _ROUND + _CHILD * legal
    if scoring == "full":  # needs every code
        return listing < _FUSED * dense
    expected = costs.nanoseconds(Workload(rows=rows, codes=codes, hidden=hidden, legal=legal, distinct=min(legal, codes)))
    return min(expected["gather"], expected["tokens"]) + listing < costs.margin * expected["dense"]


def _checked(head: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The weights without gradients. Raises ArgumentError unless there is a row for each code of each level."""
    shapes = [tuple(getattr(weight, "shape", ())) for weight in head]
    if [shape[:1] for shape in shapes] != [(size,) for size in sizes] or {len(shape) for shape in shapes} != {2}:
        wanted = ", ".join(f"({size:,}, D)" for size in sizes)
        raise ArgumentError(f"head has weights of shapes {shapes}: expected one for each level, {wanted}")
    return [weight.detach() if hasattr(weight, "detach") else weight for weight in head]
