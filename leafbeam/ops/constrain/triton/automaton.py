"""The constrained step over regular languages on a GPU: two launches a round, as `triton` has for tries.

    row kernel      a beam's legal codes are its state's row, or the bits of its mask, and the end code where a sequence may end
    request kernel  the K best of all rows, and for these alone the next state: found in the row, or under a mask by walking the
                    byte automaton over the token's bytes

The automata of a batch's requests may differ; they are side by side in the same arrays. Without a GPU it runs under Triton's
interpreter (TRITON_INTERPRET=1 before the first import).

Shapes: B requests, R rows of a request (its beams), K beams kept, V codes of the model, P the power of two that holds K, A
different automata, S states, E entries and M masks of W words of all of them, X states and F edges of their byte automata, T
bytes of the vocabulary.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch
from leafbeam.ops.constrain.triton.kernels import NO_KEY, best_of_rows, keep, key_at, key_of, placed, sum_exp_at
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = ["DeviceAutomatonBatch", "bind", "launch", "step"]

_NOTHING = tl.constexpr(NO_KEY)
_MAX_BEAMS = 8192


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceAutomatonBatch:
    """The automata of a batch on a device, and what the rounds of one search share: one search at a time uses it.

    tables: row_ptr (S + A), code_E, next_E, mask_S (-1: a row), masks (M x W), accepting_S, then of the byte automata class
    (A x 256), first (X + A), label_F, target_F, and the vocabulary's bytes_T, token_indptr. requests_B5: int64, for each
    request where its states begin in row_ptr and in mask_S, where those of its byte automaton do in first, where its classes
    do, and its S.
    """

    tables: tuple[Tensor, ...]
    requests_B5: Tensor
    words: int
    tokens: int
    end_code: int
    num_codes: int
    least_B: Tensor


def bind(languages: AutomatonBatch, device: torch.device | str) -> DeviceAutomatonBatch:
    """Copy the automata of a batch to a device, each different one once. They must be over one vocabulary (ArgumentError)."""
    different = list({id(one): one for one in languages.automata}.values())
    tokens = different[0].vocabulary_size
    texts = [one.arrays for one in different if len(one.arrays.mask_MW)] or [different[0].arrays]
    for one in different:
        same = one.vocabulary_size == tokens and (
            not len(one.arrays.mask_MW)
            or (
                np.array_equal(one.arrays.token_indptr, texts[0].token_indptr)
                and np.array_equal(one.arrays.bytes_T, texts[0].bytes_T)
            )
        )
        if not same:
            raise ArgumentError("the automata of one batch are over different vocabularies: expected one, on a GPU")
    parts: list[list[Any]] = [[] for _ in range(10)]
    places: dict[int, list[int]] = {}
    at = dict.fromkeys(("pointer", "state", "first", "class", "entry", "mask", "edge"), 0)
    for one in different:
        rows, dfa = one.arrays, one.arrays.dfa
        states = np.arange(one.num_states)
        mask_S = np.where(rows.mask_S < 0, -1, rows.mask_S + at["mask"])
        own = (rows.row_indptr + at["entry"], rows.code_E, rows.next_E, mask_S, rows.mask_MW.reshape(-1))
        own += (rows.accepting.has(states), dfa.class_256, dfa.edge_indptr + at["edge"], dfa.label_E, dfa.next_E)
        for part, array in zip(parts, own, strict=True):
            part.append(array)
        places[id(one)] = [at["pointer"], at["state"], at["first"], at["class"], one.num_states]
        sizes = (
            len(rows.row_indptr),
            one.num_states,
            len(dfa.edge_indptr),
            256,
            len(rows.code_E),
            len(rows.mask_MW),
            len(dfa.label_E),
        )
        at = {name: place + size for (name, place), size in zip(at.items(), sizes, strict=True)}
    kinds = (np.int64, np.int32, np.int32, np.int32, np.uint64, np.uint8, np.uint8, np.int32, np.uint8, np.int32)
    arrays = [
        np.concatenate([*(array.astype(kind) for array in part), np.zeros(1, kind)])  # one more: nothing is empty
        for part, kind in zip(parts, kinds, strict=True)
    ]
    arrays += [np.append(texts[0].bytes_T, np.uint8(0)), texts[0].token_indptr]
    size = len(languages.automata)
    return DeviceAutomatonBatch(
        tables=tuple(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays),
        requests_B5=torch.tensor([places[id(one)] for one in languages.automata], device=device),
        words=different[0].arrays.mask_MW.shape[1],
        tokens=tokens,
        end_code=languages.end_code,
        num_codes=languages.num_codes,
        least_B=torch.full((size,), NO_KEY, dtype=torch.int64, device=device),
    )


def step(
    arrays: DeviceAutomatonBatch,
    level: int,
    lo_SBK: Tensor,
    hi_SBK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    filters: Any,
    *,
    num_beams: int,
    scoring: Scoring,
) -> Beams[Tensor]:
    """One round: see `leafbeam.ops.constrain.cpu.automaton.step`, which this equals.

    Waits once for the device, to learn of NaN and +inf (LogitsError); `launch` does without.
    """
    beams, bad = launch(arrays, level, lo_SBK, hi_SBK, scores_BK, logits_BKV, filters, num_beams=num_beams, scoring=scoring)
    if number := int(bad):
        raise LogitsError.not_finite(*divmod(number - 1, lo_SBK.shape[2]), f"in round {level}")
    return beams


def launch(
    arrays: DeviceAutomatonBatch,
    level: int,
    lo_SBK: Tensor,
    hi_SBK: Tensor,
    scores_BK: Tensor,
    logits_BKV: Tensor,
    filters: Any,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """(beams, bad): a round that does not wait for the device, from tensors on it; can be captured.

    bad: int64, 0, or the number + 1 of a row that held NaN or +inf. Raises ArgumentError and LogitsError, before any launch.
    """
    _, batch_size, num_rows = lo_SBK.shape
    size, device = arrays.num_codes, lo_SBK.device
    if lo_SBK.shape[:2] != (1, len(arrays.requests_B5)):
        raise ArgumentError(f"ranges have shape {tuple(lo_SBK.shape)}: expected (1, {len(arrays.requests_B5)}, beams)")
    if not 1 <= num_beams <= _MAX_BEAMS or num_rows * size >= 1 << 32:
        raise ArgumentError(
            f"num_beams is {num_beams} from {num_rows} beams of {size:,} codes: the kernels keep 1 to {_MAX_BEAMS:,} beams and "
            f"number all beams' codes in 32 bits"
        )
    if logits_BKV.shape != (batch_size, num_rows, size) or logits_BKV.stride(2) != 1:
        raise LogitsError(
            f"the logits have shape {tuple(logits_BKV.shape)} and strides {logits_BKV.stride()}: expected "
            f"{(batch_size, num_rows, size)} with the codes side by side; call .contiguous()"
        )
    power = max(16, triton.next_power_of_2(num_beams))
    keys_BRP = torch.empty((batch_size, num_rows, power), dtype=torch.int64, device=device)
    count_BR = torch.empty((batch_size, num_rows), dtype=torch.int32, device=device)
    scratch_BP = torch.empty((batch_size, power), dtype=torch.int64, device=device)
    numbers = torch.empty((4, batch_size, num_beams), dtype=torch.int64, device=device)
    scores = torch.empty((batch_size, num_beams), device=device)
    num_valid = torch.empty(batch_size, dtype=torch.int64, device=device)
    bad = torch.zeros((), dtype=torch.int64, device=device)
    lo_SBK, hi_SBK, scores_BK = (one.contiguous() for one in (lo_SBK, hi_SBK, scores_BK))
    language_row_kernel[(batch_size * num_rows,)](
        arrays.tables,
        arrays.requests_B5,
        lo_SBK,
        hi_SBK,
        scores_BK,
        logits_BKV,
        logits_BKV.stride(0),
        logits_BKV.stride(1),
        keys_BRP,
        count_BR,
        arrays.least_B,
        bad,
        batch_size,
        num_rows,
        size,
        num_beams,
        arrays.words,
        arrays.tokens,
        arrays.end_code,
        FULL=scoring == "full",
        P=power,
        TILE=min(1024, max(64, triton.next_power_of_2(size))),
        num_warps=4,
    )
    rows = triton.next_power_of_2(min(num_rows, 128))
    language_request_kernel[(batch_size,)](
        arrays.tables,
        arrays.requests_B5,
        lo_SBK,
        keys_BRP,
        count_BR,
        arrays.least_B,
        scratch_BP,
        scores,
        numbers,
        num_valid,
        num_rows,
        size,
        num_beams,
        arrays.end_code,
        P=power,
        ROWS=rows,
        ENTRIES=min(power, max(1, 1024 // rows)),
        CHUNK=16,
        num_warps=8,
    )
    parent, code, lo, hi = numbers
    return Beams(scores=scores, parent=parent, code=code, lo=lo[None], hi=hi[None], num_valid=num_valid), bad


@triton.jit
def _legal(tables, begin, count, mask, ends, lane, words, tokens, end_code):
    """(code, whether it may be taken) of these of a state's codes: entries of its row or of its mask, and then the end code."""
    in_row = (mask < 0) & (lane < count)
    in_mask = (mask >= 0) & (lane < tokens)
    code = tl.load(tables[1] + begin + lane, mask=in_row, other=0).to(tl.int64)
    word = tl.load(tables[4] + mask * words + (lane >> 6), mask=in_mask, other=0)
    bit = (word >> (lane & 63).to(tl.uint64)) & 1
    is_end = (lane == count) & (ends > 0)
    code = tl.where(in_mask, lane, tl.where(is_end, end_code, code))
    return code, in_row | (in_mask & (bit > 0)) | is_end


