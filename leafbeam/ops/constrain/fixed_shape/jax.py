"""The constrained step in JAX: compiled once for a capacity, without branches, exact; the same on CPU, GPU and TPU.

A level is compiled in one of two ways, by its capacity:

    narrow: no range has many children. All of them, at most `lanes` a row and segment, are offered: a gather of codes, a gather
            of logits, one top-k.
    dense:  some range is wide. Each row has a mask over the codes (a wide range's is gathered, another's few children are
            scattered); the logits are read in order, through it, for the maximum of each chunk of 32 codes; the K best chunks
            of a request hold its K best children, and only those are offered.

Nothing of shape [rows, V] is written: what is, is [rows, V / 32] (masks, maxima), [rows, lanes] and [K, 32].

Shapes: S segments, B requests, K beams (P before the round), R = B x P rows, V codes, W lanes, H chunks of 32 codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from leafbeam.errors import LogitsError
from leafbeam.ops.constrain.fixed_shape.jax_arrays import LevelArrays, VersionArrays, bind
from leafbeam.ops.constrain.fixed_shape.jax_children import Children, at, children_of, code_words, has_bit, ranges_of
from leafbeam.ops.constrain.fixed_shape.jax_filters import FilterArrays, FilterCache, LevelFilters, bind_filters
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = [
    "FilterArrays",
    "FilterCache",
    "LevelArrays",
    "LevelFilters",
    "VersionArrays",
    "bind",
    "bind_filters",
    "extend",
    "first_bad_row",
    "launch",
    "num_compiled",
    "step",
]

Array = jax.Array
CHUNK = 32
NOTHING = -jnp.inf


def step(
    arrays: VersionArrays,
    level: int,
    lo_SBK: Any,
    hi_SBK: Any,
    scores_BK: Any,
    logits_BKV: Any,
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> Beams[Array]:
    """One round of constrained beam search: see `leafbeam.ops.constrain.reference.step`, which this equals, in int32.

    Cost: `launch`, and a wait for the device. Raises LogitsError where a live row holds NaN or +inf.
    """
    given = lo_SBK, hi_SBK, scores_BK, logits_BKV
    beams, bad = launch(arrays, level, *given, filters, num_beams=num_beams, scoring=scoring)
    if number := bad.item():
        raise LogitsError.not_finite(*divmod(number - 1, scores_BK.shape[1]), f"at level {level}")
    return beams


def launch(
    arrays: VersionArrays,
    level: int,
    lo_SBK: Any,
    hi_SBK: Any,
    scores_BK: Any,
    logits_BKV: Any,
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Array], Array]:
    """(beams, bad): `step` that does not wait for the device. bad: 0, or the number + 1 of the first live row with NaN or +inf.

    Cost: one dispatch. Compiles once for each capacity of a level, batch size, number of beams and scoring. `extend` is the
    same for use in a traced function of your own.
    """
    return _extend(
        arrays.levels[level],
        filters.levels[level],
        _given(lo_SBK, jnp.int32),
        _given(hi_SBK, jnp.int32),
        _given(scores_BK, jnp.float32),
        logits_BKV,
        num_beams=num_beams,
        scoring=scoring,
    )


def _given(array: Any, dtype: Any) -> Array:
    """The array itself where it is what the step wants: a conversion that changes nothing costs 20 µs."""
    return array if isinstance(array, jax.Array) and array.dtype == dtype else jnp.asarray(array, dtype)


def extend(
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    lo_SBK: Array,
    hi_SBK: Array,
    scores_BK: Array,
    logits_BKV: Array,
    *,
    num_beams: int,
    scoring: Literal["full", "allowed"],
) -> tuple[Beams[Array], Array]:
    """A round inside a traced function: (beams, which rows were live and held NaN or +inf, bool [B, P]).

    levels, filters: of one level, one for each segment: `arrays.levels[t]`, `filters.levels[t]`. Such a row is treated as dead.
    """
    num_segments, batch_size, num_parents = lo_SBK.shape
    assert len(levels) == num_segments
    size = levels[0].capacity.size
    request_R = jnp.arange(batch_size * num_parents, dtype=jnp.int32) // num_parents
    lo_SR, hi_SR = lo_SBK.reshape(num_segments, -1), hi_SBK.reshape(num_segments, -1)
    found = [
        children_of(level, one, request_R, lo_R, hi_R)
        for level, one, lo_R, hi_R in zip(levels, filters, lo_SR, hi_SR, strict=True)
    ]
    logits_RV = logits_BKV.reshape(-1, size).astype(jnp.float32)
    live_R = scores_BK.reshape(-1) > NOTHING
    offer = _offer_dense if any(level.capacity.wide for level in levels) else _offer_narrow
    scores_BC, row_BC, code_BC, bad_R = offer(
        found, logits_RV, scores_BK.reshape(-1), live_R, batch_size, num_beams, scoring == "full"
    )
    count = min(num_beams, scores_BC.shape[1])
    best_BK, at_BK = lax.top_k(scores_BC, count)
    live_BK = best_BK > NOTHING
    row_BK = jnp.where(live_BK, jnp.take_along_axis(row_BC, at_BK, axis=1), 0)
    code_BK = jnp.where(live_BK, jnp.take_along_axis(code_BC, at_BK, axis=1), 0)
    ranges = [
        ranges_of(level, one, of, hi_R, row_BK, code_BK, live_BK)
        for level, one, of, hi_R in zip(levels, filters, found, hi_SR, strict=True)
    ]

    def padded(array: Array, value: float = 0) -> Array:
        return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, num_beams - count)], constant_values=value)

    beams = Beams(
        scores=padded(best_BK, NOTHING),
        parent=padded(jnp.where(live_BK, row_BK % num_parents, 0)),
        code=padded(code_BK),
        lo=padded(jnp.stack([lo for lo, _ in ranges])),
        hi=padded(jnp.stack([hi for _, hi in ranges])),
        num_valid=live_BK.sum(axis=1, dtype=jnp.int32),
    )
    return beams, bad_R.reshape(batch_size, num_parents)


@partial(jax.jit, static_argnames=("num_beams", "scoring"))
def _extend(
    levels: tuple[LevelArrays, ...],
    filters: tuple[LevelFilters, ...],
    lo_SBK: Array,
    hi_SBK: Array,
    scores_BK: Array,
    logits_BKV: Array,
    *,
    num_beams: int,
    scoring: Literal["full", "allowed"],
) -> tuple[Beams[Array], Array]:
    given = levels, filters, lo_SBK, hi_SBK, scores_BK, logits_BKV
    beams, bad_BK = extend(*given, num_beams=num_beams, scoring=scoring)
    return beams, first_bad_row(bad_BK)


def first_bad_row(bad_BK: Array) -> Array:
    """0, or the number + 1 of the first row that is marked, int32."""
    return jnp.where(bad_BK.any(), bad_BK.reshape(-1).argmax() + 1, 0).astype(jnp.int32)


def num_compiled() -> int:
    """How many different steps this process has compiled: a figure that should stand still while a catalog lives."""
    return _extend._cache_size()  # pyright: ignore[reportAttributeAccessIssue]


def _log_sum_exp(values_RN: Array) -> Array:
    """Of each row; -inf for a row of nothing else, NaN for one that holds NaN or +inf."""
    top_R = values_RN.max(axis=1, initial=NOTHING)
    safe_R = jnp.where(top_R == NOTHING, 0.0, top_R)
    return safe_R + jnp.log(jnp.exp(values_RN - safe_R[:, None]).sum(axis=1))


def _scores(base_R: Array, values: Array, lse_R: Array, legal: Array) -> Array:
    """base + (value - lse) where legal, [R, ...]; -inf elsewhere and where it is not a number."""
    shape = (-1, *[1] * (values.ndim - 1))
    scores = base_R.reshape(shape) + (values - lse_R.reshape(shape))
    return jnp.where(legal & (scores > NOTHING) & (scores < jnp.inf), scores, NOTHING)


def _key(values: Array) -> Array:
    """Floats as integers of the same order: a maximum of integers vectorises on CPUs, five times as fast as one of floats."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))


