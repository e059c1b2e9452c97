"""Reading the fields of a config.json that decoders have in common: sizes, activations, windows, rotary positions."""

from collections.abc import Mapping
from sys import float_info

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leafbeam.errors import CheckpointError
from leafbeam.model.architectures.types import Fields, Values

# Fields of any config.json that change a model's weights or its code, and that leafbeam implements with no value.
NEITHER: dict[str, tuple[object, ...]] = dict.fromkeys(
    ("auto_map", "fusion_config", "per_layer_config", "quantization_config", "transformers_weights"), ()
)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Sizes by their names in `ModelConfig`, which are those of most files.
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_OTHERS = ("head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "initializer_range")


def check_implemented(hf: Fields, implemented: Mapping[str, tuple[object, ...]], *, where: str = "config.json") -> None:
    """Raise CheckpointError unless these fields of config.json are missing, null, or have one of these values."""
    for name, values in implemented.items():
        if hf.get(name) not in (None, *values):
            raise CheckpointError(f"{where} has {name}={hf[name]!r}, which leafbeam does not support: use a model without it")


def read_sizes(hf: Fields, defaults: Fields, *, activation: str = "hidden_act") -> Values:
    """Return the sizes and the activation of a decoder, after a check of what none implements.

    Args:
        hf: The fields of config.json.
        defaults: The defaults of transformers for fields that config.json may omit; the others are required.
        activation: The field that names the activation; its default is in `defaults` too.
    """
    check_implemented(hf, NEITHER)
    if hf.get("is_causal", True) is not True:
        raise CheckpointError(f"config.json has is_causal={hf['is_causal']!r}; leafbeam implements causal attention only")
    present = {name: hf[name] for name in (*_SIZES, *_OTHERS) if name in hf}
    values = {name: value for name, value in defaults.items() if name != activation} | present
    heads = values.get("num_attention_heads")
    if "num_key_value_heads" in values and values["num_key_value_heads"] is None:  # plain multi-head attention
        values["num_key_value_heads"] = heads
    if values.get("head_dim", 0) is None and defaults["head_dim"] is None:
        values["head_dim"] = _quotient(values.get("hidden_size"), heads)
    return values | {"hidden_act": read_activation(hf, activation, str(defaults.get(activation, "silu")))}


def read_activation(hf: Fields, name: str, default: str) -> str:
    """Return `ModelConfig`'s name of the activation function that a field names."""
    value = hf.get(name, default)
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"config.json has {name}={value!r}, which leafbeam does not support: it implements {known}")
    return _ACTIVATIONS[value]


