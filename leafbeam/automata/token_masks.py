"""Bit masks for the states of a composition in which much of the vocabulary is legal.

Two states allow the same tokens below a trie node if the next `height` bytes cannot tell them apart, where `height` is the
length of the longest token below the node (`_depth_classes`). So a state is walked together with a similar state that already
has a mask: below nodes where the two are equal, a range of bits is copied, and the walk goes on only where they differ. The
hundreds of states of a bounded string therefore cost one walk, and the few tokens that the end of the string forbids.

Shapes: X states of the byte automaton, the first S of which a token may end in, D of them dense; P nodes, R ranks, V tokens;
M masks of W words; H bytes ahead.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.live_children import move, moves_of
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.errors import AutomatonError, counted
from leafbeam.index.bit_kernels import trailing_zeros
from leafbeam.jit import njit

_DEPTHS = 32  # bytes ahead that depth classes look: few tokens are longer, and those are walked


def dense_masks(
    dense_D: NDArray[np.int64], num_states: int, dfa: ByteDFA, tokens: TokenTrie, max_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Return (mask_D, mask_MW): the mask of each of these states, and the distinct masks; bit v % 64 of word v // 64 is token
    v.

    Raises AutomatonError where the masks take more than `max_bytes`.
    """
    num_words = tokens.vocabulary_size // 64 + 1
    max_masks = max(0, max_bytes) // (8 * num_words)
    depth_HX = _depth_classes(num_states, dfa.edges, _DEPTHS)
    mask_D, ranked_MW = _fill_masks(
        dense_D, num_states, moves_of(dfa), tokens.nodes, tokens.spelling, depth_HX, num_words, max_masks
    )
    if len(ranked_MW) > max_masks:
        raise AutomatonError(
            f"the masks of {counted(len(dense_D), 'state')} take more than "
            f"{counted(max(0, max_bytes), 'byte')}: raise max_bytes"
        )
    mask_MW = np.zeros(ranked_MW.shape, np.uint64)
    _by_token(ranked_MW, tokens.spelling.id_R, mask_MW)
    return mask_D, mask_MW


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


@njit(cache=True, inline="always")
def _copy_bits(source_W, target_W, low, high):
    """Copy the bits low to high - 1 to where all bits are 0."""
    first, last = low >> 6, (high - 1) >> 6
    head = ~np.uint64(0) << np.uint64(low & 63)
    tail = ~np.uint64(0) >> np.uint64(63 - ((high - 1) & 63))
    if first == last:
        target_W[first] |= source_W[first] & head & tail
        return
    target_W[first] |= source_W[first] & head
    for word in range(first + 1, last):
        target_W[word] = source_W[word]
    target_W[last] |= source_W[last] & tail


@njit(cache=True)
def _fill_masks(dense_D, num_states, moves, nodes, spelling, depth_HX, num_words, max_masks):
    """Return (the mask of each state, the distinct masks over ranks); stop at the first mask above `max_masks`."""
    class_256, edge_indptr, byte_E, next_E, row_X, table_TC = moves
    child_P, child_end_P, byte_P, lo_P, own_end_P, hi_P, height_P = nodes
    id_R, bytes_T, token_indptr = spelling
    max_depth = len(depth_HX) - 1
    settled = max_depth < _DEPTHS  # one byte more changes nothing
    size = len(byte_P)
    mask_D = np.full(len(dense_D), -1, np.int32)
    ranked_MW, hash_M = np.empty((16, num_words), np.uint64), np.empty(16, np.uint64)
    done_HX = np.full(depth_HX.shape, -1, np.int32)  # the index of the last state done, by depth and class
    node_Z, state_Z, similar_Z = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    count = 0
    for index in range(len(dense_D)):
        if count > max_masks:
            break
        if count == len(ranked_MW):
            ranked_MW = np.concatenate((ranked_MW, np.empty_like(ranked_MW)))
            hash_M = np.concatenate((hash_M, np.empty_like(hash_M)))
        mask_W = ranked_MW[count]
        mask_W[:] = 0
        origin, height = dense_D[index], max_depth
        while height >= 0 and done_HX[height, depth_HX[height, origin]] < 0:
            height -= 1
        source = done_HX[height, depth_HX[height, origin]] if height >= 0 else -1
        source_W = ranked_MW[mask_D[source]] if source >= 0 else mask_W
        node_Z[0], state_Z[0], similar_Z[0] = 0, origin, dense_D[source] if source >= 0 else -1
        depth = 1
        while depth:
            depth -= 1
            node, state, similar = node_Z[depth], state_Z[depth], similar_Z[depth]
            begin = lo_P[node]  # ranks from here to where the next child begins are as in the source mask
            if child_P[node] < child_end_P[node]:
                begin = lo_P[child_P[node]]
            for child in range(child_P[node], child_end_P[node]):
                byte = byte_P[child]
                target = move(state, byte, class_256, edge_indptr, byte_E, next_E, row_X, table_TC)
                similar_target = move(similar, byte, class_256, edge_indptr, byte_E, next_E, row_X, table_TC)
                lo, own_end, hi, height = lo_P[child], own_end_P[child], hi_P[child], height_P[child]
                same = target == similar_target
                if not same and target >= 0 and similar_target >= 0 and (settled or height <= max_depth):
                    height = min(height, max_depth)
                    same = depth_HX[height, target] == depth_HX[height, similar_target]
                if same:
                    continue
                if lo > begin and similar >= 0:
                    _copy_bits(source_W, mask_W, begin, lo)
                begin = hi
                if target >= 0:
                    if target < num_states:
                        for rank in range(lo, own_end):
                            mask_W[rank >> 6] |= np.uint64(1) << np.uint64(rank & 63)
                    if hi - own_end == 1:  # one token below: its last bytes, without the nodes
                        end = token_indptr[id_R[own_end] + 1]
                        for position in range(end - height_P[child], end):
                            target = move(target, bytes_T[position], class_256, edge_indptr, byte_E, next_E, row_X, table_TC)
                        if 0 <= target < num_states:
                            mask_W[own_end >> 6] |= np.uint64(1) << np.uint64(own_end & 63)
                    elif hi > own_end:
                        node_Z[depth], state_Z[depth], similar_Z[depth] = child, target, similar_target
                        depth += 1
            if hi_P[node] > begin and similar >= 0:
                _copy_bits(source_W, mask_W, begin, hi_P[node])
        hashed = np.uint64(0)
        for word in range(num_words):
            hashed = (hashed ^ mask_W[word]) * np.uint64(0x9E3779B97F4A7C15)
            hashed ^= hashed >> np.uint64(32)
        mask = 0
        while mask < count and not (hash_M[mask] == hashed and np.array_equal(ranked_MW[mask], mask_W)):
            mask += 1
        mask_D[index] = mask
        if mask == count:
            hash_M[count] = hashed
            count += 1
        for height in range(max_depth + 1):
            done_HX[height, depth_HX[height, origin]] = index
    return mask_D, ranked_MW[:count].copy()


@njit(cache=True)
def _by_token(ranked_MW, id_R, mask_MW):
    """Convert masks over ranks to masks over tokens."""
    for mask in range(len(ranked_MW)):
        for word in range(ranked_MW.shape[1]):
            bits = ranked_MW[mask, word]
            while bits:
                token = id_R[word * 64 + np.int64(trailing_zeros(bits))]
                mask_MW[mask, token >> 6] |= np.uint64(1) << np.uint64(token & 63)
                bits &= bits - np.uint64(1)
