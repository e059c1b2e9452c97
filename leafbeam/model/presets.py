"""Published models by name: their sizes, and vocabularies with SIDs for them.

Sources: the config.json of Qwen/Qwen3-0.6B, -1.7B and -4B; TIGER (Rajput et al., 2023), implementation details.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from leafbeam.errors import ArgumentError
from leafbeam.model.config import ModelConfig
from leafbeam.model.t5_config import EncoderDecoderConfig
from leafbeam.model.vocabulary import TokenTable, Vocabulary

__all__ = ["Qwen3Size", "qwen3_config", "qwen3_vocabulary", "tiger_config"]

Qwen3Size = Literal["0.6B", "1.7B", "4B"]

_QWEN3_TEXT = 151_669  # tokens of its tokenizer
_QWEN3_ROWS = 151_936  # rows of its embedding
_PAD, _BOS, _EOS = 151_643, 151_644, 151_645  # <|endoftext|>, <|im_start|>, <|im_end|>


def qwen3_config(size: Qwen3Size, *, vocab_size: int = _QWEN3_ROWS) -> ModelConfig:
    """The config of a dense Qwen3. vocab_size: more than the published model's where SID tokens were added.

    >>> qwen3_config("1.7B").hidden_size
    2048
    """
    sizes = {
        "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
        "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
        "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    }
    if size not in sizes:
        raise ArgumentError(f"there is no preset of Qwen3 {size!r}: choose one of {', '.join(get_args(Qwen3Size))}")
    return ModelConfig(
        vocab_size=vocab_size,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        **sizes[size],
    )


def qwen3_vocabulary(codebook_sizes: Sequence[int]) -> TokenTable:
    """SID tokens after Qwen3's text tokens, as `tokenizer.add_tokens` numbers them; its `size` is the vocab_size to use.

    The embedding has 267 rows more than the tokenizer has tokens; more codes need new rows, a multiple of 128 in all.
    """
    needed = _QWEN3_TEXT + sum(codebook_sizes)
    rows = _QWEN3_ROWS if needed <= _QWEN3_ROWS else -(-needed // 128) * 128
    return TokenTable.behind(_QWEN3_TEXT, codebook_sizes, size=rows, pad=_PAD, bos=_BOS, eos=_EOS)


def tiger_config(vocabulary: Vocabulary, *, max_items: int = 20) -> EncoderDecoderConfig:
    """The sizes in the TIGER paper: 4 + 4 layers, 6 heads of 64, 128 hidden, 1,024 inner, dropout 0.1, ReLU."""
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
