"""Checkpoints of every architecture, as transformers saves them, have its log-probabilities on every way to run them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from leafbeam.model import Transformer, load_model
from leafbeam.ops.linear.int8 import Int8Matrix
from leafbeam.precision import Precision
from tests.model.architectures import BASES, VOCABULARY, by_modules, decoded, make, padded, truth

PROMPTS = [[1, 5, 9, 3, 7, 2, 8, 4, 6, 5, 9, 3, 11, 12], [9, 8, 7], [4, 4, 4, 13, 6]]
CODES = torch.tensor([[[0, 1, 2, 0], [4, 3, 5, 2], [2, 0, 0, 1]]] * 3)


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def load(directory: Path) -> Transformer:
    model = load_model(directory, vocabulary=VOCABULARY, dtype=torch.float32)
    assert isinstance(model, Transformer)
    return model


_ROPE: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 0.7, "beta_fast": 8},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in BASES),
    *((name, {"num_key_value_heads": 1}) for name in BASES if name != "gpt2"),
    *((name, {"tie_word_embeddings": tied}) for name in BASES for tied in (True, False)),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0}),
    ("qwen3", {"attention_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"hidden_act": "relu"}),
    ("llama", {"head_dim": 10}),
    *((name, {"rope_parameters": rope | {"rope_theta": 50.0}}) for name in ("llama", "qwen2", "qwen3") for rope in _ROPE),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_every_way_to_run_a_checkpoint_has_the_log_probabilities_of_transformers(
    tmp_path: Path, name: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU engine, in one call and by products, with and without suffixes; torch's modules; texts."""
    theirs = make(tmp_path, name, change)
    expected = truth(theirs, PROMPTS, CODES)
    model = load(tmp_path)
    for by_suffix in (False, True):
        assert_close(by_modules(model, PROMPTS, CODES, by_suffix=by_suffix), expected)
        assert_close(decoded(model.start(*padded(PROMPTS)), CODES, by_suffix=by_suffix), expected)
    monkeypatch.setattr("leafbeam.model.cpu.layers.are_fused", lambda *_: False)
    for by_suffix in (False, True):
        assert_close(decoded(model.start(*padded(PROMPTS)), CODES, by_suffix=by_suffix), expected)


@pytest.mark.parametrize("name", BASES)
def test_texts_have_the_scores_of_transformers(tmp_path: Path, name: str) -> None:
    """Texts that grow token by token and by several at once, on the CPU engine and by torch's modules."""
    theirs = make(tmp_path, name, {})
    model = load(tmp_path)
    texts = [[3, 8], [5, 2], [9, 9], [1, 4], [7, 0], [2, 11]]
    rows = [prompt + texts[2 * number + copy] for number, prompt in enumerate(PROMPTS) for copy in range(2)]
    with torch.no_grad():
        expected = torch.stack([theirs(torch.tensor([row])).logits[0, -1].float() for row in rows])
    for runs_on_modules in (False, True):
        if runs_on_modules:
            model = model.double()
        session = model.start_texts(*padded(PROMPTS), num_texts=2, max_tokens=8)
        session.hidden_after([text[:1] for text in texts])
        with torch.inference_mode():
            assert_close(model.logits(session.hidden_after(texts)).float(), expected)


@pytest.mark.parametrize("name", BASES)
def test_a_saved_model_is_read_again(tmp_path: Path, name: str) -> None:
    make(tmp_path / "theirs", name, {})
    model = load(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    again = load_model(tmp_path / "ours", dtype=torch.float32)
    assert isinstance(again, Transformer)
    assert again.config == model.config
    tokens, lengths = padded(PROMPTS)
    torch.testing.assert_close(again(tokens, lengths), model(tokens, lengths), rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", BASES)
def test_rounded_products_have_about_the_same_scores(tmp_path: Path, name: str, precision: Precision) -> None:
    if precision == "int8" and (reason := Int8Matrix.unavailable_reason(torch.device("cpu"))):
        pytest.skip(reason)
    theirs = make(tmp_path, name, {})
    expected = truth(theirs, PROMPTS, CODES)
    model = load(tmp_path).with_precision(precision)
    atol = {"bfloat16": 0.15, "int8": 0.5}[precision]
    torch.testing.assert_close(decoded(model.start(*padded(PROMPTS)), CODES), expected, atol=atol, rtol=0.1)
