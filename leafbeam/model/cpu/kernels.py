"""What a Qwen3 layer computes between its matrix products, in numba: norms, rotations, softmax, gates.

A row is one token of a prompt or one beam. Kernels allocate nothing; they write into their arguments, on `threads` threads
(`openmp.fork`); NAME_of(begin, end, ...) is the part of NAME for rows begin to end. Activations that a matrix multiplies, or
that it gives, are float32 or the bits of bfloat16.

Shapes: N rows, D hidden, F inner values of a feed-forward block, H query heads, G key heads, R = H / G, E values of a head,
X = G x E, P positions, M = rows x R queries of a key head, S codes of a beam.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import bits_float, float_bits, stored_as, widened
from leafbeam.jit import njit
from leafbeam.ops.openmp import fork

TILE = 64  # rows of a prompt that attend to it together: of more, too many scores are masked
_FAST = {"reassoc", "contract", "nsz"}

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Values = NDArray[Any]  # float32, or the bits of bfloat16 as int16


class Heads(NamedTuple):
    """G key heads of `ratio` query heads, E = `size` values each; the norms' eps; rotations (P, E/2) of every position."""

    groups: int
    ratio: int
    size: int
    eps: float
    cos_PE: Floats
    sin_PE: Floats


class Activations(NamedTuple):
    """The rows of a chunk between the kernels: (X, ..) each, the rotated queries and weighted values (G, rows x R, E) flat."""

    hidden_XD: Floats
    normed_XD: Values
    query_XQ: Values
    key_XG: Values
    value_XG: Values
    rotated: Values
    weighted: Floats
    attended_XQ: Values
    gate_XF: Values
    up_XF: Values
    top_GM: Floats
    total_GM: Floats
    positions_X: Integers


class KVSlots(NamedTuple):
    """Flat keys and values: key head g of a row starts at element `slot + shift + g x group_stride` of each."""

    keys: Floats
    values: Floats
    shift: int
    group_stride: int


class ScoreTile(NamedTuple):
    """Attention scores (groups, rows, length), flat: row m of each sees the first visible + step x (m // ratio) keys."""

    groups: int
    rows: int
    length: int
    visible: int
    step: int
    ratio: int


class CodeRows(NamedTuple):
    """The codes of a chunk. A slot of the flat keys and values holds one code in all layers, (L, G, E).

    slots_N: the element at which each row's own slot starts. ancestors_BS: the same for each code of each beam, the newest
    included. beams_N: each row's beam. visible_N: how many of its beam's codes a row sees.
    """

    keys: Floats
    values: Floats
    slots_N: Integers
    ancestors_BS: Integers
    beams_N: Integers
    visible_N: Integers


