"""All layers of a decoder in one call, products included: for models so small that calling a product takes as long as it.

    for each layer:
        normed = norm(hidden);  key, value, query = normed @ matrices, keys and queries normed and rotated
        hidden += attention(query; keys and values of the prompt, and of the beam's codes) @ out
        normed = norm(hidden);  hidden += (activation(normed @ gate) * (normed @ up)) @ down

    codes      beams do not read each other: each thread takes its rows through all layers
    prompts    each thread takes its rows to keys and values, then, once all are there, through the rest of the layer

Kernels as in `model.cpu.kernels`, with its shapes. L layers, T tokens of all prompts, Z segments: rows begin to end of a chunk
that belong to one prompt, its first token in the slots, its length.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from typing import NamedTuple

from leafbeam.jit import njit
from leafbeam.model.cpu.kernels import (
    TILE,
    Floats,
    Heads,
    Integers,
    KVSlots,
    ScoreTile,
    attend_codes_of,
    divide_by_weights_of,
    rotate_queries_of,
    score_bound,
    softmax_weights_of,
    store_keys_values_of,
)
from leafbeam.model.cpu.pointwise import activate_of, add_bias_of, add_normed_of, gate_of, norm_of
from leafbeam.ops.linear.blas import multiply, sgemm
from leafbeam.ops.openmp import fork

_OPTIONS: dict[str, object] = {"nogil": True, "_nrt": False, "error_model": "numpy"}
_FLOAT = 4  # bytes
QUERY, KEY, VALUE, OUT, GATE, UP, DOWN = range(7)
# Vectors of a layer, after the biases of its matrices: the weights of norms and the biases of two.
ATTENTION_NORM, FEED_FORWARD_NORM, QUERY_NORM, KEY_NORM, ATTENTION_OUTPUT_NORM, FEED_FORWARD_OUTPUT_NORM = range(7, 13)
ATTENTION_NORM_BIAS, FEED_FORWARD_NORM_BIAS = 13, 14


class Weights(NamedTuple):
    """Every layer's matrices (V, D), by their addresses in the order of QUERY to DOWN, biases and norms.

    address_LW: 0 where a layer has no gate. vectors_LW: biases of the matrices, then ATTENTION_NORM and so on, side by side;
    vector v begins at begins_V[v], and is empty where the architecture has none. is_local_L: layers whose heads are
    `local_heads`.
    """

    address_LW: Integers
    vectors_LW: Floats
    begins_V: Integers
    is_local_L: Integers
    local_heads: Heads
    activation: int


@njit(inline="always", **_OPTIONS)  # a compiled function returns no view
def vector_of(weights, layer, vector):
    """A layer's bias or norm"""
    return weights.vectors_LW[layer, weights.begins_V[vector] : weights.begins_V[vector + 1]]


@njit(inline="always", **_OPTIONS)
def heads_of(weights, layer, heads):
    """The heads of a layer; `heads` are those of layers that are not local"""
    return weights.local_heads if weights.is_local_L[layer] else heads


@njit(**_OPTIONS)
def store_keys_values(begin, end, weights, layer, a, slots_N, slots, heads):
    """normed = norm(hidden); keys and values to their slots"""
    address_W = weights.address_LW[layer]
    norm_D, bias_D = vector_of(weights, layer, ATTENTION_NORM), vector_of(weights, layer, ATTENTION_NORM_BIAS)
    vectors = vector_of(weights, layer, KEY), vector_of(weights, layer, VALUE), vector_of(weights, layer, KEY_NORM)
    norm_of(begin, end, a.hidden_XD, norm_D, bias_D, heads.eps, a.normed_XD)
    multiply(begin, end, a.normed_XD, address_W[KEY], a.key_XG, 0)
    multiply(begin, end, a.normed_XD, address_W[VALUE], a.value_XG, 0)
    store_keys_values_of(begin, end, a.key_XG, a.value_XG, (0, 0), a.positions_X, slots_N, slots, vectors, heads)


@njit(**_OPTIONS)
def rotate_queries(begin, end, rows, weights, layer, a, heads):
    """The rotated queries of normed rows"""
    multiply(begin, end, a.normed_XD, weights.address_LW[layer, QUERY], a.query_XQ, 0)
    bias_Q, norm_E = vector_of(weights, layer, QUERY), vector_of(weights, layer, QUERY_NORM)
    rotate_queries_of(begin, end, a.query_XQ, rows, a.positions_X, bias_Q, norm_E, heads, a.rotated)


