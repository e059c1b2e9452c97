"""Branches of training: hidden states after the codes of other items, beside prompts that end in these items."""

import numpy as np
import pytest
import torch

from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, Transformer, Vocabulary


def model_of(*, item_history: bool, num_users: int = 0, **fields: object) -> Transformer:
    vocabulary = Vocabulary(codebook_sizes=(5, 4, 3), num_users=num_users)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=32,
        num_hidden_layers=2,
        item_history=item_history,
        **fields,  # type: ignore[arg-type]
    )
    return Transformer(config, vocabulary, torch.Generator().manual_seed(1)).eval()


def tokens_of(model: Transformer, codes: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(model.vocabulary.tokens(codes))


@pytest.mark.parametrize("item_history", [False, True])
@pytest.mark.parametrize("num_before", [1, 2])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_branch_sees_what_a_prompt_that_ends_in_its_item_would(item_history: bool, num_before: int, first: int):
    model, rng = model_of(item_history=item_history, num_users=3 if num_before == 2 else 0), np.random.default_rng(0)
    items, others = rng.integers(0, (5, 4, 3), (2, 4, 3)), rng.integers(0, (5, 4, 3), (2, 4, 3))
    start = torch.full((2, 1), model.vocabulary.bos)
    if num_before == 2:
        start = torch.cat((start, torch.as_tensor(model.vocabulary.user_tokens(np.array([3, 4])))[:, None]), 1)
    prompts = torch.cat((start, tokens_of(model, items).flatten(1)[:, :-1]), 1)
    found = model(prompts, branches_BPM=tokens_of(model, others)[:, first:, :-1])
    torch.testing.assert_close(found[:, : prompts.shape[1]], model(prompts), rtol=1e-4, atol=1e-5)
    branches = found[:, prompts.shape[1] :].unflatten(1, (4 - first, 2))
    for place in range(first, 4):
        ends = np.concatenate((items[:, :place], others[:, place : place + 1]), axis=1)
        alone = model(torch.cat((start, tokens_of(model, ends).flatten(1)[:, :-1]), 1))
        torch.testing.assert_close(branches[:, place - first], alone[:, -2:], rtol=1e-4, atol=1e-5)


def test_windows_of_attention_refuse_branches():
    model = model_of(item_history=False, attention_cap=30.0)
    tokens = torch.full((1, 3), model.vocabulary.bos)
    with pytest.raises(ArgumentError, match="teacher_weight=0"):
        model(tokens, branches_BPM=tokens[:, None, :2])
