"""Bit masks for the states of a composition in which much of the vocabulary is legal.

Two states allow the same tokens below a trie node if the next `height` bytes cannot tell them apart, where `height` is the
length of the longest token below the node (`_depth_classes`). So a state is walked together with a similar state that already
has a mask: a copy of that mask is changed below the nodes where the two differ, and the walk goes on only there. The hundreds
of states of a bounded string therefore cost one walk, and the few tokens that the end of the string forbids.

Shapes: X states of the byte automaton, the first S of which a token may end in, D of them dense; P nodes, R ranks, V tokens;
M masks of W words; H bytes ahead.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.dfa_moves import move, moves_of
from leafbeam.automata.rank_masks import clear_bits, masks_by_token, set_bits
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError, counted
from leafbeam.jit import njit

_DEPTHS = 32  # bytes ahead that depth classes look: few tokens are longer, and those are walked


class RankedMasks:
    """The masks of some states of a composition: bit r % 64 of word r // 64 is the token of rank r.

    Args:
        num_states: The number of states in which a token may end.

    Attributes:
        count: The number of distinct masks.
        token_MW: The masks over tokens: bit v % 64 of word v // 64 is token v. There may be more rows than masks.
        count_M: The number of tokens of each mask.
    """

    def __init__(self, num_states: int, dfa: ByteDFA, tokens: TokenTrie) -> None:
        self._num_states, self._moves, self._tokens = num_states, moves_of(dfa), tokens
        self._depth_HX = _depth_classes(num_states, dfa.edges, _DEPTHS)
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything but the masks."""
        return self._depth_HX.nbytes + self._done_HX.nbytes + self._mask_X.nbytes + sum(array.nbytes for array in self._moves)

    def clear(self) -> None:
        """Forget all masks."""
        num_words = self._tokens.vocabulary_size // 64 + 1
        self._done_HX = np.full(self._depth_HX.shape, -1, np.int32)
        self._mask_X = np.full(self._depth_HX.shape[1], -1, np.int32)
        self._ranked_MW, self._hash_M = np.empty((16, num_words), np.uint64), np.empty(16, np.uint64)
        self.token_MW, self.count_M = np.empty((0, num_words), np.uint64), np.empty(0, np.int64)
        self.count = 0

    def fill(self, states: Sequence[int], max_masks: int) -> list[int]:
        """Return the mask of each state. It stops above `max_masks` distinct masks: then `count` is larger."""
        before, states_D = self.count, np.array(states, np.int64)
        self._ranked_MW, self._hash_M, self.count = _fill_masks(
            states_D,
            self._num_states,
            self._moves,
            self._tokens.nodes,
            self._depth_HX,
            self._done_HX,
            self._mask_X,
            self._ranked_MW,
            self._hash_M,
            self.count,
            max_masks,
        )
        if missing := max(0, self.count - len(self.token_MW)):
            more = max(missing, len(self.token_MW))
            self.token_MW = np.concatenate([self.token_MW, np.empty((more, self.token_MW.shape[1]), np.uint64)])
            self.count_M = np.concatenate([self.count_M, np.empty(more, np.int64)])
        new = slice(before, self.count)
        self.token_MW[new], self.count_M[new] = masks_by_token(self._ranked_MW[new], self._tokens.spelling.id_R)
        return self._mask_X[states_D].tolist()


