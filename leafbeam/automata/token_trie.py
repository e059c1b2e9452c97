"""The byte strings of a vocabulary as a trie.

Shapes: V tokens of the vocabulary, R of them with bytes (ranked by their bytes), T bytes in all, P nodes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.determinize import NetworkArrays
from leafbeam.automata.plain_tokens import MaskBases
from leafbeam.automata.token_nodes import TokenNodes, TokenSpelling, build_nodes
from leafbeam.errors import AutomatonError, counted


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
        return cls(vocabulary_size=len(tokens), spelling=spelling, nodes=build_nodes(spelling))

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

    @cached_property
    def bases(self) -> MaskBases:
        """Return the masks with which the masks of states begin."""
        return MaskBases.of(self.nodes, self.spelling.id_R, self.vocabulary_size)

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
