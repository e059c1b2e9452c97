"""The configuration of a Qwen3 decoder, and the checks that both architectures' configurations share."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from leafbeam.errors import ArgumentError, CheckpointError

__all__ = ["ModelConfig", "check_fields", "config_from", "refuse"]

Config = TypeVar("Config")


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
        check_fields(self, may_be_zero={"dropout"})
        if self.num_attention_heads % self.num_key_value_heads:
            raise ArgumentError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}: every key head serves the same number of queries"
            )
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
            raise CheckpointError(f"config.json has model_type {hf.get('model_type')!r}; leafbeam runs 'qwen3' models only")
        refuse(hf, "attention_bias", (None, False))
        refuse(hf, "attention_dropout", (None, 0, 0.0))
        refuse(hf, "auto_map", (None,))
        refuse(hf, "hidden_act", (None, "silu"))
        refuse(hf, "quantization_config", (None,))
        refuse(hf, "rope_scaling", (None, {"rope_type": "default"}))
        refuse(hf, "use_sliding_window", (None, False))
        kinds = hf.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            raise CheckpointError(f"config.json has layer_types={kinds!r}; leafbeam implements full_attention only")

        # The defaults of transformers' Qwen3Config for fields that config.json may omit.
        values: dict[str, Any] = {
            "head_dim": 128,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.02,
            "tie_word_embeddings": False,
        }
        values |= {field.name: hf[field.name] for field in fields(cls) if field.name in hf}
        if "num_key_value_heads" in values and values["num_key_value_heads"] is None:  # plain multi-head attention
            values["num_key_value_heads"] = values.get("num_attention_heads")
        values |= {"rope_theta": _rope_theta(hf), "dropout": dropout}
        required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"}
        return config_from(cls, values, required | {"num_attention_heads", "num_key_value_heads"})


def check_fields(config: Any, may_be_zero: Collection[str]) -> None:
    """ArgumentError unless a config's fields have their declared types and its numbers are positive and finite.

    may_be_zero: fields that may be 0 too; `dropout` must be below 1.
    """
    types: dict[Any, Any] = {int: int, float: int | float, bool: bool}
    for field in fields(config):
        value = getattr(config, field.name)
        if not isinstance(value, types.get(field.type, str)) or (isinstance(value, bool) and field.type is not bool):
            expected = field.type.__name__ if isinstance(field.type, type) else "a string"
            raise ArgumentError(f"{field.name} must be {expected}, not {value!r}")
        zero = field.name in may_be_zero
        if field.type in (int, float) and not (0 < value < float("inf") or (zero and value == 0)):
            raise ArgumentError(f"{field.name} must be {'at least' if zero else 'above'} 0 and finite, not {value}")
    if config.dropout >= 1:
        raise ArgumentError(f"dropout must be below 1, not {config.dropout}")


def refuse(hf: Mapping[str, Any], name: str, implemented: tuple[Any, ...]) -> None:
    """CheckpointError unless a field of config.json has an implemented value."""
    if hf.get(name) not in implemented:
        raise CheckpointError(f"config.json has {name}={hf[name]!r}, which leafbeam does not implement: use a model without it")


def config_from(kind: type[Config], values: Mapping[str, Any], required: Collection[str]) -> Config:
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
    inside = merged.get("rope_theta")
    if merged != plain | {"rope_theta": inside}:
        raise CheckpointError(
            f"config.json has rope_parameters={parameters!r}; leafbeam implements rope_type 'default' over whole heads only"
        )
    values = [theta for theta in (hf.get("rope_theta"), inside) if theta is not None]
    if len(values) == 2 and values[0] != values[1]:
        raise CheckpointError(
            f"config.json has rope_theta={values[0]!r} and, in rope_parameters, {values[1]!r}: "
            "keep the value that the model was trained with"
        )
    return values[0] if values else 10_000.0
