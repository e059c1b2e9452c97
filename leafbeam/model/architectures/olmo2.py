"""OLMo 2: norms after each block alone, and of all heads of queries and keys together."""

from leafbeam.model.architectures.fields import read_biases, read_rope, read_sizes
from leafbeam.model.architectures.types import Architecture, Fields, Values, renamed

_OLMO2 = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
_NORMS = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "feed_forward_output_norm",
}


def read_olmo2(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _OLMO2)
    return values | read_biases(hf) | read_rope(hf, values) | {"norm_placement": "after", "query_key_norm": "all"}


OLMO2 = Architecture(read=read_olmo2, tensors=renamed(_NORMS))
