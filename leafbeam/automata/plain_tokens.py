"""The tokens of plain text: whole or broken characters in UTF-8 that JSON writes in a string as they are.

They are most of a vocabulary, and legal together where any text may follow. So the mask of such a state is theirs, and only the
other tokens are walked. Where only so many bytes of any text may follow, the same holds for tokens of so many bytes.

Shapes: A states of the language of plain text; P nodes, B bases of masks of W words.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.addresses import addresses
from leafbeam.automata.rank_masks import masks_by_token
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
    """The tokens of plain text of a vocabulary that have at most so many bytes.

    Args:
        mask_W: Bit r % 64 of word r // 64 is the token of rank r.
        others: The nodes of the trie that other tokens need. Their ranks are those of the whole trie.
    """

    mask_W: NDArray[np.uint64]
    others: TokenNodes

    @classmethod
    def of(cls, nodes: TokenNodes, vocabulary_size: int, max_bytes: int) -> PlainTokens:
        """Find the tokens of plain text. Cost: a few passes over the trie."""
        plain_P = _plain_nodes(plain_moves(), nodes) & (nodes.depth_P <= max_bytes)
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
        return cls(words_W, others)


def plain_moves() -> NDArray[np.int64]:
    """Return the language of plain text: the state after a byte, -1 if no plain text goes on with it, shape (A, 256)."""
    next_A256 = np.full((9, 256), -1, np.int64)
    for state, first, last, to in _RANGES:
        next_A256[state, first : last + 1] = to
    return next_A256


_MAX_BYTES = (30, 12)  # of plain tokens: few tokens have more than 30, a tenth has more than 12


class BaseArrays(NamedTuple):
    """The masks with which the mask of a state may begin, and the nodes that are walked then.

    Base 0 is the empty mask and all nodes, base 1 has all tokens of plain text, and later ones those of fewer bytes.

    Args:
        height_B: The number of bytes of its longest token.
        ranked_BW, token_BW: The masks over ranks and over tokens.
        count_B: The number of tokens of each mask.
        nodes_BA: The addresses of the nodes.
        id_R: The token of each rank.
        next_A256: The language of plain text, see `plain_moves`.
    """

    height_B: NDArray[np.int64]
    ranked_BW: NDArray[np.uint64]
    token_BW: NDArray[np.uint64]
    count_B: NDArray[np.int64]
    nodes_BA: NDArray[np.int64]
    id_R: NDArray[np.int32]
    next_A256: NDArray[np.int64]

    KINDS = "i8 u8:2 u8:2 i8 i8:2 i4 i8:2"


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskBases:
    """The bases of masks of a vocabulary, for kernels.

    Args:
        nodes: What `arrays` has the addresses of.
        rows: The addresses of `arrays`.
    """

    arrays: BaseArrays
    nodes: list[TokenNodes]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, nodes: TokenNodes, id_R: NDArray[np.int32], vocabulary_size: int) -> MaskBases:
        height = int(nodes.height_P[0])
        heights = [0, height, *(count for count in _MAX_BYTES if count < height)]
        plain = [PlainTokens.of(nodes, vocabulary_size, count) for count in heights[1:]]
        ranked_BW = np.stack([np.zeros_like(plain[0].mask_W), *(part.mask_W for part in plain)])
        token_BW, count_B = masks_by_token(ranked_BW, id_R)
        all_nodes = [nodes, *(part.others for part in plain)]
        nodes_BA = np.stack([addresses(part).reshape(-1) for part in all_nodes])
        arrays = BaseArrays(np.array(heights), ranked_BW, token_BW, count_B, nodes_BA, id_R, plain_moves())
        return cls(arrays=arrays, nodes=all_nodes, rows=addresses(arrays))


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
