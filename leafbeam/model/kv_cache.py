"""Keys and values of a search: the prompt's once per request, the codes' once per beam.

Reading the prompt's once for all beams saves a factor of K in memory traffic (xGR, section 5).

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, S codes of a beam so far, H query heads,
G key heads, E values of a head.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.model.qwen3 import causal
from leafbeam.ops.attention.reference import prefix_attention
from leafbeam.ops.backend import is_installed


def token_bytes(config: ModelConfig, itemsize: int = 4) -> int:
    """Bytes of the keys and values of one token, or one code of one beam, in all layers."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize


def search_bytes(
    config: ModelConfig, *, prompt_tokens: int, beams: int, rounds: int, inflight: int = 1, itemsize: int = 4
) -> int:
    """Bytes of keys and values of `inflight` concurrent requests: each prompt once, plus beams x rounds codes.

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
        """Bytes of keys and values; independent of the number of beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def append(self, key_BTGE: Tensor, value_BTGE: Tensor) -> None:
        self.keys.append(key_BTGE.permute(0, 2, 3, 1).contiguous())
        self.values.append(value_BTGE.transpose(1, 2).contiguous())

    def prefill(self, layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        """Causal attention among the prompt's tokens; adds the layer."""
        self.append(key_BTGE, value_BTGE)
        return causal(layer, query_BTHE, key_BTGE, value_BTGE)

    def attend(self, layer: int, query_BNHE: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of all beams over their prompt: see `prefix_attention`."""
        return prefix_attention(query_BNHE, self.keys[layer], self.values[layer], self.lengths_B)


def new_beam_cache(num_layers: int, device: torch.device) -> "BeamCache":
    """On a GPU with Triton slots move within one buffer; elsewhere they are copied into another."""
    if device.type == "cuda" and is_installed("triton"):
        return InPlaceBeamCache(num_layers, import_module("leafbeam.ops.attention.triton").follow_in_place)
    return BeamCache(num_layers)


class BeamCache:
    """Keys and values of the beams' codes, per layer; `extend` copies the parents' slots and adds the new ones.

    `to_slots` and `to_beams` bring what beams have (B, K, ...) into the order of their slots, and back: here the same.
    """

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * num_layers
        self.shape = (1, 1)  # beams and new codes of each
        self._parents_BK: Tensor | None = None
        self._keep = True

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

    def follow(self, parents_BK: Tensor, num_codes: int, *, keep: bool = True) -> None:
        """The next `extend` adds num_codes to each beam k, the child of beam parents_BK[:, k]; K may change.

        keep: False leaves the parents' slots as they are, for another `follow` of the same parents.
        """
        self._parents_BK, self.shape, self._keep = parents_BK, (parents_BK.shape[1], num_codes), keep

    def to_slots(self, of_beams_BK: Tensor) -> Tensor:
        return of_beams_BK

    def to_beams(self, of_slots_BK: Tensor) -> Tensor:
        return of_slots_BK

    def extend(self, layer: int, key_BNGE: Tensor, value_BNGE: Tensor) -> tuple[Tensor, Tensor]:
        """Add C codes of every beam (adjacent; beams in the order of slots) -> keys and values (B, K, S, G, E) of all codes."""
        keys, values = self._extended(self.keys[layer], key_BNGE), self._extended(self.values[layer], value_BNGE)
        if self._keep:
            self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def _extended(self, slots_BKSGE: Tensor | None, new_BNGE: Tensor) -> Tensor:
        new_BKCGE, parents_BK = new_BNGE.unflatten(1, self.shape), self._parents_BK
        if slots_BKSGE is None:
            return new_BKCGE
        assert parents_BK is not None, "follow() comes before the second extend()"
        requests, before = slots_BKSGE.shape[:2]
        rows_BK = parents_BK + torch.arange(requests, device=parents_BK.device)[:, None] * before
        parents_BKSGE = slots_BKSGE.flatten(0, 1).index_select(0, rows_BK.flatten()).unflatten(0, parents_BK.shape)
        return torch.cat((parents_BKSGE, new_BKCGE), 2)


class InPlaceBeamCache(BeamCache):
    """The same in one buffer a layer, without a second one: slots stand in an order in which parents ascend (xGR, section 5.1).

    move(slots_BKX, parents_BK): `follow_in_place` of an attention backend. A buffer that is full of codes is doubled.
    """

    def __init__(self, num_layers: int, move: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__(num_layers)
        self._move = move
        self._before, self._codes = 0, 1  # of a beam: in the buffers, and with those that `extend` adds
        self._beam_BK: Tensor | None = None  # whose slot each is, and the slot of each beam; None: the same
        self._slot_BK: Tensor | None = None

    def follow(self, parents_BK: Tensor, num_codes: int, *, keep: bool = True) -> None:
        assert keep, "slots move in place: the parents' are gone"
        self._before = 0 if self.keys[0] is None else self._codes
        self._codes, self.shape = self._before + num_codes, (parents_BK.shape[1], num_codes)
        slots_BK = parents_BK if self._slot_BK is None else self._slot_BK.gather(1, parents_BK)
        self._parents_BK, self._beam_BK = slots_BK.sort(dim=1, stable=True)
        self._slot_BK = self._beam_BK.argsort(dim=1)

    def to_slots(self, of_beams_BK: Tensor) -> Tensor:
        return of_beams_BK if self._beam_BK is None else _taken(of_beams_BK, self._beam_BK)

    def to_beams(self, of_slots_BK: Tensor) -> Tensor:
        return of_slots_BK if self._slot_BK is None else _taken(of_slots_BK, self._slot_BK)

    def extend(self, layer: int, key_BNGE: Tensor, value_BNGE: Tensor) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []
        for layers, new_BNGE in ((self.keys, key_BNGE), (self.values, value_BNGE)):
            layers[layer] = buffer_BKSGE = self._with_space(layers[layer], new_BNGE)
            if self._before and self._parents_BK is not None:
                self._move(buffer_BKSGE[:, :, : self._before], self._parents_BK)
            codes_BKSGE = buffer_BKSGE[:, : self.shape[0], : self._codes]
            codes_BKSGE[:, :, self._before :] = new_BNGE.unflatten(1, self.shape)
            found.append(codes_BKSGE)
        return found[0], found[1]

    def _with_space(self, buffer_BKSGE: Tensor | None, new_BNGE: Tensor) -> Tensor:
        """The buffer, or a larger one with the same codes."""
        beams, codes = (0, 0) if buffer_BKSGE is None else buffer_BKSGE.shape[1:3]
        if buffer_BKSGE is not None and self.shape[0] <= beams and self._codes <= codes:
            return buffer_BKSGE
        beams, codes = max(beams, self.shape[0]), max(codes, 1 << (self._codes - 1).bit_length())
        larger = new_BNGE.new_empty(len(new_BNGE), beams, codes, *new_BNGE.shape[2:])
        if buffer_BKSGE is not None:
            larger[:, : buffer_BKSGE.shape[1], : self._before] = buffer_BKSGE[:, :, : self._before]
        return larger


def _taken(values_BK: Tensor, at_BK: Tensor) -> Tensor:
    """values[b, at[b, k]] along the second axis."""
    return values_BK.gather(1, at_BK.view(*at_BK.shape, *[1] * (values_BK.ndim - 2)).expand(-1, -1, *values_BK.shape[2:]))


def padded_prefixes(tokens_RC: Tensor, counts_B: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return rows of counts_B[b] prefixes for each request b as (B, K, C), padded with copies, and the index of each row."""
    width = int(counts_B.max(initial=1))
    row_R = np.arange(len(tokens_RC)) - np.repeat(np.cumsum(counts_B) - counts_B, counts_B)
    at_R = torch.from_numpy(np.repeat(np.arange(len(counts_B)), counts_B) * width + row_R).to(tokens_RC.device)
    padded_NC = tokens_RC.new_zeros(len(counts_B) * width, tokens_RC.shape[1])
    return padded_NC.index_copy_(0, at_R, tokens_RC).unflatten(0, (len(counts_B), width)), at_R


class TextCache:
    """Keys and values of texts that grow at different paces, per layer: token s of a text is in slot s."""

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * num_layers

    def place(self, slot_BKC: Tensor, num_slots: int) -> None:
        """The next `extend` writes C tokens of each text to these slots, all below num_slots."""
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
