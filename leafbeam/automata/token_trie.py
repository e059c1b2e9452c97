"""The byte strings of a vocabulary as a trie.

Shapes: V tokens of the vocabulary, R of them with bytes (ranked by their bytes), T bytes in all, P nodes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.determinize import NetworkArrays
from leafbeam.errors import AutomatonError, counted
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TokenTrie:
    """A vocabulary sorted by the bytes of its tokens; it is built once and shared by all automata over it.

    A node of the trie is a byte prefix and the range of ranks below it. Tokens without bytes (special tokens) are part of the
    vocabulary and never legal.

    Args:
        vocabulary_size: The number of tokens, special ones included.
        spelling: The bytes of the tokens, sorted.
        nodes: The nodes of the trie.

    Examples:
        >>> tokens = TokenTrie.of([None, b"a", b"ab", b"a"])
        >>> tokens.vocabulary_size, tokens.spelling.id_R.tolist(), tokens.repeated
        (4, [1, 3, 2], 1)
    """

    vocabulary_size: int
    spelling: TokenSpelling
    nodes: TokenNodes

    @classmethod
    def of(cls, vocabulary: Sequence[bytes | None] | TokenTrie) -> TokenTrie:
        """Sort the tokens and build the trie. 131,072 tokens take 0.1 s.

        Args:
            vocabulary: The bytes of each token by its id, None for special tokens. Tokens with the same bytes are legal
                together; `repeated` counts them.

        Raises:
            AutomatonError: If an entry is neither bytes nor None, or is empty, or if no token has bytes.
        """
        if isinstance(vocabulary, TokenTrie):
            return vocabulary
        if isinstance(vocabulary, (str, bytes)):
            raise AutomatonError("vocabulary is one string: expected a sequence with the bytes of each token, by its id")
        tokens = list(vocabulary)
        for token, entry in enumerate(tokens):
            if entry is not None and (not isinstance(entry, bytes) or not entry):
                raise AutomatonError(
                    f"token {token} of the vocabulary is {entry!r}: expected its bytes, at least one, or None for a special "
                    f"token, which never stands for text"
                )
        ranked = sorted((token for token, entry in enumerate(tokens) if entry is not None), key=tokens.__getitem__)
        num_bytes = sum(map(len, filter(None, tokens)))
        if not ranked or num_bytes >= 2**31:
            raise AutomatonError(
                f"the vocabulary has {counted(len(ranked), 'token')} and {counted(num_bytes, 'byte')}: "
                "expected 1 token to 2^31 bytes"
            )
        lengths_V = np.fromiter((len(entry or b"") for entry in tokens), np.int32, len(tokens))
        spelling = TokenSpelling(
            id_R=np.array(ranked, np.int32),
            bytes_T=np.frombuffer(b"".join(filter(None, tokens)), np.uint8),
            token_indptr=np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths_V, dtype=np.int32)]),
        )
        return cls(vocabulary_size=len(tokens), spelling=spelling, nodes=_build(spelling))

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token, empty for a special token.

        Raises:
            AutomatonError: If there is no such token.
        """
        if not 0 <= token < self.vocabulary_size:
            raise AutomatonError(f"token {token} is not in the vocabulary: expected 0 <= token < {self.vocabulary_size:,}")
        indptr = self.spelling.token_indptr
        return self.spelling.bytes_T[indptr[token] : indptr[token + 1]].tobytes()

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that have bytes."""
        return len(self.spelling.id_R)

    @property
    def repeated(self) -> int:
        """Return the number of tokens that have the same bytes as an earlier token."""
        return int(np.maximum(self.nodes.own_end_P - self.nodes.lo_P[:-1] - 1, 0).sum())

    @cached_property
    def num_beginning(self) -> NDArray[np.int64]:
        """Return how many tokens begin with each byte, shape (256,)."""
        children, begin_256 = np.flatnonzero(self.nodes.depth_P == 1), np.zeros(256, np.int64)
        begin_256[self.nodes.byte_P[children]] = self.nodes.lo_P[self.nodes.end_P[children]] - self.nodes.lo_P[children]
        return begin_256

    @cached_property
    def single_bytes(self) -> NDArray[np.bool_]:
        """Return which bytes are tokens of their own, shape (256,)."""
        single_256 = np.zeros(256, np.bool_)
        children = np.flatnonzero(self.nodes.depth_P == 1)
        single_256[self.nodes.byte_P[children]] = self.nodes.own_end_P[children] > self.nodes.lo_P[children]
        return single_256

    def has_bytes_of(self, language: ByteDFA | NetworkArrays) -> bool:
        """Return whether each byte of a language is a token, so that tokens may end anywhere in its strings."""
        return not (language.used_256 & ~self.single_bytes).any()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.spelling, *self.nodes))

    def __len__(self) -> int:
        return self.vocabulary_size

    def __repr__(self) -> str:
        num_nodes = len(self.nodes.byte_P)
        return (
            f"TokenTrie({counted(self.vocabulary_size, 'token')}, {self.num_tokens:,} with bytes, {counted(num_nodes, 'node')})"
        )


@njit(cache=True)
def _build(spelling):
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
