"""Which token of a language model stands for which code of which level, both ways.

Shapes: L levels, V codes of a level, K tokens of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.index import Version
from leafbeam.model.vocabulary import TokenTable, Vocabulary

__all__ = ["CodeTokens", "GivenTokens", "LevelTokens", "check_sequences"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelTokens:
    """The tokens of one level.

    token_V: int64, the token of each code. known_2K: int64, the level's tokens in ascending order, and below each its code.
    shadowed: the code whose token the end has taken, which no sequence may hold; -1 where there is none.
    """

    token_V: NDArray[np.int64]
    known_2K: NDArray[np.int64]
    shadowed: int = -1

    @classmethod
    def of(cls, tokens: ArrayLike, level: int) -> LevelTokens:
        """Check one level's tokens. Cost: one sort. Raises ArgumentError."""
        table = np.asarray(tokens)
        if table.ndim != 1 or table.dtype.kind not in "iu" or table.size == 0:
            raise ArgumentError(
                f"the tokens of level {level} are an array of {table.dtype} {table.shape}: expected integers, the token of "
                f"code 0, of code 1, ..."
            )
        token_V = np.ascontiguousarray(table, np.int64)
        order = np.argsort(token_V, kind="stable")
        known_2K = np.stack([token_V[order], order])
        if known_2K[0, 0] < 0:
            raise ArgumentError(f"level {level} has the token {known_2K[0, 0]}: expected numbers from 0")
        same = np.flatnonzero(known_2K[0, 1:] == known_2K[0, :-1])
        if same.size:
            raise ArgumentError(
                f"level {level} gives token {known_2K[0, same[0]]:,} to two codes: the tokens of a level must be distinct "
                f"(two levels may share them)"
            )
        return cls(token_V=token_V, known_2K=known_2K)

    def with_end(self, eos_token_id: int) -> LevelTokens:
        """The same with one more code, the end, which is `eos_token_id` even where that stood for another code."""
        kept_2K = self.known_2K[:, self.known_2K[0] != eos_token_id]
        at = int(np.searchsorted(kept_2K[0], eos_token_id))
        known_2K = np.insert(kept_2K, at, [eos_token_id, len(self.token_V)], axis=1)
        token_V = np.append(self.token_V, eos_token_id)
        return LevelTokens(token_V=token_V, known_2K=known_2K, shadowed=self.code_of(eos_token_id))

    def code_of(self, token: int) -> int:
        """The code that a token stands for, -1 where it stands for none."""
        place = int(np.searchsorted(self.known_2K[0], token))
        known = place < self.known_2K.shape[1] and int(self.known_2K[0, place]) == token
        return int(self.known_2K[1, place]) if known else -1


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeTokens:
    """A table level x code -> token and its inverse, checked once and good for any number of `generate` calls.

    Think of it as the part of a tokenizer that speaks of Semantic IDs. Tokens may lie anywhere in the vocabulary and need no
    order; levels may share tokens or not.

    >>> CodeTokens.of([[7, 8, 9], [20, 10, 15]]).sizes
    (3, 3)
    """

    levels: tuple[LevelTokens, ...]

    @classmethod
    def of(cls, given: CodeTokens | Vocabulary | TokenTable | Sequence[ArrayLike]) -> CodeTokens:
        """From a leafbeam vocabulary, or for each level the token of code 0, of code 1, ...

        Cost: one sort a level (levels that are the same object share it). Raises ArgumentError.
        """
        if isinstance(given, CodeTokens):
            return given
        if isinstance(given, Vocabulary):
            ranges = zip(given.offsets, given.codebook_sizes, strict=True)
            return cls.of([np.arange(first, first + size) for first, size in ranges])
        if isinstance(given, TokenTable):
            return cls.of([given.level_tokens(level) for level in range(given.num_levels)])
        tables = list(given)  # rows of an array are made anew at each look; these stay, and so do their identities
        done: dict[int, LevelTokens] = {}
        for level, tokens in enumerate(tables):
            if id(tokens) not in done:
                done[id(tokens)] = LevelTokens.of(tokens, level)
        return cls(levels=tuple(done[id(tokens)] for tokens in tables))

    @classmethod
    def for_index(cls, given: GivenTokens, version: Version, eos_token_id: int) -> CodeTokens:
        """The tokens of an index's codes, the end code of an index of sequences being `eos_token_id`.

        None: the codes are tokens, which only an index of sequences can say. Raises ArgumentError.
        """
        if eos_token_id < 0:
            raise ArgumentError(f"eos_token_id is {eos_token_id}: expected a token, that is a number from 0")
        end_code = version.segments[0].trie.end_code
        if given is None:
            if end_code is None:
                raise ArgumentError("code_tokens is missing: give, for each level, the token of code 0, of code 1, ...")
            given = [np.arange(end_code)] * version.num_levels
        tokens = cls.of(given)
        if end_code is not None and tokens.sizes == version.codebook_sizes:  # made here before
            if all(int(level.token_V[end_code]) == eos_token_id for level in tokens.levels):
                return tokens
            raise ArgumentError(f"code_tokens was made for another end token than eos_token_id={eos_token_id:,}")
        sizes = version.codebook_sizes if end_code is None else (end_code,) * version.num_levels
        if tokens.sizes != sizes:
            raise ArgumentError(
                f"code_tokens names {tokens.sizes} tokens, but the codebooks of the index have {sizes} codes: give one token "
                f"for each code of each level"
            )
        if end_code is not None:
            done = {id(level): level.with_end(eos_token_id) for level in tokens.levels}
            return cls(levels=tuple(done[id(level)] for level in tokens.levels))
        for number, level in enumerate(tokens.levels):
            if level.code_of(eos_token_id) >= 0:
                raise ArgumentError(
                    f"eos_token_id {eos_token_id:,} is also the token of a code of level {number}: the end of a sequence needs "
                    f"a token of its own"
                )
        return tokens

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many codes each level has."""
        return tuple(len(level.token_V) for level in self.levels)

    @property
    def largest(self) -> int:
        """The largest token of any level."""
        return max(int(level.known_2K[0, -1]) for level in self.levels)


GivenTokens = CodeTokens | Vocabulary | TokenTable | Sequence[ArrayLike] | None


def check_sequences(input_ids: Tensor, prompt_length: int) -> None:
    """Raise ArgumentError unless these are rows of integers, not shorter than the prompt."""
    if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.shape[1] < prompt_length:
        raise ArgumentError(
            f"the sequences are {input_ids.dtype} {tuple(input_ids.shape)}: expected (rows, tokens), integers, at least "
            f"prompt_length={prompt_length} of them in a row"
        )
