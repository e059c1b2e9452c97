"""float8 matrices on a stand-in for a GPU (torch's scaled product of a CPU): scores, captured decodes, an engine, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import AnyModel, EncoderDecoder, EncoderDecoderConfig, ModelConfig, Transformer, Vocabulary
from leafbeam.model.decoder import Linear
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.linear.fp8 import Fp8Matrix
from leafbeam.ops.linear.rounded import round_rows
from tests.fixtures.captured import graphs_with, same, settings

VOCABULARY = Vocabulary(codebook_sizes=(6, 5, 4))
PROMPTS = torch.randint(0, VOCABULARY.size, (3, 9), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([9, 1, 5])
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {"query_key_norm": "none", "attention_bias": True},
    "gemma": {"norm_placement": "both", "attention_cap": 50.0, "logit_cap": 30.0, "embedding_scale": 2.0},
    "items": {"item_history": True},
    "t5": {},
}


def model_of(kind: str) -> AnyModel:
    generator = torch.Generator().manual_seed(1)
    if kind == "t5":
        sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
        return EncoderDecoder(EncoderDecoderConfig(vocab_size=VOCABULARY.size, **sizes), VOCABULARY, generator).eval()
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    config = ModelConfig(vocab_size=VOCABULARY.size, num_key_value_heads=2, **sizes, **KINDS[kind])
    return Transformer(config, VOCABULARY, generator).eval()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fp8Matrix, "unavailable_reason", staticmethod(lambda device: None))


@torch.no_grad()
def logits_of(model: AnyModel, prompts: Tensor = PROMPTS, lengths: Tensor = LENGTHS) -> list[Tensor]:
    """The logits of three levels by torch's modules, as a device runs them and a graph captures them."""
    session = StaticModel(model).start(prompts, lengths, 2)
    codes_BK, parents_BK = torch.tensor([[0, 3], [1, 2], [5, 5]]), torch.zeros(3, 2, dtype=torch.int64)
    steps = [session.step_fn().clone()]
    return steps + [session.step_fn(codes, parents_BK).clone() for codes in (codes_BK, codes_BK % 5)]


def emulated(self: Linear, input: Tensor) -> Tensor:
    """A product of rounded rows and weights in float32, rounded to bfloat16."""
    rows_ND, scale_N = round_rows(input.reshape(-1, input.shape[-1]), torch.float8_e4m3fn)
    rounded_VD, scale_V = round_rows(self.weight, torch.float8_e4m3fn)
    product_NV = (rows_ND.float() * scale_N[:, None]) @ (rounded_VD.float() * scale_V[:, None]).T
    product = product_NV.bfloat16().float().view(*input.shape[:-1], -1)
    return product if self.bias is None else product + self.bias  # pyright: ignore[reportUnnecessaryComparison]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_emulated_products(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rounding that falls to the other side moves a logit: by far less than all roundings do."""
    model = model_of(kind)
    lengths = torch.tensor([7, 1, 4]) if kind == "items" else LENGTHS
    prompts = PROMPTS[:, :7] if kind == "items" else PROMPTS
    exact = logits_of(model, prompts, lengths)
    copy = model.with_precision("fp8")
    assert copy.rounded_to == "fp8"
    assert all(isinstance(module.matrix, Fp8Matrix) for module in copy.layer_matrices())
    assert copy.head_weight is model.head_weight
    found = logits_of(copy, prompts, lengths)
    for plain, again in zip(exact, logits_of(model, prompts, lengths), strict=True):
        assert torch.equal(plain, again)
    monkeypatch.setattr(Linear, "forward", emulated)
    for one, other, plain in zip(found, logits_of(model, prompts, lengths), exact, strict=True):
        assert (one - other).abs().mean() < 0.3 * (one - plain).abs().mean()
        assert 0 < (one - plain).abs().max() < 0.5 * plain.std()


@pytest.mark.usefixtures("on_gpu")
def test_an_engine_takes_it_captures_it_and_keeps_it_for_the_next_model(tmp_path: Path) -> None:
    codes = torch.cartesian_prod(*(torch.arange(size) for size in VOCABULARY.codebook_sizes)).numpy()
    trie = Trie.build(codes, VOCABULARY.codebook_sizes)
    model, request = model_of("qwen3"), Request(history=(3, 77), num_items=5)
    model.save_pretrained(tmp_path)
    copy = model.with_precision("fp8")
    options: dict[str, Any] = {"settings": settings(precision="fp8", max_batch=1, num_beams=8), "new_graphs": graphs_with()}
    with Engine(model, trie, **options) as engine:
        found = engine.submit(request).result()
        assert engine.counts.of("graphs")["replayed"] > 0
        assert "fp8; fp8 is" in engine.tuning.lines()["precision"]
        assert "times as fast as float32 with one request" in engine.tuning.lines()["precision"]
        same(found, Engine(copy, trie, settings=settings(num_beams=8)).recommend(request))
        engine.load_model(tmp_path)
        assert engine.precision == "fp8"
        same(engine.submit(request).result(), found)
    assert found.scores != Engine(model, trie).recommend(request).scores


def test_what_cannot_be_multiplied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ArgumentError, match="precision='fp8': products of float8 need a GPU, and this model is on a CPU: use int8"
    ):
        model_of("qwen3").with_precision("fp8")
    trie = Trie.build([[0, 0, 0]], VOCABULARY.codebook_sizes)
    with pytest.raises(ArgumentError, match="use int8"):
        Engine(model_of("t5"), trie, settings=Settings(precision="fp8"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    reason = Fp8Matrix.unavailable_reason(torch.device("cuda"))
    assert reason == "products of float8 need compute capability 8.9, and NVIDIA A100 has 8.0"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert Fp8Matrix.unavailable_reason(torch.device("cuda")) is None

    monkeypatch.setattr(Fp8Matrix, "unavailable_reason", staticmethod(lambda device: None))
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
    }
    odd = ModelConfig(vocab_size=VOCABULARY.size, intermediate_size=40, **sizes)
    message = r"model\.layers\.0\.mlp\.gate_proj is 40 x 32, and products of float8 need multiples of 16"
    with pytest.raises(ArgumentError, match=message):
        Transformer(odd, VOCABULARY).with_precision("fp8")
    fields: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "expert_layers": (0,)}
    experts = ModelConfig(vocab_size=VOCABULARY.size, intermediate_size=48, **sizes, **fields)
    with pytest.raises(ArgumentError, match="precision='fp8': this model has experts"):
        Transformer(experts, VOCABULARY).with_precision("fp8")
    copy = model_of("qwen3").with_precision("fp8")
    with pytest.raises(ArgumentError, match="of fp8: save the model that it was made from"):
        copy.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="this model is in fp8 already"):
        copy.with_precision("fp8")
