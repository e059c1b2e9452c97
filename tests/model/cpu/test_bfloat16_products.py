"""Products in bfloat16 are those of rounded rows, matrices and heads; what a model shares with its copy stays as it was."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, PromptStore, Transformer, Workspace
from leafbeam.model.cpu import rounded_attention
from leafbeam.model.cpu.rounded_attention import RoundedPrompt
from leafbeam.model.cpu.workspace import Chunk
from leafbeam.model.decoder import causal
from tests.fixtures.sessions import prompts

MakeModel = Callable[..., Transformer]


class RoundedLinear(nn.Module):
    """The truth: rows and matrix rounded, the product in float64, then rounded."""

    def __init__(self, weight_VD: Tensor) -> None:
        super().__init__()
        self.weight_VD = weight_VD.bfloat16().double()

    def forward(self, rows: Tensor) -> Tensor:
        return (rows.bfloat16().double() @ self.weight_VD.T).bfloat16().float()


def truth_of(model: Transformer) -> Transformer:
    truth = deepcopy(model)
    for parent in list(truth.model.layers.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Linear):
                setattr(parent, name, RoundedLinear(module.weight.detach()))
    return truth


def rounded_causal(layer: int, *heads: Tensor) -> Tensor:
    """Attention of rounded queries, keys and values."""
    return causal(layer, *(each.bfloat16() for each in heads)).float()


@torch.no_grad()  # with gradients, attention is in float32
def root_logits(model: Transformer, tokens_BT: Tensor, lengths_B: Tensor, attend: Callable[..., Tensor] = causal) -> Tensor:
    hidden_BTD = model.model(model.model.embed(tokens_BT), torch.arange(tokens_BT.shape[1]), attend)
    return model.head(hidden_BTD[torch.arange(len(lengths_B)), lengths_B - 1], 0)


@pytest.mark.parametrize("stored", [False, True])
def test_logits_are_those_of_rounded_products(make_model: MakeModel, generator: torch.Generator, stored: bool):
    model = make_model(num_hidden_layers=3, max_position_embeddings=64)
    if stored:
        for parameter in model.parameters():
            parameter.data = parameter.bfloat16().float()
        model.store_bfloat16()
    tokens_BT, lengths_B = prompts(model, generator, size=8, length=40)
    exact = root_logits(model, tokens_BT, lengths_B)
    expected = root_logits(truth_of(model), tokens_BT, lengths_B, rounded_causal)
    workspace = Workspace(rows=7)
    found = model.with_precision("bfloat16").start(tokens_BT, lengths_B, workspace=workspace).step_fn().reshape(exact.shape)
    # Sums in another order are rounded to a neighbour now and then: nearer to the truth than float32 is, and never far.
    assert (found - expected).abs().mean() < 0.6 * (exact - expected).abs().mean()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1 * float(exact.std()))


@pytest.mark.parametrize("known", [0, 1, 9])
@pytest.mark.parametrize("num_rows", [1, 2, 17])
def test_attention_of_a_prompt_is_that_of_rounded_heads(generator: torch.Generator, known: int, num_rows: int):
    """Rows behind `known` cached tokens, between rows of other requests, see their own prompt up to themselves."""
    config = ModelConfig(vocab_size=9, num_attention_heads=6, num_key_value_heads=3, head_dim=16, hidden_size=24)
    groups, ratio, size, length = 3, 2, 16, known + num_rows
    chunk = Chunk(Workspace(rows=32), config, num_rows + 7, torch.bfloat16)
    rows, first = slice(4, 4 + num_rows), 5
    chunk.positions_X[rows] = np.arange(known, length)
    query_GNRE = chunk.prompt_query.view(groups, chunk.rows, ratio, size)
    query_GNRE.copy_(torch.randn(query_GNRE.shape, generator=generator))
    slots = torch.randn(2, groups, first + length + 3, size, generator=generator)
    chunk.attention_output.fill_(torch.nan)
    rounded_attention.attend([RoundedPrompt.of(chunk, rows, first)], slots, chunk)

    keys, values = slots[:, :, first : first + length].bfloat16().double()
    scores = torch.einsum("gnre,gte->gnrt", query_GNRE[:, rows].double(), keys)
    unseen = torch.arange(length) > torch.arange(known, length)[:, None]
    weights = scores.masked_fill(unseen[None, :, None], -torch.inf).softmax(-1)
    expected = torch.einsum("gnrt,gte->ngre", weights, values).flatten(1).float()
    torch.testing.assert_close(chunk.attention_output[rows].float(), expected, rtol=2e-2, atol=2e-2)
    assert chunk.attention_output[: rows.start].isnan().all()
    assert chunk.attention_output[rows.stop :].isnan().all()


def test_a_search_in_bfloat16_finds_legal_items_in_reused_memory(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    rounded = model.with_precision("bfloat16")
    sizes = model.vocabulary.codebook_sizes
    codes_NL = torch.stack([torch.randint(0, size, (200,), generator=generator) for size in sizes], 1)
    search = BeamSearch(Trie.build(codes_NL.numpy(), sizes), num_beams=20)
    tokens_BT, lengths_B = prompts(model, generator)
    workspace, store = Workspace(), PromptStore(1 << 20)
    seen = []
    for _ in range(3):
        session = rounded.start(tokens_BT, lengths_B, workspace=workspace, store=store)
        seen.append((search.run(session.step_fn, len(lengths_B)), workspace.growths))
    assert len({growths for _, growths in seen}) == 1
    scores = [torch.from_numpy(found.scores) for found, _ in seen]
    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=0.05)  # prompts of the store
    assert all(set(ids.tolist()) <= set(range(200)) for ids in seen[0][0].item_ids)
    exact = search.run(model.start(tokens_BT, lengths_B).step_fn, len(lengths_B))
    torch.testing.assert_close(scores[0], torch.from_numpy(exact.scores), rtol=0, atol=0.5)
    assert not torch.equal(scores[0], torch.from_numpy(exact.scores))


def test_the_copy_shares_all_but_the_layers_matrices_and_the_model_is_left_alone(make_model: MakeModel):
    model = make_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    rounded = model.with_precision("bfloat16")
    for name, weight in rounded.named_parameters():
        if "_proj" in name:
            assert weight.dtype == torch.bfloat16
            assert torch.equal(weight, before[name].bfloat16())
        else:
            assert weight.data_ptr() == model.get_parameter(name).data_ptr()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_texts_are_multiplied_in_bfloat16_too(make_model: MakeModel):
    model = make_model()
    rounded, truth, texts = model.with_precision("bfloat16"), truth_of(model), [[3, 7], [5]]
    tokens_BT = torch.arange(6)[None]

    def attend(layer: int, *heads: Tensor) -> Tensor:  # what follows the prompt attends in float32
        in_prompt = rounded_causal(layer, *(each[:, : tokens_BT.shape[1]] for each in heads))
        return torch.cat([in_prompt, causal(layer, *heads)[:, tokens_BT.shape[1] :]], 1)

    found_RD = rounded.start_texts(tokens_BT, num_texts=2, max_tokens=4).hidden_after(texts)
    for found_D, text in zip(found_RD, texts, strict=True):
        whole_BT = torch.cat([tokens_BT, torch.tensor([text])], 1)
        expected_D = truth.model(truth.model.embed(whole_BT), torch.arange(whole_BT.shape[1]), attend)[0, -1]
        exact_D = model(whole_BT)[0, -1]
        assert (found_D - expected_D).abs().mean() < 0.6 * (exact_D - expected_D).abs().mean()


def test_other_models_are_refused(make_model: MakeModel):
    with pytest.raises(ArgumentError, match=r"float32 on a CPU, and this one is in bfloat16 on cpu"):
        make_model().bfloat16().with_precision("bfloat16")
