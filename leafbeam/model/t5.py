"""The layers of T5 as torch modules, with Hugging Face's parameter names: an encoder over the prompt, a decoder over the codes.

The decoder's self-attention (`Attend`) and cross-attention (`AttendPrompt`) are parameters, so that training and decoding
steps run the same layers.

Shapes: B requests, T tokens of a prompt, S codes (or all new codes of K beams), M new codes of a beam, D hidden, H heads,
E values of a head; in a mixture of experts N tokens, X experts, E experts of a token.
"""

from collections.abc import Callable, Iterator, Sequence
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.config import Activation, EncoderDecoderConfig, FeedForwardKind
from leafbeam.model.decoder import Attend, Dropout, RMSNorm, linear
from leafbeam.model.experts import Experts, activate

AttendPrompt = Callable[[int, Tensor], Tensor]  # (layer, query_BSHE) -> weighted values of the prompt, of the queries' shape


class RelativeBias(nn.Module):
    """T5's relative positions: a learned bias for each head and bucket of distances, added to the attention scores.

    Near distances have a bucket each; far ones share buckets that widen logarithmically up to max_distance. In the encoder
    half of the buckets are for keys after the query. In T5 only the first layer holds the weights, and all layers use them; in
    UMT5 each layer has its own.
    """

    def __init__(self, config: EncoderDecoderConfig, *, bidirectional: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_attention_num_buckets, config.num_heads, device="meta"))
        self.max_distance, self.bidirectional = config.relative_attention_max_distance, bidirectional

    def forward(self, query_Q: Tensor, key_K: Tensor) -> Tensor:
        """Return the bias (H, Q, K) for positions of queries and keys."""
        return self.weight[self._buckets(key_K - query_Q[:, None])].permute(2, 0, 1)

    def _buckets(self, ahead_QK: Tensor) -> Tensor:
        count = self.weight.shape[0]
        if self.bidirectional:
            count //= 2
            offset, distance = (ahead_QK > 0).long() * count, ahead_QK.abs()
        else:
            offset, distance = torch.zeros_like(ahead_QK), (-ahead_QK).clamp(min=0)
        near = count // 2
        far = torch.log(distance.float().clamp(min=near) / near) / log(self.max_distance / near) * (count - near)
        return offset + torch.where(distance < near, distance, (near + far.long()).clamp(max=count - 1))


class T5Attention(nn.Module):
    """Projections to heads and back; attention scores are not scaled (T5 scales the initial weights instead)."""

    def __init__(self, config: EncoderDecoderConfig, bias: RelativeBias | None = None) -> None:
        super().__init__()
        self.head_dim = config.d_kv
        self.q = linear(config.d_model, config.inner_size)
        self.k = linear(config.d_model, config.inner_size)
        self.v = linear(config.d_model, config.inner_size)
        self.o = linear(config.inner_size, config.d_model)
        self.relative_attention_bias = bias

    def queries(self, hidden_BSD: Tensor) -> Tensor:
        return self.q(hidden_BSD).unflatten(-1, (-1, self.head_dim))

    def keys_values(self, hidden_BSD: Tensor) -> tuple[Tensor, Tensor]:
        heads = (-1, self.head_dim)
        return self.k(hidden_BSD).unflatten(-1, heads), self.v(hidden_BSD).unflatten(-1, heads)

    def output(self, values_BSHE: Tensor) -> Tensor:
        return self.o(values_BSHE.flatten(-2))


# "gelu" is the tanh form, as in T5 v1.1.
_ACTIVATIONS: dict[FeedForwardKind, Activation] = {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}


class T5FeedForward(nn.Module):
    """Feed-forward network with one hidden layer, gated or not."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.activation: Activation = _ACTIVATIONS[config.feed_forward_proj]
        self.is_gated = config.is_gated
        if config.is_gated:
            self.wi_0, self.wi_1 = linear(config.d_model, config.d_ff), linear(config.d_model, config.d_ff)
        else:
            self.wi = linear(config.d_model, config.d_ff)
        self.wo = linear(config.d_ff, config.d_model)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        if not self.is_gated:
            return self.wo(activate(self.activation, self.wi(hidden_BSD)))
        return self.wo(activate(self.activation, self.wi_0(hidden_BSD)) * self.wi_1(hidden_BSD))


def _feed_forward(config: EncoderDecoderConfig) -> nn.Module:
    """Return T5's feed-forward network, or that of GRID, whose modules have the numbers that they have there."""
    if not config.mlp_layers:
        return T5FeedForward(config)
    network = [linear(config.d_model, config.d_ff, bias=True)]
    for layer in range(1, config.mlp_layers + 1):
        size = config.d_model if layer == config.mlp_layers else config.d_ff
        network += [nn.ReLU(), linear(config.d_ff, size, bias=True), nn.Identity()]
    return nn.Sequential(*network)


def experts_of(config: EncoderDecoderConfig) -> Experts:
    """Return the experts of a decoder layer."""
    return Experts(
        count=config.num_experts,
        hidden=config.d_model,
        inner=config.d_ff,
        activation=_ACTIVATIONS[config.feed_forward_proj],
        is_gated=config.is_gated,
        num_chosen=config.num_experts_per_tok,
        is_normed=config.norm_topk_prob,
    )


class _SelfAttention(nn.Module):
    def __init__(self, config: EncoderDecoderConfig, has_bias: bool, *, bidirectional: bool) -> None:
        super().__init__()
        self.SelfAttention = T5Attention(config, RelativeBias(config, bidirectional=bidirectional) if has_bias else None)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)


