"""Checkpoints of GRID (snap-research/GRID): a T5 with an embedding and a head for each level, saved by Lightning.

Shapes: L levels, V codes of a level, D hidden.
"""

import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch._utils import _rebuild_parameter, _rebuild_tensor_v2  # pyright: ignore[reportPrivateUsage]

from leafbeam.errors import CheckpointError
from leafbeam.model.config import EncoderDecoderConfig
from leafbeam.model.encoder_decoder import EncoderDecoder
from leafbeam.model.vocabulary import PromptTokens, TokenTable

_STACKS = {"encoder": "encoder.encoder.encoder.", "decoder": "decoder.decoder."}
_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_CODES, _SEPARATOR, _START = "item_sid_embedding_table_encoder.weight", "sep_token", "decoder.bos_token"
_SAFE = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}


class _Ignored:
    """A stand-in for every object of a checkpoint that is not a tensor, such as its optimizer: it holds and does nothing."""

    def __new__(cls, *_: object, **__: object) -> "_Ignored":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> "_Ignored":
        return self

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...

    def add(self, value: object) -> None: ...


class _TensorsOnly:
    """The part of the module pickle that `torch.load` uses, without any call but those that make tensors."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> object:
            return _SAFE.get((module, name), _Ignored)


def load_grid(path: Path) -> EncoderDecoder:
    """Return the model of a GRID checkpoint, a Lightning file or a file of its state_dict; no code in the file runs.

    The sizes are those of the tensors. A prompt is the codes of each item with the separator after them.

    Raises:
        CheckpointError: If the file is not such a checkpoint, or has parts that leafbeam does not read.
    """
    state = _read_state(path)
    if "user_embedding.weight" in state:
        raise CheckpointError(f"{path} has an embedding of users (num_user_bins), which leafbeam does not read: train without")
    needed = (_CODES, _SEPARATOR, _START, "decoder.decoder_mlp.0.weight", *(prefix + _BIAS for prefix in _STACKS.values()))
    if missing := [name for name in needed if name not in state]:
        raise CheckpointError(f"{path} lacks {missing[0]}: expected a checkpoint of GRID's SemanticIDEncoderDecoder")
    heads = [state[f"decoder.decoder_mlp.{level}.weight"] for level in range(_count(state, r"decoder\.decoder_mlp\.(\d+)\."))]
    num_levels, (num_codes, hidden) = len(heads), heads[0].shape
    num_all = num_levels * num_codes
    separator, start, pad = range(num_all, num_all + 3)
    levels = tuple(tuple(range(level * num_codes, (level + 1) * num_codes)) for level in range(num_levels))
    vocabulary = TokenTable(
        tokens_per_level=levels,
        size=num_all + 3,
        pad=pad,
        bos=start,
        eos=pad,
        prompt=PromptTokens(between=(separator,), after=(separator,)),
    )
    own = state[_SEPARATOR].new_zeros(1, hidden)
    tensors = {
        "shared.weight": torch.cat([state[_CODES], state[_SEPARATOR], state[_START], own]),
        "lm_head.weight": torch.cat([*heads, own, own, own]),
    }
    for stack, prefix in _STACKS.items():
        for name, tensor in state.items():
            if name.startswith(prefix):
                tensors[f"{stack}.{name.removeprefix(prefix).replace('.mlp.model.', '.DenseReluDense.')}"] = tensor
    model = EncoderDecoder(_config(state, vocabulary, hidden), vocabulary, device="meta")
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} has other tensors than a T5 of GRID ({reason:.200}): leafbeam cannot read it") from error
    if bad := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
        raise CheckpointError(f"{path} holds values that are not finite (NaN, infinity) in {bad}: train it again")
    return model.eval()


def _config(state: Mapping[str, Tensor], vocabulary: TokenTable, hidden: int) -> EncoderDecoderConfig:
    """Return the sizes that the tensors have. T5's max_distance leaves no trace in them: GRID leaves it at its default."""
    encoder = _STACKS["encoder"]
    buckets, num_heads = state[encoder + _BIAS].shape
    first = f"{encoder}block.0.layer.1."
    mlp_layers = sum(name.startswith(f"{first}mlp.model.") and name.endswith(".weight") for name in state) - 1
    inner = next(
        (
            tensor
            for name, tensor in state.items()
            if name in (f"{first}mlp.model.0.weight", f"{first}DenseReluDense.wi.weight")
        ),
        None,
    )
    if inner is None:
        raise CheckpointError(f"the checkpoint lacks {first}mlp.model.0.weight: expected a T5 of GRID with relu")
    return EncoderDecoderConfig(
        vocab_size=vocabulary.size,
        d_model=hidden,
        d_kv=state[f"{encoder}block.0.layer.0.SelfAttention.q.weight"].shape[0] // num_heads,
        d_ff=inner.shape[0],
        num_layers=_count(state, re.escape(encoder) + r"block\.(\d+)\."),
        num_decoder_layers=_count(state, re.escape(_STACKS["decoder"]) + r"block\.(\d+)\."),
        num_heads=num_heads,
        relative_attention_num_buckets=buckets,
        mlp_layers=max(0, mlp_layers),
        tie_word_embeddings=False,
        scale_decoder_outputs=False,
        decoder_start_token_id=vocabulary.bos,
    )


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    """Return one more than the largest number in the names of tensors, 0 if no name has one."""
    return max((int(match[1]) + 1 for name in state if (match := re.match(pattern, name))), default=0)


def _read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the .ckpt that GRID's training has written (checkpoints/)")
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=False, pickle_module=_TensorsOnly)
    except Exception as error:  # an unpickler raises any
        raise CheckpointError(
            f"{path} is damaged, or not a checkpoint of Lightning ({type(error).__name__}): copy it"
        ) from error
    state: object = content.get("state_dict", content) if isinstance(content, dict) else None
    tensors = {name: value for name, value in cast("dict[object, object]", state or {}).items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors by name: give the .ckpt that GRID's training has written")
    return {str(name): tensor.detach() for name, tensor in tensors.items()}
