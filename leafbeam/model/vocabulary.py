"""Which token of the model stands for which code of which level.

Shapes: N items, L levels, V codes of a level, D hidden, B requests, T tokens of a prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from leafbeam.errors import ArgumentError, CheckpointError, CodesError

Int64Array = npt.NDArray[np.int64]
AnyUser = int | str | np.integer | None


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Specials first, then one contiguous range of tokens per level, then the tokens of users, if any.

    Think of the levels' codebooks laid end to end behind `pad`, `bos` and `eos`: a level's rows of any [size, D] matrix
    are then one slice, so the head of a round multiplies a view and copies nothing.

    codebook_sizes: how many codes each level has.
    num_specials: tokens before level 0; at least 3 (pad=0, bos=1, eos=2), more are the caller's own.
    num_users: tokens that user ids are hashed to (TIGER has 2,000), behind one that stands for no user in particular; every
    prompt then has one of them after `bos`. 0: prompts know nothing of users.

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

    @property
    def pad(self) -> int:
        """The token that fills a prompt up on its right."""
        return 0

    @property
    def bos(self) -> int:
        """The token that every prompt begins with."""
        return 1

    @property
    def eos(self) -> int:
        """The token that ends a sequence; SIDs have a fixed length, so decoding never needs it."""
        return 2

    @property
    def num_levels(self) -> int:
        """How many codes a SID has."""
        return len(self.codebook_sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first token of each level."""
        return tuple(accumulate(self.codebook_sizes[:-1], initial=self.num_specials))

    @property
    def size(self) -> int:
        """How many tokens there are: a model needs a vocab_size of at least this."""
        return self.num_specials + sum(self.codebook_sizes) + (self.num_users + 1 if self.num_users else 0)

    @property
    def num_leading(self) -> int:
        """How many tokens of a prompt stand before its history: `bos`, and the user's where there are such."""
        return 2 if self.num_users else 1

    @property
    def no_user(self) -> int:
        """The token of a prompt whose user is not given, or not to be told apart; ArgumentError without user tokens."""
        self._check_has_users()
        return self.num_specials + sum(self.codebook_sizes)

    def user_tokens(self, users: Sequence[AnyUser] | npt.NDArray[Any]) -> Int64Array:
        """The token of each user id, int64; None is `no_user`. ArgumentError without user tokens, or for what is no id.

        An id is hashed (BLAKE2b of its text, so that 7 and "7" are one user), and several users share a token. Of a user that
        training has not seen, the token says what it says of those who share it. (TIGER, implementation details, after
        Weinberger et al., 2009.)

        >>> Vocabulary(codebook_sizes=(4, 4), num_users=10).user_tokens(["ann", "bob", None]).tolist()
        [19, 14, 11]
        """
        self._check_has_users()
        return np.array([self.no_user if user is None else self._token_of(user) for user in users], np.int64)

    def _token_of(self, user: AnyUser) -> int:
        if isinstance(user, bool) or not isinstance(user, int | np.integer | str):
            raise ArgumentError(f"a user id is a whole number, a text or None, not {user!r}")
        digest = blake2b(str(user).encode(), digest_size=8).digest()
        return self.no_user + 1 + int.from_bytes(digest, "little") % self.num_users

    def _check_has_users(self) -> None:
        if not self.num_users:
            raise ArgumentError("this vocabulary has no user tokens: leave the users out, or train with num_users above 0")

    def level_slice(self, level: int) -> slice:
        """The tokens of a level."""
        first = self.offsets[level]
        return slice(first, first + self.codebook_sizes[level])

    def level_rows(self, matrix_VD: Tensor, level: int) -> Tensor:
        """The rows of a level's tokens, in the order of the codes: a view, no copy."""
        return matrix_VD[self.level_slice(level)]

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """The tokens of codes of one level, any shape, unchecked (the decode loop has checked them)."""
        return codes + self.offsets[level]

    @overload
    def tokens(self, codes_NL: Tensor) -> Tensor: ...
    @overload
    def tokens(self, codes_NL: npt.ArrayLike) -> Int64Array: ...
    def tokens(self, codes_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """The tokens of whole SIDs (..., L), int64, as the kind of array that came; CodesError for codes outside."""
        return _like(codes_NL, _checked_codes(codes_NL, self.codebook_sizes) + np.array(self.offsets, np.int64))

    @overload
    def codes(self, tokens_NL: Tensor) -> Tensor: ...
    @overload
    def codes(self, tokens_NL: npt.ArrayLike) -> Int64Array: ...
    def codes(self, tokens_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """The SIDs of tokens (..., L), the way back of `tokens`; CodesError where a token is not of its level."""
        codes = _integers(tokens_NL, self.num_levels) - np.array(self.offsets, np.int64)
        known = (codes >= 0) & (codes < np.array(self.codebook_sizes, np.int64))
        if not known.all():
            raise _foreign_token(known)
        return _like(tokens_NL, codes)

    def prompts(
        self, histories: Sequence[npt.ArrayLike], users: Sequence[AnyUser] | npt.NDArray[Any] | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """`[bos]` and the SIDs of each history (n, L), oldest first -> tokens_BT padded on the right, lengths_B.

        With user tokens, the user's stands between the two: that of `users`, or `no_user` for all where none are given.
        Raises ArgumentError for users that are not one a history, or that the vocabulary has no tokens for.
        """
        if users is None and not self.num_users:
            return _prompts(self, histories)
        users = [None] * len(histories) if users is None else users
        if len(users) != len(histories):
            raise ArgumentError(f"{len(users):,} users for {len(histories):,} histories: give one for each")
        return _prompts(self, histories, self.user_tokens(users))

    def to_dict(self) -> dict[str, Any]:
        """What `vocabulary_from_dict` reads, in JSON's types."""
        users = {"num_users": self.num_users} if self.num_users else {}
        return {"kind": "ranges", "codebook_sizes": list(self.codebook_sizes), "num_specials": self.num_specials} | users


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """SID tokens anywhere inside the vocabulary of a large language model.

    Think of it as `Vocabulary` with a look-up where that one adds an offset: the same verbs, except that the head of a
    level gathers its rows (V x D values copied a call) instead of slicing them.

    tokens_per_level: for each level, the token of code 0, of code 1, ... Distinct within a level; levels may share some.
    size: the model's vocab_size. pad, bos, eos: the language model's own.
    """

    tokens_per_level: tuple[tuple[int, ...], ...]
    size: int
    pad: int
    bos: int
    eos: int

    def __post_init__(self) -> None:
        levels = tuple(_whole_numbers("tokens_per_level", level) for level in self.tokens_per_level)
        object.__setattr__(self, "tokens_per_level", levels)
        specials = {"pad": self.pad, "bos": self.bos, "eos": self.eos}
        _whole_numbers("size, pad, bos and eos", (self.size, *specials.values()))
        for name, token in specials.items():
            if not 0 <= token < self.size:
                raise ArgumentError(f"{name}={token} is outside the vocabulary of {self.size:,} tokens")
        if not levels or not all(levels):
            raise ArgumentError("tokens_per_level must name at least one level of at least one token")
        for number, level in enumerate(levels):
            if len(set(level)) < len(level):
                raise ArgumentError(f"level {number} gives one token to two codes: its {len(level):,} tokens must be distinct")
            if min(level) < 0 or max(level) >= self.size:
                raise ArgumentError(f"level {number} has tokens outside the vocabulary of {self.size:,} tokens")
            if taken := set(level) & set(specials.values()):
                raise ArgumentError(f"level {number} uses token {min(taken)}, which is pad, bos or eos")

    @classmethod
    def behind(cls, first: int, codebook_sizes: Sequence[int], *, size: int, pad: int, bos: int, eos: int) -> "TokenTable":
        """Codebooks laid end to end from token `first` on, where a tokenizer puts the tokens that are added to it."""
        begins = accumulate(codebook_sizes, initial=first)
        levels = tuple(tuple(range(begin, begin + codes)) for begin, codes in zip(begins, codebook_sizes, strict=False))
        return cls(tokens_per_level=levels, size=size, pad=pad, bos=bos, eos=eos)

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        """How many codes each level has."""
        return tuple(len(level) for level in self.tokens_per_level)

    @property
    def num_levels(self) -> int:
        """How many codes a SID has."""
        return len(self.tokens_per_level)

    @cached_property
    def _tokens(self) -> tuple[Int64Array, ...]:
        return tuple(np.array(level, np.int64) for level in self.tokens_per_level)

    @cached_property
    def _side_by_side(self) -> tuple[bool, ...]:
        return tuple(bool((np.diff(tokens) == 1).all()) for tokens in self._tokens)

    def level_tokens(self, level: int) -> Int64Array:
        """The tokens of a level, in the order of its codes."""
        return self._tokens[level]

    def level_rows(self, matrix_VD: Tensor, level: int) -> Tensor:
        """The rows of a level's tokens, in the order of the codes: a gathered copy, a view where they lie side by side."""
        tokens = self._tokens[level]
        if self._side_by_side[level]:
            return matrix_VD[int(tokens[0]) : int(tokens[-1]) + 1]
        return matrix_VD.index_select(0, torch.as_tensor(self._tokens[level], device=matrix_VD.device))

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """The tokens of codes of one level, any shape."""
        return torch.as_tensor(self._tokens[level], device=codes.device)[codes]

    @overload
    def tokens(self, codes_NL: Tensor) -> Tensor: ...
    @overload
    def tokens(self, codes_NL: npt.ArrayLike) -> Int64Array: ...
    def tokens(self, codes_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """The tokens of whole SIDs (..., L), int64, as the kind of array that came; CodesError for codes outside."""
        codes = _checked_codes(codes_NL, self.codebook_sizes)
        return _like(codes_NL, np.stack([table[codes[..., t]] for t, table in enumerate(self._tokens)], axis=-1))

    @overload
    def codes(self, tokens_NL: Tensor) -> Tensor: ...
    @overload
    def codes(self, tokens_NL: npt.ArrayLike) -> Int64Array: ...
    def codes(self, tokens_NL: Tensor | npt.ArrayLike) -> Tensor | Int64Array:
        """The SIDs of tokens (..., L), the way back of `tokens`; CodesError where a token is not of its level."""
        tokens = _integers(tokens_NL, self.num_levels)
        codes = np.empty_like(tokens)
        for t, table in enumerate(self._tokens):
            order = np.argsort(table)
            place = np.searchsorted(table, tokens[..., t], sorter=order)
            codes[..., t] = order[np.minimum(place, len(table) - 1)]
        known = np.stack([table[codes[..., t]] == tokens[..., t] for t, table in enumerate(self._tokens)], axis=-1)
        if not known.all():
            raise _foreign_token(known)
        return _like(tokens_NL, codes)

    @property
    def num_users(self) -> int:
        """Language models have no tokens of users."""
        return 0

    @property
    def num_leading(self) -> int:
        """How many tokens of a prompt stand before its history: `bos`."""
        return 1

    def prompts(
        self, histories: Sequence[npt.ArrayLike], users: Sequence[AnyUser] | npt.NDArray[Any] | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """`[bos]` and the SIDs of each history (n, L), oldest first -> tokens_BT padded on the right, lengths_B.

        users: for `Vocabulary`; ArgumentError where any are given.
        """
        if users is not None:
            raise ArgumentError("a TokenTable has no user tokens: leave the users out")
        return _prompts(self, histories)

    def to_dict(self) -> dict[str, Any]:
        """What `vocabulary_from_dict` reads, in JSON's types."""
        levels = [list(level) for level in self.tokens_per_level]
        return {"kind": "table", "tokens_per_level": levels, "size": self.size} | {
            "pad": self.pad,
            "bos": self.bos,
            "eos": self.eos,
        }


AnyVocabulary = Vocabulary | TokenTable


def vocabulary_from_dict(fields: Mapping[str, Any]) -> AnyVocabulary:
    """The vocabulary that `to_dict` wrote; CheckpointError where the fields are not one."""
    kinds = {"ranges": Vocabulary, "table": TokenTable}
    kind = str(fields.get("kind"))
    if kind not in kinds:
        raise CheckpointError(
            f"the vocabulary's kind is {kind!r}, expected one of {sorted(kinds)}: save the model again with leafbeam"
        )
    try:
        return kinds[kind](**{name: value for name, value in fields.items() if name != "kind"})
    except (TypeError, ArgumentError) as error:
        raise CheckpointError(f"the vocabulary cannot be read ({error}): save the model again with leafbeam") from error


def _whole_numbers(name: str, values: Sequence[object]) -> tuple[int, ...]:
    numbers: list[int] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ArgumentError(f"{name} must hold whole numbers only, not {value!r}")
        numbers.append(int(value))
    return tuple(numbers)


def _integers(table: Tensor | npt.ArrayLike, num_levels: int) -> Int64Array:
    array = table.detach().cpu().numpy() if isinstance(table, Tensor) else np.asarray(table)
    if array.size == 0 and array.ndim == 1:
        array = np.empty((0, num_levels), np.int64)  # an empty history may arrive as []
    if array.dtype.kind not in "iu":
        raise CodesError(f"expected integers, got an array of {array.dtype}")
    if array.ndim == 0 or array.shape[-1] != num_levels:
        raise CodesError(f"expected {num_levels} columns, one per level, got an array of shape {array.shape}")
    return array.astype(np.int64)


def _checked_codes(codes_NL: Tensor | npt.ArrayLike, codebook_sizes: tuple[int, ...]) -> Int64Array:
    codes = _integers(codes_NL, len(codebook_sizes))
    wrong = (codes < 0) | (codes >= np.array(codebook_sizes, np.int64))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        size = codebook_sizes[where[-1]]
        raise CodesError(f"code {codes[where]} at {where} is outside level {where[-1]}'s codebook of {size:,} codes")
    return codes


def _foreign_token(known: npt.NDArray[np.bool_]) -> CodesError:
    where = tuple(int(i) for i in np.argwhere(~known)[0])
    return CodesError(f"the token at {where} is not a code of level {where[-1]}: columns are levels, specials must be left out")


def _like(given: Tensor | npt.ArrayLike, array: Int64Array) -> Tensor | Int64Array:
    return torch.from_numpy(array).to(given.device) if isinstance(given, Tensor) else array


def _prompts(
    vocabulary: AnyVocabulary, histories: Sequence[npt.ArrayLike], users_B: Int64Array | None = None
) -> tuple[Int64Array, Int64Array]:
    rows = [vocabulary.tokens(history).reshape(-1) for history in histories]
    begin = vocabulary.num_leading
    lengths_B = np.array([begin + len(row) for row in rows], np.int64)
    tokens_BT = np.full((len(rows), int(lengths_B.max(initial=begin))), vocabulary.pad, np.int64)
    tokens_BT[:, 0] = vocabulary.bos
    if users_B is not None:
        tokens_BT[:, 1] = users_B
    for row, tokens in enumerate(rows):
        tokens_BT[row, begin : begin + len(tokens)] = tokens
    return tokens_BT, lengths_B
