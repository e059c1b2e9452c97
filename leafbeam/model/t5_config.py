"""The configuration of a T5 encoder-decoder, with or without a mixture of experts in the decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.model.config import check_fields, config_from, refuse

__all__ = ["EncoderDecoderConfig", "FeedForwardKind"]

FeedForwardKind = Literal["relu", "gated-gelu", "gated-silu"]


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig:
    """Sizes of an encoder-decoder: T5's and TIGER's; with experts in the decoder, OneRec's.

    Fields are those of T5's config.json, except the last six.

    max_position_embeddings: the longest prompt plus one SID, as in `ModelConfig`; T5's relative positions have no limit of
    their own, so this is the length that the model was trained on.
    num_experts: feed-forward networks of each decoder layer, 0 for a dense layer. num_experts_per_tok: experts per token.
    norm_topk_prob: whether their weights are normalised to sum to 1 (not in OneRec). router_aux_loss_coef: the weight of the
    load-balancing loss in training. The four are named as in Mixtral and Qwen3-MoE.

    >>> EncoderDecoderConfig(vocab_size=1027).inner_size
    384
    """

    vocab_size: int
    d_model: int = 128
    d_kv: int = 64
    d_ff: int = 512
    num_layers: int = 2
    num_decoder_layers: int = 2
    num_heads: int = 6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    feed_forward_proj: FeedForwardKind = "relu"
    layer_norm_epsilon: float = 1e-6
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool = True
    decoder_start_token_id: int = 0
    initializer_factor: float = 1.0
    dropout: float = 0.0
    max_position_embeddings: int = 1024
    num_experts: int = 0
    num_experts_per_tok: int = 2
    norm_topk_prob: bool = False
    router_aux_loss_coef: float = 0.01

    def __post_init__(self) -> None:
        check_fields(self, may_be_zero={"dropout", "num_experts", "decoder_start_token_id", "router_aux_loss_coef"})
        if self.feed_forward_proj not in get_args(FeedForwardKind):
            raise ArgumentError(
                f"feed_forward_proj={self.feed_forward_proj!r}: choose one of {', '.join(get_args(FeedForwardKind))}"
            )
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets % 4 or distance <= buckets // 2:
            raise ArgumentError(
                f"relative_attention_num_buckets={buckets} must be a multiple of 4 (two directions, near and far) and "
                f"relative_attention_max_distance={distance} above half of it"
            )
        if self.decoder_start_token_id >= self.vocab_size:
            raise ArgumentError(
                f"decoder_start_token_id={self.decoder_start_token_id} is outside the vocabulary of {self.vocab_size:,} tokens"
            )
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ArgumentError(
                f"num_experts_per_tok={self.num_experts_per_tok} of only num_experts={self.num_experts}: raise num_experts"
            )

    @property
    def inner_size(self) -> int:
        """Values of all heads together; T5 does not tie them to d_model."""
        return self.num_heads * self.d_kv

    @property
    def is_gated(self) -> bool:
        """Whether one projection of the feed-forward network gates the other."""
        return self.feed_forward_proj.startswith("gated-")

    def to_hf(self) -> dict[str, Any]:
        """The fields of config.json; without experts, transformers' T5ForConditionalGeneration reads them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        own = ("num_experts", "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef")
        experts = {name: named.pop(name) for name in own}
        positions, dropout = named.pop("max_position_embeddings"), named.pop("dropout")
        of_t5 = named | {
            "architectures": ["T5ForConditionalGeneration"],
            "dropout_rate": dropout,
            "is_encoder_decoder": True,
            "model_type": "t5",
            "n_positions": positions,
            "use_cache": True,
        }
        if not self.num_experts:
            return of_t5
        return of_t5 | experts | {"architectures": ["LeafbeamEncoderDecoder"], "model_type": "leafbeam_t5_moe"}

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dropout: float | None = None) -> "EncoderDecoderConfig":
        """The config of a parsed config.json; CheckpointError names a field that is missing or not implemented.

        dropout: None takes the file's dropout_rate.
        """
        if hf.get("model_type") not in ("t5", "leafbeam_t5_moe"):
            raise CheckpointError(f"config.json has model_type {hf.get('model_type')!r}; leafbeam's encoder-decoder reads 't5'")
        refuse(hf, "auto_map", (None,))
        refuse(hf, "quantization_config", (None,))
        values: dict[str, Any] = {field.name: hf[field.name] for field in fields(cls) if hf.get(field.name) is not None}
        tied = values.setdefault("tie_word_embeddings", True)
        if "num_layers" in values:
            values.setdefault("num_decoder_layers", values["num_layers"])
        values.setdefault("scale_decoder_outputs", tied)  # T5 v1.1, with an untied head, does not scale its outputs
        values["decoder_start_token_id"] = values.get("decoder_start_token_id", hf.get("pad_token_id") or 0)
        values["max_position_embeddings"] = hf.get("n_positions", 512)
        values["dropout"] = hf.get("dropout_rate", 0.1) if dropout is None else dropout
        return config_from(cls, values, {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"})
