"""The tokens of plain text: whole or broken characters in UTF-8 that JSON writes in a string as they are.

They are most of a vocabulary, and legal together where any text may follow. So the mask of such a state is theirs, and only the
other tokens are walked.

Shapes: A states of the language of plain text; P nodes, W words.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.token_nodes import TokenNodes
from leafbeam.jit import njit

# (state, first byte, last byte, next state); state 0 is between characters, the others are within one
_RANGES = (
    *((0, 0x20, 0x21, 0), (0, 0x23, 0x5B, 0), (0, 0x5D, 0x7E, 0), (0, 0xC2, 0xC2, 8), (0, 0xC3, 0xDF, 1), (0, 0xE0, 0xE0, 4)),
    *((0, 0xE1, 0xEC, 2), (0, 0xED, 0xED, 5), (0, 0xEE, 0xEF, 2), (0, 0xF0, 0xF0, 6), (0, 0xF1, 0xF3, 3), (0, 0xF4, 0xF4, 7)),
    *((1, 0x80, 0xBF, 0), (2, 0x80, 0xBF, 1), (3, 0x80, 0xBF, 2), (4, 0xA0, 0xBF, 1), (5, 0x80, 0x9F, 1), (6, 0x90, 0xBF, 2)),
    *((7, 0x80, 0x8F, 2), (8, 0xA0, 0xBF, 0)),
)


class PlainTokens(NamedTuple):
    """The tokens of plain text of a vocabulary.

    Args:
        next_A256: The state after a byte, -1 if no plain text goes on with it.
        mask_W: Bit r % 64 of word r // 64 is the token of rank r.
        others: The nodes of the trie that other tokens need. Their ranks are those of the whole trie.
    """

    next_A256: NDArray[np.int64]
    mask_W: NDArray[np.uint64]
    others: TokenNodes

    @classmethod
    def of(cls, nodes: TokenNodes, vocabulary_size: int) -> "PlainTokens":
        """Find the tokens of plain text. Cost: a few passes over the trie."""
        next_A256 = np.full((9, 256), -1, np.int64)
        for state, first, last, to in _RANGES:
            next_A256[state, first : last + 1] = to
        plain_P = _plain_nodes(next_A256, nodes)
        own_P = nodes.own_end_P - nodes.lo_P[:-1]
        plain_R = np.repeat(plain_P, own_P)
        words_W = np.zeros(vocabulary_size // 64 + 1, np.uint64)
        words_W.view(np.uint8)[: -(-len(plain_R) // 8)] = np.packbits(plain_R, bitorder="little")
        before_R = np.concatenate([[0], np.cumsum(~plain_R)])
        kept_P = before_R[nodes.lo_P[nodes.end_P]] > before_R[nodes.lo_P[:-1]]
        kept_P[0] = True
        number_P = np.concatenate([[0], np.cumsum(kept_P)]).astype(np.int32)
        others = TokenNodes(
            byte_P=nodes.byte_P[kept_P],
            depth_P=nodes.depth_P[kept_P],
            end_P=number_P[nodes.end_P[kept_P]],
            lo_P=np.append(nodes.lo_P[:-1][kept_P], nodes.lo_P[-1]),
            own_end_P=np.where(plain_P, nodes.lo_P[:-1], nodes.own_end_P)[kept_P],
            height_P=nodes.height_P[kept_P],
        )
        return cls(next_A256, words_W, others)


@njit(cache=True)
def _plain_nodes(next_A256, nodes):
    """Return the nodes whose prefixes are the beginning of plain text."""
    state_H, plain_P = np.zeros(nodes.height_P[0] + 1, np.int64), np.zeros(len(nodes.byte_P), np.bool_)
    plain_P[0] = True
    for node in range(1, len(nodes.byte_P)):
        before = state_H[nodes.depth_P[node] - 1]
        state = next_A256[before, nodes.byte_P[node]] if before >= 0 else np.int64(-1)
        state_H[nodes.depth_P[node]], plain_P[node] = state, state >= 0
    return plain_P
