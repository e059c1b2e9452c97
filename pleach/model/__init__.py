"""The model room: which token is which code, a Qwen3 transformer over them, and its rounds in a search."""

from pleach.model.config import ModelConfig
from pleach.model.rounds import Rounds
from pleach.model.transformer import Transformer
from pleach.model.vocabulary import AnyVocabulary, TokenTable, Vocabulary, vocabulary_from_dict

__all__ = ["AnyVocabulary", "ModelConfig", "Rounds", "TokenTable", "Transformer", "Vocabulary", "vocabulary_from_dict"]
