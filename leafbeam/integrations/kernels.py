"""Compiled kernels of the logits processor: from tokens to leaf ranges, from leaf ranges to scores.

Levels and filters are tuples with one entry for each segment. Tensors are passed as addresses and everything runs in one call,
because inside `generate` every array argument costs as much as a row. Nothing allocates.

Shapes: S segments, R rows (a request's rows together), D depths (0 to L tokens generated), L levels, T tokens of a row, V codes
of a level, K tokens of a level, W tokens of the model.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import math

import numpy as np

from leafbeam.index.bit_kernels import float32_at, int64_at
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.children import (
    FilterAddresses,
    alive_in,
    allowed_of,
    child_range,
    children_bounds,
    collect,
    find_code,
    first_at_least,
)
from leafbeam.ops.constrain.cpu.logsumexp import log_sum_exp
from leafbeam.ops.constrain.levels import LevelView


@njit(nogil=True, _nrt=False)
def _slot_of(table, tokens_RL, rows, depth, tokens_t, request):
    """Return the slot of the row with this request and these first `depth` tokens, or the empty slot for it."""
    state = np.uint64(request) + np.uint64(0x9E3779B97F4A7C15)
    for i in range(depth):
        state = (state ^ np.uint64(tokens_t[i])) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    slot = np.int64(state & np.uint64(table.size - 1))
    while table[slot] >= 0:
        row = table[slot]
        is_equal = row // rows == request
        for i in range(depth):
            is_equal &= tokens_RL[row, i] == tokens_t[i]
        if is_equal:
            break
        slot = (slot + 1) & (table.size - 1)
    return slot


@njit(nogil=True, _nrt=False)
def _allowed_child_range(level, filters, request, lo, hi, code):
    """Return the range of the child of [lo, hi) with this code, (0, 0) if it has no leaf that the filter allows."""
    if lo < hi and code >= 0:
        level = LevelView(*level)
        begin, end = children_bounds(level, lo, hi)
        index = find_code(level, begin, end, code)
        if index >= 0:
            child_lo, child_hi = child_range(level, index)
            if alive_in(allowed_of(FilterAddresses(*filters), request, level.num_leaves), child_lo, child_hi) > 0:
                return child_lo, child_hi
    return np.int64(0), np.int64(0)


@njit(cache=True, nogil=True, _nrt=False)
def advance_rows(levels, filters, sorted_2K, address, stride, prompt_length, depth, rows, tokens_DRL, ranges_D2SR, table):
    """Read `depth` >= 1 tokens of each row and write their leaf ranges, empty for an illegal prefix.

    address: int64, R sequences `stride` apart, with their prompts; `rows` of them for each request. tokens_DRL, ranges_D2SR:
    `depth` is written, the depth before read. sorted_2K: the tokens of level depth - 1, ascending, and their codes. table:
    buffer of a hash table, a power of two, more than 2 R.
    Returns False if the depth before lacks the prefix of a row.
    """
    tokens_RL, ranges_2SR = tokens_DRL[depth], ranges_D2SR[depth]
    previous_RL, previous_2SR = tokens_DRL[depth - 1], ranges_D2SR[depth - 1]
    num_rows = tokens_RL.shape[0]
    sequences = int64_at(address, num_rows * stride)
    table[:] = -1
    for row in range(num_rows):
        slot = _slot_of(table, previous_RL, rows, depth - 1, previous_RL[row], row // rows)
        table[slot] = row  # any of several equal rows
    for row in range(num_rows):
        request = row // rows
        for i in range(depth):
            tokens_RL[row, i] = sequences[row * stride + prompt_length + i]
        parent = table[_slot_of(table, previous_RL, rows, depth - 1, tokens_RL[row], request)]
        if parent < 0:
            return False
        token = tokens_RL[row, depth - 1]
        index = first_at_least(sorted_2K[0], 0, sorted_2K.shape[1], token)
        code = sorted_2K[1, index] if index < sorted_2K.shape[1] and sorted_2K[0, index] == token else np.int64(-1)
        lo, hi = previous_2SR[0, 0, parent], previous_2SR[1, 0, parent]
        ranges_2SR[0, 0, row], ranges_2SR[1, 0, row] = _allowed_child_range(levels[0], filters[0], request, lo, hi, code)
        if len(levels) > 1:
            lo, hi = previous_2SR[0, 1, parent], previous_2SR[1, 1, parent]
            ranges_2SR[0, 1, row], ranges_2SR[1, 1, row] = _allowed_child_range(levels[1], filters[1], request, lo, hi, code)
    return True


@njit(nogil=True, _nrt=False)
def _legal_codes(levels, filters, request, ranges_2SR, row, codes_4V):
    """Write the legal codes of a row to codes_4V[0], those only in the delta last; returns their number."""
    level = LevelView(*levels[0])
    allowed = allowed_of(FilterAddresses(*filters[0]), request, level.num_leaves)
    lo, hi = ranges_2SR[0, 0, row], ranges_2SR[1, 0, row]
    count = collect(level, allowed, lo, hi, codes_4V[0], codes_4V[1]) if lo < hi else 0
    if len(levels) > 1:
        lo_1, hi_1 = ranges_2SR[0, 1, row], ranges_2SR[1, 1, row]
        if lo_1 < hi_1:
            level_1 = LevelView(*levels[1])
            allowed_1 = allowed_of(FilterAddresses(*filters[1]), request, level_1.num_leaves)
            more = collect(level_1, allowed_1, lo_1, hi_1, codes_4V[2], codes_4V[3])
            for child in range(more):
                code = codes_4V[2, child]
                base_lo, base_hi = _allowed_child_range(levels[0], filters[0], request, lo, hi, code)
                if base_lo == base_hi:
                    codes_4V[0, count] = code
                    count += 1
    return count


@njit(nogil=True, _nrt=False)
def _write_row(read, write, count, tokens, sorted_2K, scoring, eos_token, eos_score, floats_3V):
    """Write one row: -inf, and the normalised score at `count` legal tokens. False if it holds NaN or +inf."""
    neg_inf = np.float32(-np.inf)
    values, gathered, chunks = floats_3V[0], floats_3V[1], floats_3V[2]
    top = neg_inf
    for child in range(count):
        value = read[tokens[child]]
        if not value < np.inf:
            return False
        values[child] = value
        top = value if value > top else top
    lse = np.float32(0.0)
    if scoring > 0 and top > neg_inf:
        source, level_K = values[:count], sorted_2K[0]
        if scoring == 1 and level_K[level_K.size - 1] - level_K[0] + 1 == level_K.size:
            source = read[level_K[0] : level_K[0] + level_K.size]
        elif scoring == 1:
            for index in range(level_K.size):
                gathered[index] = read[level_K[index]]
            source = gathered[: level_K.size]
        lse = log_sum_exp(source, chunks)[1]
        if math.isnan(lse):
            return False
    for token in range(write.size):
        write[token] = neg_inf
    for child in range(count):
        write[tokens[child]] = values[child] - lse
    if top == neg_inf:
        write[eos_token] = eos_score
    return True


@njit(cache=True, nogil=True, _nrt=False)
def mask_rows(step, previous, at, rows, tokens_DRL, ranges_D2SR, work, scoring, ends, scores, out, width):
    """Advance each row by its last token, then write -inf and, at the tokens of its legal codes, the normalised score.

    step: (levels, filters, the token of each code, sorted_2K) of this depth. previous: (levels, sorted_2K) of the depth before,
    not read at depth 0. at: (address, stride, prompt length, depth) as in `advance_rows`. work: (table, codes_4V, floats_3V).
    scoring: 0 unchanged, 1 minus the log-sum-exp of all tokens of the level, 2 of the legal ones. ends: (the end token, its
    score in a row without a finite legal score, a forbidden code, the token after which a row has ended).
    scores, out: addresses of float32 (R, width), which may be equal.
    Returns -1, the first row with NaN or +inf, -2 if the forbidden code occurs, -3 if `advance_rows` is False.
    """
    levels, filters, token_V, sorted_2K = step
    table, codes_4V, floats_3V = work
    address, stride, prompt_length, depth = at
    eos_token, eos_score, forbidden_code, stop_token = ends
    previous_levels, previous_2K = previous
    if depth > 0 and not advance_rows(
        previous_levels, filters, previous_2K, address, stride, prompt_length, depth, rows, tokens_DRL, ranges_D2SR, table
    ):
        return -3
    ranges_2SR = ranges_D2SR[depth]
    _, num_segments, num_rows = ranges_2SR.shape
    scores_n, out_n = float32_at(scores, num_rows * width), float32_at(out, num_rows * width)
    count = 0
    for row in range(num_rows):
        # The beams of a request start at the same ranges: the children of the previous row may be those of this row.
        is_same = row % rows > 0
        for s in range(num_segments):
            is_same = is_same and ranges_2SR[0, s, row] == ranges_2SR[0, s, row - 1]
            is_same = is_same and ranges_2SR[1, s, row] == ranges_2SR[1, s, row - 1]
        if not is_same:
            count = _legal_codes(levels, filters, row // rows, ranges_2SR, row, codes_4V)
            for child in range(count):
                if codes_4V[0, child] == forbidden_code:
                    return -2
                codes_4V[1, child] = token_V[codes_4V[0, child]]
        has_ended = depth > 0 and tokens_DRL[depth, row, depth - 1] == stop_token
        read, write = scores_n[row * width : row * width + width], out_n[row * width : row * width + width]
        if not _write_row(
            read, write, 0 if has_ended else count, codes_4V[1], sorted_2K, scoring, eos_token, eos_score, floats_3V
        ):
            return row
    return -1
