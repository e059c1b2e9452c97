"""The constrained step in arrays of fixed shapes: exact, without branches on values, run by `jax` and `torch`.

A level takes one of two ways, by its capacity:

    narrow: no range has many children. All of them, at most `lanes` a row and segment, are candidates: a gather of codes, a
            gather of logits, one top-k.
    dense:  some range is wide. Each row has a mask over the codes (gathered for a wide range, scattered for the few children of
            another); the logits are read in order, through it, for the maximum of each chunk of 32 codes; the K best chunks of
            a request hold its K best children, and only those are candidates.

A compiled step writes nothing of shape [R, V]: only [R, V / 32] (masks, maxima), [R, lanes] and [K, 32]. There are two
exceptions. A dense level with boosts does: the largest score of a chunk is then not that of its largest logit. And JAX on a CPU
writes exponentials that stay in its cache.

Shapes: S segments, B requests, K beams (P before the step), R = B x P rows, V codes, W lanes, H chunks of 32 codes,
C candidates.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelArrays, LevelFilters
from leafbeam.ops.constrain.fixed_shape.children import (
    Children,
    Lanes,
    Winners,
    child_boosts,
    children_of,
    code_words,
    ranges_of,
)
from leafbeam.ops.constrain.namespaces import CHUNK, NEG_INF, Array, ArrayNamespace
from leafbeam.ops.constrain.types import LOWEST, Beams, Scoring, num_columns, waiting


class Rows(NamedTuple):
    """The beams and logits of a step, by row, and its settings.

    Args:
        other_R1: The logits of any other token than a code, of no columns if there is none.
    """

    logits_RV: Array
    other_R1: Array
    base_R: Array
    batch_size: int
    num_beams: int
    full: bool


class Candidates(NamedTuple):
    """The candidates of each request, in (row, code) order.

    Args:
        score_BC: float32, -inf in unused slots.
        code_BC: Numbers, the codes.
        row_BN: The row of every C / N candidates.
        bad_R: Whether a row is live and holds NaN or +inf.
    """

    score_BC: Array
    code_BC: Array
    row_BN: Array
    bad_R: Array


def extend(
    xp: ArrayNamespace,
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    beams: Beams[Any],
    logits_BKV: Array,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Any], Any]:
    """Run one step; returns (beams, bool [B, P]: rows that were live and held NaN or +inf, which are treated as dead).

    levels, filters: of one level, one for each segment: `arrays.levels[t]`, `filters.levels[t]`. For use inside a traced or
    compiled function: another version or filter of the same capacity compiles nothing.
    """
    num_segments, batch_size, num_parents = beams.lo.shape
    assert len(levels) == num_segments
    size = levels[0].capacity.size
    lo_SR, hi_SR = beams.lo.reshape(num_segments, -1), beams.hi.reshape(num_segments, -1)
    children = [children_of(xp, levels[s], filters[s], lo_SR[s], hi_SR[s]) for s in range(num_segments)]
    row_RV = xp.float32(logits_BKV.reshape(-1, num_columns(size, scoring)))
    logits = row_RV[:, :size], row_RV[:, size:]
    rows = Rows(*logits, beams.scores.reshape(-1), batch_size, num_beams, scoring != "allowed")
    if is_dense := any(level.capacity.wide for level in levels):
        boost_RV = None
        if filters[0].boosts is not None:
            num_words = -(-size // CHUNK)
            parts = [child_boosts(xp, filters[s], children[s], num_words) for s in range(num_segments)]
            boost_RV = reduce(xp.larger, parts)
        candidates = _dense_candidates(xp, children, rows, boost_RV)
    else:
        candidates = _narrow_candidates(xp, children, rows)
    count = min(num_beams, candidates.score_BC.shape[1])
    best_BK, position_BK = xp.top_k(candidates.score_BC, count)
    live_BK = best_BK > NEG_INF
    per_row = candidates.score_BC.shape[1] // candidates.row_BN.shape[1]
    row_BK = xp.where(live_BK, xp.take_along(candidates.row_BN, position_BK // per_row), 0)
    code_BK = xp.where(live_BK, xp.take_along(candidates.code_BC, position_BK), 0)
    row_BK, code_BK = xp.barrier(row_BK, code_BK)
    winners = Winners(row_BK, code_BK, live_BK, None if is_dense or num_segments > 1 else position_BK % per_row)
    ranges = [ranges_of(xp, levels[s], filters[s], children[s], hi_SR[s], winners) for s in range(num_segments)]
    lo_SBK, hi_SBK = xp.barrier(*(xp.concat([bounds[end][None] for bounds in ranges], 0) for end in (0, 1)))
    best = padded_beams(xp, num_beams, best_BK, row_BK % num_parents, code_BK, lo_SBK, hi_SBK)
    return best, candidates.bad_R.reshape(batch_size, num_parents)


def padded_beams(
    xp: ArrayNamespace, num_beams: int, scores_BK: Array, parent_BK: Array, code_BK: Array, lo_SBK: Array, hi_SBK: Array
) -> Beams[Array]:
    """Return the selected beams, with dead slots emptied and appended up to `num_beams`."""
    live_BK, missing = scores_BK > NEG_INF, num_beams - scores_BK.shape[1]
    parent, code, lo, hi = (
        xp.pad(xp.where(live_BK, numbers, 0), missing, 0) for numbers in (parent_BK, code_BK, lo_SBK, hi_SBK)
    )
    scores = xp.pad(scores_BK, missing, NEG_INF)
    return Beams(scores=scores, parent=parent, code=code, lo=lo, hi=hi, num_valid=xp.sum(live_BK, 1))


def first_bad_rows(xp: ArrayNamespace, bad_T: Sequence[Array]) -> Any:
    """Return, for each round, 1 + the number of its first bad row (request x P + beam), or 0; they stay on the device."""
    flags_T = [bad.reshape(1, -1) for bad in bad_T]
    num_rows = max(flags.shape[1] for flags in flags_T)
    flags_TR = xp.concat([xp.pad(flags, num_rows - flags.shape[1], 0) for flags in flags_T], 0)
    rest_T = xp.max(xp.where(flags_TR, num_rows - xp.arange(num_rows, flags_TR), 0), 1)
    return xp.where(rest_T > 0, num_rows + 1 - rest_T, 0)


def first_bad_row(xp: ArrayNamespace, bad: Array) -> Any:
    """Return `first_bad_rows` of one round, a scalar."""
    return first_bad_rows(xp, [bad])[0]


def run(
    xp: ArrayNamespace,
    levels: Any,
    filters: Any,
    beams: Beams[Any],
    logits_BKV: Any,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Any], Any]:
    """Run `extend`, and return `first_bad_row` in place of its flags."""
    best, bad_BP = extend(xp, levels, filters, beams, logits_BKV, num_beams=num_beams, scoring=scoring)
    return best, first_bad_row(xp, bad_BP)


def launcher(run: Callable[..., tuple[Beams[Array], Array]]) -> Callable[..., tuple[Beams[Array], Array]]:
    """Return `launch` of a `ConstrainBackend`. JAX compiles it once for each shape, number of beams and scoring."""

    def launch(
        arrays: Any,
        level: int,
        beams: Beams[Array],
        logits_BKV: Array,
        filters: FilterArrays | None,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> tuple[Beams[Array], Array]:
        state = arrays.xp.inputs(beams, logits_BKV, arrays.device)
        of_level = arrays.levels[level], filters and filters.levels[level]
        return arrays.xp.compiled(run)(*of_level, *state, num_beams=num_beams, scoring=scoring)

    return launch


launch = launcher(run)
step = waiting(launch)


def add_log_probs(xp: ArrayNamespace, base: Array, values: Array, lse: Array, legal: Array) -> Array:
    """Return base + (value - lse), at least `LOWEST`, where legal; -inf elsewhere, for a value or base of -inf, and for NaN."""
    scores = base + (values - lse)
    live = legal & (values > NEG_INF) & (base > NEG_INF) & (scores < -NEG_INF)
    return xp.where(live, xp.where(scores > LOWEST, scores, LOWEST), NEG_INF)


def add_boosts(xp: ArrayNamespace, scores_RN: Array, boost_RN: Array, children: Sequence[Children]) -> Array:
    """Return scores plus the largest boost below each child, less the largest below its range, which is never positive."""
    bound_R = reduce(xp.larger, [part.bound_R for part in children])
    change_RN = boost_RN - xp.where(bound_R > NEG_INF, bound_R, 0)[:, None]
    # A compiler may fuse a product with the difference, so that equal boosts differ by a rounding.
    boosted_RN = scores_RN + xp.where(change_RN < 0, change_RN, 0)
    return xp.where(scores_RN > NEG_INF, xp.where(boosted_RN > LOWEST, boosted_RN, LOWEST), NEG_INF)


def is_bad(lse_R: Array) -> Array:
    """Return which log-sum-exps come from rows that held NaN or +inf."""
    return ~(lse_R < -NEG_INF)


def _with_others(xp: ArrayNamespace, lse_R: Array, rows: Rows) -> Array:
    """Return log-sum-exps over the codes and any other token, if the rows have its logit."""
    return xp.log_sum_exp(xp.concat([lse_R[:, None], rows.other_R1], 1)) if rows.other_R1.shape[1] else lse_R


def _narrow_candidates(xp: ArrayNamespace, children: Sequence[Children], rows: Rows) -> Candidates:
    """Return every child of narrow ranges as a candidate, [B, P x W]."""
    logits_RV, base_R, batch_size = rows.logits_RV, rows.base_R, rows.batch_size
    lanes = [part.lanes for part in children if part.lanes is not None]
    first = lanes[0]
    code_RW, legal_RW, boost_RW = (first.code_RW, first.legal_RW, first.boost_RW) if len(lanes) == 1 else _merged(xp, *lanes)
    legal_RW = legal_RW & (base_R > NEG_INF)[:, None]
    code_RW = xp.where(legal_RW, code_RW, 0)
    values_RW = xp.where(legal_RW, xp.take_along(logits_RV, code_RW), NEG_INF)
    lse_R = _with_others(xp, xp.scan(logits_RV, None, full=True)[0], rows) if rows.full else xp.log_sum_exp(values_RW)
    scores_RW = add_log_probs(xp, base_R[:, None], values_RW, lse_R[:, None], legal_RW)
    if boost_RW is not None:
        scores_RW = add_boosts(xp, scores_RW, boost_RW, children)
    return Candidates(
        score_BC=scores_RW.reshape(batch_size, -1),
        code_BC=code_RW.reshape(batch_size, -1),
        row_BN=xp.arange(len(base_R), code_RW).reshape(batch_size, -1),
        bad_R=is_bad(lse_R) & legal_RW.any(1),
    )


def _merged(xp: ArrayNamespace, base: Lanes, delta: Lanes) -> tuple[Array, Array, Any]:
    """Return (codes, legal, boosts) of both segments' lanes, ascending by code; a child of both is legal once.

    A lane's position is its own plus the number of the other's lanes before it: two sorted lists merged without a loop.
    """
    code_RW, code_RX = base.code_RW, delta.code_RW
    same_RWX = (code_RW[:, :, None] == code_RX[:, None, :]) & base.legal_RW[:, :, None]
    legal_RX = delta.legal_RW & ~same_RWX.any(1)
    before_RWX = code_RX[:, None, :] < code_RW[:, :, None]
    position_RW = xp.arange(code_RW.shape[1], code_RW) + xp.sum(before_RWX, 2)
    position_RX = xp.arange(code_RX.shape[1], code_RW) + xp.sum(~before_RWX, 1)
    position_RN = xp.concat([position_RW, position_RX], 1)
    lane_RN = xp.concat([code_RW * 2 + base.legal_RW, code_RX * 2 + legal_RX], 1)  # a code, and whether it is legal
    merged_RN = xp.scatter(position_RN, lane_RN, lane_RN.shape[1], 0)
    boost_RN = None
    if base.boost_RW is not None:
        in_both_RWX = same_RWX & delta.legal_RW[:, None, :]
        other_RW = xp.max(xp.where(in_both_RWX, delta.boost_RW[:, None, :], NEG_INF), 2)
        boost_RN = xp.concat([xp.larger(base.boost_RW, other_RW), delta.boost_RW], 1)
        boost_RN = xp.scatter(position_RN, boost_RN, boost_RN.shape[1], 0)
    return merged_RN >> 1, merged_RN & 1 == 1, boost_RN


def _dense_candidates(xp: ArrayNamespace, children: Sequence[Children], rows: Rows, boost_RV: Array | None) -> Candidates:
    """Return the children in each request's best chunks, [B, K x 32].

    The K best chunks by (maximum desc, row, chunk) hold the K best children by (score desc, row, code): a child outside them
    has K chunks before its own, and the largest of each of these comes before it.

    boost_RV: the largest boost below each child, padded to whole chunks; None without boosts.
    """
    logits_RV, base_R, batch_size = rows.logits_RV, rows.base_R, rows.batch_size
    num_rows, size = logits_RV.shape
    num_chunks = -(-size // CHUNK)
    parts = [part.words_RH for part in children if part.words_RH is not None]
    lanes = [part.lanes for part in children if part.lanes is not None]
    parts += [code_words(xp, lane.code_RW, lane.legal_RW, num_chunks) for lane in lanes]
    words_RH = parts[0]
    for part_RH in parts[1:]:
        words_RH = words_RH | part_RH
    (words_RH,) = xp.barrier(xp.where((base_R > NEG_INF)[:, None], words_RH, 0))
    lane_C, scores_RHC = xp.arange(CHUNK, base_R), None
    lse_R, top_RH = xp.scan(logits_RV, words_RH, full=rows.full)
    lse_R = _with_others(xp, lse_R, rows)
    if boost_RV is None:
        chunk_scores_RH = add_log_probs(xp, base_R[:, None], top_RH, lse_R[:, None], words_RH != 0)
    else:
        whole_RV = xp.pad(logits_RV, num_chunks * CHUNK - size, NEG_INF)
        legal_RV = xp.has_bit(words_RH[:, :, None], lane_C).reshape(num_rows, -1)
        scores_RV = add_log_probs(xp, base_R[:, None], whole_RV, lse_R[:, None], legal_RV)
        scores_RHC = add_boosts(xp, scores_RV, boost_RV, children).reshape(num_rows, num_chunks, CHUNK)
        chunk_scores_RH = xp.max(scores_RHC, 2)
    chunk_scores_BN = chunk_scores_RH.reshape(batch_size, -1)
    _, chunk_BK = xp.top_k(chunk_scores_BN, min(rows.num_beams, chunk_scores_BN.shape[1]))
    chunk_BK = xp.sort(chunk_BK)  # candidates in (row, code) order
    first_B1 = (xp.arange(batch_size, base_R) * (num_rows // batch_size))[:, None]
    row_BK, chunk_BK = xp.barrier(chunk_BK // num_chunks + first_B1, chunk_BK % num_chunks)
    code_BKC = chunk_BK[:, :, None] * CHUNK + lane_C
    legal_BKC = xp.has_bit(xp.take_words(words_RH, row_BK, chunk_BK)[:, :, None], lane_C)
    code_BKC = xp.where(legal_BKC, code_BKC, 0)
    row_BK1 = row_BK[:, :, None]
    if scores_RHC is None:
        values_BKC = xp.take(logits_RV, row_BK1, code_BKC)
        scores_BKC = add_log_probs(xp, xp.take(base_R, row_BK1), values_BKC, xp.take(lse_R, row_BK1), legal_BKC)
    else:
        scores_BKC = xp.at(scores_RHC, row_BK, chunk_BK)
    return Candidates(
        score_BC=scores_BKC.reshape(batch_size, -1),
        code_BC=code_BKC.reshape(batch_size, -1),
        row_BN=row_BK,
        bad_R=is_bad(lse_R) & (words_RH != 0).any(1),
    )
