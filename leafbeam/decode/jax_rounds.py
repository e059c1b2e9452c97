"""A whole constrained beam search as a function that JAX traces: model, constraint and selection, round after round.

    for each level: (carry, logits) = step_fn(carry, codes, parents, level); beams = extend(logits)

The rounds are unrolled, because each level of an index has sizes of its own.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from leafbeam.errors import LogitsError
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.fixed_shape.jax import LevelArrays, LevelFilters, extend

__all__ = ["NOT_BAD", "JaxStepFn", "Plan", "Ranked", "beam_search", "filter_specs", "search"]

Array = jax.Array
JaxStepFn = Callable[[Any, Array | None, Array | None, int], tuple[Any, Array]]
NOT_BAD = -1


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """What a search found, on the device, best first; beyond `num_valid_B` scores are -inf and all else is 0.

    scores_BK: float32. codes_BKL: int32. lo_SBK, hi_SBK: int32, the leaf in each segment, (0, 0) where it has none.
    num_valid_B: int32. bad_B2: int32, (level, beam) of the first row of each request that held NaN or +inf, -1 for none.
    """

    scores_BK: Array
    codes_BKL: Array
    lo_SBK: Array
    hi_SBK: Array
    num_valid_B: Array
    bad_B2: Array


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a search is compiled for, beside its arrays' sizes."""

    widths: tuple[int, ...]
    scoring: Scoring
    end_code: int | None
    mesh: Mesh | None
    axis: str


def beam_search(
    levels: Sequence[tuple[LevelArrays, ...]],
    filters: Sequence[tuple[LevelFilters, ...]],
    hi_SB: Array,
    step_fn: JaxStepFn,
    carry: Any,
    *,
    widths: Sequence[int],
    scoring: Scoring,
    end_code: int | None = None,
) -> Ranked:
    """The whole search inside a traced function. hi_SB: each request's root range is (0, hi); the rest as in JaxBeamSearch."""
    num_segments, batch_size = hi_SB.shape
    empty = jnp.zeros((batch_size, 1), jnp.float32)
    beams: Beams[Array] = Beams(
        scores=jnp.where((hi_SB > 0).any(axis=0)[:, None], empty, -jnp.inf),
        parent=empty.astype(jnp.int32),
        code=empty.astype(jnp.int32),
        lo=jnp.zeros((num_segments, batch_size, 1), jnp.int32),
        hi=hi_SB[:, :, None],
        num_valid=jnp.ones(batch_size, jnp.int32),
    )
    codes_BKL = jnp.zeros((batch_size, 1, 0), jnp.int32)
    bad_B2 = jnp.full((batch_size, 2), NOT_BAD, jnp.int32)
    for level, width in enumerate(widths):
        before = None if level == 0 else (beams.code, beams.parent)
        carry, logits = step_fn(carry, *(before or (None, None)), level)
        logits_BKV = _checked(logits, level, (batch_size, beams.scores.shape[1], levels[level][0].capacity.size))
        if end_code is not None and before is not None:
            # An ended beam is certain of its end code again: log-probability 0, whatever the model says.
            certain_V = jnp.full(logits_BKV.shape[2], -jnp.inf).at[-1].set(0.0)
            logits_BKV = jnp.where((beams.code == end_code)[:, :, None], certain_V, logits_BKV)
        arrays = levels[level], filters[level], beams.lo, beams.hi, beams.scores, logits_BKV
        beams, bad_BK = extend(*arrays, num_beams=width, scoring=scoring)
        first_B2 = jnp.stack([jnp.full(batch_size, level), bad_BK.argmax(axis=1)], axis=1).astype(jnp.int32)
        bad_B2 = jnp.where(((bad_B2[:, 0] < 0) & bad_BK.any(axis=1))[:, None], first_B2, bad_B2)
        live_BK = beams.scores > -jnp.inf
        old_BKL = jnp.take_along_axis(codes_BKL, beams.parent[:, :, None], axis=1)
        codes_BKL = jnp.where(live_BK[:, :, None], jnp.concatenate([old_BKL, beams.code[:, :, None]], axis=2), 0)
    return Ranked(
        scores_BK=beams.scores,
        codes_BKL=codes_BKL,
        lo_SBK=beams.lo,
        hi_SBK=beams.hi,
        num_valid_B=beams.num_valid,
        bad_B2=bad_B2,
    )


def _checked(logits: Array, level: int, shape: tuple[int, int, int]) -> Array:
    array = logits[:, None, :] if level == 0 and logits.ndim == 2 else logits
    if array.shape != shape or not jnp.issubdtype(array.dtype, jnp.floating):
        raise LogitsError(
            f"step_fn returned logits of shape {tuple(array.shape)} and dtype {array.dtype} at level {level}: expected "
            f"{shape}, that is (requests, beams, codes of level {level}), of floating point numbers"
        )
    return array


def filter_specs(filters: Any, axis: str) -> Any:
    """How a batch's filters are spread over a mesh: what is one for each request is split, the shelf is whole everywhere."""
    by_request = ("slot_B", "denied_BD", "dead_BD3")
    whole, split = PartitionSpec(), PartitionSpec(axis)
    return jax.tree.map_with_path(lambda path, _: split if path[-1].name in by_request else whole, filters)


@partial(jax.jit, static_argnames=("step_fn", "plan", "carry_specs"))
def search(
    levels: tuple[tuple[LevelArrays, ...], ...],
    filters: tuple[tuple[LevelFilters, ...], ...],
    hi_SB: Array,
    carry: Any,
    *,
    step_fn: JaxStepFn,
    plan: Plan,
    carry_specs: tuple[PartitionSpec, ...] = (),
) -> Ranked:
    """`beam_search`, compiled: over a mesh, each device for its own requests, without a word between them."""

    def whole_search(levels: Any, filters: Any, hi_SB: Array, carry: Any) -> Ranked:
        settings: Any = {"widths": plan.widths, "scoring": plan.scoring, "end_code": plan.end_code}
        return beam_search(levels, filters, hi_SB, step_fn, carry, **settings)

    if plan.mesh is None:
        return whole_search(levels, filters, hi_SB, carry)
    split, second = PartitionSpec(plan.axis), PartitionSpec(None, plan.axis)
    level_specs = jax.tree.map(lambda _: PartitionSpec(), levels)
    carry_tree = jax.tree.unflatten(jax.tree.structure(carry), carry_specs)
    out: Any = {"scores_BK": split, "codes_BKL": split, "lo_SBK": second, "hi_SBK": second, "num_valid_B": split}
    split_search = jax.shard_map(
        whole_search,
        mesh=plan.mesh,
        in_specs=(level_specs, filter_specs(filters, plan.axis), second, carry_tree),
        out_specs=Ranked(**out, bad_B2=out["num_valid_B"]),
        axis_names={plan.axis},
    )
    return split_search(levels, filters, hi_SB, carry)
