"""Making a model from its config, and loading one from a directory of either architecture."""

from os import PathLike
from pathlib import Path

import torch

from leafbeam.extras import require_device
from leafbeam.model.config import ModelConfig
from leafbeam.model.encoder_decoder import EncoderDecoder
from leafbeam.model.t5_config import EncoderDecoderConfig
from leafbeam.model.transformer import Transformer
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import read_model_type

__all__ = ["AnyConfig", "AnyModel", "load_model", "new_model"]

AnyConfig = ModelConfig | EncoderDecoderConfig
AnyModel = Transformer | EncoderDecoder


def new_model(
    config: AnyConfig,
    vocabulary: AnyVocabulary,
    generator: torch.Generator | None = None,
    *,
    device: torch.device | str = "cpu",
) -> AnyModel:
    """An untrained model of a config's architecture. Raises ArgumentError for a device that this machine lacks."""
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
    """The model in a directory, of the architecture that its config.json names: see `Transformer.from_pretrained`.

    Raises ArgumentError for a device that this machine lacks.
    """
    require_device(str(device))
    kind = EncoderDecoder if read_model_type(Path(directory)) in ("t5", "leafbeam_t5_moe") else Transformer
    return kind.from_pretrained(directory, vocabulary=vocabulary, dtype=dtype, device=device)
