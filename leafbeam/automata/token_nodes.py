"""The nodes of a trie of byte strings.

Shapes: V tokens of the vocabulary, R of them with bytes (ranked by their bytes), T bytes in all, P nodes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit


class TokenSpelling(NamedTuple):
    """The bytes of the tokens: token v is bytes_T[token_indptr[v] : token_indptr[v + 1]].

    Args:
        id_R: int32, the token of each rank; tokens with equal bytes follow each other by id.
    """

    id_R: NDArray[np.int32]
    bytes_T: NDArray[np.uint8]
    token_indptr: NDArray[np.int32]


class TokenNodes(NamedTuple):
    """The nodes of the trie in preorder, node 0 the root: a node is followed by all nodes below it, ordered by their bytes.

    int32 but for `byte_P` (uint8). Shape P + 1: lo, whose last element is R.

    Args:
        byte_P: The last byte of the node's prefix.
        depth_P: The length of the node's prefix.
        end_P: The first node behind those below the node.
        lo_P: The number of tokens before the node's. Ranks lo[p] to own_end[p] - 1 are the tokens that end at the node, and
            ranks lo[p] to lo[end[p]] - 1 those that end at it or below.
        height_P: The number of bytes that the longest of these has below the node.
    """

    byte_P: NDArray[np.uint8]
    depth_P: NDArray[np.int32]
    end_P: NDArray[np.int32]
    lo_P: NDArray[np.int32]
    own_end_P: NDArray[np.int32]
    height_P: NDArray[np.int32]

    KINDS = "u1 i4 i4 i4 i4 i4"


@njit(cache=True)
def build_nodes(spelling):
    """Build the trie from the sorted tokens: each adds the nodes behind the prefix that it shares with the one before it."""
    id_R, bytes_T, token_indptr = spelling
    size = len(bytes_T) + 1
    byte_P, depth_P, end_P = np.zeros(size, np.uint8), np.zeros(size, np.int32), np.zeros(size, np.int32)
    lo_P, own_end_P, height_P = np.zeros(size + 1, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    longest = 0
    for token in range(len(token_indptr) - 1):
        longest = max(longest, token_indptr[token + 1] - token_indptr[token])
    path = np.zeros(longest + 1, np.int32)  # the node of each prefix of the last token
    count, open_depth = 1, 0
    for rank in range(len(id_R) + 1):
        begin, length, shared = 0, 0, 0
        if rank < len(id_R):
            begin = token_indptr[id_R[rank]]
            length = token_indptr[id_R[rank] + 1] - begin
            while shared < min(length, open_depth) and byte_P[path[shared + 1]] == bytes_T[begin + shared]:
                shared += 1
        for depth in range(open_depth, shared, -1):
            end_P[path[depth]] = count
            height_P[path[depth - 1]] = max(height_P[path[depth - 1]], height_P[path[depth]] + 1)
        for depth in range(shared, length):
            byte_P[count], depth_P[count] = bytes_T[begin + depth], depth + 1
            lo_P[count], own_end_P[count] = rank, rank
            path[depth + 1] = count
            count += 1
        open_depth = length
        if length:
            own_end_P[path[length]] = rank + 1
    end_P[0], lo_P[count] = count, len(id_R)
    return TokenNodes(
        byte_P[:count].copy(),
        depth_P[:count].copy(),
        end_P[:count].copy(),
        lo_P[: count + 1].copy(),
        own_end_P[:count].copy(),
        height_P[:count].copy(),
    )
