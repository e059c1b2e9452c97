"""The constrained step over automata on a CPU, with the verbs that `cpu.step` has for tries.

    a beam's range   [state, state + 1) of its request's automaton; (S, S + 1) has ended, where S is the number of states;
                     (0, 0) is dead
    legal codes      the state's row, or the set bits of its mask, and the end codes where a sequence may end
    end codes        count as one event, with the sum of their probabilities; a code that is also in the state's row is text
                     there, and ends the sequence after it if a sequence may end there
    kept             the K best by (score desc, parent asc, code asc); only their next states are looked up
    an ended beam    keeps its score: its only child is the first end code again, with probability 1

There is one segment, nothing is filtered, and the level only numbers the round in messages.

Shapes: B requests, K beams, R rows (B x K), V codes, C legal codes, S states of a request's automaton.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError, LogitsError, check_whole, counted
from leafbeam.index.bit_kernels import trailing_zeros
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK, log_sum_exp
from leafbeam.ops.constrain.cpu.ragged import HostCodes, extend_ragged, parents_at, take
from leafbeam.ops.constrain.cpu.topk import (
    Scratch,
    arrival_of,
    candidate_buffers,
    candidates_in,
    compact,
    offer,
    push,
    score_of,
    sort_best,
)
from leafbeam.ops.constrain.legal_codes import LegalCodes
from leafbeam.ops.constrain.types import Beams, HostBeams, Scoring


@dataclass(frozen=True, kw_only=True, eq=False)
class AutomatonBatch:
    """One automaton for each request of a batch, the codes that end a sequence, and the number of the model's codes.

    Args:
        end_codes: int64, ascending.
        has_text_ends: For each automaton, whether one of the end codes is a token of its language.
    """

    automata: tuple[Automaton, ...]
    end_codes: NDArray[np.int64]
    num_codes: int
    has_text_ends: tuple[bool, ...]
    scratch: Scratch = field(default_factory=Scratch, repr=False)

    @property
    def end_code(self) -> int:
        """Return the code that beams take after their end."""
        return int(self.end_codes[0])


class BestCodes(NamedTuple):
    """The best codes of each request, (B, num_beams), and their number, (B,)."""

    scores: NDArray[np.floating]
    parent: NDArray[np.int64]
    code: NDArray[np.int64]
    num_valid: NDArray[np.int64]


def bind(automata: Sequence[Automaton], *, end_code: int | Sequence[int], num_codes: int) -> AutomatonBatch:
    """Join the automata of a batch without copying them; requests may share one automaton.

    Raises ArgumentError.

    Args:
        end_code: The model's end-of-sequence code, which no automaton may have as a token of its language; or a list of
            several, which may be such tokens too.
        num_codes: V, the width of the model's logits.
    """
    end_codes = np.unique(np.array([end_code] if isinstance(end_code, int) else end_code, np.int64))
    if not len(automata):
        raise ArgumentError("there are no automata: expected one for each request, at least one")
    if not len(end_codes) or not 0 <= end_codes[0] <= end_codes[-1] < num_codes:
        raise ArgumentError(f"end_code is {end_code}: expected a code of the model, 0 to {num_codes - 1:,}")
    has_text_ends: dict[int, bool] = {}
    for key, automaton in {id(automaton): automaton for automaton in automata}.items():
        if automaton.vocabulary_size > num_codes:
            raise ArgumentError(
                f"the automaton is over {counted(automaton.vocabulary_size, 'token')}, "
                f"the model has {counted(num_codes, 'code')}: expected at "
                f"most as many; build it with the model's own vocabulary"
            )
        has_text_ends[key] = any(automaton.has_token(code) for code in end_codes.tolist())
        if isinstance(end_code, int) and has_text_ends[key]:
            raise ArgumentError(
                f"end_code {end_code} is a token of the language: give special tokens None in the vocabulary, so that they "
                f"never stand for text"
            )
    return AutomatonBatch(
        automata=tuple(automata),
        end_codes=end_codes,
        num_codes=num_codes,
        has_text_ends=tuple(has_text_ends[id(automaton)] for automaton in automata),
    )


def roots(arrays: AutomatonBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ranges (lo_SB1, hi_SB1) of the first round, in which every request is in its start state."""
    lo = np.zeros((1, len(arrays.automata), 1), np.int64)
    return lo, lo + 1


