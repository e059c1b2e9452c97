"""The configurations of a Qwen3 decoder and of a T5 encoder-decoder."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from sys import float_info
from typing import Any, Literal, TypeVar

from leafbeam.errors import ArgumentError, CheckpointError, check_choice

FeedForwardKind = Literal["relu", "gated-gelu", "gated-silu"]
Config = TypeVar("Config")

# Beyond these, a config is damaged: building its modules would take minutes, and its tensors no memory has.
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers")
_MAX_LAYERS, _MAX_EXPERTS, _MAX_SIZE = 1024, 4096, 2**31 - 1

_EXPERTS = ("num_experts", "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef")

# Fields of any config.json that change a model's weights or its code, and that leafbeam implements with no value.
_NEITHER: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("auto_map", "fusion_config", "per_layer_config", "quantization_config", "transformers_weights"), ()
)
# Names that transformers takes for T5's own, and which win over them.
_T5_ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
_FEED_FORWARD_ALIASES = {"gated-gelu_new": "gated-gelu", "gated-swish": "gated-silu"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a Qwen3 decoder; the defaults are a small model for training on a CPU.

    The fields are those of Qwen3's config.json, except `dropout`: the share of values that are dropped in training after the
    embedding and after every attention and feed-forward block.

    Examples:
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
        """Return the number of query heads per key head."""
        return self.num_attention_heads // self.num_key_value_heads

    def to_hf(self) -> dict[str, Any]:
        """Return the fields of config.json, which transformers 4.51 and later reads (rope_theta is written in both of its
        forms).
        """
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
        """Return the config of a parsed config.json.

        Raises:
            CheckpointError: If a field is missing or not implemented.
        """
        if hf.get("model_type") != "qwen3":
            raise CheckpointError(
                f"config.json has model_type {hf.get('model_type')!r}, and a Transformer reads 'qwen3': load_model reads T5 too"
            )
        _check_implemented(hf, _NEITHER | {"attention_bias": (False,), "hidden_act": ("silu", "swish")})
        if hf.get("is_causal", True) is not True:
            raise CheckpointError(f"config.json has is_causal={hf['is_causal']!r}; leafbeam implements causal attention only")
        _check_layer_types(hf)

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
    """The sizes of an encoder-decoder: those of T5 and TIGER; with experts in the decoder, of OneRec.

    The fields are those of T5's config.json, except dropout, max_position_embeddings and the four fields of experts, which are
    named as in Mixtral and Qwen3-MoE: num_experts is the number of feed-forward networks of each decoder layer, 0 for a dense
    layer; num_experts_per_tok the number of experts per token; norm_topk_prob says whether their weights are normalised to sum
    to 1 (not in OneRec); router_aux_loss_coef is the weight of the load-balancing loss in training. max_position_embeddings is
    the longest prompt plus one SID, as in `ModelConfig`: T5's relative positions have no limit, so this is the length with
    which the model was trained.

    Examples:
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
        check_choice("feed_forward_proj", self.feed_forward_proj, FeedForwardKind)
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
        """Return the width of all heads together, which T5 does not tie to d_model."""
        return self.num_heads * self.d_kv

    @property
    def is_gated(self) -> bool:
        """Return whether one projection of the feed-forward network gates the other."""
        return self.feed_forward_proj.startswith("gated-")

    def to_hf(self) -> dict[str, Any]:
        """Return the fields of config.json; without experts, transformers' T5ForConditionalGeneration reads them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        named |= {"n_positions": named.pop("max_position_embeddings"), "dropout_rate": named.pop("dropout")}
        named |= {"is_encoder_decoder": True, "use_cache": True}
        if self.num_experts:
            return named | {"architectures": ["LeafbeamEncoderDecoder"], "model_type": "leafbeam_t5_moe"}
        for name in _EXPERTS:
            del named[name]
        return named | {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dropout: float | None = None) -> "EncoderDecoderConfig":
        """Return the config of a parsed config.json.

        Args:
            hf: The fields.
            dropout: The dropout; None takes the file's dropout_rate.

        Raises:
            CheckpointError: If a field is missing or not implemented.
        """
        if hf.get("model_type") not in ("t5", "leafbeam_t5_moe"):
            raise CheckpointError(
                f"config.json has model_type {hf.get('model_type')!r}, and an EncoderDecoder reads 't5': "
                "load_model reads qwen3 too"
            )
        _check_implemented(hf, _NEITHER | {"is_encoder_decoder": (True,)})
        if "is_causal" in hf:  # true: of the encoder too; false or null: not even of the decoder
            raise CheckpointError(f"config.json has is_causal={hf['is_causal']!r}, which leafbeam lacks for a T5: remove it")
        for name, t5_name in _T5_ALIASES.items():
            if name in hf and hf[name] != hf.get(t5_name):
                raise CheckpointError(f"config.json has {name}={hf[name]!r}, T5's {t5_name}={hf.get(t5_name)!r}: remove {name}")
        values: dict[str, Any] = {field.name: hf[field.name] for field in fields(cls) if hf.get(field.name) is not None}
        if hf["model_type"] == "t5":
            for name in _EXPERTS:
                values.pop(name, None)
        tied = values.setdefault("tie_word_embeddings", True)
        if "num_layers" in values:
            values.setdefault("num_decoder_layers", values["num_layers"])
        # T5 v1.1, with an untied head, does not scale its outputs
        values["scale_decoder_outputs"] = hf.get("scale_decoder_outputs", tied)
        kind = values.setdefault("feed_forward_proj", "relu")
        values["feed_forward_proj"] = _FEED_FORWARD_ALIASES.get(kind, kind) if isinstance(kind, str) else kind
        _check_activation(hf, values["feed_forward_proj"])
        values["decoder_start_token_id"] = _first_token(hf)
        values["max_position_embeddings"] = 512 if hf.get("n_positions") is None else hf["n_positions"]
        values["dropout"] = hf.get("dropout_rate", 0.1) if dropout is None else dropout
        required = {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}
        renamed = {"max_position_embeddings": "n_positions", "dropout": "dropout_rate"}
        return _config_from(cls, values, required, renamed)


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


def _check_implemented(hf: Mapping[str, Any], implemented: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointError unless these fields of config.json are missing, null, or have one of these values."""
    for name, values in implemented.items():
        if hf.get(name) not in (None, *values):
            raise CheckpointError(f"config.json has {name}={hf[name]!r}, which leafbeam lacks: use a model without it")


