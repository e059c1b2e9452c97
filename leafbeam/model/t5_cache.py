"""Keys and values of an encoder-decoder's search: the encoded prompt's once per request, the codes' once per beam.

Shapes: B requests, T tokens of a prompt, K beams, S codes of a beam so far, M new codes of a beam, N those of all beams of a
request, H heads, E values of a head.
"""

import torch
from torch import Tensor

from leafbeam.model.kv_cache import followed
from leafbeam.model.t5 import RelativeBias
from leafbeam.ops.attention.reference import prefix_attention

__all__ = ["CodeCache", "EncodedPrompt", "attend_codes"]


class EncodedPrompt:
    """Keys and values of the cross-attention, per layer: made once by the encoder's output, then only read.

    lengths_B: tokens of each prompt that count; the padding behind them is never seen.
    """

    def __init__(self, keys_values: list[tuple[Tensor, Tensor]], lengths_B: Tensor) -> None:
        self.keys = [key_BTHE.permute(0, 2, 3, 1).contiguous() for key_BTHE, _ in keys_values]  # (B, H, E, T)
        self.values = [value_BTHE.transpose(1, 2).contiguous() for _, value_BTHE in keys_values]  # (B, H, T, E)
        self.lengths_B = lengths_B if bool((lengths_B < self.keys[0].shape[3]).any()) else None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; no number of beams enters."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def attend(self, layer: int, query_BNHE: Tensor) -> Tensor:
        """All queries of a request against keys that are read once."""
        unscaled = query_BNHE * query_BNHE.shape[-1] ** 0.5  # prefix_attention divides by it, T5 does not
        return prefix_attention(unscaled, self.keys[layer], self.values[layer], self.lengths_B)[0]


class CodeCache:
    """Keys and values of the start token and of the codes that each beam has taken, per layer.

    Think of it as [B x K, S] slots: `follow` points every beam at its parent, `attend` brings the parents' slots along and adds
    the new ones.
    """

    def __init__(self, bias: RelativeBias, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers  # per layer, (B, K, S, H, E)
        self.values: list[Tensor | None] = [None] * num_layers
        self._bias = bias
        self._parents_BK: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

    def follow(self, parents_BK: Tensor) -> None:
        """From the next `attend` on, beam k is the child of beam parents_BK[:, k]; K may change."""
        self._parents_BK = parents_BK

    def attend(self, layer: int, query_BNHE: Tensor, key_BNHE: Tensor, value_BNHE: Tensor) -> Tensor:
        """Every beam sees its own codes up to each of the M new ones (N = K x M, a beam's side by side)."""
        beams = 1 if self._parents_BK is None else self._parents_BK.shape[1]
        query, key, value = (x.unflatten(1, (beams, x.shape[1] // max(beams, 1))) for x in (query_BNHE, key_BNHE, value_BNHE))
        self.keys[layer] = keys = self._extended(self.keys[layer], key)
        self.values[layer] = values = self._extended(self.values[layer], value)
        return attend_codes(self._bias, query, keys, values).flatten(1, 2)

    def _extended(self, slots_BKSHE: Tensor | None, new_BKMHE: Tensor) -> Tensor:
        if slots_BKSHE is None or self._parents_BK is None:
            assert slots_BKSHE is None, "follow() comes before the second attend()"
            return new_BKMHE
        return torch.cat((followed(slots_BKSHE, self._parents_BK), new_BKMHE), 2)


def attend_codes(bias: RelativeBias, query_BKMHE: Tensor, key_BKSHE: Tensor, value_BKSHE: Tensor) -> Tensor:
    """Causal attention of a beam's last M codes over its S -> (B, K, M, H, E); the softmax in float32."""
    num_new, num_slots = query_BKMHE.shape[2], key_BKSHE.shape[2]
    slot_S = torch.arange(num_slots, device=query_BKMHE.device)
    query_M = slot_S[num_slots - num_new :]
    bias_HMS = bias(query_M, slot_S).masked_fill(slot_S > query_M[:, None], -torch.inf)
    query, key, value = (x.transpose(2, 3) for x in (query_BKMHE, key_BKSHE, value_BKSHE))
    weights = (torch.matmul(query, key.transpose(3, 4)).float() + bias_HMS).softmax(-1)
    return torch.matmul(weights.to(value.dtype), value).transpose(2, 3)
