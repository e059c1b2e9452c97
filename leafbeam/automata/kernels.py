"""Look-ups in the rows of an automaton, many states at a time: the compiled half of `Automaton`.

    legal tokens of a state    its row, or the set bits of its mask
    next state                 found in its row; under a mask, by walking the byte automaton over the token's bytes

State -1 is dead: it has no legal tokens and stays -1. Shapes: S states, E entries of rows, M masks of W words, R states asked
for, C legal tokens of all of them.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np

from leafbeam.automata.byte_dfa import run
from leafbeam.index.bit_kernels import trailing_zeros
from leafbeam.jit import njit

__all__ = ["fill_masks", "fill_rows", "row_pointers", "step_states"]


@njit(cache=True, nogil=True)
def row_pointers(states_R, row_ptr_S1, mask_S, count_M):
    """Where the legal tokens of each state begin in a ragged array of them all."""
    pointer_R1 = np.zeros(len(states_R) + 1, np.int64)
    for row in range(len(states_R)):
        state, count = states_R[row], 0
        if state >= 0:
            count = row_ptr_S1[state + 1] - row_ptr_S1[state] if mask_S[state] < 0 else count_M[mask_S[state]]
        pointer_R1[row + 1] = pointer_R1[row] + count
    return pointer_R1


@njit(cache=True, nogil=True)
def fill_rows(states_R, pointer_R1, row_ptr_S1, code_E, mask_S, mask_MW, code_C):
    """Write the legal tokens of each state, ascending."""
    for row in range(len(states_R)):
        state, place = states_R[row], pointer_R1[row]
        if state < 0:
            continue
        mask = mask_S[state]
        if mask < 0:
            for entry in range(row_ptr_S1[state], row_ptr_S1[state + 1]):
                code_C[place] = code_E[entry]
                place += 1
            continue
        for word in range(mask_MW.shape[1]):
            bits = mask_MW[mask, word]
            while bits:
                code_C[place] = word * 64 + np.int64(trailing_zeros(bits))
                place += 1
                bits &= bits - np.uint64(1)


@njit(cache=True, nogil=True)
def fill_masks(states_R, row_ptr_S1, code_E, mask_S, mask_MU, out_RU):
    """Write a mask of 32-bit words for each state: token v is bit v % 32 of word v // 32."""
    for row in range(len(states_R)):
        state = states_R[row]
        if state >= 0 and mask_S[state] >= 0:
            for word in range(out_RU.shape[1]):
                out_RU[row, word] = mask_MU[mask_S[state], word]
            continue
        out_RU[row] = 0
        if state >= 0:
            for entry in range(row_ptr_S1[state], row_ptr_S1[state + 1]):
                code = code_E[entry]
                out_RU[row, code >> 5] |= np.uint32(1) << np.uint32(code & 31)


@njit(cache=True, nogil=True)
def step_states(states_R, codes_R, table, walk, out_R):
    """The state after each token, -1 where it is not legal."""
    row_ptr_S1, code_E, next_E, mask_S, mask_MW = table
    class_256, first_X1, label_F, target_F, bytes_T, start_V1 = walk
    for row in range(len(states_R)):
        state, code = states_R[row], codes_R[row]
        out_R[row] = -1
        if state < 0:
            continue
        mask = mask_S[state]
        if mask >= 0:
            if (mask_MW[mask, code >> 6] >> np.uint64(code & 63)) & np.uint64(1):
                out_R[row] = run(class_256, first_X1, label_F, target_F, bytes_T, start_V1[code], start_V1[code + 1], state)
            continue
        low, past = row_ptr_S1[state], row_ptr_S1[state + 1]
        high = past
        while low < high:
            middle = (low + high) >> 1
            if code_E[middle] < code:
                low = middle + 1
            else:
                high = middle
        if low < past and code_E[low] == code:
            out_R[row] = next_E[low]