def _check_layer_types(hf: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a layer of a Qwen3 attends to a sliding window."""
    kinds, num_layers, window = hf.get("layer_types"), hf.get("num_hidden_layers"), hf.get("sliding_window", 4096)
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind != "full_attention" for kind in kinds):
            raise CheckpointError(
                f"config.json has layer_types={kinds!r}; leafbeam implements full_attention only, one entry for each of the "
                f"num_hidden_layers={num_layers!r}"
            )
    elif hf.get("use_sliding_window") and window is not None:
        first = hf.get("max_window_layers", 28)
        if not isinstance(first, int) or not isinstance(num_layers, int) or first < num_layers:
            raise CheckpointError(
                f"config.json has use_sliding_window={hf['use_sliding_window']!r}, from layer max_window_layers={first!r} on, "
                f"and sliding_window={window!r}, which leafbeam lacks: use a model without it"
            )


def _check_activation(hf: Mapping[str, Any], kind: object) -> None:
    """Raise CheckpointError if T5's derived fields, which transformers reads after feed_forward_proj, disagree with it."""
    derived = {"relu": ("relu",), "gated-gelu": ("gelu_new",), "gated-silu": ("silu", "swish")}
    if isinstance(kind, str) and kind in derived:
        _check_implemented(hf, {"dense_act_fn": derived[kind], "is_gated_act": (kind.startswith("gated-"),)})


def _config_from(
    kind: type[Config], values: Mapping[str, Any], required: Collection[str], renamed: Mapping[str, str] | None = None
) -> Config:
    """Return the config with these values of a config.json; CheckpointError for missing or impossible ones.

    renamed: the names that fields have in config.json, where they differ.
    """
    if missing := sorted(set(required) - values.keys()):
        raise CheckpointError(f"config.json lacks {', '.join(missing)}: copy the model's complete config.json")
    try:
        return kind(**values)
    except ArgumentError as error:
        message = str(error)
        for name, in_file in (renamed or {}).items():
            message = message.replace(name, in_file)
        raise CheckpointError(f"config.json cannot be used: {message}") from error


def _first_token(hf: Mapping[str, Any]) -> int:
    """Return the decoder's first token, as `generate` of transformers takes it; else the padding, with which T5 is trained."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    name = next((name for name in names if hf.get(name) is not None), "")
    token = hf[name] if name else 0
    if not isinstance(token, int) or isinstance(token, bool):
        raise CheckpointError(f"{name}={token!r} is the decoder's first token: expected an integer")
    return token


def _rope_theta(hf: Mapping[str, Any]) -> Any:
    """Return the base of the rotary frequencies: `rope_theta` up to transformers 4, inside `rope_parameters` since 5.

    As in transformers, `rope_scaling` takes the place of `rope_parameters`, and the type may be named `type`.
    """
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    parameters = hf.get(name) or {}
    plain = {"rope_theta": None, "rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}
    is_plain = isinstance(parameters, dict) and plain | parameters | {"rope_theta": None} == plain
    if not is_plain:
        raise CheckpointError(f"config.json has {name}={parameters!r}; leafbeam implements rope_type 'default' only")
    _check_implemented(hf, {"partial_rotary_factor": (1.0,)})
    outside, inside = hf.get("rope_theta"), parameters.get("rope_theta")
    if None not in (outside, inside) and outside != inside:
        raise CheckpointError(f"config.json has rope_theta={outside!r} and, in {name}, {inside!r}: keep one")
    theta = inside if outside is None else outside
    return 10_000.0 if theta is None else theta
