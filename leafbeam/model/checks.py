"""What may be asked of a model: a vocabulary and prompts that fit it, and dropout by a generator that the caller gives.

Shapes: B requests, T tokens of a prompt.
"""

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model.config import ModelConfig
from leafbeam.model.qwen3 import Dropout
from leafbeam.model.t5_config import EncoderDecoderConfig
from leafbeam.model.vocabulary import AnyVocabulary

__all__ = ["check_dtype", "check_prompts", "check_vocabulary", "checked_lengths", "dropping"]


def check_vocabulary(vocabulary: AnyVocabulary, config: ModelConfig | EncoderDecoderConfig) -> None:
    """ArgumentError unless the model has an embedding for every token."""
    if vocabulary.size > config.vocab_size:
        raise ArgumentError(
            f"the vocabulary has {vocabulary.size:,} tokens, the config's vocab_size only {config.vocab_size:,}: "
            "raise vocab_size"
        )


def check_dtype(dtype: torch.dtype | None) -> None:
    """ArgumentError unless weights can be of this type, or it is left to the file."""
    if dtype is not None and not dtype.is_floating_point:
        raise ArgumentError(f"dtype must be one of torch's floating dtypes, not {dtype}")


def check_prompts(
    tokens_BT: Tensor, lengths_B: Tensor | None, config: ModelConfig | EncoderDecoderConfig, *, further: int = 0
) -> None:
    """ArgumentError unless these are tokens of the model that leave room for `further` more in its positions."""
    if tokens_BT.ndim != 2 or tokens_BT.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"tokens must be a (B, T) tensor of int64, got {tokens_BT.dtype} of shape {tuple(tokens_BT.shape)}")
    if tokens_BT.shape[1] < 1 or tokens_BT.shape[1] + further > config.max_position_embeddings:
        raise ArgumentError(
            f"prompts of {tokens_BT.shape[1]:,} tokens with {further} to come do not fit the model's "
            f"{config.max_position_embeddings:,} positions: keep the newest items of each history only"
        )
    looks = tokens_BT.device.type == "cpu" and tokens_BT.numel() > 0
    if looks and not 0 <= int(tokens_BT.min()) <= int(tokens_BT.max()) < config.vocab_size:
        raise ArgumentError(f"the model has the tokens 0 to {config.vocab_size - 1:,}, got one outside")
    if lengths_B is not None and lengths_B.shape != tokens_BT.shape[:1]:
        raise ArgumentError(f"lengths must be one per row, ({len(tokens_BT)},), got shape {tuple(lengths_B.shape)}")


def checked_lengths(tokens_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The lengths of prompts as int64 on the device of their tokens, all of them where none are given; each at least 1."""
    if lengths_B is None:
        return torch.full(tokens_BT.shape[:1], tokens_BT.shape[1], device=tokens_BT.device)
    if len(lengths_B) and not 1 <= int(lengths_B.min()) <= int(lengths_B.max()) <= tokens_BT.shape[1]:
        raise ArgumentError(
            f"lengths must be between 1 and {tokens_BT.shape[1]}, got {int(lengths_B.min())} to {int(lengths_B.max())}: "
            "an empty history is the prompt [bos]"
        )
    return lengths_B.to(tokens_BT.device, torch.int64)


def dropping(rate: float, generator: torch.Generator | None) -> Dropout:
    """A dropout whose choices are the generator's; ArgumentError where something is to be dropped and there is none."""
    if rate == 0:
        return lambda x: x
    if generator is None:
        raise ArgumentError(f"this model drops {rate:.0%} in training: pass dropout=torch.Generator(), or call model.eval()")

    def drop(x: Tensor) -> Tensor:
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
        return x * kept / (1 - rate)

    return drop
