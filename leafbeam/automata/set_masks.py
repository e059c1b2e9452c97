"""The legal tokens and the next states of an automaton that is determinised where a search reaches it.

A token is legal in a state if its bytes lead somewhere, since every state leads to acceptance and every byte is a token. As in
`token_masks`, a state is walked together with a state that has a mask, and only where the two differ: below a node of the trie
they do not if they are `alike` for as many bytes as its longest token has. So the states of a bounded repetition have the mask
of one of them, but for its last few turns.

Shapes: D states, M masks of W words, R rows.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.determinize import alike, expand, following, shape_hashes
from leafbeam.automata.lazy_dfa import LazyDFA
from leafbeam.automata.token_masks import clear_bits, masks_by_token, set_bits
from leafbeam.automata.token_trie import TokenTrie
from leafbeam.jit import njit

_HEIGHTS = (256, 64, 16, 4, 1)  # bytes ahead: a state that is alike for more of them is more similar


class SetMasks:
    """The masks of some states: bit r % 64 of word r // 64 is the token of rank r; see `RankedMasks`."""

    def __init__(self, dfa: LazyDFA, tokens: TokenTrie) -> None:
        self._dfa, self._tokens = dfa, tokens
        height = int(tokens.nodes.height_P[0]) + 1
        self._states_H, self._hash_n = np.empty((2, height), np.int64), np.empty(len(_HEIGHTS), np.uint64)
        self._heights_n = np.array(_HEIGHTS)
        self.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything but the masks."""
        return self._dfa.nbytes

    def clear(self) -> None:
        """Forget all masks."""
        self._ranked_MW = np.empty((8, self._tokens.vocabulary_size // 64 + 1), np.uint64)
        self._mask_of: dict[int, int] = {}
        self._masks_of_hash: dict[int, list[int]] = {}
        self._similar: dict[int, int] = {}  # the last state with a mask, by the hash of its shape
        self.count = 0

    def fill(self, states_D: NDArray[np.int64], max_masks: int) -> NDArray[np.int32]:
        """Return the mask of each state. It stops above `max_masks` distinct masks: then `count` is larger."""
        with self._dfa.lock:
            for state in states_D.tolist():
                if self.count > max_masks:
                    break
                if state not in self._mask_of:
                    self._mask_of[state] = self._fill(state)
        return np.array([self._mask_of.get(state, 0) for state in states_D.tolist()], np.int32)

    def by_token(self, first: int) -> NDArray[np.uint64]:
        """Return the masks from number `first` on over tokens: bit v % 64 of word v // 64 is token v."""
        return masks_by_token(self._ranked_MW[first : self.count], self._tokens)

    def _fill(self, state: int) -> int:
        if self.count == len(self._ranked_MW):
            self._ranked_MW = np.concatenate([self._ranked_MW, np.empty_like(self._ranked_MW)])
        mask_W, dfa = self._ranked_MW[self.count], self._dfa
        begin, end = dfa.sets.member_indptr[state : state + 2].tolist()
        shape_hashes(begin, end, dfa.sets.member_Z, dfa.network, self._heights_n, self._hash_n)
        hashes = self._hash_n.tolist()
        similar = next((self._similar[hashed] for hashed in hashes if hashed in self._similar), -1)
        mask_W[:] = self._ranked_MW[self._mask_of[similar]] if similar >= 0 else 0
        self._states_H[:, 0] = state, similar
        node = 1
        while True:
            node, code = _walk(node, *dfa.state, self._tokens.nodes, *self._states_H, mask_W)
            if not code:
                break
            dfa.enlarge(code)
        self._similar |= dict.fromkeys(hashes, state)
        same = self._masks_of_hash.setdefault(int(_hash(mask_W)), [])
        for mask in same:
            if np.array_equal(self._ranked_MW[mask], mask_W):
                return mask
        same.append(self.count)
        self.count += 1
        return self.count - 1


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


@njit(cache=True)
def _hash(mask_W):
    hashed = np.uint64(0)
    for word in range(len(mask_W)):
        hashed = (hashed ^ mask_W[word]) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(32)
    return hashed


@njit(cache=True, nogil=True)
def _walk(node, net, sets, counts, scratch, nodes, state_H, similar_H, mask_W):
    """Turn the mask of a similar state (-1: an empty mask) into that of state_H[0]; returns (the node reached, what is too
    small). The buffers have a state for each byte."""
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
