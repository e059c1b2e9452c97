"""OLMo 2: norms after each block alone, and of all heads of queries and keys together."""

from collections.abc import Iterator, Mapping
from typing import Any

from leafbeam.model.architectures.fields import Fields, read_flag, read_rope, read_sizes
from leafbeam.model.architectures.types import Architecture, as_stored

_OLMO2 = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
_NORMS = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def read_olmo2(hf: Fields) -> dict[str, Any]:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _OLMO2)
    bias = read_flag(hf, "attention_bias", default=False)
    biases = {"attention_bias": bias, "attention_output_bias": bias}
    return values | biases | read_rope(hf, values) | {"norm_placement": "after", "query_key_norm": "all"}


def tensors(name: str, tensor: Any, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the norms after a block under leafbeam's names."""
    before, dot, last = name.removesuffix(".weight").rpartition(".")
    yield from as_stored(f"{before}{dot}{_NORMS[last]}.weight" if last in _NORMS else name, tensor, fields)


OLMO2 = Architecture(read=read_olmo2, tensors=tensors)
