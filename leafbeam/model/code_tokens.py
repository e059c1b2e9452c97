"""The token of a language model for each code of each level, and back.

Shapes: L levels, V codes of a level, K tokens of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leafbeam.errors import ArgumentError, CodesError
from leafbeam.index import Version
from leafbeam.model.vocabulary import TokenTable, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelTokens:
    """The tokens of one level.

    token_V: int64, the token of each code. sorted_2K: int64, the tokens in ascending order, and the code of each.
    replaced_code: the code whose token is the end token, which no sequence may contain; -1 if there is none.
    """

    token_V: NDArray[np.int64]
    sorted_2K: NDArray[np.int64]
    replaced_code: int = -1

    @classmethod
    def of(cls, tokens: ArrayLike, level: int) -> LevelTokens:
        """From the token of code 0, of code 1, ... Cost: one sort. Raises ArgumentError."""
        table = np.asarray(tokens)
        if table.ndim != 1 or table.dtype.kind not in "iu" or table.size == 0:
            raise ArgumentError(
                f"the tokens of level {level} are an array of {table.dtype} {table.shape}: expected integers, the token of "
                f"code 0, of code 1, ..."
            )
        token_V = np.ascontiguousarray(table, np.int64)
        order = np.argsort(token_V, kind="stable")
        sorted_2K = np.stack([token_V[order], order])
        if sorted_2K[0, 0] < 0:
            raise ArgumentError(f"level {level} has the token {sorted_2K[0, 0]}: expected numbers from 0")
        repeated = np.flatnonzero(sorted_2K[0, 1:] == sorted_2K[0, :-1])
        if repeated.size:
            raise ArgumentError(
                f"level {level} gives token {sorted_2K[0, repeated[0]]:,} to two codes: the tokens of a level must be distinct "
                f"(two levels may share them)"
            )
        return cls(token_V=token_V, sorted_2K=sorted_2K)

    def with_end(self, eos_token_id: int) -> LevelTokens:
        """With one more code, the end of a sequence, whose token is `eos_token_id` even if that is another code's."""
        kept_2K = self.sorted_2K[:, self.sorted_2K[0] != eos_token_id]
        at = int(np.searchsorted(kept_2K[0], eos_token_id))
        sorted_2K = np.ascontiguousarray(np.insert(kept_2K, at, [eos_token_id, len(self.token_V)], axis=1))
        token_V = np.append(self.token_V, eos_token_id)
        return LevelTokens(token_V=token_V, sorted_2K=sorted_2K, replaced_code=self.code_of(eos_token_id))

    def code_of(self, token: int) -> int:
        """Return the code of a token, -1 for none."""
        index = int(np.searchsorted(self.sorted_2K[0], token))
        is_known = index < self.sorted_2K.shape[1] and int(self.sorted_2K[0, index]) == token
        return int(self.sorted_2K[1, index]) if is_known else -1


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeTokens:
    """The tokens of all levels, checked once for any number of `generate` calls.

    Tokens may lie anywhere in the vocabulary, in any order; levels may share tokens.

    Args:
        levels: The tokens of each level.

    Examples:
        >>> CodeTokens.of([[7, 8, 9], [20, 10, 15]]).sizes
        (3, 3)
    """

    levels: tuple[LevelTokens, ...]

    @classmethod
    def of(cls, code_tokens: CodeTokens | Vocabulary | TokenTable | Sequence[ArrayLike]) -> CodeTokens:
        """Return the tokens of a leafbeam vocabulary, or of a list with the token of code 0, of code 1, and so on, for each
        level.

        This costs one sort per level; levels that are the same object share it.

        Raises:
            ArgumentError: If a token is invalid or repeated.
        """
        if isinstance(code_tokens, CodeTokens):
            return code_tokens
        if isinstance(code_tokens, Vocabulary | TokenTable):
            return cls.of([code_tokens.level_tokens(level) for level in range(code_tokens.num_levels)])
        tables = list(code_tokens)  # rows of an array are new objects at each access: keep them for their ids
        by_id: dict[int, LevelTokens] = {}
        for level, tokens in enumerate(tables):
            if id(tokens) not in by_id:
                by_id[id(tokens)] = LevelTokens.of(tokens, level)
        return cls(levels=tuple(by_id[id(tokens)] for tokens in tables))

    @classmethod
    def for_index(cls, code_tokens: CodeTokensLike, version: Version, eos_token_id: int | None) -> CodeTokens:
        """Return the tokens of an index's codes; the end code of an index of sequences is `eos_token_id`.

        Args:
            code_tokens: As for `of`; None if the codes are tokens, in an index of sequences.
            version: The index.
            eos_token_id: The model's end token; None if no sequence has an end.

        Raises:
            ArgumentError: If the tokens do not fit the index.
        """
        end_code = version.segments[0].trie.end_code
        if eos_token_id is None:
            if end_code is not None:
                raise ArgumentError("eos_token_id is missing: an index of sequences needs the model's end token")
        elif eos_token_id < 0:
            raise ArgumentError(f"eos_token_id is {eos_token_id}: expected a token, 0 or more")
        if code_tokens is None:
            if end_code is None:
                raise ArgumentError("code_tokens is missing: give, for each level, the token of code 0, of code 1, ...")
            code_tokens = [np.arange(end_code)] * version.num_levels
        tokens = cls.of(code_tokens)
        if end_code is not None and tokens.sizes == version.codebook_sizes:  # from an earlier call
            if all(int(level.token_V[end_code]) == eos_token_id for level in tokens.levels):
                return tokens
            raise ArgumentError(f"code_tokens was made for another end token than eos_token_id={eos_token_id:,}")
        sizes = version.codebook_sizes if end_code is None else (end_code,) * version.num_levels
        if tokens.sizes != sizes:
            raise ArgumentError(
                f"code_tokens names {tokens.sizes} tokens, but the codebooks of the index have {sizes} codes: give one token "
                f"for each code of each level"
            )
        if eos_token_id is None:
            return tokens
        if end_code is not None:
            by_id = {id(level): level.with_end(eos_token_id) for level in tokens.levels}
            return cls(levels=tuple(by_id[id(level)] for level in tokens.levels))
        for number, level in enumerate(tokens.levels):
            if level.code_of(eos_token_id) >= 0:
                raise ArgumentError(
                    f"eos_token_id {eos_token_id:,} is also the token of a code of level {number}: the end of a sequence needs "
                    f"its own token"
                )
        return tokens

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of codes of each level."""
        return tuple(len(level.token_V) for level in self.levels)

    @property
    def max_token(self) -> int:
        """Return the largest token of any level."""
        return max(int(level.sorted_2K[0, -1]) for level in self.levels)


CodeTokensLike = CodeTokens | Vocabulary | TokenTable | Sequence[ArrayLike] | None


def check_sequences(input_ids: Tensor, prompt_length: int) -> None:
    """Raise ArgumentError unless these are rows of integers, at least as long as the prompt."""
    if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.shape[1] < prompt_length:
        raise ArgumentError(
            f"the sequences are {input_ids.dtype} {tuple(input_ids.shape)}: expected (rows, tokens), integers, at least "
            f"prompt_length={prompt_length} of them in a row"
        )


def check_end_token(level: LevelTokens, code_C: NDArray[np.int64]) -> None:
    """Raise CodesError if the code occurs whose token is the end token."""
    if level.replaced_code >= 0 and bool((code_C == level.replaced_code).any()):
        raise end_token_error(level)


def end_token_error(level: LevelTokens) -> CodesError:
    """Return the error for a sequence that holds it."""
    return CodesError(
        f"a sequence of the index contains code {level.replaced_code:,}, whose token is the end token: build the index from "
        "sequences without their end token, which it adds itself"
    )
