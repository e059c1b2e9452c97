"""Numba kernels of the head on a CPU: dot products of legal codes, and their bookkeeping.

Dot products run four at a time, because one stream of reads does not fill the memory's bandwidth. Sums are float32. Weights
are read in place; `weight[codes]` would write and read them once more.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
import math

import numpy as np

from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.logsumexp import chunk_maxima, sum_exp

_FLAGS = {"reassoc", "contract", "nsz"}


@njit(nogil=True, _nrt=False, fastmath=_FLAGS)
def _dot(x_D, y_D):
    total = np.float32(0.0)
    for i in range(x_D.size):
        total += x_D[i] * y_D[i]
    return total


@njit(nogil=True, _nrt=False, fastmath=_FLAGS)
def _dot_four(x_D, y_4D):
    """x @ y for each of four vectors y"""
    first, second, third, fourth = y_4D
    a, b, c, d = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for i in range(x_D.size):
        value = x_D[i]
        a += value * first[i]
        b += value * second[i]
        c += value * third[i]
        d += value * fourth[i]
    return a, b, c, d


@njit(cache=True, nogil=True, _nrt=False)
def csr_logits(hidden_RD, weight_VD, indptr_R1, code_C, out_C):
    """for each row r and each of its entries i: out[i] = hidden[r] @ weight[code[i]]

    Cost: C x D weights, read in rows at random.
    """
    for row in range(hidden_RD.shape[0]):
        hidden_D = hidden_RD[row]
        at, end = indptr_R1[row], indptr_R1[row + 1]
        while at + 4 <= end:
            four = weight_VD[code_C[at]], weight_VD[code_C[at + 1]], weight_VD[code_C[at + 2]], weight_VD[code_C[at + 3]]
            out_C[at], out_C[at + 1], out_C[at + 2], out_C[at + 3] = _dot_four(hidden_D, four)
            at += 4
        while at < end:
            out_C[at] = _dot(hidden_D, weight_VD[code_C[at]])
            at += 1


@njit(cache=True, nogil=True, _nrt=False)
def token_logits(hidden_RD, weight_VD, indptr_V1, row_C, entry_C, out_C):
    """for each code v and each of its entries i in the order of `sort_by_code`: out[entry[i]] = hidden[row[i]] @ weight[v]

    Cost: the weights of each distinct code once; C x D multiplications.
    """
    for code in range(weight_VD.shape[0]):
        at, end = indptr_V1[code], indptr_V1[code + 1]
        weight_D = weight_VD[code]
        while at + 4 <= end:
            four = hidden_RD[row_C[at]], hidden_RD[row_C[at + 1]], hidden_RD[row_C[at + 2]], hidden_RD[row_C[at + 3]]
            a, b, c, d = _dot_four(weight_D, four)
            out_C[entry_C[at]], out_C[entry_C[at + 1]], out_C[entry_C[at + 2]], out_C[entry_C[at + 3]] = a, b, c, d
            at += 4
        while at < end:
            out_C[entry_C[at]] = _dot(weight_D, hidden_RD[row_C[at]])
            at += 1


@njit(cache=True, nogil=True, _nrt=False)
def sort_by_code(indptr_R1, code_C, indptr_V1, out_row_C, out_entry_C):
    """entry = argsort(code, stable); row = row of each entry; indptr_V1 = where each code starts. A counting sort."""
    indptr_V1[:] = 0
    for at in range(code_C.size):
        indptr_V1[code_C[at] + 1] += 1
    for code in range(indptr_V1.size - 1):
        indptr_V1[code + 1] += indptr_V1[code]
    for row in range(indptr_R1.size - 2, -1, -1):
        for at in range(indptr_R1[row + 1] - 1, indptr_R1[row] - 1, -1):
            indptr_V1[code_C[at] + 1] -= 1
            position = indptr_V1[code_C[at] + 1]
            out_row_C[position], out_entry_C[position] = row, at
    # Each code's start now stands one element late.
    for code in range(indptr_V1.size - 1):
        indptr_V1[code] = indptr_V1[code + 1]
    indptr_V1[indptr_V1.size - 1] = code_C.size


@njit(cache=True, nogil=True, _nrt=False)
def copy_legal(logits_RB, first, indptr_R1, code_C, at_R, out_C):
    """out[i] = logits[row, code[i] - first] for the entries from at[row] on whose code is in this part; at[row] moves on"""
    last = first + logits_RB.shape[1]
    for row in range(logits_RB.shape[0]):
        at, end = at_R[row], indptr_R1[row + 1]
        while at < end and code_C[at] < last:
            out_C[at] = logits_RB[row, code_C[at] - first]
            at += 1
        at_R[row] = at


@njit(cache=True, nogil=True, _nrt=False)
def accumulate_exp(logits_RB, top_R, sum_R, chunks):
    """top = max(top, logits); sum = sum x exp(old top - top) + sum(exp(logits - top)) for each row"""
    for row in range(logits_RB.shape[0]):
        top = chunk_maxima(logits_RB[row], chunks)
        if top > top_R[row]:
            sum_R[row] *= math.exp(top_R[row] - top)
            top_R[row] = top
        if top_R[row] > np.float32(-np.inf):
            sum_R[row] += sum_exp(logits_RB[row], top_R[row])


@njit(cache=True, nogil=True, _nrt=False)
def row_logsumexp(indptr_R1, logit_C, chunks, out_R):
    """out[r] = logsumexp(logit[indptr[r] : indptr[r + 1]]); -inf for an empty row"""
    for row in range(indptr_R1.size - 1):
        values = logit_C[indptr_R1[row] : indptr_R1[row + 1]]
        out_R[row] = np.float32(-np.inf)
        if values.size > 0:
            top = chunk_maxima(values, chunks)
            out_R[row] = top + np.float32(math.log(sum_exp(values, top))) if top > np.float32(-np.inf) else top
