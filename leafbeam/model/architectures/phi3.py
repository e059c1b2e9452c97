"""Phi-3: fused matrices of queries, keys and values and of gate and up-projection, partly rotated heads, LongRoPE.

LongRoPE's frequencies depend on the length of a text: those of short texts hold up to `original_max_position_embeddings`, which
is the model's limit in leafbeam.
"""

import numpy as np
from torch import Tensor

from leafbeam.errors import CheckpointError, counted
from leafbeam.model.architectures.fields import (
    check_rope,
    every_layer,
    read_number,
    read_sizes,
    read_theta,
    read_window,
)
from leafbeam.model.architectures.types import Architecture, Fields, Tensors, Values, as_stored

_PHI3 = {
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}


def read_phi3(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`."""
    values = read_sizes(hf, _PHI3)
    values |= read_window(hf, values, every_layer(values))
    return values | _read_rope(hf, values) | {"query_key_norm": "none"}


def _read_rope(hf: Fields, values: Fields) -> Values:
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    parameters, positions, size = check_rope(hf, name), values.get("max_position_embeddings"), values.get("head_dim")
    share = read_number({"partial_rotary_factor": 1.0} | _only(hf) | _only(parameters), "partial_rotary_factor")
    if not isinstance(size, int) or not isinstance(positions, int) or share > 1:
        sizes = f"head_dim={size!r}, max_position_embeddings={positions!r} and partial_rotary_factor={share!r}"
        raise CheckpointError(f"config.json has {sizes}: expected whole numbers and at most 1")
    rotated = int(size * share)
    theta = read_theta(hf, parameters, name)
    plain_E, scale = 1.0 / theta ** (np.arange(0, rotated, 2) / max(1, rotated)), 1.0
    kind, limit = parameters.get("rope_type", parameters.get("type", "default")), positions
    if kind in ("longrope", "su", "yarn"):  # three names of one
        before = hf.get("original_max_position_embeddings", parameters.get("original_max_position_embeddings", 4096))
        before = read_number({"original_max_position_embeddings": before}, "original_max_position_embeddings")
        factors: object = parameters.get("short_factor")
        if not isinstance(factors, list) or len(factors) != len(plain_E):
            raise CheckpointError(
                f"config.json has {name}={parameters!r}: expected {counted(len(plain_E), 'number')} as short_factor"
            )
        plain_E = plain_E / [read_number({"short_factor": factor}, "short_factor", where=name) for factor in factors]
        factor = read_number(parameters, "factor", where=name, default=positions / before)
        default = float(np.sqrt(1 + np.log(factor) / np.log(before))) if factor > 1 else 1.0
        scale = read_number(parameters, "attention_factor", where=name, default=default)
        limit = min(positions, int(before))
    elif kind != "default":
        raise CheckpointError(f"config.json has {name}={parameters!r}: of a phi3 leafbeam reads rope_type default and longrope")
    frequencies = np.zeros(size // 2, np.float32)
    frequencies[: len(plain_E)] = plain_E
    values = {"rope_theta": theta, "rope_scale": scale, "max_position_embeddings": limit}
    return values | {"rope_frequencies": tuple(frequencies.tolist())}


def _only(fields: Fields) -> Values:
    value = fields.get("partial_rotary_factor")
    return {} if value is None else {"partial_rotary_factor": value}


def tensors(name: str, tensor: Tensor, fields: Fields) -> Tensors:
    """Yield the parts of fused matrices, heads in the order in which all of a head is rotated."""
    size, before = fields["head_dim"], name.rpartition(".self_attn.")[0] or name.rpartition(".mlp.")[0]
    if name.endswith("self_attn.qkv_proj.weight"):
        queries, keys = fields["num_attention_heads"] * size, fields["num_key_value_heads"] * size
        order = _rotated_order(size, 2 * sum(frequency != 0 for frequency in fields["rope_frequencies"]))
        for part, first, count in (("q", 0, queries), ("k", queries, keys), ("v", queries + keys, keys)):
            rows = tensor[first : first + count]
            if part != "v" and len(rows) == count:
                rows = rows.unflatten(0, (-1, size))[:, order].flatten(0, 1)
            yield f"{before}.self_attn.{part}_proj.weight", rows
    elif name.endswith("mlp.gate_up_proj.weight"):
        inner = fields["intermediate_size"]
        yield from ((f"{before}.mlp.gate_proj.weight", tensor[:inner]), (f"{before}.mlp.up_proj.weight", tensor[inner:]))
    else:
        yield from as_stored(name, tensor, fields)


def _rotated_order(size: int, rotated: int) -> list[int]:
    """Return where the values of a head are stored, of which the first ones are rotated in pairs of (i, i + rotated / 2).

    Here pairs are (i, i + size / 2), so that a head's first half is the first half of both what is rotated and what is not.
    """
    half, rest = rotated // 2, (size - rotated) // 2
    first = [*range(half), *range(rotated, rotated + rest)]
    return [*first, *range(half, rotated), *range(rotated + rest, size)]


PHI3 = Architecture(read=read_phi3, tensors=tensors)