@triton.jit
def language_row_kernel(
    tables,
    requests_B5,
    lo_BR,
    hi_BR,
    scores_BR,
    logits_BRV,
    stride_b,
    stride_r,
    keys_BRP,
    count_BR,
    least_B,
    bad_1,
    batch_size,
    num_rows,
    size,
    num_beams,
    words,
    tokens,
    end_code,
    FULL: tl.constexpr,
    P: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program p works on beam p // B of request p % B. Writes up to P keys and their number; some may be `NO_KEY`."""
    program = tl.program_id(0).to(tl.int64)
    request = program % batch_size
    parent = program // batch_size
    row = request * num_rows + parent
    tl.store(count_BR + row, 0)
    state, hi = tl.load(lo_BR + row), tl.load(hi_BR + row)
    base = tl.load(scores_BR + row)
    least = tl.load(least_B + request, cache_modifier=".cg")
    # No step can raise a score, so a beam whose own is too low is out, unread.
    if (state >= hi) | (base == float("-inf")) | (key_of(base, state * 0) < least):
        return
    keys_P = keys_BRP + row * P
    if state == tl.load(requests_B5 + request * 5 + 4):  # ended: the end code again, which is certain
        tl.store(keys_P, key_of(base, parent * size + end_code))
        tl.store(count_BR + row, 1)
        return
    pointer = tl.load(requests_B5 + request * 5) + state
    place = tl.load(requests_B5 + request * 5 + 1) + state
    begin = tl.load(tables[0] + pointer)
    mask = tl.load(tables[3] + place).to(tl.int64)
    ends = tl.load(tables[5] + place).to(tl.int32)
    count = tl.load(tables[0] + pointer + 1) - begin
    count = tl.where(mask < 0, count, tokens)
    total = count + (ends > 0)
    logits = logits_BRV + request * stride_b + parent * stride_r
    top, summed = base * 0 - float("inf"), base * 0
    start = 0
    if FULL:
        while start < size:
            code = start + tl.arange(0, TILE)
            top, summed = sum_exp_at(logits, code, code < size, top, summed)
            start += TILE
    else:
        while start < total:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            code, legal = _legal(tables, begin, count, mask, ends, lane, words, tokens, end_code)
            top, summed = sum_exp_at(logits, code, legal, top, summed)
            start += TILE
    if (summed != summed) | (top == float("inf")):
        tl.store(bad_1, row + 1)
        return
    lse = top + tl.log(tl.maximum(summed, 1.0))  # never below the row's largest logit
    if (top == float("-inf")) | (key_of(base + (top - lse), state * 0) < least):
        return
    best = tl.full([P], _NOTHING, tl.int64)
    kept = tl.sum(tl.zeros([P], tl.int32), 0)
    start = 0
    while start < total:
        lane = start + tl.arange(0, TILE).to(tl.int64)
        code, legal = _legal(tables, begin, count, mask, ends, lane, words, tokens, end_code)
        key = key_at(logits, code, legal, base, lse, parent, size)
        best, kept, least = keep(best, kept, least, key, keys_P, num_beams, P)
        start += TILE
    tl.store(count_BR + row, kept)
    if kept >= num_beams:
        tl.atomic_max(least_B + request, least, sem="relaxed")


@triton.jit
def _find(values, begin, end, value, valid):
    """The first place of each lane's ascending values[begin:end] that is at least its `value`."""
    place = begin
    size = tl.where(valid, end - begin, 0)
    while tl.max(size, 0) > 1:
        half = size >> 1
        looks = half > 0
        go = looks & (tl.load(values + place + half - 1, mask=looks, other=0).to(tl.int64) < value)
        place = tl.where(go, place + half, place)
        size -= half
    one = size == 1
    return tl.where(one & (tl.load(values + place, mask=one, other=0).to(tl.int64) < value), place + 1, place)


@triton.jit
def language_request_kernel(
    tables,
    requests_B5,
    lo_BR,
    keys_BRP,
    count_BR,
    least_B,
    scratch_BP,
    out_scores_BK,
    out_BK,
    out_num_valid_B,
    num_rows,
    size,
    num_beams,
    end_code,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program b works on request b. out_BK: parents, codes, lo and hi, one [B, K] behind the other."""
    request = tl.program_id(0).to(tl.int64)
    scratch = scratch_BP + request * P
    best, kept = best_of_rows(keys_BRP, count_BR, least_B, scratch, request, num_rows, num_beams, P, ROWS, ENTRIES)
    tl.store(out_num_valid_B + request, kept.to(tl.int64))
    at, live, score, parent, code = placed(best, kept, scratch, size, P, CHUNK)
    last = tl.load(requests_B5 + request * 5 + 4)
    state = tl.load(lo_BR + request * num_rows + parent, mask=live, other=0)
    going = live & (code != end_code)
    pointer = tl.load(requests_B5 + request * 5) + state
    mask = tl.load(tables[3] + tl.load(requests_B5 + request * 5 + 1) + state, mask=going, other=-1)
    in_row, in_mask = going & (mask < 0), going & (mask >= 0)

    begin = tl.load(tables[0] + pointer, mask=in_row, other=0)
    end = tl.load(tables[0] + pointer + 1, mask=in_row, other=0)
    entry = _find(tables[1], begin, end, code, in_row)
    after = tl.load(tables[2] + entry, mask=in_row, other=0).to(tl.int64)

    first = tables[7] + tl.load(requests_B5 + request * 5 + 2)
    classes = tables[6] + tl.load(requests_B5 + request * 5 + 3)
    byte = tl.load(tables[11] + code, mask=in_mask, other=0)
    stop = tl.load(tables[11] + code + 1, mask=in_mask, other=0)
    while tl.max(stop - byte, 0) > 0:  # all lanes walk their token's bytes side by side
        walks = byte < stop
        label = tl.load(classes + tl.load(tables[10] + byte, mask=walks, other=0), mask=walks, other=0).to(tl.int64)
        edge = tl.load(first + state, mask=walks, other=0)
        edge = _find(tables[8], edge, tl.load(first + state + 1, mask=walks, other=0), label, walks)
        state = tl.where(walks, tl.load(tables[9] + edge, mask=walks, other=0).to(tl.int64), state)
        byte += walks.to(tl.int32)
    after = tl.where(in_mask, state, tl.where(going, after, last))
    out = request * num_beams + at
    inside = at < num_beams
    several = tl.num_programs(0).to(tl.int64) * num_beams
    tl.store(out_scores_BK + out, score, mask=inside)
    tl.store(out_BK + out, parent, mask=inside)
    tl.store(out_BK + several + out, code, mask=inside)
    tl.store(out_BK + 2 * several + out, tl.where(live, after, 0), mask=inside)
    tl.store(out_BK + 3 * several + out, tl.where(live, after + 1, 0), mask=inside)
