"""The model room: which token is which code, models over them (Qwen3, an encoder-decoder), and their rounds in a search."""

from pleach.model.cache import search_bytes, token_bytes
from pleach.model.config import ModelConfig
from pleach.model.encoder_decoder import EncoderDecoder
from pleach.model.loading import AnyConfig, AnyModel, load_model, new_model
from pleach.model.presets import qwen3_config, qwen3_vocabulary, tiger_config
from pleach.model.prompt_store import PromptStore
from pleach.model.rounds import Rounds
from pleach.model.t5_config import EncoderDecoderConfig
from pleach.model.transformer import Transformer
from pleach.model.two_stage import TwoStage
from pleach.model.vocabulary import AnyVocabulary, TokenTable, Vocabulary, vocabulary_from_dict
from pleach.model.workspace import Workspace

__all__ = [
    "AnyConfig",
    "AnyModel",
    "AnyVocabulary",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ModelConfig",
    "PromptStore",
    "Rounds",
    "TokenTable",
    "Transformer",
    "TwoStage",
    "Vocabulary",
    "Workspace",
    "load_model",
    "new_model",
    "qwen3_config",
    "qwen3_vocabulary",
    "search_bytes",
    "tiger_config",
    "token_bytes",
    "vocabulary_from_dict",
]
