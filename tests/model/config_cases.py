"""Tiny checkpoints of transformers for any config, and the fields and values to try: what `test_config_fields` sweeps over."""

import copy
import dataclasses
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    GenerationConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer, Vocabulary, load_model
from leafbeam.model.architectures import DECODERS
from leafbeam.model.weights import read_config
from tests.model.architectures import BASES

VOCABULARY = Vocabulary(codebook_sizes=(4, 3))
TOKENS = torch.tensor([[1, 5, 9, 3, 7, 2, 8, 4, 6, 5, 9, 3], [9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4]])
TARGETS = torch.tensor([[5, 8], [3, 6]])

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 32,
}
T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 24,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 20,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
}
EXPERTS = {"model_type": "leafbeam_t5_moe", "num_experts": 2, "num_experts_per_tok": 2}  # two equal experts are a dense layer


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model of transformers and the fields of a config.json for it. has_experts: leafbeam's variant with equal experts."""

    model: Any
    config: type[PreTrainedConfig]
    base: dict[str, Any]
    has_experts: bool = False

    def build(self, fields: dict[str, Any]) -> Any:
        """A model of these fields with random weights."""
        config = self.config.from_dict(copy.deepcopy(fields))
        model = self.model(config).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(0, 0.4, generator=generator)
                if "norm" in name or "ln_" in name:
                    weight.abs_().add_(0.5)
        return model

    def truth(self, model: Any, start: int) -> Tensor:
        """Logits of all positions, of the decoder after its first token `start` and the targets."""
        with torch.no_grad():
            if self.base["model_type"] in DECODERS:
                return model(TOKENS).logits.float()
            decoded = torch.cat((torch.full((2, 1), start), TARGETS), 1)
            return model(input_ids=TOKENS, decoder_input_ids=decoded).logits.float()

    def write_weights(self, model: Any, directory: Path) -> None:
        """Save as transformers does, or with experts as leafbeam does; config.json is that of transformers."""
        model.save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        if not self.has_experts:
            return
        from safetensors.torch import load_file, save_file

        tensors: dict[str, Tensor] = {}
        for name, tensor in load_file(directory / "model.safetensors").items():
            before, dense, last = name.partition("DenseReluDense.")
            if name.startswith("decoder") and dense:
                number = last.removesuffix(".weight")
                tensors[f"{before}experts.{'wi_0' if number == 'wi' else number}"] = torch.stack([tensor, tensor])
                tensors[f"{before}experts.router.weight"] = torch.linspace(-1, 1, 2 * model.config.d_model).view(2, -1)
            else:
                tensors[name] = tensor
        save_file(tensors, directory / "model.safetensors")


def of_t5(name: str) -> Architecture:
    """A small model of T5's family."""
    config = CONFIG_MAPPING[name]
    base = T5 | {"model_type": name}
    return Architecture(model=MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[config], config=config, base=base)


def decoder(name: str) -> Architecture:
    """A small model of another decoder."""
    config = CONFIG_MAPPING[name]
    base = BASES[name] | {"model_type": name, "vocab_size": 24}
    return Architecture(model=MODEL_FOR_CAUSAL_LM_MAPPING[config], config=config, base=base)


ARCHITECTURES = {
    "qwen3": Architecture(model=Qwen3ForCausalLM, config=Qwen3Config, base=QWEN3),
    "t5": Architecture(model=T5ForConditionalGeneration, config=T5Config, base=T5),
    **{name: of_t5(name) for name in ("mt5", "umt5")},
    **{name: decoder(name) for name in DECODERS if name not in ("qwen3", "leafbeam_decoder")},
    "t5 with experts": Architecture(model=T5ForConditionalGeneration, config=T5Config, base=T5, has_experts=True),
}


def config_of(directory: Path) -> ModelConfig | EncoderDecoderConfig:
    """The config that leafbeam reads, on which alone its model depends, apart from the weights."""
    if json.loads((directory / "config.json").read_text()).get("model_type") in DECODERS:
        return read_config(directory, VOCABULARY, ModelConfig)[0]
    return read_config(directory, VOCABULARY, EncoderDecoderConfig)[0]


