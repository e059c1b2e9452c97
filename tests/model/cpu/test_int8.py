"""int8 matrices: exact products of rounded rows and weights; every architecture decodes with them; what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model import EncoderDecoder, EncoderDecoderConfig, ModelConfig, PromptStore, Transformer, Vocabulary, Workspace
from leafbeam.model.decoder import Linear
from leafbeam.model.experts import Experts
from leafbeam.ops.linear.int8 import Int8Matrix
from leafbeam.ops.linear.rounded import round_rows

REASON = Int8Matrix.unavailable_reason(torch.device("cpu"))
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

VOCABULARY = Vocabulary(codebook_sizes=(6, 5, 4))
PROMPTS = torch.randint(0, VOCABULARY.size, (3, 9), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([9, 1, 5])


def rounded_rows(rows_ND: Tensor) -> Tensor:
    """Rows as their integers say them, in float64."""
    scale_N1 = rows_ND.abs().amax(1, keepdim=True) / 127
    return (rows_ND / scale_N1.clamp(min=1e-30)).round().double() * scale_N1


@pytest.mark.parametrize("rows", [1, 2, 17, 130])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 5), (16, 128), (130, 33)])
@pytest.mark.parametrize("is_transposed", [False, True])  # as GPT-2's files hold them
def test_products_are_those_of_the_rounded_numbers(rows: int, outputs: int, inputs: int, is_transposed: bool) -> None:
    generator = torch.Generator().manual_seed(rows * outputs * inputs)
    rows_ND, weight_VD = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    rows_ND[0] *= 1e4
    rounded_VD, scale_V = round_rows(weight_VD, torch.int8)
    matrix = Int8Matrix.of(weight_VD.t().contiguous().t() if is_transposed else weight_VD)
    assert matrix.shape == (outputs, inputs)
    expected = rounded_rows(rows_ND) @ (rounded_VD.double() * scale_V[:, None]).T
    torch.testing.assert_close(matrix.multiply(rows_ND), expected.float(), rtol=1e-5, atol=1e-4)
    assert (weight_VD - rounded_VD * scale_V[:, None]).abs().max() <= 0.5001 * scale_V.max()


def test_a_row_has_the_same_product_alone_and_among_others() -> None:
    rows_ND = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    matrix = Int8Matrix.of(torch.randn(80, 96, generator=torch.Generator().manual_seed(1)))
    together = matrix.multiply(rows_ND)
    for row in (0, 31, 63):
        assert torch.equal(matrix.multiply(rows_ND[row : row + 1].clone())[0], together[row])


def test_zeros_give_zeros_and_what_is_not_finite_gives_nan() -> None:
    weight_VD = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    weight_VD[2] = 0
    rows_ND = torch.ones(4, 8)
    rows_ND[0], rows_ND[1, 3], rows_ND[2, 7] = 0, torch.nan, torch.inf
    product_NV = Int8Matrix.of(weight_VD).multiply(rows_ND)
    assert not product_NV[0].any()
    assert product_NV[1:3].isnan().all()
    assert product_NV[3, 2] == 0
    assert product_NV[3].isfinite().all()
    assert Int8Matrix.of(weight_VD).multiply(rows_ND[:0]).shape == (0, 5)


CONFIGS = {
    "llama": {"query_key_norm": "none"},
    "gpt2": {
        "norm": "layer",
        "query_key_norm": "none",
        "attention_bias": True,
        "attention_output_bias": True,
        "feed_forward_bias": True,
        "is_gated": False,
        "hidden_act": "gelu_tanh",
        "learned_positions": True,
        "num_key_value_heads": 4,
    },
    "gemma": {"norm_placement": "both", "attention_cap": 50.0, "logit_cap": 30.0, "embedding_scale": 2.0},
    "experts": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "expert_layers": (1,)},
    "qwen3": {"sliding_window": 4, "local_layers": (1,)},
}


def decoder(**fields: object) -> Transformer:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    config = ModelConfig(vocab_size=VOCABULARY.size, **(sizes | {"num_key_value_heads": 2} | fields))  # type: ignore[arg-type]
    return Transformer(config, VOCABULARY, torch.Generator().manual_seed(1)).eval()


def encoder_decoder(**fields: object) -> EncoderDecoder:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    config = EncoderDecoderConfig(vocab_size=VOCABULARY.size, **(sizes | fields))  # type: ignore[arg-type]
    return EncoderDecoder(config, VOCABULARY, torch.Generator().manual_seed(1)).eval()


def logits_of(model: Transformer | EncoderDecoder, **options: object) -> list[Tensor]:
    session = model.start(PROMPTS, LENGTHS, **options)  # type: ignore[arg-type]
    codes_BK, parents_BK = torch.tensor([[0, 3], [1, 2], [5, 5]]), torch.zeros(3, 2, dtype=torch.int64)
    steps = [session.step_fn().clone()]
    steps += [session.step_fn(codes, parents_BK).clone() for codes in (codes_BK, codes_BK % 5)]
    return steps


class Rounded(torch.nn.Linear):
    """The truth: a product of rounded rows and weights in float64."""

    def forward(self, input: Tensor) -> Tensor:
        rounded_VD, scale_V = round_rows(self.weight, torch.int8)
        rows_ND = rounded_rows(input.reshape(-1, input.shape[-1]))
        product = (rows_ND @ (rounded_VD.double() * scale_V[:, None]).T).float().view(*input.shape[:-1], -1)
        return product if self.bias is None else product + self.bias  # pyright: ignore[reportUnnecessaryComparison]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_multiplies_rounded_rows_and_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(decoder(**CONFIGS[name]), monkeypatch)


@pytest.mark.parametrize("fields", [{}, {"num_experts": 4, "num_experts_per_tok": 2}, {"mlp_layers": 2}], ids=str)
def test_an_encoder_decoder_multiplies_rounded_rows_and_weights(
    fields: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(encoder_decoder(**fields), monkeypatch)


def check(model: Transformer | EncoderDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of an int8 copy are those of rounded products, and differ from the model's, which is left alone."""
    exact = logits_of(model)
    rounded = model.with_precision("int8")
    found = logits_of(rounded)
    for one, other in zip(exact, logits_of(model), strict=True):
        assert torch.equal(one, other)
    assert all(module.rounded is not None or not len(module.weight) for module in rounded.layer_matrices())
    monkeypatch.setattr(Linear, "forward", Rounded.forward)
    if not any(isinstance(module, Experts) for module in model.modules()):
        # The modules run in float32 here: a rounding that falls to the other side moves a logit a little.
        for one, other, plain in zip(found, truth_of(model), exact, strict=True):
            assert (one - other).abs().mean() < 0.5 * (one - plain).abs().mean()
    for one, plain in zip(found, exact, strict=True):
        assert not torch.equal(one, plain)
        assert (one - plain).abs().max() < 0.2 * plain.std()


