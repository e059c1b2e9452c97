"""The body of T5, with Hugging Face's parameter names: an encoder over the prompt, a decoder over the codes.

How a decoder layer sees other codes and the prompt is left to an `AttendCodes` and an `AttendPrompt`, so that training and the
rounds of a search run the same layers.

Shapes: B requests, T tokens of a prompt, S codes (or K beams in their place), D hidden, H heads, E values of a head.
"""

from collections.abc import Callable
from math import log
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.experts import Experts, activation
from leafbeam.model.qwen3 import Dropout, RMSNorm
from leafbeam.model.t5_config import EncoderDecoderConfig, FeedForwardKind

__all__ = ["AttendCodes", "AttendPrompt", "RelativeBias", "T5Decoder", "T5Encoder"]

AttendPrompt = Callable[[int, Tensor], Tensor]  # (layer, query_BSHE) -> what the queries see in the prompt, of their shape


class AttendCodes(Protocol):
    """What the codes of one layer see of each other: from queries, keys and values (B, S, H, E) to an answer of that shape."""

    def __call__(self, layer: int, query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor) -> Tensor: ...


class RelativeBias(nn.Module):
    """T5's positions: a learned number for each head and each distance between query and key, added to the score.

    Near distances have a bucket each, far ones share buckets that widen logarithmically up to max_distance. Both directions
    split the buckets in the encoder; in the decoder nothing lies ahead. Only the first layer holds one; the others use it too.
    """

    def __init__(self, config: EncoderDecoderConfig, *, both_ways: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_attention_num_buckets, config.num_heads, device="meta"))
        self.max_distance, self.both_ways = config.relative_attention_max_distance, both_ways

    def forward(self, query_Q: Tensor, key_K: Tensor) -> Tensor:
        """(H, Q, K) for positions of queries and keys."""
        return self.weight[self._buckets(key_K - query_Q[:, None])].permute(2, 0, 1)

    def _buckets(self, ahead_QK: Tensor) -> Tensor:
        count = self.weight.shape[0]
        if self.both_ways:
            count //= 2
            offset, distance = (ahead_QK > 0).long() * count, ahead_QK.abs()
        else:
            offset, distance = torch.zeros_like(ahead_QK), (-ahead_QK).clamp(min=0)
        near = count // 2
        far = torch.log(distance.float().clamp(min=near) / near) / log(self.max_distance / near) * (count - near)
        return offset + torch.where(distance < near, distance, (near + far.long()).clamp(max=count - 1))


class T5Attention(nn.Module):
    """Projections to heads and back; scores are not divided by anything (the initial weights see to that)."""

    def __init__(self, config: EncoderDecoderConfig, bias: RelativeBias | None = None) -> None:
        super().__init__()
        self.head_dim = config.d_kv
        self.q = _linear(config.d_model, config.inner_size)
        self.k = _linear(config.d_model, config.inner_size)
        self.v = _linear(config.d_model, config.inner_size)
        self.o = _linear(config.inner_size, config.d_model)
        self.relative_attention_bias = bias

    def queries(self, hidden_BSD: Tensor) -> Tensor:
        return self.q(hidden_BSD).unflatten(-1, (-1, self.head_dim))

    def keys_values(self, hidden_BSD: Tensor) -> tuple[Tensor, Tensor]:
        heads = (-1, self.head_dim)
        return self.k(hidden_BSD).unflatten(-1, heads), self.v(hidden_BSD).unflatten(-1, heads)

    def answer(self, values_BSHE: Tensor) -> Tensor:
        return self.o(values_BSHE.flatten(-2))


class T5FeedForward(nn.Module):
    """One hidden layer; gated, the product of two."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.kind: FeedForwardKind = config.feed_forward_proj
        if config.is_gated:
            self.wi_0, self.wi_1 = _linear(config.d_model, config.d_ff), _linear(config.d_model, config.d_ff)
        else:
            self.wi = _linear(config.d_model, config.d_ff)
        self.wo = _linear(config.d_ff, config.d_model)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        if self.kind == "relu":
            return self.wo(activation(self.kind, self.wi(hidden_BSD)))
        return self.wo(activation(self.kind, self.wi_0(hidden_BSD)) * self.wi_1(hidden_BSD))


class _SelfAttention(nn.Module):
    def __init__(self, config: EncoderDecoderConfig, bias: RelativeBias | None) -> None:
        super().__init__()
        self.SelfAttention = T5Attention(config, bias)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)


class _CrossAttention(nn.Module):
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.EncDecAttention = T5Attention(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)


class _FeedForward(nn.Module):
    def __init__(self, config: EncoderDecoderConfig, *, experts: bool) -> None:
        super().__init__()
        if experts:
            self.experts = Experts(config)
        else:
            self.DenseReluDense = T5FeedForward(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.has_experts = experts

    def forward(self, hidden_BSD: Tensor, balance: list[Tensor] | None = None) -> Tensor:
        normed = self.layer_norm(hidden_BSD)
        return self.experts(normed, balance) if self.has_experts else self.DenseReluDense(normed)


class _Block(nn.Module):
    """The sublayers of one layer, numbered as in T5's files: self-attention, in the decoder cross-attention, feed-forward."""

    def __init__(self, *sublayers: nn.Module) -> None:
        super().__init__()
        self.layer = nn.ModuleList(sublayers)


