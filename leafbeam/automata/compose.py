"""The composition of a byte automaton with a vocabulary: which tokens are legal in each state, and where they lead.

    for each state: walk the automaton and the token trie together from the root; a token is legal where both go on

The trie's nodes are in preorder, so the walk is one pass over them that skips what is below a byte that is not legal. States
where much of the vocabulary is legal get bit masks (`token_masks`).

Shapes: X states of the byte automaton, the first S of which a token may end in; E entries of rows, D dense states.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.arrays import UNFILLED, AutomatonArrays, AutomatonLimits, TransitionTable
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.dfa_moves import move, moves_of
from leafbeam.automata.minimize import useful_states
from leafbeam.automata.token_masks import dense_masks
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError, counted
from leafbeam.index.bitmap import Bitmap
from leafbeam.jit import njit


def without_table(dfa: ByteDFA, tokens: TokenTrie, limits: AutomatonLimits) -> AutomatonArrays:
    """Return the arrays of an automaton over tokens, without the legal tokens of its states.

    Each byte of the language has to be a token. Raises AutomatonError above the limits.
    """
    limits.check_states(dfa.num_states)
    empty, no_masks = np.empty(0, np.int32), np.empty((0, tokens.vocabulary_size // 64 + 1), np.uint64)
    unfilled_S = np.full(dfa.num_states, UNFILLED, np.int32)
    arrays = AutomatonArrays(
        vocabulary_size=tokens.vocabulary_size,
        table=TransitionTable(np.zeros(dfa.num_states + 1, np.int64), empty, empty, unfilled_S, no_masks),
        accepting=Bitmap.from_mask(dfa.accepting_X),
        dfa=dfa,
        bytes_T=tokens.spelling.bytes_T,
        token_indptr=tokens.spelling.token_indptr,
    )
    return limits.checked(arrays)


def compose(dfa: ByteDFA, tokens: TokenTrie, limits: AutomatonLimits, source: str) -> AutomatonArrays:
    """Return the automaton over tokens.

    source: the name of the language's source, for messages. Raises AutomatonError if no text of the language can be written
    with these tokens, and above the limits.
    """
    if not dfa.num_states:
        raise AutomatonError(f"{source} matches nothing: expected at least one text")
    end_X = _token_ends(dfa, tokens)
    num_states = int(end_X.sum())
    if not num_states:
        raise AutomatonError(
            f"nothing that {source} matches can be written with this vocabulary of "
            f"{counted(tokens.num_tokens, 'token')} with bytes"
        )
    limits.check_states(num_states)
    if num_states < dfa.num_states:
        number_X = np.empty(dfa.num_states, np.int32)
        number_X[np.concatenate([np.flatnonzero(end_X), np.flatnonzero(~end_X)])] = np.arange(dfa.num_states)
        dfa = dfa.renumbered(number_X)
    row_indptr, code_E, next_E, dense_D = _sparse_rows(dfa, tokens, num_states, limits)
    mask_S = np.full(num_states, -1, np.int32)
    mask_MW = np.empty((0, tokens.vocabulary_size // 64 + 1), np.uint64)
    if len(dense_D):
        mask_S[dense_D], mask_MW = dense_masks(dense_D, num_states, dfa, tokens, limits.max_bytes - 8 * len(code_E))
    has_masks = len(mask_MW) > 0
    arrays = AutomatonArrays(
        vocabulary_size=tokens.vocabulary_size,
        table=TransitionTable(row_indptr, code_E, next_E, mask_S, mask_MW),
        accepting=Bitmap.from_mask(dfa.accepting_X[:num_states]),
        dfa=dfa,
        bytes_T=tokens.spelling.bytes_T if has_masks else np.empty(0, np.uint8),
        token_indptr=tokens.spelling.token_indptr if has_masks else np.zeros(1, np.int32),
    )
    return limits.checked(arrays)


def _token_ends(dfa: ByteDFA, tokens: TokenTrie) -> NDArray[np.bool_]:
    """Return the states in which a token may end on the way from the start to acceptance."""
    if tokens.has_bytes_of(dfa):  # a token may end anywhere
        return np.ones(dfa.num_states, np.bool_)
    from_e, to_e = _token_edges(dfa.num_states, moves_of(dfa), tokens.nodes)
    return useful_states(from_e, to_e, dfa.accepting_X, 0)


def _sparse_rows(
    dfa: ByteDFA, tokens: TokenTrie, num_states: int, limits: AutomatonLimits
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Return (row_indptr, code_E, next_E, dense_D): rows of the states with few legal tokens, and the states with more."""
    max_row = int(limits.dense_share * tokens.vocabulary_size)
    row_indptr, dense_S = np.zeros(num_states + 1, np.int64), np.zeros(num_states, np.bool_)
    moves, id_R = moves_of(dfa), tokens.spelling.id_R
    code_E, next_E = np.empty(1 << 14, np.int32), np.empty(1 << 14, np.int32)
    state = 0
    while True:
        state = _fill_rows(state, num_states, max_row, moves, tokens.nodes, id_R, row_indptr, dense_S, code_E, next_E)
        count = int(row_indptr[state])
        if 8 * count > limits.max_bytes:
            raise AutomatonError(
                f"the rows of {state:,} of {counted(num_states, 'state')} take more than "
                f"max_bytes={limits.max_bytes:,}: raise it, or use a smaller language"
            )
        if state == num_states:
            return row_indptr, code_E[:count].copy(), next_E[:count].copy(), np.flatnonzero(dense_S)
        more = max(len(code_E), max_row)
        code_E, next_E = (np.concatenate([old, np.empty(more, np.int32)]) for old in (code_E, next_E))