def _from_key(keys: Array) -> Array:
    return lax.bitcast_convert_type(keys ^ ((keys >> 31) & jnp.int32(0x7FFFFFFF)), jnp.float32)


def _is_bad(lse_R: Array) -> Array:
    return ~(lse_R < jnp.inf)  # +inf or NaN


def _offer_narrow(
    found: Sequence[Children],
    logits_RV: Array,
    base_R: Array,
    live_R: Array,
    batch_size: int,
    num_beams: int,
    full: bool,
) -> tuple[Array, Array, Array, Array]:
    """(scores, rows, codes) of every child, [B, P x W], and the bad rows."""
    code_RW, legal_RW = _lanes(found[0])
    if len(found) == 2:
        code_RW, legal_RW = _merged((code_RW, legal_RW), _lanes(found[1]))
    legal_RW &= live_R[:, None]
    code_RW = jnp.where(legal_RW, code_RW, 0)
    rows_R1 = jnp.arange(len(base_R), dtype=jnp.int32)[:, None]
    values_RW = jnp.where(legal_RW, at(logits_RV, rows_R1, code_RW), NOTHING)
    lse_R = _log_sum_exp(logits_RV if full else values_RW)
    scores_RW = _scores(base_R, values_RW, lse_R, legal_RW)
    bad_R = _is_bad(lse_R) & legal_RW.any(axis=1)
    row_RW = jnp.broadcast_to(rows_R1, code_RW.shape)
    return scores_RW.reshape(batch_size, -1), row_RW.reshape(batch_size, -1), code_RW.reshape(batch_size, -1), bad_R


