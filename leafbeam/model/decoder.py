"""The layers of a decoder as torch modules, named as Hugging Face names those of Qwen3 and Llama.

`ModelConfig` says which parts there are. Attention is a parameter (`Attend`), so that training, prefill and decoding steps run
the same layers.

    pre-norm (`input_layernorm`, `post_attention_layernorm`), block, post-norm (`attention_output_norm`,
    `feed_forward_output_norm`), sum

Shapes: B requests, T tokens of each (or K beams in their place), D hidden, H query heads, G key heads, R query heads of each,
E values of a head.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, FunctionCtx

from leafbeam.errors import ArgumentError
from leafbeam.model.config import Activation, ModelConfig
from leafbeam.model.experts import Experts, activate
from leafbeam.ops.linear.rounded import Matrix, RoundedMatrix, multiply

Dropout = Callable[[Tensor], Tensor]


def make_dropout(rate: float, generator: torch.Generator | None) -> Dropout:
    """Dropout drawn from `generator`, 16 bits for each value; ArgumentError if the rate is above 0 and there is none."""
    if rate == 0:
        return lambda x: x
    if generator is None:
        raise ArgumentError(f"this model drops {rate:.0%} in training: pass dropout=torch.Generator(), or call model.eval()")

    def drop(x: Tensor) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        draws = draws.random_(-(2**63), None, generator=generator).view(torch.int16)[: x.numel()].view(x.shape)
        return x * (draws >= round(rate * 2**16) - 2**15).to(x.dtype) / (1 - rate)

    return drop


# Attention of one layer: (layer, query_BTHE, key_BTGE, value_BTGE) -> weighted values of the queries' shape.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def causal(layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor, visible_TT: Tensor | None = None) -> Tensor:
    """Causal attention, or attention to what is visible; padding on the right is seen by padding only."""
    query_BHTE, key_BGTE, value_BGTE = (x.transpose(1, 2) for x in (query_BTHE, key_BTGE, value_BTGE))
    attend = partial(
        F.scaled_dot_product_attention,
        attn_mask=visible_TT,
        is_causal=visible_TT is None,
        enable_gqa=key_BGTE.shape[1] != query_BHTE.shape[1],
    )
    if value_BTGE.dtype == torch.bfloat16 and value_BTGE.requires_grad and value_BTGE.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):  # torch's gradients in bfloat16 take up to five times as long there
            return attend(query_BHTE.float(), key_BGTE.float(), value_BGTE.float()).transpose(1, 2).to(torch.bfloat16)
    return attend(query_BHTE, key_BGTE, value_BGTE).transpose(1, 2)


def causal_attention(config: ModelConfig) -> Attend:
    """Return the causal attention of a config's layers, with their windows and the cap of scores."""
    if not config.local_layers and not config.attention_cap:
        return causal

    def attend(layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        window, tokens = config.window(layer), query_BTHE.shape[1]
        if not config.attention_cap and not 0 < window < tokens:
            return causal(layer, query_BTHE, key_BTGE, value_BTGE)
        position_T = torch.arange(tokens, device=query_BTHE.device)
        before_TT = position_T[:, None] - position_T
        visible_TT = (before_TT >= 0) & (before_TT < (window or tokens))
        query_BGRTE = query_BTHE.unflatten(2, (key_BTGE.shape[2], -1)).permute(0, 2, 3, 1, 4) * query_BTHE.shape[-1] ** -0.5
        scores = torch.matmul(query_BGRTE, key_BTGE.permute(0, 2, 3, 1)[:, :, None]).float()
        weights = capped(scores, config.attention_cap).masked_fill(~visible_TT, -torch.inf).softmax(-1)
        values_BGRTE = torch.matmul(weights.to(value_BTGE.dtype), value_BTGE.transpose(1, 2)[:, :, None])
        return values_BGRTE.permute(0, 3, 1, 2, 4).flatten(2, 3)

    return attend


def capped(values: Tensor, cap: float) -> Tensor:
    """Return values under a soft cap; 0: as they are."""
    return torch.tanh(values / cap) * cap if cap else values


class Rotary:
    """Rotates each pair (i, i + E/2) of a head by an angle proportional to its position; positions: (T,) or (B, 1)."""

    def __init__(self, frequencies_E: Tensor, scale: float, positions: Tensor, dtype: torch.dtype) -> None:
        angles = positions[..., None].float() * frequencies_E
        cos, sin = angles.cos(), angles.sin()
        if scale != 1:  # of pairs that are rotated
            scale_E = torch.where(frequencies_E == 0, 1.0, scale)
            cos, sin = cos * scale_E, sin * scale_E
        # A roll brings the other half of each pair; the sine holds the rotation's sign.
        self.cos = torch.cat((cos, cos), -1).to(dtype)[..., None, :]
        self.sin = torch.cat((-sin, sin), -1).to(dtype)[..., None, :]

    def __call__(self, x_BTHE: Tensor) -> Tensor:
        # Once, where torch would cast it in each of the operations.
        x_BTHE = x_BTHE.to(torch.promote_types(x_BTHE.dtype, self.cos.dtype))
        return torch.addcmul(x_BTHE * self.cos, x_BTHE.roll(x_BTHE.shape[-1] // 2, -1), self.sin)


class _Scaled(torch.autograd.Function):
    """Scaling of the last axis to a root mean square of 1, whose gradient takes half of the passes of autograd's."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, eps: float) -> Tensor:
        factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        scaled = x * factor
        ctx.save_for_backward(scaled, factor)
        return scaled

    @staticmethod
    def backward(ctx: BackwardCFunction, *gradients: Tensor) -> tuple[Tensor, None]:
        scaled, factor = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        along = (gradients[0] * scaled).mean(-1, keepdim=True)
        return torch.addcmul(gradients[0], scaled, along, value=-1).mul_(factor), None


class RMSNorm(nn.Module):
    """Scales the last axis to a root mean square of 1; computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scaled = cast(Tensor, _Scaled.apply(x.float(), self.eps))
        if self.weight.dtype != x.dtype:  # of float32, where an offset was added
            return (self.weight * scaled).to(x.dtype)
        return self.weight * scaled.to(x.dtype)


class LayerNorm(nn.Module):
    """Scales the last axis to a mean of 0 and a variance of 1, with a weight and a bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self.bias = nn.Parameter(torch.empty(size, device="meta"))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def _norm(config: ModelConfig, *, before: bool) -> RMSNorm | LayerNorm | None:
    """Return a norm over D before or after a block, None where the architecture has none."""
    if config.norm_placement not in ("both", "before" if before else "after"):
        return None
    return (RMSNorm if config.norm == "rms" else LayerNorm)(config.hidden_size, config.rms_norm_eps)


class Attention(nn.Module):
    """Grouped-query attention, with norms and rotations of queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim, self.of_all = config.head_dim, config.query_key_norm == "all"
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = linear(queries, config.hidden_size, bias=config.attention_output_bias)
        self.q_norm = self.k_norm = None
        if config.query_key_norm != "none":
            widths = (queries, keys) if self.of_all else (config.head_dim, config.head_dim)
            self.q_norm, self.k_norm = (RMSNorm(width, config.rms_norm_eps) for width in widths)
        self.query_factor = config.query_scale * config.head_dim**0.5  # attention divides by the root of E itself

    def forward(self, hidden_BTD: Tensor, layer: int, rotary: Rotary | None, attend: Attend) -> Tensor:
        query_BTHE = self._heads(self.q_proj(hidden_BTD), self.q_norm, rotary)
        key_BTGE = self._heads(self.k_proj(hidden_BTD), self.k_norm, rotary)
        value_BTGE = self.v_proj(hidden_BTD).unflatten(-1, (-1, self.head_dim))
        if abs(self.query_factor - 1) > 1e-12:
            query_BTHE = query_BTHE * self.query_factor
        return self.o_proj(attend(layer, query_BTHE, key_BTGE, value_BTGE).flatten(-2))

    def _heads(self, product: Tensor, norm: RMSNorm | None, rotary: Rotary | None) -> Tensor:
        """Return queries or keys of each head, normed and rotated."""
        if norm is not None and self.of_all:
            product = norm(product)
        heads = product.unflatten(-1, (-1, self.head_dim))
        if norm is not None and not self.of_all:
            heads = norm(heads)
        return heads if rotary is None else rotary(heads)


class FeedForward(nn.Module):
    """Two matrices with an activation between them, which a third one gates (SwiGLU and others)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.feed_forward_bias
        self.activation: Activation = config.hidden_act
        self.gate_proj = linear(hidden, inner, bias=bias) if config.is_gated else None
        self.up_proj = linear(hidden, inner, bias=bias)
        self.down_proj = linear(inner, hidden, bias=bias)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        up = self.up_proj(hidden_BTD)
        if self.gate_proj is None:
            return self.down_proj(activate(self.activation, up))
        gate = self.gate_proj(hidden_BTD)
        if torch.is_inference_mode_enabled():  # in place: saves two buffers of the layer's width
            return self.down_proj(activate(self.activation, gate, inplace=True).mul_(up))
        return self.down_proj(activate(self.activation, gate) * up)


class Layer(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp: FeedForward | Experts = FeedForward(config)
        if number in config.expert_layers:
            self.mlp = Experts(
                count=config.num_experts,
                hidden=config.hidden_size,
                inner=config.moe_intermediate_size,
                activation=config.hidden_act,
                is_gated=config.is_gated,
                num_chosen=config.num_experts_per_tok,
                is_normed=config.norm_topk_prob,
            )
        self.input_layernorm = _norm(config, before=True)
        self.post_attention_layernorm = _norm(config, before=True)
        self.attention_output_norm = _norm(config, before=False)
        self.feed_forward_output_norm = _norm(config, before=False)

    def forward(self, hidden_BTD: Tensor, layer: int, rotary: Rotary | None, attend: Attend, dropout: Dropout) -> Tensor:
        attended = self.self_attn(_normed(self.input_layernorm, hidden_BTD), layer, rotary, attend)
        hidden_BTD = hidden_BTD + dropout(_normed(self.attention_output_norm, attended))
        fed = self.mlp(_normed(self.post_attention_layernorm, hidden_BTD))
        return hidden_BTD + dropout(_normed(self.feed_forward_output_norm, fed))


def _normed(norm: RMSNorm | LayerNorm | None, hidden_BTD: Tensor) -> Tensor:
    return hidden_BTD if norm is None else norm(hidden_BTD)


class Decoder(nn.Module):
    """Embedding, layers, final norm. Parameters are on the meta device; `Transformer` allocates them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = None
        if config.learned_positions:
            self.embed_positions = _embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = (RMSNorm if config.norm == "rms" else LayerNorm)(config.hidden_size, config.rms_norm_eps)
        self._frequencies: dict[tuple[bool, torch.device], Tensor] = {}  # made before a graph is captured, which copies nothing

    def rotary(self, positions: Tensor, dtype: torch.dtype, *, is_local: bool = False) -> Rotary:
        """Return the rotations of positions, in all layers or in the local ones."""
        config, device = self.config, positions.device
        is_local = is_local and bool(config.local_frequencies)
        if (is_local, device) not in self._frequencies:
            own = config.local_frequencies if is_local else config.rope_frequencies
            half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
            frequencies = torch.tensor(own, device=device) if own else 1.0 / config.rope_theta**half
            self._frequencies[is_local, device] = frequencies
        scale = config.local_scale if is_local else config.rope_scale
        return Rotary(self._frequencies[is_local, device], scale, positions, dtype)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Return the vectors (B, T, D) of tokens, as they enter the first layer."""
        hidden_BTD, scale = self.embed_tokens(tokens_BT), self.config.embedding_scale
        return hidden_BTD if scale == 1 else hidden_BTD * float(torch.tensor(scale, dtype=hidden_BTD.dtype))

    def forward(self, hidden_BTD: Tensor, positions: Tensor, attend: Attend, dropout: Dropout = lambda x: x) -> Tensor:
        """Hidden states (B, T, D) after the final norm, of vectors at `positions` (see `Rotary`)."""
        config = self.config
        if self.embed_positions is not None:
            hidden_BTD = hidden_BTD + self.embed_positions(positions)
        hidden_BTD = dropout(hidden_BTD)
        rotary = local = None
        if config.is_rotary:
            rotary = local = self.rotary(positions, hidden_BTD.dtype)
            if config.local_frequencies:
                local = self.rotary(positions, hidden_BTD.dtype, is_local=True)
        for number, layer in enumerate(self.layers):
            rotate = local if number in config.local_layers else rotary
            hidden_BTD = cast(Layer, layer)(hidden_BTD, number, rotate, attend, dropout)
        return self.norm(hidden_BTD)


def _embedding(count: int, size: int) -> nn.Embedding:
    weight = torch.empty(count, size, device="meta")  # without it, torch imports its compiler
    return nn.Embedding(count, size, _weight=weight)


class Linear(nn.Linear):
    """A product with a matrix, which may be stored in a narrower dtype than that of the computation, or rounded to 8 bits.

    rounded: the matrix, in the place of the weight, which has no rows then.
    """

    rounded: RoundedMatrix | None = None

    @property
    def matrix(self) -> Matrix:
        """Return the matrix as it is stored."""
        return self.weight if self.rounded is None else self.rounded

    def store(self, matrix: RoundedMatrix) -> None:
        """Store a rounded matrix in the place of the weight."""
        self.rounded = matrix
        self.clear()

    def clear(self) -> None:
        """Leave a weight without rows."""
        self.weight = nn.Parameter(self.weight.new_empty(0, self.in_features), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.rounded is None:
            return F.linear(input, self.weight.to(input.dtype), self.bias)
        product, bias = multiply(input, self.rounded), cast(Tensor | None, self.bias)
        return product if bias is None else product.add_(bias)


def linear(inputs: int, outputs: int, *, bias: bool = False) -> Linear:
    return Linear(inputs, outputs, bias=bias, device="meta")
