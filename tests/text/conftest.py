"""A small byte-level BPE tokenizer, trained here, and an untrained Qwen3 over its tokens."""

import json
from pathlib import Path

import pytest
import torch

from leafbeam.model import ModelConfig, TextTokens, Transformer
from leafbeam.text import TextGenerator

CORPUS = [
    '{"name": "red lamp", "price": 12, "in_stock": true}',
    '{"name": "tea cup", "price": 7, "in_stock": false}',
    "A red lamp and a tea cup, naïve and über.",
] * 20


def save_model(directory: Path, *, size: int = 400, seed: int = 0) -> Path:
    """A model directory as Hugging Face has it: config, weights, tokenizer.json, generation_config.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    config = ModelConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
    )  # fmt: skip
    model = Transformer(config, TextTokens(size=size, num_tokens=1), torch.Generator().manual_seed(seed))
    model.save_pretrained(directory)
    (directory / "leafbeam.json").unlink()
    (directory / "leafbeam.sha256").unlink(missing_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    return directory


@pytest.fixture(scope="package")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="package")
def generator(model_dir: Path) -> TextGenerator:
    return TextGenerator.load(model_dir)
