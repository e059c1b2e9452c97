"""The numba kernels of `Automaton`: legal tokens and next states of many states at a time.

State -1 is dead: it has no legal tokens and stays -1. Tables come as plain tuples, which numba unpacks faster than named ones.

Shapes: S states, M masks of W words, R requested states, C legal tokens
of all of them.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import TransitionTable
from leafbeam.automata.byte_dfa import DfaEdges, run
from leafbeam.errors import AutomatonError
from leafbeam.index.bit_kernels import trailing_zeros
from leafbeam.jit import njit


def checked_states(states_R: NDArray[np.integer], num_states: int) -> NDArray[np.int64]:
    """Return numbers of states as int64. Raises AutomatonError for those that are not -1 (dead) to num_states - 1."""
    states = np.asarray(states_R)
    if states.shape == (1,) and states.dtype == np.int64 and -1 <= states[0] < num_states:  # one beam is the most common
        return states.astype(np.int64)
    if states.ndim != 1 or (states.dtype.kind not in "iu" and states.size):
        raise AutomatonError(f"states are {states.dtype} of shape {states.shape}: expected a list of integers")
    if states.size and not -1 <= states.min() <= states.max() < num_states:
        bad = states[(states < -1) | (states >= num_states)][0]
        raise AutomatonError(f"state {bad} is not in the automaton: expected -1 (dead) to {num_states - 1:,}")
    return states.astype(np.int64)


def checked_codes(codes_R: NDArray[np.integer], states_R: NDArray[np.int64], vocabulary_size: int) -> NDArray[np.int64]:
    """Return tokens as int64, one for each state. Raises AutomatonError for those that are not in the vocabulary."""
    codes = np.asarray(codes_R)
    if codes.shape != states_R.shape or codes.dtype.kind not in "iu":
        raise AutomatonError(f"codes are {codes.dtype} of shape {codes.shape}: expected integers, one for each state")
    if codes.size and not 0 <= codes.min() <= codes.max() < vocabulary_size:
        bad = codes[(codes < 0) | (codes >= vocabulary_size)][0]
        raise AutomatonError(f"token {bad} is not in the vocabulary: expected 0 <= token < {vocabulary_size:,}")
    return codes.astype(np.int64)


@njit(cache=True, nogil=True)
def legal_indptr(states_R, table, count_M):
    """Return where the legal tokens of each state begin when they are joined, and the end of the last."""
    table = TransitionTable(*table)
    indptr = np.zeros(len(states_R) + 1, np.int64)
    for row in range(len(states_R)):
        state, count = states_R[row], 0
        if state >= 0:
            mask = table.mask_S[state]
            count = table.row_indptr[state + 1] - table.row_indptr[state] if mask < 0 else count_M[mask]
        indptr[row + 1] = indptr[row] + count
    return indptr


@njit(cache=True, nogil=True, _nrt=False)
def fill_legal(states_R, indptr, table, code_C):
    """Write the legal tokens of each state, ascending."""
    table = TransitionTable(*table)
    for row in range(len(states_R)):
        state, out = states_R[row], indptr[row]
        if state < 0:
            continue
        mask = table.mask_S[state]
        if mask < 0:
            for entry in range(table.row_indptr[state], table.row_indptr[state + 1]):
                code_C[out] = table.code_E[entry]
                out += 1
            continue
        for word in range(table.mask_MW.shape[1]):
            bits = table.mask_MW[mask, word]
            while bits:
                code_C[out] = word * 64 + np.int64(trailing_zeros(bits))
                out += 1
                bits &= bits - np.uint64(1)


@njit(cache=True, nogil=True, _nrt=False)
def fill_masks(states_R, table, mask_MU, out_RU):
    """Write a mask of 32-bit words for each state: token v is bit v % 32 of word v // 32."""
    table = TransitionTable(*table)
    for row in range(len(states_R)):
        state = states_R[row]
        if state >= 0 and table.mask_S[state] >= 0:
            for word in range(out_RU.shape[1]):
                out_RU[row, word] = mask_MU[table.mask_S[state], word]
            continue
        out_RU[row] = 0
        if state >= 0:
            for entry in range(table.row_indptr[state], table.row_indptr[state + 1]):
                code = table.code_E[entry]
                out_RU[row, code >> 5] |= np.uint32(1) << np.uint32(code & 31)


@njit(cache=True, nogil=True, _nrt=False)
def step_states(states_R, codes_R, table, edges, bytes_T, token_indptr, out_R):
    """Return the state after each token, or -1 if it is not legal, from the row or by walking the token's bytes."""
    table, edges = TransitionTable(*table), DfaEdges(*edges)
    for row in range(len(states_R)):
        state, code = states_R[row], codes_R[row]
        out_R[row] = -1
        if state < 0:
            continue
        if table.mask_S[state] != -1:
            if token_indptr[code] < token_indptr[code + 1]:
                after = run(edges, bytes_T, token_indptr[code], token_indptr[code + 1], state)
                out_R[row] = after if after < table.mask_S.size else -1
            continue
        low, end = table.row_indptr[state], table.row_indptr[state + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if table.code_E[middle] < code:
                low = middle + 1
            else:
                high = middle
        if low < end and table.code_E[low] == code:
            out_R[row] = table.next_E[low]
