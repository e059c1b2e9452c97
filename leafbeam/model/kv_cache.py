"""Keys and values of a search: the prompt's once per request, the codes' once per beam, and attention over both.

Reading the prompt's per beam would move K times as much memory (xGR, section 5, splits them for the same reason).

Shapes: B requests, T tokens of a prompt or new codes of a beam, K beams, S codes of a beam so far, H query heads, G key heads,
R query heads per key head (H = G x R), E values of a head.
"""

import torch
from torch import Tensor

from leafbeam.model.config import ModelConfig
from leafbeam.model.qwen3 import causal
from leafbeam.ops.attention.reference import causal_suffix_attention, merge, prefix_attention, suffix_attention


def token_bytes(config: ModelConfig, itemsize: int = 4) -> int:
    """Bytes of the keys and values of one token, or one code of one beam, in all layers."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize


def search_bytes(
    config: ModelConfig, *, prompt_tokens: int, beams: int, rounds: int, inflight: int = 1, itemsize: int = 4
) -> int:
    """Bytes of keys and values of so many requests at once: the prompt one time each, and beams x rounds codes.

    rounds: of codes that are run through the model, one fewer than a SID has levels, for nothing follows the last. A whole
    process holds the weights and activations too; those do not depend on the beams (see `Workspace`).

    >>> search_bytes(ModelConfig(vocab_size=779), prompt_tokens=1000, beams=512, rounds=3) / 2**20
    4.953125
    """
    return inflight * (prompt_tokens + beams * rounds) * token_bytes(config, itemsize)


class PromptCache:
    """Keys and values of the prompts, per layer: written by the prefill, then only read.

    lengths_B: tokens of each prompt that count; the padding behind them is never seen.
    """

    def __init__(self, lengths_B: Tensor, num_tokens: int) -> None:
        self.keys: list[Tensor] = []  # per layer, (B, G, E, T): ready to be multiplied from the left
        self.values: list[Tensor] = []  # per layer, (B, G, T, E)
        self.lengths_B = lengths_B if bool((lengths_B < num_tokens).any()) else None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; no number of beams enters."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def attend(self, layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        """Causal attention of the prefill, which keeps what it sees."""
        self.keys.append(key_BTGE.permute(0, 2, 3, 1).contiguous())
        self.values.append(value_BTGE.transpose(1, 2).contiguous())
        return causal(layer, query_BTHE, key_BTGE, value_BTGE)


class BeamCache:
    """Keys and values of the codes that each beam has taken, per layer; it follows the beams from round to round.

    Think of it as [B x K, S] slots that `follow` points at new parents; the rows move while `attend` adds the next slot,
    once per layer, which touches a few hundred bytes a beam.
    """

    def __init__(self, prompt: PromptCache) -> None:
        self.prompt = prompt
        self.keys: list[Tensor | None] = [None] * len(prompt.keys)  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * len(prompt.keys)
        self._parents_BK: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

    def follow(self, parents_BK: Tensor) -> None:
        """From the next `attend` on, beam k is the child of beam parents_BK[:, k]; K may change."""
        self._parents_BK = parents_BK

    def attend(self, layer: int, query_BKHE: Tensor, key_BKGE: Tensor, value_BKGE: Tensor) -> Tensor:
        """Every beam sees its prompt, its own codes and the one it takes now; equal to one softmax over all of them."""
        self.keys[layer] = keys_BKSGE = self._extended(self.keys[layer], key_BKGE)
        self.values[layer] = values_BKSGE = self._extended(self.values[layer], value_BKGE)
        return merge(
            *prefix_attention(query_BKHE, self.prompt.keys[layer], self.prompt.values[layer], self.prompt.lengths_B),
            *suffix_attention(query_BKHE, keys_BKSGE, values_BKSGE),
        )

    def attend_suffixes(self, layer: int, query_BNHE: Tensor, key_BNGE: Tensor, value_BNGE: Tensor) -> Tensor:
        """As `attend`, for T codes of every beam at once (N = K x T, a beam's codes side by side): each sees those before it.

        The new slots are not kept: nothing follows a suffix.
        """
        assert self._parents_BK is not None, "follow() comes before attend_suffixes()"
        beams = self._parents_BK.shape[1]
        query_BKTHE, key_BKTGE, value_BKTGE = (one.unflatten(1, (beams, -1)) for one in (query_BNHE, key_BNGE, value_BNGE))
        keys_BKSGE, values_BKSGE = key_BKTGE, value_BKTGE
        before = self.keys[layer], self.values[layer]
        if before[0] is not None and before[1] is not None:
            keys_BKSGE = torch.cat((self._followed(before[0]), key_BKTGE), 2)
            values_BKSGE = torch.cat((self._followed(before[1]), value_BKTGE), 2)
        values, lse = causal_suffix_attention(query_BKTHE, keys_BKSGE, values_BKSGE)
        return merge(
            *prefix_attention(query_BNHE, self.prompt.keys[layer], self.prompt.values[layer], self.prompt.lengths_B),
            values.flatten(1, 2),
            lse.flatten(1, 2),
        )

    def _extended(self, slots_BKSGE: Tensor | None, new_BKGE: Tensor) -> Tensor:
        if slots_BKSGE is None:
            return new_BKGE[:, :, None]
        return torch.cat((self._followed(slots_BKSGE), new_BKGE[:, :, None]), 2)

    def _followed(self, slots_BKSGE: Tensor) -> Tensor:
        assert self._parents_BK is not None, "follow() comes before the second attend()"
        return followed(slots_BKSGE, self._parents_BK)


def followed(slots_BKSGE: Tensor, parents_BK: Tensor) -> Tensor:
    """The slots of the parents, in the order of their children, whose number may differ."""
    requests, beams = slots_BKSGE.shape[:2]
    first_row_B = torch.arange(requests, device=slots_BKSGE.device) * beams
    rows = (parents_BK + first_row_B[:, None]).flatten()
    return slots_BKSGE.flatten(0, 1).index_select(0, rows).unflatten(0, parents_BK.shape)
