"""Rows that go through the layers: tokens of prompts, codes of beams, each with its position and where its keys go.

Beams that continue alike, as dead ones do, are one row.

Shapes: B requests, K beams of each, R = B x K, C new codes of a beam, N rows, T tokens of a prompt, S codes of a beam at most,
Z segments: rows of a chunk that belong to one request, D hidden, X rows of a chunk at most.
"""

# pyright: basic, reportCallIssue=false
from __future__ import annotations

from typing import NamedTuple

from leafbeam.jit import njit
from leafbeam.model.cpu.kernels import Integers
from leafbeam.ops.openmp import fork

__all__ = ["Rows", "are_below", "lay_out_codes", "lay_out_prompts", "load_embeddings", "segments_of"]


class Rows(NamedTuple):
    """int64 each: tokens, positions after the prompt's first token, elements at which keys start in the first layer.

    Of codes alone: their beams, of all requests, and how many codes they see, themselves included.
    """

    tokens_N: Integers
    positions_N: Integers
    slots_N: Integers
    beams_N: Integers
    visible_N: Integers

    def part(self, begin: int, end: int) -> Rows:
        """Return the rows from begin to end."""
        return Rows(*(array_N[begin:end] for array_N in self))


@njit(cache=True, nogil=True, _nrt=False)
def are_below(values, size):
    """Whether all are 0 to size - 1, of any shape"""
    for value in values.flat:  # noqa: SIM110 (numba has no generators without reference counts)
        if not 0 <= value < size:
            return False
    return True


@njit(cache=True, nogil=True, _nrt=False)
def lay_out_prompts(tokens_BT, known_B, begins_B1, width, first_B1, rows):
    """A row for each token that is not known yet: row n of request b is token known[b] + n - first[b]

    begins_B1: where prompts begin in their slots, of `width` elements. known_B: tokens whose keys are there. first_B1: written,
    each request's first row.
    """
    n = 0
    for b in range(len(known_B)):
        first_B1[b] = n
        for t in range(known_B[b], begins_B1[b + 1] - begins_B1[b]):
            rows.tokens_N[n], rows.positions_N[n] = tokens_BT[b, t], t
            rows.slots_N[n] = (begins_B1[b] + t) * width
            n += 1
    first_B1[len(known_B)] = n


@njit(cache=True, nogil=True, _nrt=False)
def lay_out_codes(tokens_BKC, parents_BK, level, begins_B1, before_RS, width, free, size, after_RS, row_R, first_B1, rows):
    """Lay out C rows for each beam that does not equal its request's last one; returns how many beams these are

        after[b, k] = before[b, parents[b, k]][:level] + [the slots of the beam's C rows]

    A row of the table of ancestors gives the slot of each code of a beam; beams that equal the last one share its slots.
    width: beams a request of `before`. begins_B1: of the prompts. free: the element at which the first free slot starts, of
    `size` elements each. Written: after_RS; row_R, each beam's index among those that run; first_B1, each request's first row;
    rows.
    """
    requests, beams, num_codes = tokens_BKC.shape
    n = num_run = 0
    for b in range(requests):
        first_B1[b] = n
        last = beams - 1
        for k in range(beams):
            beam, parent = b * beams + k, b * width + parents_BK[b, k]
            repeats = k < last and parents_BK[b, k] == parents_BK[b, last]
            for c in range(num_codes):
                repeats &= tokens_BKC[b, k, c] == tokens_BKC[b, last, c]
            for s in range(level):
                after_RS[beam, s] = before_RS[parent, s]
            row_R[beam] = -1 if repeats else num_run
            if repeats:
                continue
            num_run += 1
            for c in range(num_codes):
                code = level + c
                after_RS[beam, code] = free + n * size
                rows.tokens_N[n], rows.positions_N[n] = tokens_BKC[b, k, c], begins_B1[b + 1] - begins_B1[b] + code
                rows.slots_N[n], rows.beams_N[n], rows.visible_N[n] = after_RS[beam, code], beam, code + 1
                n += 1
        for beam in range(b * beams, b * beams + last):
            if row_R[beam] < 0:
                row_R[beam] = num_run - 1
                for s in range(level, level + num_codes):
                    after_RS[beam, s] = after_RS[b * beams + last, s]
    first_B1[requests] = n
    return num_run


@njit(cache=True, nogil=True, _nrt=False)
def segments_of(first_B1, begin, end, begins_B1, out_Z4):
    """The segments of rows begin to end, counted from `begin`: first row, end, first token in the slots, tokens of the prompt

    first_B1: each request's first row. begins_B1: where prompts begin in their slots. Returns how many.
    """
    z = 0
    for b in range(len(first_B1) - 1):
        low, high = max(first_B1[b], begin), min(first_B1[b + 1], end)
        if low < high:
            out_Z4[z, 0], out_Z4[z, 1] = low - begin, high - begin
            out_Z4[z, 2], out_Z4[z, 3] = begins_B1[b], begins_B1[b + 1] - begins_B1[b]
            z += 1
    return z


@njit(cache=True, nogil=True, _nrt=False)
def load_embeddings(embedding_VD, tokens_N, positions_N, hidden_XD, positions_X, threads):
    """hidden[n] = embedding[tokens[n]]; positions are copied"""
    fork(_load, threads, len(tokens_N), (embedding_VD, tokens_N, positions_N, hidden_XD, positions_X))


@njit(nogil=True, _nrt=False)
def _load(begin, end, embedding_VD, tokens_N, positions_N, hidden_XD, positions_X):
    for n in range(begin, end):
        positions_X[n] = positions_N[n]
        for d in range(hidden_XD.shape[1]):
            hidden_XD[n, d] = embedding_VD[tokens_N[n], d]
