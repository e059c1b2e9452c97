"""The loops over all items of an item memory. Shapes: N items, W words of 64 bits, h items of a history."""

# numba has no types.
# pyright: basic, reportCallIssue=false
import numpy as np

from leafbeam.index import bit_kernels as bits
from leafbeam.jit import njit


@njit(cache=True, nogil=True)
def text_scores(bits_NW, bits_hW, rows_h, weights_h, cosine, allowed_N, out_N):
    """The weighted sum of the cosines of each allowed item with the history's items but itself; 0 where it has no text."""
    for item in range(bits_NW.shape[0]):
        if not allowed_N[item]:
            continue
        has_text = np.uint64(0)
        for word in range(bits_NW.shape[1]):
            has_text |= bits_NW[item, word]
        if has_text == 0:
            continue
        score = np.float32(0)
        for at in range(rows_h.size):
            if rows_h[at] != item:
                different = np.uint64(0)
                for word in range(bits_NW.shape[1]):
                    different += bits.popcount(bits_NW[item, word] ^ bits_hW[at, word])
                score += weights_h[at] * cosine[different]
        out_N[item] = score


@njit(cache=True, nogil=True)
def allow(words_W, ordinal_N, allowed_N):
    """Mark the items whose ordinal is in a bitmap; -1: not in this trie."""
    for item in range(ordinal_N.size):
        ordinal = ordinal_N[item]
        if ordinal >= 0 and (words_W[ordinal >> 6] >> np.uint64(ordinal & 63)) & np.uint64(1):
            allowed_N[item] = True
