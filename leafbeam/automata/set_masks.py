"""The legal tokens and the next states of an automaton that is determinised where a search reaches it.

A token is legal in a state if its bytes lead somewhere, since every state leads to acceptance and every byte is a token. As in
`token_masks`, a state is walked together with a state that has a mask, and only where the two differ: below a node of the trie
they do not if they are `alike` for as many bytes as its longest token has. So the states of a bounded repetition have the mask
of one of them, but for its last few turns. Where no state is similar and any plain text is legal, only other tokens are walked.

Shapes: D states, M masks of W words, R rows.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.determinize import alike, expand, following, shape_hashes
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.network import common_classes
from leafbeam.automata.token_masks import by_token, clear_bits, set_bits
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.jit import njit

_MAX_PAIRS = 24  # of states that text leads to: those of one kind of string, and of characters of several bytes
_HEIGHTS = (256, 64, 16, 4, 1)  # bytes ahead: a state that is alike for more of them is more similar


class SetMasks:
    """The masks of some states: bit r % 64 of word r // 64 is the token of rank r; see `RankedMasks`."""

    def __init__(self, dfa: LazyDFA, tokens: TokenTrie) -> None:
        self._dfa, self._tokens = dfa, tokens
        height = int(tokens.nodes.height_P[0]) + 1
        self._states_H, self._hash_n = np.empty((2, height), np.int64), np.empty(len(_HEIGHTS), np.uint64)
        self._heights_n = np.array(_HEIGHTS)
        self._has_turns = bool((dfa.network.copy_C7[:, 2] > 1).any())
        tables = [dfa.network.class_256, *tokens.plain.next_A256]
        self._byte_j = common_classes(tables)[1]  # a byte of each class that both the language and plain text treat alike
        self._pair_N2 = np.empty((_MAX_PAIRS, 2), np.int64)
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything but the masks."""
        return self._dfa.nbytes

    def clear(self) -> None:
        """Forget all masks."""
        self._ranked_MW = np.empty((8, self._tokens.vocabulary_size // 64 + 1), np.uint64)
        self._token_MW, self._hash_M = np.empty_like(self._ranked_MW), np.empty(8, np.uint64)
        self._mask_of: dict[int, int] = {}
        self._similar: dict[int, int] = {}  # the last state with a mask, by the hash of its shape
        self.count = 0

    def fill(self, states_D: NDArray[np.int64], max_masks: int) -> NDArray[np.int32]:
        """Return the mask of each state. It stops above `max_masks` distinct masks: then `count` is larger."""
        states = states_D.tolist()
        with self._dfa.lock:
            for state in states:
                if self.count > max_masks:
                    break
                if state not in self._mask_of:
                    self._mask_of[state] = self._fill(state)
        return np.array([self._mask_of.get(state, 0) for state in states], np.int32)

    def by_token(self, first: int) -> NDArray[np.uint64]:
        """Return the masks from number `first` on over tokens: bit v % 64 of word v // 64 is token v."""
        return self._token_MW[first : self.count]

    def _fill(self, state: int) -> int:
        if self.count == len(self._ranked_MW):
            masks = self._ranked_MW, self._token_MW, self._hash_M
            self._ranked_MW, self._token_MW, self._hash_M = (np.concatenate([array, np.empty_like(array)]) for array in masks)
        shapes = self._shapes_of(state) if self._has_turns else []
        similar = next((self._similar[shape] for shape in shapes if shape in self._similar), -1)
        self._states_H[:, 0] = state, similar
        copied = -1 if similar < 0 else self._mask_of[similar]
        tokens, masks = (self._tokens.nodes, self._tokens.spelling.id_R), (self._ranked_MW, self._token_MW, self._hash_M)
        text = (*self._tokens.plain, self._byte_j, self._pair_N2)
        node, is_plain = 0, False
        while True:
            node, is_plain, code, mask = _fill_mask(
                node, is_plain, copied, *self._dfa.state, tokens, text, *self._states_H, masks, self.count
            )
            if not code:
                break
            self._dfa.enlarge(code)
        self.count = max(self.count, mask + 1)
        self._similar |= dict.fromkeys(shapes, state)  # not before: the walk may meet a limit
        return mask

    def _shapes_of(self, state: int) -> list[int]:
        """Return hashes of how a state's turns go on, for more and for fewer bytes: states of one hash are similar."""
        sets = self._dfa.sets
        begin, end = sets.member_indptr[state : state + 2].tolist()
        shape_hashes(begin, end, sets.member_Z, self._dfa.network, self._heights_n, self._hash_n)
        return self._hash_n.tolist()


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
                state, at, missing = _run(state, bytes_T, at, end, *dfa.state)
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
                dfa.run(lambda at=state: expand(at, True, *dfa.state))
            begin, end = dfa.sets.edge_begin_Y[state], dfa.sets.edge_end_Y[state]
            if end - begin != 1 or byte_J[dfa.sets.label_R[begin]] < 0:
                break
            forced.append(int(byte_J[dfa.sets.label_R[begin]]))
            state = int(dfa.sets.to_R[begin])
    return bytes(forced)


