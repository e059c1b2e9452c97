"""Qwen2 (Qwen2.5 too), Qwen3 and Qwen3 with experts."""

from re import fullmatch

from torch import Tensor

from leafbeam.errors import CheckpointError
from leafbeam.model.architectures.fields import (
    every_layer,
    read_biases,
    read_layers,
    read_rope,
    read_sizes,
    read_window,
)
from leafbeam.model.architectures.types import Architecture, Fields, Tensors, Values, as_stored

_QWEN2 = {"head_dim": None, "max_position_embeddings": 32_768, "sliding_window": 4096}
_QWEN3 = _QWEN2 | {"head_dim": 128}


def _local_layers(hf: Fields, values: Fields) -> Values:
    """Return the local layers: those from max_window_layers on, if use_sliding_window says so."""
    first, num_layers = hf.get("max_window_layers", 28), values.get("num_hidden_layers")
    is_used = bool(hf.get("use_sliding_window"))
    pattern: tuple[int, ...] = ()
    if is_used:
        if not isinstance(first, int) or isinstance(first, bool) or not isinstance(num_layers, int):
            raise CheckpointError(f"config.json has max_window_layers={first!r}: expected a whole number")
        pattern = tuple(range(max(0, first), num_layers))
    layers = read_layers(hf, values, pattern=pattern)
    if layers["local_layers"] and not is_used:
        raise CheckpointError(
            f"config.json has layer_types={hf.get('layer_types')!r} with sliding_attention and use_sliding_window="
            f"{hf.get('use_sliding_window')!r}, so that there is no window: set use_sliding_window to true"
        )
    return layers


def read_qwen2(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _QWEN2)
    values |= _local_layers(hf, values)
    return values | read_rope(hf, values) | {"attention_bias": True, "query_key_norm": "none"}


def read_qwen3(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _QWEN3)
    values |= _local_layers(hf, values)
    return values | read_rope(hf, values) | read_biases(hf)


QWEN2 = Architecture(read=read_qwen2)
QWEN3 = Architecture(read=read_qwen3)


def read_qwen3_moe(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _QWEN2 | {"num_key_value_heads": 4})
    every = every_layer(values)
    values |= read_window(hf, values, every if hf.get("use_sliding_window") else ())
    values |= read_rope(hf, values) | read_biases(hf)
    dense, step = hf.get("mlp_only_layers") or [], hf.get("decoder_sparse_step", 1)
    if not isinstance(dense, list) or not isinstance(step, int) or step < 1:
        raise CheckpointError(
            f"config.json has mlp_only_layers={dense!r}, decoder_sparse_step={step!r}: expected layers, a number"
        )
    own_name = "num_local_experts" if "num_local_experts" in hf else "num_experts"  # transformers has both names
    if not isinstance(hf.get(own_name, 128), int):
        raise CheckpointError(f"config.json has {own_name}={hf[own_name]!r}: expected a whole number")
    return values | {
        "num_experts": hf.get(own_name, 128),
        "num_experts_per_tok": hf.get("num_experts_per_tok", 8),
        "norm_topk_prob": hf.get("norm_topk_prob", False),
        "moe_intermediate_size": hf.get("moe_intermediate_size", 768),
        "expert_layers": tuple(layer for layer in every if layer not in dense and (layer + 1) % step == 0),
    }


_EXPERT_PARTS = {"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"}


def experts_tensors(name: str, tensor: Tensor, fields: Fields) -> Tensors:
    """Yield stacked experts from those that are stored one by one or stacked, the gate with the up-projection."""
    before, _, after = name.partition(".mlp.")
    single = fullmatch(r"experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight", after)
    if single is not None:
        yield f"{before}.mlp.{_EXPERT_PARTS[single[2]]}:{int(single[1])}", tensor
    elif after == "experts.gate_up_proj":
        half = tensor.shape[1] // 2
        yield from ((f"{before}.mlp.wi_0", tensor[:, :half]), (f"{before}.mlp.wi_1", tensor[:, half:]))
    elif after == "experts.down_proj":
        yield f"{before}.mlp.wo", tensor
    elif after == "gate.weight":
        yield f"{before}.mlp.router.weight", tensor
    else:
        yield from as_stored(name, tensor, fields)


QWEN3_MOE = Architecture(read=read_qwen3_moe, tensors=experts_tensors)