def scores(directory: Path) -> Tensor:
    """leafbeam's logits, as `Architecture.truth`."""
    model = load_model(directory, vocabulary=VOCABULARY, dtype=torch.float32)
    with torch.no_grad():
        if isinstance(model, Transformer):
            return model.logits(model(TOKENS))
        assert isinstance(model, EncoderDecoder)
        return model.logits(model(TOKENS, TARGETS))


@cache
def names_read(kind: str) -> frozenset[str]:
    """The names that transformers looks up in a config while it makes and runs a model."""
    architecture, read, original = ARCHITECTURES[kind], set[str](), PreTrainedConfig.__getattribute__

    def record(self: PreTrainedConfig, name: str) -> Any:
        read.add(name)
        return original(self, name)

    PreTrainedConfig.__getattribute__ = record  # type: ignore[method-assign]
    try:
        architecture.truth(architecture.build(architecture.base), 0)
    finally:
        PreTrainedConfig.__getattribute__ = original  # type: ignore[method-assign]
    return frozenset(
        name for name in read if not name.startswith("__") and not callable(getattr(architecture.config, name, None))
    )


def fields_of(kind: str) -> list[str]:
    """Every name that a config.json may hold and transformers knows: declared, inherited, or looked up while a model runs."""
    architecture = ARCHITECTURES[kind]
    names = names_read(kind) | {field.name for field in dataclasses.fields(architecture.config)} | set(_KNOWN)
    names |= set(architecture.config.attribute_map)
    names |= {"norm_topk_prob", "router_aux_loss_coef"} if architecture.has_experts else set(GenerationConfig().to_dict())
    return sorted(name for name in names if name != "model_type" and not name.startswith("_"))


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A saved model. theirs: None where transformers cannot make it. saved: the config.json that transformers wrote."""

    theirs: Any
    directory: Path
    saved: dict[str, Any]
    truths: dict[int, Tensor] = dataclasses.field(default_factory=dict[int, Tensor])
    proven: set[ModelConfig | EncoderDecoderConfig] = dataclasses.field(default_factory=set[ModelConfig | EncoderDecoderConfig])


class Checkpoints:
    """A saved model for each config that transformers tells apart by what it looks up."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_key: dict[tuple[str, str], Checkpoint] = {}
        self.base = cache(lambda kind: self.of(kind, ARCHITECTURES[kind].base))

    def of(self, kind: str, fields: dict[str, Any]) -> Checkpoint:
        architecture = ARCHITECTURES[kind]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                config = architecture.config.from_dict(copy.deepcopy(fields))
                values = [f"{name}={getattr(config, name, 'missing')!r}" for name in sorted(names_read(kind))]
                key = str([value for value in values if " at 0x" not in value])
                if (kind, key) in self._by_key:
                    return self._by_key[kind, key]
                theirs = architecture.build(fields)
                architecture.truth(theirs, 0)
                directory = self._directory / str(len(self._by_key))
                architecture.write_weights(theirs, directory)
        except Exception:  # whatever transformers raises
            base = self.base(kind)
            return Checkpoint(theirs=None, directory=base.directory, saved=base.saved)
        saved = json.loads((directory / "config.json").read_text())
        checkpoint = self._by_key[kind, key] = Checkpoint(theirs=theirs, directory=directory, saved=saved)
        return checkpoint