@torch.no_grad()
def truth_of(model: Transformer | EncoderDecoder) -> list[Tensor]:
    """The logits of `logits_of` by torch's modules."""
    codes_BK, parents = torch.tensor([[0, 3], [1, 2], [5, 5]]), torch.zeros(3, 2, dtype=torch.int64)
    options = model._options(PROMPTS, LENGTHS, VOCABULARY)  # pyright: ignore[reportPrivateUsage]
    runner = model.run_prompts(PROMPTS, LENGTHS, options)
    steps = [runner.root_logits()]
    for level, codes in enumerate((codes_BK, codes_BK % 5)):
        (logits,) = runner.extend(VOCABULARY.tokens_at(codes, level)[..., None], parents, level)
        steps.append(logits)
    return steps


def test_packed_and_plain_models_give_the_same_int8_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafbeam.ops.linear.onednn.is_faster", lambda weight, threads: True)
    plain, packed = decoder(), decoder().pack()
    assert any(module.weight.is_mkldnn for module in packed.layer_matrices())
    workspace, store = Workspace(), PromptStore(1 << 20)
    expected = logits_of(plain.with_precision("int8"))
    copy = packed.with_precision("int8")
    for _ in range(2):  # the second finds the prompts in the store
        for one, other in zip(expected, logits_of(copy, workspace=workspace, store=store), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    assert str(copy.tune_products()).startswith("10 matrices of int8; 0 of 0 matrices packed")


def test_a_copy_is_not_saved_nor_rounded_again_nor_called(tmp_path: Path) -> None:
    copy = decoder().with_precision("int8")
    with pytest.raises(ArgumentError, match="of int8: save the model that it was made from"):
        copy.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="this model is in int8 already; load it again"):
        copy.with_precision("int8")
    with pytest.raises(ArgumentError, match="read it with load_model"):
        copy(PROMPTS)
    assert copy.with_precision("float32") is copy


def test_processors_without_vnni_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ArgumentError, match="precision='int8': this processor lacks AVX-512 VNNI"):
        decoder().with_precision("int8")
    with pytest.raises(ArgumentError, match="precision='bfloat16' needs a decoder"):
        encoder_decoder().with_precision("bfloat16")
