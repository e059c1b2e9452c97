"""GPT-2: layer norms, learned positions, biases everywhere, and matrices stored as (inputs, outputs)."""

from torch import Tensor

from leafbeam.errors import CheckpointError
from leafbeam.model.architectures.fields import check_implemented, read_flag, read_sizes
from leafbeam.model.architectures.types import Architecture, Fields, Tensors, Values

_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_GPT2 = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "activation_function": "gelu_new",
}


def read_gpt2(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    check_implemented(hf, {"add_cross_attention": (False,), "scale_attn_by_inverse_layer_idx": (False,)})
    for name, own in _NAMES.items():  # aliases of transformers
        if name in hf and hf[name] != hf.get(own):
            raise CheckpointError(f"config.json has {name}={hf[name]!r}, GPT-2's {own}={hf.get(own)!r}: remove {name}")
    for own in ("n_embd", "n_head"):
        if not isinstance(hf.get(own), int):
            raise CheckpointError(f"config.json has {own}={hf.get(own)!r}: expected a whole number")
    sizes = {name: hf[own] for name, own in _NAMES.items() if own in hf}
    if "layer_norm_epsilon" in hf:
        sizes["rms_norm_eps"] = hf["layer_norm_epsilon"]
    left = {name: value for name, value in hf.items() if name not in ("head_dim", "num_key_value_heads", "rms_norm_eps")}
    values = read_sizes(left | sizes, _GPT2, activation="activation_function")
    hidden, size = values.get("hidden_size"), values.get("head_dim")
    inner = hf.get("n_inner")
    if not isinstance(hidden, int) or not isinstance(size, int) or (inner is not None and not isinstance(inner, int)):
        raise CheckpointError(f"config.json has n_embd={hidden!r}, n_inner={inner!r}: expected whole numbers")
    if size * values["num_attention_heads"] != hidden:
        raise CheckpointError(
            f"config.json has n_embd={hidden} and n_head={values['num_attention_heads']}: expected n_embd to be a multiple of "
            "n_head"
        )
    return values | {
        "intermediate_size": 4 * hidden if inner is None else inner,
        "norm": "layer",
        "query_key_norm": "none",
        "attention_bias": True,
        "attention_output_bias": True,
        "feed_forward_bias": True,
        "is_gated": False,
        "learned_positions": True,
        "rope_frequencies": (0.0,) * (size // 2),
        "attention_scale": 0.0 if read_flag(hf, "scale_attn_weights", default=True) else 1.0,
    }


_PARTS = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
_WHOLE = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "embed_positions.weight",
    "ln_f.weight": "norm.weight",
    "ln_f.bias": "norm.bias",
}


def tensors(name: str, tensor: Tensor, fields: Fields) -> Tensors:
    """Yield matrices as (outputs, inputs), and queries, keys and values apart."""
    inside = name.removeprefix("transformer.")
    if inside in _WHOLE:
        yield f"model.{_WHOLE[inside]}", tensor
        return
    head, _, rest = inside.partition(".")
    layer, _, part = rest.partition(".")
    if head != "h" or not layer.isdigit():
        yield name, tensor
        return
    if part in ("attn.bias", "attn.masked_bias"):  # masks that older files hold
        return
    module, _, kind = part.rpartition(".")
    rows = tensor.t() if tensor.ndim == 2 else tensor
    if module == "attn.c_attn":
        size = fields["hidden_size"]
        for letter, first in (("q", 0), ("k", size), ("v", 2 * size)):
            yield f"model.layers.{layer}.self_attn.{letter}_proj.{kind}", rows[first : first + size]
    else:
        yield f"model.layers.{layer}.{_PARTS.get(module, module)}.{kind}", rows


GPT2 = Architecture(
    read=read_gpt2,
    tensors=tensors,
    renamed=_NAMES | {"rms_norm_eps": "layer_norm_epsilon", "intermediate_size": "n_inner"},
)
