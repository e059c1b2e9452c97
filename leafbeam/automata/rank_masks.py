"""Masks over the ranks of tokens, in which the tokens below a node of the trie are neighbours, and masks over tokens.

Shapes: W words, R ranks.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
import numpy as np

from leafbeam.index.bit_kernels import popcount, trailing_zeros
from leafbeam.jit import njit


@njit(cache=True, inline="always")
def clear_bits(mask_W, low, high):
    """Clear the bits low to high - 1, of which there is at least one."""
    first, last = low >> 6, (high - 1) >> 6
    head = ~np.uint64(0) << np.uint64(low & 63)
    tail = ~np.uint64(0) >> np.uint64(63 - ((high - 1) & 63))
    if first == last:
        mask_W[first] &= ~(head & tail)
        return
    mask_W[first] &= ~head
    for word in range(first + 1, last):
        mask_W[word] = 0
    mask_W[last] &= ~tail


@njit(cache=True, inline="always")
def set_bits(mask_W, low, high):
    """Set the bits low to high - 1."""
    for rank in range(low, high):
        mask_W[rank >> 6] |= np.uint64(1) << np.uint64(rank & 63)


@njit(cache=True, nogil=True, _nrt=False)
def flip_tokens(ranked_W, before_W, id_R, token_W):
    """Change a mask over tokens as one over ranks has changed since `before_W`; returns how many bits more it has."""
    more = np.int64(0)
    for word in range(len(ranked_W)):
        bits = ranked_W[word] ^ before_W[word]
        if bits:
            more += np.int64(popcount(ranked_W[word])) - np.int64(popcount(before_W[word]))
        while bits:
            token = id_R[word * 64 + np.int64(trailing_zeros(bits))]
            token_W[token >> 6] ^= np.uint64(1) << np.uint64(token & 63)
            bits &= bits - np.uint64(1)
    return more


@njit(cache=True)
def masks_by_token(ranked_MW, id_R):
    """Return (masks over tokens, how many tokens each has) of masks over ranks."""
    token_MW, none_W = np.zeros(ranked_MW.shape, np.uint64), np.zeros(ranked_MW.shape[1], np.uint64)
    count_M = np.empty(len(ranked_MW), np.int64)
    for mask in range(len(ranked_MW)):
        count_M[mask] = flip_tokens(ranked_MW[mask], none_W, id_R, token_MW[mask])
    return token_MW, count_M
