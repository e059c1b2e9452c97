"""The legal tokens and the next states of an automaton that is determinised where a search reaches it.

A token is legal in a state if its bytes lead somewhere, since every state leads to acceptance and every byte is a token. As in
`token_masks`, a state is walked together with a state that has a mask, and only where the two differ: below a node of the trie
they do not if they are `alike` for as many bytes as its longest token has. So the states of a bounded repetition have the mask
of one of them, but for its last few turns. Where no state is similar and any plain text is legal, only other tokens are walked.

Shapes: D states, M masks of W words, R rows.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.addresses import addresses, arrays_at
from leafbeam.automata.determinize import alike, expand, expand_one, following, shape_hashes, unpacked
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.network import common_classes
from leafbeam.automata.plain_tokens import BaseArrays
from leafbeam.automata.rank_masks import clear_bits, flip_tokens, set_bits
from leafbeam.automata.token_nodes import TokenNodes
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.jit import njit

_MAX_PAIRS = 24  # of states that text leads to: those of one kind of string, and of characters of several bytes
_HEIGHTS = (256, 64, 16, 4, 1)  # bytes ahead: a state that is alike for more of them is more similar
_NUM_SHAPES = 1 << 10  # a later shape takes the place of an earlier one, which only costs time
_NOT_TEXT, _NOT_A_BYTE = -1, -2


class MaskArrays(NamedTuple):
    """The arrays that `_fill_mask` reads and writes.

    Args:
        ranked_MW, token_MW: The masks over ranks and over tokens.
        count_M, hash_M: The number of tokens of each mask, and a hash.
        state_H, similar_H: The states behind each prefix of a token, from the state and from a similar one.
        pair_N2: The pairs of states that `_has_plain_text` has seen.
        byte_j: A byte of each class of bytes that both the language and plain text treat alike.
        heights_n, hash_n: Bytes ahead, and the hash of a state's shape at each.
        shape_Q, known_Q2: Hashes of shapes; and of each the last state that has it, and its mask, or -1.
        progress_4: The next node, the base, the similar state and its mask, if something was too small.
    """

    ranked_MW: NDArray[np.uint64]
    token_MW: NDArray[np.uint64]
    count_M: NDArray[np.int64]
    hash_M: NDArray[np.uint64]
    state_H: NDArray[np.int64]
    similar_H: NDArray[np.int64]
    pair_N2: NDArray[np.int64]
    byte_j: NDArray[np.int64]
    heights_n: NDArray[np.int64]
    hash_n: NDArray[np.uint64]
    shape_Q: NDArray[np.uint64]
    known_Q2: NDArray[np.int64]
    progress_4: NDArray[np.int64]

    KINDS = "u8:2 u8:2 i8 u8 i8 i8 i8:2 i8 i8 u8 u8 i8:2 i8"


class SetMasks:
    """The masks of some states; see `RankedMasks`."""

    def __init__(self, dfa: LazyDFA, tokens: TokenTrie) -> None:
        self._dfa, self._num_words = dfa, tokens.vocabulary_size // 64 + 1
        self._bases = tokens.bases
        self._height = int(tokens.nodes.height_P[0]) + 1
        self._byte_j = common_classes([dfa.network.class_256, *self._bases.arrays.next_A256])[1]
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything but the masks."""
        return self._dfa.nbytes

    @property
    def token_MW(self) -> NDArray[np.uint64]:
        return self._arrays.token_MW

    @property
    def count_M(self) -> NDArray[np.int64]:
        return self._arrays.count_M

    def clear(self) -> None:
        """Forget all masks."""
        states_H, masks = np.empty((2, self._height), np.int64), (np.empty((4, self._num_words), np.uint64) for _ in range(2))
        has_turns = bool((self._dfa.network.copy_C7[:, 2] > 1).any())
        self._arrays = MaskArrays(
            *(*masks, np.empty(4, np.int64), np.empty(4, np.uint64), *states_H),
            pair_N2=np.empty((_MAX_PAIRS, 2), np.int64),
            byte_j=self._byte_j,
            heights_n=np.array(_HEIGHTS if has_turns else (), np.int64),
            hash_n=np.empty(len(_HEIGHTS), np.uint64),
            shape_Q=np.zeros(_NUM_SHAPES if has_turns else 0, np.uint64),
            known_Q2=np.full((_NUM_SHAPES if has_turns else 0, 2), -1),
            progress_4=np.empty(4, np.int64),
        )
        self._rows = addresses(self._arrays)
        self.count = 0

    def fill(self, states: Sequence[int], max_masks: int) -> list[int]:
        """Return the mask of each state. It stops above `max_masks` distinct masks: then `count` is larger."""
        masks = [0] * len(states)
        with self._dfa.lock:
            for number, state in enumerate(states):
                if self.count > max_masks:
                    break
                masks[number] = self._fill(state)
        return masks

    def _fill(self, state: int) -> int:
        if self.count == len(self._arrays.hash_M):
            grown = {name: getattr(self._arrays, name) for name in ("ranked_MW", "token_MW", "count_M", "hash_M")}
            grown = {name: np.concatenate([array, np.empty_like(array)]) for name, array in grown.items()}
            self._arrays = self._arrays._replace(**grown)
            self._rows = addresses(self._arrays)
        self._arrays.progress_4[0] = 0
        while True:
            code, mask = _fill_mask(state, self.count, self._dfa.state, self._bases.rows, self._rows)
            if not code:
                self.count = max(self.count, int(mask) + 1)
                return int(mask)
            self._dfa.enlarge(code)


