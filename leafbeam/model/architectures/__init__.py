"""The decoders that leafbeam reads, by the `model_type` in their config.json: one file for each family.

docs/how-to/add-an-architecture.md says how to add one.
"""

from collections.abc import Mapping

from leafbeam.errors import CheckpointError, short_repr
from leafbeam.json_reader import Json
from leafbeam.model.architectures.gemma import GEMMA, GEMMA2, GEMMA3_TEXT
from leafbeam.model.architectures.gpt2 import GPT2
from leafbeam.model.architectures.llama import LLAMA, MISTRAL
from leafbeam.model.architectures.olmo2 import OLMO2
from leafbeam.model.architectures.own import LEAFBEAM_DECODER
from leafbeam.model.architectures.phi3 import PHI3
from leafbeam.model.architectures.qwen import QWEN2, QWEN3, QWEN3_MOE
from leafbeam.model.architectures.types import Architecture

__all__ = ["DECODERS", "Architecture", "architecture_of"]

DECODERS: Mapping[str, Architecture] = {
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3_TEXT,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "gpt2": GPT2,
    "leafbeam_decoder": LEAFBEAM_DECODER,
}


def architecture_of(hf: Json) -> Architecture:
    """Return the architecture of a parsed config.json. Raises CheckpointError for one that is not a decoder's, or unknown."""
    name = hf.get("model_type")
    if not isinstance(name, str) or name not in DECODERS:
        raise CheckpointError(
            f"config.json has model_type {short_repr(name)}, and a Transformer reads {', '.join(DECODERS)}: "
            "load_model reads t5 too"
        )
    return DECODERS[name]
