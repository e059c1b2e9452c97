"""The loops over all items of an item memory. Shapes: N items, 4 words of 64 bits, h items of a history."""

# numba has no types.
# pyright: basic, reportCallIssue=false
import numpy as np

from leafbeam.index import bit_kernels as bits
from leafbeam.jit import njit


@njit(cache=True, nogil=True)
def text_scores(bits_N4, bits_h4, rows_h, weights_h, cosine, allowed_N, out_N):
    """The weighted sum of the cosines of each allowed item with the history's items but itself; 0 where it has no text."""
    for item in range(bits_N4.shape[0]):
        if not allowed_N[item]:
            continue
        a, b, c, d = bits_N4[item, 0], bits_N4[item, 1], bits_N4[item, 2], bits_N4[item, 3]
        if (a | b | c | d) == 0:
            continue
        score = np.float32(0)
        for at in range(rows_h.size):
            different = bits.popcount(a ^ bits_h4[at, 0]) + bits.popcount(b ^ bits_h4[at, 1])
            different += bits.popcount(c ^ bits_h4[at, 2]) + bits.popcount(d ^ bits_h4[at, 3])
            score += weights_h[at] * cosine[different]
        out_N[item] = score
    for item in rows_h:  # again, without the item itself
        if allowed_N[item]:
            score = np.float32(0)
            for at in range(rows_h.size):
                if rows_h[at] != item:
                    different = np.uint64(0)
                    for word in range(4):
                        different += bits.popcount(bits_N4[item, word] ^ bits_h4[at, word])
                    score += weights_h[at] * cosine[different]
            out_N[item] = score


@njit(cache=True, nogil=True)
def allow(words_W, ordinal_N, allowed_N):
    """Mark the items whose ordinal is in a bitmap; -1: not in this trie."""
    for item in range(ordinal_N.size):
        ordinal = ordinal_N[item]
        if ordinal >= 0 and (words_W[ordinal >> 6] >> np.uint64(ordinal & 63)) & np.uint64(1):
            allowed_N[item] = True