@njit(cache=True, nogil=True)
def _run(state, bytes_T, at, end, net, sets, counts, scratch):
    """Return (the state after bytes_T[at:end], -1 for none; where it stopped; what is too small)."""
    while at < end and state >= 0:
        if sets.edge_begin_Y[state] < 0:
            code = expand(state, True, net, sets, counts, scratch)
            if code:
                return state, at, code
        state = following(state, net.class_256[bytes_T[at]], sets)
        at += 1
    return state, at, 0


@njit(cache=True, nogil=True)
def _fill_mask(node, is_plain, copied, net, sets, counts, scratch, tokens, text, state_H, similar_H, masks, count):
    """Write the mask of state_H[0]; returns (the node reached, whether plain text is legal, what is too small, the mask).

    Mask `copied`, of the state similar_H[0], is turned into it; -1 if there is none. Then all tokens of plain text are legal,
    or none is known to be. The buffers have a state for each byte. What is too small is made larger, and this called again.
    """
    (nodes, id_R), (next_A256, plain_W, others, byte_j, pair_N2), (ranked_MW, token_MW, hash_M) = tokens, text, masks
    mask_W = ranked_MW[count]
    if node == 0:
        if copied < 0:
            code = _has_plain_text(state_H[0], nodes.height_P[0], net, sets, counts, scratch, next_A256, byte_j, pair_N2)
            if code > 0:
                return 0, False, code, -1
            is_plain = code == 0
        mask_W[:] = 0
        if copied >= 0 or is_plain:
            mask_W[:] = ranked_MW[copied] if copied >= 0 else plain_W
        node = 1
    node, code = _walk(node, others if is_plain else nodes, net, sets, counts, scratch, state_H, similar_H, mask_W)
    if code:
        return node, is_plain, code, -1
    hashed = _hash(mask_W)
    for mask in range(count):
        if hash_M[mask] == hashed and np.array_equal(ranked_MW[mask], mask_W):
            return 0, is_plain, 0, mask
    hash_M[count] = hashed
    by_token(mask_W, id_R, token_MW[count])
    return 0, is_plain, 0, count


@njit(cache=True, nogil=True, _nrt=False)
def _has_plain_text(state, height, net, sets, counts, scratch, next_A256, byte_j, pair_N2):
    """Return 0 if all plain text of `height` bytes is legal from a state, -1 if it may not be; or what is too small.

    It looks at the pairs of a state of plain text and of a state that text leads to, and at `alike` pairs once.
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
                return -1
            for other in range(count):
                if pair_N2[other, 0] == next_A256[at, byte] and not known:
                    known = pair_N2[other, 1] == target or alike(pair_N2[other, 1], target, height, net, sets)
            if not known and count == len(pair_N2):
                return -1
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
        if similar >= 0 and sets.edge_begin_Y[similar] < 0:
            code = expand(similar, True, net, sets, counts, scratch)
            if code:
                return node, code
        target, other = following(state, label, sets), np.int64(-1)
        if similar >= 0:
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