@njit(**_OPTIONS)
def bound_of(weights, layer, heads):
    """`score_bound` of a layer"""
    query_norm_E, key_norm_E = vector_of(weights, layer, QUERY_NORM), vector_of(weights, layer, KEY_NORM)
    return score_bound(query_norm_E, key_norm_E, heads.scale * heads.rotation**2, heads.cap)


@njit(**_OPTIONS)
def finish(begin, end, weights, layer, a, heads):
    """Add the attention's output projection, then the feed-forward block, to the hidden states"""
    address_W = weights.address_LW[layer]
    _add_product(begin, end, a.attended_XQ, weights, layer, OUT, ATTENTION_OUTPUT_NORM, a, heads.eps)
    norm_D, bias_D = vector_of(weights, layer, FEED_FORWARD_NORM), vector_of(weights, layer, FEED_FORWARD_NORM_BIAS)
    norm_of(begin, end, a.hidden_XD, norm_D, bias_D, heads.eps, a.normed_XD)
    if address_W[GATE] == 0:
        multiply(begin, end, a.normed_XD, address_W[UP], a.gate_XF, 0)
        add_bias_of(begin, end, a.gate_XF, 0, vector_of(weights, layer, UP))
        activate_of(begin, end, a.gate_XF, weights.activation)
    else:
        multiply(begin, end, a.normed_XD, address_W[GATE], a.gate_XF, 0)
        multiply(begin, end, a.normed_XD, address_W[UP], a.up_XF, 0)
        add_bias_of(begin, end, a.gate_XF, 0, vector_of(weights, layer, GATE))
        add_bias_of(begin, end, a.up_XF, 0, vector_of(weights, layer, UP))
        gate_of(begin, end, a.gate_XF, a.up_XF, weights.activation)
    _add_product(begin, end, a.gate_XF, weights, layer, DOWN, FEED_FORWARD_OUTPUT_NORM, a, heads.eps)


@njit(**_OPTIONS)
def _add_product(begin, end, rows, weights, layer, matrix, output_norm, a, eps):
    """hidden += norm(rows @ matrix + bias), where either may be missing"""
    bias_D, norm_D = vector_of(weights, layer, matrix), vector_of(weights, layer, output_norm)
    address = weights.address_LW[layer, matrix]
    if bias_D.size == 0 and norm_D.size == 0:
        multiply(begin, end, rows, address, a.hidden_XD, 1)
    else:
        multiply(begin, end, rows, address, a.normed_XD, 0)
        add_normed_of(begin, end, a.normed_XD, bias_D, norm_D, eps, a.hidden_XD)


@njit(**_OPTIONS)
def part_of(begin, rows, size, threads):
    """Where the part of a buffer begins and ends that the thread whose rows start at `begin` may use"""
    part, number = size // threads, (begin * threads + rows - 1) // rows
    return number * part, (number + 1) * part