def dense_masks(
    dense_D: NDArray[np.int64], num_states: int, dfa: ByteDFA, tokens: TokenTrie, max_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return (mask_D, mask_MW): the mask of each of these states, and the distinct masks over tokens.

    Raises AutomatonError where the masks take more than `max_bytes`.
    """
    max_masks = max(0, max_bytes) // (8 * (tokens.vocabulary_size // 64 + 1))
    masks = RankedMasks(num_states, dfa, tokens)
    mask_D = np.array(masks.fill(dense_D.tolist(), max_masks), np.int32)
    if masks.count > max_masks:
        raise AutomatonError(
            f"the masks of {counted(len(dense_D), 'state')} take more than "
            f"{counted(max(0, max_bytes), 'byte')}: raise max_bytes"
        )
    return mask_D, masks.token_MW[: masks.count].copy()


@njit(cache=True)
def _depth_classes(num_states, edges, max_depth):
    """Return depth_HX: two states have the same number in row h if the next h bytes cannot tell them apart.

    It stops early if one more byte changes nothing. A hash proposes an equal state, and then the edges are compared, so the
    result is exact.
    """
    edge_indptr, label_E, next_E = edges.edge_indptr, edges.label_E, edges.next_E
    num_all = len(edge_indptr) - 1
    depth_HX = np.zeros((max_depth + 1, num_all), np.int32)
    for state in range(num_all):
        depth_HX[0, state] = state >= num_states
    size = 64
    while size < 4 * num_all:
        size *= 2
    slot_Z = np.empty(size, np.int32)
    before = np.int64(depth_HX[0].max()) + 1
    for height in range(1, max_depth + 1):
        old_X, new_X = depth_HX[height - 1], depth_HX[height]
        slot_Z[:] = -1
        count = 0
        for state in range(num_all):
            begin, end = edge_indptr[state], edge_indptr[state + 1]
            key = np.uint64(depth_HX[0, state] + 1)
            for edge in range(begin, end):
                key = (key ^ np.uint64(label_E[edge]) ^ (np.uint64(old_X[next_E[edge]]) << np.uint64(8))) * np.uint64(
                    0x9E3779B97F4A7C15
                )
                key ^= key >> np.uint64(29)
            slot = np.int64(key & np.uint64(size - 1))
            while True:
                other = slot_Z[slot]
                if other < 0:
                    slot_Z[slot] = state
                    new_X[state] = count
                    count += 1
                    break
                if edge_indptr[other + 1] - edge_indptr[other] == end - begin and depth_HX[0, other] == depth_HX[0, state]:
                    shift, same = edge_indptr[other] - begin, True
                    for edge in range(begin, end):
                        if label_E[edge] != label_E[edge + shift] or old_X[next_E[edge]] != old_X[next_E[edge + shift]]:
                            same = False
                            break
                    if same:
                        new_X[state] = new_X[other]
                        break
                slot = (slot + 1) & (size - 1)
        if count == before:
            return depth_HX[:height]
        before = count
    return depth_HX


@njit(cache=True, nogil=True, _nrt=False)
def _walk(origin, similar, num_states, moves, nodes, depth_HX, state_H, similar_H, mask_W):
    """Turn the mask of a similar state (-1: an empty mask) into that of `origin`. The buffers are for a state each byte."""
    class_256, edge_indptr, byte_E, next_E, row_X, table_TC = moves
    byte_P, depth_P, end_P, lo_P, own_end_P, height_P = nodes
    max_depth = len(depth_HX) - 1
    settled = max_depth < _DEPTHS  # one byte more changes nothing
    state_H[0], similar_H[0] = origin, similar
    node = 1
    while node < len(byte_P):
        depth, byte = depth_P[node], byte_P[node]
        target = move(state_H[depth - 1], byte, class_256, edge_indptr, byte_E, next_E, row_X, table_TC)
        other = move(similar_H[depth - 1], byte, class_256, edge_indptr, byte_E, next_E, row_X, table_TC)
        same = target == other
        if not same and target >= 0 and other >= 0 and (settled or height_P[node] <= max_depth):
            height = min(height_P[node], max_depth)
            same = depth_HX[height, target] == depth_HX[height, other]
        if same:
            node = end_P[node]
            continue
        if target < 0:
            clear_bits(mask_W, lo_P[node], lo_P[end_P[node]])
            node = end_P[node]
            continue
        state_H[depth], similar_H[depth] = target, other
        if target < num_states:
            set_bits(mask_W, lo_P[node], own_end_P[node])
        elif lo_P[node] < own_end_P[node]:
            clear_bits(mask_W, lo_P[node], own_end_P[node])
        node += 1


@njit(cache=True)
def _fill_masks(states_D, num_states, moves, nodes, depth_HX, done_HX, mask_X, ranked_MW, hash_M, count, max_masks):
    """Write the masks of some states; returns (the masks over ranks, their hashes, their number), and stops above `max_masks`.

    The arrays hold what earlier calls have found: `count` masks over ranks, the mask of each state (-1: none yet), and for each
    depth class the last state with a mask (-1: none).
    """
    max_depth, size = len(depth_HX) - 1, nodes.height_P[0] + 1
    state_H, similar_H = np.empty(size, np.int32), np.empty(size, np.int32)
    for origin in states_D:
        if count > max_masks:
            break
        if mask_X[origin] >= 0:
            continue
        if count == len(ranked_MW):
            ranked_MW = np.concatenate((ranked_MW, np.empty_like(ranked_MW)))
            hash_M = np.concatenate((hash_M, np.empty_like(hash_M)))
        mask_W = ranked_MW[count]
        height = max_depth
        while height >= 0 and done_HX[height, depth_HX[height, origin]] < 0:
            height -= 1
        similar = done_HX[height, depth_HX[height, origin]] if height >= 0 else np.int32(-1)
        if similar >= 0:
            mask_W[:] = ranked_MW[mask_X[similar]]
        else:
            mask_W[:] = 0
        _walk(origin, similar, num_states, moves, nodes, depth_HX, state_H, similar_H, mask_W)
        hashed = np.uint64(0)
        for word in range(len(mask_W)):
            hashed = (hashed ^ mask_W[word]) * np.uint64(0x9E3779B97F4A7C15)
            hashed ^= hashed >> np.uint64(32)
        mask = 0
        while mask < count and not (hash_M[mask] == hashed and np.array_equal(ranked_MW[mask], mask_W)):
            mask += 1
        mask_X[origin] = mask
        if mask == count:
            hash_M[count] = hashed
            count += 1
        for height in range(max_depth + 1):
            done_HX[height, depth_HX[height, origin]] = origin
    return ranked_MW, hash_M, count