def _lanes(children: Children) -> tuple[Array, Array]:
    assert children.code_RW is not None
    assert children.legal_RW is not None
    return children.code_RW, children.legal_RW


def _merged(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """(codes, legal) of both segments' lanes, ascending by code; a child of both is legal once.

    A lane's place is its own plus how many of the other's come before: the merge of two sorted lists, without a loop.
    """
    (code_RW, legal_RW), (code_RX, legal_RX) = one, other
    same_RWX = (code_RW[:, :, None] == code_RX[:, None, :]) & legal_RW[:, :, None]
    legal_RX = legal_RX & ~same_RWX.any(axis=1)
    before_RWX = code_RX[:, None, :] < code_RW[:, :, None]
    place_RW = jnp.arange(code_RW.shape[1], dtype=jnp.int32) + before_RWX.sum(axis=2, dtype=jnp.int32)
    place_RX = jnp.arange(code_RX.shape[1], dtype=jnp.int32) + (~before_RWX).sum(axis=1, dtype=jnp.int32)
    place = jnp.concatenate([place_RW, place_RX], axis=1)
    rows_R1 = jnp.arange(code_RW.shape[0], dtype=jnp.int32)[:, None]
    # One number carries both: the code, and whether it is legal.
    lane = jnp.concatenate([code_RW * 2 + legal_RW, code_RX * 2 + legal_RX], axis=1)
    merged = jnp.zeros_like(lane).at[rows_R1, place].set(lane, mode="promise_in_bounds", unique_indices=True)
    return merged >> 1, merged & 1 == 1


def _offer_dense(
    found: Sequence[Children],
    logits_RV: Array,
    base_R: Array,
    live_R: Array,
    batch_size: int,
    num_beams: int,
    full: bool,
) -> tuple[Array, Array, Array, Array]:
    """(scores, rows, codes) of the children in each request's best chunks, [B, K x 32], and the bad rows.

    The K best chunks by (maximum desc, row, chunk) hold the K best children by (score desc, row, code): a child outside them
    has K chunks before its own, and the largest of each of these comes before it.
    """
    num_rows, size = logits_RV.shape
    num_chunks = -(-size // CHUNK)
    words_RH = jnp.zeros((num_rows, num_chunks), jnp.uint32)
    for children in found:
        if children.words_RH is not None:
            words_RH |= children.words_RH
        if children.legal_RW is not None and children.code_RW is not None:
            words_RH |= code_words(children.code_RW, children.legal_RW, num_chunks)
    words_RH = jnp.where(live_R[:, None], words_RH, jnp.uint32(0))
    lane_C = jnp.arange(CHUNK, dtype=jnp.int32)
    tail = num_chunks * CHUNK - size
    whole_RV = jnp.pad(logits_RV, ((0, 0), (0, tail)), constant_values=NOTHING) if tail else logits_RV
    legal_RHC = has_bit(words_RH[:, :, None], lane_C)
    whole_RHC = whole_RV.reshape(num_rows, num_chunks, CHUNK)
    top_RH = _from_key(jnp.where(legal_RHC, _key(whole_RHC), _key(jnp.float32(NOTHING))).max(axis=2))
    lse_R = _log_sum_exp(logits_RV if full else jnp.where(legal_RHC, whole_RHC, NOTHING).reshape(num_rows, -1))
    bad_R = _is_bad(lse_R) & (words_RH != 0).any(axis=1)

    chunk_scores_BN = _scores(base_R, top_RH, lse_R, words_RH != 0).reshape(batch_size, -1)
    _, chunk_BK = lax.top_k(chunk_scores_BN, min(num_beams, chunk_scores_BN.shape[1]))
    chunk_BK = lax.sort(chunk_BK, dimension=1)  # so that the offers stand in (row, code) order
    row_BK = chunk_BK // num_chunks + jnp.arange(batch_size, dtype=jnp.int32)[:, None] * (num_rows // batch_size)
    chunk_BK = chunk_BK % num_chunks
    code_BKC = chunk_BK[:, :, None] * CHUNK + lane_C
    legal_BKC = has_bit(at(words_RH, row_BK, chunk_BK)[:, :, None], lane_C)
    values_BKC = at(logits_RV, row_BK[:, :, None], jnp.minimum(code_BKC, size - 1))
    scores = _scores(
        at(base_R, row_BK).reshape(-1),
        values_BKC.reshape(-1, CHUNK),
        at(lse_R, row_BK).reshape(-1),
        legal_BKC.reshape(-1, CHUNK),
    )
    row_BKC = jnp.broadcast_to(row_BK[:, :, None], code_BKC.shape)
    return scores.reshape(batch_size, -1), row_BKC.reshape(batch_size, -1), code_BKC.reshape(batch_size, -1), bad_R