@njit(types.UniTuple(types.float32, 2)(types.float32), cache=True, fastmath={"contract"}, nogil=True, _nrt=False)
def _split(x):
    """n = round(x / ln 2) -> x - n ln 2, n + 1.5 * 2^23

    Compiled with flags of its own: under "reassoc", (x + magic) - magic becomes x.
    """
    magic = np.float32(12582912.0)
    shifted = x * np.float32(1.4426950408889634) + magic
    n = shifted - magic
    return (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4), shifted


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _exp(x):
    """exp(x) for x in [-87, 88] to a few units in the last place (the polynomial of Cephes' expf); exactly 1 at 0."""
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
def rms_norm(x_ND, rows, weight_D, eps, out_ND, threads):
    """out[n] = weight * x[n] / sqrt(mean(x[n]^2) + eps) for the first `rows` rows"""
    fork(norm_of, threads, rows, (x_ND, weight_D, eps, out_ND))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def norm_of(begin_row, end_row, x_ND, weight_D, eps, out_ND):
    size = weight_D.size
    for n in range(begin_row, end_row):
        total = np.float32(0.0)
        for d in range(size):
            total += x_ND[n, d] * x_ND[n, d]
        scale = np.float32(1.0 / math.sqrt(total / size + eps))
        for d in range(size):
            out_ND[n, d] = stored_as(out_ND[n, d], weight_D[d] * (x_ND[n, d] * scale))


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def silu_gate(gate_NF, rows, up_NF, threads):
    """gate = silu(gate) * up for the first `rows` rows"""
    fork(gate_of, threads, rows, (gate_NF, up_NF))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def gate_of(begin_row, end_row, gate_NF, up_NF):
    size = gate_NF.shape[1]
    lowest = np.float32(-80.0)
    for n in range(begin_row, end_row):
        for i in range(size):
            x = widened(gate_NF[n, i])
            negated = -x
            negated = lowest if negated < lowest else negated
            negated = -lowest if negated > -lowest else negated
            gated = x / (np.float32(1.0) + _exp(negated)) * widened(up_NF[n, i])
            gate_NF[n, i] = stored_as(gate_NF[n, i], gated)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _norm_rotate(x_E, weight_E, eps, cos_E, sin_E, scale, out_E):
    """out = rotate(rms_norm(x) * scale)"""
    size = x_E.size
    half = size // 2
    total = np.float32(0.0)
    for e in range(size):
        total += widened(x_E[e]) * widened(x_E[e])
    scale = np.float32(scale / math.sqrt(total / size + eps))
    for e in range(half):
        x, y = widened(x_E[e]) * weight_E[e] * scale, widened(x_E[e + half]) * weight_E[e + half] * scale
        out_E[e] = stored_as(out_E[e], x * cos_E[e] - y * sin_E[e])
        out_E[e + half] = stored_as(out_E[e + half], y * cos_E[e] + x * sin_E[e])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def rotate_queries(query_NQ, rows, positions_N, weight_E, heads, out, threads):
    """out[g, n x R + r] = rotate(rms_norm(query[n, g x R + r]), position[n]) / sqrt(E), flat, for the first `rows` rows"""
    fork(rotate_queries_of, threads, rows, (query_NQ, rows, positions_N, weight_E, heads, out))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def rotate_queries_of(begin_row, end_row, query_NQ, rows, positions_N, weight_E, heads, out):
    size, ratio = heads.size, heads.ratio
    scale = 1.0 / math.sqrt(size)
    for n in range(begin_row, end_row):
        position = positions_N[n]
        cos_E, sin_E = heads.cos_PE[position], heads.sin_PE[position]
        for h in range(heads.groups * ratio):
            group = h // ratio
            to = ((group * rows + n) * ratio + (h - group * ratio)) * size
            _norm_rotate(query_NQ[n, h * size : (h + 1) * size], weight_E, heads.eps, cos_E, sin_E, scale, out[to : to + size])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def store_keys_values(key_NX, value_NX, columns, rows, positions_N, slots_N, slots, weight_E, heads, threads):
    """keys[slot[n], g] = rotate(rms_norm(key[n, g]), position[n]); values[slot[n], g] = value[n, g]

    columns: the first one of keys and of values in their arrays. slots: a KVSlots; slots_N: the element of keys and values at
    which each row starts.
    """
    fork(store_keys_values_of, threads, rows, (key_NX, value_NX, columns, positions_N, slots_N, slots, weight_E, heads))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def store_keys_values_of(begin_row, end_row, key_NX, value_NX, columns, positions_N, slots_N, slots, weight_E, heads):
    size, keys, values = heads.size, slots.keys, slots.values
    for n in range(begin_row, end_row):
        position, slot = positions_N[n], slots_N[n] + slots.shift
        cos_E, sin_E = heads.cos_PE[position], heads.sin_PE[position]
        for g in range(heads.groups):
            to = slot + g * slots.group_stride
            key, value = columns[0] + g * size, columns[1] + g * size
            _norm_rotate(key_NX[n, key : key + size], weight_E, heads.eps, cos_E, sin_E, 1.0, keys[to : to + size])
            for e in range(size):
                values[to + e] = widened(value_NX[n, value + e])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def softmax_weights(scores, tile, bound, top_GM, total_GM, first, threads):
    """for each key head g and row m of a ScoreTile, which sees the first n keys:
        top[g, first + m] = bound if finite else max(scores[g, m, :n])
        scores[g, m] = [exp(score - top) if t < n else 0 for t, score]
        total[g, first + m] = sum(scores[g, m])

    bound: no score is larger, and none less than -bound (see `score_bound`); it saves a
    pass over the scores.
    """
    fork(softmax_weights_of, threads, tile.groups * tile.rows, (scores, tile, bound, top_GM, total_GM, first))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def softmax_weights_of(begin_row, end_row, scores, tile, bound, top_GM, total_GM, first):
    rows, length = tile.rows, tile.length
    lowest = np.float32(-87.0)
    bounded = bound < np.float32(np.inf)
    for row_of_all in range(begin_row, end_row):
        g, m = row_of_all // rows, row_of_all % rows
        begin = (g * rows + m) * length
        count = tile.visible + tile.step * (m // tile.ratio)
        row = scores[begin : begin + count]
        total = np.float32(0.0)
        if bounded:
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
                x = lowest if x < lowest else x
                x = _exp(x)
                row[t] = x
                total += x
        for t in range(begin + count, begin + length):
            scores[t] = np.float32(0.0)
        top_GM[g, first + m] = top
        total_GM[g, first + m] = total


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def divide_by_weights(weighted_values, rows, heads, total_GM, out_NQ, threads):
    """out[n, g x R + r] = weighted_values[g, n x R + r] / total[g, n x R + r]"""
    fork(divide_by_weights_of, threads, rows, (weighted_values, rows, heads, total_GM, out_NQ))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def divide_by_weights_of(begin_row, end_row, weighted_values, rows, heads, total_GM, out_NQ):
    ratio, size = heads.ratio, heads.size
    for n in range(begin_row, end_row):
        for g in range(heads.groups):
            for r in range(ratio):
                at = ((g * rows + n) * ratio + r) * size
                to = (g * ratio + r) * size
                share = np.float32(1.0) / total_GM[g, n * ratio + r]
                for e in range(size):
                    out_NQ[n, to + e] = stored_as(out_NQ[n, to + e], weighted_values[at + e] * share)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def attend_codes(query, weighted_values, rows, heads, top_GM, total_GM, codes, layer, out_NQ, threads):
    """for each row n and query head, over the prompt (top, total, weighted_values) and the row's first visible_N[n] codes:
        out = softmax(scores of prompt and codes) @ values of prompt and codes

    codes: a CodeRows. Overwrites weighted_values.
    """
    fork(attend_codes_of, threads, rows, (query, weighted_values, rows, heads, top_GM, total_GM, codes, layer, out_NQ))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def attend_codes_of(begin_row, end_row, query, weighted_values, rows, heads, top_GM, total_GM, codes, layer, out_NQ):
    ratio, size, keys, values = heads.ratio, heads.size, codes.keys, codes.values
    beams_N, visible_N, shift = codes.beams_N, codes.visible_N, layer * heads.groups * size
    lowest = np.float32(-87.0)
    for n in range(begin_row, end_row):
        slots_S = codes.ancestors_BS[beams_N[n]]
        for g in range(heads.groups):
            for r in range(ratio):
                column = n * ratio + r
                at = ((g * rows + n) * ratio + r) * size
                to = (g * ratio + r) * size
                top, total = top_GM[g, column], total_GM[g, column]
                for s in range(visible_N[n]):
                    slot = slots_S[s] + shift + g * size
                    score = np.float32(0.0)
                    for e in range(size):
                        score += query[at + e] * keys[slot + e]
                    if score > top:
                        shrink = _exp(max(top - score, lowest))
                        total *= shrink
                        for e in range(size):
                            weighted_values[at + e] *= shrink
                        top = score
                    weight = _exp(max(score - top, lowest))
                    total += weight
                    for e in range(size):
                        weighted_values[at + e] += weight * values[slot + e]
                share = np.float32(1.0) / total
                for e in range(size):
                    out_NQ[n, to + e] = stored_as(out_NQ[n, to + e], weighted_values[at + e] * share)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def score_bound(query_norm_E, key_norm_E):
    """A bound on the absolute attention scores of a layer; infinity where it is too large to be of use

    A normed vector of E values is at most sqrt(E) x the norm's largest weight long, and rotation keeps its length: so no score,
    scaled by E^-0.5, exceeds the bound (Cauchy-Schwarz). exp(-2 x bound) has to be a normal float32, with room for values.
    """
    query = key = np.float32(0.0)
    for e in range(query_norm_E.size):
        x, y = abs(query_norm_E[e]), abs(key_norm_E[e])
        if not (x < np.inf and y < np.inf):  # not a number, too
            return np.float32(np.inf)
        query, key = max(query, x), max(key, y)
    bound = np.float32(math.sqrt(query_norm_E.size)) * query * key
    return np.float32(bound * np.float32(1.0001)) if bound <= np.float32(30.0) else np.float32(np.inf)
