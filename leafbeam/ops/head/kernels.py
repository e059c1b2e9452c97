"""Gathered dot products and their bookkeeping, in compiled loops that vectorise.

    gather: for each row, for each four of its codes: read four rows of the weight side by side, each once
    tokens: for each code, for each four of the rows that want it: read its weights once, from the cache three times

Four at a time because one stream does not fill the memory's pipeline. Sums are kept in float32 lanes; tests compare with
float64. Nothing is materialised: `weight[codes]` would write and read again what is read here once.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

import math

import numpy as np

from leafbeam.jit import njit
from leafbeam.ops.constrain.logsumexp import CHUNK, chunk_maxima, sum_exp

__all__ = ["add_to_sums", "by_code", "csr_logits", "log_sums", "mark", "runs_of", "take", "token_logits"]

_FLAGS = {"reassoc", "contract", "nsz"}


@njit(nogil=True, _nrt=False, fastmath=_FLAGS)
def _dot(one_D, other_D):
    total = np.float32(0.0)
    for i in range(one_D.size):
        total += one_D[i] * other_D[i]
    return total


@njit(nogil=True, _nrt=False, fastmath=_FLAGS)
def _dots(one_D, others_D):
    """The products of one vector with four others, read side by side."""
    first, second, third, fourth = others_D
    a, b, c, d = np.float32(0.0), np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for i in range(one_D.size):
        value = one_D[i]
        a += value * first[i]
        b += value * second[i]
        c += value * third[i]
        d += value * fourth[i]
    return a, b, c, d


@njit(cache=True, nogil=True, _nrt=False)
def csr_logits(hidden_RD, weight_VD, indptr_R1, code_C, out_C):
    """The logit of each legal code of each row. Cost: C x D weights, read at random, a row of them at a time."""
    for row in range(hidden_RD.shape[0]):
        hidden_D = hidden_RD[row]
        at, end = indptr_R1[row], indptr_R1[row + 1]
        while at + 4 <= end:
            four = weight_VD[code_C[at]], weight_VD[code_C[at + 1]], weight_VD[code_C[at + 2]], weight_VD[code_C[at + 3]]
            out_C[at], out_C[at + 1], out_C[at + 2], out_C[at + 3] = _dots(hidden_D, four)
            at += 4
        while at < end:
            out_C[at] = _dot(hidden_D, weight_VD[code_C[at]])
            at += 1


@njit(cache=True, nogil=True, _nrt=False)
def token_logits(hidden_RD, weight_VD, begin_V1, row_C, place_C, out_C):
    """The same from the table of `by_code`. Cost: the weights of each different code once; C x D products."""
    for code in range(weight_VD.shape[0]):
        at, end = begin_V1[code], begin_V1[code + 1]
        weight_D = weight_VD[code]
        while at + 4 <= end:
            four = hidden_RD[row_C[at]], hidden_RD[row_C[at + 1]], hidden_RD[row_C[at + 2]], hidden_RD[row_C[at + 3]]
            a, b, c, d = _dots(weight_D, four)
            out_C[place_C[at]], out_C[place_C[at + 1]], out_C[place_C[at + 2]], out_C[place_C[at + 3]] = a, b, c, d
            at += 4
        while at < end:
            out_C[place_C[at]] = _dot(weight_D, hidden_RD[row_C[at]])
            at += 1


@njit(cache=True, nogil=True, _nrt=False)
def by_code(indptr_R1, code_C, begin_V1, out_row_C, out_place_C):
    """Turn legal codes by row into rows by code: where each code's begin, and for each its row and place. A counting sort."""
    begin_V1[:] = 0
    for at in range(code_C.size):
        begin_V1[code_C[at] + 1] += 1
    for code in range(begin_V1.size - 1):
        begin_V1[code + 1] += begin_V1[code]
    for row in range(indptr_R1.size - 2, -1, -1):
        for at in range(indptr_R1[row + 1] - 1, indptr_R1[row] - 1, -1):
            begin_V1[code_C[at] + 1] -= 1
            place = begin_V1[code_C[at] + 1]
            out_row_C[place], out_place_C[place] = row, at
    # What was counted down stands one entry late now: the beginning of each code.
    for code in range(begin_V1.size - 1):
        begin_V1[code] = begin_V1[code + 1]
    begin_V1[begin_V1.size - 1] = code_C.size


@njit(cache=True, nogil=True, _nrt=False)
def mark(code_C, block, legal_V, blocks):
    """Mark each legal code and its block; returns how many different ones there are of each."""
    legal_V[:] = False
    blocks[:] = False
    codes, active = 0, 0
    for at in range(code_C.size):
        code = code_C[at]
        if not legal_V[code]:
            legal_V[code] = True
            codes += 1
            if not blocks[code // block]:
                blocks[code // block] = True
                active += 1
    return codes, active


@njit(cache=True, nogil=True, _nrt=False)
def runs_of(blocks, block, num_codes, longest, out_N2):
    """Write runs [begin, end) of marked blocks, none longer than `longest` codes; returns how many."""
    count = 0
    number = 0
    while number < blocks.size:
        if not blocks[number]:
            number += 1
            continue
        begin = number * block
        while number < blocks.size and blocks[number] and (number + 1) * block - begin <= longest:
            number += 1
        out_N2[count, 0], out_N2[count, 1] = begin, min(number * block, num_codes)
        count += 1
    return count


@njit(cache=True, nogil=True, _nrt=False)
def take(logits_RB, first, indptr_R1, code_C, at_R, out_C):
    """Copy the legal logits of the codes from `first` on; `at_R` says how far each row has come and is moved on."""
    last = first + logits_RB.shape[1]
    for row in range(logits_RB.shape[0]):
        at, end = at_R[row], indptr_R1[row + 1]
        while at < end and code_C[at] < last:
            out_C[at] = logits_RB[row, code_C[at] - first]
            at += 1
        at_R[row] = at


@njit(cache=True, nogil=True, _nrt=False)
def add_to_sums(logits_RB, top_R, sum_R, chunks):
    """Add a block of logits to each row's sum of exponentials, which is kept relative to its largest logit so far."""
    for row in range(logits_RB.shape[0]):
        top = chunk_maxima(logits_RB[row], chunks)
        if top > top_R[row]:
            sum_R[row] *= math.exp(top_R[row] - top)
            top_R[row] = top
        if top_R[row] > np.float32(-np.inf):
            sum_R[row] += sum_exp(logits_RB[row], top_R[row])


@njit(cache=True, nogil=True, _nrt=False)
def log_sums(indptr_R1, logit_C, chunks, out_R):
    """The log-sum-exp of each ragged row; -inf of an empty one."""
    for row in range(indptr_R1.size - 1):
        values = logit_C[indptr_R1[row] : indptr_R1[row + 1]]
        out_R[row] = np.float32(-np.inf)
        if values.size > 0:
            top = chunk_maxima(values, chunks)
            out_R[row] = top + np.float32(math.log(sum_exp(values, top))) if top > np.float32(-np.inf) else top
    return CHUNK
