"""The constrained step over regular batch on a GPU: two launches a round, as `triton` has for tries.

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
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch
from leafbeam.ops.constrain.triton.kernels import (
    NO_KEY,
    best_of_request,
    keep,
    key_at,
    key_of,
    start_row,
    store_best,
    sum_exp_at,
    sum_exp_of_row,
)
from leafbeam.ops.constrain.triton.ranges import first_at_least
from leafbeam.ops.constrain.triton.round import new_round
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = ["DeviceAutomatonBatch", "bind", "launch", "step"]

_NOTHING = tl.constexpr(NO_KEY)


class Tables(NamedTuple):
    """The automata one behind the other, then their byte automata, then the vocabulary. mask_S: -1 where a state has a row."""

    row_indptr: Tensor
    code_E: Tensor
    next_E: Tensor
    mask_S: Tensor
    mask_MW: Tensor
    accepting_S: Tensor
    class_256: Tensor
    edge_indptr: Tensor
    label_F: Tensor
    target_F: Tensor
    bytes_T: Tensor
    token_indptr: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceAutomatonBatch:
    """The automata of a batch on a device, and what the rounds of one search share: one search at a time uses it.

    requests_B5: int64, for each request where its states begin in row_indptr and in mask_S, where those of its byte automaton
    begin in edge_indptr, where its classes begin, and its S.
    """

    tables: Tables
    requests_B5: Tensor
    words: int
    tokens: int
    end_code: int
    num_codes: int
    least_B: Tensor


def bind(batch: AutomatonBatch, device: torch.device | str) -> DeviceAutomatonBatch:
    """Copy the automata of a batch to a device, each different one once. They must be over one vocabulary (ArgumentError)."""
    different = list({id(one): one for one in batch.automata}.values())
    tokens = different[0].vocabulary_size
    texts = [one.arrays for one in different if len(one.arrays.table.mask_MW)] or [different[0].arrays]
    for one in different:
        same = one.vocabulary_size == tokens and (
            not len(one.arrays.table.mask_MW)
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
        rows, edges = one.arrays.table, one.arrays.dfa.edges
        states = np.arange(one.num_states)
        mask_S = np.where(rows.mask_S < 0, -1, rows.mask_S + at["mask"])
        own = (rows.row_indptr + at["entry"], rows.code_E, rows.next_E, mask_S, rows.mask_MW.reshape(-1))
        own += (one.accepting.has(states), edges.class_256, edges.edge_indptr + at["edge"], edges.label_E, edges.next_E)
        for part, array in zip(parts, own, strict=True):
            part.append(array)
        places[id(one)] = [at["pointer"], at["state"], at["first"], at["class"], one.num_states]
        sizes = (
            len(rows.row_indptr),
            one.num_states,
            len(edges.edge_indptr),
            256,
            len(rows.code_E),
            len(rows.mask_MW),
            len(edges.label_E),
        )
        at = {name: place + size for (name, place), size in zip(at.items(), sizes, strict=True)}
    kinds = (np.int64, np.int32, np.int32, np.int32, np.uint64, np.uint8, np.uint8, np.int32, np.uint8, np.int32)
    arrays = [
        np.concatenate([*(array.astype(kind) for array in part), np.zeros(1, kind)])  # one more: nothing is empty
        for part, kind in zip(parts, kinds, strict=True)
    ]
    arrays += [np.append(texts[0].bytes_T, np.uint8(0)), texts[0].token_indptr]
    size = len(batch.automata)
    return DeviceAutomatonBatch(
        tables=Tables(*(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)),
        requests_B5=torch.tensor([places[id(one)] for one in batch.automata], device=device),
        words=different[0].arrays.table.mask_MW.shape[1],
        tokens=tokens,
        end_code=batch.end_code,
        num_codes=batch.num_codes,
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
    if lo_SBK.shape[:2] != (1, len(arrays.requests_B5)):
        raise ArgumentError(f"ranges have shape {tuple(lo_SBK.shape)}: expected (1, {len(arrays.requests_B5)}, beams)")
    size = arrays.num_codes
    r = new_round(lo_SBK, hi_SBK, scores_BK, logits_BKV, arrays.least_B, size=size, num_beams=num_beams)
    automaton_row_kernel[(r.batch_size * r.num_rows,)](
        arrays.tables,
        arrays.requests_B5,
        r,
        arrays.words,
        arrays.tokens,
        arrays.end_code,
        FULL=scoring == "full",
        P=r.power,
        TILE=min(1024, max(64, triton.next_power_of_2(size))),
        num_warps=4,
    )
    automaton_request_kernel[(r.batch_size,)](
        arrays.tables,
        arrays.requests_B5,
        r,
        arrays.end_code,
        P=r.power,
        ROWS=r.rows,
        ENTRIES=min(r.power, max(1, 1024 // r.rows)),
        CHUNK=16,
        num_warps=8,
    )
    return r.beams, r.bad


@triton.jit
def _legal(tables, begin, count, mask, ends, lane, words, tokens, end_code):
    """(code, whether it is legal) of these of a state's codes: entries of its row or of its mask, and then the end code."""
    in_row = (mask < 0) & (lane < count)
    in_mask = (mask >= 0) & (lane < tokens)
    code = tl.load(tables.code_E + begin + lane, mask=in_row, other=0).to(tl.int64)
    word = tl.load(tables.mask_MW + mask * words + (lane >> 6), mask=in_mask, other=0)
    bit = (word >> (lane & 63).to(tl.uint64)) & 1
    is_end = (lane == count) & (ends > 0)
    code = tl.where(in_mask, lane, tl.where(is_end, end_code, code))
    return code, in_row | (in_mask & (bit > 0)) | is_end