def legal(arrays: AutomatonBatch, lo_SBK: NDArray[np.int64], hi_SBK: NDArray[np.int64]) -> HostCodes:
    """Return the legal codes of every beam; a dead beam has none. Cost: 1 ns a code."""
    _, batch_size, num_rows = lo_SBK.shape
    _check(arrays, lo_SBK)
    row_indptr, parts = np.zeros(batch_size * num_rows + 1, np.int64), []
    space = arrays.scratch.array("codes", (arrays.num_codes + 1,), np.int64)
    for request, automaton in enumerate(arrays.automata):
        table, ends = tuple(_table(automaton, lo_SBK[0, request], hi_SBK[0, request])), arrays.end_codes
        for beam in range(num_rows):
            live = hi_SBK[0, request, beam] > lo_SBK[0, request, beam]
            count = _legal_codes(table, lo_SBK[0, request, beam], ends, space) if live else 0
            parts.append(space[:count].copy())
            row_indptr[request * num_rows + beam + 1] = count
    return LegalCodes.of(np.cumsum(row_indptr), np.concatenate(parts))


def step(
    arrays: AutomatonBatch,
    level: int,
    beams: Beams[NDArray[np.generic]],
    logits_BKV: NDArray[np.float32],
    filters: object,
    *,
    num_beams: int,
    scoring: Scoring,
) -> HostBeams:
    """Run one round of constrained beam search, as `leafbeam.ops.constrain.reference.step` does, over the children of an
    automaton.

    Cost: one read of the logits for "full", and of the legal ones; rows whose beam cannot be among the best are not read.
    Raises LogitsError where a row that was read holds NaN or +inf, ArgumentError for shapes that do not fit.
    """
    lo_SBK, hi_SBK, scores_BK = beams.lo, beams.hi, beams.scores
    _check(arrays, lo_SBK)
    _, batch_size, num_rows = lo_SBK.shape
    if logits_BKV.shape != (batch_size, num_rows, arrays.num_codes):
        raise LogitsError(f"the logits have shape {logits_BKV.shape}: expected {(batch_size, num_rows, arrays.num_codes)}")
    where = f"in round {level}"
    if len(arrays.end_codes) > 1:  # they are joined in a copy of the legal codes' logits
        legal_logits = _legal_logits(arrays, lo_SBK, hi_SBK, logits_BKV, scoring)
        return extend(arrays, lo_SBK, scores_BK, *legal_logits, num_beams=num_beams, where=where)
    check_whole(num_beams=num_beams)
    buffers = candidate_buffers(num_beams)
    codes_V = arrays.scratch.array("codes", (arrays.num_codes + 1,), np.int64)
    floats = arrays.scratch.array("floats", (2, max(arrays.num_codes + 1, arrays.num_codes // CHUNK + 2)), np.float32)
    best = BestCodes(
        scores=np.full((batch_size, num_beams), -np.inf, np.float32),
        parent=np.zeros((batch_size, num_beams), np.int64),
        code=np.zeros((batch_size, num_beams), np.int64),
        num_valid=np.zeros(batch_size, np.int64),
    )
    for request, automaton in enumerate(arrays.automata):
        ranges = lo_SBK[0, request], hi_SBK[0, request]
        table = tuple(_table(automaton, *ranges))
        scores_K, logits_KV, full = scores_BK[request], logits_BKV[request], scoring == "full"
        bad = _step_rows(
            table, arrays.end_codes, ranges, scores_K, logits_KV, full, codes_V, floats, buffers, request, tuple(best)
        )
        if bad >= 0:
            raise LogitsError.not_finite(request, bad, where)
    return _in_next_states(arrays, lo_SBK, best)


def _legal_logits(
    arrays: AutomatonBatch,
    lo_SBK: NDArray[np.int64],
    hi_SBK: NDArray[np.int64],
    logits_BKV: NDArray[np.float32],
    scoring: Scoring,
) -> tuple[HostCodes, NDArray[np.float32], NDArray[np.float32]]:
    """Return the arguments of `extend`: the legal codes, a copy of their logits, and lse_R."""
    logits_RV, chunks = logits_BKV.reshape(-1, arrays.num_codes), np.empty(arrays.num_codes // CHUNK + 2, np.float32)
    codes = legal(arrays, lo_SBK, hi_SBK)
    logit_C = logits_RV[codes.row_C, codes.code_C]
    rows = logits_RV if scoring == "full" else [logit_C[begin:end] for begin, end in pairwise(codes.indptr_R1.tolist())]
    lse_R = np.array([log_sum_exp(row, chunks)[1] if len(row) else -np.inf for row in rows], np.float32)
    return codes, logit_C, lse_R


def join_ends(
    arrays: AutomatonBatch, lo_SBK: NDArray[np.int64], codes: HostCodes, logit_C: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return logits in which the likeliest end code of each row has the mass of all, and the others -inf.

    A code that is text in a row is not an end code there. With one end code these are the logits themselves.
    """
    if len(arrays.end_codes) == 1:
        return logit_C
    logit_C, num_rows = logit_C.copy(), lo_SBK.shape[2]
    is_end_C = np.isin(codes.code_C, arrays.end_codes)
    for row, (begin, end) in enumerate(pairwise(codes.indptr_R1.tolist())):
        request, beam = divmod(row, num_rows)
        at = begin + np.flatnonzero(is_end_C[begin:end])
        if len(at) > 1:
            automaton, state = arrays.automata[request], lo_SBK[0, request, beam]
            at = at[_text_states(automaton, np.full(len(at), state), codes.code_C[at]) < 0]
        if len(at) > 1:
            joined, best = np.logaddexp.reduce(logit_C[at]), at[logit_C[at].argmax()]
            logit_C[at] = -np.inf
            logit_C[best] = joined
    return logit_C


def extend(
    arrays: AutomatonBatch,
    lo_SBK: NDArray[np.int64],
    scores_BK: NDArray[np.float32],
    codes: HostCodes,
    logit_C: NDArray[np.float32],
    lse_R: NDArray[np.float32],
    *,
    num_beams: int,
    where: str = "",
) -> HostBeams:
    """Run a round where only the logits of legal codes were computed (`ops.head`): `codes` is what `legal` returned.

    lse_R decides the scoring: over all codes ("full") or over the legal ones ("allowed"). Raises LogitsError for NaN and +inf.
    """
    check_whole(num_beams=num_beams)
    logit_C = join_ends(arrays, lo_SBK, codes, logit_C)
    ended_BK = lo_SBK[0] == np.array([[automaton.num_states] for automaton in arrays.automata])
    slots_BK, best_BK = extend_ragged(codes, logit_C, lse_R, scores_BK, num_beams=num_beams, ended_BK=ended_BK, where=where)
    return beams_at(arrays, lo_SBK, codes, slots_BK, best_BK)


def beams_at(
    arrays: AutomatonBatch,
    lo_SBK: NDArray[np.int64],
    codes: HostCodes,
    slots_BK: NDArray[np.int64],
    scores_BK: NDArray[np.floating],
) -> HostBeams:
    """Return the legal codes at these positions of C as beams in their next states; -1 is a dead beam."""
    parent_BK, code_BK = parents_at(codes, slots_BK, lo_SBK.shape[2]), take(codes.code_C, slots_BK)
    num_valid_B = (slots_BK >= 0).sum(axis=1)
    return _in_next_states(arrays, lo_SBK, BestCodes(scores=scores_BK, parent=parent_BK, code=code_BK, num_valid=num_valid_B))


def _in_next_states(arrays: AutomatonBatch, lo_SBK: NDArray[np.int64], best: BestCodes) -> Beams[NDArray[np.generic]]:
    """Return beams in the states that their codes lead to."""
    lo, hi = np.zeros((2, 1, *best.code.shape), np.int64)
    for request, automaton in enumerate(arrays.automata):
        count = int(best.num_valid[request])
        before = lo_SBK[0, request, best.parent[request, :count]]
        lo[0, request, :count] = next_states(automaton, arrays.end_codes, before, best.code[request, :count])
        hi[0, request, :count] = lo[0, request, :count] + 1
    return Beams(**best._asdict(), lo=lo, hi=hi)


def next_states(
    automaton: Automaton, end_codes: NDArray[np.int64], states_R: NDArray[np.int64], codes_R: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the states after legal codes. An end code leads to S, even if it is text, if a sequence may end there."""
    after_R = _text_states(automaton, states_R, codes_R)
    ends_R = after_R < 0
    spelled = np.flatnonzero(~ends_R & np.isin(codes_R, end_codes))
    ends_R[spelled] = automaton.accepting.has(after_R[spelled])
    after_R[ends_R] = automaton.num_states
    return after_R


def _text_states(automaton: Automaton, states_R: NDArray[np.int64], codes_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the state after each code that is a token of the language in its state; -1 for one that is not."""
    after_R = np.full(len(states_R), -1, np.int64)
    may_be_R = (states_R < automaton.num_states) & (codes_R < automaton.vocabulary_size)
    after_R[may_be_R] = automaton.step(states_R[may_be_R], codes_R[may_be_R])
    return after_R


def num_text_codes(automaton: Automaton, end_codes: NDArray[np.int64], codes_T: NDArray[np.int64]) -> int:
    """Return the number of codes of an ended beam that are its text."""
    state = np.zeros(1, np.int64)
    for t, code in enumerate(codes_T):
        is_text = _text_states(automaton, state, code[None])[0] >= 0
        state = next_states(automaton, end_codes, state, code[None])
        if state[0] == automaton.num_states:
            return t + int(is_text)
    return len(codes_T)


class LegalTable(NamedTuple):
    """The legal codes of each state, as kernels read them (see `TransitionTable`)."""

    row_indptr: NDArray[np.int64]
    code_E: NDArray[np.int32]
    mask_S: NDArray[np.int32]
    mask_MW: NDArray[np.uint64]
    accepting_W: NDArray[np.uint64]


def _table(automaton: Automaton, lo_K: NDArray[np.int64], hi_K: NDArray[np.int64]) -> LegalTable:
    """Return a table with the legal codes of the states of these beams."""
    table = automaton.table(lo_K[(lo_K < hi_K) & (lo_K < automaton.num_states)])
    return LegalTable(table.row_indptr, table.code_E, table.mask_S, table.mask_MW, automaton.accepting.words_W)


def _check(arrays: AutomatonBatch, lo_SBK: NDArray[np.int64]) -> None:
    if lo_SBK.shape[:2] != (1, len(arrays.automata)):
        raise ArgumentError(
            f"ranges have shape {lo_SBK.shape}: expected (1, {len(arrays.automata)}, beams), a request for each automaton"
        )


@njit(cache=True, nogil=True, _nrt=False)
def _legal_codes(table, state, end_codes, out_C):
    """Write the legal codes of a state, ascending, the end codes among them where a sequence may end; returns how many."""
    row_indptr, code_E, mask_S, mask_MW, accepting_W = table
    if state == mask_S.size:  # ended
        out_C[0] = end_codes[0]
        return 1
    ends = (accepting_W[state >> 6] >> np.uint64(state & 63)) & np.uint64(1) != 0
    count, next_end = 0, 0 if ends else end_codes.size  # the next end code to be written
    if mask_S[state] < 0:
        for entry in range(row_indptr[state], row_indptr[state + 1]):
            while next_end < end_codes.size and end_codes[next_end] <= code_E[entry]:
                if end_codes[next_end] < code_E[entry]:
                    out_C[count] = end_codes[next_end]
                    count += 1
                next_end += 1
            out_C[count] = code_E[entry]
            count += 1
    else:
        for word in range(mask_MW.shape[1]):
            bits = mask_MW[mask_S[state], word]
            while next_end < end_codes.size and end_codes[next_end] >> 6 == word:
                bits |= np.uint64(1) << np.uint64(end_codes[next_end] & 63)
                next_end += 1
            while bits:
                out_C[count] = word * 64 + np.int64(trailing_zeros(bits))
                count += 1
                bits &= bits - np.uint64(1)
    while next_end < end_codes.size:
        out_C[count] = end_codes[next_end]
        count += 1
        next_end += 1
    return count


@njit(cache=True, nogil=True, _nrt=False)
def _step_rows(table, end_codes, ranges, scores_K, logits_KV, full, codes_V, floats, buffers, request, out):
    """Search all beams of a request; returns -1, or the number of a beam whose logits hold NaN or +inf.

    ranges: (lo_K, hi_K). codes_V: for the legal codes of a row. floats: for their logits, and the maxima of chunks of logits.
    """
    out, (lo_K, hi_K), (gathered, chunks) = BestCodes(*out), ranges, (floats[0], floats[1])
    num_beams, candidates = out.scores.shape[1], candidates_in(buffers)
    count, threshold = 0, np.float32(-np.inf)
    for k in range(lo_K.size):
        base = scores_K[k]
        if lo_K[k] >= hi_K[k] or base <= threshold:
            continue
        codes = codes_V[: _legal_codes(table, lo_K[k], end_codes, codes_V)]
        if lo_K[k] == LegalTable(*table).mask_S.size:  # ended: certain, whatever the model says
            count, threshold = push(candidates, count, threshold, num_beams, base, k, end_codes[0], 0)
            continue
        row = logits_KV[k]
        if not full:
            for i in range(codes.size):
                gathered[i] = row[codes[i]]
        top, lse = log_sum_exp(row if full else gathered[: codes.size], chunks)
        if math.isnan(lse):
            return k
        if top == np.float32(-np.inf) or (threshold > np.float32(-np.inf) and base + (top - lse) <= threshold):
            continue
        count, threshold = offer(row, codes, codes, codes, base, lse, k, candidates, count, threshold, num_beams)
        if count > num_beams:
            threshold, count = compact(candidates, count, num_beams), num_beams
    count = sort_best(candidates, count, num_beams)
    for slot in range(count):
        key = candidates.keys[slot]
        candidate = arrival_of(key)
        out.scores[request, slot] = score_of(key)
        out.parent[request, slot], out.code[request, slot] = candidates.parents[candidate], candidates.codes[candidate]
    out.num_valid[request] = count
    return -1