class T5Encoder(nn.Module):
    """Every token of the prompt sees every other."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            _Block(
                _SelfAttention(config, RelativeBias(config, both_ways=True) if number == 0 else None),
                _FeedForward(config, experts=False),
            )
            for number in range(config.num_layers)
        )
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor | None, dropout: Dropout) -> Tensor:
        """lengths_B: tokens of each prompt that count, the padding behind them is seen by nobody; None: all count."""
        places_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
        seen = cast(_SelfAttention, cast(_Block, self.block[0]).layer[0]).SelfAttention.relative_attention_bias
        assert seen is not None
        bias = seen(places_T, places_T)[None].to(hidden_BTD.dtype)
        if lengths_B is not None:
            bias = bias.masked_fill((places_T >= lengths_B[:, None])[:, None, None], -torch.inf)
        hidden_BTD = dropout(hidden_BTD)
        for block in self.block:
            attention, feed_forward = (sub for sub in cast(_Block, block).layer)
            assert isinstance(attention, _SelfAttention)
            heads, normed = attention.SelfAttention, attention.layer_norm(hidden_BTD)
            query, key, value = (x.transpose(1, 2) for x in (heads.queries(normed), *heads.keys_values(normed)))
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0).transpose(1, 2)
            hidden_BTD = hidden_BTD + dropout(heads.answer(found))
            hidden_BTD = hidden_BTD + dropout(feed_forward(hidden_BTD))
        return dropout(self.final_layer_norm(hidden_BTD))


class T5Decoder(nn.Module):
    """Every code sees those before it and the whole prompt."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            _Block(
                _SelfAttention(config, RelativeBias(config, both_ways=False) if number == 0 else None),
                _CrossAttention(config),
                _FeedForward(config, experts=config.num_experts > 0),
            )
            for number in range(config.num_decoder_layers)
        )
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    @property
    def bias(self) -> RelativeBias:
        """The positions, the first layer's."""
        bias = self._parts(0)[0].SelfAttention.relative_attention_bias
        assert bias is not None
        return bias

    def prompt_keys_values(self, encoded_BTD: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each layer, the keys and values (B, T, H, E) of the cross-attention: all that a search keeps of the prompt."""
        return [self._parts(layer)[1].EncDecAttention.keys_values(encoded_BTD) for layer in range(len(self.block))]

    def forward(
        self,
        hidden_BSD: Tensor,
        codes: AttendCodes,
        prompt: AttendPrompt,
        dropout: Dropout = lambda x: x,
        balance: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, S, D) after the final norm, scaled as the head expects them."""
        hidden_BSD = dropout(hidden_BSD)
        for layer in range(len(self.block)):
            itself, crossed, feed_forward = self._parts(layer)
            heads, normed = itself.SelfAttention, itself.layer_norm(hidden_BSD)
            found = codes(layer, heads.queries(normed), *heads.keys_values(normed))
            hidden_BSD = hidden_BSD + dropout(heads.answer(found))
            heads = crossed.EncDecAttention
            found = prompt(layer, heads.queries(crossed.layer_norm(hidden_BSD)))
            hidden_BSD = hidden_BSD + dropout(heads.answer(found))
            hidden_BSD = hidden_BSD + dropout(feed_forward(hidden_BSD, balance))
        return dropout(self.final_layer_norm(hidden_BSD)) * self.scale

    def _parts(self, layer: int) -> tuple[_SelfAttention, _CrossAttention, _FeedForward]:
        itself, crossed, feed_forward = cast(_Block, self.block[layer]).layer
        return cast(_SelfAttention, itself), cast(_CrossAttention, crossed), cast(_FeedForward, feed_forward)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device="meta")
