"""The layers of Qwen3 as torch modules, with Hugging Face's parameter names.

Attention is a parameter (`Attend`), so that training, prefill and decoding steps run the same layers.

Shapes: B requests, T tokens of each (or K beams in their place), D hidden, H query heads, G key heads, E values of a
head.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.config import ModelConfig

Dropout = Callable[[Tensor], Tensor]


def make_dropout(rate: float, generator: torch.Generator | None) -> Dropout:
    """Dropout drawn from `generator`; ArgumentError if the rate is above 0 and there is none."""
    if rate == 0:
        return lambda x: x
    if generator is None:
        raise ArgumentError(f"this model drops {rate:.0%} in training: pass dropout=torch.Generator(), or call model.eval()")

    def drop(x: Tensor) -> Tensor:
        kept = torch.rand(x.shape, generator=generator, device=x.device) >= rate
        return x * kept / (1 - rate)

    return drop


# Attention of one layer: (layer, query_BTHE, key_BTGE, value_BTGE) -> weighted values of the queries' shape.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def causal(layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
    """Causal attention; padding on the right is seen by padding only."""
    query_BHTE, key_BGTE, value_BGTE = (x.transpose(1, 2) for x in (query_BTHE, key_BTGE, value_BTGE))
    attend = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=key_BGTE.shape[1] != query_BHTE.shape[1])
    if value_BTGE.dtype == torch.bfloat16 and value_BTGE.requires_grad and value_BTGE.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):  # torch's gradients in bfloat16 take up to five times as long there
            return attend(query_BHTE.float(), key_BGTE.float(), value_BGTE.float()).transpose(1, 2).to(torch.bfloat16)
    return attend(query_BHTE, key_BGTE, value_BGTE).transpose(1, 2)


class Rotary:
    """Rotates each pair (i, i + E/2) of a head by an angle proportional to its position; positions: (T,) or (B, 1)."""

    def __init__(self, config: ModelConfig, positions: Tensor, dtype: torch.dtype) -> None:
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device) / config.head_dim
        angles = positions[..., None].float() * (1.0 / config.rope_theta**half)
        cos, sin = angles.cos(), angles.sin()
        # A roll brings the other half of each pair; the sine holds the rotation's sign.
        self.cos = torch.cat((cos, cos), -1).to(dtype)[..., None, :]
        self.sin = torch.cat((-sin, sin), -1).to(dtype)[..., None, :]

    def __call__(self, x_BTHE: Tensor) -> Tensor:
        return torch.addcmul(x_BTHE * self.cos, x_BTHE.roll(x_BTHE.shape[-1] // 2, -1), self.sin)


class RMSNorm(nn.Module):
    """Scales the last axis to a root mean square of 1; computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with a norm on every query and key head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = linear(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = linear(config.num_attention_heads * config.head_dim, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, hidden_BTD: Tensor, layer: int, rotary: Rotary, attend: Attend) -> Tensor:
        heads = (-1, self.head_dim)
        query_BTHE = rotary(self.q_norm(self.q_proj(hidden_BTD).unflatten(-1, heads)))
        key_BTGE = rotary(self.k_norm(self.k_proj(hidden_BTD).unflatten(-1, heads)))
        value_BTGE = self.v_proj(hidden_BTD).unflatten(-1, heads)
        return self.o_proj(attend(layer, query_BTHE, key_BTGE, value_BTGE).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        gate, up = self.gate_proj(hidden_BTD), self.up_proj(hidden_BTD)
        if torch.is_inference_mode_enabled():  # in place: saves two buffers of the layer's width
            return self.down_proj(F.silu(gate, inplace=True).mul_(up))
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    """One block: attention, then feed-forward, each after a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_BTD: Tensor, layer: int, rotary: Rotary, attend: Attend, dropout: Dropout) -> Tensor:
        hidden_BTD = hidden_BTD + dropout(self.self_attn(self.input_layernorm(hidden_BTD), layer, rotary, attend))
        return hidden_BTD + dropout(self.mlp(self.post_attention_layernorm(hidden_BTD)))


class Qwen3(nn.Module):
    """Embedding, layers, final norm. Parameters are on the meta device; `Transformer` allocates them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        weight = torch.empty(config.vocab_size, config.hidden_size, device="meta")  # without it, torch imports its compiler
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=weight)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens_BT: Tensor, positions: Tensor, attend: Attend, dropout: Dropout = lambda x: x) -> Tensor:
        """Hidden states (B, T, D) after the final norm, of tokens at `positions` (see `Rotary`)."""
        hidden_BTD = dropout(self.embed_tokens(tokens_BT))
        rotary = Rotary(self.config, positions, hidden_BTD.dtype)
        for number, layer in enumerate(self.layers):
            hidden_BTD = cast(Layer, layer)(hidden_BTD, number, rotary, attend, dropout)
        return self.norm(hidden_BTD)


class Linear(nn.Linear):
    """A product with a matrix, which may be stored in a narrower dtype than that of the computation."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype))


def linear(inputs: int, outputs: int) -> Linear:
    return Linear(inputs, outputs, bias=False, device="meta")
