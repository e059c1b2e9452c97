"""Gemma, Gemma 2 and the text models of Gemma 3: norms of 1 + w, scaled embeddings, soft caps, local layers."""

from leafbeam.errors import CheckpointError
from leafbeam.model.architectures.fields import (
    check_implemented,
    check_rope,
    every_layer,
    read_biases,
    read_layers,
    read_number,
    read_rope,
    read_sizes,
    read_theta,
    rotations,
)
from leafbeam.model.architectures.types import Architecture, Fields, Values, renamed

_GEMMA = {"head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}
_GEMMA2 = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA3 = _GEMMA2 | {"max_position_embeddings": 131_072}


def _read(hf: Fields, defaults: Fields, *, activation: str) -> Values:
    """Return what all three have in common."""
    values = read_sizes(hf, defaults, activation=activation)
    check_implemented(hf, {"use_bidirectional_attention": (False,)})
    hidden = values.get("hidden_size")
    values["embedding_scale"] = hidden**0.5 if isinstance(hidden, int) and hidden > 0 else 1.0
    return values | read_biases(hf) | {"query_key_norm": "none"}


def read_gemma(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = _read(hf, _GEMMA, activation="hidden_act")
    if hf.get("hidden_act") == "gelu":  # in the first files, which mean the tanh form
        values["hidden_act"] = "gelu_tanh"
    return values | read_rope(hf, values)


def _read_scores(hf: Fields, values: Fields) -> Values:
    """Return the scale of the scores and the cap of the logits."""
    scalar = read_number(hf, "query_pre_attn_scalar", default=256)
    return {"attention_scale": scalar**-0.5, "norm_placement": "both"}


def _cap(hf: Fields, name: str, default: float) -> float:
    """Return a soft cap, 0 where the file has none."""
    return 0.0 if hf.get(name, default) is None or hf.get(name, default) == 0 else read_number(hf, name, default=default)


def _pattern(values: Fields, period: int) -> tuple[int, ...]:
    """Return the local layers where every period-th is global."""
    return tuple(layer for layer in every_layer(values) if (layer + 1) % period)


def read_gemma2(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = _read(hf, _GEMMA2, activation="hidden_activation")
    values |= read_layers(hf, values, pattern=_pattern(values, 2)) | read_rope(hf, values) | _read_scores(hf, values)
    caps = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
    return values | {"attention_cap": _cap(hf, caps["attention_cap"], 50.0), "logit_cap": _cap(hf, caps["logit_cap"], 30.0)}


def read_gemma3(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`. Its soft cap of attention scores is not used, as in transformers."""
    values = _read(hf, _GEMMA3, activation="hidden_activation")
    period = hf.get("sliding_window_pattern", 6)
    if not isinstance(period, int) or period < 1:
        raise CheckpointError(f"config.json has sliding_window_pattern={period!r}: expected a whole number above 0")
    values |= read_layers(hf, values, pattern=_pattern(values, period)) | _read_scores(hf, values)
    return values | _read_ropes(hf, values) | {"query_key_norm": "head", "logit_cap": _cap(hf, "final_logit_softcapping", 0)}


def _read_ropes(hf: Fields, values: Fields) -> Values:
    """Return the rotations of both kinds of layers: nested in transformers 5, in fields of their own before."""
    check_implemented(hf, {"partial_rotary_factor": (1.0,)})
    nested: object = hf.get("rope_parameters") or {}
    if not isinstance(nested, dict) or not nested.keys() <= {"full_attention", "sliding_attention"}:
        raise CheckpointError(f"config.json has rope_parameters={nested!r}: expected full_attention and sliding_attention")
    result: Values = {}
    for kind, name, default in (
        ("full_attention", "rope_theta", 1_000_000.0),
        ("sliding_attention", "rope_local_base_freq", 10_000.0),
    ):
        parameters = dict(check_rope({"rope_parameters": nested.get(kind)}, "rope_parameters"))
        if kind == "full_attention":
            parameters |= check_rope(hf, "rope_scaling")
        if "type" in parameters and "rope_type" not in parameters:  # which transformers 5 overwrites with the default
            raise CheckpointError(f"config.json has rope_scaling={parameters!r}: name its type rope_type")
        parameters.pop("truncate", None)  # transformers looks for it outside of these objects
        where = "rope_scaling" if hf.get("rope_scaling") and kind == "full_attention" else "rope_parameters"
        check_implemented(parameters, {"partial_rotary_factor": (1.0,)}, where=f"{where} of config.json")
        theta = read_theta(hf, parameters, where, name=name, default=default)
        frequencies, scale = rotations(parameters, where, theta, values, is_plain_named=kind == "sliding_attention")
        if kind == "full_attention":
            result |= {"rope_theta": theta, "rope_frequencies": frequencies, "rope_scale": scale}
        else:
            result |= {"local_frequencies": frequencies, "local_scale": scale}
    return result


_NORMS = {  # in the order of a layer, where Llama has two
    "post_attention_layernorm": "attention_output_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


GEMMA = Architecture(read=read_gemma, norm_offset=1.0)
GEMMA2 = Architecture(read=read_gemma2, tensors=renamed(_NORMS), norm_offset=1.0)
GEMMA3_TEXT = Architecture(read=read_gemma3, tensors=renamed(_NORMS), norm_offset=1.0)
