"""Keys and values of a search: the prompt's once per request, those of codes where they were written, those of texts.

Reading the prompt's once for all beams saves a factor of K in memory traffic (xGR, section 5).

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, S codes of a beam so far, H query heads,
G key heads, E values of a head.
"""

import torch
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.ops.attention.reference import extend_ancestors, prefix_attention

_FEW_CODES = 8  # of a beam: slots for so many are allocated at once


def token_bytes(config: ModelConfig, itemsize: int = 4) -> int:
    """Return the bytes of the keys and values of one token, or one code of one beam, in all layers."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize


def search_bytes(
    config: ModelConfig, *, prompt_tokens: int, beams: int, rounds: int, inflight: int = 1, itemsize: int = 4
) -> int:
    """Return the bytes of keys and values of `inflight` concurrent requests: each prompt once, plus beams x rounds codes.

    rounds: codes of a beam that run through the model, one fewer than a SID has levels. Weights and activations come on top.

    >>> search_bytes(ModelConfig(vocab_size=779), prompt_tokens=1000, beams=512, rounds=3) / 2**20
    4.953125
    """
    return inflight * (prompt_tokens + beams * rounds) * token_bytes(config, itemsize)


class PromptCache:
    """Keys and values of the prompts, per layer: written by the prefill, then read-only. lengths_B: None: all tokens count."""

    def __init__(self, lengths_B: Tensor | None) -> None:
        self.keys: list[Tensor] = []  # per layer, (B, G, E, T): multiplied from the left without a copy
        self.values: list[Tensor] = []  # per layer, (B, G, T, E)
        self.lengths_B = lengths_B

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys and values; independent of the number of beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def append(self, key_BTGE: Tensor, value_BTGE: Tensor) -> None:
        self.keys.append(key_BTGE.permute(0, 2, 3, 1).contiguous())
        self.values.append(value_BTGE.transpose(1, 2).contiguous())

    def attend(
        self, layer: int, query_BNHE: Tensor, *, first_BN: Tensor | None = None, cap: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Attention of all beams over their prompt: see `prefix_attention`."""
        return prefix_attention(query_BNHE, self.keys[layer], self.values[layer], self.lengths_B, first_BN, cap)


class CodeCache:
    """Keys and values of the beams' codes, per layer, in slots that stay where they were written.

    A table of ancestors gives the slots of each beam's codes, so beams that change their parents move nothing.

    Args:
        num_layers: The number of layers.
        max_codes: The most codes that a beam can have.
        beams: The most beams that are expected, for which slots are allocated once. A search with more allocates again.
    """

    def __init__(self, num_layers: int, max_codes: int, beams: int = 0) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * num_layers
        self.shape = (1, 1)  # beams and new codes of each
        self._max_codes, self._beams = max_codes, beams
        self._ancestors_BKS: Tensor | None = None  # of the beams that `extend` adds
        self._tables: list[Tensor] = []  # of all beams with one code, with two codes, ...
        self._begin = 0  # of the slots of the beams that `extend` adds

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys and values of all beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

    @property
    def is_empty(self) -> bool:
        """Return whether no codes are kept."""
        return not self._tables

    @property
    def ancestors_BKS(self) -> Tensor:
        """Return the slot of each code of each beam, int64: code s of beam k is in slot [ancestors[k, s], s]."""
        assert self._ancestors_BKS is not None, "follow() comes before extend()"
        return self._ancestors_BKS

    def follow(self, parents_BK: Tensor, num_codes: int, num_before: int) -> None:
        """Let the next `extend` add num_codes to each beam k, a child of beam parents_BK[:, k] of those with num_before codes.

        Beams of as many codes that came before keep their numbers; the new ones follow them.
        """
        tables = self._tables
        self.shape = parents_BK.shape[1], num_codes
        self._begin = tables[num_before].shape[1] if num_before < len(tables) else 0
        before_BKS = tables[num_before - 1] if num_before else None
        self._ancestors_BKS = after_BKS = extend_ancestors(before_BKS, parents_BK, num_codes, first=self._begin)
        if num_before < len(tables):
            tables[num_before] = torch.cat((tables[num_before], after_BKS), 1)
        else:
            tables += [after_BKS[:, :, : num_before + code + 1] for code in range(num_codes)]

    def extend(self, layer: int, key_BNGE: Tensor, value_BNGE: Tensor) -> tuple[Tensor, Tensor]:
        """Write C codes of every beam, which are adjacent, and return keys and values (B, at least K, S, G, E) of all slots."""
        return self._written(self.keys, layer, key_BNGE), self._written(self.values, layer, value_BNGE)

    def _written(self, layers: list[Tensor | None], layer: int, new_BNGE: Tensor) -> Tensor:
        (beams, num_codes), codes = self.shape, self.ancestors_BKS.shape[2]
        end, slots_BKSGE = self._begin + beams, layers[layer]
        if slots_BKSGE is None or slots_BKSGE.shape[1] < end or slots_BKSGE.shape[2] < codes:
            layers[layer] = slots_BKSGE = self._larger(slots_BKSGE, new_BNGE, end, codes)
        slots_BKSGE[:, self._begin : end, codes - num_codes : codes] = new_BNGE.unflatten(1, self.shape)
        return slots_BKSGE[:, :, :codes]

    def _larger(self, slots_BKSGE: Tensor | None, like_BNGE: Tensor, beams: int, codes: int) -> Tensor:
        """Return slots for so many beams and codes, with the content of the present ones."""
        held = (0, 0) if slots_BKSGE is None else slots_BKSGE.shape[1:3]
        beams, codes = max(beams, held[0], self._beams), max(codes, held[1])
        codes = min(self._max_codes, max(_FEW_CODES, 1 << (codes - 1).bit_length()))
        larger_BKSGE = like_BNGE.new_empty(len(like_BNGE), beams, codes, *like_BNGE.shape[2:])
        if slots_BKSGE is not None:
            larger_BKSGE[:, : held[0], : held[1]] = slots_BKSGE
        return larger_BKSGE


class TextCache:
    """Keys and values of texts that grow at different paces, per layer: token s of a text is in slot s."""

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * num_layers

    def place(self, slot_BKC: Tensor, num_slots: int) -> None:
        """Make the next `extend` write C tokens of each text to these slots, all below num_slots."""
        self.slot_BKC, self._num_slots = slot_BKC, num_slots

    def extend(self, layer: int, key_BNGE: Tensor, value_BNGE: Tensor) -> tuple[Tensor, Tensor]:
        """Write C tokens of every text (a text's are adjacent) -> keys and values (B, K, S, G, E) of all slots."""
        self.keys[layer] = keys = self._written(self.keys[layer], key_BNGE)
        self.values[layer] = values = self._written(self.values[layer], value_BNGE)
        return keys, values

    def _written(self, slots_BKSGE: Tensor | None, new_BNGE: Tensor) -> Tensor:
        new_BKCGE = new_BNGE.unflatten(1, self.slot_BKC.shape[1:])
        missing = self._num_slots - (0 if slots_BKSGE is None else slots_BKSGE.shape[2])
        if missing > 0:
            empty = new_BKCGE.new_zeros(*new_BKCGE.shape[:2], missing, *new_BKCGE.shape[3:])
            slots_BKSGE = empty if slots_BKSGE is None else torch.cat((slots_BKSGE, empty), 2)
        assert slots_BKSGE is not None
        return slots_BKSGE.scatter_(2, self.slot_BKC[..., None, None].expand_as(new_BKCGE), new_BKCGE)
