import doctest
import importlib
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, TokenTable, Transformer, Vocabulary
from leafbeam.model.decoder import RMSNorm, causal, make_dropout

MakeModel = Callable[..., Transformer]


def their_model(ours: Transformer) -> Qwen3ForCausalLM:
    """transformers' own model with our weights, without going through files."""
    theirs = Qwen3ForCausalLM(Qwen3Config(**ours.config.to_hf()))
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if ours.config.tie_word_embeddings else set())
    theirs.tie_weights()
    return theirs.eval()


@pytest.mark.parametrize(
    ("key_heads", "tied", "head_dim", "theta"), [*product((1, 2, 4), (False, True), (12, 16), (1e4,)), (2, False, 32, 1e6)]
)
def test_logits_equal_those_of_transformers(
    make_model: MakeModel, generator: torch.Generator, key_heads: int, tied: bool, head_dim: int, theta: float
):
    model = make_model(num_key_value_heads=key_heads, tie_word_embeddings=tied, head_dim=head_dim, rope_theta=theta)
    tokens = torch.randint(0, model.config.vocab_size, (3, 50), generator=generator)
    with torch.no_grad():
        expected = their_model(model)(tokens).logits
        logits = model.logits(model(tokens))
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_gradients_equal_those_of_transformers(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    theirs = their_model(model)
    tokens = torch.randint(0, model.config.vocab_size, (2, 20), generator=generator)
    model.logits(model(tokens)).logsumexp(-1).sum().backward()
    theirs(tokens).logits.logsumexp(-1).sum().backward()
    expected = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-4, rtol=1e-4)


def test_the_head_of_a_level_is_its_slice_of_the_logits_and_copies_nothing(make_model: MakeModel):
    model = make_model()
    hidden = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0))
    for level in range(4):
        part = model.vocabulary.level_slice(level)  # type: ignore[union-attr]
        torch.testing.assert_close(model.head(hidden, level), model.logits(hidden)[..., part], atol=1e-6, rtol=0)
        rows = model.vocabulary.level_rows(model.head_weight, level)
        assert rows.untyped_storage().data_ptr() == model.head_weight.untyped_storage().data_ptr()


def test_the_head_of_a_table_gathers_its_tokens(make_model: MakeModel):
    table = TokenTable(tokens_per_level=((9, 3, 30), (17, 3)), size=32, pad=0, bos=1, eos=2)
    model = make_model(table)
    hidden = torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    for level, tokens in enumerate(table.tokens_per_level):
        torch.testing.assert_close(model.head(hidden, level), model.logits(hidden)[..., list(tokens)], atol=1e-6, rtol=0)