def read_flag(hf: Fields, name: str, *, default: bool) -> bool:
    """Return a field that is true or false."""
    value = hf.get(name, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json has {name}={value!r}: expected true or false")
    return value


def read_biases(hf: Fields) -> Values:
    """Return the biases of attention: all of its matrices have one, or none has."""
    bias = read_flag(hf, "attention_bias", default=False)
    return {"attention_bias": bias, "attention_output_bias": bias}


def read_number(fields: Fields, name: str, *, where: str = "config.json", default: float | None = None) -> float:
    """Return a field that is a number above 0; a default takes the place of one that is missing or null."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= float_info.max:
        raise CheckpointError(f"{where} has {name}={value!r}: expected a number above 0")
    return value


def read_layers(hf: Fields, values: Fields, *, pattern: tuple[int, ...]) -> Values:
    """Return which layers are local, and their window.

    Args:
        hf: The fields of config.json; `layer_types` names the kind of each layer.
        values: The fields that were read before, with num_hidden_layers.
        pattern: The local layers where there is no `layer_types`.
    """
    kinds, num_layers = hf.get("layer_types"), values.get("num_hidden_layers")
    known = {"full_attention", "sliding_attention"}
    local = pattern
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != num_layers or not all(kind in known for kind in map(str, kinds)):
            raise CheckpointError(
                f"config.json has layer_types={kinds!r}; leafbeam implements full_attention and sliding_attention, one entry "
                f"for each of the num_hidden_layers={num_layers!r}"
            )
        local = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    return read_window(hf, values, local)


def every_layer(values: Fields) -> tuple[int, ...]:
    """Return all layers, none if their number is not an integer."""
    num_layers = values.get("num_hidden_layers")
    return tuple(range(num_layers)) if isinstance(num_layers, int) else ()


def read_window(hf: Fields, values: Fields, local: tuple[int, ...]) -> Values:
    """Return these layers as local ones with the file's window; none are local if it has no window."""
    window = hf.get("sliding_window", values.get("sliding_window"))
    if not local or window is None:
        return {"sliding_window": 0, "local_layers": ()}
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise CheckpointError(f"config.json has sliding_window={window!r}: expected a whole number above 0")
    return {"sliding_window": window, "local_layers": local}


def read_rope(hf: Fields, values: Fields) -> Values:
    """Return the rotations of a config.json, whose parameters are in `rope_scaling` up to transformers 4, else in
    `rope_parameters`; as there, the former takes the place of the latter.
    """
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    parameters = check_rope(hf, name)
    for fields, where in ((hf, "config.json"), (parameters, f"{name} of config.json")):
        check_implemented(fields, {"partial_rotary_factor": (1.0,)}, where=where)
    theta = read_theta(hf, parameters, name)
    frequencies, scale = rotations(parameters, name, theta, values, hf.get("original_max_position_embeddings"))
    return {"rope_theta": theta, "rope_frequencies": frequencies, "rope_scale": scale}


def read_theta(hf: Fields, parameters: Fields, where: str, *, name: str = "rope_theta", default: float = 10_000.0) -> float:
    """Return the base of the frequencies: the field `name` of config.json, or `rope_theta` in its field `where`."""
    outside, inside = hf.get(name), parameters.get("rope_theta")
    if None not in (outside, inside) and outside != inside:
        raise CheckpointError(f"config.json has {name}={outside!r} and, in {where}, {inside!r}: keep one")
    return read_number({name: inside if outside is None else outside}, name, default=default)


def check_rope(hf: Fields, name: str) -> Fields:
    """Return the parameters of the rotations, which are not an object for each kind of layer."""
    parameters: object = hf.get(name) or {}
    if not isinstance(parameters, dict) or any(isinstance(value, dict) for value in parameters.values()):
        raise CheckpointError(f"config.json has {name}={parameters!r}: expected an object of rope_type and its parameters")
    return parameters


def rotations(
    parameters: Fields, name: str, theta: float, values: Fields, original: object = None, *, is_plain_named: bool = False
) -> tuple[tuple[float, ...], float]:
    """Return the radians per position of each pair of values of a head, and the scale of rotated values.

    No frequencies stand for those of theta. In transformers they are computed in float32 too.

    Args:
        parameters: Of the rotations, with their `rope_type`.
        name: The field that holds them, for messages.
        theta: The base of the frequencies.
        values: The fields that were read before, with head_dim and max_position_embeddings.
        original: The number of positions before they were extended, where config.json names it elsewhere.
        is_plain_named: Whether the frequencies of theta are returned too.
    """
    kind, where = parameters.get("rope_type", parameters.get("type", "default")), f"{name} of config.json"
    positions, size = values.get("max_position_embeddings"), values.get("head_dim")
    if not isinstance(size, int) or not isinstance(positions, int) or not (0 < size < 2**20 and 0 < positions < 2**31):
        raise CheckpointError(f"config.json has head_dim={size!r}, max_position_embeddings={positions!r}: expected sizes")
    plain_E = 1.0 / theta ** (np.arange(0, size, 2) / size)
    if kind == "default":
        return _float32(plain_E) if is_plain_named else (), 1.0
    if kind == "dynamic":  # which changes no prompt of up to max_position_embeddings, and longer ones are refused
        read_number(parameters, "factor", where=where)
        return _float32(plain_E) if is_plain_named else (), 1.0
    if kind == "linear":
        return _float32(plain_E / read_number(parameters, "factor", where=where)), 1.0
    before = read_number(
        parameters if original is None else {"original_max_position_embeddings": original},
        "original_max_position_embeddings",
        where=where,
        default=positions,
    )
    if kind == "llama3":
        factor, low, high = (
            read_number(parameters, part, where=where) for part in ("factor", "low_freq_factor", "high_freq_factor")
        )
        turns_E = before * plain_E / (2 * np.pi)  # within the positions of the training
        share_E = np.clip((turns_E - low) / (high - low), 0, 1) if high != low else (turns_E > high).astype(float)
        return _float32(plain_E * (share_E + (1 - share_E) / factor)), 1.0
    if kind == "yarn":
        factor = read_number(parameters, "factor", where=where, default=positions / before)
        return _float32(_yarn(parameters, plain_E, theta, size, before, factor)), _yarn_scale(parameters, factor, where)
    raise CheckpointError(
        f"config.json has {name}={dict(parameters)!r}; leafbeam implements the rope_type default, linear, dynamic, llama3, yarn"
    )


def _yarn(
    parameters: Fields, plain_E: NDArray[np.floating], theta: float, size: int, before: float, factor: float
) -> NDArray[np.floating]:
    """Return YaRN's frequencies: those that turn often stay, those that turn seldom are divided by the factor."""

    def pair_of(turns: float) -> float:
        return size * np.log(before / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = pair_of(parameters.get("beta_fast") or 32), pair_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    slow_E = np.clip((np.arange(size // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    return plain_E * (1 - slow_E) + plain_E / factor * slow_E


def _yarn_scale(parameters: Fields, factor: float, where: str) -> float:
    """Return the scale of YaRN's rotated values."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * float(np.log(factor)) + 1.0

    if parameters.get("attention_factor") is not None:
        return read_number(parameters, "attention_factor", where=where)
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return scale(parameters["mscale"]) / scale(parameters["mscale_all_dim"])
    return scale(1.0)


def _float32(values: ArrayLike) -> tuple[float, ...]:
    return tuple(np.asarray(values, np.float32).tolist())


def _quotient(size: object, heads: object) -> int:
    if not isinstance(size, int) or not isinstance(heads, int) or heads < 1:
        raise CheckpointError(f"config.json has hidden_size={size!r} and num_attention_heads={heads!r}: expected integers")
    return size // heads
