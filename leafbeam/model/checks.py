"""Checks of a model's prompts.

Shapes: B requests, T tokens of a prompt.
"""

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model.config import ModelConfig
from leafbeam.model.t5_config import EncoderDecoderConfig

__all__ = ["check_prompts", "checked_lengths"]


def check_prompts(
    tokens_BT: Tensor, lengths_B: Tensor | None, config: ModelConfig | EncoderDecoderConfig, *, num_new_tokens: int = 0
) -> None:
    """ArgumentError unless these are tokens of the model that leave num_new_tokens of its positions free.

    Token values are checked on a CPU only: elsewhere the check would synchronise the device.
    """
    if tokens_BT.ndim != 2 or tokens_BT.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"tokens must be a (B, T) tensor of int64, got {tokens_BT.dtype} of shape {tuple(tokens_BT.shape)}")
    if tokens_BT.shape[1] < 1 or tokens_BT.shape[1] + num_new_tokens > config.max_position_embeddings:
        raise ArgumentError(
            f"prompts of {tokens_BT.shape[1]:,} tokens plus {num_new_tokens} new ones do not fit the model's "
            f"{config.max_position_embeddings:,} positions: keep only the newest items of each history"
        )
    if tokens_BT.device.type == "cpu" and tokens_BT.numel():
        first, last = int(tokens_BT.min()), int(tokens_BT.max())
        if not 0 <= first <= last < config.vocab_size:
            raise ArgumentError(f"the model has the tokens 0 to {config.vocab_size - 1:,}, got one outside: {first} to {last}")
    if lengths_B is not None and lengths_B.shape != tokens_BT.shape[:1]:
        raise ArgumentError(f"lengths must be one per row, ({len(tokens_BT)},), got shape {tuple(lengths_B.shape)}")


def checked_lengths(tokens_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Prompt lengths as int64 on the tokens' device (None: every prompt has T tokens); ArgumentError unless each is 1 to T."""
    if lengths_B is None:
        return torch.full(tokens_BT.shape[:1], tokens_BT.shape[1], device=tokens_BT.device)
    if len(lengths_B) and not 1 <= int(lengths_B.min()) <= int(lengths_B.max()) <= tokens_BT.shape[1]:
        raise ArgumentError(
            f"lengths must be between 1 and {tokens_BT.shape[1]}, got {int(lengths_B.min())} to {int(lengths_B.max())}: "
            "an empty history is the prompt [bos]"
        )
    return lengths_B.to(tokens_BT.device, torch.int64)
