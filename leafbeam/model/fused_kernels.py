"""The parts of a Qwen3 layer, each in one call with its products: for models so small that calls take longer than products.

Kernels as in `cpu_kernels`, with its shapes. T tokens of all prompts, Z segments: rows of a chunk that belong to one request.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
from leafbeam.jit import njit
from leafbeam.model.cpu_kernels import (
    TILE,
    divide_by_weights,
    rms_norm,
    rotate_queries,
    silu_gate,
    softmax_weights,
    store_keys_values,
)
from leafbeam.ops.linear.blas import multiply, sgemm

_FLOAT = 4  # bytes


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def project_keys_values(weights, activations, rows, slots_N, slots, heads, threads):
    """normed = rms_norm(hidden); keys and values of the first `rows` rows to their slots (see `store_keys_values`)"""
    a = activations
    rms_norm(a.hidden_XD, rows, weights.attention_norm, heads.eps, a.normed_XD, threads)
    multiply(a.normed_XD, rows, weights.key, a.key_XG, 0)
    multiply(a.normed_XD, rows, weights.value, a.value_XG, 0)
    store_keys_values(a.key_XG, a.value_XG, rows, a.positions_X, slots_N, slots, weights.key_norm, heads, threads)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def project_queries(weights, activations, rows, heads, out, threads):
    """The rotated queries of normed rows (see `rotate_queries`)"""
    a = activations
    multiply(a.normed_XD, rows, weights.query, a.query_XQ, 0)
    rotate_queries(a.query_XQ, rows, a.positions_X, weights.query_norm, heads, out, threads)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def attend_prompts(activations, rows, slots, tokens, segments_Z4, step, scores, bound, heads, threads):
    """for each segment (begin, end, first, length), and each key head:
        scores = queries[begin:end] @ keys[first : first + length].T, of which row n sees all, or its position + 1 if step is 1
        weighted_values = softmax_weights(scores) @ values[first : first + length]
    and, if step is 1, divide_by_weights(weighted_values)

    slots: keys, then values of a layer, (2, G, T, E) flat.
    """
    a, ratio, size, groups = activations, heads.ratio, heads.size, heads.groups
    keys, values = slots.ctypes.data, slots.ctypes.data + groups * tokens * size * _FLOAT
    queries, weighted, room = a.rotated.ctypes.data, a.weighted.ctypes.data, scores.ctypes.data
    for z in range(len(segments_Z4)):
        begin, end, first, length = segments_Z4[z, 0], segments_Z4[z, 1], segments_Z4[z, 2], segments_Z4[z, 3]
        most = max(1, scores.size // (groups * ratio * length))
        most = min(most, TILE) if step else most
        parts = -(-(end - begin) // most)
        most = -(-(end - begin) // parts)
        for row in range(begin, end, most):
            count = min(most, end - row)
            queries_of_head, visible = count * ratio, length
            if step:
                visible = a.positions_X[row] + 1
                length = visible - 1 + count
            for g in range(groups):
                at = (g * rows + row) * ratio * size * _FLOAT
                to = room + g * queries_of_head * length * _FLOAT
                from_ = (g * tokens + first) * size * _FLOAT
                sgemm(queries + at, keys + from_, to, queries_of_head, length, size, True, 0)
            outputs = a.top_GM, a.total_GM, row * ratio
            softmax_weights(scores, groups, queries_of_head, length, visible, step, ratio, bound, *outputs, threads)
            for g in range(groups):
                at = (g * rows + row) * ratio * size * _FLOAT
                to = room + g * queries_of_head * length * _FLOAT
                from_ = (g * tokens + first) * size * _FLOAT
                sgemm(to, values + from_, weighted + at, queries_of_head, size, length, False, 0)
    if step:
        divide_by_weights(a.weighted, rows, heads, a.total_GM, a.attended_XQ, threads)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
def finish(weights, activations, rows, heads, threads):
    """Add the attention's output projection, then the feed-forward block, to the hidden states of the first `rows` rows"""
    a = activations
    multiply(a.attended_XQ, rows, weights.out, a.hidden_XD, 1)
    rms_norm(a.hidden_XD, rows, weights.feed_forward_norm, heads.eps, a.normed_XD, threads)
    multiply(a.normed_XD, rows, weights.gate, a.gate_XF, 0)
    multiply(a.normed_XD, rows, weights.up, a.up_XF, 0)
    silu_gate(a.gate_XF, rows, a.up_XF, threads)
    multiply(a.gate_XF, rows, weights.down, a.hidden_XD, 1)
