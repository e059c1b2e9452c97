import dataclasses
import json
from typing import Any

import pytest
from transformers import Qwen3Config

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.model import ModelConfig

CONFIG = ModelConfig(
    vocab_size=99,
    hidden_size=40,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=10,
    max_position_embeddings=77,
    rms_norm_eps=1e-5,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    initializer_range=0.5,
)

# Qwen3-0.6B's config.json as published: the classic form, with rope_theta at the top.
QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_a_config_survives_its_own_json():
    assert ModelConfig.from_hf(json.loads(json.dumps(CONFIG.to_hf()))) == CONFIG


def test_a_config_survives_transformers():
    theirs = Qwen3Config(**CONFIG.to_hf())
    assert ModelConfig.from_hf(json.loads(theirs.to_json_string())) == CONFIG


def test_a_published_config_of_the_classic_form_is_read():
    config = ModelConfig.from_hf(QWEN3_0_6B)
    assert (config.rope_theta, config.head_dim, config.group_size) == (1_000_000, 128, 2)


def test_what_config_json_leaves_out_is_what_transformers_takes():
    sizes = ("vocab_size", "hidden_size", "intermediate_size")
    sizes += ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    short = {name: QWEN3_0_6B[name] for name in sizes}
    theirs = json.loads(Qwen3Config(**short).to_json_string())
    assert ModelConfig.from_hf(short | {"model_type": "qwen3"}) == ModelConfig.from_hf(theirs)


def test_dropout_stays_out_of_config_json():
    assert "dropout" not in ModelConfig(vocab_size=9, dropout=0.1).to_hf()
    assert ModelConfig.from_hf(QWEN3_0_6B, dropout=0.1).dropout == 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "bloom"},
        {"model_type": None},
        {"sliding_window": 0, "use_sliding_window": True, "max_window_layers": 27},
        {"attention_bias": 1},
        {"is_causal": False},
        {"is_causal": None},
        {"hidden_act": "quick_gelu"},
        {"quantization_config": {"quant_method": "fp8"}},
        {"auto_map": {"AutoModel": "own.py"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": "4"}},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e6, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
        {"rope_parameters": "default"},
        {"rope_theta": "large"},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": 3},
        {"hidden_size": None},
        {"hidden_size": 1024.0},
        {"hidden_size": True},
        {"num_key_value_heads": 5},
        {"head_dim": 127},
        {"num_hidden_layers": 0},
        {"tie_word_embeddings": 1},
        {"rms_norm_eps": float("nan")},
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any]):
    with pytest.raises(CheckpointError, match=next(iter(change))):
        ModelConfig.from_hf(QWEN3_0_6B | change)


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads"])
def test_a_missing_size_is_named(name: str):
    with pytest.raises(CheckpointError, match=name):
        ModelConfig.from_hf({field: value for field, value in QWEN3_0_6B.items() if field != name})


@pytest.mark.parametrize("change", [{"dropout": 1.0}, {"dropout": -0.1}, {"vocab_size": -1}, {"rope_theta": float("inf")}])
def test_impossible_sizes_raise(change: dict[str, Any]):
    with pytest.raises(ArgumentError, match=next(iter(change))):
        dataclasses.replace(CONFIG, **change)
