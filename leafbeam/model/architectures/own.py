"""Decoders that leafbeam has saved and that transformers cannot read: the fields are those of `ModelConfig`."""

from leafbeam.model.architectures.fields import NEITHER, check_implemented
from leafbeam.model.architectures.types import Architecture, Fields, Values

_OTHERS = {"architectures", "model_type", "torch_dtype", "pad_token_id", "bos_token_id", "eos_token_id"}


def read_own(hf: Fields) -> Values:
    """Return the fields of a `ModelConfig`, which are the file's."""
    check_implemented(hf, NEITHER)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in hf.items() if name not in _OTHERS}


LEAFBEAM_DECODER = Architecture(read=read_own)
