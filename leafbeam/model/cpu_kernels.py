"""What stands between the matrix products of a Qwen3 layer, in compiled loops over rows: norms, rotations, softmax, gates.

A row is one token of a prompt or one beam. Nothing here allocates: everything is written into memory that was passed in.

Shapes: N rows, D hidden, F inner values of a feed-forward block, H query heads, G key heads, R = H / G, E values of a head,
T tokens of all prompts together, M = rows x R, S codes that beams have taken.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math

import numpy as np
from numba import types

from leafbeam.index.bit_kernels import bits_float, float_bits
from leafbeam.jit import njit

__all__ = [
    "divide",
    "exponentials",
    "extend_owners",
    "gate",
    "merge_codes",
    "normalize",
    "turn_beams",
    "turn_prompts",
    "turn_queries",
]

_FAST = {"reassoc", "contract", "nsz"}


@njit(types.UniTuple(types.float32, 2)(types.float32), fastmath={"contract"}, nogil=True, _nrt=False)
def _split(x):
    """(x - n ln 2, n + 1.5 * 2^23) for the integer n nearest to x / ln 2; compiled at once, with flags of its own, because
    with "reassoc" (x + magic) - magic becomes x."""
    magic = np.float32(12582912.0)
    shifted = x * np.float32(1.4426950408889634) + magic
    n = shifted - magic
    return (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4), shifted


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _exp(x):
    """exp of x in [-87, 88] to a few units in the last place (the polynomial of Cephes' expf); exactly 1 at 0."""
    f, shifted = _split(x)
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    p = p * f * f + f + np.float32(1.0)
    return bits_float(float_bits(p) + (float_bits(shifted) << np.int32(23)))


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def normalize(x_ND, rows, weight_D, eps, out_ND):
    """RMS norm of the first rows."""
    size = weight_D.size
    for n in range(rows):
        total = np.float32(0.0)
        for d in range(size):
            total += x_ND[n, d] * x_ND[n, d]
        scale = np.float32(1.0 / math.sqrt(total / size + eps))
        for d in range(size):
            out_ND[n, d] = weight_D[d] * (x_ND[n, d] * scale)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def gate(gate_NF, rows, up_NF):
    """gate := silu(gate) * up."""
    size = gate_NF.shape[1]
    least = np.float32(-80.0)
    for n in range(rows):
        for i in range(size):
            x = gate_NF[n, i]
            down = -x
            down = least if down < least else down
            down = -least if down > -least else down
            gate_NF[n, i] = x / (np.float32(1.0) + _exp(down)) * up_NF[n, i]


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _turned(x_E, weight_E, eps, cos_E, sin_E, scale, out_E):
    """A head, normed and turned to its position."""
    size = x_E.size
    half = size // 2
    total = np.float32(0.0)
    for e in range(size):
        total += x_E[e] * x_E[e]
    scale = np.float32(scale / math.sqrt(total / size + eps))
    for e in range(half):
        one, other = x_E[e] * weight_E[e] * scale, x_E[e + half] * weight_E[e + half] * scale
        out_E[e] = one * cos_E[e] - other * sin_E[e]
        out_E[e + half] = other * cos_E[e] + one * sin_E[e]


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def turn_queries(query_NQ, rows, positions_N, weight_E, eps, cos_PE, sin_PE, groups, out):
    """Queries normed, turned and scaled by E^-0.5, laid out as (G, rows x R, E) at the front of `out`."""
    size = weight_E.size
    heads = query_NQ.shape[1] // size
    ratio = heads // groups
    scale = 1.0 / math.sqrt(size)
    for n in range(rows):
        at = positions_N[n]
        for h in range(heads):
            group = h // ratio
            to = ((group * rows + n) * ratio + (h - group * ratio)) * size
            head = query_NQ[n, h * size : (h + 1) * size]
            _turned(head, weight_E, eps, cos_PE[at], sin_PE[at], scale, out[to : to + size])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def turn_prompts(key_NX, value_NX, rows, positions_N, slots_N, weight_E, eps, cos_PE, sin_PE, key_GTE, value_GTE):
    """Keys normed and turned, keys and values put where each token of a prompt has its slot."""
    groups, _, size = key_GTE.shape
    for n in range(rows):
        at, slot = positions_N[n], slots_N[n]
        for g in range(groups):
            _turned(key_NX[n, g * size : (g + 1) * size], weight_E, eps, cos_PE[at], sin_PE[at], 1.0, key_GTE[g, slot])
            for e in range(size):
                value_GTE[g, slot, e] = value_NX[n, g * size + e]


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def turn_beams(key_NX, value_NX, rows, positions_N, slots_N, shift, weight_E, eps, cos_PE, sin_PE, keys, values):
    """As `turn_prompts`, into flat memory: a row's begin at element slots_N + shift of keys, and of values."""
    size, width = weight_E.size, key_NX.shape[1]
    for n in range(rows):
        at, slot = positions_N[n], slots_N[n] + shift
        for g in range(width // size):
            to = slot + g * size
            _turned(key_NX[n, g * size : (g + 1) * size], weight_E, eps, cos_PE[at], sin_PE[at], 1.0, keys[to : to + size])
        for x in range(width):
            values[slot + x] = value_NX[n, x]


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def exponentials(scores, groups, rows, length, seen, step, ratio, bound, top_GM, total_GM, first):
    """Scores (groups, rows, length) at the front of `scores` become exp(score - reference).

    The reference is `bound` where that is finite: no score is larger, and none less than -bound (see `score_bound`). Else it
    is the row's largest score, for which the row is read once more. Row m sees the first seen + step x (m // ratio) keys, the
    others weigh nothing. Reference and sum go to column first + m of top_GM and total_GM.
    """
    least = np.float32(-87.0)
    known = bound < np.float32(np.inf)
    for g in range(groups):
        for m in range(rows):
            begin = (g * rows + m) * length
            count = seen + step * (m // ratio)
            row = scores[begin : begin + count]
            total = np.float32(0.0)
            if known:
                top = bound
                for t in range(count):
                    x = _exp(row[t] - bound)
                    row[t] = x
                    total += x
            else:
                top = row[0]
                for t in range(count):
                    top = row[t] if row[t] > top else top
                for t in range(count):
                    x = row[t] - top
                    x = least if x < least else x
                    x = _exp(x)
                    row[t] = x
                    total += x
            for t in range(begin + count, begin + length):
                scores[t] = np.float32(0.0)
            top_GM[g, first + m] = top
            total_GM[g, first + m] = total


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def divide(sums, rows, ratio, size, total_GM, out_NQ):
    """Weighted sums (G, rows x R, E) by their weights, a row of all heads for each row."""
    groups = total_GM.shape[0]
    for n in range(rows):
        for g in range(groups):
            for r in range(ratio):
                at = ((g * rows + n) * ratio + r) * size
                to = (g * ratio + r) * size
                share = np.float32(1.0) / total_GM[g, n * ratio + r]
                for e in range(size):
                    out_NQ[n, to + e] = sums[at + e] * share


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def merge_codes(query, sums, rows, ratio, size, top_GM, total_GM, keys, values, first_S, owners_BS, beams_N, seen_N, out_NQ):
    """What each beam sees in the prompt (sums, top, total) joined with its own codes, in one softmax over both.

    Code s of row n, all key heads of it, is at place owners_BS[beams_N[n], s] of those that begin at element first_S[s] of keys
    and of values; row n sees the first seen_N[n] codes.
    """
    stride = total_GM.shape[0] * size
    groups = total_GM.shape[0]
    least = np.float32(-87.0)
    for n in range(rows):
        for g in range(groups):
            for r in range(ratio):
                column = n * ratio + r
                at = ((g * rows + n) * ratio + r) * size
                to = (g * ratio + r) * size
                top, total = top_GM[g, column], total_GM[g, column]
                for e in range(size):
                    out_NQ[n, to + e] = sums[at + e]
                for s in range(seen_N[n]):
                    slot = first_S[s] + owners_BS[beams_N[n], s] * stride + g * size
                    score = np.float32(0.0)
                    for e in range(size):
                        score += query[at + e] * keys[slot + e]
                    if score > top:
                        shrink = _exp(max(top - score, least))
                        total *= shrink
                        for e in range(size):
                            out_NQ[n, to + e] *= shrink
                        top = score
                    weight = _exp(max(score - top, least))
                    total += weight
                    for e in range(size):
                        out_NQ[n, to + e] += weight * values[slot + e]
                share = np.float32(1.0) / total
                for e in range(size):
                    out_NQ[n, to + e] *= share


@njit(cache=True, nogil=True, _nrt=False)
def extend_owners(before_NS, width, parents_BK, count, num_new, after_NS):
    """The table of beams that extend those of `before` (`width` a request): for each of a beam's codes, which place holds it.

    Of `count` codes the parent knows the place; behind them come num_new of the beam's own, at place b x K + k.
    """
    requests, beams = parents_BK.shape
    for b in range(requests):
        for k in range(beams):
            row = b * beams + k
            parent = b * width + parents_BK[b, k]
            for s in range(count):
                after_NS[row, s] = before_NS[parent, s]
            for s in range(count, count + num_new):
                after_NS[row, s] = row
