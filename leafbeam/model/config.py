"""The configurations of a decoder and of a T5 encoder-decoder."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from sys import float_info
from types import UnionType
from typing import Literal, TypeVar

from leafbeam.errors import ArgumentError, CheckpointError, check_choice, counted
from leafbeam.json_reader import Json
from leafbeam.model.architectures import architecture_of
from leafbeam.model.architectures.fields import NEITHER, check_implemented

FeedForwardKind = Literal["relu", "gated-gelu", "gated-silu"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Norm = Literal["rms", "layer"]
NormPlacement = Literal["before", "after", "both"]
QueryKeyNorm = Literal["none", "head", "all"]
Config = TypeVar("Config")
T5_FAMILY = "t5", "mt5", "umt5"  # of transformers, by the model_type in config.json
ENCODER_DECODERS = (*T5_FAMILY, "leafbeam_t5_moe", "leafbeam_t5_mlp")

# Beyond these, a config is damaged: building its modules would take minutes, and its tensors no memory has.
_LAYERS = ("num_hidden_layers", "num_layers", "num_decoder_layers")
_MAX_LAYERS, _MAX_EXPERTS, _MAX_DECODER_EXPERTS, _MAX_SIZE = 1024, 4096, 2**16, 2**31 - 1

_NOT_OF_T5 = (
    "num_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "router_aux_loss_coef",
    "mlp_layers",
    "bias_in_every_layer",
)

# Fields in which architectures differ from a Qwen3.
_OF_OTHERS = frozenset(
    {
        *("norm", "norm_placement", "query_key_norm", "attention_bias", "attention_output_bias", "feed_forward_bias"),
        *("hidden_act", "is_gated", "embedding_scale", "learned_positions", "attention_scale", "attention_cap", "logit_cap"),
        *("rope_frequencies", "rope_scale", "sliding_window", "local_layers", "local_frequencies", "local_scale"),
        *("num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size", "expert_layers"),
        "item_history",
    }
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
    """The sizes and the architecture of a decoder; the defaults are a small Qwen3 for training on a CPU.

    `leafbeam.model.architectures` makes it from the config.json of every architecture that leafbeam reads. Fields whose names
    config.json has mean what they mean there for a Qwen3; the others describe what architectures differ in. What can be folded
    into the weights when they are loaded has no field.

    Attributes:
        norm: The norm before each block: by root mean square, or by mean and variance with a bias.
        norm_placement: Where norms are: before each block, after it, or both.
        query_key_norm: The norm of queries and keys: none, of each head, or of all heads together.
        attention_bias: Whether the matrices of queries, keys and values have biases.
        attention_output_bias: Whether the attention's output matrix has a bias.
        feed_forward_bias: Whether the feed-forward matrices have biases.
        hidden_act: The activation of the feed-forward block.
        is_gated: Whether one matrix of the feed-forward block gates another.
        embedding_scale: The factor of embeddings where they enter the first layer.
        learned_positions: Whether an embedding of the position is added to that of the token.
        attention_scale: The factor of products of queries and keys; 0 is head_dim ** -0.5.
        attention_cap: The soft cap of attention scores, cap * tanh(score / cap); 0 is none.
        logit_cap: The soft cap of logits; 0 is none.
        rope_frequencies: The rotation's radians per position of each pair of values; empty: those of rope_theta. Pairs of 0 are
            not rotated.
        rope_scale: The factor of rotated values.
        local_layers: The layers whose tokens attend only to the last sliding_window ones, themselves included.
        local_frequencies: As rope_frequencies, of the local layers; empty: as in all layers.
        local_scale: As rope_scale, of the local layers.
        expert_layers: The layers whose feed-forward block is a mixture of num_experts experts, of which the router picks
            num_experts_per_tok; norm_topk_prob says whether their weights are normalised to sum to 1.
        item_history: Whether an item of the history is one position, whose vector is the sum of its codes' embeddings.
        dropout: The share of values that are dropped in training after the embedding and after every block.

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
    norm: Norm = "rms"
    norm_placement: NormPlacement = "before"
    query_key_norm: QueryKeyNorm = "head"
    attention_bias: bool = False
    attention_output_bias: bool = False
    feed_forward_bias: bool = False
    hidden_act: Activation = "silu"
    is_gated: bool = True
    embedding_scale: float = 1.0
    learned_positions: bool = False
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    rope_frequencies: tuple[float, ...] = ()
    rope_scale: float = 1.0
    sliding_window: int = 0
    local_layers: tuple[int, ...] = ()
    local_frequencies: tuple[float, ...] = ()
    local_scale: float = 1.0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    norm_topk_prob: bool = False
    moe_intermediate_size: int = 0
    expert_layers: tuple[int, ...] = ()
    item_history: bool = False

    def __post_init__(self) -> None:
        zero = {"dropout", "attention_scale", "attention_cap", "logit_cap", "sliding_window"}
        _check_fields(self, may_be_zero=zero | {"num_experts", "num_experts_per_tok", "moe_intermediate_size"})
        for name, kind in (
            ("norm", Norm),
            ("norm_placement", NormPlacement),
            ("query_key_norm", QueryKeyNorm),
            ("hidden_act", Activation),
        ):
            check_choice(name, getattr(self, name), kind)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ArgumentError(f"num_attention_heads must be a multiple of num_key_value_heads={self.num_key_value_heads}")
        if self.head_dim % 2:
            raise ArgumentError(f"head_dim={self.head_dim} must be even: rotary positions rotate pairs of values")
        if self.norm == "layer" and self.norm_placement != "before":
            raise ArgumentError("norm='layer' has a bias, which is implemented before a block only: norm_placement='before'")
        for name in ("rope_frequencies", "local_frequencies"):
            if len(getattr(self, name)) not in (0, self.head_dim // 2):
                raise ArgumentError(
                    f"{name} must have one entry for each of the {counted(self.head_dim // 2, 'pair')} of a head"
                )
        for name in ("local_layers", "expert_layers"):
            if any(not 0 <= layer < self.num_hidden_layers for layer in getattr(self, name)):
                raise ArgumentError(f"{name} must be layers of 0 to {self.num_hidden_layers - 1}, not {getattr(self, name)}")
        if self.item_history and (self.local_layers or self.attention_cap):
            raise ArgumentError("item_history is implemented without local_layers and attention_cap: leave them out")
        if self.local_layers and not self.sliding_window:
            raise ArgumentError("sliding_window must be above 0 if there are local_layers")
        if self.expert_layers:
            if not 1 <= self.num_experts_per_tok <= self.num_experts:
                raise ArgumentError(
                    f"num_experts_per_tok is {self.num_experts_per_tok} of {self.num_experts}: raise num_experts"
                )
            if not self.moe_intermediate_size:
                raise ArgumentError("moe_intermediate_size must be above 0 if there are expert_layers")
            if self.num_experts * len(self.expert_layers) > _MAX_DECODER_EXPERTS:
                raise ArgumentError(f"num_experts={self.num_experts} in each layer: at most {_MAX_DECODER_EXPERTS:,} in all")

    @property
    def group_size(self) -> int:
        """Return the number of query heads per key head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def query_scale(self) -> float:
        """Return what products of queries and keys are multiplied by."""
        return self.attention_scale or self.head_dim**-0.5

    @property
    def is_rotary(self) -> bool:
        """Return whether queries and keys are rotated by their positions."""
        return not self.rope_frequencies or any(self.rope_frequencies)

    def window(self, layer: int) -> int:
        """Return how many tokens a token of a layer sees, itself included; 0: all before it."""
        return self.sliding_window if layer in self.local_layers else 0

    def to_hf(self) -> Json:
        """Return the fields of config.json.

        transformers 4.51 and later reads a Qwen3 (rope_theta is written in both of its forms); other architectures are written
        as "leafbeam_decoder", which leafbeam alone reads.
        """
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dropout"}
        if any(named[field.name] != field.default for field in fields(self) if field.name in _OF_OTHERS):
            return named | {"architectures": ["LeafbeamDecoder"], "model_type": "leafbeam_decoder"}
        return {name: value for name, value in named.items() if name not in _OF_OTHERS} | {
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
    def from_hf(cls, hf: Json, *, dropout: float = 0.0) -> "ModelConfig":
        """Return the config of a parsed config.json of a decoder.

        Raises:
            CheckpointError: If the architecture is unknown, or a field is missing or not implemented.
        """
        required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
        architecture = architecture_of(hf)
        values = architecture.read(hf) | {"dropout": dropout}
        return _config_from(cls, values, required | {"num_key_value_heads", "head_dim"}, architecture.renamed)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig:
    """The sizes of an encoder-decoder: those of T5 and TIGER; with experts in the decoder, of OneRec.

    The fields are those of T5's config.json, except dropout, max_position_embeddings and the four fields of experts, which are
    named as in Mixtral and Qwen3-MoE: num_experts is the number of feed-forward networks of each decoder layer, 0 for a dense
    layer; num_experts_per_tok the number of experts per token; norm_topk_prob says whether their weights are normalised to sum
    to 1 (not in OneRec); router_aux_loss_coef is the weight of the load-balancing loss in training. max_position_embeddings is
    the longest prompt plus one SID, as in `ModelConfig`: T5's relative positions have no limit, so this is the length with
    which the model was trained. mlp_layers is the number of hidden layers of each feed-forward network, which then have biases,
    as in GRID; 0 is T5's own network. bias_in_every_layer says whether each layer has relative positions of its own, as in
    UMT5; otherwise all share those of the first.

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
    mlp_layers: int = 0
    bias_in_every_layer: bool = False

    def __post_init__(self) -> None:
        may_be_zero = {"dropout", "num_experts", "decoder_start_token_id", "router_aux_loss_coef", "mlp_layers"}
        _check_fields(self, may_be_zero=may_be_zero)
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
        if self.mlp_layers and (self.num_experts or self.feed_forward_proj != "relu"):
            raise ArgumentError(f"mlp_layers={self.mlp_layers} needs feed_forward_proj='relu' and no experts")
        if self.bias_in_every_layer and not self.scale_decoder_outputs:
            raise ArgumentError("bias_in_every_layer needs scale_decoder_outputs, as in transformers' UMT5")

    @property
    def inner_size(self) -> int:
        """Return the width of all heads together, which T5 does not tie to d_model."""
        return self.num_heads * self.d_kv

    @property
    def is_gated(self) -> bool:
        """Return whether one projection of the feed-forward network gates the other."""
        return self.feed_forward_proj.startswith("gated-")

    def to_hf(self) -> Json:
        """Return the fields of config.json; without experts and mlp_layers, transformers reads them as a T5, mT5 or UMT5."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        named |= {"n_positions": named.pop("max_position_embeddings"), "dropout_rate": named.pop("dropout")}
        named |= {"is_encoder_decoder": True, "use_cache": True}
        if self.num_experts or self.mlp_layers:
            kind = "leafbeam_t5_moe" if self.num_experts else "leafbeam_t5_mlp"
            return named | {"architectures": ["LeafbeamEncoderDecoder"], "model_type": kind}
        for name in _NOT_OF_T5:
            del named[name]
        kind, model = "t5", "T5ForConditionalGeneration"
        if self.bias_in_every_layer:  # its outputs are always scaled
            kind, model = "umt5", "UMT5ForConditionalGeneration"
        elif self.tie_word_embeddings and not self.scale_decoder_outputs:
            kind, model = "mt5", "MT5ForConditionalGeneration"
        return named | {"architectures": [model], "model_type": kind}

    @classmethod
    def from_hf(cls, hf: Json, *, dropout: float | None = None) -> "EncoderDecoderConfig":
        """Return the config of a parsed config.json.

        Args:
            hf: The fields.
            dropout: The dropout; None takes the file's dropout_rate.

        Raises:
            CheckpointError: If a field is missing or not implemented.
        """
        if hf.get("model_type") not in ENCODER_DECODERS:
            raise CheckpointError(
                f"config.json has model_type {hf.get('model_type')!r}, and an EncoderDecoder reads 't5': "
                "load_model reads qwen3 too"
            )
        check_implemented(hf, NEITHER | {"is_encoder_decoder": (True,)})
        if "is_causal" in hf:  # true: of the encoder too; false or null: not even of the decoder
            raise CheckpointError(
                f"config.json has is_causal={hf['is_causal']!r}, which leafbeam does not support for a T5: remove it"
            )
        for name, t5_name in _T5_ALIASES.items():
            if name in hf and hf[name] != hf.get(t5_name):
                raise CheckpointError(f"config.json has {name}={hf[name]!r}, T5's {t5_name}={hf.get(t5_name)!r}: remove {name}")
        values: dict[str, object] = {field.name: hf[field.name] for field in fields(cls) if hf.get(field.name) is not None}
        model_type = hf["model_type"]
        if model_type in T5_FAMILY:
            for name in _NOT_OF_T5:
                values.pop(name, None)
        if model_type in ("mt5", "umt5"):  # transformers ties their heads, whatever the file says
            values |= {"tie_word_embeddings": True, "bias_in_every_layer": model_type == "umt5"}
        tied = values.setdefault("tie_word_embeddings", True)
        if "num_layers" in values:
            values.setdefault("num_decoder_layers", values["num_layers"])
        # T5 v1.1, with an untied head, does not scale its outputs
        scaled = {"mt5": False, "umt5": True}.get(model_type)
        values["scale_decoder_outputs"] = hf.get("scale_decoder_outputs", tied) if scaled is None else scaled
        kind = values.setdefault("feed_forward_proj", "relu" if scaled is None else "gated-gelu")
        values["feed_forward_proj"] = _FEED_FORWARD_ALIASES.get(kind, kind) if isinstance(kind, str) else kind
        _check_activation(hf, values["feed_forward_proj"])
        values["decoder_start_token_id"] = _first_token(hf)
        values["max_position_embeddings"] = 512 if hf.get("n_positions") is None else hf["n_positions"]
        values["dropout"] = hf.get("dropout_rate", 0.1) if dropout is None else dropout
        required = {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}
        renamed = {"max_position_embeddings": "n_positions", "dropout": "dropout_rate"}
        return _config_from(cls, values, required, renamed)


def _check_fields(config: "ModelConfig | EncoderDecoderConfig", may_be_zero: Collection[str]) -> None:
    """ArgumentError unless the fields have their types, and numbers are above 0 (some may be 0) and not absurd."""
    types: dict[object, type | UnionType] = {int: int, float: int | float, bool: bool}
    tuples: dict[object, type | UnionType] = {tuple[int, ...]: int, tuple[float, ...]: int | float}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type in tuples:
            if not isinstance(value, tuple) or not all(isinstance(item, tuples[field.type]) for item in value):
                raise ArgumentError(f"{field.name} must be a tuple of numbers, not {value!r}")
            continue
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


def _check_activation(hf: Json, kind: object) -> None:
    """Raise CheckpointError if T5's derived fields, which transformers reads after feed_forward_proj, disagree with it."""
    derived = {"relu": ("relu",), "gated-gelu": ("gelu_new",), "gated-silu": ("silu", "swish")}
    if isinstance(kind, str) and kind in derived:
        if kind.startswith("gated-") and hf.get("is_gated_act", True) is None:  # which transformers reads as false
            raise CheckpointError(f"config.json has is_gated_act=None, and feed_forward_proj={kind!r}: remove is_gated_act")
        check_implemented(hf, {"dense_act_fn": derived[kind], "is_gated_act": (kind.startswith("gated-"),)})


def _config_from(
    kind: type[Config], values: Json, required: Collection[str], renamed: Mapping[str, str] | None = None
) -> Config:
    """Return the config with these values of a config.json; CheckpointError for missing or impossible ones.

    renamed: the names that fields have in config.json, where they differ.
    """
    if missing := sorted(set(required) - values.keys()):
        raise CheckpointError(f"config.json lacks {', '.join(missing)}: copy the model's complete config.json")
    if unknown := sorted(values.keys() - {field.name for field in fields(kind)}):  # pyright: ignore[reportArgumentType]
        raise CheckpointError(f"config.json has {', '.join(unknown)}, unknown to this leafbeam: install the one that wrote it")
    try:
        return kind(**values)
    except ArgumentError as error:
        message = str(error)
        for name, in_file in (renamed or {}).items():
            message = message.replace(name, in_file)
        raise CheckpointError(f"config.json cannot be used: {message}") from error


def _first_token(hf: Json) -> int:
    """Return the decoder's first token, as `generate` of transformers takes it; else the padding, with which T5 is trained."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    name = next((name for name in names if hf.get(name) is not None), "")
    token = hf[name] if name else 0
    if not isinstance(token, int) or isinstance(token, bool):
        raise CheckpointError(f"{name}={token!r} is the decoder's first token: expected an integer")
    return token