def states_after(
    dfa: LazyDFA, states_R: NDArray[np.int64], codes_R: NDArray[np.int64], bytes_T: NDArray[np.uint8], indptr: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the state of each row after its token's bytes; -1 if the token is not legal or the state is -1."""
    out_R = states_R.astype(np.int32)
    with dfa.lock:
        for row, code in enumerate(codes_R.tolist()):
            begin, end = int(indptr[code]), int(indptr[code + 1])
            state, at = (int(out_R[row]), begin) if begin < end else (-1, begin)
            while True:
                state, at, missing = _run(state, bytes_T, at, end, dfa.state)
                if not missing:
                    break
                dfa.enlarge(missing)
            out_R[row] = state
    return out_R


def forced_bytes(dfa: LazyDFA, state: int, max_bytes: int = 4096) -> bytes:
    """Return the bytes with which every completion from a state begins, those before the first choice or end."""
    class_256 = dfa.network.class_256
    byte_J = np.full(256, -1)
    byte_J[class_256[::-1]] = np.arange(255, -1, -1)
    byte_J[np.bincount(class_256, minlength=256) > 1] = -1
    forced = bytearray()
    with dfa.lock:
        while state >= 0 and len(forced) < max_bytes and not dfa.sets.accepting_Y[state]:
            if dfa.sets.edge_begin_Y[state] < 0:
                while code := expand_one(state, dfa.state):
                    dfa.enlarge(code)
            begin, end = dfa.sets.edge_begin_Y[state], dfa.sets.edge_end_Y[state]
            if end - begin != 1 or byte_J[dfa.sets.label_R[begin]] < 0:
                break
            forced.append(int(byte_J[dfa.sets.label_R[begin]]))
            state = int(dfa.sets.to_R[begin])
    return bytes(forced)


@njit(cache=True, nogil=True)
def _run(state, bytes_T, at, end, dfa):
    """Return (the state after bytes_T[at:end], -1 for none; where it stopped; what is too small)."""
    net, sets, counts, scratch = unpacked(dfa)
    while at < end and state >= 0:
        if sets.edge_begin_Y[state] < 0:
            code = expand(state, True, net, sets, counts, scratch)
            if code:
                return state, at, code
        state = following(state, net.class_256[bytes_T[at]], sets)
        at += 1
    return state, at, 0


@njit(cache=True, nogil=True)
def _fill_mask(state, count, dfa, bases, masks):
    """Write the mask of a state as number `count`, unless an earlier one is equal; returns (what is too small, its number).

    It begins with the mask of a similar state, or else with a base, and the nodes are walked where the state may differ.
    What is too small is made larger, and this is called again.
    """
    net, sets, counts, scratch = unpacked(dfa)
    bases, masks = arrays_at(bases, BaseArrays), arrays_at(masks, MaskArrays)
    mask_W, token_W = masks.ranked_MW[count], masks.token_MW[count]
    node, base, similar, copied = masks.progress_4[0], masks.progress_4[1], masks.progress_4[2], masks.progress_4[3]
    if node == 0:
        similar, copied = _similar(state, net, sets, masks)
        base = np.int64(0)
        if similar < 0:
            base, code = _base(state, net, sets, counts, scratch, bases, masks)
            if code:
                return code, np.int64(-1)
        mask_W[:] = bases.ranked_BW[base] if similar < 0 else masks.ranked_MW[copied]
        masks.state_H[0], masks.similar_H[0] = state, similar
        node = np.int64(1)
    nodes = arrays_at(bases.nodes_BA[base], TokenNodes)
    node, code = _walk(node, nodes, net, sets, counts, scratch, masks.state_H, masks.similar_H, mask_W)
    if code:
        masks.progress_4[0], masks.progress_4[1], masks.progress_4[2], masks.progress_4[3] = node, base, similar, copied
        return code, np.int64(-1)
    hashed, mask = _hash(mask_W), np.int64(0)
    while mask < count and not (masks.hash_M[mask] == hashed and np.array_equal(masks.ranked_MW[mask], mask_W)):
        mask += 1
    if mask == count:
        masks.hash_M[count] = hashed
        if similar < 0:
            token_W[:] = bases.token_BW[base]
            more = flip_tokens(mask_W, bases.ranked_BW[base], bases.id_R, token_W)
            masks.count_M[count] = bases.count_B[base] + more
        else:
            token_W[:] = masks.token_MW[copied]
            more = flip_tokens(mask_W, masks.ranked_MW[copied], bases.id_R, token_W)
            masks.count_M[count] = masks.count_M[copied] + more
    for number in range(len(masks.heights_n)):
        slot = np.int64(masks.hash_n[number] & np.uint64(len(masks.shape_Q) - 1))
        masks.shape_Q[slot], masks.known_Q2[slot, 0], masks.known_Q2[slot, 1] = masks.hash_n[number], state, mask
    return 0, mask


@njit(cache=True, nogil=True, _nrt=False)
def _similar(state, net, sets, masks):
    """Return (a similar state that has a mask, the mask), (-1, -1) if none is known; `hash_n` has the hashes of its shapes."""
    begin, end = sets.member_indptr[state], sets.member_indptr[state + 1]
    shape_hashes(begin, end, sets.member_Z, net, masks.heights_n, masks.hash_n)
    for number in range(len(masks.heights_n)):
        slot = np.int64(masks.hash_n[number] & np.uint64(len(masks.shape_Q) - 1))
        if masks.shape_Q[slot] == masks.hash_n[number] and masks.known_Q2[slot, 0] >= 0:
            return masks.known_Q2[slot, 0], masks.known_Q2[slot, 1]
    return np.int64(-1), np.int64(-1)


@njit(cache=True, nogil=True, _nrt=False)
def _base(state, net, sets, counts, scratch, bases, masks):
    """Return (the base with the most tokens that are all legal in a state, what is too small)."""
    for base in range(1, len(bases.height_B)):
        code = _has_plain_text(
            state, bases.height_B[base], net, sets, counts, scratch, bases.next_A256, masks.byte_j, masks.pair_N2
        )
        if code >= 0:
            return np.int64(base), code
        if code == _NOT_A_BYTE:
            break
    return np.int64(0), 0


@njit(cache=True, nogil=True, _nrt=False)
def _has_plain_text(state, height, net, sets, counts, scratch, next_A256, byte_j, pair_N2):
    """Return 0 if all plain text of `height` bytes is legal from a state, or what is too small.

    It returns a negative number if such text may not be legal: `_NOT_A_BYTE` if one byte of it is not. It looks at the pairs
    of a state of plain text and of a state that text leads to, and at `alike` pairs once.
    """
    pair_N2[0, 0], pair_N2[0, 1], count, pair = 0, state, 1, 0
    while pair < count:
        at, state = pair_N2[pair, 0], pair_N2[pair, 1]
        if sets.edge_begin_Y[state] < 0:
            code = expand(state, True, net, sets, counts, scratch)
            if code:
                return code
        for byte in byte_j:
            if next_A256[at, byte] < 0:
                continue
            target, known = following(state, net.class_256[byte], sets), False
            if target < 0:
                return _NOT_TEXT if pair else _NOT_A_BYTE
            for other in range(count):
                if pair_N2[other, 0] == next_A256[at, byte] and not known:
                    known = pair_N2[other, 1] == target or alike(pair_N2[other, 1], target, height, net, sets)
            if not known and count == len(pair_N2):
                return _NOT_TEXT
            if not known:
                pair_N2[count, 0], pair_N2[count, 1] = next_A256[at, byte], target
                count += 1
        pair += 1
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def _hash(mask_W):
    """Return a hash of a mask, by four sums that do not wait for each other."""
    prime = np.uint64(0x9E3779B97F4A7C15)
    one, two, three, four = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    for word in range(0, len(mask_W) - 3, 4):
        one, two = (one ^ mask_W[word]) * prime, (two ^ mask_W[word + 1]) * prime
        three, four = (three ^ mask_W[word + 2]) * prime, (four ^ mask_W[word + 3]) * prime
        one, two, three, four = one ^ (one >> 32), two ^ (two >> 32), three ^ (three >> 32), four ^ (four >> 32)
    for word in range(len(mask_W) // 4 * 4, len(mask_W)):
        one = (one ^ mask_W[word]) * prime
    return ((one * prime ^ two) * prime ^ three) * prime ^ four


@njit(cache=True, nogil=True, _nrt=False)
def _walk(node, nodes, net, sets, counts, scratch, state_H, similar_H, mask_W):
    """Turn the mask of a similar state (-1: none) into that of state_H[0]; returns (the node reached, what is too small).

    Without a similar state bits are only set.
    """
    byte_P, depth_P, end_P, lo_P, own_end_P, height_P = nodes
    while node < len(byte_P):
        depth = depth_P[node]
        state, similar, label = state_H[depth - 1], similar_H[depth - 1], net.class_256[byte_P[node]]
        if sets.edge_begin_Y[state] < 0:
            code = expand(state, True, net, sets, counts, scratch)
            if code:
                return node, code
        target, other = following(state, label, sets), np.int64(-1)
        if similar >= 0:
            if sets.edge_begin_Y[similar] < 0:
                code = expand(similar, True, net, sets, counts, scratch)
                if code:
                    return node, code
            other = following(similar, label, sets)
        if target == other or (target >= 0 and other >= 0 and alike(target, other, height_P[node], net, sets)):
            node = end_P[node]
            continue
        if target < 0:
            clear_bits(mask_W, lo_P[node], lo_P[end_P[node]])
            node = end_P[node]
            continue
        state_H[depth], similar_H[depth] = target, other
        set_bits(mask_W, lo_P[node], own_end_P[node])
        node += 1
    return node, 0
