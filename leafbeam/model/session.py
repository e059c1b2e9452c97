"""A search's calls of the model: the prompts once, then the codes of all beams, level by level.

Shapes: B requests, K beams, C new codes of each beam, T codes of a suffix, V codes of a level.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from leafbeam.errors import ArgumentError, counted
from leafbeam.model.config import EncoderDecoderConfig, ModelConfig
from leafbeam.model.cpu.rows import are_below
from leafbeam.ops.backend import to_numpy

Integers = Tensor | ArrayLike  # of torch or numpy


class KVCache(Protocol):
    """Keys and values that a search holds."""

    @property
    def nbytes(self) -> int: ...


class Runner(Protocol):
    """Runs the layers for one batch of prompts, which its constructor has prefilled."""

    @property
    def prompt(self) -> KVCache: ...

    @property
    def beams(self) -> KVCache: ...

    def root_logits(self) -> Tensor:
        """Return the logits (B, V) of level 0."""
        ...

    def restart(self) -> None:
        """Drop the beams and keep the prompts."""
        ...

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        """Return the logits (B, K, V) after each of C new codes, of levels level + 1 on.

        level: how many codes are before them: as many as ran since `restart`, or fewer for more beams of an earlier level,
        which have one code each. parents_BK: beams of the level before, in the order in which they ran.
        """
        ...


class DecodedLevels(Protocol):
    """The part of a vocabulary that a session reads."""

    @property
    def num_levels(self) -> int: ...

    @property
    def codebook_sizes(self) -> Sequence[int]: ...

    def tokens_at(self, codes: Tensor, level: int) -> Tensor: ...


class DecodeSession:
    """The decoding steps of one batch of prompts. It equals running the model on `prompt + codes` of every beam, to 1e-5.

    `Transformer.start` and `EncoderDecoder.start` make it, and prefill the prompts; each `step_fn` then costs one pass over B x
    K tokens. Its methods are what `BeamSearch.run` takes.
    """

    def __init__(
        self, runner: Runner, vocabulary: DecodedLevels, lengths_B: Tensor, *, are_checked: bool | None = None
    ) -> None:
        """are_checked: whether to look at codes and parents; None: on a CPU, because elsewhere it would wait for the device."""
        self._runner, self._vocabulary, self._lengths_B = runner, vocabulary, lengths_B
        self._are_checked = lengths_B.device.type == "cpu" if are_checked is None else are_checked
        self._restart()

    def __repr__(self) -> str:
        return f"DecodeSession(requests={len(self._lengths_B)}, level={len(self._num_beams)} of {self._vocabulary.num_levels})"

    @property
    def prompt(self) -> KVCache:
        return self._runner.prompt

    @property
    def beams(self) -> KVCache:
        return self._runner.beams

    @torch.inference_mode()
    def step_fn(self, codes_BK: Integers | None = None, parents_BK: Integers | None = None) -> Tensor:
        """Return the logits of the next level's codes for every beam, (B, K, V).

        (None, None) starts the prompts anew and returns level 0's logits (B, V).

        Args:
            codes_BK: The code that each beam took (integers, torch or numpy). K may change from step to step. Dead beams may
                have any legal code and parent.
            parents_BK: The beam of the previous step that it extends.

        Raises:
            ArgumentError: If a code is outside the level, a parent does not exist, or the last level is done.
        """
        if codes_BK is None and parents_BK is None:
            self._restart()
            return self._runner.root_logits()
        return self._extended(codes_BK, parents_BK, len(self._num_beams))

    @torch.inference_mode()
    def more_fn(self, codes_BJ: Integers, parents_BJ: Integers, level: int) -> Tensor:
        """Return the logits (B, J, V) after more codes of a level that has run already, or of the next one.

        A search runs few prefixes of a level at first, and later those that may still lead to a better answer.

        Args:
            codes_BJ: Codes of the level, as for `step_fn`.
            parents_BJ: The beam of the level before that each extends; beams are numbered in the order in which they ran.
            level: The level of the codes, from 0.

        Raises:
            ArgumentError: If a code is outside the level, a parent does not exist, or the level before has not run.
        """
        if not 0 <= level <= len(self._num_beams):
            raise ArgumentError(f"level is {level}: expected 0 to {len(self._num_beams)}, the next one")
        return self._extended(codes_BJ, parents_BJ, level)

    @torch.inference_mode()
    def suffix_fn(self, codes_BKT: Integers, parents_BK: Integers) -> list[Tensor]:
        """Return the logits (B, K, V) of the next T levels, for beams whose next T codes are known.

        This equals T calls of `step_fn` in which every beam continues itself, for one pass over B x K x T tokens; `step_fn` and
        `suffix_fn` continue from there.
        """
        codes_BKT = _integers("codes", codes_BKT, self._lengths_B.device)
        if codes_BKT.ndim != 3 or codes_BKT.shape[2] < 1:
            raise ArgumentError(f"the codes of suffixes must have shape (B, K, T), not {tuple(codes_BKT.shape)}")
        first, num_beams = len(self._num_beams), codes_BKT.shape[1]
        _, parents_BK = self._checked(codes_BKT[:, :, 0], parents_BK, first, self._beams_before(first))
        tokens: list[Tensor] = []
        for level, codes_BK in enumerate(codes_BKT.unbind(2), start=first):
            self._checked(codes_BK, torch.zeros_like(codes_BK), level, num_beams)
            tokens.append(self._vocabulary.tokens_at(codes_BK, level))
        logits = self._runner.extend(torch.stack(tokens, 2), parents_BK, first)
        self._num_beams += [num_beams] * len(tokens)
        return logits

    def _restart(self) -> None:
        self._runner.restart()
        self._num_beams: list[int] = []  # that have run at each level

    def _beams_before(self, level: int) -> int:
        """Return how many beams the codes of a level may extend; the first ones extend the prompt itself."""
        return self._num_beams[level - 1] if level else 1

    def _extended(self, codes: Integers | None, parents: Integers | None, level: int) -> Tensor:
        codes_BK, parents_BK = self._checked(codes, parents, level, self._beams_before(level))
        tokens_BK1 = self._vocabulary.tokens_at(codes_BK, level).unsqueeze(-1)
        (logits_BKV,) = self._runner.extend(tokens_BK1, parents_BK, level)
        if level == len(self._num_beams):
            self._num_beams.append(0)
        self._num_beams[level] += codes_BK.shape[1]
        return logits_BKV

    def _checked(self, codes: Integers | None, parents: Integers | None, level: int, num_beams: int) -> tuple[Tensor, Tensor]:
        """Return codes of a level and their parents as tensors. Raises ArgumentError; num_beams: of the level before."""
        device = self._lengths_B.device
        codes_BK, parents_BK = _integers("codes", codes, device), _integers("parents", parents, device)
        shape, requests = codes_BK.shape, self._lengths_B.shape[0]
        if len(shape) != 2 or shape[0] != requests or parents_BK.shape != shape:
            shapes = f"{tuple(shape)} and {tuple(parents_BK.shape)}"
            raise ArgumentError(f"codes and parents must both have shape (B={requests}, K), not {shapes}")
        if level + 1 >= self._vocabulary.num_levels:
            raise ArgumentError(
                f"a SID has {counted(self._vocabulary.num_levels, 'level')} and the last was answered: step_fn(None, "
                "None) starts anew"
            )
        if self._are_checked and shape.numel():
            size = self._vocabulary.codebook_sizes[level]
            if not are_below(np.ascontiguousarray(codes_BK.numpy()), size):
                raise ArgumentError(f"level {level} has the codes 0 to {size - 1:,}, got one outside")
            if not are_below(np.ascontiguousarray(parents_BK.numpy()), num_beams):
                raise ArgumentError(f"the level before had the beams 0 to {num_beams - 1:,}, got a parent outside")
        return codes_BK, parents_BK


def _range_of(values: Tensor) -> tuple[int, int]:
    """Return the smallest and the largest, by numpy, which is faster than torch for a few numbers."""
    array = to_numpy(values)
    return int(array.min()), int(array.max())


def _integers(name: str, values: Integers | None, device: torch.device) -> Tensor:
    if isinstance(values, Tensor) and values.dtype == torch.int64 and values.device == device:
        return values
    try:
        tensor = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name} must be integers (B, K): {error}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ArgumentError(f"{name} must be integers (B, K), not {tensor.dtype}")
    return tensor.to(torch.int64)


def check_prompts(
    tokens_BT: Tensor, lengths_B: Tensor | None, config: ModelConfig | EncoderDecoderConfig, num_levels: int = 1
) -> None:
    """ArgumentError unless these are tokens (checked on a CPU only) that leave positions for a SID but its last code."""
    if tokens_BT.ndim != 2 or tokens_BT.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"tokens must be a (B, T) tensor of int64, got {tokens_BT.dtype} of shape {tuple(tokens_BT.shape)}")
    if tokens_BT.shape[1] < 1 or tokens_BT.shape[1] + num_levels - 1 > config.max_position_embeddings:
        raise ArgumentError(
            f"prompts of {counted(tokens_BT.shape[1], 'token')} and {counted(num_levels - 1, 'new one')} do not fit the "
            f"model's {counted(config.max_position_embeddings, 'position')}: keep only the newest items of each history"
        )
    if tokens_BT.device.type == "cpu" and tokens_BT.numel():
        first, last = _range_of(tokens_BT)
        if not 0 <= first <= last < config.vocab_size:
            raise ArgumentError(f"the model has the tokens 0 to {config.vocab_size - 1:,}, got one outside: {first} to {last}")
    if lengths_B is not None and lengths_B.shape != tokens_BT.shape[:1]:
        raise ArgumentError(f"lengths must be one per row, ({len(tokens_BT)},), got shape {tuple(lengths_B.shape)}")


def checked_lengths(
    tokens_BT: Tensor, lengths_B: Tensor | None, config: ModelConfig | EncoderDecoderConfig, num_levels: int
) -> Tensor:
    """Return the lengths of checked prompts as int64 on the tokens' device (None: all have T tokens), each of 1 to T."""
    check_prompts(tokens_BT, lengths_B, config, num_levels)
    if lengths_B is None:
        return torch.full(tokens_BT.shape[:1], tokens_BT.shape[1], device=tokens_BT.device)
    if lengths_B.numel():
        first, last = _range_of(lengths_B)
        if not 1 <= first <= last <= tokens_BT.shape[1]:
            raise ArgumentError(
                f"lengths must be between 1 and {tokens_BT.shape[1]}, got {first} to {last}: "
                "an empty history is the prompt [bos]"
            )
    return lengths_B.to(tokens_BT.device, torch.int64)


def has_padding(lengths_B: Tensor, num_tokens: int) -> bool:
    """Return whether any prompt is shorter than num_tokens; True for lengths on a device, which would have to be waited for."""
    return lengths_B.device.type != "cpu" or bool((lengths_B < num_tokens).any())
