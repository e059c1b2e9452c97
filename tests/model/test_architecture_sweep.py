"""Configs drawn from the product of all fields that leafbeam reads: log-probabilities are those of transformers."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from leafbeam.model import Transformer, load_model
from leafbeam.model.config import T5_FAMILY
from tests.model.architectures import BASES, VOCABULARY, by_modules, decoded, make, padded, truth
from tests.model.config_cases import ARCHITECTURES, scores

PROMPTS = [[1, 5, 9, 3, 7, 2, 8, 4, 6, 5, 9, 3, 11, 12, 3, 4, 5, 6, 7, 13], [9, 8, 7], [4]]
CODES = torch.tensor([[[0, 1, 2, 0], [4, 3, 5, 2], [2, 0, 0, 1], [2, 0, 4, 0]]] * 3)
DRAWS, QUICK = 30, 1  # of each architecture

_ROPE: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "truncate": False, "beta_slow": 2},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "mscale": 0.7, "mscale_all_dim": 0.9},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
]
_HEADS = [(4, 2), (4, 4), (4, 1), (6, 3), (1, 1)]
_COMMON: dict[str, list[Any]] = {
    "num_hidden_layers": [1, 2, 4],
    "intermediate_size": [12, 33],
    "tie_word_embeddings": [True, False],
    "rms_norm_eps": [1e-6, 1e-2],
    "rope_parameters": [rope | {"rope_theta": theta} for rope in _ROPE for theta in (20.0, 10_000.0)],
}
_ACTIVATIONS = ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu"]
_WINDOW: dict[str, list[Any]] = {"use_sliding_window": [True, False], "sliding_window": [1, 3, 8], "max_window_layers": [0, 1]}
_BIAS: dict[str, list[Any]] = {"attention_bias": [True, False]}
_QWEN3 = _COMMON | _WINDOW | _BIAS | {"head_dim": [4, 8, 14], "hidden_act": _ACTIVATIONS}
_GEMMA = _COMMON | _BIAS | {"head_dim": [4, 10]}
_SCORES: dict[str, list[Any]] = {
    "query_pre_attn_scalar": [4, 30],
    "sliding_window": [1, 3, 8],
    "hidden_activation": _ACTIVATIONS,
}
_CAPS: dict[str, list[Any]] = {"attn_logit_softcapping": [None, 0.5, 50.0], "final_logit_softcapping": [None, 2.0]}
_LONG = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 32, "long_factor": [9.0, 9.0]}
FIELDS: dict[str, dict[str, list[Any]]] = {
    "llama": _COMMON | _BIAS | {"mlp_bias": [True, False], "head_dim": [None, 10], "hidden_act": _ACTIVATIONS},
    "mistral": _COMMON | {"sliding_window": [None, 1, 3, 8], "head_dim": [None, 10], "hidden_act": _ACTIVATIONS},
    "qwen2": _COMMON | _WINDOW | {"head_dim": [4], "hidden_act": _ACTIVATIONS},
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3
    | {"num_experts": [2, 7], "num_experts_per_tok": [1, 2], "norm_topk_prob": [True, False], "moe_intermediate_size": [8, 20]}
    | {"mlp_only_layers": [None, [0]], "decoder_sparse_step": [1, 2]},
    "gemma": _GEMMA | {"hidden_act": _ACTIVATIONS},
    "gemma2": _GEMMA | _SCORES | _CAPS,
    "gemma3_text": _GEMMA
    | _SCORES
    | _CAPS
    | {"layer_types": [None], "sliding_window_pattern": [1, 2, 3]}
    | {
        "rope_parameters": [
            {"full_attention": rope | {"rope_theta": 50.0}, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}
            for rope in _ROPE
            for theta in (10.0, 10_000.0)
        ]
    },
    "phi3": _COMMON
    | {"head_dim": [8], "pad_token_id": [0], "sliding_window": [None, 1, 3, 8], "hidden_act": _ACTIVATIONS}
    | {"partial_rotary_factor": [0.5], "original_max_position_embeddings": [32]}
    | {"rope_parameters": [{"rope_type": "default", "rope_theta": 30.0}, _LONG | {"short_factor": [1.5, 2.5]}]},
    "olmo2": _COMMON | _BIAS | {"head_dim": [4, 6], "hidden_act": _ACTIVATIONS},
    "gpt2": {
        "n_layer": [1, 2, 4],
        "n_head": [1, 2, 4],
        "n_inner": [None, 12, 33],
        "activation_function": _ACTIVATIONS,
        "layer_norm_epsilon": [1e-5, 1e-2],
        "scale_attn_weights": [True, False],
        "tie_word_embeddings": [True, False],
    },
}


T5_FIELDS: dict[str, list[Any]] = {
    "num_layers": [1, 2, 3],
    "num_decoder_layers": [1, 3],
    "num_heads": [1, 3, 4],
    "d_kv": [4, 7],
    "d_ff": [12, 33],
    "feed_forward_proj": ["relu", "gated-gelu", "gated-silu"],
    "layer_norm_epsilon": [1e-6, 1e-2],
    "tie_word_embeddings": [True, False],
    "decoder_start_token_id": [0, 4],
    "relative_attention_num_buckets": [8, 16],
    "relative_attention_max_distance": [10, 40],
}


def draw(name: str, number: int) -> dict[str, Any]:
    """Draw a value of every field of an architecture, the same for the same number."""
    chosen = random.Random(f"{name} {number}")
    fields = {field: chosen.choice(values) for field, values in FIELDS.get(name, T5_FIELDS).items()}
    if name in FIELDS and name != "gpt2":
        fields["num_attention_heads"], fields["num_key_value_heads"] = chosen.choice(_HEADS)
        fields["hidden_size"] = fields["num_attention_heads"] * chosen.choice([4, 8])
        if name == "qwen3_moe":  # its products in transformers need rows of 16 bytes
            fields["hidden_size"] = 4 * fields["num_attention_heads"]
        if name == "phi3":
            fields["hidden_size"] = fields["num_attention_heads"] * fields["head_dim"]
    return fields


def test_the_sweep_has_at_least_300_configs_of_every_architecture() -> None:
    assert FIELDS.keys() == BASES.keys()
    drawn = {f"{name} {draw(name, number)}" for name in FIELDS for number in range(DRAWS)}
    assert len(drawn) >= 300


def cases(names: Iterable[str]) -> list[Any]:
    """The draws of architectures, of which a few are quick."""
    return [
        pytest.param(name, number, marks=() if number < QUICK else pytest.mark.full)
        for name in names
        for number in range(DRAWS)
    ]


@pytest.mark.parametrize(("name", "number"), cases(T5_FAMILY))
def test_a_drawn_config_of_t5s_family_has_the_logits_of_transformers(tmp_path: Path, name: str, number: int) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    architecture, change = ARCHITECTURES[name], draw(name, number)
    theirs = architecture.build(architecture.base | change)
    architecture.write_weights(theirs, tmp_path)
    truth = architecture.truth(theirs, change["decoder_start_token_id"])
    torch.testing.assert_close(scores(tmp_path), truth, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "number"), cases(FIELDS))
def test_a_drawn_config_has_the_log_probabilities_of_transformers(
    tmp_path: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    change = draw(name, number)
    theirs = make(tmp_path, name, change, seed=number)
    expected = truth(theirs, PROMPTS, CODES)
    model = load_model(tmp_path, vocabulary=VOCABULARY, dtype=torch.float32)
    assert isinstance(model, Transformer)
    by_suffix = bool(number % 2)
    torch.testing.assert_close(by_modules(model, PROMPTS, CODES, by_suffix=by_suffix), expected, atol=1e-4, rtol=1e-4)
    # The engine adds up in another order. Beside float64 it is off by less than transformers in float32 is.
    if name != "qwen3_moe":  # whose products of experts torch has in single precision alone
        expected = truth(theirs.double(), PROMPTS, CODES).float()
    for is_fused in (True, False):
        if not is_fused:
            monkeypatch.setattr("leafbeam.model.cpu.layers.are_fused", lambda *_: False)
        ours = decoded(model.start(*padded(PROMPTS)), CODES, by_suffix=by_suffix)
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
