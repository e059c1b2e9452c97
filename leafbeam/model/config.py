"""The shape of a transformer, in the words of Hugging Face's config.json for Qwen3."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from leafbeam.errors import ArgumentError, CheckpointError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a Qwen3 decoder; the defaults are the small model that learns a shop's catalog on a CPU.

    Field names and meanings are those of Qwen3's config.json, save `dropout`: the share of values dropped after the
    embedding and after every attention and feed-forward block while training, for which that file has no word.

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
        for field in fields(self):
            value = getattr(self, field.name)
            allowed = {int: int, float: int | float, bool: bool}[field.type]  # pyright: ignore[reportArgumentType]
            if not isinstance(value, allowed) or (isinstance(value, bool) and field.type is not bool):
                raise ArgumentError(f"{field.name} must be {getattr(field.type, '__name__', field.type)}, not {value!r}")
            if field.name != "dropout" and field.type is not bool and not 0 < value < float("inf"):
                raise ArgumentError(f"{field.name} must be above 0, not {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ArgumentError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}: every key head serves the same number of queries"
            )
        if self.head_dim % 2:
            raise ArgumentError(f"head_dim={self.head_dim} must be even: rotary positions turn pairs of values")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"dropout must be at least 0 and below 1, not {self.dropout}")

    @property
    def group_size(self) -> int:
        """How many query heads share one key head."""
        return self.num_attention_heads // self.num_key_value_heads

    def to_hf(self) -> dict[str, Any]:
        """The fields of config.json, readable by transformers 4.51 and later (it names rope_theta both ways)."""
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
        """The config of a parsed config.json.

        What changes the model's computation is either understood or refused: CheckpointError names the field.
        """
        if hf.get("model_type") != "qwen3":
            raise CheckpointError(f"config.json has model_type {hf.get('model_type')!r}; leafbeam runs 'qwen3' models only")
        _refuse(hf, "attention_bias", (None, False))
        _refuse(hf, "attention_dropout", (None, 0, 0.0))
        _refuse(hf, "auto_map", (None,))
        _refuse(hf, "hidden_act", (None, "silu"))
        _refuse(hf, "quantization_config", (None,))
        _refuse(hf, "rope_scaling", (None, {"rope_type": "default"}))
        _refuse(hf, "use_sliding_window", (None, False))
        kinds = hf.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
            raise CheckpointError(f"config.json has layer_types={kinds!r}; leafbeam implements full_attention only")

        # Left out of config.json, these have the value that transformers' Qwen3Config gives them, not leafbeam's default.
        absent: dict[str, Any] = {
            "head_dim": 128,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.02,
        }
        absent |= {"tie_word_embeddings": False}
        given: dict[str, Any] = absent | {name: hf[name] for name in (field.name for field in fields(cls)) if name in hf}
        required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"}
        required |= {"num_attention_heads", "num_key_value_heads"}
        if missing := sorted(required - given.keys()):
            raise CheckpointError(f"config.json lacks {', '.join(missing)}: it is not a whole Qwen3 config")
        if given["num_key_value_heads"] is None:  # written so for plain multi-head attention
            given["num_key_value_heads"] = given["num_attention_heads"]
        given |= {"rope_theta": _rope_theta(hf), "dropout": dropout}
        try:
            return cls(**given)
        except ArgumentError as error:
            raise CheckpointError(f"config.json cannot be used: {error}") from error


def _refuse(hf: Mapping[str, Any], name: str, understood: tuple[Any, ...]) -> None:
    if hf.get(name) not in understood:
        raise CheckpointError(f"config.json has {name}={hf[name]!r}, which leafbeam does not implement: use a model without it")


def _rope_theta(hf: Mapping[str, Any]) -> Any:
    """The base of the rotary frequencies: `rope_theta` up to transformers 4, inside `rope_parameters` since 5."""
    parameters = hf.get("rope_parameters") or {}
    plain = {"rope_theta": None, "rope_type": "default", "partial_rotary_factor": 1.0}
    given = plain | parameters if isinstance(parameters, dict) else {"": parameters}
    inside = given.get("rope_theta")
    if given != plain | {"rope_theta": inside}:
        raise CheckpointError(
            f"config.json has rope_parameters={parameters!r}; leafbeam implements rope_type 'default' over whole heads only"
        )
    found = [theta for theta in (hf.get("rope_theta"), inside) if theta is not None]
    if len(found) == 2 and found[0] != found[1]:
        raise CheckpointError(
            f"config.json has rope_theta={found[0]!r} and, in rope_parameters, {found[1]!r}: "
            "keep the one that the model was trained with"
        )
    return found[0] if found else 10_000.0
