"""The constrained step over automata on a GPU: two launches a round, as `triton` has for tries.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch
from leafbeam.ops.constrain.triton.kernels import NO_KEY, Tiles, best_of_request, key_of, search_row, start_row
from leafbeam.ops.constrain.triton.ranges import first_at_least
from leafbeam.ops.constrain.triton.round import new_round
from leafbeam.ops.constrain.types import Beams, Scoring, waiting


class Tables(NamedTuple):
    """The automata one behind the other, then their byte automata, then the vocabulary.

    Args:
        mask_S: The mask of each state, -1 for a state with a row.
    """

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


_DTYPES = {
    "row_indptr": np.int64,
    "code_E": np.int32,
    "next_E": np.int32,
    "mask_S": np.int32,
    "mask_MW": np.uint64,
    "accepting_S": np.uint8,
    "class_256": np.uint8,
    "edge_indptr": np.int32,
    "label_F": np.uint8,
    "target_F": np.int32,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceAutomatonBatch:
    """The automata of a batch on a device, and what the rounds of one search share; only one search at a time may use it.

    Args:
        requests_B5: int64, for each request where its states begin in row_indptr and in mask_S, where those of its byte
            automaton begin in edge_indptr, where its classes begin, and its S.
    """

    tables: Tables
    requests_B5: Tensor
    words: int
    tokens: int
    end_code: int
    num_codes: int
    min_key_B: Tensor


def unsupported(batch: AutomatonBatch) -> str | None:
    """Return why a batch cannot run here, or None: it takes one vocabulary, and one end code that is not text."""
    if len(batch.end_codes) > 1 or any(batch.has_text_ends):
        return f"end_code is {batch.end_codes.tolist()}: expected one, which is not text, on a GPU"
    different = _different(batch)
    (token_indptr, bytes_T), *others = _vocabularies(different)
    if any(automaton.vocabulary_size != different[0].vocabulary_size for automaton in different) or not all(
        np.array_equal(indptr, token_indptr) and np.array_equal(text, bytes_T) for indptr, text in others
    ):
        return "the automata of one batch are over different vocabularies: expected one, on a GPU"
    return None


def _different(batch: AutomatonBatch) -> list[Automaton]:
    return list({id(automaton): automaton.filled() for automaton in batch.automata}.values())


def _vocabularies(automata: Sequence[Automaton]) -> list[tuple[NDArray[np.int32], NDArray[np.uint8]]]:
    """Return (token_indptr, bytes_T) of the automata with masks, which alone read them; of the first one if none has masks."""
    masked = [automaton.arrays for automaton in automata if len(automaton.arrays.table.mask_MW)] or [automata[0].arrays]
    return [(arrays.token_indptr, arrays.bytes_T) for arrays in masked]


def bind(batch: AutomatonBatch, device: torch.device | str) -> DeviceAutomatonBatch:
    """Copy the automata of a batch to a device, each different one once.

    Raises ArgumentError for what `unsupported` names.
    """
    if reason := unsupported(batch):
        raise ArgumentError(reason)
    different = _different(batch)
    tokens = different[0].vocabulary_size
    token_indptr, bytes_T = _vocabularies(different)[0]
    parts: dict[str, list[object]] = {name: [] for name in _DTYPES}
    starts: dict[int, list[int]] = {}
    for automaton in different:
        table, edges = automaton.arrays.table, automaton.arrays.dfa.edges
        size = {name: sum(map(len, arrays)) for name, arrays in parts.items()}  # of the automata before this one
        starts[id(automaton)] = [size[name] for name in ("row_indptr", "mask_S", "edge_indptr", "class_256")]
        own = {
            "row_indptr": table.row_indptr + size["code_E"],
            "code_E": table.code_E,
            "next_E": table.next_E,
            "mask_S": np.where(table.mask_S < 0, -1, table.mask_S + size["mask_MW"]),
            "mask_MW": table.mask_MW,
            "accepting_S": automaton.accepting.has(np.arange(automaton.num_states)),
            "class_256": edges.class_256,
            "edge_indptr": edges.edge_indptr + size["label_F"],
            "label_F": edges.label_E,
            "target_F": edges.next_E,
        }
        for name, array in own.items():
            parts[name].append(array)
    tables = {  # one element more: nothing is empty
        name: np.concatenate([*(array.reshape(-1).astype(dtype) for array in parts[name]), np.zeros(1, dtype)])
        for name, dtype in _DTYPES.items()
    }
    tables |= {"bytes_T": np.append(bytes_T, np.uint8(0)), "token_indptr": np.ascontiguousarray(token_indptr)}
    return DeviceAutomatonBatch(
        tables=Tables(**{name: torch.from_numpy(array).to(device) for name, array in tables.items()}),
        requests_B5=torch.tensor(
            [[*starts[id(automaton.filled())], automaton.num_states] for automaton in batch.automata], device=device
        ),
        words=different[0].arrays.table.mask_MW.shape[1],
        tokens=tokens,
        end_code=batch.end_code,
        num_codes=batch.num_codes,
        min_key_B=torch.full((len(batch.automata),), NO_KEY, dtype=torch.int64, device=device),
    )


def launch(
    arrays: DeviceAutomatonBatch,
    level: int,
    beams: Beams[Tensor],
    logits_BKV: Tensor,
    filters: object,
    *,
    num_beams: int,
    scoring: Scoring,
) -> tuple[Beams[Tensor], Tensor]:
    """Return (beams, bad): a round that does not wait for the device, from tensors on it; can be captured.

    bad: int64, 0, or the number + 1 of a row that held NaN or +inf. Raises ArgumentError and LogitsError, before any launch.
    """
    if beams.lo.shape[:2] != (1, len(arrays.requests_B5)):
        raise ArgumentError(f"ranges have shape {tuple(beams.lo.shape)}: expected (1, {len(arrays.requests_B5)}, beams)")
    size = arrays.num_codes
    r = new_round(beams, logits_BKV, arrays.min_key_B, size=size, num_beams=num_beams)
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
        NARROW=64,
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


step = waiting(launch, "in round")


class StateCodes(NamedTuple):
    """The legal codes of a state: where its row begins, or the number of its mask, and whether a sequence may end in it."""

    tables: Tables
    begin: tl.tensor
    count: tl.tensor
    mask: tl.tensor
    ends: tl.tensor
    words: tl.tensor
    tokens: tl.tensor
    end_code: tl.tensor


@triton.jit
def _legal(c, lane):
    """Return (code, whether it is legal, 0) of candidates of a state: entries of its row or of its mask, then the end code."""
    in_row = (c.mask < 0) & (lane < c.count)
    in_mask = (c.mask >= 0) & (lane < c.tokens)
    code = tl.load(c.tables.code_E + c.begin + lane, mask=in_row, other=0).to(tl.int64)
    word = tl.load(c.tables.mask_MW + c.mask * c.words + (lane >> 6), mask=in_mask, other=0)
    bit = (word >> (lane & 63).to(tl.uint64)) & 1
    is_end = (lane == c.count) & (c.ends > 0)
    code = tl.where(in_mask, lane, tl.where(is_end, c.end_code, code))
    return code, in_row | (in_mask & (bit > 0)) | is_end, lane.to(tl.float32) * 0


@triton.jit
def automaton_row_kernel(
    tables,
    requests_B5,
    r,
    words,
    tokens,
    end_code,
    FULL: tl.constexpr,
    P: tl.constexpr,
    TILE: tl.constexpr,
    NARROW: tl.constexpr,
):
    """`search_row` over the legal codes of a beam's state."""
    request, parent, row = start_row(r)
    state, hi = tl.load(r.lo_SBR + row), tl.load(r.hi_SBR + row)
    base = tl.load(r.scores_BR + row)
    min_key = tl.load(r.min_key_B + request, cache_modifier=".cg")
    # No step can raise a score, so a beam whose own is too low is out, unread.
    if (state >= hi) | (base == float("-inf")) | (key_of(base, state * 0) < min_key):
        return
    if state == tl.load(requests_B5 + request * 5 + 4):  # ended: the end code again, which is certain
        tl.store(r.keys_BRP + row * P, key_of(base, parent * r.size + end_code))
        tl.store(r.count_BR + row, 1)
        return
    pointer = tl.load(requests_B5 + request * 5) + state
    own = tl.load(requests_B5 + request * 5 + 1) + state
    begin = tl.load(tables.row_indptr + pointer)
    mask = tl.load(tables.mask_S + own).to(tl.int64)
    ends = tl.load(tables.accepting_S + own).to(tl.int32)
    count = tl.load(tables.row_indptr + pointer + 1) - begin
    count = tl.where(mask < 0, count, tokens)
    children = StateCodes(tables, begin, count, mask, ends, words, tokens, end_code)
    search_row(r, request, parent, min_key, count + (ends > 0), children, _legal, FULL, Tiles(P, TILE, NARROW, TILE))


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
