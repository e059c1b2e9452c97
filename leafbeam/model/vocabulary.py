"""The mapping between the codes of Semantic IDs and the tokens of a model.

Shapes: N items, L levels, V codes of a level, D hidden, B requests, T tokens of a prompt.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, TypeGuard, overload

import numpy as np
import numpy.typing as npt

from leafbeam.errors import ArgumentError, CheckpointError, CodesError, check_whole, counted
from leafbeam.ids import is_id
from leafbeam.json_reader import Json

if TYPE_CHECKING:  # the process that compiles constraints does without torch, which takes a second to load
    from torch import Tensor

Int64Array = npt.NDArray[np.int64]
UserId = int | str | np.integer | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTokens:
    """The tokens of a prompt around its history.

    Args:
        before: The tokens before the history.
        between: The tokens between two items.
        after: The tokens after the history.
        levels: The number of levels of each item that a history shows; None: all. The others are of tokens that the model
            writes after an item, but does not read in a history.
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    levels: int | None = None

    def __post_init__(self) -> None:
        for name in ("before", "between", "after"):
            object.__setattr__(self, name, _whole_numbers(f"{name} of a prompt", getattr(self, name)))
        if self.levels is not None:
            _whole_numbers("levels of a prompt", (self.levels,))
        if not self.before and not self.after:
            raise ArgumentError("no token stands before or after the history, so a prompt without one is empty: give one")

    def to_dict(self) -> Json:
        """Return the JSON object that `from_dict` reads."""
        shown = {} if self.levels is None else {"levels": self.levels}
        return {"before": list(self.before), "between": list(self.between), "after": list(self.after)} | shown

    @classmethod
    def from_dict(cls, fields: Json) -> PromptTokens:
        """Return the tokens that `to_dict` wrote. Raises ArgumentError, TypeError."""
        parts: Json = {name: part if name == "levels" else tuple(part) for name, part in fields.items()}
        return cls(**parts)


