"""The parts of a decoder's layer that are computed value by value, in numba: norms, biases, activations.

As in `model.cpu.kernels`: N rows, D hidden, F inner values of a feed-forward block, V outputs.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
import math

import numpy as np
from numba import types

from leafbeam.index.bit_kernels import bits_float, float_bits, stored_as, widened
from leafbeam.jit import njit
from leafbeam.ops.openmp import fork

SILU, GELU, GELU_TANH, RELU = range(4)  # activations
_FAST = {"reassoc", "contract", "nsz"}


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
def exp(x):
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
def norm(x_ND, rows, weight_D, bias_D, eps, out_ND, threads):
    """out[n] = weight * x[n] / sqrt(mean(x[n]^2) + eps) for the first `rows` rows

    With a bias, x[n] is that less its mean, and the bias is added. With neither, out[n] = x[n].
    """
    fork(norm_of, threads, rows, (x_ND, weight_D, bias_D, eps, out_ND))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def norm_of(begin_row, end_row, x_ND, weight_D, bias_D, eps, out_ND):
    if weight_D.size == 0:
        for n in range(begin_row, end_row):
            for d in range(x_ND.shape[1]):
                out_ND[n, d] = stored_as(out_ND[n, d], x_ND[n, d])
    elif bias_D.size > 0:
        _layer_norm_of(begin_row, end_row, x_ND, weight_D, bias_D, eps, out_ND)
    else:
        _rms_norm_of(begin_row, end_row, x_ND, weight_D, eps, out_ND)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _layer_norm_of(begin_row, end_row, x_ND, weight_D, bias_D, eps, out_ND):
    size = weight_D.size
    for n in range(begin_row, end_row):
        mean = np.float32(0.0)
        for d in range(size):
            mean += x_ND[n, d]
        mean = np.float32(mean / size)
        total = np.float32(0.0)
        for d in range(size):
            total += (x_ND[n, d] - mean) * (x_ND[n, d] - mean)
        scale = np.float32(1.0 / math.sqrt(total / size + eps))
        for d in range(size):
            out_ND[n, d] = stored_as(out_ND[n, d], weight_D[d] * ((x_ND[n, d] - mean) * scale) + bias_D[d])


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _rms_norm_of(begin_row, end_row, x_ND, weight_D, eps, out_ND):
    size = weight_D.size
    for n in range(begin_row, end_row):
        total = np.float32(0.0)
        for d in range(size):
            total += x_ND[n, d] * x_ND[n, d]
        scale = np.float32(1.0 / math.sqrt(total / size + eps))
        for d in range(size):
            out_ND[n, d] = stored_as(out_ND[n, d], weight_D[d] * (x_ND[n, d] * scale))


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def add_bias(x_NV, rows, first, bias_V, threads):
    """x[n, first + v] += bias[v] for the first `rows` rows"""
    fork(add_bias_of, threads, rows, (x_NV, first, bias_V))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def add_bias_of(begin_row, end_row, x_NV, first, bias_V):
    if bias_V.size > 0:
        for n in range(begin_row, end_row):
            for v in range(bias_V.size):
                x_NV[n, first + v] = stored_as(x_NV[n, first + v], widened(x_NV[n, first + v]) + bias_V[v])


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def add_normed(x_ND, rows, bias_D, weight_D, eps, out_ND, threads):
    """out[n] += rms_norm(x[n] + bias) for the first `rows` rows"""
    fork(add_normed_of, threads, rows, (x_ND, bias_D, weight_D, eps, out_ND))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def add_normed_of(begin_row, end_row, x_ND, bias_D, weight_D, eps, out_ND):
    size = out_ND.shape[1]
    add_bias_of(begin_row, end_row, x_ND, 0, bias_D)
    for n in range(begin_row, end_row):
        if weight_D.size == 0:
            for d in range(size):
                out_ND[n, d] += widened(x_ND[n, d])
            continue
        total = np.float32(0.0)
        for d in range(size):
            total += widened(x_ND[n, d]) * widened(x_ND[n, d])
        scale = np.float32(1.0 / math.sqrt(total / size + eps))
        for d in range(size):
            out_ND[n, d] += weight_D[d] * (widened(x_ND[n, d]) * scale)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def gate(gate_NF, rows, up_NF, activation, threads):
    """gate = activation(gate) * up for the first `rows` rows"""
    fork(gate_of, threads, rows, (gate_NF, up_NF, activation))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def gate_of(begin_row, end_row, gate_NF, up_NF, activation):
    if activation == SILU:
        _silu_gate_of(begin_row, end_row, gate_NF, up_NF)
        return
    for n in range(begin_row, end_row):
        for i in range(gate_NF.shape[1]):
            gated = _activation(widened(gate_NF[n, i]), activation) * widened(up_NF[n, i])
            gate_NF[n, i] = stored_as(gate_NF[n, i], gated)


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _silu_gate_of(begin_row, end_row, gate_NF, up_NF):
    size = gate_NF.shape[1]
    lowest = np.float32(-80.0)
    for n in range(begin_row, end_row):
        for i in range(size):
            x = widened(gate_NF[n, i])
            negated = -x
            negated = lowest if negated < lowest else negated
            negated = -lowest if negated > -lowest else negated
            gated = x / (np.float32(1.0) + exp(negated)) * widened(up_NF[n, i])
            gate_NF[n, i] = stored_as(gate_NF[n, i], gated)


@njit(cache=True, nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def activate(x_NF, rows, activation, threads):
    """x = activation(x) for the first `rows` rows"""
    fork(activate_of, threads, rows, (x_NF, activation))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def activate_of(begin_row, end_row, x_NF, activation):
    for n in range(begin_row, end_row):
        for i in range(x_NF.shape[1]):
            x_NF[n, i] = stored_as(x_NF[n, i], _activation(widened(x_NF[n, i]), activation))


@njit(nogil=True, _nrt=False, error_model="numpy", fastmath=_FAST)
def _activation(x, activation):
    one, lowest = np.float32(1.0), np.float32(-80.0)
    if activation == RELU:
        return max(x, np.float32(0.0))
    if activation == GELU:
        return np.float32(0.5) * x * (one + np.float32(math.erf(x * np.float32(0.7071067811865476))))
    inner = x  # tanh(y) = 2 sigmoid(2 y) - 1
    if activation == GELU_TANH:
        inner = np.float32(1.5957691216057308) * (x + np.float32(0.044715) * x * x * x)
    return x / (one + exp(min(max(-inner, lowest), -lowest)))
