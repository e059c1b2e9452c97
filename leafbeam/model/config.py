"""The configurations of a Qwen3 decoder and of a T5 encoder-decoder."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from sys import float_info
from typing import Any, Literal, TypeVar, get_args

from leafbeam.errors import ArgumentError, CheckpointError

FeedForwardKind = Literal["relu", "gated-gelu", "gated-silu"]
Config = TypeVar("Config")

# Beyond these, a config is damaged: building its modules would take minutes, and its tensors no memory has.
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers")
_MAX_LAYERS, _MAX_EXPERTS, _MAX_SIZE = 1024, 4096, 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a Qwen3 decoder; the defaults are a small model for training on a CPU.

    Fields are those of Qwen3's config.json, except `dropout`: the share of values dropped in training after the embedding and
    after every attention and feed-forward block.

    >>> ModelConfig(vocab_size=779).head_dim
    32
    """

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 384
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check_fields(self, may_be_zero={"dropout"})
        if self.num_attention_heads % self.num_key_value_heads:
            raise ArgumentError(f"num_attention_heads must be a multiple of num_key_value_heads={self.num_key_value_heads}")
        if self.head_dim % 2:
            raise ArgumentError(f"head_dim={self.head_dim} must be even: rotary positions rotate pairs of values")

    @property
    def group_size(self) -> int:
        """How many query heads share one key head."""
        return self.num_attention_heads // self.num_key_value_heads

    def to_hf(self) -> dict[str, Any]:
        """The fields of config.json; transformers 4.51 and later reads them (rope_theta is written in both of its forms)."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dropout"}
        return named | {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "model_type": "qwen3",
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "sliding_window": None,
            "use_cache": True,
            "use_sliding_window": False,
        }

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dropout: float = 0.0) -> "ModelConfig":
        """The config of a parsed config.json; CheckpointError names a field that is missing or not implemented."""
        if hf.get("model_type") != "qwen3":
            raise CheckpointError(
                f"config.json has model_type {hf.get('model_type')!r}, and a Transformer reads 'qwen3': load_model reads T5 too"
            )
        implemented = {"attention_bias": False, "attention_dropout": 0, "auto_map": None, "hidden_act": "silu"}
        implemented |= {"quantization_config": None, "rope_scaling": {"rope_type": "default"}, "use_sliding_window": False}
        _check_implemented(hf, implemented)
        kinds = hf.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            raise CheckpointError(f"config.json has layer_types={kinds!r}; leafbeam implements full_attention only")

        # Where transformers' Qwen3Config has other defaults for fields that config.json may omit.
        values: dict[str, Any] = {"head_dim": 128, "max_position_embeddings": 32_768}
        values |= {field.name: hf[field.name] for field in fields(cls) if field.name in hf}
        if "num_key_value_heads" in values and values["num_key_value_heads"] is None:  # plain multi-head attention
            values["num_key_value_heads"] = values.get("num_attention_heads")
        values |= {"rope_theta": _rope_theta(hf), "dropout": dropout}
        required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"}
        return _config_from(cls, values, required | {"num_attention_heads", "num_key_value_heads"})


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
        _check_fields(self, may_be_zero={"dropout", "num_experts", "decoder_start_token_id", "router_aux_loss_coef"})
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
                f"decoder_start_token_id={self.decoder_start_token_id} is outside the vocabulary: vocab_size={self.vocab_size}"
            )
        if self.num_experts * self.num_decoder_layers > _MAX_EXPERTS:
            raise ArgumentError(f"num_experts={self.num_experts} in each decoder layer: at most {_MAX_EXPERTS:,} in all")
        if self.num_experts and self.num_experts_per_tok > self.num_experts:
            raise ArgumentError(f"num_experts_per_tok is {self.num_experts_per_tok} of {self.num_experts}: raise num_experts")

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
        named |= {"n_positions": named.pop("max_position_embeddings"), "dropout_rate": named.pop("dropout")}
        named |= {"is_encoder_decoder": True, "use_cache": True}
        if self.num_experts:
            return named | {"architectures": ["LeafbeamEncoderDecoder"], "model_type": "leafbeam_t5_moe"}
        for name in ("num_experts", "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef"):
            del named[name]
        return named | {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dropout: float | None = None) -> "EncoderDecoderConfig":
        """As `ModelConfig.from_hf`. dropout: None takes the file's dropout_rate."""
        if hf.get("model_type") not in ("t5", "leafbeam_t5_moe"):
            raise CheckpointError(
                f"config.json has model_type {hf.get('model_type')!r}, and an EncoderDecoder reads 't5': "
                "load_model reads qwen3 too"
            )
        _check_implemented(hf, {"auto_map": None, "quantization_config": None})
        values: dict[str, Any] = {field.name: hf[field.name] for field in fields(cls) if hf.get(field.name) is not None}
        tied = values.setdefault("tie_word_embeddings", True)
        if "num_layers" in values:
            values.setdefault("num_decoder_layers", values["num_layers"])
        values.setdefault("scale_decoder_outputs", tied)  # T5 v1.1, with an untied head, does not scale its outputs
        values["decoder_start_token_id"] = values.get("decoder_start_token_id", hf.get("pad_token_id") or 0)
        values["max_position_embeddings"] = hf.get("n_positions", 512)
        values["dropout"] = hf.get("dropout_rate", 0.1) if dropout is None else dropout
        return _config_from(cls, values, {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"})


def _check_fields(config: Any, may_be_zero: Collection[str]) -> None:
    """ArgumentError unless the fields have their types, and numbers are above 0 (some may be 0) and not absurd."""
    types: dict[Any, Any] = {int: int, float: int | float, bool: bool}
    for field in fields(config):
        value = getattr(config, field.name)
        if not isinstance(value, types.get(field.type, str)) or (isinstance(value, bool) and field.type is not bool):
            expected = field.type.__name__ if isinstance(field.type, type) else "a string"
            raise ArgumentError(f"{field.name} must be {expected}, not {value!r}")
        zero = field.name in may_be_zero
        limit = _MAX_LAYERS if field.name in _LAYERS else _MAX_SIZE if field.type is int else float_info.max
        if field.type in (int, float) and not (0 < value <= limit or (zero and value == 0)):
            bounds = f"{'at least' if zero else 'above'} 0 and {f'at most {limit:,}' if field.type is int else 'finite'}"
            raise ArgumentError(f"{field.name} must be {bounds}, not {value}")
    if config.dropout >= 1:
        raise ArgumentError(f"dropout must be below 1, not {config.dropout}")


def _check_implemented(hf: Mapping[str, Any], implemented: Mapping[str, Any]) -> None:
    """CheckpointError unless these fields of config.json are missing, null, or have the one value that is implemented."""
    for name, value in implemented.items():
        if hf.get(name) not in (None, value):
            raise CheckpointError(f"config.json has {name}={hf[name]!r}, which leafbeam lacks: use a model without it")


def _config_from(kind: type[Config], values: Mapping[str, Any], required: Collection[str]) -> Config:
    """The config with these values of a config.json; CheckpointError for missing or impossible ones."""
    if missing := sorted(set(required) - values.keys()):
        raise CheckpointError(f"config.json lacks {', '.join(missing)}: copy the model's complete config.json")
    try:
        return kind(**values)
    except ArgumentError as error:
        raise CheckpointError(f"config.json cannot be used: {error}") from error


def _rope_theta(hf: Mapping[str, Any]) -> Any:
    """The base of the rotary frequencies: `rope_theta` up to transformers 4, inside `rope_parameters` since 5."""
    parameters = hf.get("rope_parameters") or {}
    plain = {"rope_theta": None, "rope_type": "default", "partial_rotary_factor": 1.0}
    merged = plain | parameters if isinstance(parameters, dict) else {"": parameters}
    outside, inside = hf.get("rope_theta"), merged.get("rope_theta")
    if merged != plain | {"rope_theta": inside}:
        raise CheckpointError(f"config.json has rope_parameters={parameters!r}; leafbeam implements rope_type 'default' only")
    if None not in (outside, inside) and outside != inside:
        raise CheckpointError(f"config.json has rope_theta={outside!r} and, in rope_parameters, {inside!r}: keep one")
    theta = inside if outside is None else outside
    return 10_000.0 if theta is None else theta
