"""A byte automaton times a vocabulary: which tokens are legal in each state, and where they lead.

    for each state: walk the automaton and the token trie together, from the root; a token is legal where both go on

Walked that way a state costs what is legal below it, not the vocabulary: a state with few edges looks its bytes up among the
node's children, one with many reads a table row for each child. States where much of the vocabulary is legal become bit masks
(`dense`).

Shapes: X states of the byte automaton, the first S of which a token may end in; P nodes, V tokens; E entries of rows, D dense
states, M masks of W words.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.live_children import living, moves_of, scratch_of, tree_of
from leafbeam.automata.minimize import trimmed
from leafbeam.automata.token_masks import dense_masks
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError
from leafbeam.jit import njit

__all__ = ["Composition", "compose"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Composition:
    """dfa: the byte automaton, renumbered so that a token may end in the states below S = len(mask_S).

    row_ptr_S1, code_E, next_E: legal tokens (ascending) and next states of each state; none in states that have a mask.
    mask_S: int32, the mask of a state, -1 where its row says all. mask_MW: uint64, bit v % 64 of word v // 64 is token v.
    """

    dfa: ByteDFA
    row_ptr_S1: NDArray[np.int64]
    code_E: NDArray[np.int32]
    next_E: NDArray[np.int32]
    mask_S: NDArray[np.int32]
    mask_MW: NDArray[np.uint64]


def compose(dfa: ByteDFA, tokens: TokenTrie, *, dense_share: float, max_states: int, max_bytes: int) -> Composition | None:
    """Compose; None where no text of the language can be written with these tokens.

    dense_share: a state with more than this share of the vocabulary legal gets a mask.
    Raises AutomatonError where the result has more than `max_states` states or takes more than `max_bytes`.
    """
    end_X = _ends(dfa, tokens)
    num_states = int(end_X.sum())
    if not num_states:
        return None
    if num_states > max_states:
        raise AutomatonError(f"the automaton has {num_states:,} states: expected at most max_states={max_states:,}; raise it")
    if num_states < dfa.num_states:
        number_X = np.empty(dfa.num_states, np.int32)
        number_X[np.concatenate([np.flatnonzero(end_X), np.flatnonzero(~end_X)])] = np.arange(dfa.num_states)
        dfa = dfa.renumbered(number_X)
    limit = int(dense_share * tokens.vocabulary_size)
    row_ptr_S1, code_E, next_E, dense_D = _sparse(dfa, tokens, num_states, limit, max_bytes)
    mask_S = np.full(num_states, -1, np.int32)
    mask_MW = np.empty((0, tokens.vocabulary_size // 64 + 1), np.uint64)
    if len(dense_D):
        room = max_bytes - 8 * len(code_E)
        mask_S[dense_D], mask_MW = dense_masks(dense_D, num_states, dfa, tokens, room)
    return Composition(dfa=dfa, row_ptr_S1=row_ptr_S1, code_E=code_E, next_E=next_E, mask_S=mask_S, mask_MW=mask_MW)


def _ends(dfa: ByteDFA, tokens: TokenTrie) -> NDArray[np.bool_]:
    """In which states a token may end on the way from the start to acceptance."""
    if not (dfa.used_256 & ~tokens.single_bytes).any():  # every byte is a token: a token may end anywhere
        return np.ones(dfa.num_states, np.bool_)
    from_e, to_e = _token_edges(dfa.num_states, moves_of(dfa), tree_of(tokens), scratch_of(tokens))
    return trimmed((from_e, from_e, to_e), dfa.accepting_X, 0)


def _sparse(
    dfa: ByteDFA, tokens: TokenTrie, num_states: int, limit: int, max_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Rows of all states with at most `limit` legal tokens, and the states with more."""
    row_ptr_S1, dense_S = np.zeros(num_states + 1, np.int64), np.zeros(num_states, np.bool_)
    moves, tree, scratch = moves_of(dfa), tree_of(tokens), scratch_of(tokens)
    code_E, next_E = np.empty(1 << 14, np.int32), np.empty(1 << 14, np.int32)
    state = 0
    while True:
        state = _fill_rows(state, num_states, limit, moves, tree, scratch, tokens.id_R, row_ptr_S1, dense_S, code_E, next_E)
        count = int(row_ptr_S1[state])
        if 8 * count > max_bytes:
            raise AutomatonError(
                f"the rows of {state:,} of {num_states:,} states take more than max_bytes={max_bytes:,}: raise it, or ask for "
                f"a smaller language"
            )
        if state == num_states:
            return row_ptr_S1, code_E[:count].copy(), next_E[:count].copy(), np.flatnonzero(dense_S)
        more = max(len(code_E), limit)
        code_E, next_E = (np.concatenate([old, np.empty(more, np.int32)]) for old in (code_E, next_E))