@njit(**_OPTIONS)
def _attend_prompts(begin, end, rows, a, prompts, tokens, layer, segments_Z4, step, scores, bound, heads):
    """for each segment of the rows, and each key head g:
        scores = queries @ keys[g, first : first + length].T, of which row n sees all, or its position + 1 if step is 1
        weighted_values = softmax_weights(scores) @ values[g, first : first + length]

    scores: room for those of a row at least.
    """
    ratio, size, groups = heads.ratio, heads.size, heads.groups
    keys = prompts.ctypes.data + layer * 2 * groups * tokens * size * _FLOAT
    values = keys + groups * tokens * size * _FLOAT
    queries, weighted, room = a.rotated.ctypes.data, a.weighted.ctypes.data, scores.ctypes.data
    for z in range(len(segments_Z4)):
        low, high = max(begin, segments_Z4[z, 0]), min(end, segments_Z4[z, 1])
        if low >= high:
            continue
        first, length = segments_Z4[z, 2], segments_Z4[z, 3]
        most = max(1, scores.size // (groups * ratio * length))
        if step == 1:
            most = min(most, TILE)
        parts = (high - low + most - 1) // most
        most = (high - low + parts - 1) // parts
        for row in range(low, high, most):
            count = min(most, high - row)
            num_queries, visible = count * ratio, length
            if step == 1:
                visible = a.positions_X[row] + 1
                length = visible - 1 + count
            for g in range(groups):
                at, to = (g * rows + row) * ratio * size * _FLOAT, g * num_queries * length * _FLOAT
                sgemm(queries + at, keys + (g * tokens + first) * size * _FLOAT, room + to, num_queries, length, size, True, 0)
            tile = ScoreTile(groups, num_queries, length, visible, step, ratio, heads.cap, heads.window)
            softmax_weights_of(0, groups * num_queries, scores, tile, a.positions_X, bound, a.top_GM, a.total_GM, row * ratio)
            for g in range(groups):
                at, to = (g * rows + row) * ratio * size * _FLOAT, g * num_queries * length * _FLOAT
                value = values + (g * tokens + first) * size * _FLOAT
                sgemm(room + to, value, weighted + at, num_queries, size, length, False, 0)


@njit(cache=True, **_OPTIONS)
def run_codes(weights, a, rows, heads, prompts, tokens, segments_Z4, codes, scores, threads):
    """All layers of a chunk's codes, whose keys and values go to their slots, on `threads` threads

    a: Activations, whose hidden states and positions are read; the hidden states are the result. prompts: keys and values,
    flat (L, 2, G, T, E). tokens: T.
    """
    fork(_run_codes, threads, rows, (weights, a, rows, heads, prompts, tokens, segments_Z4, codes, scores, threads))


@njit(**_OPTIONS)
def beam_boundary(row, beams_N):
    """The first row from this one on that starts a beam: codes of one beam read each other"""
    while 0 < row < len(beams_N) and beams_N[row] == beams_N[row - 1]:
        row += 1
    return row


@njit(**_OPTIONS)
def _run_codes(begin, end, weights, a, rows, heads, prompts, tokens, segments_Z4, codes, scores, threads):
    first, last = part_of(begin, rows, scores.size, threads)
    begin, end = beam_boundary(begin, codes.beams_N), beam_boundary(end, codes.beams_N)
    of_others = heads
    for layer in range(len(weights.address_LW)):
        heads = heads_of(weights, layer, of_others)
        slots = KVSlots(codes.keys, codes.values, layer * heads.groups * heads.size, heads.size)
        store_keys_values(begin, end, weights, layer, a, codes.slots_N, slots, heads)
        rotate_queries(begin, end, rows, weights, layer, a, heads)
        bound = bound_of(weights, layer, heads)
        _attend_prompts(begin, end, rows, a, prompts, tokens, layer, segments_Z4, 0, scores[first:last], bound, heads)
        attend_codes_of(begin, end, a.rotated, a.weighted, rows, heads, a.top_GM, a.total_GM, codes, layer, a.attended_XQ)
        finish(begin, end, weights, layer, a, heads)


@njit(cache=True, **_OPTIONS)
def run_prompts(weights, a, rows, heads, prompts, tokens, segments_Z4, slots_N, num_complete, scores, threads):
    """All layers of a chunk of prompts, on `threads` threads; the last layer for the last row of each complete prompt alone

    Arguments as in `run_codes`. The first num_complete segments are complete; segments_Z4 becomes that of their last rows,
    which come first then.
    """
    width, of_others = heads.groups * tokens * heads.size, heads
    for layer in range(len(weights.address_LW)):
        heads = heads_of(weights, layer, of_others)
        slots = KVSlots(prompts, prompts[width:], layer * 2 * width, tokens * heads.size)
        fork(store_keys_values, threads, rows, (weights, layer, a, slots_N, slots, heads))
        if layer == len(weights.address_LW) - 1:
            rows, segments_Z4 = num_complete, segments_Z4[:num_complete]
            _move_to_front(a, segments_Z4)
        if rows > 0:
            places = heads, prompts, tokens, segments_Z4, scores
            fork(_finish_prompts, threads, rows, (weights, layer, a, rows, *places, threads))


@njit(**_OPTIONS)
def _move_to_front(a, segments_Z4):
    """What the rest of a layer reads of the segments' last rows, which are segments of their own then"""
    for z in range(len(segments_Z4)):
        row = segments_Z4[z, 1] - 1
        segments_Z4[z, 0], segments_Z4[z, 1] = z, z + 1
        a.positions_X[z] = a.positions_X[row]
        for d in range(a.hidden_XD.shape[1]):
            a.hidden_XD[z, d] = a.hidden_XD[row, d]
            a.normed_XD[z, d] = a.normed_XD[row, d]


@njit(**_OPTIONS)
def _finish_prompts(begin, end, weights, layer, a, rows, heads, prompts, tokens, segments_Z4, scores, threads):
    first, last = part_of(begin, rows, scores.size, threads)
    rotate_queries(begin, end, rows, weights, layer, a, heads)
    bound = bound_of(weights, layer, heads)
    _attend_prompts(begin, end, rows, a, prompts, tokens, layer, segments_Z4, 1, scores[first:last], bound, heads)
    divide_by_weights_of(begin, end, a.weighted, rows, heads, a.total_GM, a.attended_XQ)
    finish(begin, end, weights, layer, a, heads)
