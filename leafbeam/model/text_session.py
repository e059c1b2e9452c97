"""Calls of the model for texts that grow at different paces: the prompts once, then what is new of each text.

Shapes: B requests, K texts of each, R = B x K, C new tokens of a text, D hidden.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError, counted


class TextRunner(Protocol):
    """Runs the layers for one batch of prompts, which its constructor has prefilled, and returns hidden states."""

    def root_logits(self) -> Tensor:
        """Hidden states (B, D) after the prompts."""
        ...

    def append(self, tokens: Sequence[Sequence[int]], levels: Sequence[int]) -> Tensor:
        """Hidden states (R, D) after the last new token of each text; any for texts without one.

        levels: how many tokens of each text, of those that ran before, stand in front of the new ones; later ones are dropped.
        """
        ...


class TextSession:
    """K texts after each of B prompts. It equals running the model on prompt + text of every one, to 1e-5.

    `Transformer.start_texts` makes it, and prefills the prompts. A call runs only what is new of each text, from the first
    token that differs from what ran before: texts may grow by different numbers of tokens, and change their last ones.
    `max_tokens` is the largest number of tokens of a text.
    """

    def __init__(self, runner: TextRunner, num_prompts: int, num_texts: int, vocab_size: int, max_tokens: int) -> None:
        self._runner, self._num_texts, self._vocab_size, self._max_tokens = runner, num_texts, vocab_size, max_tokens
        self._texts: list[list[int]] = [[] for _ in range(num_prompts * num_texts)]  # whose keys and values are held

    def __repr__(self) -> str:
        return f"TextSession({counted(len(self._texts), 'text')}, {counted(sum(map(len, self._texts)), 'token')})"

    @torch.inference_mode()
    def hidden_after(self, texts: Sequence[Sequence[int] | None]) -> Tensor:
        """Return the hidden states (R, D) after each text, the K texts of a request one after another.

        This costs one pass over the tokens that are new.

        Args:
            texts: The tokens of each text; None for a text that waits, whose hidden state is arbitrary.

        Raises:
            ArgumentError: If there is another number of texts, a token that the model does not have, or too many tokens.
        """
        if len(texts) != len(self._texts):
            raise ArgumentError(
                f"there are {counted(len(texts), 'text')}: expected {len(self._texts)}, as many as at the start"
            )
        pairs = list(zip(self._texts, texts, strict=True))
        levels = [len(held) if text is None else _first_new(held, text) for held, text in pairs]
        tokens = [[] if text is None else list(text[level:]) for text, level in zip(texts, levels, strict=True)]
        for new, level in zip(tokens, levels, strict=True):
            if (length := level + len(new)) > self._max_tokens:
                raise ArgumentError(
                    f"a text has {counted(length, 'token')}: the session began with max_tokens={self._max_tokens:,}"
                )
            if new and not 0 <= min(new) <= max(new) < self._vocab_size:
                raise ArgumentError(f"the model has the tokens 0 to {self._vocab_size - 1:,}, got one outside")
        roots_RD = self._runner.root_logits().repeat_interleave(self._num_texts, 0)
        if not any(tokens):
            return roots_RD
        hidden_RD = self._runner.append(tokens, levels)
        for number, (text, new) in enumerate(zip(texts, tokens, strict=True)):
            if new:
                self._texts[number] = list(text or ())
            elif text is not None:  # nothing but the prompt
                hidden_RD[number] = roots_RD[number]
        return hidden_RD


def _first_new(held: list[int], text: Sequence[int]) -> int:
    """Return the first token of a text that has to run: one at least, because only its hidden state is asked for."""
    if len(text) > len(held) and list(text[: len(held)]) == held:
        return len(held)
    same = next((n for n, (old, new) in enumerate(zip(held, text, strict=False)) if old != new), len(text))
    return min(same, max(0, len(text) - 1))