def _biases(
    attentions: Sequence[_SelfAttention], query_Q: Tensor, key_K: Tensor, prepare: Callable[[Tensor], Tensor] = lambda x: x
) -> Iterator[Tensor]:
    """Yield the bias (H, Q, K) of each layer, prepared: its own, or the first layer's."""
    bias: Tensor | None = None
    for attention in attentions:
        module = attention.SelfAttention.relative_attention_bias
        if module is not None:
            bias = prepare(module(query_Q, key_K))
        assert bias is not None  # the first layer has one
        yield bias


class _CrossAttention(nn.Module):
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.EncDecAttention = T5Attention(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)


class _FeedForward(nn.Module):
    def __init__(self, config: EncoderDecoderConfig, *, experts: bool) -> None:
        super().__init__()
        if experts:
            self.experts = experts_of(config)
        else:
            self.DenseReluDense = _feed_forward(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.has_experts = experts

    def forward(self, hidden_BSD: Tensor, balance: list[Tensor] | None = None) -> Tensor:
        normed = self.layer_norm(hidden_BSD)
        return self.experts(normed, balance) if self.has_experts else self.DenseReluDense(normed)


class _Block(nn.Module):
    """The sublayers of one layer, numbered as in T5's files: self-attention, cross-attention (decoder), feed-forward."""

    def __init__(self, *sublayers: nn.Module) -> None:
        super().__init__()
        self.layer = nn.ModuleList(sublayers)


class T5Encoder(nn.Module):
    """Bidirectional attention over the prompt."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self._layers = [  # the modules of `block`, with their types
            (
                _SelfAttention(config, number == 0 or config.bias_in_every_layer, bidirectional=True),
                _FeedForward(config, experts=False),
            )
            for number in range(config.num_layers)
        ]
        self.block = nn.ModuleList(_Block(*sublayers) for sublayers in self._layers)
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, hidden_BTD: Tensor, lengths_B: Tensor | None, dropout: Dropout) -> Tensor:
        """lengths_B: tokens of each prompt that count, the padding behind them is masked; None: all count."""
        positions_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
        padding = None if lengths_B is None else (positions_T >= lengths_B[:, None])[:, None, None]

        def mask_of(bias_HTT: Tensor) -> Tensor:
            bias = bias_HTT[None].to(hidden_BTD.dtype)
            return bias if padding is None else bias.masked_fill(padding, -torch.inf)

        biases = _biases([attention for attention, _ in self._layers], positions_T, positions_T, mask_of)
        hidden_BTD = dropout(hidden_BTD)
        for (attention, feed_forward), bias in zip(self._layers, biases, strict=True):
            heads, normed = attention.SelfAttention, attention.layer_norm(hidden_BTD)
            query, key, value = (x.transpose(1, 2) for x in (heads.queries(normed), *heads.keys_values(normed)))
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0).transpose(1, 2)
            hidden_BTD = hidden_BTD + dropout(heads.output(attended))
            hidden_BTD = hidden_BTD + dropout(feed_forward(hidden_BTD))
        return dropout(self.final_layer_norm(hidden_BTD))


class T5Decoder(nn.Module):
    """Causal attention over the codes and cross-attention to the prompt."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self._layers = [  # the modules of `block`, with their types
            (
                _SelfAttention(config, number == 0 or config.bias_in_every_layer, bidirectional=False),
                _CrossAttention(config),
                _FeedForward(config, experts=config.num_experts > 0),
            )
            for number in range(config.num_decoder_layers)
        ]
        self.block = nn.ModuleList(_Block(*sublayers) for sublayers in self._layers)
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0

    def biases(self, query_Q: Tensor, key_K: Tensor) -> list[Tensor]:
        """Return the bias (H, Q, K) of each layer for positions of queries and keys."""
        return list(_biases([own for own, _, _ in self._layers], query_Q, key_K))

    def prompt_keys_values(self, encoded_BTD: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values (B, T, H, E) of the cross-attention, for each layer."""
        return [cross.EncDecAttention.keys_values(encoded_BTD) for _, cross, _ in self._layers]

    def forward(
        self,
        hidden_BSD: Tensor,
        self_attention: Attend,
        cross_attention: AttendPrompt,
        dropout: Dropout = lambda x: x,
        balance: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, S, D) after the final norm, scaled for the head."""
        hidden_BSD = dropout(hidden_BSD)
        for layer, (own, cross, feed_forward) in enumerate(self._layers):
            heads, normed = own.SelfAttention, own.layer_norm(hidden_BSD)
            attended = self_attention(layer, heads.queries(normed), *heads.keys_values(normed))
            hidden_BSD = hidden_BSD + dropout(heads.output(attended))
            heads = cross.EncDecAttention
            attended = cross_attention(layer, heads.queries(cross.layer_norm(hidden_BSD)))
            hidden_BSD = hidden_BSD + dropout(heads.output(attended))
            hidden_BSD = hidden_BSD + dropout(feed_forward(hidden_BSD, balance))
        return dropout(self.final_layer_norm(hidden_BSD)) * self.scale


def attend_codes(bias_HMS: Tensor, query_BKMHE: Tensor, key_BKSHE: Tensor, value_BKSHE: Tensor) -> Tensor:
    """Causal attention of a beam's last M codes over its S -> (B, K, M, H, E); the softmax in float32."""
    num_new, num_slots = query_BKMHE.shape[2], key_BKSHE.shape[2]
    slot_S = torch.arange(num_slots, device=query_BKMHE.device)
    query_M = slot_S[num_slots - num_new :]
    bias_HMS = bias_HMS.masked_fill(slot_S > query_M[:, None], -torch.inf)
    query, key, value = (x.transpose(2, 3) for x in (query_BKMHE, key_BKSHE, value_BKSHE))
    weights = (torch.matmul(query, key.transpose(3, 4)).float() + bias_HMS).softmax(-1)
    return torch.matmul(weights.to(value.dtype), value).transpose(2, 3)