# Names that transformers takes from a config.json under conditions that the run above does not meet.
_KNOWN = [
    "adapter_config",
    "attention_chunk_size",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "custom_note",
    "decoder_start_token_id",
    "dense_act_fn",
    "dtype",
    "fusion_config",
    "gradient_checkpointing",
    "is_causal",
    "is_gated_act",
    "kv_sharing_modes",
    "n_positions",
    "num_experts",
    "original_max_position_embeddings",
    "output_attentions",
    "partial_rotary_factor",
    "per_layer_config",
    "pruned_heads",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "scale_decoder_outputs",
    "sep_token_id",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "torch_dtype",
    "torchscript",
    "transformers_weights",
    "use_bidirectional_attention",
    "use_mrope",
    "vocab_size",
]
_ACTIVATIONS = ["silu", "swish", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "SiLU", "sigmoid"]
_ROPE: list[Any] = [
    {"type": "default"},
    {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {"rope_theta": 77},
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 2.0, "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "longrope", "short_factor": [1.5] * 3, "long_factor": [2.0] * 3, "original_max_position_embeddings": 8},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    {"full_attention": {"rope_type": "default", "rope_theta": 500.0}},
    "default",
    {},
]
_SPECIAL: dict[str, list[Any]] = {
    "attn_implementation": ["eager", "sdpa"],
    "auto_map": [{"AutoModelForCausalLM": "own.Model"}],
    "bos_token_id": [0, 3, [3]],
    "custom_note": ["a note", {"a": [1]}],
    "decoder_start_token_id": [0, 3, 23, 99, -1, [3], "3"],
    "dense_act_fn": _ACTIVATIONS,
    "dtype": ["float32", "bfloat16", "float16", "float64"],
    "eos_token_id": [2, [2, 3]],
    "feed_forward_proj": [*_ACTIVATIONS, *(f"gated-{name}" for name in _ACTIVATIONS), "gated", "a-b-c", ["relu"], {"relu": 1}],
    "hidden_act": _ACTIVATIONS,
    "is_causal": [True, False, 0, 1],
    "layer_types": [
        ["full_attention"] * 2,
        ["full_attention", "sliding_attention"],
        ["sliding_attention"] * 2,
        ["chunked_attention"] * 2,
        ["full_attention"],
        [],
    ],
    "max_window_layers": [0, 1, 2],
    "n_positions": [64, 20, 0, True, 0.5, "other"],
    "partial_rotary_factor": [0.5, 1.0],
    "per_layer_config": [{"0": {"num_attention_heads": 2}}, [{"num_attention_heads": 2}, {}], {}],
    "quantization_config": [{"quant_method": "fp8"}, {"bits": 4}],
    "relative_attention_num_buckets": [4, 6, 12, 16, 32],
    "relative_attention_max_distance": [4, 5, 9, 128],
    "rope_parameters": _ROPE,
    "rope_scaling": _ROPE,
    "rope_theta": [500.0, 77, 1_000_000],
    "sliding_window": [4, 8],
    "torch_dtype": ["float32", "bfloat16"],
    "transformers_weights": ["other.safetensors"],
}
# Fields that change nothing alone.
TOGETHER: dict[str, list[dict[str, Any]]] = {
    "qwen3": [
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2},
        {"use_sliding_window": True, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
        {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "full_attention"]},
        {"rope_theta": 500.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
        {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
        {"rope_scaling": {"rope_theta": 5.0}, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
        {"rope_theta": 500.0, "partial_rotary_factor": 0.5},
        {"tie_word_embeddings": True, "attention_dropout": 0.5, "hidden_act": "swish"},
        {"num_key_value_heads": None, "num_attention_heads": 2},
    ],
    "t5": [
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"},
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True},
        {"feed_forward_proj": "gated-silu", "dense_act_fn": "swish"},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"tie_word_embeddings": False, "scale_decoder_outputs": True},
        {"tie_word_embeddings": True, "scale_decoder_outputs": False},
        {"num_layers": 1, "num_decoder_layers": 3},
        {"d_model": 16, "hidden_size": 16},
        {"decoder_start_token_id": 4, "bos_token_id": 5, "pad_token_id": 6},
    ],
}
TOGETHER["t5 with experts"] = TOGETHER["t5"]
TOGETHER["mt5"] = TOGETHER["umt5"] = [
    {},
    {"tie_word_embeddings": False},
    {"scale_decoder_outputs": True},
    {"feed_forward_proj": "relu", "num_layers": 1, "num_decoder_layers": 3},
    {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-2, "decoder_start_token_id": 4},
]


def values_for(name: str, value: Any) -> Iterator[Any]:
    """Other values for a field that now has `value`, of its type and of others."""
    yield from _SPECIAL.get(name, [])
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2, value // 2, value + 0.5)
    elif isinstance(value, float):
        yield from (value * 2, 0.5, 0, 1)
    elif isinstance(value, str):
        yield "other"
    elif name not in _SPECIAL:
        yield from (True, 3, "other", {"other": 1})
    yield None
