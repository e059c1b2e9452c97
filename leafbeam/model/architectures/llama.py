"""Llama (meta-llama/Llama-3.2-1B and others) and Mistral: no norm of queries and keys; Mistral's layers may be local."""

from leafbeam.model.architectures.fields import every_layer, read_biases, read_flag, read_rope, read_sizes, read_window
from leafbeam.model.architectures.types import Architecture, Fields, Values

_LLAMA = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048}
_MISTRAL = {"num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131_072, "sliding_window": 4096}


def read_llama(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _LLAMA)
    biases = read_biases(hf) | {"feed_forward_bias": read_flag(hf, "mlp_bias", default=False)}
    return values | biases | read_rope(hf, values) | {"query_key_norm": "none"}


def read_mistral(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _MISTRAL)
    values |= read_window(hf, values, every_layer(values))
    return values | read_rope(hf, values) | {"query_key_norm": "none"}


LLAMA = Architecture(read=read_llama)
MISTRAL = Architecture(read=read_mistral)