def test_padding_changes_nothing_before_it_and_comes_back_as_zeros(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens = torch.randint(3, model.config.vocab_size, (3, 12), generator=generator)
    lengths = torch.tensor([12, 1, 7])
    padded = tokens.masked_fill(torch.arange(12) >= lengths[:, None], model.vocabulary.pad)
    hidden = model(padded, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(hidden[row, :length], model(tokens[row : row + 1, :length])[0], atol=1e-5, rtol=0)
        assert (hidden[row, length:] == 0).all()


def test_autocast_to_bfloat16_trains(make_model: MakeModel, generator: torch.Generator):
    model = make_model().train()
    tokens = torch.randint(0, model.config.vocab_size, (2, 9), generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.logits(model(tokens))
    exact = model.logits(model(tokens))
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - exact).abs().max() < 0.05 * exact.abs().max()
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_weights_come_from_the_generator_alone(poisoned: None):
    config, vocabulary = ModelConfig(vocab_size=49), Vocabulary(codebook_sizes=(40, 6))
    before = torch.get_rng_state()
    one, same, other = (Transformer(config, vocabulary, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head_weight, other.head_weight)
    assert all(p.isfinite().all() for p in one.parameters())
    assert abs(float(one.model.embed_tokens.weight.detach().std()) / config.initializer_range - 1) < 0.05


def test_a_model_without_generator_is_always_the_same():
    config, vocabulary = ModelConfig(vocab_size=49), Vocabulary(codebook_sizes=(40, 6))
    one, same = Transformer(config, vocabulary), Transformer(config, vocabulary)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))


def test_dropout_follows_its_generator_and_stops_in_evaluation(make_model: MakeModel):
    model = make_model(dropout=0.3)
    tokens = torch.arange(10)[None]
    exact = model(tokens)
    model.train()
    one, same = (model(tokens, dropout=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, same)
    assert not torch.allclose(one, exact)
    assert torch.equal(model.eval()(tokens), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradients_of_a_norm_are_those_of_its_formula(generator: torch.Generator, dtype: torch.dtype):
    norm = RMSNorm(24, 1e-3).to_empty(device="cpu")
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0, generator=generator)
    x, upstream = (torch.randn(3, 5, 24, generator=generator).to(dtype) for _ in range(2))
    x[0, 0] = 0
    exact, weight = (tensor.detach().double().requires_grad_() for tensor in (x, norm.weight))
    expected = weight * exact / (exact.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    expected.backward(upstream.double())
    found = norm(x.requires_grad_())
    found.backward(upstream)
    rounding = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    for tensor, wide in ((found, expected), (x.grad, exact.grad), (norm.weight.grad, weight.grad)):
        torch.testing.assert_close(tensor.double(), wide, **rounding)


def test_dropout_keeps_the_mean():
    dropped = make_dropout(0.3, torch.Generator().manual_seed(1))(torch.ones(100_000))
    assert abs(float(dropped.mean()) - 1) < 0.01
    assert abs(float((dropped == 0).float().mean()) - 0.3) < 0.01


def test_training_with_dropout_and_no_generator_raises(make_model: MakeModel):
    with pytest.raises(ArgumentError, match="dropout"):
        make_model(dropout=0.3).train()(torch.arange(4)[None])


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [
        (torch.zeros(4, dtype=torch.int64), None),
        (torch.zeros(2, 4), None),
        (torch.zeros(2, 0, dtype=torch.int64), None),
        (torch.zeros(2, 65, dtype=torch.int64), None),
        (torch.full((2, 4), 45), None),
        (torch.full((2, 4), -1), None),
        (torch.zeros(2, 4, dtype=torch.int64), torch.tensor([4])),
    ],
)
def test_impossible_tokens_raise(make_model: MakeModel, tokens: torch.Tensor, lengths: Any):
    with pytest.raises(ArgumentError):
        make_model()(tokens, lengths)


def test_a_vocabulary_larger_than_the_embedding_raises():
    with pytest.raises(ArgumentError, match="vocab_size"):
        Transformer(ModelConfig(vocab_size=10), Vocabulary(codebook_sizes=(8,)))


@pytest.mark.parametrize("name", ["vocabulary", "config", "transformer"])
def test_the_examples_in_the_docstrings_run(name: str):
    outcome = doctest.testmod(importlib.import_module(f"leafbeam.model.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_attention_in_training_with_bfloat16_has_the_gradients_of_float32(generator: torch.Generator):
    shapes = (3, 9, 4, 8), (3, 9, 2, 8), (3, 9, 2, 8)  # grouped: fewer key heads
    wide = [torch.randn(shape, generator=generator).bfloat16().float().requires_grad_() for shape in shapes]
    narrow = [one.detach().bfloat16().requires_grad_() for one in wide]
    expected = causal(0, *wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = causal(0, *narrow)
        mixed = causal(0, wide[0].detach().requires_grad_(), wide[1].detach(), narrow[2].detach().requires_grad_())
    assert found.dtype == mixed.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=0)
    torch.testing.assert_close(mixed, found)
    weights = torch.randn(expected.shape, generator=generator)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    for one, other in zip(wide, narrow, strict=True):
        assert other.grad is not None
        torch.testing.assert_close(other.grad.float(), one.grad, atol=3e-2, rtol=2e-2)
