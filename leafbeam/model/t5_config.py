"""The shape of an encoder-decoder, in the words of Hugging Face's config.json for T5, and of its experts, if it has any."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, get_args

from leafbeam.errors import ArgumentError, CheckpointError

__all__ = ["EncoderDecoderConfig", "FeedForwardKind"]

FeedForwardKind = Literal["relu", "gated-gelu", "gated-silu"]


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig:
    """Sizes of an encoder-decoder: T5's, which is TIGER's too; with experts in the decoder, OneRec's.

    Field names and meanings are those of T5's config.json, save the last five. Positions are T5's relative biases, so that its
    checkpoints load; rotary positions would not.

    max_position_embeddings: the longest prompt and one SID, as in `ModelConfig`. A relative bias has no end; the number says
    what the model was trained on, for whoever cuts histories to it.
    num_experts: feed-forward networks of each decoder layer, 0 for T5's single one. num_experts_per_tok: how many of them a
    token goes to. norm_topk_prob: whether their shares are made to add up to 1 (OneRec does not). router_aux_loss_coef: the
    weight of the load-balancing loss in training. The four have the names that Mixtral and Qwen3-MoE gave them.

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
        may_be_0 = {"dropout", "num_experts", "decoder_start_token_id", "router_aux_loss_coef"}
        kinds: dict[Any, Any] = {int: int, float: int | float, bool: bool, FeedForwardKind: str}
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, kinds[field.type]) or (isinstance(value, bool) and field.type is not bool):
                raise ArgumentError(f"{field.name} must be {getattr(field.type, '__name__', 'a word')}, not {value!r}")
            if field.type in (int, float) and not (0 < value < inf or (value == 0 and field.name in may_be_0)):
                bound = "at least 0" if field.name in may_be_0 else "above 0"
                raise ArgumentError(f"{field.name} must be {bound} and finite, not {value}")
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
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout must be at least 0 and below 1, not {self.dropout}")
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
        """Values of all heads together, which T5 does not tie to d_model."""
        return self.num_heads * self.d_kv

    @property
    def is_gated(self) -> bool:
        """Whether one projection of the feed-forward network gates the other."""
        return self.feed_forward_proj.startswith("gated-")

    def to_hf(self) -> dict[str, Any]:
        """The fields of config.json; without experts transformers' T5ForConditionalGeneration reads it."""
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
        """The config of a parsed config.json; CheckpointError names what leafbeam does not implement or what is missing.

        dropout: None takes the file's dropout_rate.
        """
        if hf.get("model_type") not in ("t5", "leafbeam_t5_moe"):
            raise CheckpointError(f"config.json has model_type {hf.get('model_type')!r}; leafbeam's encoder-decoder reads 't5'")
        for name in ("auto_map", "quantization_config"):
            if hf.get(name) is not None:
                raise CheckpointError(f"config.json has {name}={hf[name]!r}, which leafbeam does not implement")
        given: dict[str, Any] = {field.name: hf[field.name] for field in fields(cls) if hf.get(field.name) is not None}
        required = {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}
        if missing := sorted(required - given.keys()):
            raise CheckpointError(f"config.json lacks {', '.join(missing)}: it is not a whole T5 config")
        tied = given.setdefault("tie_word_embeddings", True)
        given.setdefault("num_decoder_layers", given["num_layers"])
        given.setdefault("scale_decoder_outputs", tied)  # T5 v1.1 is known by its untied head: its outputs are not scaled
        given["decoder_start_token_id"] = given.get("decoder_start_token_id", hf.get("pad_token_id") or 0)
        given["max_position_embeddings"] = hf.get("n_positions", 512)
        given["dropout"] = hf.get("dropout_rate", 0.1) if dropout is None else dropout
        try:
            return cls(**given)
        except ArgumentError as error:
            raise CheckpointError(f"config.json cannot be used: {error}") from error
