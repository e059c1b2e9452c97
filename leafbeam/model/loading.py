"""Making models: from a config, from a directory of any architecture, with the sizes of published models.

Sources: the config.json of Qwen/Qwen3-0.6B, -1.7B and -4B; TIGER (Rajput et al., 2023), implementation details.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

import torch

from leafbeam.errors import CheckpointError, check_choice, short_repr
from leafbeam.extras import require_device
from leafbeam.machine import return_freed_memory
from leafbeam.model.architectures import DECODERS
from leafbeam.model.config import ENCODER_DECODERS, EncoderDecoderConfig, ModelConfig
from leafbeam.model.encoder_decoder import EncoderDecoder
from leafbeam.model.generation_settings import warn_of_settings
from leafbeam.model.transformer import Transformer
from leafbeam.model.vocabulary import AnyVocabulary, TokenTable, Vocabulary
from leafbeam.model.weights import read_hf

AnyConfig = ModelConfig | EncoderDecoderConfig
AnyModel = Transformer | EncoderDecoder
Qwen3Size = Literal["0.6B", "1.7B", "4B"]

_QWEN3_TEXT = 151_669  # tokens of its tokenizer
_QWEN3_ROWS = 151_936  # rows of its embedding
_PAD, _BOS, _EOS = 151_643, 151_644, 151_645  # <|endoftext|>, <|im_start|>, <|im_end|>


def new_model(
    config: AnyConfig,
    vocabulary: AnyVocabulary,
    generator: torch.Generator | None = None,
    *,
    device: torch.device | str = "cpu",
) -> AnyModel:
    """Return an untrained model of a config's architecture. Raises ArgumentError for a device that this machine lacks."""
    require_device(str(device))
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config, vocabulary, generator, device=device)
    return Transformer(config, vocabulary, generator, device=device)


def load_model(
    directory: str | PathLike[str],
    *,
    vocabulary: AnyVocabulary | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> AnyModel:
    """Load the model in a directory, of the architecture that the model_type in its config.json names.

    Raises:
        CheckpointError: If the model_type is not supported, or a file is missing, damaged or does not fit.
    """
    require_device(str(device))
    kinds: dict[str, type[AnyModel]] = dict.fromkeys(DECODERS, Transformer) | dict.fromkeys(ENCODER_DECODERS, EncoderDecoder)
    name = read_hf(Path(directory)).get("model_type")
    if not isinstance(name, str) or name not in kinds:
        raise CheckpointError(
            f"{directory}: config.json has model_type {short_repr(name)}, and leafbeam reads {', '.join(kinds)}: serve another "
            "model with a class of your own"
        )
    return kinds[name].from_pretrained(directory, vocabulary=vocabulary, dtype=dtype, device=device)


def load_for_decoding(directory: str | PathLike[str], *, device: torch.device | str = "cpu") -> AnyModel:
    """Load a model as `load_model` does, in the form that decodes fastest.

    On a CPU it computes in float32. Matrices of bfloat16 stay so (`Transformer.store_bfloat16`), and those of float32 get the
    layout with which products are fastest (`Transformer.pack`). The log names settings of its generation config that the search
    does not apply.
    """
    on_cpu = torch.device(device).type == "cpu"
    model = load_model(directory, dtype=torch.float32 if on_cpu else None, device=device)
    warn_of_settings(Path(directory), model.vocabulary)
    if not on_cpu or not isinstance(model, Transformer):
        return model
    packed = model.store_bfloat16().pack()
    return_freed_memory()  # the plain matrices take as much as the packed ones
    return packed


def qwen3_config(size: Qwen3Size, *, vocab_size: int = _QWEN3_ROWS) -> ModelConfig:
    """Return the config of a dense Qwen3.

    Args:
        size: The name of its size, such as "0.6B".
        vocab_size: The number of tokens; more than the published model's if SID tokens were added.

    Examples:
        >>> qwen3_config("1.7B").hidden_size
        2048
    """
    sizes = {"0.6B": (1024, 3072, 28, 16), "1.7B": (2048, 6144, 28, 16), "4B": (2560, 9728, 36, 32)}
    check_choice("size", size, Qwen3Size)
    hidden, intermediate, layers, heads = sizes[size]
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
    )


def qwen3_vocabulary(codebook_sizes: Sequence[int]) -> TokenTable:
    """Return SID tokens after the text tokens of Qwen3, as `tokenizer.add_tokens` numbers them; `size` is the vocab_size."""
    needed = _QWEN3_TEXT + sum(codebook_sizes)
    rows = _QWEN3_ROWS if needed <= _QWEN3_ROWS else -(-needed // 128) * 128
    return TokenTable.behind(_QWEN3_TEXT, codebook_sizes, size=rows, pad=_PAD, bos=_BOS, eos=_EOS)


def tiger_config(vocabulary: Vocabulary, *, max_items: int = 20) -> EncoderDecoderConfig:
    """Return the sizes of the TIGER paper: 4 + 4 layers, 6 heads of 64, 128 hidden, 1,024 inner, dropout 0.1, ReLU."""
    return EncoderDecoderConfig(
        vocab_size=vocabulary.size,
        d_model=128,
        d_kv=64,
        d_ff=1024,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=6,
        dropout=0.1,
        decoder_start_token_id=vocabulary.pad,
        max_position_embeddings=(max_items + 1) * vocabulary.num_levels + 1,
    )