@triton.jit
def automaton_row_kernel(
    tables, requests_B5, r, words, tokens, end_code, FULL: tl.constexpr, P: tl.constexpr, TILE: tl.constexpr
):
    """As `row_kernel`: write up to P keys of a row and their number; some may be `NO_KEY`."""
    request, parent, row = start_row(r)
    state, hi = tl.load(r.lo_SBR + row), tl.load(r.hi_SBR + row)
    base = tl.load(r.scores_BR + row)
    least = tl.load(r.least_B + request, cache_modifier=".cg")
    # No step can raise a score, so a beam whose own is too low is out, unread.
    if (state >= hi) | (base == float("-inf")) | (key_of(base, state * 0) < least):
        return
    keys_P = r.keys_BRP + row * P
    if state == tl.load(requests_B5 + request * 5 + 4):  # ended: the end code again, which is certain
        tl.store(keys_P, key_of(base, parent * r.size + end_code))
        tl.store(r.count_BR + row, 1)
        return
    pointer = tl.load(requests_B5 + request * 5) + state
    own = tl.load(requests_B5 + request * 5 + 1) + state
    begin = tl.load(tables.row_indptr + pointer)
    mask = tl.load(tables.mask_S + own).to(tl.int64)
    ends = tl.load(tables.accepting_S + own).to(tl.int32)
    count = tl.load(tables.row_indptr + pointer + 1) - begin
    count = tl.where(mask < 0, count, tokens)
    total = count + (ends > 0)
    logits = r.logits_BRV + request * r.stride_b + parent * r.stride_r
    top, summed = base * 0 - float("inf"), base * 0
    if FULL:
        top, summed = sum_exp_of_row(logits, r.size, top, summed, TILE)
    else:
        start = 0
        while start < total:
            lane = start + tl.arange(0, TILE).to(tl.int64)
            code, legal = _legal(tables, begin, count, mask, ends, lane, words, tokens, end_code)
            top, summed = sum_exp_at(logits, code, legal, top, summed)
            start += TILE
    if (summed != summed) | (top == float("inf")):
        tl.store(r.bad, row + 1)
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
        key = key_at(logits, code, legal, base, lse, parent, r.size)
        best, kept, least = keep(best, kept, least, key, keys_P, r.num_beams, P)
        start += TILE
    store_best(r, request, row, kept, least)


@triton.jit
def automaton_request_kernel(
    tables, requests_B5, r, end_code, P: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, CHUNK: tl.constexpr
):
    """Program b writes the new beams of request b, and the states that they lead to."""
    request = tl.program_id(0).to(tl.int64)
    slot, live, parent, code = best_of_request(r, request, P, ROWS, ENTRIES, CHUNK)
    last = tl.load(requests_B5 + request * 5 + 4)
    state = tl.load(r.lo_SBR + request * r.num_rows + parent, mask=live, other=0)
    going = live & (code != end_code)
    pointer = tl.load(requests_B5 + request * 5) + state
    mask = tl.load(tables.mask_S + tl.load(requests_B5 + request * 5 + 1) + state, mask=going, other=-1)
    in_row, in_mask = going & (mask < 0), going & (mask >= 0)

    begin = tl.load(tables.row_indptr + pointer, mask=in_row, other=0)
    end = tl.load(tables.row_indptr + pointer + 1, mask=in_row, other=0)
    entry = first_at_least(tables.code_E, begin, end, code, in_row, 0)
    after = tl.load(tables.next_E + entry, mask=in_row, other=0).to(tl.int64)

    edges = tables.edge_indptr + tl.load(requests_B5 + request * 5 + 2)
    classes = tables.class_256 + tl.load(requests_B5 + request * 5 + 3)
    byte = tl.load(tables.token_indptr + code, mask=in_mask, other=0)
    stop = tl.load(tables.token_indptr + code + 1, mask=in_mask, other=0)
    while tl.max(stop - byte, 0) > 0:  # all lanes walk their token's bytes side by side
        walks = byte < stop
        label = tl.load(classes + tl.load(tables.bytes_T + byte, mask=walks, other=0), mask=walks, other=0).to(tl.int64)
        edge = tl.load(edges + state, mask=walks, other=0)
        edge = first_at_least(tables.label_F, edge, tl.load(edges + state + 1, mask=walks, other=0), label, walks, 0)
        state = tl.where(walks, tl.load(tables.target_F + edge, mask=walks, other=0).to(tl.int64), state)
        byte += walks.to(tl.int32)
    after = tl.where(in_mask, state, tl.where(going, after, last))
    out, inside = request * r.num_beams + slot, slot < r.num_beams
    tl.store(r.out_lo_SBK + out, tl.where(live, after, 0), mask=inside)
    tl.store(r.out_hi_SBK + out, tl.where(live, after + 1, 0), mask=inside)
