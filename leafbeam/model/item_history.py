"""Histories of one vector an item, in one stack of layers with the codes of the next item.

    position 0              the sum of the vectors of the tokens before the history
    position i              the sum of the vectors of item i's codes, which sees the items before it
    position i + 1 + level  a code of item i + 1, which sees items 0 to i and the codes before it

The hidden state of item i predicts the first code of item i + 1, that of a code the next code. Training runs the codes of all
items in one pass, behind the items, which do not see them.

Sources: Lee et al., 2022 (RQ-Transformer); MARIUS (arXiv 2508.14910).

Shapes: B requests, T tokens of a prompt, N positions of items, L levels, P predicted items, M = L - 1 codes that are read of
each, R = N + P x M rows, D hidden.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.errors import ArgumentError, counted
from leafbeam.model.decoder import Decoder, Dropout, causal
from leafbeam.model.vocabulary import AnyVocabulary

Lengths = TypeVar("Lengths", Tensor, int)


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
            raise ArgumentError("item_history reads prompts of whole items: leave out what stands between and after them")
        return cls(num_before=vocabulary.prompt_length(0), num_levels=vocabulary.num_levels)

    @property
    def padding(self) -> int:
        """Return the number of empty places before a prompt's first token."""
        return -self.num_before % self.num_levels

    def count(self, lengths_B: Lengths) -> Lengths:
        """Return the number of positions of prompts, or of one."""
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

    def vectors(self, vectors_BTD: Tensor) -> Tensor:
        """Return the vectors (B, N, D) of the complete positions of prompts."""
        return self.grouped(vectors_BTD)[:, :-1].sum(2)

    def run(
        self, body: Decoder, vectors_BTD: Tensor, dropout: Dropout, branches_BPMD: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states (B, T, D) after each token from which the next one is predicted, zeros before these; and
        those after the codes of `branches_BPMD`, (B, P x M, D), which may be of fewer, the last items.

        Branches are the codes of one more item after each history, which nothing else sees (see `Transformer.forward`).
        """
        vectors_BNLD, device = self.grouped(vectors_BTD), vectors_BTD.device
        first = (self.num_before + self.padding) // self.num_levels - 1
        items_BND, codes_BPMD = vectors_BNLD[:, :-1].sum(2), vectors_BNLD[:, first + 1 :, :-1]
        num_items, (num_predicted, num_codes) = items_BND.shape[1], codes_BPMD.shape[1:3]
        groups = [codes_BPMD] if branches_BPMD is None else [codes_BPMD, branches_BPMD]
        # The newest item that a row sees; its level, -1 of an item; and which item it is a code of.
        counts = [codes.shape[1] for codes in groups]  # branches may be those of the last items alone
        newest_P, level_M = torch.arange(first, num_items, device=device), torch.arange(num_codes, device=device)
        newest_X = torch.cat([newest_P[num_predicted - count :] for count in counts]).repeat_interleave(num_codes)
        newest_R = torch.cat((torch.arange(num_items, device=device), newest_X))
        level_R = torch.cat((newest_R.new_full((num_items,), -1), level_M.repeat(sum(counts))))
        groups_X = [newest_R.new_full((count * num_codes,), number) for number, count in enumerate(counts)]
        group_R = torch.cat((newest_R.new_full((num_items,), -1), *groups_X))
        is_same_RR = (newest_R[:, None] == newest_R) & (group_R[:, None] == group_R)
        is_newer_RR = newest_R[:, None] >= newest_R
        visible_RR = torch.where(level_R < 0, is_newer_RR, is_same_RR & (level_R[:, None] >= level_R))
        attend = partial(causal, visible_TT=visible_RR)
        rows_BRD = torch.cat((items_BND, *(codes.flatten(1, 2) for codes in groups)), 1)
        hidden_BRD = body(rows_BRD, newest_R + 1 + level_R, attend, dropout)
        codes_BXD, branches_BXD = hidden_BRD[:, num_items:].tensor_split((num_predicted * num_codes,), 1)
        codes_BPMD = codes_BXD.unflatten(1, (num_predicted, num_codes))
        predicted_BPLD = torch.cat((hidden_BRD[:, first:num_items, None], codes_BPMD), 2)
        predicted_BTD = predicted_BPLD.flatten(1, 2)[:, : vectors_BTD.shape[1] - self.num_before + 1]
        return F.pad(predicted_BTD, (0, 0, self.num_before - 1, 0)), branches_BXD