@njit(cache=True)
def _token_edges(num_states, moves, nodes):
    """Return (from, to): the distinct pairs of states that a token joins, from every state that tokens reach from state 0."""
    class_256, indptr, byte_F, next_F, row_X, table_TC = moves
    byte_P, depth_P, end_P, lo_P, own_end_P, height_P = nodes
    state_H = np.empty(height_P[0] + 1, np.int32)  # the state behind each prefix of a node's
    from_e, to_e = [np.int32(0) for _ in range(0)], [np.int32(0) for _ in range(0)]
    queue_X, seen_X = np.zeros(num_states, np.int32), np.zeros(num_states, np.bool_)
    origin_X = np.full(num_states, -1, np.int32)  # the last origin that a state was reached from
    seen_X[0] = True
    head, count = 0, 1
    while head < count:
        origin = queue_X[head]
        head += 1
        state_H[0] = origin
        node = 1
        while node < len(byte_P):
            depth = depth_P[node]
            target = move(state_H[depth - 1], byte_P[node], class_256, indptr, byte_F, next_F, row_X, table_TC)
            if target < 0:
                node = end_P[node]
                continue
            state_H[depth] = target
            if own_end_P[node] > lo_P[node] and origin_X[target] != origin:
                origin_X[target] = origin
                from_e.append(origin)
                to_e.append(target)
                if not seen_X[target]:
                    seen_X[target] = True
                    queue_X[count] = target
                    count += 1
            node += 1
    return np.array(from_e, np.int32), np.array(to_e, np.int32)


@njit(cache=True)
def _fill_rows(start, num_states, max_row, moves, nodes, id_R, row_indptr, dense_S, code_E, next_E):
    """Write rows from state `start` on, until all are done or the next might not fit; returns the first state not done."""
    state_H = np.empty(nodes.height_P[0] + 1, np.int32)
    for origin in range(start, num_states):
        begin = row_indptr[origin]
        if begin + max_row > len(code_E):
            return origin
        end = _write_row(origin, num_states, begin, begin + max_row, moves, nodes, id_R, state_H, code_E, next_E)
        if end < 0:
            dense_S[origin] = True
            end = begin
        elif end > begin + 1:
            key = (code_E[begin:end].astype(np.int64) << 32) | next_E[begin:end]
            key.sort()
            for index in range(len(key)):
                code_E[begin + index], next_E[begin + index] = key[index] >> 32, key[index] & 0xFFFFFFFF
        row_indptr[origin + 1] = end
    return num_states


@njit(cache=True, nogil=True, _nrt=False)
def _write_row(origin, num_states, entry, limit, moves, nodes, id_R, state_H, code_E, next_E):
    """Write the legal tokens of a state and their next states, ordered by bytes; returns their end, -1 above the limit."""
    class_256, indptr, byte_F, next_F, row_X, table_TC = moves
    byte_P, depth_P, end_P, lo_P, own_end_P, _ = nodes
    state_H[0] = origin
    node = 1
    while node < len(byte_P):
        depth = depth_P[node]
        target = move(state_H[depth - 1], byte_P[node], class_256, indptr, byte_F, next_F, row_X, table_TC)
        if target < 0:
            node = end_P[node]
            continue
        state_H[depth] = target
        if target < num_states:
            if entry + own_end_P[node] - lo_P[node] > limit:
                return -1
            for rank in range(lo_P[node], own_end_P[node]):
                code_E[entry], next_E[entry] = id_R[rank], target
                entry += 1
        node += 1
    return entry
