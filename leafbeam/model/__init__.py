"""Models over Semantic IDs (decoders, T5 encoder-decoders), their vocabularies, and their decoding sessions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.model.config import EncoderDecoderConfig, ModelConfig
    from leafbeam.model.cpu.workspace import Workspace
    from leafbeam.model.encoder_decoder import EncoderDecoder
    from leafbeam.model.kv_cache import search_bytes, token_bytes
    from leafbeam.model.loading import (
        AnyConfig,
        AnyModel,
        load_for_decoding,
        load_model,
        new_model,
        qwen3_config,
        qwen3_vocabulary,
        tiger_config,
    )
    from leafbeam.model.prompt_store import PromptStore
    from leafbeam.model.session import DecodeSession
    from leafbeam.model.text_session import TextSession
    from leafbeam.model.transformer import Transformer
    from leafbeam.model.vocabulary import AnyVocabulary, PromptTokens, TextTokens, TokenTable, Vocabulary, vocabulary_from_dict

__all__ = [
    "AnyConfig",
    "AnyModel",
    "AnyVocabulary",
    "DecodeSession",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ModelConfig",
    "PromptStore",
    "PromptTokens",
    "TextSession",
    "TextTokens",
    "TokenTable",
    "Transformer",
    "Vocabulary",
    "Workspace",
    "load_for_decoding",
    "load_model",
    "new_model",
    "qwen3_config",
    "qwen3_vocabulary",
    "search_bytes",
    "tiger_config",
    "token_bytes",
    "vocabulary_from_dict",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