@njit(cache=True)
def _token_edges(num_states, moves, tree, scratch):
    """(from, to): the distinct pairs of states that some token joins, from every state that tokens reach from state 0."""
    class_256, first_X1, byte_E, next_E, row_X, table_TC = moves
    child_P, past_P, byte_P, lo_P, own_P, hi_P, _ = tree
    node_Z, state_Z, child_256, state_256 = scratch
    from_e, to_e = [np.int32(0) for _ in range(0)], [np.int32(0) for _ in range(0)]
    queue_X, met_X = np.zeros(num_states, np.int32), np.zeros(num_states, np.bool_)
    stamp_X = np.full(num_states, -1, np.int32)
    met_X[0] = True
    head, count = 0, 1
    while head < count:
        start = queue_X[head]
        head += 1
        node_Z[0], state_Z[0] = 0, start
        depth = 1
        while depth:
            depth -= 1
            node, state = node_Z[depth], state_Z[depth]
            found = living(
                node, state, class_256, first_X1, byte_E, next_E, row_X, table_TC, child_P, past_P, byte_P, child_256, state_256
            )
            for index in range(found):
                child, target = child_256[index], state_256[index]
                if own_P[child] > lo_P[child] and stamp_X[target] != start:
                    stamp_X[target] = start
                    from_e.append(start)
                    to_e.append(target)
                    if not met_X[target]:
                        met_X[target] = True
                        queue_X[count] = target
                        count += 1
                if hi_P[child] > own_P[child]:
                    node_Z[depth], state_Z[depth] = child, target
                    depth += 1
    return np.array(from_e, np.int32), np.array(to_e, np.int32)


@njit(cache=True)
def _fill_rows(start, num_states, limit, moves, tree, scratch, id_R, row_ptr_S1, dense_S, code_E, next_E):
    """Write rows from state `start` on, until all are done or the next might not fit: the first state that is not done."""
    class_256, first_X1, byte_F, next_F, row_X, table_TC = moves
    child_P, past_P, byte_P, lo_P, own_P, hi_P, _ = tree
    node_Z, state_Z, child_256, state_256 = scratch
    for origin in range(start, num_states):
        begin = row_ptr_S1[origin]
        place, last = begin, begin + limit
        if last > len(code_E):
            return origin
        node_Z[0], state_Z[0] = 0, origin
        depth = 1
        while depth and place <= last:
            depth -= 1
            node, state = node_Z[depth], state_Z[depth]
            found = living(
                node, state, class_256, first_X1, byte_F, next_F, row_X, table_TC, child_P, past_P, byte_P, child_256, state_256
            )
            for index in range(found):
                child, target = child_256[index], state_256[index]
                own = own_P[child]
                if target < num_states:
                    if place + own - lo_P[child] > last:
                        place = last + 1
                        break
                    for rank in range(lo_P[child], own):
                        code_E[place], next_E[place] = id_R[rank], target
                        place += 1
                if hi_P[child] > own:
                    node_Z[depth], state_Z[depth] = child, target
                    depth += 1
        if place > last:
            dense_S[origin] = True
            place = begin
        elif place > begin + 1:
            key = (code_E[begin:place].astype(np.int64) << 32) | next_E[begin:place]
            key.sort()
            for index in range(len(key)):
                code_E[begin + index], next_E[begin + index] = key[index] >> 32, key[index] & 0xFFFFFFFF
        row_ptr_S1[origin + 1] = place
    return num_states
