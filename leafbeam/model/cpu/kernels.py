"""The parts of a decoder's layer between its matrix products, in numba: norms, rotations, softmax, gates.

A row is one token of a prompt or one beam. Kernels allocate nothing; they write into their arguments, on `threads` threads
(`openmp.fork`); NAME_of(begin, end, ...) is the part of NAME for rows begin to end. Activations that a matrix multiplies, or
that it gives, are float32 or the bits of bfloat16. Norms and biases that an architecture lacks are empty.

Shapes: N rows, D hidden, F inner values of a feed-forward block, H query heads, G key heads, R = H / G, E values of a head,
X = G x E, P positions, M = rows x R queries of a key head, S codes of a beam.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.bit_kernels import stored_as, widened
from leafbeam.jit import njit
from leafbeam.model.cpu.pointwise import add_bias_of, exp
from leafbeam.ops.openmp import fork

TILE = 64  # rows of a prompt that attend to it together: of more, too many scores are masked
_FAST = {"reassoc", "contract", "nsz"}

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Values = NDArray[np.float32 | np.int16]  # float32, or the bits of bfloat16 as int16


class Heads(NamedTuple):
    """G key heads of `ratio` query heads, E = `size` values each; the norms' eps; rotations (P, E/2) of every position.

    scale: of the scores. rotation: what rotations multiply lengths by. cap: a soft cap of the scores, 0: none. window: how many
    tokens one sees, itself included, 0: all.
    """

    groups: int
    ratio: int
    size: int
    eps: float
    cos_PE: Floats
    sin_PE: Floats
    scale: float
    rotation: float
    cap: float
    window: int


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
    """Attention scores (groups, rows, length), flat: row m of each sees the first visible + step x (m // ratio) keys.

    cap: a soft cap of the scores, 0: none. window: 0, or the keys before position + 1 - window are not seen.
    """

    groups: int
    rows: int
    length: int
    visible: int
    step: int
    ratio: int
    cap: float
    window: int


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


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _capped(score, cap):
    """cap * tanh(score / cap)"""
    x = min(max(score * np.float32(2.0) / cap, np.float32(-40.0)), np.float32(40.0))
    return cap - np.float32(2.0) * cap / (exp(x) + np.float32(1.0))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _rms(x_E, eps):
    """The root mean square of a row of values"""
    total = np.float32(0.0)
    for e in range(x_E.size):
        total += widened(x_E[e]) * widened(x_E[e])
    return math.sqrt(total / x_E.size + eps)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _rotate_heads(x_Q, weight, heads, position, scale, n, rows, out, base, stride, ratio):
    """out = rotate(norm(x) * scale) for every head of a row

    weight: of a norm of each head (E), or of all (Q), or empty: no norm. Head h is written to
    `base + ((h // ratio) * rows + n) * ratio * size + (h % ratio) * size` where stride is 0, else to `base + h * stride`.
    """
    size = heads.size
    cos_E, sin_E = heads.cos_PE[position], heads.sin_PE[position]
    is_of_all = weight.size > size
    scale_of_all = scale
    if is_of_all:
        scale_of_all = scale / _rms(x_Q, heads.eps)
    for h in range(x_Q.size // size):
        x_E = x_Q[h * size : (h + 1) * size]
        to = base + h * stride
        if stride == 0:
            group = h // ratio
            to = base + ((group * rows + n) * ratio + (h - group * ratio)) * size
        out_E = out[to : to + size]
        if weight.size == 0:
            _rotate(x_E, np.float32(scale), cos_E, sin_E, out_E)
        elif is_of_all:
            _weigh_rotate(x_E, weight[h * size : (h + 1) * size], np.float32(scale_of_all), cos_E, sin_E, out_E)
        else:
            _weigh_rotate(x_E, weight, np.float32(scale / _rms(x_E, heads.eps)), cos_E, sin_E, out_E)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _rotate(x_E, scale, cos_E, sin_E, out_E):
    """out = rotate(x * scale)"""
    half = x_E.size // 2
    for e in range(half):
        x, y = widened(x_E[e]) * scale, widened(x_E[e + half]) * scale
        out_E[e] = stored_as(out_E[e], x * cos_E[e] - y * sin_E[e])
        out_E[e + half] = stored_as(out_E[e + half], y * cos_E[e] + x * sin_E[e])


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _weigh_rotate(x_E, weight_E, scale, cos_E, sin_E, out_E):
    """out = rotate(x * weight * scale)"""
    half = x_E.size // 2
    for e in range(half):
        x, y = widened(x_E[e]) * weight_E[e] * scale, widened(x_E[e + half]) * weight_E[e + half] * scale
        out_E[e] = stored_as(out_E[e], x * cos_E[e] - y * sin_E[e])
        out_E[e + half] = stored_as(out_E[e + half], y * cos_E[e] + x * sin_E[e])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def rotate_queries(query_NQ, rows, positions_N, bias_Q, weight, heads, out, threads):
    """out[g, n x R + r] = rotate(norm(query[n, g x R + r] + bias), position[n]) * scale, flat, for the first `rows` rows

    weight: of the norm of each head (E), of all heads (Q), or empty.
    """
    fork(rotate_queries_of, threads, rows, (query_NQ, rows, positions_N, bias_Q, weight, heads, out))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def rotate_queries_of(begin_row, end_row, query_NQ, rows, positions_N, bias_Q, weight, heads, out):
    width = heads.groups * heads.ratio * heads.size
    add_bias_of(begin_row, end_row, query_NQ, 0, bias_Q)
    for n in range(begin_row, end_row):
        query_Q = query_NQ[n, :width]
        _rotate_heads(query_Q, weight, heads, positions_N[n], heads.scale, n, rows, out, 0, 0, heads.ratio)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def store_keys_values(key_NX, value_NX, columns, rows, positions_N, slots_N, slots, vectors, heads, threads):
    """keys[slot[n], g] = rotate(norm(key[n, g] + bias), position[n]); values[slot[n], g] = value[n, g] + bias

    columns: the first one of keys and of values in their arrays. slots: a KVSlots; slots_N: the element of keys and values at
    which each row starts. vectors: the biases of keys and of values (X), and the norm of keys, of each head or of all.
    """
    fork(store_keys_values_of, threads, rows, (key_NX, value_NX, columns, positions_N, slots_N, slots, vectors, heads))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def store_keys_values_of(begin_row, end_row, key_NX, value_NX, columns, positions_N, slots_N, slots, vectors, heads):
    size, keys, values = heads.size, slots.keys, slots.values
    key_bias_X, value_bias_X, weight = vectors
    add_bias_of(begin_row, end_row, key_NX, columns[0], key_bias_X)
    add_bias_of(begin_row, end_row, value_NX, columns[1], value_bias_X)
    for n in range(begin_row, end_row):
        slot = slots_N[n] + slots.shift
        key_X = key_NX[n, columns[0] : columns[0] + heads.groups * size]
        _rotate_heads(key_X, weight, heads, positions_N[n], 1.0, n, 0, keys, slot, slots.group_stride, 1)
        for g in range(heads.groups):
            to, value = slot + g * slots.group_stride, columns[1] + g * size
            for e in range(size):
                values[to + e] = widened(value_NX[n, value + e])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def softmax_weights(scores, tile, positions_N, bound, top_GM, total_GM, first, threads):
    """for each key head g and row m of a ScoreTile, which sees the first n keys (those of its window):
        top[g, first + m] = bound if finite else max(scores[g, m, :n])
        scores[g, m] = [exp(score - top) if t < n else 0 for t, score]
        total[g, first + m] = sum(scores[g, m])

    bound: no score is larger, and none less than -bound (see `score_bound`); it saves a pass over the scores. positions_N: of
    the chunk's rows, which a window alone needs.
    """
    fork(softmax_weights_of, threads, tile.groups * tile.rows, (scores, tile, positions_N, bound, top_GM, total_GM, first))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def softmax_weights_of(begin_row, end_row, scores, tile, positions_N, bound, top_GM, total_GM, first):
    rows, length, cap = tile.rows, tile.length, np.float32(tile.cap)
    lowest = np.float32(-87.0)
    bounded = bound < np.float32(np.inf)
    for row_of_all in range(begin_row, end_row):
        g, m = row_of_all // rows, row_of_all % rows
        begin = (g * rows + m) * length
        count = tile.visible + tile.step * (m // tile.ratio)
        if tile.window > 0:
            hidden = min(max(positions_N[(first + m) // tile.ratio] + 1 - tile.window, 0), count)
            for t in range(begin, begin + hidden):
                scores[t] = np.float32(0.0)
            for t in range(begin + count, begin + length):
                scores[t] = np.float32(0.0)
            begin, count = begin + hidden, count - hidden
        row = scores[begin : begin + count]
        if cap > 0:
            for t in range(count):
                row[t] = _capped(row[t], cap)
        total = np.float32(0.0)
        if count == 0:  # the window begins behind the prompt
            top_GM[g, first + m], total_GM[g, first + m] = np.float32(-1e30), total
            continue
        if bounded:
            top = bound
            for t in range(count):
                x = exp(row[t] - bound)
                row[t] = x
                total += x
        else:
            top = row[0]
            for t in range(count):
                top = row[t] if row[t] > top else top
            for t in range(count):
                x = row[t] - top
                x = lowest if x < lowest else x
                x = exp(x)
                row[t] = x
                total += x
        if tile.window == 0:
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
    cap = np.float32(heads.cap)
    lowest = np.float32(-87.0)
    for n in range(begin_row, end_row):
        slots_S = codes.ancestors_BS[beams_N[n]]
        first = 0 if heads.window == 0 else max(0, visible_N[n] - heads.window)
        for g in range(heads.groups):
            for r in range(ratio):
                column = n * ratio + r
                at = ((g * rows + n) * ratio + r) * size
                to = (g * ratio + r) * size
                top, total = top_GM[g, column], total_GM[g, column]
                for s in range(first, visible_N[n]):
                    slot = slots_S[s] + shift + g * size
                    score = np.float32(0.0)
                    for e in range(size):
                        score += query[at + e] * keys[slot + e]
                    if cap > 0:
                        score = _capped(score, cap)
                    if score > top:
                        shrink = exp(max(top - score, lowest))
                        total *= shrink
                        for e in range(size):
                            weighted_values[at + e] *= shrink
                        top = score
                    weight = exp(max(score - top, lowest))
                    total += weight
                    for e in range(size):
                        weighted_values[at + e] += weight * values[slot + e]
                share = np.float32(1.0) / total
                for e in range(size):
                    out_NQ[n, to + e] = stored_as(out_NQ[n, to + e], weighted_values[at + e] * share)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def score_bound(query_norm_E, key_norm_E, scale, cap):
    """A bound on the absolute attention scores of a layer; infinity where it is too large to be of use

    A normed vector of E values is at most sqrt(E) x the norm's largest weight long, and rotation keeps its length: so no score,
    multiplied by `scale`, exceeds the bound (Cauchy-Schwarz). exp(-2 x bound) has to be a normal float32, with room for values.
    cap: a soft cap of the scores, 0: none.
    """
    if np.float32(0.0) < cap <= np.float32(30.0):
        return np.float32(cap)
    if query_norm_E.size == 0:
        return np.float32(np.inf)
    query = key = np.float32(0.0)
    for e in range(query_norm_E.size):
        x, y = abs(query_norm_E[e]), abs(key_norm_E[e])
        if not (x < np.inf and y < np.inf):  # not a number, too
            return np.float32(np.inf)
        query, key = max(query, x), max(key, y)
    bound = np.float32(query_norm_E.size * scale) * query * key
    return np.float32(bound * np.float32(1.0001)) if bound <= np.float32(30.0) else np.float32(np.inf)