@dataclass(frozen=True, kw_only=True)
class _SidTokens(ABC):
    """The interface that `Vocabulary` and `TokenTable` share.

    codebook_sizes: how many codes each level has. pad, bos, eos: the tokens that fill a prompt on its right, begin it, end a
    sequence (SIDs have a fixed length, so decoding never needs `eos`). num_users: how many tokens user ids are hashed to.
    """

    codebook_sizes: tuple[int, ...] = field(init=False)
    pad: int = field(init=False, default=0)
    bos: int = field(init=False, default=1)
    eos: int = field(init=False, default=2)
    num_users: int = field(init=False, default=0)

    @property
    def num_levels(self) -> int:
        return len(self.codebook_sizes)

    @cached_property
    def prompt_tokens(self) -> PromptTokens:
        """Return the tokens before and after the history in a prompt. Where users have tokens, theirs follows `before`."""
        return PromptTokens(before=(self.bos,))

    @property
    def item_length(self) -> int:
        """Return the number of tokens of an item in a prompt."""
        levels = self.prompt_tokens.levels
        return self.num_levels if levels is None else levels

    def prompt_length(self, num_items: int) -> int:
        """Return the number of tokens of a prompt with a history of `num_items` items."""
        tokens = self.prompt_tokens
        around = len(tokens.before) + len(tokens.after) + (1 if self.num_users else 0)
        return around + num_items * self.item_length + max(0, num_items - 1) * len(tokens.between)

    def max_history(self, max_positions: int) -> int:
        """Return the number of history items that fit into `max_positions` before an answer's SID; -1 if not even an
        empty history fits.
        """
        room, between = max_positions + 1 - self.num_levels - self.prompt_length(0), len(self.prompt_tokens.between)
        return -1 if room < 0 else (room + between) // (self.item_length + between)

    @cached_property
    @abstractmethod
    def _levels(self) -> tuple[Int64Array, ...]:
        """Return the tokens of each level, in the order of its codes."""

    @cached_property
    def _flat(self) -> tuple[Int64Array, Int64Array]:
        """Return the tokens of all levels, one level after the other, and where each begins."""
        return np.concatenate(self._levels), np.cumsum((0, *self.codebook_sizes[:-1]))

    @cached_property
    def _slices(self) -> tuple[slice | None, ...]:
        bounds = [(int(level[0]), int(level[-1]) + 1, bool((np.diff(level) == 1).all())) for level in self._levels]
        return tuple(slice(begin, end) if consecutive else None for begin, end, consecutive in bounds)

    def level_slice(self, level: int) -> slice | None:
        """Return the tokens of a level as a range, or None where they are not consecutive."""
        return self._slices[level]

    def level_tokens(self, level: int) -> Int64Array:
        """Return the tokens of a level, in the order of its codes."""
        return self._levels[level]

    def level_rows(self, matrix_VD: Tensor, level: int) -> Tensor:
        """Return the rows of a level's tokens in the order of its codes: a view of consecutive rows, else a gathered copy."""
        rows = self.level_slice(level)
        if rows is not None:
            return matrix_VD[rows]
        return matrix_VD.index_select(0, _tensor(self.level_tokens(level), matrix_VD))

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """Return the tokens of one level's codes, any shape; the codes are not checked."""
        rows = self.level_slice(level)
        return codes + rows.start if rows else _tensor(self.level_tokens(level), codes)[codes]

    @overload
    def tokens(self, codes_NL: Tensor) -> Tensor: ...
    @overload
    def tokens(self, codes_NL: npt.ArrayLike) -> Int64Array: ...
    def tokens(self, codes_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """Return the int64 tokens of whole SIDs (..., L), as a tensor or an array like the input.

        Raises CodesError for a code outside its level's codebook.
        """
        codes = _integers(codes_NL, self.num_levels)
        wrong = (codes < 0) | (codes >= np.array(self.codebook_sizes, np.int64))
        if wrong.any():
            where = _first(wrong)
            size = self.codebook_sizes[where[-1]]
            raise CodesError(
                f"code {codes[where]} at {where} is outside level {where[-1]}'s codebook of {counted(size, 'code')}"
            )
        flat, begin_L = self._flat
        return _like(codes_NL, flat[codes + begin_L])

    @overload
    def codes(self, tokens_NL: Tensor) -> Tensor: ...
    @overload
    def codes(self, tokens_NL: npt.ArrayLike) -> Int64Array: ...
    def codes(self, tokens_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """Return the SIDs of tokens (..., L): the inverse of `tokens`. Raises CodesError for a token of another level."""
        tokens = _integers(tokens_NL, self.num_levels)
        codes = np.empty_like(tokens)
        for t, level in enumerate(self._levels):
            order = np.argsort(level)
            codes[..., t] = order[np.searchsorted(level, tokens[..., t], sorter=order).clip(max=len(level) - 1)]
        flat, begin_L = self._flat
        known = flat[codes + begin_L] == tokens
        if not known.all():
            where = _first(~known)
            raise CodesError(f"token {tokens[where]} at {where} is not a code of level {where[-1]}: pass only SID tokens")
        return _like(tokens_NL, codes)

    def prompts(
        self, histories: Sequence[npt.ArrayLike], users: Sequence[UserId] | npt.NDArray[np.generic] | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Return the prompts of histories as tokens_BT, padded on the right, and lengths_B.

        Each history is the SIDs (n, L) of its items, oldest first; `prompt_tokens` stand around it. With user tokens, the
        token of the user follows `bos`, or `no_user` if `users` is None. Raises ArgumentError unless there is one user per
        history, and for users of a vocabulary without user tokens.
        """
        if users is not None and len(users) != len(histories):
            raise ArgumentError(
                f"{counted(len(users), 'user')} for {counted(len(histories), 'history', 'histories')}: give one for each"
            )
        around = self.prompt_tokens
        rows = [self._joined(self.tokens(history)[:, : self.item_length], around.between) for history in histories]
        begin = len(around.before)
        lengths_B = np.array([self.prompt_length(0) + len(row) for row in rows], np.int64)
        tokens_BT = np.full((len(rows), int(lengths_B.max(initial=self.prompt_length(0)))), self.pad, np.int64)
        tokens_BT[:, :begin] = around.before
        if users is not None or self.num_users:
            users_B = self.user_tokens([None] * len(rows) if users is None else users)
            tokens_BT[:, begin : begin + 1] = users_B[:, None]
            begin += 1
        for row, tokens in enumerate(rows):
            end = begin + len(tokens)
            tokens_BT[row, begin:end] = tokens
            tokens_BT[row, end : end + len(around.after)] = around.after
        return tokens_BT, lengths_B

    @staticmethod
    def _joined(tokens_nL: Int64Array, between: tuple[int, ...]) -> Int64Array:
        """Return the tokens of a history in one row, with others between its items."""
        if not between or len(tokens_nL) < 2:
            return tokens_nL.reshape(-1)
        others = np.broadcast_to(np.array(between, np.int64), (len(tokens_nL), len(between)))
        return np.concatenate([tokens_nL, others], axis=1).reshape(-1)[: -len(between)]

    def user_tokens(self, users: Sequence[UserId] | npt.NDArray[np.generic]) -> Int64Array:
        """Return the token of each user id; ArgumentError without user tokens."""
        raise ArgumentError("this vocabulary has no user tokens: leave the users out, or train with num_users above 0")


@dataclass(frozen=True, kw_only=True)
class Vocabulary(_SidTokens):
    """Special tokens first, then one contiguous range of tokens per level, then the tokens of users, if any.

    A level's rows of any [size, D] matrix are one slice, so the head of a level multiplies a view.

    Args:
        codebook_sizes: The number of codes of each level.
        num_specials: The number of tokens before level 0; at least 3 (pad=0, bos=1, eos=2), further ones are the caller's own.
        num_users: The number of tokens to which user ids are hashed (TIGER has 2,000), after one token for an unknown user;
            every prompt then has one of them after `bos`. With 0 prompts have no user.

    Examples:
        >>> Vocabulary(codebook_sizes=(256, 256, 8)).level_slice(1)
        slice(259, 515, None)
    """

    codebook_sizes: tuple[int, ...]
    num_specials: int = 3
    num_users: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "codebook_sizes", _whole_numbers("codebook_sizes", self.codebook_sizes))
        if not self.codebook_sizes or min(self.codebook_sizes) < 1:
            raise ArgumentError(f"codebook_sizes must name at least one level of at least one code, not {self.codebook_sizes}")
        _whole_numbers("num_specials and num_users", (self.num_specials, self.num_users))
        if self.num_specials < 3:
            raise ArgumentError(f"num_specials={self.num_specials} leaves no room for pad, bos and eos: give 3 or more")
        if self.num_users < 0:
            raise ArgumentError(f"num_users={self.num_users}: 0 for no user tokens, or how many there are")
        if self.num_users and self.num_levels < 2:
            raise ArgumentError(f"num_users={self.num_users}: user tokens need SIDs of at least two levels, these have one")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the first token of each level."""
        return tuple(accumulate(self.codebook_sizes[:-1], initial=self.num_specials))

    @property
    def size(self) -> int:
        """Return the number of tokens: a model needs a vocab_size of at least this."""
        return self.num_specials + sum(self.codebook_sizes) + (self.num_users + 1 if self.num_users else 0)

    @property
    def no_user(self) -> int:
        """Return the token for an unknown user.

        Raises:
            ArgumentError: If there are no user tokens.
        """
        if not self.num_users:
            super().user_tokens([])
        return self.num_specials + sum(self.codebook_sizes)

    def user_tokens(self, users: Sequence[UserId] | npt.NDArray[np.generic]) -> Int64Array:
        """Return the int64 token of each user id; None is `no_user`.

        An id is hashed (BLAKE2b of its text, so that 7 and "7" are one user), so several users share a token, and a user that
        was not in training gets one too. (TIGER, implementation details, after Weinberger et al., 2009.)

        Raises:
            ArgumentError: If there are no user tokens, or an id has another type.

        Examples:
            >>> Vocabulary(codebook_sizes=(4, 4), num_users=10).user_tokens(["ann", "bob", None]).tolist()
            [19, 14, 11]
        """
        first = self.no_user
        return np.array([first if user is None else first + 1 + _user_hash(user) % self.num_users for user in users], np.int64)

    @cached_property
    def _levels(self) -> tuple[Int64Array, ...]:
        return tuple(np.arange(first, first + size) for first, size in zip(self.offsets, self.codebook_sizes, strict=True))

    def to_dict(self) -> Json:
        """Return the JSON object that `vocabulary_from_dict` reads."""
        users = {"num_users": self.num_users} if self.num_users else {}
        return {"kind": "ranges", "codebook_sizes": list(self.codebook_sizes), "num_specials": self.num_specials} | users


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenTable(_SidTokens):
    """SID tokens anywhere inside the vocabulary of a large language model: `Vocabulary` with a look-up instead of an offset.

    It has no user tokens.

    Args:
        tokens_per_level: For each level, the token of code 0, of code 1, and so on. They are distinct within a level; levels
            may share some. Only the token of a level with one code may be pad, bos or eos.
        size: The model's vocab_size.
        pad: The language model's own padding token.
        bos: The language model's own token at the beginning.
        eos: The language model's own token at the end.
        prompt: The tokens around a history, as in the model's training; None puts `bos` before it.
    """

    tokens_per_level: tuple[tuple[int, ...], ...]
    size: int
    pad: int
    bos: int
    eos: int
    prompt: PromptTokens | None = None

    def __post_init__(self) -> None:
        levels = tuple(_whole_numbers("tokens_per_level", level) for level in self.tokens_per_level)
        object.__setattr__(self, "tokens_per_level", levels)
        object.__setattr__(self, "codebook_sizes", tuple(len(level) for level in levels))
        specials = {"pad": self.pad, "bos": self.bos, "eos": self.eos}
        _whole_numbers("size, pad, bos and eos", (self.size, *specials.values()))
        for name, token in specials.items():
            if not 0 <= token < self.size:
                raise ArgumentError(f"{name}={token} is outside the vocabulary of {counted(self.size, 'token')}")
        around = self.prompt_tokens
        for token in (*around.before, *around.between, *around.after):
            if not 0 <= token < self.size:
                raise ArgumentError(f"token {token} of the prompt is outside the vocabulary of {counted(self.size, 'token')}")
        if not levels or not all(levels):
            raise ArgumentError("tokens_per_level must name at least one level of at least one token")
        for number, level in enumerate(levels):
            if len(set(level)) < len(level):
                raise ArgumentError(
                    f"level {number} gives one token to two codes: its {counted(len(level), 'token')} must be distinct"
                )
            if min(level) < 0 or max(level) >= self.size:
                raise ArgumentError(f"level {number} has tokens outside the vocabulary of {counted(self.size, 'token')}")
            if len(level) > 1 and (taken := set(level) & set(specials.values())):
                raise ArgumentError(f"level {number} uses token {min(taken)}, which is pad, bos or eos")
        if around.levels is not None and not 0 < around.levels <= len(levels):
            raise ArgumentError(f"levels of a prompt is {around.levels}: expected 1 to {len(levels)}, as the items have")

    def __repr__(self) -> str:
        return f"TokenTable(codebook_sizes={self.codebook_sizes}, size={self.size})"

    @cached_property
    def prompt_tokens(self) -> PromptTokens:
        return super().prompt_tokens if self.prompt is None else self.prompt

    @classmethod
    def behind(cls, first: int, codebook_sizes: Sequence[int], *, size: int, pad: int, bos: int, eos: int) -> TokenTable:
        """Return codebooks end to end from token `first` on, which is where a tokenizer puts added tokens."""
        begins = accumulate(codebook_sizes, initial=first)
        levels = tuple(tuple(range(begin, begin + codes)) for begin, codes in zip(begins, codebook_sizes, strict=False))
        return cls(tokens_per_level=levels, size=size, pad=pad, bos=bos, eos=eos)

    @cached_property
    def _levels(self) -> tuple[Int64Array, ...]:
        return tuple(np.array(level, np.int64) for level in self.tokens_per_level)

    def to_dict(self) -> Json:
        """Return the JSON object that `vocabulary_from_dict` reads."""
        levels = [list(level) for level in self.tokens_per_level]
        specials = {"pad": self.pad, "bos": self.bos, "eos": self.eos}
        prompt = {} if self.prompt is None else {"prompt": self.prompt.to_dict()}
        return {"kind": "table", "tokens_per_level": levels, "size": self.size} | specials | prompt


@dataclass(frozen=True, kw_only=True)
class TextTokens(_SidTokens):
    """Every token of a language model, for texts of up to `num_tokens` of them: each is a level whose codes are all tokens.

    >>> TextTokens(size=151_936, num_tokens=64).num_levels
    64
    """

    size: int
    num_tokens: int
    pad: int = 0
    bos: int = 0
    eos: int = 0

    def __post_init__(self) -> None:
        check_whole(size=self.size, num_tokens=self.num_tokens)
        object.__setattr__(self, "codebook_sizes", (self.size,) * self.num_tokens)

    @cached_property
    def _levels(self) -> tuple[Int64Array, ...]:
        return (np.arange(self.size),) * self.num_tokens

    @cached_property
    def _slices(self) -> tuple[slice | None, ...]:
        return (slice(0, self.size),) * self.num_tokens

    def to_dict(self) -> Json:
        """Return the JSON object that `vocabulary_from_dict` reads."""
        return {"kind": "text", "size": self.size, "num_tokens": self.num_tokens}


AnyVocabulary = Vocabulary | TokenTable | TextTokens


def vocabulary_from_dict(fields: Json) -> AnyVocabulary:
    """Return the vocabulary that `to_dict` wrote. Raises CheckpointError for anything else."""
    kinds = {"ranges": Vocabulary, "table": TokenTable, "text": TextTokens}
    kind = str(fields.get("kind"))
    if kind not in kinds:
        raise CheckpointError(f"the vocabulary's kind is {kind!r}, expected one of {sorted(kinds)}: save the model again")
    values = {name: value for name, value in fields.items() if name != "kind"}
    try:
        if "prompt" in values:
            values["prompt"] = PromptTokens.from_dict(values["prompt"])
        return kinds[kind](**values)
    except (TypeError, AttributeError, ArgumentError) as error:
        raise CheckpointError(f"the vocabulary cannot be read ({error}): save the model again with leafbeam") from error


def _user_hash(user: UserId) -> int:
    if not is_id(user) and not isinstance(user, np.integer):
        raise ArgumentError(f"a user id is an integer, a string or None, not {user!r}")
    return int.from_bytes(blake2b(str(user).encode(), digest_size=8).digest(), "little")


def _whole_numbers(name: str, values: Sequence[object]) -> tuple[int, ...]:
    numbers: list[int] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ArgumentError(f"{name} must hold whole numbers only, not {value!r}")
        numbers.append(int(value))
    return tuple(numbers)


def _integers(table: Tensor | npt.ArrayLike, num_levels: int) -> Int64Array:
    array = table.detach().cpu().numpy() if _is_tensor(table) else np.asarray(table)
    if array.size == 0 and array.ndim == 1:
        array = np.empty((0, num_levels), np.int64)  # an empty history may arrive as []
    if array.dtype.kind not in "iu":
        raise CodesError(f"expected integers, got an array of {array.dtype}")
    if array.ndim == 0 or array.shape[-1] != num_levels:
        raise CodesError(f"expected {counted(num_levels, 'column')}, one per level, got an array of shape {array.shape}")
    return array.astype(np.int64)


def _first(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _like(sample: Tensor | npt.ArrayLike, array: Int64Array) -> Tensor | Int64Array:
    return _tensor(array, sample) if _is_tensor(sample) else array


def _is_tensor(table: Tensor | npt.ArrayLike) -> TypeGuard[Tensor]:
    return isinstance(table, getattr(sys.modules.get("torch"), "Tensor", ()))


def _tensor(array: Int64Array, like: Tensor) -> Tensor:
    import torch

    return torch.as_tensor(array, device=like.device)
