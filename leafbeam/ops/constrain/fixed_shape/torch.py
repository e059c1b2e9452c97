"""The constrained step in torch without loops and branches: clean for `torch.compile`, on any device.

What `jax.py` does, one line for one line, from the same packed arrays: a level is narrow (every child is offered) or dense (the
logits are read through masks, and the K best chunks of 32 codes are offered). Compiled, nothing of shape [rows, V] is written;
eager, the masked logits of a dense level are.

Shapes: S segments, B requests, K beams (P before the round), R = B x P rows, V codes, W lanes, H chunks of 32 codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leafbeam.errors import LogitsError
from leafbeam.ops.constrain.fixed_shape.torch_arrays import (
    FilterArrays,
    LevelArrays,
    LevelFilters,
    VersionArrays,
    bind,
    bind_filters,
)
from leafbeam.ops.constrain.fixed_shape.torch_children import Children, children_of, code_words, has_bit, ranges_of
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = ["FilterArrays", "VersionArrays", "bind", "bind_filters", "extend", "launch", "step"]

CHUNK = 32
NOTHING = -torch.inf


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
) -> Beams[Tensor]:
    """One round of constrained beam search: see `leafbeam.ops.constrain.reference.step`, which this equals.

    Cost: `launch`, and a wait for the device. Raises LogitsError where a live row holds NaN or +inf.
    """
    lo, hi, scores, logits = (torch.as_tensor(one, device=arrays.device) for one in (lo_SBK, hi_SBK, scores_BK, logits_BKV))
    given = lo.long(), hi.long(), scores.float(), logits
    beams, bad = launch(arrays, level, *given, filters, num_beams=num_beams, scoring=scoring)
    if number := int(bad):
        raise LogitsError.not_finite(*divmod(number - 1, scores.shape[1]), f"at level {level}")
    return beams


def launch(
    arrays: VersionArrays,
    level: int,
    lo_SBK: Tensor,
    hi_SBK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    filters: FilterArrays,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """(beams, bad): `step` that does not wait for the device.

    bad: int64, 0, or the number + 1 of the first live row that holds NaN or +inf.
    """
    given = lo_SBK, hi_SBK, scores_BK, logits_BKV
    beams, bad_BK = extend(arrays.levels[level], filters.levels[level], *given, num_beams=num_beams, scoring=scoring)
    bad_R = bad_BK.flatten().long()
    return beams, torch.where(bad_R.any(), bad_R.argmax() + 1, 0)


def extend(
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    lo_SBK: Tensor,
    hi_SBK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """A round for `torch.compile(fullgraph=True)`: (beams, which rows were live and held NaN or +inf, bool [B, P]).

    levels, filters: of one level, one for each segment: `arrays.levels[t]`, `filters.levels[t]`. Such a row is treated as dead.
    Another version or filter of the same sizes compiles nothing.
    """
    num_segments, batch_size, num_parents = lo_SBK.shape
    size = levels[0].capacity.size
    request_R = torch.arange(batch_size * num_parents, device=lo_SBK.device) // num_parents
    lo_SR, hi_SR = lo_SBK.reshape(num_segments, -1), hi_SBK.reshape(num_segments, -1)
    found = [children_of(levels[s], filters[s], request_R, lo_SR[s], hi_SR[s]) for s in range(num_segments)]
    logits_RV = logits_BKV.reshape(-1, size).float()
    base_R = scores_BK.reshape(-1)
    offer = _offer_dense if any(level.capacity.wide for level in levels) else _offer_narrow
    scores_BC, row_BC, code_BC, bad_R = offer(
        found, logits_RV, base_R, base_R > NOTHING, batch_size, num_beams, scoring == "full"
    )
    count = min(num_beams, scores_BC.shape[1])
    at_BK = _best(scores_BC, count)
    best_BK = scores_BC.gather(1, at_BK)
    live_BK = best_BK > NOTHING
    row_BK = torch.where(live_BK, row_BC.gather(1, at_BK), 0)
    code_BK = torch.where(live_BK, code_BC.gather(1, at_BK), 0)
    ranges = [ranges_of(levels[s], filters[s], found[s], hi_SR[s], row_BK, code_BK, live_BK) for s in range(num_segments)]

    def padded(array: Tensor, value: float = 0) -> Tensor:
        return torch.nn.functional.pad(array, (0, num_beams - count), value=value)

    beams = Beams(
        scores=padded(best_BK, NOTHING),
        parent=padded(torch.where(live_BK, row_BK % num_parents, 0)),
        code=padded(code_BK),
        lo=padded(torch.stack([lo for lo, _ in ranges])),
        hi=padded(torch.stack([hi for _, hi in ranges])),
        num_valid=live_BK.sum(dim=1),
    )
    return beams, bad_R.reshape(batch_size, num_parents)


def _best(scores_BC: Tensor, count: int) -> Tensor:
    """Where the `count` best stand, by (score desc, place asc): torch's own top-k leaves the order of ties open."""
    bits = (scores_BC + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    place_C = torch.arange(scores_BC.shape[1], device=scores_BC.device)
    return ((ordered << 32) - place_C).topk(count, dim=1).indices


def _scores(base: Tensor, values: Tensor, lse: Tensor, legal: Tensor) -> Tensor:
    """base + (value - lse) where legal; -inf elsewhere and where it is not a number."""
    scores = base + (values - lse)
    return torch.where(legal & (scores > NOTHING) & (scores < torch.inf), scores, NOTHING)


def _is_bad(lse_R: Tensor) -> Tensor:
    return ~(lse_R < torch.inf)  # +inf or NaN


def _offer_narrow(
    found: Sequence[Children],
    logits_RV: Tensor,
    base_R: Tensor,
    live_R: Tensor,
    batch_size: int,
    num_beams: int,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(scores, rows, codes) of every child, [B, P x W], and the bad rows."""
    code_RW, legal_RW = _lanes(found[0])
    if len(found) == 2:
        code_RW, legal_RW = _merged((code_RW, legal_RW), _lanes(found[1]))
    legal_RW = legal_RW & live_R[:, None]
    code_RW = torch.where(legal_RW, code_RW, 0)
    values_RW = torch.where(legal_RW, logits_RV.gather(1, code_RW), NOTHING)
    lse_R = (logits_RV if full else values_RW).logsumexp(dim=1)
    scores_RW = _scores(base_R[:, None], values_RW, lse_R[:, None], legal_RW)
    bad_R = _is_bad(lse_R) & legal_RW.any(dim=1)
    row_RW = torch.arange(len(base_R), device=base_R.device)[:, None].expand_as(code_RW)
    return scores_RW.reshape(batch_size, -1), row_RW.reshape(batch_size, -1), code_RW.reshape(batch_size, -1), bad_R


def _lanes(children: Children) -> tuple[Tensor, Tensor]:
    assert children.code_RW is not None
    assert children.legal_RW is not None
    return children.code_RW, children.legal_RW


def _merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(codes, legal) of both segments' lanes, ascending by code; a child of both is legal once."""
    (code_RW, legal_RW), (code_RX, legal_RX) = one, other
    same_RWX = (code_RW[:, :, None] == code_RX[:, None, :]) & legal_RW[:, :, None]
    legal_RX = legal_RX & ~same_RWX.any(dim=1)
    before_RWX = code_RX[:, None, :] < code_RW[:, :, None]
    place_RW = torch.arange(code_RW.shape[1], device=code_RW.device) + before_RWX.sum(dim=2)
    place_RX = torch.arange(code_RX.shape[1], device=code_RW.device) + (~before_RWX).sum(dim=1)
    place = torch.cat([place_RW, place_RX], dim=1)
    # One number carries both: the code, and whether it is legal.
    lane = torch.cat([code_RW * 2 + legal_RW, code_RX * 2 + legal_RX], dim=1)
    merged = torch.zeros_like(lane).scatter(1, place, lane)
    return merged >> 1, merged & 1 == 1


def _offer_dense(
    found: Sequence[Children],
    logits_RV: Tensor,
    base_R: Tensor,
    live_R: Tensor,
    batch_size: int,
    num_beams: int,
    full: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(scores, rows, codes) of the children in each request's best chunks, [B, K x 32]: see `jax._offer_dense` for why."""
    num_rows, size = logits_RV.shape
    num_chunks = -(-size // CHUNK)
    words_RH = torch.zeros(num_rows, num_chunks, dtype=torch.int64, device=base_R.device)
    for children in found:
        if children.words_RH is not None:
            words_RH = words_RH | children.words_RH
        if children.legal_RW is not None and children.code_RW is not None:
            words_RH = words_RH | code_words(children.code_RW, children.legal_RW, num_chunks)
    words_RH = torch.where(live_R[:, None], words_RH, 0)
    lane_C = torch.arange(CHUNK, device=base_R.device)
    tail = num_chunks * CHUNK - size
    whole_RV = torch.nn.functional.pad(logits_RV, (0, tail), value=NOTHING) if tail else logits_RV
    legal_RHC = has_bit(words_RH[:, :, None], lane_C)
    masked_RHC = torch.where(legal_RHC, whole_RV.view(num_rows, num_chunks, CHUNK), NOTHING)
    top_RH = masked_RHC.amax(dim=2)
    lse_R = (logits_RV if full else masked_RHC.view(num_rows, -1)).logsumexp(dim=1)
    bad_R = _is_bad(lse_R) & (words_RH != 0).any(dim=1)

    chunk_scores_BN = _scores(base_R[:, None], top_RH, lse_R[:, None], words_RH != 0).view(batch_size, -1)
    chunk_BK = _best(chunk_scores_BN, min(num_beams, chunk_scores_BN.shape[1]))
    chunk_BK = chunk_BK.sort(dim=1).values  # so that the offers stand in (row, code) order
    row_BK = chunk_BK // num_chunks + torch.arange(batch_size, device=base_R.device)[:, None] * (num_rows // batch_size)
    chunk_BK = chunk_BK % num_chunks
    code_BKC = chunk_BK[:, :, None] * CHUNK + lane_C
    legal_BKC = has_bit(words_RH[row_BK, chunk_BK][:, :, None], lane_C)
    values_BKC = logits_RV[row_BK[:, :, None], code_BKC.clamp(max=size - 1)]
    scores_BKC = _scores(base_R[row_BK][:, :, None], values_BKC, lse_R[row_BK][:, :, None], legal_BKC)
    row_BKC = row_BK[:, :, None].expand_as(code_BKC)
    return scores_BKC.reshape(batch_size, -1), row_BKC.reshape(batch_size, -1), code_BKC.reshape(batch_size, -1), bad_R
