"""Llama (meta-llama/Llama-3.2-1B and others) and Mistral: no norm of queries and keys; Mistral's layers may be local."""

from typing import Any

from leafbeam.model.architectures.fields import Fields, read_flag, read_layers, read_rope, read_sizes
from leafbeam.model.architectures.types import Architecture

_LLAMA = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048}
_MISTRAL = {"num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131_072, "sliding_window": 4096}


def read_llama(hf: Fields) -> dict[str, Any]:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _LLAMA)
    bias = read_flag(hf, "attention_bias", default=False)
    biases = {"attention_bias": bias, "attention_output_bias": bias}
    biases["feed_forward_bias"] = read_flag(hf, "mlp_bias", default=False)
    return values | biases | read_rope(hf, values) | {"query_key_norm": "none"}


def read_mistral(hf: Fields) -> dict[str, Any]:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _MISTRAL)
    num_layers = values.get("num_hidden_layers")
    pattern = tuple(range(num_layers)) if isinstance(num_layers, int) else ()
    values |= read_layers({name: value for name, value in hf.items() if name != "layer_types"}, values, pattern=pattern)
    return values | read_rope(hf, values) | {"query_key_norm": "none"}


LLAMA = Architecture(read=read_llama)
MISTRAL = Architecture(read=read_mistral)
