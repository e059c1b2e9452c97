"""Histories of one vector an item, for a model that writes the codes of the next item by depth.

    position 0       the sum of the vectors of the tokens before the history
    position i       the sum of the vectors of item i's codes
    hidden state i   stands before the codes of item i + 1, which the decoder reads and writes after it

Sources: Lee et al., 2022 (RQ-Transformer); MARIUS (arXiv 2508.14910).

Shapes: B requests, T tokens of a prompt, N positions, L levels, P predicted items, D hidden.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.errors import ArgumentError, counted
from leafbeam.model.decoder import Attend, Decoder, Dropout, Stack
from leafbeam.model.vocabulary import AnyVocabulary


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemPositions:
    """The positions of a prompt, each of num_levels tokens; those before the history are padded on their left.

    Args:
        num_before: The number of tokens before the history.
        num_levels: The number of tokens of an item.
    """

    num_before: int
    num_levels: int

    @classmethod
    def of(cls, vocabulary: AnyVocabulary) -> "ItemPositions":
        """Return the positions of a vocabulary's prompts; ArgumentError if they are not items alone after the first tokens."""
        tokens = vocabulary.prompt_tokens
        if tokens.between or tokens.after or vocabulary.item_length != vocabulary.num_levels:
            raise ArgumentError("history_layers reads prompts of whole items: leave out what stands between and after them")
        return cls(num_before=vocabulary.prompt_length(0), num_levels=vocabulary.num_levels)

    @property
    def padding(self) -> int:
        """Return the number of empty places before a prompt's first token."""
        return -self.num_before % self.num_levels

    def count(self, lengths_B: Tensor) -> Tensor:
        """Return the number of positions of prompts."""
        return (lengths_B + self.padding + self.num_levels - 1) // self.num_levels

    def check(self, lengths_B: Tensor) -> None:
        """Raise ArgumentError if a prompt does not end with a whole item (looked at on a CPU only)."""
        if lengths_B.device.type == "cpu" and bool(((lengths_B - self.num_before) % self.num_levels).any()):
            raise ArgumentError(
                f"each prompt must have {counted(self.num_before, 'token')} and then whole items of {self.num_levels}: make "
                "prompts with vocabulary.prompts"
            )

    def grouped(self, parts_BT: Tensor) -> Tensor:
        """Return tokens (B, T) or their vectors (B, T, D) by position, (B, N, L) or (B, N, L, D), with zeros in empty places.

        There is one position more than complete ones.
        """
        num_tokens = self.padding + parts_BT.shape[1]
        right = self.num_levels - num_tokens % self.num_levels
        around = (*[0] * (2 * parts_BT.ndim - 4), self.padding, right)
        return F.pad(parts_BT, around).unflatten(1, (-1, self.num_levels))

    def run(self, history: Stack, decoder: Decoder, vectors_BTD: Tensor, attend: Attend, dropout: Dropout) -> Tensor:
        """Return the hidden states (B, T, D) after each token from which the next one is predicted; zeros before these."""
        vectors_BNLD = self.grouped(vectors_BTD)
        (batch, count, levels, _), device = vectors_BNLD.shape, vectors_BTD.device
        read_BND = history(vectors_BNLD[:, :-1].sum(2), torch.arange(count - 1, device=device), attend, dropout)
        first = (self.num_before + self.padding) // levels - 1
        inputs_BPLD = torch.cat((read_BND[:, first:, None], vectors_BNLD[:, first + 1 :, :-1]), 2)
        hidden = decoder(inputs_BPLD.flatten(0, 1), torch.arange(levels, device=device), attend, dropout)
        predicted_BTD = hidden.unflatten(0, (batch, -1)).flatten(1, 2)[:, : vectors_BTD.shape[1] - self.num_before + 1]
        return F.pad(predicted_BTD, (0, 0, self.num_before - 1, 0))
